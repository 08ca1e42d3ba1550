"""What a node holds of the state that it fetches: each cell checked, kept over a restart.

Synchronous, without a network; `node.plane.bulk_streams` calls it from worker threads, the
simulator inline. Whom to ask for what is decided in `protocol.catching_up.cell_fetch`.

Cells that are the same as in another state are known from proofs: each names the roots of the
subtrees beside its way to the sealed root, and what has such a root here need not be fetched.
"""

import logging
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from node.holdings.journal import Journal
from node.holdings.shard_store import Item, ShardStore, State, Vector
from protocol import limits
from protocol.errors import BarnraiseError, DecodeError, ProofError, StateError
from protocol.frames import Bulk, BulkHeader
from protocol.grid import StateTree, cell_root
from protocol.messages import SealCertificate
from training.files.durable import SYSTEM_FILES, Files, OpenFile

# Partial cells ------------------------------------------------------------------------------------
#
# Cells of a state that is being fetched, on the disk: a restart goes on with them.
#
#     fetch.cells    the seal, then cell after cell with its proof
#
# A cache, and no more: nothing is synced, what a crash tears is cut off, what is read is checked
# against the sealed root like anything that a peer sends. A disk that takes no more costs the
# restart its gain, and nothing else. There is at most one cell of each number in it.

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


logger = logging.getLogger(__name__)


# Gathered -----------------------------------------------------------------------------------------


class WrongStep(BarnraiseError):
    """The result that was fetched for a round does not lead to the state that was sealed."""

    def __init__(self, subject: bytes) -> None:
        super().__init__("a result does not lead to the sealed state")
        self.subject = subject


@dataclass(slots=True)
class _GatheredRound:
    """A sealed round on the way; `cells` of its result by number."""

    certificate: SealCertificate
    cells: dict[int, bytes] = field(default_factory=dict)


