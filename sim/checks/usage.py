"""I7: what a real process holds does not grow without end, by what it tells of itself."""

from collections.abc import Iterator
from dataclasses import dataclass

from node.reporting.tracing import Adopted, Began, Record, Used
from protocol import limits
from protocol.identity import PeerId

WARM_UP_S, WARM_UP_ROUNDS = 30.0, 5
"""By then a process has loaded and allocated what it needs for any round, and holds as many rounds
as it ever keeps; of large vectors a round takes long."""

MEMORY_GROWTH = 1.25
MEMORY_SPARE_BYTES = 64 * limits.MIB
"""Beyond the most of the warm-up: heaps are fragmented, and a page once touched stays."""

ATTEMPT_VECTORS = 2
"""A round's second attempt, which the warm-up may not have had, holds its result beside the first
one's, and parts of cells that were to be another's. The heap keeps what it has had."""

FILES_SPARE = 64
TASKS_SPARE = 256
"""Links, streams and searches that come and go; a leak passes any number."""

MESSAGES_MAX = 2 * limits.MESSAGES_PER_ROUND_MAX
"""Of the round under way and the one before."""


@dataclass(slots=True)
class _Warm:
    """The most that one life of a node used while it warmed up."""

    until_s: float
    rounds: int = 0
    memory_bytes: int = 0
    files: int = 0
    tasks: int = 0


class Usage:
    """I7 over records."""

    name = "I7"
    kinds = (Began, Used, Adopted)

    def __init__(self, vector_bytes: int) -> None:
        """`vector_bytes`: of a result, which is as large as the shard."""
        self._spare_bytes = MEMORY_SPARE_BYTES + ATTEMPT_VECTORS * vector_bytes
        self._warm: dict[PeerId, _Warm] = {}

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        if isinstance(record, Began):
            self._warm[record.peer] = _Warm(record.at_s + WARM_UP_S)
        elif isinstance(record, Adopted):
            if record.peer in self._warm:
                self._warm[record.peer].rounds += 1
        elif isinstance(record, Used):
            yield from self._used(record.peer, record)

    def finish(self) -> Iterator[str]:
        """See Check."""
        return iter(())

    def _used(self, peer: PeerId, record: Used) -> Iterator[str]:
        if record.messages > MESSAGES_MAX:
            yield f"keeps {record.messages} messages, {MESSAGES_MAX} are allowed"
        warm = self._warm.get(peer)
        if warm is None:
            return
        if record.at_s < warm.until_s or warm.rounds < WARM_UP_ROUNDS:
            warm.memory_bytes = max(warm.memory_bytes, record.memory_bytes)
            warm.files = max(warm.files, record.files)
            warm.tasks = max(warm.tasks, record.tasks)
            return
        allowed = int(MEMORY_GROWTH * warm.memory_bytes) + self._spare_bytes
        if record.memory_bytes > allowed:
            yield f"uses {record.memory_bytes >> 20} MiB of memory, {allowed >> 20} are allowed"
        if record.files > warm.files + FILES_SPARE:
            yield f"has {record.files} files and sockets open, {warm.files} when it was warm"
        if record.tasks > warm.tasks + TASKS_SPARE:
            yield f"runs {record.tasks} tasks, {warm.tasks} when it was warm"
