"""Blocks of a run's text on the disk: a folder of them, or a whole token store that is read only.

    text/<root>/block-0000042.bin    the bytes of the block, then its proof, node behind node

A block is checked each time it is read, before it is given on: what a disk has made of it is not
its taker's affair. So nothing is synced, and a torn file is a block that is not here.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from protocol import limits
from protocol.errors import CorpusError, ProofError
from protocol.serving_text.text_shape import DigestTree, TextShape
from protocol.wire import DIGEST_BYTES
from training.files.durable import WRITING

_NAME = re.compile(r"block-(\d{7})\.bin")

StoredBlock = tuple[bytes, bytes]
"""The bytes of a block, and the nodes of its proof behind one another."""


class BlockStore(Protocol):
    """SEAM: where blocks lie. Every method may wait for the disk: call it in a thread."""

    def held(self) -> Iterable[int]:
        """The blocks that are here, checked or not."""
        ...

    def read(self, number: int) -> StoredBlock | None:
        """A block that leads to the root; None if it is not here, or not any more."""
        ...

    def write(self, number: int, block: StoredBlock) -> None:
        """Keep a block, which was checked. Raises OSError."""
        ...

    def drop(self, number: int) -> None:
        """Remove a block. Raises OSError."""
        ...


def proof_nodes(proof: bytes) -> tuple[bytes, ...]:
    """The nodes of a proof, which is whole digests."""
    return tuple(proof[at : at + DIGEST_BYTES] for at in range(0, len(proof), DIGEST_BYTES))


class BlockFolder:
    """A BlockStore of a file for each block, in a folder of its own."""

    def __init__(self, folder: Path, shape: TextShape) -> None:
        """Makes the folder; what was being written when the process ended is removed."""
        self._folder, self._shape = folder, shape
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(f"{WRITING}*"):
            path.unlink(missing_ok=True)

    def path(self, number: int) -> Path:
        """Where a block lies, if it is here."""
        return self._folder / f"block-{number:07d}.bin"

    def held(self) -> list[int]:
        """See BlockStore; files of other names or numbers are none."""
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        numbers = sorted(int(name.group(1)) for name in found if name is not None)
        return [number for number in numbers if number < self._shape.num_blocks]

    def read(self, number: int) -> StoredBlock | None:
        """See BlockStore. A file that holds something else is removed."""
        size = self._shape.block_bytes
        try:
            with self.path(number).open("rb") as file:
                data = file.read(size + DIGEST_BYTES * limits.PROOF_NODES_MAX)
        except OSError:
            return None
        payload, proof = data[:size], data[size:]
        try:
            self._shape.check(number, payload, proof_nodes(proof))
        except ProofError:
            with suppress(OSError):
                self.drop(number)
            return None
        return payload, proof

    def write(self, number: int, block: StoredBlock) -> None:
        """See BlockStore. The file is whole or not there."""
        path = self.path(number)
        writing = path.with_name(WRITING + path.name)
        try:
            with writing.open("wb") as file:
                file.writelines(block)
            writing.replace(path)
        except OSError:
            with suppress(OSError):
                writing.unlink(missing_ok=True)
            raise

    def drop(self, number: int) -> None:
        """See BlockStore."""
        self.path(number).unlink(missing_ok=True)


class WholeText:
    """A BlockStore over a text that is all here, as its founder has it. It is only read."""

    def __init__(
        self, shape: TextShape, digests: bytes, read_block: Callable[[int], bytes]
    ) -> None:
        """`digests` of all blocks lie behind one another; `read_block` raises CorpusError for a
        block that was changed. Raises CorpusError if the digests do not lead to the root."""
        self._tree, self._shape, self._read_block = DigestTree(digests), shape, read_block
        if self._tree.root != shape.root:
            raise CorpusError("the digests of the blocks do not lead to the root of the text")

    def held(self) -> Iterable[int]:
        """All of them."""
        return range(self._shape.num_blocks)

    def read(self, number: int) -> StoredBlock | None:
        """See BlockStore."""
        try:
            payload = self._read_block(number)
        except CorpusError:
            return None
        return payload, b"".join(self._tree.proof(number))

    def write(self, number: int, block: StoredBlock) -> None:
        """All is here already."""

    def drop(self, number: int) -> None:
        """What somebody packed is not removed: there is always room for it."""