class Gathered:
    """At most one state at a time; forgets it once it is taken.

    Its methods block: one call at a time, from threads or inline.
    """

    def __init__(self, store: ShardStore, journal: Journal, partial: PartialCells) -> None:
        self._store = store
        self._journal = journal
        self._partial = partial
        self.certificate: SealCertificate | None = None
        """The seal whose state is gathered."""
        self._cells: dict[int, bytes] = {}
        self._vectors: list[Vector] = []
        """Those of the state that is gathered: its cells lie there, and nowhere else."""
        self._old: list[tuple[StateTree, Callable[[int], bytes]]] = []
        """States of which all or some cells are here, which may be the same in the new one."""
        self._steps: list[_GatheredRound] = []
        self._stepped: State | None = None

    # Begin --------------------------------------------------------------------------------------

    def expect_state(self, certificate: SealCertificate) -> Mapping[bytes, Collection[int]]:
        """Gather the state of this seal. What of it is here already, by subject."""
        root, subject = certificate.value.root, certificate.value.digest
        # Where the steps to it were gathered, none of its cells has a place yet.
        gathered = self.certificate if self._stepped is None else None
        is_same = gathered is not None and gathered.value.root == root
        self._steps, self._stepped = [], None
        if not is_same:
            self._begin(certificate)
        self.certificate = certificate
        return {subject: tuple(self._cells)}

    def _begin(self, certificate: SealCertificate) -> None:
        root, count = certificate.value.root, self._store.num_state_cells
        items = [] if self._cells else self._read_partial()
        old = self._cells or {item.index: item.payload for item in items}
        self._cells, self._old = {}, [self._as_old_state()]
        self._vectors = self._store.blank_vectors()
        is_resumed = bool(items) and self._partial.root == root
        if old and not is_resumed:
            self._old.append(self._as_old_cells(old))
        self._partial.begin(certificate, num_kept=len(items) if is_resumed else 0)
        for item in items if is_resumed else ():
            self._place(item.index, item.payload)
            self._same_beside(item)
        del items
        for tree, cell in self._old:
            if tree.root == root:
                self._take(range(count), cell)

    def _read_partial(self) -> list[Item]:
        """The cells in the file, as far as they are of the state that it is of."""
        items = []
        for item in self._partial.read(self._store.num_state_cells):
            try:
                self._store.check_state_cell(self._partial.root, item)
            except ProofError as error:
                logger.warning("fetched cells cut off cell=%d reason=%s", item.index, error)
                break
            items.append(item)
        return items

    def _as_old_state(self) -> tuple[StateTree, Callable[[int], bytes]]:
        state, store = self._store.state, self._store
        return state.tree, lambda index: store.state_cell(state, index)

    def _as_old_cells(self, cells: Mapping[int, bytes]) -> tuple[StateTree, Callable[[int], bytes]]:
        indices = iter(range(self._store.num_state_cells))
        roots = [
            [
                cell_root(cells[index]) if index in cells else None
                for index in islice(indices, count)
            ]
            for count in self._store.state_counts
        ]
        return StateTree(roots), lambda index: cells[index]

    def expect_steps(
        self, certificates: Sequence[SealCertificate]
    ) -> Mapping[bytes, Collection[int]]:
        """Gather the results of these rounds, which follow upon the own state, in their order."""
        self._steps = [_GatheredRound(certificate) for certificate in certificates]
        self.certificate, self._stepped = certificates[-1], self._store.final
        held: dict[bytes, Collection[int]] = {}
        for step in self._steps:
            value = step.certificate.value
            sizes = self._store.result_sizes(self._store.layout.fragment_of(value.round))
            data = self._journal.results(value.round).get(value.list_digest, b"")
            if value.commits and len(data) == sum(sizes):
                step.cells = dict(enumerate(split(data, sizes)))
                held[value.digest] = tuple(step.cells)
        return held

    # Cells --------------------------------------------------------------------------------------

    @property
    def subject(self) -> bytes:
        """Its digest; empty if there is none."""
        return self.certificate.value.digest if self.certificate else b""

    @property
    def is_whole(self) -> bool:
        """Whether all cells of the wanted state are here, or all steps to it are taken."""
        if self.certificate is None:
            return False
        if self._stepped is not None:
            return not self._steps
        return len(self._cells) == self._store.num_state_cells

    def takes(self, header: BulkHeader) -> bool:
        """Whether cells of that subject are gathered at present."""
        if header.bulk is Bulk.STATE:
            return self._stepped is None and header.subject == self.subject
        values = (step.certificate.value for step in self._steps)
        return any((one.digest, one.round) == (header.subject, header.round) for one in values)

    def take(self, header: BulkHeader, item: Item) -> tuple[int, ...]:
        """Check a cell and keep it. Which cells are here now that were not before.

        Raises ProofError where it is not of the sealed state. The cell of a step has no proof: that
        shows when the step is taken.
        """
        if not self.takes(header):
            return ()
        if header.bulk is Bulk.STEP:
            step = next(s for s in self._steps if s.certificate.value.digest == header.subject)
            step.cells[item.index] = item.payload
            return (item.index,)
        assert self.certificate is not None
        self._store.check_state_cell(self.certificate.value.root, item)
        if item.index in self._cells:
            return ()
        self._place(item.index, item.payload)
        self._partial.keep(item)
        return (item.index, *self._same_beside(item))

    def _same_beside(self, item: Item) -> tuple[int, ...]:
        """Cells of older states that the proof of this one shows to be in the new one as well."""
        found: list[int] = []
        for tree, cell in self._old:
            for root, (indices, node) in zip(item.proof, tree.beside(item.index), strict=True):
                if node == root:
                    found += self._take(indices, cell)
        return tuple(found)

    def _take(self, indices: range, cell: Callable[[int], bytes]) -> list[int]:
        fresh = [index for index in indices if index not in self._cells]
        for index in fresh:
            self._place(index, cell(index))
        return fresh

    def _place(self, index: int, payload: bytes) -> None:
        self._cells[index] = self._store.place_cell(self._vectors, index, payload)

    # The end ------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take all steps whose results are whole. Raises WrongStep: its cells are forgotten."""
        while self._steps and self._stepped is not None:
            step = self._steps[0]
            value = step.certificate.value
            count = self._store.layout.num_cells(self._store.layout.fragment_of(value.round))
            if value.commits and len(step.cells) < count:
                return
            state = self._stepped
            if value.commits:
                cells = [step.cells[cell] for cell in range(count)]
                try:
                    state = self._store.stepped(state, cells, round_index=value.round)
                except DecodeError as error:
                    step.cells.clear()
                    raise WrongStep(value.digest) from error
                if state.root == value.root:
                    # For a restart before the end, and for those who come later than this node.
                    self._journal.keep_result(value.round, value.list_digest, cells)
            if state.root != value.root:
                step.cells.clear()
                raise WrongStep(value.digest)
            self._stepped = state
            self._steps.pop(0)

    def state(self) -> State:
        """The whole state. Raises StateError unless it has the sealed root."""
        assert self.certificate is not None
        if self._stepped is not None:
            if self._steps:
                raise StateError("not all steps are taken")
            return self._stepped
        if not self.is_whole:
            raise StateError("state cells are missing")
        return self._store.assemble(self.certificate.value.root, self._vectors)

    def forget(self) -> None:
        """The state is in place and on the disk, or of no use."""
        self.certificate, self._stepped = None, None
        self._cells, self._vectors, self._old, self._steps = {}, [], [], []
        self._partial.clear()


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cells that stand behind one another."""
    cells, position = [], 0
    for size in sizes:
        cells.append(data[position : position + size])
        position += size
    return cells
