"""Hands the cells of results to the disk as they come, so that the SEAL waits for the last only."""

from collections.abc import Sequence
from functools import partial

import trio

from node.holdings.journal import Journal
from node.holdings.results import Placed
from protocol import limits

SMALL_BYTES = 64 * limits.KIB
"""Cells below it come with small models, whose results are one short write."""

BATCH_BYTES = 8 * limits.MIB
"""What is written in one go: a cell at a time would be a step to a thread and back for each, and
who keeps the result waits for a batch that is under way."""


class WriteAhead:
    """For one driver. `run` writes what was offered; the cells are in the store anyway."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._result: tuple[int, bytes] | None = None
        self._waiting: list[Placed] = []
        self._waiting_bytes = 0
        self._is_due = trio.Event()

    def offer(self, round_index: int, digest: bytes, cells: Sequence[Placed]) -> None:
        """Cells of a result that are here; what waits of another one is not written any more."""
        if self._result != (round_index, digest):
            self._result = round_index, digest
            self._take()
        large = [place for place in cells if len(place[1]) >= SMALL_BYTES]
        self._waiting += large
        self._waiting_bytes += sum(len(payload) for _, payload in large)
        if self._waiting_bytes >= BATCH_BYTES:
            self._is_due.set()

    def _take(self) -> list[Placed]:
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return batch

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._is_due.wait()
            self._is_due = trio.Event()
            batch = self._take()
            if batch and self._result is not None:
                write = partial(self._journal.write_ahead, *self._result, batch)
                await trio.to_thread.run_sync(write)

    async def keep(
        self, round_index: int, digest: bytes, cells: Sequence[bytes], roots: Sequence[bytes]
    ) -> None:
        """Until the result is on the disk; `roots` are its cells'. Raises OSError."""
        self._take()  # They are among the cells.
        keep = partial(self._journal.keep_result, round_index, digest, cells, roots)
        await trio.to_thread.run_sync(keep)
