"""The last sealed rounds, as audits need them: COMMITs that count, what their senders inherited,
and what was said of them. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from protocol import limits
from protocol.grid import EMPTY_ROOT
from protocol.identity import PeerId, Signer
from protocol.leases import Lease
from protocol.manifest import AdmissionSpec, AuditSpec
from protocol.messages import Commit, Outcome, SealValue, SignedMessage, Slot, Verdict
from protocol.rounds import roster as rosters
from protocol.rounds.round_view import RoundView
from protocol.rounds.seating import parts

# Onions -------------------------------------------------------------------------------------------
#
# The hash onion: one secret of a node for all its rounds, a layer less with each COMMIT (R10).
#
#     layer(r) = H(layer(r + 1)): a COMMIT of round r shows layer r, and binds the sender to r + 1
#
# So what the layers of all voters of a round hash to is nothing that anybody knows before the last
# COMMIT of that round, and nothing that anybody can choose: it can only stay away. `beacon` is made
# of them. The first layer that a peer shows binds it and is bound by nothing, so it must not count.

_ONION_DOMAIN = b"barnraise/onion/1"
_BEACON_DOMAIN = b"barnraise/beacon/1"

LAYERS = 4096
"""Of one secret; the next one begins where they end, with nothing that binds it: in one round of so
many a voter may choose its layer."""

GAP_MAX = 64
"""So many rounds may lie between two layers of a peer; whoever was away for longer begins anew."""


def _under(layer: bytes) -> bytes:
    return blake3(_ONION_DOMAIN + layer).digest()


class Onion:
    """The own one. The secret follows from the key, so that a restart goes on with it."""

    def __init__(self, signer: Signer, run: bytes) -> None:
        self._secret = blake3(_ONION_DOMAIN + signer.sign(_ONION_DOMAIN + run)).digest()
        self._turn = -1
        self._layers: list[bytes] = []

    def layer(self, round_index: int) -> bytes:
        """What the COMMIT of that round shows."""
        turn, place = divmod(round_index, LAYERS)
        if turn != self._turn:
            layers = [blake3(self._secret + turn.to_bytes(8, "big")).digest()]
            while len(layers) < LAYERS:
                layers.append(_under(layers[-1]))
            self._turn, self._layers = turn, layers[::-1]
        return self._layers[place]


def follows(layer: bytes, round_index: int, known: tuple[int, bytes] | None) -> bool:
    """Whether a layer is what its sender was bound to by an earlier one, of that round."""
    if known is None or known[0] // LAYERS != round_index // LAYERS:
        return True
    gap = round_index - known[0]
    if not 0 < gap <= GAP_MAX:
        return gap > GAP_MAX
    for _ in range(gap):
        layer = _under(layer)
    return layer == known[1]


def beacon(run: bytes, round_index: int, layers: Sequence[tuple[PeerId, bytes]]) -> bytes:
    """What the layers of a round's voters hash to, ascending by sender."""
    head = _BEACON_DOMAIN + run + round_index.to_bytes(8, "big")
    return blake3(head + b"".join(peer + layer for peer, layer in sorted(layers))).digest()


def share(beacon_of_round: bytes, *parts: bytes) -> float:
    """A number from 0 to below 1 that the beacon draws for these parts."""
    drawn = blake3(beacon_of_round + b"".join(parts)).digest()[:7]
    return int.from_bytes(drawn, "big") / (1 << 56)


# Audit rounds -------------------------------------------------------------------------------------

ROUNDS_KEPT = 8
"""An audit is drawn one seal behind its round, and over some four later."""

Inherited = tuple[tuple[bytes, bytes], ...]
"""Roots of inner state and residual that a round may have begun with: either pair."""

NOTHING = (EMPTY_ROOT, EMPTY_ROOT)
"""Of whoever begins, and of whoever had to begin anew: nobody can choose it, so everybody may."""


@dataclass(slots=True)
class _Left:
    """What a peer left to its next round by its last listed COMMIT, and to the next round on each
    fragment: no entry where nobody here knows that."""

    round: int
    after: bytes
    residuals: dict[int, bytes]


