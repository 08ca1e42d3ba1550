"""Work over bulk streams (R10): who asks is shown what the beacon named it for, within a quota; and
what comes is kept where a segment here begins with it.

C cells of the shard
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from node.holdings.shard_store import Item
from node.holdings.work_store import WorkStore
from node.plane.hooks import NodeHooks
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.errors import StateError
from protocol.grid import Layout
from protocol.identity import PeerId, short_id
from protocol.segments import num_state_cells
from training.audits.traces import StoredCells, TraceFolder

logger = logging.getLogger(__name__)

ERA_ROUNDS = 256
AUDITS_PER_ERA = 128
"""Of one peer by another: the beacon names nobody for more than half of the rounds, on average."""

WAITING_MAX = 8
"""Questions of one peer that came before the seal that lets it ask."""

EARLY_S = 4.0
"""So long they wait for it; whoever asked asks again with the next seal."""

T = TypeVar("T")


class WorkQuota:
    """How many cells of work each peer was shown in this era. Pure."""

    def __init__(self, cells_max: int) -> None:
        self._cells_max = cells_max
        self._era = -1
        self._shown: Counter[PeerId] = Counter()

    def take(self, peer: PeerId, num_cells: int, *, round_index: int) -> bool:
        """Whether it may be shown so many more; they are then counted."""
        if round_index // ERA_ROUNDS != self._era:
            self._era = round_index // ERA_ROUNDS
            self._shown.clear()
        if self._shown[peer] + num_cells > self._cells_max:
            return False
        self._shown[peer] += num_cells
        return True


class OpenedWork:
    """Cells on their way to who asked, read as they are sent."""

    def __init__(
        self, find: Callable[[int], Awaitable[list[Item]]], cells: tuple[int, ...]
    ) -> None:
        self._find, self._cells = find, list(cells)
        self.count = len(cells)

    async def more(self) -> list[Item]:
        """The next cell; none behind the last. Raises StateError where the disk has lost it."""
        if not self._cells:
            return []
        found = await self._find(self._cells.pop(0))
        if not found:
            raise StateError("work of one's own is gone from the disk")
        return found


def _is_kept(held: Sequence[bytes]) -> bool:
    return not isinstance(held, StoredCells) or held.is_kept


class WorkDesk:
    """One node's: serves its own work, and that of others in a dispute; keeps what it asked for."""

    def __init__(
        self, core: NodeCore, layout: Layout, traces: TraceFolder, folder: Path, hooks: NodeHooks
    ) -> None:
        """`folder` gets a file for each segment that the trainer is to run again."""
        self._core, self._layout, self._hooks = core, layout, hooks
        self._folder = folder
        self._works = WorkStore(layout, traces.find, has_tail=True)
        most = AUDITS_PER_ERA * (2 * num_state_cells(layout) + layout.num_cells(0))
        self._quota = WorkQuota(most)
        self._waiting: Counter[PeerId] = Counter()
        self._traces = traces
        self.reopen: Callable[[bytes], Awaitable[None]] = self._cannot
        """Has the trainer make a state of an own round again, and waits for it."""

    async def _cannot(self, subject: bytes) -> None:
        del subject  # There is no trainer.

    def close_rounds(self) -> None:
        """After a seal: what nobody may ask for any more need not be kept. Raises OSError."""
        for index in self._core.audits.closed:
            self._traces.close(index)

    # Out ----------------------------------------------------------------------------------------

    async def may_open(self, push: ev.Push, changed: Callable[[], Awaitable[None]]) -> bool:
        """Whether a peer is shown what it asks for; waits a little for the seal that lets it.

        `changed` returns when the core has handled another event.
        """
        peer, subject, core = push.to, push.subject, self._core
        if not core.audits.may_open(peer, subject):
            if self._waiting[peer] >= WAITING_MAX:
                return False
            self._waiting[peer] += 1
            with trio.move_on_after(EARLY_S):
                while not core.audits.may_open(peer, subject):
                    await changed()
            self._waiting[peer] -= 1
            self._waiting += Counter()  # Forgets the zeros.
        is_open = core.audits.may_open(peer, subject)
        number = len(set(push.cells))
        if is_open and self._quota.take(peer, number, round_index=core.machine.view.index):
            return True
        why = "its quota is used up" if is_open else "nothing drew it for that"
        logger.info("work not shown peer=%s reason=%s", short_id(peer), why)
        return False

    async def outgoing(self, push: ev.Push) -> OpenedWork:
        """The cells of it that are here. A state that was not kept is made again; if that takes
        longer than a moment, whoever asks again with the next seal gets it."""
        held = await trio.to_thread.run_sync(self._works.cells, push.subject)
        if not _is_kept(held):
            with trio.move_on_after(EARLY_S):
                await self.reopen(push.subject)
        count = len(held) if _is_kept(held) else 0
        cells = tuple(index for index in dict.fromkeys(push.cells) if index < count)

        async def find(index: int) -> list[Item]:
            items = partial(self._works.items, push.subject, (index,))
            return await trio.to_thread.run_sync(items)

        return OpenedWork(find, cells if self._hooks.opens_to(push.to) else ())

    # In -----------------------------------------------------------------------------------------

    def wants(self, subject: bytes) -> bool:
        """Whether a segment here begins with it."""
        return bool(self._core.audits.counts(subject))

    def keep(self, subject: bytes, item: Item) -> bool:
        """Take a cell in; False if it is not needed any more, which is nobody's fault. Raises
        LimitError or ProofError for what is not of that subject."""
        counts = self._core.audits.counts(subject)
        if not counts:
            return False
        self._works.put(subject, item, counts=counts)
        return True

    def forget(self) -> None:
        """What no segment begins with any more."""
        self._works.keep(self._core.audits.subjects)

    # To the trainer -----------------------------------------------------------------------------

    def write(self, task: ev.Rerun, number: int) -> Path | None:
        """The file that a trainer needs to run that segment; None where something is missing. For a
        worker thread. Raises OSError on a full disk."""
        work = task.commit.work[0]
        is_encoding = task.segment + 1 == len(work.trace)
        state = self._works.cells(work.trace[task.segment])
        residual = self._works.cells(task.commit.residual_before) if is_encoding else ()
        if not state:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"segment-{number}.work"
        try:
            with path.open("wb") as file:
                for cells in (state, residual):
                    for index in range(len(cells)):
                        file.write(cells[index])
        except IndexError:
            path.unlink()
            return None
        return path
