"""I1: what a node told the others, or built upon, is still there after its restarts.

What is promised (`node.holdings.journal`): a signature is durable before it leaves, a final seal
before anything is built on it, and its state can be made again from the disk. Nothing of it is
promised where the node says that its disk was lost (R12): it then asks what it signed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from node.reporting.tracing import (
    Adopted,
    Advanced,
    Began,
    Confirmed,
    FellBack,
    Record,
    Signed,
    Synced,
)
from protocol.identity import PeerId, short_id
from sim.checks.history import History


class Durability:
    """I1 over records."""

    name = "I1"
    kinds = (Began, Signed, Adopted, Advanced, Confirmed, FellBack, Synced)

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
