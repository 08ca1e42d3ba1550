"""I3: never two final values of one round, and the rules of R2 that make it so.

Over all signatures of all lives of all nodes. Only VOTE and SEAL count: their provisional
counterparts, PVOTE and PSEAL (R4), fill slots and lock nobody.

What one node signs because of another's signature comes behind it in a world. Between processes
clocks are a little apart, so there it may come before, by `skew_s` at most.
"""

from collections import deque
from collections.abc import Callable, Iterator

from node.reporting.tracing import Adopted, Advanced, Began, Confirmed, Record, Signed, Synced
from protocol.errors import DecodeError, ProofError
from protocol.identity import PeerId, Signer
from protocol.messages import (
    Kind,
    Seal,
    SealCertificate,
    SignedMessage,
    Vote,
    decode_message,
    is_signed,
)
from protocol.rounds.chain import check_seal
from sim.checks.history import History

WORKED_IN = frozenset({Kind.HAVE, Kind.LIST, Kind.VOTE, Kind.NEWATTEMPT, Kind.SEAL})
"""Kinds that say in which attempt their sender works."""


Finding = tuple[Callable[[], bool], str]
"""Whether there is an excuse, and what it is without one."""


def _never() -> bool:
    return False


class Forks:
    """I3 over records. `signer` verifies; it signs nothing.

    `may_skip` says that nodes skip attempts by themselves, now and then (`protocol.rounds.rare`).
    """

    name = "I3"
    kinds = (Began, Signed, Adopted, Advanced, Confirmed, Synced)

    def __init__(
        self,
        history: History,
        signer: Signer,
        trust: str,
        *,
        skew_s: float = 0.0,
        may_skip: bool = False,
    ) -> None:
        self._history = history
        self._signer = signer
        self._skew_s = skew_s
        self._doubts: deque[tuple[float, Callable[[], bool], str]] = deque()
        """When to look again, whether it is excused by then, and what it is if not."""
        self._trust = trust
        self._may_skip = may_skip
        self._votes: dict[tuple[bytes, int, bytes], set[PeerId]] = {}
        self._filled: dict[tuple[Kind, bytes, int], set[PeerId]] = {}
        """Who has filled its slot of VOTE or SEAL."""
        self._seals: dict[tuple[bytes, int, bytes], set[PeerId]] = {}
        self._locks: dict[tuple[PeerId, bytes], tuple[int, bytes]] = {}
        self._attempts: dict[tuple[PeerId, bytes], int] = {}
        self._final: dict[bytes, bytes] = {}
        """By the seal before: the value that a quorum has sealed."""
        self._rounds: dict[int, bytes] = {}
        """By round: the value that is on the chain of whoever was first."""
        self._proven: set[tuple[bytes, tuple[bytes, ...]]] = set()

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        while self._doubts and self._doubts[0][0] < record.at_s:
            _, is_excused, text = self._doubts.popleft()
            if not is_excused():
                yield text
        match record:
            case Signed():
                for is_excused, text in self._signed(record.message):
                    if self._skew_s and not is_excused():
                        self._doubts.append((record.at_s + self._skew_s, is_excused, text))
                    elif not is_excused():
                        yield text
            case Began(head=certificate):
                yield from self._on_chain(certificate)
            case (
                Adopted(certificate=certificate)
                | Confirmed(certificate=certificate)
                | Synced(certificate=certificate)
            ):
                yield from self._on_chain(certificate)
                yield from self._proved(certificate)
            case Advanced(certificate=certificate):
                yield from self._provisional(certificate)
            case _:
                pass

    def finish(self) -> Iterator[str]:
        """See Check."""
        for _, is_excused, text in self._doubts:
            if not is_excused():
                yield text

    # Signatures ---------------------------------------------------------------------------------

    def _signed(self, message: SignedMessage) -> Iterator[Finding]:
        slot, peer = message.slot, message.sender
        if self._history.conflict:
            yield _never, f"two different {slot.kind.name} in one slot, attempt {slot.attempt}"
            return
        said = self._history.said
        if said is None:
            return
        yield from self._followed(message)
        self._filled.setdefault((slot.kind, slot.basis, slot.attempt), set()).add(peer)
        if slot.kind is Kind.VOTE:
            assert isinstance(said.body, Vote)
            yield from self._voted(message, said.body.list_digest)
        elif slot.kind is Kind.SEAL:
            assert isinstance(said.body, Seal)
            yield from self._sealed(message, said.body)
        if slot.kind in WORKED_IN:
            place = (peer, slot.basis)
            self._attempts[place] = max(slot.attempt, self._attempts.get(place, 0))

    def _followed(self, message: SignedMessage) -> Iterator[Finding]:
        """Of an open run: nobody skips an attempt on the word of so few as may lie (R2).

        Whoever is led to an attempt may find at once that it is hopeless, and report but to the
        next: one step beyond what others show is its own.
        """
        slot, peer = message.slot, message.sender
        electorate = self._history.electorate(slot.basis)
        is_asked = self._trust == "open" and slot.kind is Kind.NEWATTEMPT and not self._may_skip
        if not is_asked or electorate is None or peer in self._history.bent:
            return
        if slot.attempt > self._attempts.get((peer, slot.basis), 0) + 1:
            there = [
                voter
                for voter in electorate.voters - {peer}
                if self._attempts.get((voter, slot.basis), 0) >= slot.attempt - 1
            ]
            if 3 * len(there) < len(electorate.voters):
                yield (
                    lambda: slot.basis in self._history.restarted,
                    f"follows {len(there)} voters of {len(electorate.voters)} into attempt"
                    f" {slot.attempt}",
                )

    def _voted(self, message: SignedMessage, digest: bytes) -> Iterator[Finding]:
        slot, peer = message.slot, message.sender
        entered = self._attempts.get((peer, slot.basis), 0)
        if slot.attempt < entered:
            yield _never, f"VOTE for attempt {slot.attempt}, which it has left for {entered}"
        lock = self._locks.get((peer, slot.basis))
        if lock is not None and lock[1] != digest:
            later = range(lock[0] + 1, slot.attempt + 1)

            def is_shown() -> bool:
                return any(self._is_certified(slot.basis, attempt, digest) for attempt in later)

            yield (
                is_shown,
                f"VOTE of attempt {slot.attempt} against its lock of attempt {lock[0]},"
                " and no later certificate is for that LIST",
            )
        self._votes.setdefault((slot.basis, slot.attempt, digest), set()).add(peer)

    def _sealed(self, message: SignedMessage, body: Seal) -> Iterator[Finding]:
        slot, peer = message.slot, message.sender
        yield (
            lambda: self._is_certified(slot.basis, slot.attempt, body.list_digest),
            f"SEAL of a LIST that is not certified in attempt {slot.attempt}",
        )
        agreeing = self._seals.setdefault((slot.basis, slot.attempt, body.value), set())
        entered = self._attempts.get((peer, slot.basis), 0)
        if slot.attempt < entered:
            yield (
                lambda: self._may_decide(Kind.SEAL, slot.basis, slot.attempt, agreeing - {peer}),
                f"SEAL for attempt {slot.attempt}, which it has left for {entered}",
            )
        else:
            self._locks[peer, slot.basis] = (slot.attempt, body.list_digest)
        agreeing.add(peer)
        if self._is_quorum(slot.basis, agreeing):
            final = self._final.setdefault(slot.basis, body.value)
            if final != body.value:
                yield _never, f"two values of round {slot.round} with a quorum of SEALs each"

    def _is_certified(self, basis: bytes, attempt: int, digest: bytes) -> bool:
        voting = self._votes.get((basis, attempt, digest), set())
        return self._may_decide(Kind.VOTE, basis, attempt, voting)

    def _may_decide(self, kind: Kind, basis: bytes, attempt: int, peers: set[PeerId]) -> bool:
        """Whether they are a quorum, or may be one with what a killed node had no time to tell."""
        if self._is_quorum(basis, peers):
            return True
        untold = self._history.restarted.get(basis)
        if untold is None:
            return False
        return self._is_quorum(
            basis, peers | (untold - self._filled.get((kind, basis, attempt), set()))
        )

    def _is_quorum(self, basis: bytes, peers: set[PeerId]) -> bool:
        electorate = self._history.electorate(basis)
        return electorate is not None and electorate.is_quorum(peers)

    # Seals --------------------------------------------------------------------------------------

    def _on_chain(self, certificate: SealCertificate) -> Iterator[str]:
        value = certificate.value
        if self._rounds.setdefault(value.round, value.digest) != value.digest:
            yield f"its round {value.round} is not the round {value.round} of another node"
        # Genesis is of no round, and its basis names the first of two in flight (R5).
        final = self._final.get(value.basis, value.digest) if value.round else value.digest
        if final != value.digest:
            yield f"its round {value.round} is not the one that a quorum sealed"

    def _proved(self, certificate: SealCertificate) -> Iterator[str]:
        value = certificate.value
        key = (value.digest, certificate.seals)
        if key in self._proven:
            return
        previous = self._history.values.get(value.before)
        if previous is None:
            return  # A node that synchronised is the first to tell of it: nobody adopted it here.
        if not self._is_known(certificate):
            try:
                named = self._history.named(value)
                check_seal(previous, certificate, self._signer, trust=self._trust, named=named)
            except ProofError as error:
                yield f"its certificate of round {value.round} proves nothing: {error}"
        self._proven.add(key)

    def _provisional(self, certificate: SealCertificate) -> Iterator[str]:
        """R4: PSEALs of one attempt, all of them for this value, and nothing else."""
        value, attempts = certificate.value, set()
        for data in certificate.seals:
            try:
                message, body = decode_message(data)
            except DecodeError as error:
                yield f"its provisional seal of round {value.round} holds no PSEAL: {error}"
                return
            is_of = isinstance(body, Seal) and body.value == value.digest
            if message.slot.kind is not Kind.PSEAL or not is_of:
                yield f"its provisional seal of round {value.round} holds something else"
            if not is_signed(message, self._signer):
                yield f"a PSEAL of round {value.round} is not signed by its sender"
            attempts.add(message.slot.attempt)
        if len(attempts) != 1:
            yield f"its provisional seal of round {value.round} has PSEALs of other attempts"

    def _is_known(self, certificate: SealCertificate) -> bool:
        """Whether it is made of SEALs that were seen being signed: then none need be verified."""
        value = certificate.value
        attempts: set[int] = set()
        agreeing: set[PeerId] = set()
        for data in certificate.seals:
            said = self._history.seals.get(data)
            if said is None or not isinstance(said.body, Seal):
                return False
            slot = said.message.slot
            if said.body.value != value.digest or slot.subject != value.before:
                return False
            attempts.add(slot.attempt)
            agreeing.add(said.message.sender)
        return len(attempts) == 1 and self._is_quorum(value.basis, agreeing)
