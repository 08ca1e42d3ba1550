"""Work over bulk streams (R10): who asks is shown what the beacon named it for, within a quota; and
what comes is kept where a segment here begins with it.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from node.holdings.shard_store import Item
from node.plane.hooks import NodeHooks
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.errors import LimitError, ProofError, StateError
from protocol.grid import EMPTY_ROOT, Layout, cell_root, check_merkle_proof, merkle_proof
from protocol.identity import PeerId, short_id
from protocol.segments import (
    MOMENTS,
    STATE,
    WorkKind,
    num_state_cells,
)
from training.audits.traces import StoredCells, TraceFolder

# Work store ---------------------------------------------------------------------------------------
#
# Inner states and residuals as content that their roots name: what audits begin with (R10).
#
# A state is as `protocol.segments` has it, a residual the cells of one fragment. In a simulated
# world states have fewer moments. Whoever has one may serve it.

FindOwn = Callable[[bytes], Sequence[bytes]]
"""The cells that the own trainer keeps under a root; empty for another one."""


class WorkStore:
    """What was fetched for audits, and what is served. Memory is bounded by what is asked for."""

    def __init__(self, layout: Layout, find_own: FindOwn, *, moments: int = MOMENTS) -> None:
        self._layout, self._moments = layout, moments
        self._find_own = find_own
        self._sizes: dict[WorkKind, tuple[int, ...]] = {}
        self._found: dict[bytes, dict[int, Item]] = {}

    def put(self, subject: bytes, item: Item, *, kinds: Collection[WorkKind]) -> None:
        """Keep a cell of a subject that is of that kind, or of one of these. Raises LimitError or
        ProofError where it fits none of them: the sender's fault."""
        *others, last = sorted(kinds)
        for kind in others:
            with suppress(LimitError, ProofError):
                self._put(subject, item, kind)
                return
        self._put(subject, item, last)

    def _put(self, subject: bytes, item: Item, kind: WorkKind) -> None:
        if kind not in self._sizes:
            self._sizes[kind] = kind.sizes(self._layout, self._moments)
        sizes = self._sizes[kind]
        if item.index >= len(sizes):
            raise LimitError(f"cell {item.index} of {len(sizes)}")
        if len(item.payload) != sizes[item.index]:
            raise LimitError(f"cell {item.index} has {len(item.payload)} bytes")
        node = cell_root(item.payload)
        check_merkle_proof(subject, node, item.proof, index=item.index, count=len(sizes))
        self._found.setdefault(subject, {})[item.index] = item

    def items(self, subject: bytes, cells: Sequence[int]) -> list[Item]:
        """Those of them that are here, with their proofs."""
        wanted, own = list(dict.fromkeys(cells)), self._find_own(subject)
        if not own:
            found = self._found.get(subject, {})
            return [found[index] for index in wanted if index in found]
        roots = own.roots if isinstance(own, StoredCells) else [cell_root(cell) for cell in own]
        items = []
        for index in [one for one in wanted if one < len(own)]:
            with suppress(IndexError):  # The disk has lost it.
                items.append(Item(index, own[index], merkle_proof(roots, index)))
        return items

    def own(self, subject: bytes) -> Sequence[bytes]:
        """All cells of a subject that the own trainer keeps; empty of another one."""
        return self._find_own(subject)

    def needed_cells(self, subject: bytes, kind: WorkKind) -> list[bytes]:
        """Those of its cells that are needed; nothing where one of them is missing."""
        wanted = kind.cells(self._layout, self._moments)
        if own := self._find_own(subject):
            try:
                return [own[index] for index in wanted]
            except IndexError:
                return []
        found = self._found.get(subject, {})
        return [found[index].payload for index in wanted] if found.keys() >= set(wanted) else []

    def keep(self, subjects: Collection[bytes]) -> None:
        """Forget what else was fetched."""
        self._found = {s: cells for s, cells in self._found.items() if s in subjects}


logger = logging.getLogger(__name__)

# Work desk ----------------------------------------------------------------------------------------

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


def _are_kept(held: Sequence[bytes], cells: Sequence[int]) -> bool:
    return not isinstance(held, StoredCells) or held.are_kept(cells)


class WorkDesk:
    """One node's: serves its own work, and that of others in a dispute; keeps what it asked for."""

    def __init__(
        self, core: NodeCore, layout: Layout, traces: TraceFolder, folder: Path, hooks: NodeHooks
    ) -> None:
        """`folder` gets a file for each segment that the trainer is to run again."""
        self._core, self._layout, self._hooks = core, layout, hooks
        self._folder = folder
        self._works = WorkStore(layout, traces.find)
        most = AUDITS_PER_ERA * (num_state_cells(layout) + 2 * max(layout.fragment_cells))
        self._quota = WorkQuota(most)
        self._waiting: Counter[PeerId] = Counter()
        self._traces = traces
        self.reopen: Callable[[bytes], Awaitable[None]] = self._cannot
        """Has the trainer make a state of an own round again, and waits for it."""

    async def _cannot(self, subject: bytes) -> None:
        del subject  # There is no trainer.

    def close_rounds(self) -> None:
        """After a seal: what nobody may ask for any more need not be kept. Raises OSError."""
        for index, segments in self._core.audits.shown_segments.items():
            self._traces.close(index, still_open=segments)

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
        asked = tuple(dict.fromkeys(push.cells))
        held = await trio.to_thread.run_sync(self._works.own, push.subject)
        if not _are_kept(held, asked):
            with trio.move_on_after(EARLY_S):
                await self.reopen(push.subject)
        cells = asked if _are_kept(held, asked) else ()
        if held:
            cells = tuple(index for index in cells if index < len(held))

        async def find(index: int) -> list[Item]:
            items = partial(self._works.items, push.subject, (index,))
            return await trio.to_thread.run_sync(items)

        return OpenedWork(find, cells if self._hooks.opens_to(push.to) else ())

    # In -----------------------------------------------------------------------------------------

    def wants(self, subject: bytes) -> bool:
        """Whether a segment here begins with it."""
        return bool(self._core.audits.kinds(subject))

    def keep(self, subject: bytes, item: Item) -> bool:
        """Take a cell in; False if it is not needed any more, which is nobody's fault. Raises
        LimitError or ProofError for what is not of that subject."""
        kinds = self._core.audits.kinds(subject)
        if not kinds:
            return False
        self._works.put(subject, item, kinds=kinds)
        return True

    def forget(self) -> None:
        """What no segment begins with any more."""
        self._works.keep(self._core.audits.subjects)

    # To the trainer -----------------------------------------------------------------------------

    def write(self, task: ev.Rerun, number: int) -> Path | None:
        """The file that a trainer needs to run that segment; None where something is missing. For a
        worker thread. Raises OSError on a full disk."""
        work, fragment = task.commit.work[0], self._layout.fragment_of(task.round)
        is_encoding = task.segment + 1 == len(work.trace)
        kind = WorkKind("weights", fragment) if is_encoding else STATE
        cells = self._works.needed_cells(work.trace[task.segment], kind)
        if not cells:
            return None
        if is_encoding and task.commit.residual_before != EMPTY_ROOT:
            residual = self._works.needed_cells(
                task.commit.residual_before, WorkKind("residual", fragment)
            )
            if not residual:
                return None
            cells += residual
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"segment-{number}.work"
        with path.open("wb") as file:
            file.writelines(cells)
        return path
