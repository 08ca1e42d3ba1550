"""What real nodes do, as they do it: their trace files, read while they grow."""

from collections.abc import Sequence
from pathlib import Path

import trio

from node.reporting.tracing import Record, parse_trace_line
from protocol.errors import DecodeError

LOOK_S = 0.004
"""Small beside the phases of a round, and under a hundredth of a core for four nodes."""


class TraceTail:
    """One growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = b""

    def news(self) -> list[Record]:
        """The records that came since the last call; lines that are none are passed over."""
        try:
            if self._path.stat().st_size == self._position:
                return []
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        records = []
        for line in lines:
            try:
                records.append(parse_trace_line(line.decode("utf-8", "replace")))
            except DecodeError:
                continue
        return records


class Watch:
    """All files of one run. `records` are all that were seen so far, by time within each look."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._tails = [TraceTail(path) for path in paths]
        self.records: list[Record] = []

    async def next(self) -> list[Record]:
        """The records of one more look, none of them if nothing happened."""
        await trio.sleep(LOOK_S)
        return self.look()

    def look(self) -> list[Record]:
        """The same at once."""
        fresh = [record for tail in self._tails for record in tail.news()]
        fresh.sort(key=lambda record: record.at_s)
        self.records += fresh
        return fresh
