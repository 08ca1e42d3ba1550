"""`--trace FILE`: a node's records as lines of a file, which the invariants are checked against.

A trace is evidence and no part of the node: whatever the file does, the node goes on. A restarted
node continues its file; each start of it is a Began.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NoReturn

import trio

from node.reporting.tracing import (
    TRACE_LINE_BYTES_MAX,
    Accused,
    Adopted,
    Advanced,
    Began,
    Confirmed,
    Convicted,
    Diverged,
    Ended,
    FellBack,
    Record,
    Signed,
    Synced,
    Tracer,
    Used,
    parse_trace_line,
    trace_line,
)
from node.status.snapshot import num_descriptors, rss_bytes
from protocol.core.node_core import NodeCore
from protocol.errors import DecodeError
from protocol.evidence import Evidence
from protocol.hybrid_clock import WallClock
from protocol.identity import PeerId
from protocol.messages import SealCertificate, SignedMessage
from protocol.rounds.restart import Restart

logger = logging.getLogger(__name__)

USED_EVERY_S = 2.0
REASON_CHARACTERS_MAX = 400
CLOCK_LOOKS = 8


class TraceFile:
    """Appends records to a file. Every line is with the system when `write` returns, in one piece.

    So a node that is killed loses none of them; a machine that loses power may. An error of the
    file ends the tracing, with one warning. `now_s` is the wall clock's time at the start plus
    monotonic seconds since, never before the last record that the file holds.
    """

    def __init__(
        self,
        path: Path,
        *,
        wall_clock: WallClock = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._monotonic = monotonic
        self._file: BinaryIO | None = None
        self._offset_s = _offset_s(wall_clock, monotonic)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what a killed process still held back would be missing.
            self._file = path.open("ab", buffering=0)
            if path.is_file():  # And no pipe or device, which has no end to look at.
                last_s = self._mend_tail()
                self._offset_s = max(self._offset_s, last_s - monotonic())
        except OSError as error:
            self._stop(error)

    def now_s(self) -> float:
        """The time for the next record."""
        return self._offset_s + self._monotonic()

    def write(self, record: Record) -> None:
        """Append one record. Never raises for the file's sake."""
        if self._file is None:
            return
        line = trace_line(record).encode() + b"\n"
        try:
            written = self._file.write(line)
        except OSError as error:
            self._stop(error)
            return
        if written != len(line):
            self._stop(OSError("a line was cut short"))

    def close(self) -> None:
        """Close the file; later records are dropped."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _mend_tail(self) -> float:
        """End a line that was cut short; the time of the last whole record, 0 without one."""
        assert self._file is not None
        with self._path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - 2 * TRACE_LINE_BYTES_MAX))
            lines = file.read(2 * TRACE_LINE_BYTES_MAX).split(b"\n")
        if lines[-1]:
            self._file.write(b"\n")
        for line in reversed(lines):
            try:
                return parse_trace_line(line.decode("utf-8", "replace")).at_s
            except DecodeError:
                continue
        return 0.0

    def _stop(self, error: OSError) -> None:
        logger.warning("tracing stopped path=%s reason=%s", self._path, error)
        self.close()


def _offset_s(wall_clock: WallClock, monotonic: Callable[[], float]) -> float:
    """From monotonic to wall time.

    Nodes of one machine must agree on it to less than a message takes, so of some looks at both
    clocks the one counts in which least time passed: a busy machine may pause us in any of them.
    """
    best_s, offset_s = float("inf"), 0.0
    for _ in range(CLOCK_LOOKS):
        before_s = monotonic()
        wall_s = wall_clock()
        after_s = monotonic()
        if after_s - before_s < best_s:
            best_s, offset_s = after_s - before_s, wall_s - before_s
    return offset_s


def read_trace(path: Path) -> list[Record]:
    """The records in a trace, over all starts of its node.

    A line that is none is left out where a killed node may have left it: at the end, and in front
    of a Began. Raises OSError without the file, DecodeError for any other line that is none.
    """
    records: list[Record] = []
    torn: DecodeError | None = None
    with path.open("rb") as file:
        pieces = iter(lambda: file.readline(TRACE_LINE_BYTES_MAX), b"")
        for number, line in enumerate(pieces, 1):
            try:
                record = parse_trace_line(line.decode("utf-8", "replace").rstrip("\n"))
            except DecodeError as error:
                torn = torn or DecodeError(f"{path}, line {number}: {error}")
                continue
            if torn is not None and not isinstance(record, Began):
                raise torn
            torn = None
            records.append(record)
    return records


class NodeTrace:
    """What one node tells of itself: makes its records and hands them to `tracer`."""

    def __init__(self, peer: PeerId, tracer: Tracer, now_s: Callable[[], float]) -> None:
        self._peer = peer
        self._tell = tracer
        self._now_s = now_s

    def began(self, restart: Restart) -> None:
        """The node goes on from `restart`.

        Own signatures of the round under way follow: a kill between journal and trace may have kept
        them from it, and they leave now.
        """
        head = restart.chain[-1]
        now_s = self._now_s()
        self._tell(
            Began(
                at_s=now_s,
                peer=self._peer,
                round=head.value.round + 1,
                head=head,
                is_lost=restart.is_lost,
            )
        )
        for link in restart.branch:
            self._advanced(link, link.value.root, now_s, was_listed=False)
        for message in restart.messages:
            if message.sender == self._peer and message.slot.round > head.value.round:
                self.signed(message)

    def signed(self, message: SignedMessage) -> None:
        """See Signed."""
        self._tell(Signed(at_s=self._now_s(), peer=self._peer, message=message))

    def adopted(self, certificate: SealCertificate, root: bytes, *, was_listed: bool) -> None:
        """See Adopted."""
        self._tell(
            Adopted(
                at_s=self._now_s(),
                peer=self._peer,
                certificate=certificate,
                root=root,
                was_listed=was_listed,
            )
        )

    def advanced(self, certificate: SealCertificate, root: bytes, *, was_listed: bool) -> None:
        """See Advanced."""
        self._advanced(certificate, root, self._now_s(), was_listed=was_listed)

    def _advanced(
        self, link: SealCertificate, root: bytes, at_s: float, *, was_listed: bool
    ) -> None:
        self._tell(
            Advanced(at_s=at_s, peer=self._peer, certificate=link, root=root, was_listed=was_listed)
        )

    def confirmed(self, certificate: SealCertificate, root: bytes) -> None:
        """See Confirmed."""
        at_s = self._now_s()
        self._tell(Confirmed(at_s=at_s, peer=self._peer, certificate=certificate, root=root))

    def fell_back(self, final: SealCertificate, lost: SealCertificate) -> None:
        """See FellBack."""
        self._tell(FellBack(at_s=self._now_s(), peer=self._peer, final=final, lost=lost))

    def synced(self, certificate: SealCertificate, root: bytes) -> None:
        """See Synced."""
        self._tell(Synced(at_s=self._now_s(), peer=self._peer, certificate=certificate, root=root))

    def accused(self, of: PeerId, reason: str) -> None:
        """See Accused."""
        text = reason[:REASON_CHARACTERS_MAX]
        self._tell(Accused(at_s=self._now_s(), peer=self._peer, of=of, reason=text))

    def convicted(self, evidence: Evidence) -> None:
        """See Convicted."""
        self._tell(Convicted(at_s=self._now_s(), peer=self._peer, evidence=evidence))

    def diverged(self, reason: str) -> None:
        """See Diverged."""
        self._tell(Diverged(at_s=self._now_s(), peer=self._peer, reason=reason))

    def used(self, core: NodeCore) -> None:
        """See Used; 0 stands for what the system has no cheap answer to. For a task of trio."""
        self._tell(
            Used(
                at_s=self._now_s(),
                peer=self._peer,
                memory_bytes=rss_bytes() or 0,
                files=num_descriptors() or 0,
                tasks=trio.lowlevel.current_statistics().tasks_living,
                messages=sum(1 for view in core.views() for _ in view.ballots.messages()),
            )
        )

    def ended(self, reason: str) -> None:
        """See Ended."""
        text = reason[:REASON_CHARACTERS_MAX]
        self._tell(Ended(at_s=self._now_s(), peer=self._peer, reason=text))

    async def keep_telling_use(self, core: NodeCore) -> NoReturn:
        """A Used every few seconds, until cancelled."""
        while True:
            self.used(core)
            await trio.sleep(USED_EVERY_S)


def untraced(peer: PeerId) -> NodeTrace:
    """The trace of a node that nobody asked for one: nothing is kept."""

    def drop(record: Record) -> None:
        del record

    return NodeTrace(peer, drop, float)


@contextmanager
def tracing(path: Path | None, peer: PeerId) -> Iterator[NodeTrace | None]:
    """The trace that a node writes to `path`, closed with the block; None if there is no path."""
    if path is None:
        yield None
        return
    file = TraceFile(path)
    try:
        yield NodeTrace(peer, file.write, file.now_s)
    finally:
        file.close()
