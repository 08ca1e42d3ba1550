"""Inner states and residuals as content that their roots name: what audits begin with (R10).

C cells of the shard

A state is as `protocol.segments` has it, a residual the C cells of one vector. In a
simulated world states have other moments and no tail. Whoever has one may serve it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from node.holdings.states import Item
from protocol.errors import LimitError, ProofError
from protocol.grid import Layout, cell_root, check_merkle_proof, merkle_proof
from protocol.segments import TAIL_BYTES, root_of
from training.audits.traces import StoredCells

FindOwn = Callable[[bytes], Sequence[bytes]]
"""The cells that the own trainer keeps under a root; empty for another one."""


class WorkStore:
    """What was fetched for audits, and what is served. Memory is bounded by what is asked for."""

    def __init__(self, layout: Layout, find_own: FindOwn, *, has_tail: bool) -> None:
        """`has_tail` says that states end with a cell of their own."""
        self._layout = layout
        self._find_own = find_own
        self._has_tail = has_tail
        self._found: dict[bytes, dict[int, bytes]] = {}

    def put(self, subject: bytes, item: Item, *, counts: Collection[int]) -> None:
        """Keep a cell of a subject that has so many, or so many. Raises LimitError or ProofError
        where it fits none of these numbers: the sender's fault."""
        *others, last = sorted(counts)
        for count in others:
            with suppress(LimitError, ProofError):
                self._put(subject, item, count)
                return
        self._put(subject, item, last)

    def _put(self, subject: bytes, item: Item, count: int) -> None:
        if item.index >= count:
            raise LimitError(f"cell {item.index} of {count}")
        each = self._layout.num_cells(0)
        is_tail = self._has_tail and count > each and item.index == count - 1
        numel = self._layout.cell_numel(0, item.index % each)
        if len(item.payload) != (TAIL_BYTES if is_tail else 4 * numel):
            raise LimitError(f"cell {item.index} has {len(item.payload)} bytes")
        node = cell_root(item.payload)
        check_merkle_proof(subject, node, item.proof, index=item.index, count=count)
        self._found.setdefault(subject, {})[item.index] = item.payload

    def items(self, subject: bytes, cells: Sequence[int]) -> list[Item]:
        """Those of them that are here, with their proofs; only of what is here as a whole."""
        held = self.cells(subject)
        roots = held.roots if isinstance(held, StoredCells) else [cell_root(cell) for cell in held]
        wanted = [index for index in dict.fromkeys(cells) if index < len(held)]
        try:
            return [Item(index, held[index], merkle_proof(roots, index)) for index in wanted]
        except IndexError:
            return []  # The disk has lost some of it.

    def cells(self, subject: bytes) -> Sequence[bytes]:
        """All cells of a subject; empty where some are missing."""
        own = self._find_own(subject)
        if own:
            return own
        found = self._found.get(subject, {})
        held = [found[index] for index in sorted(found)]
        return held if held and root_of(held) == subject else ()

    def keep(self, subjects: Collection[bytes]) -> None:
        """Forget what else was fetched."""
        self._found = {s: cells for s, cells in self._found.items() if s in subjects}
