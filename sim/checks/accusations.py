"""I6: no honest peer is accused, and nothing worse than a pause comes of strikes."""

from collections.abc import Collection, Iterator

from node.reporting.tracing import Accused, Record
from protocol.identity import PeerId, short_id
from sim.checks.history import History


class Accusations:
    """I6 over records: all whose records these are count as honest, but for the `suspects`.

    Those are peers that are bent on purpose, or whose bytes a link spoils.
    """

    name = "I6"
    kinds = (Accused,)

    def __init__(self, history: History, suspects: Collection[PeerId] = ()) -> None:
        self._history = history
        self._suspects = frozenset(suspects)

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        if not isinstance(record, Accused) or record.of in self._suspects:
            return
        if {record.peer, record.of} & self._history.bent:
            return
        if record.of in self._history.lives:
            yield f"accuses {short_id(record.of)}, which is honest: {record.reason}"

    def finish(self) -> Iterator[str]:
        """See Check."""
        return iter(())
