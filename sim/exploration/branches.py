"""The model of branches (R4): links change, sides go on alone, heal, and seal on.

What is decided is decided by `protocol.rounds.branches`, `protocol.rounds.branches` and
`protocol.rounds.roster`, over real seal values; the model adds only what the world does. Signatures
and arithmetic are left out: a message is signed with zeros, and the root of a state is the digest
of what was summed. Links join peers into groups that hear each other at once and whole. A round's
agreement takes two steps: a quorum certifies a LIST and SOME voters SEAL it; the others hear of it
later or never. A peer that is frozen, has crashed or lost a message is one that does not act, or is
alone in its group, for a while. Suspicions are left out: members that are cut off are absent, and
leave the roster with their second absence.

Once links are up again, all must end on one head, in any order, and rounds become final
(`Convergent`, `MeetingOrder`, `Healing`).

The machines that call these deciders are explored in `running_branches.py`, within smaller bounds.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from itertools import combinations, permutations
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar, cast

from blake3 import blake3

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import (
    Kind,
    Roster,
    Seal,
    SealClock,
    SealValue,
    SeatRecord,
    SignedMessage,
    Slot,
)
from protocol.rounds import branches
from protocol.rounds import branches as branch_tree
from protocol.rounds.belief import pack_senders
from protocol.rounds.branches import Drift, Lock, Opening, Position, SealSeen, Tree, contributors
from protocol.rounds.roster import (
    ClockRules,
    ListedContribution,
    has_quorum,
    next_clock,
    next_roster,
    voters,
)
from protocol.wire import encode
from sim.exploration.explorer import Model
from sim.exploration.table import LETTERS, PLAIN_COMMIT

# Real seals, by number ----------------------------------------------------------------------------

NO_SIGNATURE = bytes(64)
RULES = ClockRules(samples_each=1, rounds=1 << 20, tokens=0)
P = ParamSpec("P")
T = TypeVar("T")


class UncheckedSigner:
    """Takes every signature for good: forgery is no part of the model."""

    peer_id = PeerId(bytes(32))

    def sign(self, message: bytes) -> bytes:
        """Zeros."""
        return NO_SIGNATURE

    def verify(self, peer: PeerId, message: bytes, signature: bytes) -> bool:
        """Always true."""
        return True


SIGNER = UncheckedSigner()


def contribution_root(own: bytes, pending: frozenset[int]) -> bytes:
    """What a COMMIT binds: the own payload, whatever drifts its sender brings along (R4)."""
    return own


def remembered(
    work: "Callable[Concatenate[Seals, P], T]",
) -> "Callable[Concatenate[Seals, P], T]":
    """An answer about values that never change is worked out the first time only."""

    @wraps(work)
    def ask(seals: "Seals", /, *args: P.args, **more: P.kwargs) -> T:
        return seals.once((work.__name__, *args), lambda: work(seals, *args, **more))

    return ask


class Seals:
    """Seals, COMMITs and drifts by small numbers, so that states are cheap to compare.

    Seal 0 is genesis, of `num_voters` voters. Numbers depend on the order in which things come up,
    which a search makes the same every time.
    """

    def __init__(self, num_peers: int, num_voters: int) -> None:
        self.peers = tuple(PeerId(LETTERS[index].encode() * 32) for index in range(num_peers))
        genesis = _genesis(self.peers[:num_voters])
        self.tree = Tree(genesis)
        self.values: list[SealValue] = [genesis]
        self.commits: list[tuple[SignedMessage, ListedContribution]] = []
        self.drifts: list[Drift] = []
        self._numbers: dict[bytes, int] = {genesis.digest: 0}
        self._by_list: dict[bytes, int] = {}
        self._senders: dict[bytes, PeerId] = {}
        self._answers: dict[Hashable, object] = {}

    def once(self, question: Hashable, answer: Callable[[], T]) -> T:
        """The answer to a question about values that never change, computed the first time."""
        if question not in self._answers:
            self._answers[question] = answer()
        return cast("T", self._answers[question])

    def number(self, digest: bytes) -> int:
        """The number of a seal, COMMIT or drift."""
        return self._numbers[digest]

    def of_list(self, list_digest: bytes) -> int:
        """The seal that this LIST gives."""
        return self._by_list[list_digest]

    def indices(self, peers: Iterable[PeerId]) -> tuple[int, ...]:
        """Peer ids as numbers."""
        return tuple(self.peers.index(peer) for peer in peers)

    def position(self, final: int, head: int) -> Position:
        """Where a peer stands that knows these two."""
        return Position(self.values[final], self.values[head])

    @remembered
    def continues(self, head: int, seal: int) -> bool:
        """Whether `seal` is `head` or one before it."""
        return self.tree.continues(self.values[head].digest, self.values[seal].digest)

    @remembered
    def commit(
        self, sender: int, basis: int, root: bytes, joins: tuple[int, ...], proof: Kind | None
    ) -> int:
        """The COMMIT of a peer on a seal; `proof` says of which kind its own seal of it is."""
        value, peer = self.values[basis], self.peers[sender]
        # Whoever is not listed is cut off, and nobody hears of its COMMIT later.
        were = {self._senders[digest] for digest in value.commits}
        committed = pack_senders(were, value.roster.members) if value.round else b""
        body = replace(
            PLAIN_COMMIT,
            root=root,
            tokens=1,
            samples=1,
            steps=1,
            base=value.digest,
            seal=self._own_seal(peer, value, proof) if proof else b"",
            joins=tuple(self.peers[index] for index in joins),
            committed=committed,
            sealed=bytes(len(committed)),
            lapsed=bytes(len(committed)),
        )
        slot = branches.slot_of(value, Kind.COMMIT)
        message = _message(slot, peer, encode(body))
        is_proved = branches.is_proof(body.seal, peer, value, SIGNER)
        self.commits.append((message, ListedContribution(peer, body, is_proved)))
        self._senders[message.digest] = peer
        return len(self.commits) - 1

    def _own_seal(self, peer: PeerId, value: SealValue, kind: Kind) -> bytes:
        before = self.tree.seal(value.before)
        body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
        return _message(branches.slot_of(before, kind), peer, encode(body)).encoded

    @remembered
    def drift(self, old: int, new: int) -> int | None:
        """The drift that a peer loses which goes over from one head to another."""
        drift = branch_tree.lost_drift(self.tree, self.values[old], self.values[new])
        if drift is None:
            return None
        if drift.digest not in self._numbers:
            self._numbers[drift.digest] = len(self.drifts)
            self.drifts.append(drift)
            self.tree.add_drift(drift)
        return self._numbers[drift.digest]

    @remembered
    def following(self, basis: int, commits: tuple[int, ...], pending: frozenset[int]) -> int:
        """The seal of a round on `basis` whose closer lists these COMMITs and what fits of the
        pending drifts."""
        before = self.values[basis]
        digests = tuple(self.commits[index][0].digest for index in commits)
        listed = [self.commits[index][1] for index in commits]
        names = branch_tree.choose_drifts(
            self.tree, before.digest, digests, [self.drifts[index].digest for index in pending]
        )
        assert branch_tree.may_list(self.tree, before.digest, digests, names)
        value = SealValue(
            run=before.run,
            shard=before.shard,
            round=before.round + 1,
            before=before.digest,
            basis=before.digest,
            commits=digests,
            drifts=names,
            root=blake3(before.root + b"".join(digests) + b"".join(names)).digest(),
            roster=next_roster(before.roster, before.round + 1, listed, trust="friends"),
            clock=self._clock(before, listed, names),
        )
        if value.digest not in self._numbers:
            self._numbers[value.digest] = len(self.values)
            self._by_list[value.list_digest] = len(self.values)
            self.values.append(value)
            self.tree.add(value)
        return self._numbers[value.digest]

    def _clock(
        self, before: SealValue, listed: list[ListedContribution], names: tuple[bytes, ...]
    ) -> SealClock:
        """The clock counts the tokens of drifts too: whoever has more sealed tokens wins."""
        found = [self.tree.drift(name) for name in names]
        brought = sum(branch_tree.drift_tokens(self.tree, drift) for drift in found if drift)
        clock = next_clock(before, listed, RULES)
        return replace(clock, tokens=clock.tokens + brought)

    @remembered
    def kept(self, head: int, pending: frozenset[int]) -> frozenset[int]:
        """Which drifts a peer keeps that stands on `head`."""
        names = [self.drifts[index].digest for index in pending]
        kept = branch_tree.kept_drifts(self.tree, self.values[head].digest, names)
        return frozenset(self._numbers[name] for name in kept)

    @remembered
    def counts_twice(self, head: int) -> bool:
        """Whether a contribution counts twice on the chain up to `head`."""
        start = self.values[0].digest
        counted = list(self.tree.contributions(self.values[head].digest, start))
        return len(counted) != len(set(counted))

    @remembered
    def title(self, number: int) -> str:
        """A seal in a trace: its number, round, and whom it lists."""
        value = self.values[number]
        listed = names_of(self.indices(self._senders[digest] for digest in value.commits))
        drifts = "".join(f"+drift of {self._loser(name)}" for name in value.drifts)
        return f"s{number} (round {value.round}: {listed or 'nobody'}{drifts})"

    def _loser(self, name: bytes) -> str:
        drift = self.tree.drift(name)
        return f"s{self._numbers[drift.head]}" if drift else "?"


def names_of(peers: Iterable[int]) -> str:
    """Peers in a trace."""
    return "".join(LETTERS[peer] for peer in peers)


def _message(slot: Slot, sender: PeerId, body: bytes) -> SignedMessage:
    return SignedMessage(slot=slot, sender=sender, body=body, signature=NO_SIGNATURE)


def _genesis(voters: tuple[PeerId, ...]) -> SealValue:
    seats = tuple(
        SeatRecord(peer=peer, seated=0, voter_since=0, proved=0, absent=0) for peer in voters
    )
    return SealValue(
        run=blake3(b"explored").digest(),
        shard=0,
        round=0,
        before=blake3(b"explored").digest(),
        basis=blake3(b"explored").digest(),
        commits=(),
        drifts=(),
        root=bytes(32),
        roster=Roster(seats=seats, window=(0,)),
        clock=SealClock(step=0, tokens=0, cursor=0, unused=(), ends_run=False),
    )


# States -------------------------------------------------------------------------------------------

Signed = tuple[Kind, int, int]
"""SEAL or PSEAL, the attempt, the seal signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchBounds:
    """How far the model goes.

    Of `peers`, the first `voters` vote in genesis; the others join. `rounds` may become final,
    branches grow `ahead` seals behind the last final one, links change `changes` times, a basis
    sees `attempts` (one more where it is provisional).
    """

    peers: int
    voters: int
    rounds: int = 2
    ahead: int = 2
    changes: int = 2
    attempts: int = 2

    is_partial: bool = True
    """Whether single peers may hear of a seal before the others of their group."""

    has_late: bool = True
    """Whether a LIST may leave out the last contributor, whose parts came too late."""

    everybody_seals: bool = False
    """Only attempts that all voters of a group SEAL, not some."""


