"""Real seals by number, for the model of branches: COMMITs, seal values, and answers kept.

Signatures and arithmetic are left out: a message is signed with zeros, and the root of a state is
the digest of what was summed. Everything else is what a node would compute, by the same functions.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import TypeVar, cast

from blake3 import blake3

from protocol.identity import PeerId
from protocol.messages import (
    Commit,
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
from protocol.rounds.branches import Drift, Position, Tree
from protocol.rounds.roster import ClockRules, ListedContribution, next_clock, next_roster
from protocol.wire import encode

NAMES = "ABCDEFGH"
NO_SIGNATURE = bytes(64)
RULES = ClockRules(samples_each=1, rounds=1 << 20, tokens=0)
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


class Seals:
    """Seals, COMMITs and drifts by small numbers, so that states are cheap to compare.

    Seal 0 is genesis, of `num_voters` voters; peer i is `NAMES[i]`. Numbers depend on the order in
    which things come up, which a search makes the same every time.
    """

    def __init__(self, num_peers: int, num_voters: int) -> None:
        self.peers = tuple(PeerId(NAMES[index].encode() * 32) for index in range(num_peers))
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

    def continues(self, head: int, seal: int) -> bool:
        """Whether `seal` is `head` or one before it."""
        values = self.values
        return self.once(
            ("continues", head, seal),
            lambda: self.tree.continues(values[head].digest, values[seal].digest),
        )

    def commit(
        self, sender: int, basis: int, root: bytes, joins: tuple[int, ...], proof: Kind | None
    ) -> int:
        """The COMMIT of a peer on a seal; `proof` says of which kind its own seal of it is."""
        key = ("commit", sender, basis, root, joins, proof)
        return self.once(key, lambda: self._commit(sender, basis, root, joins, proof))

    def _commit(
        self, sender: int, basis: int, root: bytes, joins: tuple[int, ...], proof: Kind | None
    ) -> int:
        value, peer = self.values[basis], self.peers[sender]
        # Whoever is not listed is cut off, and nobody hears of its COMMIT later.
        were = {self._senders[digest] for digest in value.commits}
        committed = pack_senders(were, value.roster.members) if value.round else b""
        body = Commit(
            root=root,
            cell_norms=(1.0,),
            tokens=1,
            samples=1,
            steps=1,
            base=value.digest,
            residual_before=bytes(32),
            residual_after=bytes(32),
            seal=self._own_seal(peer, value, proof) if proof else b"",
            joins=tuple(self.peers[index] for index in joins),
            suspects=(),
            gone=(),
            bans=(),
            is_past_end=False,
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

    def drift(self, old: int, new: int) -> int | None:
        """The drift that a peer loses which goes over from one head to another."""
        return self.once(("lost", old, new), lambda: self._drift(old, new))

    def _drift(self, old: int, new: int) -> int | None:
        drift = branch_tree.lost_drift(self.tree, self.values[old], self.values[new])
        if drift is None:
            return None
        if drift.digest not in self._numbers:
            self._numbers[drift.digest] = len(self.drifts)
            self.drifts.append(drift)
            self.tree.add_drift(drift)
        return self._numbers[drift.digest]

    def following(self, basis: int, commits: tuple[int, ...], pending: frozenset[int]) -> int:
        """The seal of a round on `basis` whose closer lists these COMMITs and what fits of the
        pending drifts."""
        return self.once(
            ("following", basis, commits, pending),
            lambda: self._following(basis, commits, pending),
        )

    def _following(self, basis: int, commits: tuple[int, ...], pending: frozenset[int]) -> int:
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

    def kept(self, head: int, pending: frozenset[int]) -> frozenset[int]:
        """Which drifts a peer keeps that stands on `head`."""
        if not pending:
            return pending
        return self.once(("kept", head, pending), lambda: self._kept(head, pending))

    def _kept(self, head: int, pending: frozenset[int]) -> frozenset[int]:
        names = [self.drifts[index].digest for index in pending]
        kept = branch_tree.kept_drifts(self.tree, self.values[head].digest, names)
        return frozenset(self._numbers[name] for name in kept)

    def counts_twice(self, head: int) -> bool:
        """Whether a contribution counts twice on the chain up to `head`."""
        return self.once(("twice", head), lambda: self._counts_twice(head))

    def _counts_twice(self, head: int) -> bool:
        start = self.values[0].digest
        counted = list(self.tree.contributions(self.values[head].digest, start))
        return len(counted) != len(set(counted))

    def title(self, number: int) -> str:
        """A seal in a trace: its number, round, and whom it lists."""
        return self.once(("title", number), lambda: self._title(number))

    def _title(self, number: int) -> str:
        value = self.values[number]
        listed = names_of(self.indices(self._senders[digest] for digest in value.commits))
        drifts = "".join(f"+drift of {self._loser(name)}" for name in value.drifts)
        return f"s{number} (round {value.round}: {listed or 'nobody'}{drifts})"

    def _loser(self, name: bytes) -> str:
        drift = self.tree.drift(name)
        return f"s{self._numbers[drift.head]}" if drift else "?"


def names_of(peers: Iterable[int]) -> str:
    """Peers in a trace."""
    return "".join(NAMES[peer] for peer in peers)


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
