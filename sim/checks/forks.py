"""What nodes sign and stand on: no fork (I3), the same for all (I2), and nothing forgotten (I1).

I3: never two final values of one round, and the rules of R2 that make it so, over all signatures of
all lives of all nodes. Only VOTE and SEAL count: their provisional counterparts, PVOTE and PSEAL
(R4), fill slots and lock nobody.

I2: whoever has a round has the same of it: seal value and state root, here by what was said. That
the state is what the listed bytes give is checked in worlds, by `sim.checks.reference`.

I1: what a node told the others, or built upon, is still there after its restarts. What is promised
(`node.holdings.journal`): a signature is durable before it leaves, a final seal before anything is
built on it, and its state can be made again from the disk. Nothing of it is promised where the node
says that its disk was lost (R12): it then asks what it signed.

What one node signs because of another's signature comes behind it in a world. Between processes
clocks are a little apart, so there it may come before, by `skew_s` at most.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from node.reporting.tracing import (
    Adopted,
    Advanced,
    Began,
    Confirmed,
    Diverged,
    FellBack,
    Record,
    Signed,
    Synced,
)
from protocol.errors import DecodeError, ProofError
from protocol.identity import PeerId, Signer, short_id
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
from sim.checks.history import Check, History, Kinds

# I3: no fork ------------------------------------------------------------------------------------

WORKED_IN = frozenset({Kind.HAVE, Kind.LIST, Kind.VOTE, Kind.NEWATTEMPT, Kind.SEAL})
"""Kinds that say in which attempt their sender works."""


Finding = tuple[Callable[[], bool], str]
"""Whether there is an excuse, and what it is without one."""


def _never() -> bool:
    return False


class Forks(Check):
    """I3 over records. `signer` verifies; it signs nothing.

    `may_skip` says that nodes skip attempts by themselves, now and then
    (`protocol.rounds.round_config`).
    """

    name = "I3"
    kinds: Kinds = (Began, Signed, Adopted, Advanced, Confirmed, Synced)

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


# I2: equal rounds -------------------------------------------------------------------------------


class Equality(Check):
    """I2 over records.

    A SEAL is a function of the seal before and of the LIST, so that two honest ones of one LIST
    are equal, long before anything is final.
    """

    name = "I2"
    kinds: Kinds = (Signed, Adopted, Advanced, Confirmed, Synced, Diverged)

    def __init__(self, history: History) -> None:
        self._history = history
        self._sealed: dict[tuple[bytes, bytes], tuple[bytes, bytes, PeerId]] = {}

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        is_bent = record.peer in self._history.bent
        match record:
            case Signed() | Diverged() if is_bent:
                pass  # It finds out that the others have sealed something else.
            case Signed():
                yield from self._signed(record)
            case (
                Adopted(certificate=certificate, root=root)
                | Advanced(certificate=certificate, root=root)
                | Confirmed(certificate=certificate, root=root)
            ):
                value = certificate.value
                if root != value.root:
                    yield f"goes on from round {value.round} with a state that was not sealed"
                yield from self._compare((value.before, value.list_digest), value.digest, root)
            case Synced(certificate=certificate, root=root):
                if root != certificate.value.root:
                    yield f"fetched a state of round {certificate.value.round} that was not sealed"
            case Diverged(reason=reason):
                yield f"its state is not what the swarm sealed: {reason}"
            case _:
                pass

    def _signed(self, record: Signed) -> Iterator[str]:
        said = self._history.said
        if said is None or said.message.slot.kind not in (Kind.SEAL, Kind.PSEAL):
            return
        slot, body = said.message.slot, said.body
        assert isinstance(body, Seal)
        # With two rounds in flight the same LIST may be sealed on several branches (R4, R5).
        place = (slot.subject, body.list_digest)
        self._sealed.setdefault(place, (body.value, body.root, record.peer))
        yield from self._compare(place, body.value, body.root)

    def _compare(self, place: tuple[bytes, bytes], value: bytes, root: bytes) -> Iterator[str]:
        known = self._sealed.get(place)
        if known is None:
            return
        if root != known[1]:
            yield f"has another state after this LIST than {short_id(known[2])}"
        elif value != known[0]:
            yield f"gives this LIST another seal value than {short_id(known[2])}, of equal state"


# I1: durability ---------------------------------------------------------------------------------


class Durability(Check):
    """I1 over records."""

    name = "I1"
    kinds: Kinds = (Began, Signed, Adopted, Advanced, Confirmed, FellBack, Synced)

    def __init__(self, history: History, *, skew_s: float = 0.0) -> None:
        self._history = history
        self._skew_s = skew_s
        self._uncounted: deque[tuple[float, bytes, bytes]] = deque()
        """When to look again, the seal before, and a SEAL that was not told of yet."""
        self._ahead: dict[PeerId, list[Signed]] = {}
        """Signatures on a seal that their node is to tell of in the same moment."""

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        while self._uncounted and self._uncounted[0][0] < record.at_s:
            yield from self._counted(*self._uncounted.popleft()[1:])
        ahead = self._ahead.get(record.peer)
        if ahead and record.at_s > ahead[0].at_s and not isinstance(record, Began):
            del self._ahead[record.peer]
            yield self._is_ahead(ahead[0])
        match record:
            case Began():
                yield from self._began(record)
            case Signed():
                yield from self._signed(record)
            case Adopted() | Confirmed():
                self._reached(record.peer)
                yield from self._adopted(record)
            case Advanced():
                self._reached(record.peer)
            case FellBack(final=final):
                self._reached(record.peer)
                head = self._history.heads.get(record.peer)
                if head is not None and final.value.digest != head.digest:
                    yield f"falls back to round {final.value.round}, and {head.round} is final here"
            case Synced():
                self._reached(record.peer)
                before, value = self._history.previous, record.certificate.value
                if before is not None and value.round <= before.round:
                    yield f"went back from round {before.round} to the state of {value.round}"
            case _:
                pass

    def finish(self) -> Iterator[str]:
        """See Check. Who signed last and told nothing more was killed in that moment."""
        for _, basis, data in self._uncounted:
            yield from self._counted(basis, data)

    def _began(self, record: Began) -> Iterator[str]:
        value, before = record.head.value, self._history.previous
        if record.round != value.round + 1:
            yield f"begins round {record.round} on the seal of round {value.round}"
        ahead = self._ahead.pop(record.peer, None)
        if before is None or record.is_lost:
            return
        if ahead:
            # Of what it was about to stand on it tells now.
            left = self._history.left.get(record.peer, set())
            self._ahead[record.peer] = [
                replace(told, at_s=record.at_s)
                for told in ahead
                if told.message.slot.round > value.round and told.message.slot.basis not in left
            ]
            self._reached(record.peer)
        if value.round < before.round:
            yield f"comes back at round {value.round}, and had told of {before.round} before"
        elif value.round == before.round and value.digest != before.digest:
            yield f"comes back with another seal of round {value.round} than it had"
        elif value.round == before.round + 1 and value.before != before.digest:
            yield f"comes back with a round {value.round} that does not follow its own"

    def _adopted(self, record: Adopted | Confirmed) -> Iterator[str]:
        value, before = record.certificate.value, self._history.previous
        if before is not None and value.before != before.digest:
            yield f"adopts a seal of round {value.round} that does not follow its {before.round}"
        for data in record.certificate.seals:
            if data in self._history.seals:
                continue
            if self._skew_s:
                self._uncounted.append((record.at_s + self._skew_s, value.basis, data))
            else:
                yield from self._counted(value.basis, data)

    def _counted(self, basis: bytes, data: bytes) -> Iterator[str]:
        """A SEAL that counts has left its node, so that node told of it before."""
        if data in self._history.seals:
            return
        # Not decoded: a certificate that is no good is for I3 to find.
        excused = self._history.restarted.get(basis, set())
        traced = [p for p in self._history.heads if p not in excused and data.find(p) >= 0]
        if traced:
            yield f"a SEAL of {short_id(traced[0])} counts that left before it was recorded"

    def _signed(self, record: Signed) -> Iterator[str]:
        if self._history.said is None:
            return
        head, slot = self._history.heads.get(record.peer), record.message.slot
        if record.peer in self._history.restarted.get(slot.basis, ()):
            return  # Killed before it could tell: what its journal has is told when it is back.
        if record.message.sender != record.peer:
            yield f"records as its own what {short_id(record.message.sender)} signed"
        elif head is not None and slot.basis not in self._places(record.peer):
            # A batch is durable before any of it is carried out: its seal is told next.
            self._ahead.setdefault(record.peer, []).append(record)

    def _places(self, peer: PeerId) -> set[bytes]:
        """What names the rounds behind the seals that a node has told to be durable."""
        head = self._history.heads.get(peer)
        branch = self._history.branches.get(peer, ())
        values = (*branch, head) if head is not None else branch
        return {basis for value in values for basis in self._history.bases_behind(value)}

    def _reached(self, peer: PeerId) -> None:
        places = self._places(peer)
        left = [told for told in self._ahead.get(peer, ()) if told.message.slot.basis not in places]
        if left:
            self._ahead[peer] = left
        else:
            self._ahead.pop(peer, None)

    def _is_ahead(self, record: Signed) -> str:
        slot, head = record.message.slot, self._history.heads.get(record.peer)
        known = "none is known" if head is None else f"is of round {head.round}"
        return (
            f"signs {slot.kind.name} in round {slot.round}, and of the seals"
            f" that are durable on it the last {known}"
        )
