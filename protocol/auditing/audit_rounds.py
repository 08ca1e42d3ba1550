"""The last sealed rounds, as audits need them: COMMITs that count, what their senders inherited,
and what was said of them. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol import limits
from protocol.auditing.onions import beacon, follows
from protocol.grid import EMPTY_ROOT
from protocol.identity import PeerId
from protocol.leases import Lease
from protocol.messages import Commit, SealValue, SignedMessage, Slot, Verdict
from protocol.rounds import roster as rosters
from protocol.rounds.round_view import RoundView

ROUNDS_KEPT = 8
"""An audit is drawn one seal behind its round, and over some four later."""

Inherited = tuple[tuple[bytes, bytes], ...]
"""Roots of moments and residual that a round may have begun with: either pair."""

NOTHING = (EMPTY_ROOT, EMPTY_ROOT)
"""Of whoever begins, and of whoever had to begin anew: nobody can choose it, so everybody may."""


@dataclass(slots=True, kw_only=True)
class AuditedRound:
    """`named` is the seal that names its roster, `commits` are those that its own seal lists;
    `words` the VERDICTs on each segment."""

    round: int
    named: SealValue
    beacon: bytes
    """Of the round before it."""
    commits: dict[bytes, tuple[SignedMessage, Commit]]
    inherited: dict[PeerId, Inherited]
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

    def __init__(self, head: SealValue) -> None:
        self._begin(head)

    def _begin(self, head: SealValue) -> None:
        self._is_whole = head.round == 0
        """Whether all is known from genesis on."""
        self._index = self._began = head.round
        self.retracted = -1
        """The round of the own last RETRACT, -1 of none."""
        self._rounds: dict[int, AuditedRound] = {}
        self._after: dict[PeerId, tuple[bytes, bytes]] = {}
        """What each left to its next round, by its last listed COMMIT."""
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
        bound = view.named.roster.voter_set - strayed
        layers = [
            (message.sender, commit.work[0].onion)
            for message, commit in commits.values()
            if message.sender in bound
        ]
        self._index = value.round
        self._rounds[value.round] = AuditedRound(
            round=value.round,
            named=view.named,
            beacon=beacon(value.run, value.round - 1, layers),
            commits=commits,
            inherited={m.sender: self._inherited(m.sender) for m, _ in commits.values()},
        )
        for message, commit in commits.values():
            self._after[message.sender] = (commit.work[0].after, commit.residual_after)
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

    def _inherited(self, peer: PeerId) -> Inherited:
        """Nothing at all where nobody here knows what was before."""
        known = self._after.get(peer)
        if known is not None:
            return (known, NOTHING)
        return (NOTHING,) if self._is_whole else ()
