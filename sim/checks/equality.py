"""I2: whoever has a round has the same of it: seal value and state root, here by what was said.

That the state is what the listed bytes give is checked in worlds, by `sim.checks.reference`.
"""

from collections.abc import Iterator

from node.reporting.tracing import Adopted, Advanced, Confirmed, Diverged, Record, Signed, Synced
from protocol.identity import PeerId, short_id
from protocol.messages import Kind, Seal
from sim.checks.history import History


class Equality:
    """I2 over records.

    A SEAL is a function of the seal before and of the LIST, so that two honest ones of one LIST
    are equal, long before anything is final.
    """

    name = "I2"
    kinds = (Signed, Adopted, Advanced, Confirmed, Synced, Diverged)

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

    def finish(self) -> Iterator[str]:
        """See Check."""
        return iter(())

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
