"""I6: no honest peer is accused, and nothing worse than a pause comes of strikes."""

from collections.abc import Collection, Iterator

from node.reporting.tracing import Accused, Convicted, Record
from protocol.identity import PeerId, short_id
from sim.checks.history import History


class Accusations:
    """I6 over records: all whose records these are count as honest, but for the `suspects`.

    Those are peers that are bent on purpose, or whose bytes a link spoils.
    """

    name = "I6"
    kinds = (Accused, Convicted)

    def __init__(self, history: History, suspects: Collection[PeerId] = ()) -> None:
        self._history = history
        self._suspects = frozenset(suspects)

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        match record:
            case Accused(of=of, reason=reason):
                what = "accuses"
            case Convicted(evidence=evidence):
                of, what, reason = evidence.subject, "convicts", evidence.accusation.name
            case _:
                return
        if of in self._suspects or {record.peer, of} & self._history.bent:
            return
        if of in self._history.lives:
            yield f"{what} {short_id(of)}, which is honest: {reason}"

    def finish(self) -> Iterator[str]:
        """See Check."""
        return iter(())
