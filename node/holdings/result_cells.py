"""The encoded result of one LIST, as far as it is here, and the roots of its cells."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from protocol.grid import MerkleTree, cell_root

ReadBack = Callable[[int, int], bytes]
"""Bytes of a result that lies in a file (`node.holdings.results`)."""

Proved = tuple[int, bytes, tuple[bytes, ...]]
"""Number, bytes and proof of a cell."""


class ResultCells:
    """Cells by number. Every cell is hashed once, however often it is sent."""

    def __init__(self, cells: Iterable[bytes] = ()) -> None:
        """Begins with these cells, the first of the grid."""
        self._payloads = dict(enumerate(cells))
        self._roots: dict[int, bytes] = {}
        self._trees: dict[tuple[int, int], MerkleTree] = {}
        self._read: ReadBack | None = None
        self._starts: list[int] = []

    def __len__(self) -> int:
        return max(len(self._payloads), len(self._starts) - 1)

    @property
    def is_on_disk(self) -> bool:
        """Whether its cells are read from a file when they are asked for."""
        return self._read is not None

    def leave_to_disk(self, read: ReadBack, sizes: Sequence[int]) -> None:
        """All cells, of these sizes, lie behind one another where `read` reads: their memory goes,
        and who asks for one waits for the disk. Their roots stay."""
        self._tree(0, len(sizes))
        self._read, self._starts = read, list(accumulate(sizes, initial=0))
        self._payloads.clear()

    def get(self, cell: int) -> bytes | None:
        """The bytes of a cell; None while it is not here, or if the disk has other ones by now."""
        payload = self._payloads.get(cell)
        if payload is None and self._read is not None and cell + 1 < len(self._starts):
            start, stop = self._starts[cell : cell + 2]
            try:
                payload = self._read(start, stop - start)
            except OSError:
                return None
            if cell_root(payload) != self._roots[cell]:
                return None
        return payload

    def whole(self) -> list[bytes]:
        """All cells from the first on; none if one of them is not here."""
        found = [self.get(cell) for cell in range(len(self))]
        payloads = [payload for payload in found if payload is not None]
        return payloads if len(payloads) == len(found) else []

    def roots(self) -> list[bytes]:
        """Of all cells, when it is whole."""
        return self._roots_of(range(len(self)))

    def put(self, cell: int, payload: bytes, root: bytes) -> None:
        """Keep a cell that has this root; it replaces another one."""
        if self._roots.get(cell) == root and (self.is_on_disk or cell in self._payloads):
            return  # It came late, and would take memory again, or be stepped again.
        if self._roots.get(cell) != root:
            self._trees.clear()
        self._payloads[cell], self._roots[cell] = payload, root

    def proofs(self, first: int, stop: int) -> Iterator[Proved]:
        """Cells [first, stop), their bytes and proofs in the tree over them; none if one lacks."""
        found = [(cell, self.get(cell)) for cell in range(first, stop)]
        payloads = [(cell, payload) for cell, payload in found if payload is not None]
        if len(payloads) < len(found):
            return
        tree = self._tree(first, stop)
        for cell, payload in payloads:
            yield cell, payload, tree.proof(cell - first)

    def proved(self, cell: int, first: int, stop: int) -> Proved | None:
        """One of `proofs`; None if it is not here. Who sends a slice from the disk reads it so."""
        payload = self.get(cell)
        if payload is None:
            return None
        return cell, payload, self._tree(first, stop).proof(cell - first)

    def root(self, first: int, stop: int) -> bytes:
        """Merkle root over the roots of cells [first, stop), which are here."""
        root = self._tree(first, stop).root
        assert root is not None
        return root

    def _tree(self, first: int, stop: int) -> MerkleTree:
        tree = self._trees.get((first, stop))
        if tree is None:
            tree = self._trees[first, stop] = MerkleTree(self._roots_of(range(first, stop)))
        return tree

    def _roots_of(self, cells: range) -> list[bytes]:
        for cell in cells:
            if cell not in self._roots:
                self._roots[cell] = cell_root(self._payloads[cell])
        return [self._roots[cell] for cell in cells]