class BranchPeerState(NamedTuple):
    """One peer: last final seal, head, lock, and what it signed that may still matter.

    `attempts` are (basis, latest attempt entered); `commits` numbers of its COMMITs; `drifts` those
    it could bring into a LIST.
    """

    final: int
    head: int
    lock: Lock | None
    attempts: tuple[tuple[int, int], ...]
    commits: tuple[int, ...]
    signed: tuple[Signed, ...]
    drifts: frozenset[int]


class Swarm(NamedTuple):
    """All peers; `links` gives each its group; `finals` are all seals that ever became final,
    whoever heard of it; `fault` says what went wrong on the way here."""

    links: tuple[int, ...]
    peers: tuple[BranchPeerState, ...]
    finals: frozenset[int]
    changes_left: int
    fault: str


def groups(links: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Who hears whom."""
    return [tuple(i for i, at in enumerate(links) if at == side) for side in sorted(set(links))]


def put(state: Swarm, changed: dict[int, BranchPeerState], final: int | None = None) -> Swarm:
    """The state with these peers in the place of the old ones."""
    peers = tuple(changed.get(index, peer) for index, peer in enumerate(state.peers))
    finals = state.finals if final is None else state.finals | {final}
    return state._replace(peers=peers, finals=finals)


def partitions(num_peers: int, prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every way of parting peers into groups that hear each other."""
    if len(prefix) == num_peers:
        yield prefix
        return
    for side in range(max(prefix, default=-1) + 2):
        yield from partitions(num_peers, (*prefix, side))


# The model ----------------------------------------------------------------------------------------


class Branches(Model[Swarm]):
    """R4 over a few peers, for `sim.exploration.explorer`. The trace of a violation reads as a
    story."""

    def __init__(self, bounds: BranchBounds, seals: Seals | None = None) -> None:
        self.bounds = bounds
        self.seals = seals or Seals(bounds.peers, bounds.voters)
        self._partitions = list(partitions(bounds.peers))

    def start(self) -> Swarm:
        """Everybody linked, on genesis, which has named its voters."""
        peer = BranchPeerState(0, 0, None, (), (), (), frozenset())
        everybody = (peer,) * self.bounds.peers
        links = (0,) * self.bounds.peers
        return Swarm(links, everybody, frozenset([0]), self.bounds.changes, "")

    def moves(self, state: Swarm) -> Iterator[tuple[str, Swarm]]:
        """Links change, or a group does one thing."""
        if state.fault:
            return
        if state.changes_left:
            for links in self._partitions:
                if links != state.links:
                    sides = "|".join(names_of(group) for group in groups(links))
                    after = state._replace(links=links, changes_left=state.changes_left - 1)
                    yield f"links become {sides}", after
        for group in groups(state.links):
            yield from self.in_group(state, group)

    def check(self, state: Swarm) -> str:
        """S1: one final seal a round. S3: one signature a slot. S5: heads continue final seals,
        and nothing counts twice."""
        if state.fault:
            return state.fault
        by_round: dict[int, int] = {}
        for seal in sorted(state.finals):
            other = by_round.setdefault(self.seals.values[seal].round, seal)
            if other != seal:
                return f"S1: {self.seals.title(other)} and {self.seals.title(seal)} are both final"
        for index, peer in enumerate(state.peers):
            if not self.seals.continues(peer.head, peer.final):
                return f"S5: the head of {names_of([index])} leaves its final seal"
            if self.seals.counts_twice(peer.head):
                return f"S5: a contribution counts twice on the chain of {names_of([index])}"
        return ""

    # --- What a group can do.

    def in_group(self, state: Swarm, group: tuple[int, ...]) -> Iterator[tuple[str, Swarm]]:
        """All that one group may do next."""
        final, head = self.meet(state.peers, group)
        for index in group:
            peer, name = state.peers[index], names_of([index])
            if self._round(peer.final) < self._round(final):
                new_head = self.head_behind(peer.head, final)
                moved = self.move(peer, final, new_head)
                label = f"{name} learns that {self.seals.title(final)} is final"
                yield label, put(state, {index: moved})
            elif peer.head != head:
                moved = self.move(peer, final, head)
                label = f"{name} goes over to {self.seals.title(head)}"
                yield label, put(state, {index: moved})
        yield from self.hear_quorums(state, group, final, head)
        yield from self.next_rounds(state, group, final, head)

    def meet(self, peers: tuple[BranchPeerState, ...], group: Iterable[int]) -> tuple[int, int]:
        """Where the group should stand: `branches.better_head`."""
        standing = tuple(sorted({(peers[i].final, peers[i].head) for i in group}))
        locks = frozenset(lock for i in group if (lock := peers[i].lock))
        if len(standing) == 1 and not locks:
            return standing[0]

        def answer() -> tuple[int, int]:
            positions = [self.seals.position(*one) for one in standing]
            best = branches.better_head(self.seals.tree, positions, locks)
            return self.seals.number(best.final.digest), self.seals.number(best.head.digest)

        return self.seals.once(("meet", standing, locks), answer)

    def hear_quorums(
        self, state: Swarm, group: tuple[int, ...], final: int, head: int
    ) -> Iterator[tuple[str, Swarm]]:
        """The SEALs of a quorum are all in the group: some or all of it see that."""
        behind = tuple(i for i in group if state.peers[i].final == final)
        signed = {one[2] for i in group for one in state.peers[i].signed}
        for seal in sorted(signed):
            if not self.is_final(state, group, (final, head), seal):
                continue
            label = f"the SEALs of {self.seals.title(seal)} are a quorum"
            for takers in self._takers(behind):
                changed = {}
                for index in takers:
                    peer = state.peers[index]
                    changed[index] = self.move(peer, seal, self.head_behind(peer.head, seal))
                yield f"{names_of(takers)} sees that {label}", put(state, changed, final=seal)

    def next_rounds(
        self, state: Swarm, group: tuple[int, ...], final: int, head: int
    ) -> Iterator[tuple[str, Swarm]]:
        """One attempt of the round that those who are not behind can work in."""
        here = tuple(i for i in group if state.peers[i].final == final)
        opening = self.opening(final, head, here)
        if opening is None:
            return
        if not opening.is_provisional:
            yield from self._final_round(state, here, head, opening)
        elif all(state.peers[i][:2] == (final, head) for i in group):
            yield from self._provisional_round(state, here, head, opening)

    def opening(self, final: int, head: int, here: tuple[int, ...]) -> Opening | None:
        """`branches.next_round`."""
        position, reachable = self.seals.position(final, head), self._ids(here)
        place = ("opening", final, head, here)
        rules = {"trust": "friends", "survive": "any"}
        return self.seals.once(place, lambda: branches.next_round(position, reachable, **rules))

    # --- An ordinary round.

    def _final_round(
        self, state: Swarm, here: tuple[int, ...], head: int, opening: Opening
    ) -> Iterator[tuple[str, Swarm]]:
        bounds, basis = self.bounds, self.seals.number(opening.basis.digest)
        voting = self.seals.indices(p for p in voters(opening.basis.roster) if p in self._ids(here))
        attempt = self._next_attempt(state, voting, basis)
        if attempt >= bounds.attempts or opening.basis.round >= bounds.rounds:
            return
        for peers, seal in self._lists(state, here, (basis, head), opening):
            entered = {i: self.enter(peers[i], basis, attempt) for i in voting}
            before = state._replace(peers=peers)
            for sealing in self._sealing(voting, opening):
                changed = dict(entered)
                for index in sealing:
                    changed[index] = self.sign(changed[index], Kind.SEAL, attempt, seal)
                label = f"{names_of(voting)} certify {self.seals.title(seal)} in attempt {attempt}"
                after = self.judge(put(before, changed), seal)
                yield f"{label}, {names_of(sealing) or 'nobody'} SEALs it", after

    def _sealing(self, voting: tuple[int, ...], opening: Opening) -> Iterator[tuple[int, ...]]:
        """Who SEALs: all, or one, or each smallest quorum."""
        roster = opening.basis.roster
        sizes = {len(voting)}
        if not self.bounds.everybody_seals:
            quorums = (
                len(some)
                for size in range(1, len(voting) + 1)
                for some in combinations(voting, size)
                if has_quorum(roster, self._ids(some), trust="friends")
            )
            sizes = {1, next(quorums)}
        for size in sorted(sizes):
            yield from combinations(voting, size)

    # --- A provisional round.

    def _provisional_round(
        self, state: Swarm, here: tuple[int, ...], head: int, opening: Opening
    ) -> Iterator[tuple[str, Swarm]]:
        final, basis = state.peers[here[0]].final, self.seals.number(opening.basis.digest)
        if opening.basis.round - self._round(final) >= self.bounds.ahead:
            return
        position = self.seals.position(final, head)
        sealers = self.seals.indices(branches.provisional_sealers(position, self._ids(here)))
        attempt = self._next_attempt(state, sealers, basis)
        if attempt > self.bounds.attempts:
            return
        for peers, seal in self._lists(state, here, (basis, head), opening):
            before = state._replace(peers=peers)
            signed = {}
            for index in sealers:
                entered = self.enter(peers[index], basis, attempt)
                signed[index] = self.sign(entered, Kind.PSEAL, attempt, seal)
            for takers in self._takers(here):
                changed = dict(signed)
                for index in takers:
                    changed[index] = self.move(changed.get(index, peers[index]), final, seal)
                label = f"{names_of(sealers)} PSEAL {self.seals.title(seal)} in attempt {attempt}"
                after = self.judge(put(before, changed), seal)
                yield f"{label}, {names_of(takers)} goes on from it", after

    # --- The parts of both.

    def _lists(
        self, state: Swarm, here: tuple[int, ...], at: tuple[int, int], opening: Opening
    ) -> Iterator[tuple[tuple[BranchPeerState, ...], int]]:
        """The seals that the LISTs give which may be proposed, and the peers with their COMMITs."""
        basis, head = at
        final = state.peers[here[0]].final
        locks = frozenset(lock for i in here if (lock := state.peers[i].lock))
        position = self.seals.position(final, head)
        bound = self.seals.once(
            ("list", final, head, basis, opening.is_provisional, locks),
            lambda: branches.next_list(self.seals.tree, position, opening, locks),
        )
        if bound is not None:
            yield state.peers, self.seals.of_list(bound)
            return
        able = self.seals.indices(branches.contributors(opening, self._ids(here)))
        members = self.seals.indices(opening.basis.roster.members)
        joins = tuple(index for index in here if index not in members)
        pending = frozenset[int]().union(*(state.peers[i].drifts for i in here))
        lists = [able]
        if self.bounds.has_late and len(able) > 1 and not opening.is_provisional:
            lists.append(able[:-1])
        for listed in lists:
            peers, commits = list(state.peers), []
            for index in listed:
                peers[index], commit = self._contribute(peers[index], index, basis, joins)
                commits.append(commit)
            yield tuple(peers), self.seals.following(basis, tuple(commits), pending)

    def _contribute(
        self, peer: BranchPeerState, index: int, basis: int, joins: tuple[int, ...]
    ) -> tuple[BranchPeerState, int]:
        """The peer and its COMMIT on this basis: the one it has signed already, if there is one."""
        own = b"%d/%d" % (index, basis)
        root = contribution_root(own.ljust(32, b"."), peer.drifts)
        value = self.seals.values[basis]
        for commit in peer.commits:
            body = self.seals.commits[commit][1].commit
            if body.base == value.digest and body.root == root:
                return peer, commit
        kinds = sorted({one[0] for one in peer.signed if one[2] == basis})
        proof = kinds[0] if kinds else None
        commit = self.seals.commit(index, basis, root, joins, proof)
        return peer._replace(commits=tuple(sorted((*peer.commits, commit)))), commit

    def _next_attempt(self, state: Swarm, peers: tuple[int, ...], basis: int) -> int:
        entered = (a for i in peers for at, a in state.peers[i].attempts if at == basis)
        return branches.next_attempt(entered)

    def enter(self, peer: BranchPeerState, basis: int, attempt: int) -> BranchPeerState:
        """The peer in a later attempt on a basis."""
        others = (one for one in peer.attempts if one[0] != basis)
        return peer._replace(attempts=tuple(sorted((*others, (basis, attempt)))))

    def sign(self, peer: BranchPeerState, kind: Kind, attempt: int, seal: int) -> BranchPeerState:
        """The peer with its SEAL or PSEAL, and locked if that locks."""
        value = self.seals.values[seal]
        signing = Lock(value.before, attempt, value.list_digest)
        lock = branches.lock_after(peer.lock, kind, signing)
        signed = tuple(sorted({*peer.signed, (kind, attempt, seal)}))
        return peer._replace(lock=lock, signed=signed)

    def move(self, peer: BranchPeerState, final: int, head: int) -> BranchPeerState:
        """The peer on another head or behind a later final seal; what it loses becomes a drift."""
        drifts = peer.drifts
        if not self.seals.continues(head, peer.head):
            lost = self.seals.drift(peer.head, head)
            drifts = drifts if lost is None else drifts | {lost}
        drifts = self.seals.kept(head, drifts)
        if final == peer.final:
            return peer._replace(head=head, drifts=drifts)
        low = self._round(final)
        digest = self.seals.values[final].digest
        return BranchPeerState(
            final=final,
            head=head,
            lock=peer.lock if peer.lock and peer.lock.basis == digest else None,
            attempts=tuple(one for one in peer.attempts if self._round(one[0]) >= low),
            commits=tuple(c for c in peer.commits if self.seals.commits[c][0].slot.round > low),
            signed=tuple(one for one in peer.signed if self._round(one[2]) >= low),
            drifts=drifts,
        )

    def head_behind(self, head: int, final: int) -> int:
        """`branches.head_behind`."""
        values = self.seals.values
        value = branches.head_behind(self.seals.tree, values[head], values[final])
        return self.seals.number(value.digest)

    def judge(self, state: Swarm, seal: int) -> Swarm:
        """What the signatures on a seal have come to: final for somebody, or two in one slot."""
        fault = ""
        for index, peer in enumerate(state.peers):
            fault = fault or self.slot_fault(index, peer)
        before = self.seals.number(self.seals.values[seal].before)
        known = [one for one in state.finals if self.seals.continues(before, one)]
        final = max(known, key=self._round)
        everybody = tuple(range(len(state.peers)))
        is_final = self.is_final(state, everybody, (final, before), seal)
        finals = state.finals | {seal} if is_final else state.finals
        return state._replace(fault=fault, finals=finals)

    def is_final(
        self, state: Swarm, group: tuple[int, ...], at: tuple[int, int], seal: int
    ) -> bool:
        """`branches.is_final`, by what the group has signed."""
        if self._round(seal) <= self._round(at[0]):
            return False
        heard = tuple(
            (index, kind, attempt)
            for index in group
            for kind, attempt, signed in state.peers[index].signed
            if signed == seal
        )

        def answer() -> bool:
            seen = [SealSeen(self.seals.peers[i], kind, attempt) for i, kind, attempt in heard]
            position = self.seals.position(*at)
            return branches.is_final(position, self.seals.values[seal], seen, trust="friends")

        return self.seals.once(("final", at, seal, heard), answer)

    def slot_fault(self, index: int, peer: BranchPeerState) -> str:
        """S3: whether the peer signed two statements in one slot."""
        return self.seals.once(
            ("slots", index, peer.commits, peer.signed), lambda: self._slot_fault(index, peer)
        )

    def _slot_fault(self, index: int, peer: BranchPeerState) -> str:
        filled: dict[object, str] = {}
        statements = []
        for commit in peer.commits:
            message, listed = self.seals.commits[commit]
            base = self.seals.number(listed.commit.base)
            statements.append((message.slot, f"COMMIT on s{base}"))
        for kind, attempt, seal in peer.signed:
            before = self.seals.tree.seal(self.seals.values[seal].before)
            statements.append((branches.slot_of(before, kind, attempt), f"{kind.name} of s{seal}"))
        for slot, statement in statements:
            other = filled.get(slot)
            if other is not None:
                return f"S3: {names_of([index])} signed {other} and {statement} in one slot"
            filled[slot] = statement
        return ""

    def _takers(self, peers: tuple[int, ...]) -> list[tuple[int, ...]]:
        single = [(i,) for i in peers] if self.bounds.is_partial and len(peers) > 1 else []
        return [peers, *single] if peers else []

    def _ids(self, peers: tuple[int, ...]) -> tuple[PeerId, ...]:
        return tuple(self.seals.peers[index] for index in peers)

    def _round(self, seal: int) -> int:
        return self.seals.values[seal].round


# What must hold once links are up again -----------------------------------------------------------


class Convergent(Branches):
    """S5: with all links up, whoever compares heads first, all peers end on one head."""

    def check(self, state: Swarm) -> str:
        """What is wrong with the state itself, or with how it heals."""
        standing = tuple((peer.final, peer.head, peer.lock) for peer in state.peers)
        return super().check(state) or self.seals.once(
            ("heal", standing), lambda: self._healing(state.peers)
        )

    def _healing(self, peers: tuple[BranchPeerState, ...]) -> str:
        ends = set()
        for order in permutations(range(len(peers))):
            now = peers
            for index in (*order, *order):
                now = self.step_over(now, index, tuple(range(len(now))))
            if len({peer[:2] for peer in now}) > 1:
                return "S5: healing does not end on one head"
            ends.add(now[0][:2])
        return "S5: healing depends on the order" if len(ends) > 1 else ""

    def step_over(
        self, peers: tuple[BranchPeerState, ...], index: int, met: tuple[int, ...]
    ) -> tuple[BranchPeerState, ...]:
        """The peers after one of them has compared itself with those it met."""
        final, head = self.meet(peers, met)
        # What it lost and signed has no say in this; locks of old rounds are passed over.
        moved = peers[index]._replace(final=final, head=head)
        return (*peers[:index], moved, *peers[index + 1 :])


class MeetingOrder(Convergent):
    """S5: branches end alike, whichever two of them meet first."""

    def _healing(self, peers: tuple[BranchPeerState, ...]) -> str:
        ends: dict[tuple[int, int], str] = {}
        for order in permutations(range(len(peers))):
            now = peers
            for count in range(2, len(order) + 1):
                met = order[:count]
                for index in (*met, *met):
                    now = self.step_over(now, index, met)
            end = now[0][:2]
            ends.setdefault(end, names_of(order))
        if len(ends) < 2:
            return ""
        told = (f"{self.seals.title(end[1])} if they meet as {who}" for end, who in ends.items())
        return f"S5: the outcome depends on who meets first: {', '.join(told)}"


class Healing(Convergent):
    """L1: from every state, with links up and everybody timely, one more round becomes final.

    And with links as they are, whoever may seal provisionally can list somebody.
    """

    def __init__(self, bounds: BranchBounds) -> None:
        super().__init__(bounds)
        timely = replace(
            bounds,
            rounds=limits.ROUNDS_MAX,
            attempts=limits.ATTEMPTS_MAX,
            is_partial=False,
            has_late=False,
            everybody_seals=True,
        )
        self._timely = Branches(timely, self.seals)

    def check(self, state: Swarm) -> str:
        """What is wrong with the state, or with the good run that follows it."""
        return super().check(state) or self._barren_side(state) or self._good_run(state)

    def _barren_side(self, state: Swarm) -> str:
        """A side that has come to one head, and can only seal rounds that list nobody."""
        for group in groups(state.links):
            standing = {state.peers[index][:2] for index in group}
            if len(standing) > 1:
                continue
            opening = self.opening(*standing.pop(), group)
            reachable = [self.seals.peers[index] for index in group]
            if opening is not None and not contributors(opening, reachable):
                return f"L1: {names_of(group)} may seal rounds, but nobody in reach may contribute"
        return ""

    def _good_run(self, state: Swarm) -> str:
        goal = 1 + max(self.seals.values[peer.final].round for peer in state.peers)
        everybody = tuple(range(len(state.peers)))
        now = state._replace(links=(0,) * len(everybody), changes_left=0)
        for _ in range(12 * len(everybody)):
            if all(self.seals.values[peer.final].round >= goal for peer in now.peers):
                return ""
            move = next(self._timely.in_group(now, everybody), None)
            if move is None:
                return "L1: all links are up, but nothing can be done"
            now = move[1]
        return "L1: all links are up, but no round becomes final"
