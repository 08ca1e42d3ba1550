"""Cells of a state that is being fetched, on the disk: a restart goes on with them.

    fetch.cells    the seal, then cell after cell with its proof

A cache, and no more: nothing is synced, what a crash tears is cut off, what is read is checked
against the sealed root like anything that a peer sends. A disk that takes no more costs the
restart its gain, and nothing else. There is at most one cell of each number in it.
"""

import logging
import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from node.holdings.shard_store import Item
from protocol import limits
from protocol.messages import SealCertificate
from training.files.durable import SYSTEM_FILES, Files, OpenFile

logger = logging.getLogger(__name__)

FETCH_FILE = "fetch.cells"

_HEAD = struct.Struct(">4sQ32s32s")
_MARK = b"brf1"
_CELL = struct.Struct(">IIB")
_DIGEST_BYTES = 32


class PartialCells:
    """The file of one run's shard. `seal`, `round` and `root` are empty while there is none."""

    def __init__(self, folder: Path, files: Files = SYSTEM_FILES) -> None:
        self._path = folder / FETCH_FILE
        self._files = files
        self._file: OpenFile | None = None
        self.round, self.seal, self.root = 0, b"", b""
        self.num_bytes = 0
        """Of cells, as it was when it was opened."""
        try:
            if files.exists(self._path):
                self._read_head()
        except OSError as error:
            logger.warning("fetched cells not read reason=%s", error)

    @property
    def begun(self) -> tuple[bytes, int]:
        """The seal, and how many bytes of its state were there when the file was opened."""
        return self.seal, self.num_bytes

    def _read_head(self) -> None:
        head = self._files.content(self._path, 0, _HEAD.size)
        if len(head) == _HEAD.size and head[: len(_MARK)] == _MARK:
            _, self.round, self.seal, self.root = _HEAD.unpack(head)
            self.num_bytes = sum(length for _, length, _ in self._places())

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Where cells may stand: start, bytes of the cell, nodes of its proof."""
        start = _HEAD.size
        while True:
            data = self._files.content(self._path, start, _CELL.size)
            if len(data) < _CELL.size:
                return
            _, length, num_nodes = _CELL.unpack(data)
            if length > limits.CHUNK_BYTES:
                return
            yield start, length, num_nodes
            start += _CELL.size + num_nodes * _DIGEST_BYTES + length

    def read(self, count_max: int) -> Iterator[Item]:
        """The cells, up to the first that is not whole. Nothing of them is checked."""
        if not self.root:
            return
        try:
            for number, (start, length, num_nodes) in enumerate(self._places()):
                if number >= count_max:
                    return
                size = _CELL.size + num_nodes * _DIGEST_BYTES + length
                data = self._files.content(self._path, start, size)
                if len(data) < size:
                    return
                index, _, _ = _CELL.unpack(data[: _CELL.size])
                nodes = data[_CELL.size : size - length]
                proof = tuple(
                    nodes[at : at + _DIGEST_BYTES] for at in range(0, len(nodes), _DIGEST_BYTES)
                )
                yield Item(index, data[size - length :], proof)
        except OSError as error:
            logger.warning("fetched cells not read reason=%s", error)

    def begin(self, certificate: SealCertificate, *, num_kept: int) -> None:
        """Cells of this seal's state come now; the first `num_kept` in the file are its too."""
        value = certificate.value
        self.close()
        try:
            if num_kept:
                end = _HEAD.size
                for start, length, num_nodes in islice(self._places(), num_kept):
                    end = start + _CELL.size + num_nodes * _DIGEST_BYTES + length
                self._file = self._files.append(self._path)
                self._file.truncate(end)  # What is torn, or was no cell of it.
                return
            self._file = self._files.create(self._path)
            self._file.write(_HEAD.pack(_MARK, value.round, value.digest, value.root))
            self.round, self.seal, self.root = value.round, value.digest, value.root
        except OSError as error:
            self._give_up(error)

    def keep(self, item: Item) -> None:
        """Add a cell that was checked."""
        if self._file is None:
            return
        head = _CELL.pack(item.index, len(item.payload), len(item.proof))
        try:
            self._file.write(b"".join((head, *item.proof, item.payload)))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning("fetched cells not kept reason=%s", error)
        self.clear()

    def clear(self) -> None:
        """There is nothing to go on with."""
        self.close()
        self.round, self.seal, self.root = 0, b"", b""
        try:
            if self._files.exists(self._path):
                self._files.unlink(self._path)
        except OSError as error:
            logger.warning("fetched cells not removed reason=%s", error)

    def close(self) -> None:
        """Take no more cells; what is there stays."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
