"""Traces of real processes: in one order of time, and what is checked of them alone.

I4: while a quorum can work, rounds are sealed; and how long that may take (R2, R3). Records alone
do not tell whether two nodes reach each other. So this is the coarse form: the driver of the
processes tells when it did something to them. In worlds `sim.checks.progress` knows the
circumstances, and is exact.

I7: what a real process holds does not grow without end, by what it tells of itself.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import get_args

from node.reporting.trace_file import read_trace
from node.reporting.tracing import Adopted, Advanced, Began, Ended, Record, Signed, Used
from protocol import limits
from protocol.catching_up.catchup import STALL_S, STUCK_S
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.messages import Kind
from protocol.rounds.agreement import TIME_OUT_AFTER
from protocol.rounds.lapses import GROWTH, GROWTH_STEPS_MAX
from sim.checks.history import Check, History, Kinds


def merge_traces(paths: Sequence[Path]) -> Iterator[Record]:
    """All records by time; of equal ones those of the earlier path first.

    A last line that a killed node left torn is passed over. Raises OSError without one of the
    files, and DecodeError with file and line for any other line that is no record.
    """
    traces = [read_trace(path) for path in paths]
    keyed = (_in_order(records, number) for number, records in enumerate(traces))
    for _, record in heapq.merge(*keyed, key=lambda entry: entry[0]):
        yield record


def _in_order(records: Sequence[Record], number: int) -> Iterator[tuple[tuple[float, int], Record]]:
    """A node's records stay in the order in which it told them, whatever its clock did."""
    times_s = accumulate((record.at_s for record in records), max)
    for at_s, record in zip(times_s, records, strict=True):
        yield (at_s, number), record


# I4: progress -----------------------------------------------------------------------------------

ROUNDS_ALLOWED = 3
"""I4 gives a round so many times what one without a failed attempt takes."""

HEARTBEATS_ALLOWED = 5

SILENT_S = 6.0
"""A traced node tells every two seconds what it uses: after three times that it does not run."""

LOOK_S = 1.0


def seal_within_s(
    manifest: RunManifest, *, train_s: float, deadline_s: float, time_outs: int = 0
) -> float:
    """How long a quorum that can work may be without a new seal.

    Five heartbeats until all see each other again, the time in which the dead are suspected, what
    a node that is a round behind waits before it fetches the state, and then three times a round's
    training and an attempt, each attempt longer than the one before. `deadline_s` is the learned
    deadline and `time_outs` how many attempts of the round have failed before.
    """
    timing = manifest.timing
    within_s = HEARTBEATS_ALLOWED * timing.heartbeat_s + timing.suspect_s + STUCK_S + STALL_S
    for attempt in range(ROUNDS_ALLOWED):
        growth = GROWTH ** min(time_outs + attempt, GROWTH_STEPS_MAX)
        within_s += train_s + TIME_OUT_AFTER * deadline_s * growth
    return within_s


class Stalls(Check):
    """I4 over records, coarse: processes that run count as processes that can work.

    `stall_s` is how long they may be without a seal; by default as long as the manifest's longest
    deadline may make it. Training is as long as it was seen to be.
    """

    name = "I4"
    kinds: Kinds = get_args(Record)

    def __init__(
        self, history: History, manifest: RunManifest, *, stall_s: float | None = None
    ) -> None:
        self._history = history
        self._manifest = manifest
        self._stall_s = stall_s
        self._heard_s: dict[PeerId, float] = {}
        self._trains_s: dict[PeerId, float] = {}
        self._train_s = 0.0
        self._final = b""
        self._since_s = 0.0
        self._look_s = float("-inf")

    def disturbed(self, at_s: float) -> None:
        """Something was done to the nodes: what is allowed counts from here."""
        self._since_s = max(self._since_s, at_s)

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        now_s = record.at_s
        self._heard(record.peer, float("-inf") if isinstance(record, Ended) else now_s)
        if isinstance(record, Began):
            self.disturbed(now_s)
        self._learn(record)
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        final = self._history.final
        if final is None or final.clock.ends_run:
            return
        if final.digest != self._final or not self._can_work(now_s):
            self._final, self._since_s = final.digest, max(self._since_s, now_s)
        timing = self._manifest.timing
        within_s = self._stall_s or seal_within_s(
            self._manifest, train_s=self._train_s, deadline_s=timing.deadline_cap_s
        )
        if now_s - self._since_s > within_s:
            yield (
                f"a quorum runs, and for {now_s - self._since_s:.0f} s nothing was sealed"
                f" after round {final.round}; {within_s:.0f} s are allowed"
            )

    def _heard(self, peer: PeerId, at_s: float) -> None:
        self._heard_s[peer] = at_s

    def _learn(self, record: Record) -> None:
        """How long training takes: from a seal to the COMMIT behind it."""
        if isinstance(record, Adopted | Advanced):
            self._trains_s[record.peer] = record.at_s
        elif isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            began_s = self._trains_s.pop(record.peer, record.at_s)
            self._train_s = max(self._train_s, record.at_s - began_s)

    def _can_work(self, now_s: float) -> bool:
        assert self._history.final is not None
        electorate = self._history.behind(self._history.final)
        running = {p for p, heard_s in self._heard_s.items() if now_s - heard_s < SILENT_S}
        return electorate is not None and electorate.is_quorum(running)


# I7: bounded ------------------------------------------------------------------------------------

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


class Usage(Check):
    """I7 over records."""

    name = "I7"
    kinds: Kinds = (Began, Used, Adopted)

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
