"""The encoded result of one LIST, as far as it is here, and the roots of its cells."""

from collections.abc import Iterable, Iterator

from protocol.grid import MerkleTree, cell_root


class ResultCells:
    """Cells by number. Every cell is hashed once, however often it is sent."""

    def __init__(self, cells: Iterable[bytes] = ()) -> None:
        """Begins with these cells, the first of the grid."""
        self._payloads = dict(enumerate(cells))
        self._roots: dict[int, bytes] = {}
        self._trees: dict[tuple[int, int], MerkleTree] = {}

    def __len__(self) -> int:
        return len(self._payloads)

    def __getitem__(self, cell: int) -> bytes:
        return self._payloads[cell]

    def get(self, cell: int) -> bytes | None:
        """The bytes of a cell; None while it is not here."""
        return self._payloads.get(cell)

    def put(self, cell: int, payload: bytes, root: bytes) -> None:
        """Keep a cell that has this root; it replaces another one."""
        if self._roots.get(cell) != root:
            self._trees.clear()
        self._payloads[cell], self._roots[cell] = payload, root

    def proofs(self, first: int, stop: int) -> Iterator[tuple[int, bytes, tuple[bytes, ...]]]:
        """Cells [first, stop), their bytes and proofs in the tree over them; none if one lacks."""
        if any(cell not in self._payloads for cell in range(first, stop)):
            return
        tree = self._tree(first, stop)
        for cell in range(first, stop):
            yield cell, self._payloads[cell], tree.proof(cell - first)

    def root(self, first: int, stop: int) -> bytes:
        """Merkle root over the roots of cells [first, stop), which are here."""
        root = self._tree(first, stop).root
        assert root is not None
        return root

    def _tree(self, first: int, stop: int) -> MerkleTree:
        tree = self._trees.get((first, stop))
        if tree is None:
            for cell in range(first, stop):
                if cell not in self._roots:
                    self._roots[cell] = cell_root(self._payloads[cell])
            tree = MerkleTree([self._roots[cell] for cell in range(first, stop)])
            self._trees[first, stop] = tree
        return tree