@dataclass(slots=True, kw_only=True)
class AuditedRound:
    """`named` is the seal that names its roster, `commits` are those that its own seal lists;
    `words` the VERDICTs on each segment. `since` has the last round before it that lists a peer,
    0 of none."""

    round: int
    named: SealValue
    beacon: bytes
    """Of the round before it."""
    commits: dict[bytes, tuple[SignedMessage, Commit]]
    inherited: dict[PeerId, Inherited]
    since: dict[PeerId, int] = field(default_factory=dict)
    _classes: dict[PeerId, str] = field(init=False)
    retracted: set[bytes] = field(default_factory=set)
    """COMMITs that their senders took back."""
    words: dict[tuple[bytes, int], dict[PeerId, tuple[SignedMessage, Verdict]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        listed = self.commits.values()
        self._classes = {m.sender: c.work[0].device for m, c in listed if c.work}

    def listed(self) -> Iterator[tuple[SignedMessage, Commit]]:
        """In the order of the LIST."""
        return iter(self.commits.values())

    def class_of(self, peer: PeerId) -> str:
        """The device class of a listed sender; empty of anybody else."""
        return self._classes.get(peer, "")

    def said(self, sender: PeerId, body: Verdict) -> SignedMessage | None:
        """What is known of its word on that segment."""
        known = self.words.get((body.commit, body.segment), {}).get(sender)
        return None if known is None else known[0]

    def has_room(self, sender: PeerId) -> bool:
        """Whether it has not said too much."""
        said = sum(sender in of_segment for of_segment in self.words.values())
        return said < limits.VERDICTS_PER_ROUND_MAX

    def lease_of(self, peer: PeerId, samples_each: int) -> Lease:
        """What it was to train on."""
        return rosters.leased_for(self.round, self.named, samples_each)[peer]


class Rounds:
    """What is known of the chain from where this process began, without a gap."""

    def __init__(self, head: SealValue, num_fragments: int = 1) -> None:
        self._num_fragments = num_fragments
        self._begin(head)

    def _begin(self, head: SealValue) -> None:
        self._is_whole = head.round == 0
        """Whether all is known from genesis on."""
        self._index = self._began = head.round
        self.retracted = -1
        """The round of the own last RETRACT, -1 of none."""
        self._rounds: dict[int, AuditedRound] = {}
        self._left: dict[PeerId, _Left] = {}
        self._layers: dict[PeerId, tuple[int, bytes]] = {}

    @property
    def newest(self) -> AuditedRound | None:
        """The last one."""
        return self._rounds.get(self._index)

    def at(self, round_index: int) -> AuditedRound | None:
        """That round, while it may be judged."""
        return self._rounds.get(round_index)

    def judged(self) -> Iterator[AuditedRound]:
        """All of them, the oldest first."""
        return iter(self._rounds.values())

    def of(self, slot: Slot) -> AuditedRound | None:
        """The round that a slot is of."""
        found = self._rounds.get(slot.round)
        return found if found is not None and found.named.digest == slot.basis else None

    def may_retract(self, round_index: int) -> bool:
        """Whether no own RETRACT can be near that round, not one of before this process either."""
        if self.retracted >= 0:
            return round_index - self.retracted > limits.RETRACT_ROUNDS
        return self._is_whole or round_index - self._began > limits.RETRACT_ROUNDS

    def sealed(
        self, view: RoundView, value: SealValue
    ) -> tuple[AuditedRound | None, frozenset[PeerId]]:
        """Take in a final round, and who peeled a wrong layer in it; None where something is
        missing here, and all begins anew behind it."""
        found = [view.ballots.find(digest) for digest in value.commits]
        commits = {
            entry.message.digest: (entry.message, entry.body)
            for entry in found
            if entry is not None and isinstance(entry.body, Commit)
        }
        if value.round != self._index + 1 or len(commits) < len(value.commits):
            self._begin(value)
            return None, frozenset()
        strayed = self._peeled(value.round, commits)
        # Who votes was listed before, so a layer of then binds it. A newcomer is bound by nothing,
        # and identities are cheap: who commits last would try layers until it likes the draw.
        bound = view.seals.named.roster.voter_set - strayed
        layers = [
            (message.sender, commit.work[0].onion)
            for message, commit in commits.values()
            if message.sender in bound
        ]
        self._index = value.round
        self._rounds[value.round] = AuditedRound(
            round=value.round,
            named=view.seals.named,
            beacon=beacon(value.run, value.round - 1, layers),
            commits=commits,
            inherited={
                m.sender: self._inherited(m.sender, value.round) for m, _ in commits.values()
            },
            since={m.sender: self._since(m.sender) for m, _ in commits.values()},
        )
        for message, commit in commits.values():
            self._leave(message.sender, commit, value.round)
        self._rounds.pop(value.round - ROUNDS_KEPT, None)
        return self._rounds[value.round], strayed

    def _peeled(
        self, round_index: int, commits: dict[bytes, tuple[SignedMessage, Commit]]
    ) -> frozenset[PeerId]:
        strayed = set()
        for message, commit in commits.values():
            layer = commit.work[0].onion
            if follows(layer, round_index, self._layers.get(message.sender)):
                self._layers[message.sender] = (round_index, layer)
            else:
                strayed.add(message.sender)
        return frozenset(strayed)

    def _since(self, peer: PeerId) -> int:
        left = self._left.get(peer)
        return 0 if left is None else left.round

    def _inherited(self, peer: PeerId, round_index: int) -> Inherited:
        """Nothing at all where nobody here knows what was before."""
        left, fragment = self._left.get(peer), round_index % self._num_fragments
        if left is not None and fragment in left.residuals:
            return ((left.after, left.residuals[fragment]), NOTHING)
        return (NOTHING,) if left is None and self._is_whole else ()

    def _leave(self, peer: PeerId, commit: Commit, round_index: int) -> None:
        left, work = self._left.get(peer), commit.work[0]
        residuals = {} if left is None else left.residuals
        if work.before == EMPTY_ROOT or (left is None and self._is_whole):
            # Whoever begins anew has no residual of any fragment.
            residuals = dict.fromkeys(range(self._num_fragments), EMPTY_ROOT)
        own = {round_index % self._num_fragments: commit.residual_after}
        self._left[peer] = _Left(round_index, work.after, residuals | own)


# Audit draw ---------------------------------------------------------------------------------------
#
# Whom a node audits: drawn by the beacon, so that nobody steers or foresees it (R10).
#
# Each contribution meets `rate` audits on average, whatever the number of voters that share them.
# Signals and a young seat raise that, for this node alone: they choose audits and nothing else.

SUSPECT_RATE = 0.5
"""Audits per contribution of a sender that is new, or that stands out."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """By which law; whom signals name; who is barred already, and needs no audit."""

    law: AuditSpec
    admission: AdmissionSpec
    suspected: frozenset[PeerId] = frozenset()
    barred: frozenset[PeerId] = frozenset()


def drawn(draw: Drawn, on: AuditedRound, beacon: bytes, me: PeerId) -> Iterator[tuple[bytes, int]]:
    """COMMITs of a round and the segments of each that this node is to run again: the encoding, and
    of its own class one of training."""
    seats = {seat.peer: seat for seat in on.named.roster.seats}
    for message, commit in on.listed():
        peer = message.sender
        if peer in draw.barred:
            continue
        is_new = parts(seats[peer], draw.admission) < max(1, draw.admission.ramp)
        rate = draw.law.rate
        if is_new or peer in draw.suspected:
            rate = max(rate, SUSPECT_RATE)
        if _meets(on, beacon, me, peer, rate):
            yield message.digest, draw.law.segments  # Any class encodes alike.
            if on.class_of(me) == commit.work[0].device:
                yield message.digest, _segment(beacon, me, peer, draw.law)


def may_accuse(
    law: AuditSpec, on: AuditedRound, beacon: bytes, accuser: PeerId, key: tuple[bytes, int]
) -> bool:
    """Whether the beacon may have drawn somebody for that segment, whatever its signals said: else
    a liar would make all voters run all segments of everybody."""
    peer = on.commits[key[0]][0].sender
    is_drawn = _meets(on, beacon, accuser, peer, max(law.rate, SUSPECT_RATE))
    return is_drawn and key[1] in (law.segments, _segment(beacon, accuser, peer, law))


def _meets(on: AuditedRound, beacon: bytes, auditor: PeerId, peer: PeerId, rate: float) -> bool:
    """Whether that voter, whose work is listed as well, looks at the work of that peer."""
    auditors = [v for v in on.named.roster.voters if v != peer and on.class_of(v)]
    is_one = auditor in auditors
    return is_one and share(beacon, b"who", auditor, peer) < rate / len(auditors)


def _segment(beacon: bytes, auditor: PeerId, peer: PeerId, law: AuditSpec) -> int:
    return int(share(beacon, b"segment", auditor, peer) * law.segments)


# Audit access -------------------------------------------------------------------------------------
#
# Who may be shown the states behind a COMMIT, and from when on (R10).
#
# Nobody before the beacon chose: whoever knew earlier could bend what nobody will look at, and
# states are large. Then whom it may have drawn for that very segment; and where such a peer calls
# it wrong, every voter, of whoever fetched it. What is one's own is shown for one's own COMMIT
# alone: who names the root of somebody else's state makes nobody send that to all voters.

FETCHED_WITHIN = 2
"""Seals behind that which draws, at which a state is asked for at the latest; of those called in by
a VERDICT later, but then somebody is accused."""

Key = tuple[bytes, int]
"""COMMIT digest and segment."""


def is_accused(rounds: Rounds, law: AuditSpec, on: AuditedRound, key: Key) -> bool:
    """Whether somebody calls it wrong who was drawn for it: to be asked again once the seal is here
    that drew."""
    behind = rounds.at(on.round + 1)
    return behind is not None and any(
        verdict.outcome is not Outcome.RIGHT and may_accuse(law, on, behind.beacon, peer, key)
        for peer, (_, verdict) in on.words.get(key, {}).items()
    )


def may_see(rounds: Rounds, law: AuditSpec, me: PeerId, peer: PeerId, subject: bytes) -> bool:
    """Whether a peer may be shown that state or residual by this node."""
    about = [
        (message.sender == me, on, (message.digest, segment))
        for on in rounds.judged()
        for message, commit in on.listed()
        for segment in _segments_of(commit, subject, law.segments)
    ]
    has_made = any(is_own for is_own, _, _ in about)
    for is_own, on, key in about:
        behind = rounds.at(on.round + 1)
        if behind is None or (has_made and not is_own):
            continue
        if is_own and may_accuse(law, on, behind.beacon, peer, key):
            return True
        if peer in on.named.roster.voter_set and is_accused(rounds, law, on, key):
            return True
    return False


def shown_segments(rounds: Rounds, law: AuditSpec, me: PeerId) -> dict[int, frozenset[int]]:
    """By round the segments of this node's work that somebody may be shown yet; rounds whose beacon
    is not known are not among them, for of these it may be any.

    Whom the beacon may have drawn has two seals to fetch what it was drawn for, and one more in
    which it may be behind. Who is called in by a VERDICT comes later, and then somebody is accused.
    """
    found: dict[int, frozenset[int]] = {}
    for on in rounds.judged():
        behind, newest = rounds.at(on.round + 1), rounds.newest
        if behind is None or newest is None:
            continue
        own = [message.digest for message, _ in on.listed() if message.sender == me]
        is_late = newest.round > on.round + 1 + FETCHED_WITHIN
        found[on.round] = frozenset(
            segment
            for digest in own
            for segment in range(law.segments + 1)
            if _is_open(rounds, law, on, behind, (digest, segment), is_late=is_late)
        )
    return found


def _is_open(
    rounds: Rounds,
    law: AuditSpec,
    on: AuditedRound,
    behind: AuditedRound,
    key: Key,
    *,
    is_late: bool,
) -> bool:
    voters = () if is_late else on.named.roster.voters
    is_drawn = any(may_accuse(law, on, behind.beacon, voter, key) for voter in voters)
    return is_drawn or is_accused(rounds, law, on, key)


def _segments_of(commit: Commit, subject: bytes, segments: int) -> Iterator[int]:
    """The segments of a COMMIT that begin with it; the last one is the encoding."""
    trace = commit.work[0].trace
    yield from (number for number, root in enumerate(trace[: segments + 1]) if root == subject)
    if commit.residual_before == subject and subject != trace[-1]:
        yield segments
