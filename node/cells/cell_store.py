"""The bytes of one shard: anchor and outer slots, and the parts and results of rounds in flight.

Plain synchronous arithmetic on numpy arrays. The node calls it from worker threads, the simulator
inline; both run this very code. Nothing here is believed before it is checked against a root.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from node.cells.cell_memory import CellMemory
from node.cells.outer_step import OuterStepping
from node.cells.result_cells import ReadBack, ResultCells
from node.cells.state_store import StateStore
from node.cells.states import Item, State, StateRoots, Vector
from node.events import ListEntry
from protocol import limits
from protocol.errors import StateError
from protocol.grid import (
    MerkleTree,
    cell_root,
    check_merkle_proof,
)
from protocol.manifest import RunManifest
from training.aggregation import AGGREGATORS, Floats, coefficients_of
from training.arithmetic import squared_norm
from training.compression import (
    Codec,
    adder_of,
    admits,
    check_payload,
    decode_into,
    decode_to_read,
    encode_to_read,
    make_codec,
)
from training.gram import wire_form

Entries = Sequence[tuple[ListEntry, bytes]]
"""Listed contributions, each with its root."""

FindFile = Callable[[int, bytes], ReadBack | None]

ROUNDS_KEPT = 1
"""So many sealed rounds' contributions, results and states before them stay, for those who are a
round behind: nobody can ask for those of an older round (`RoundState.views`)."""


@dataclass(frozen=True, slots=True)
class Step:
    """An outer step: from which state, in which round, and whether on nothing at all."""

    base: bytes
    round: int
    is_empty: bool


Ahead = tuple[bytes, Step, OuterStepping]


class CellStore(StateStore):
    """What one node holds of one shard.

    Parts and results are of the cells of one fragment, which the caller names.
    """

    def __init__(self, manifest: RunManifest, shard: int, anchor_N: Vector) -> None:
        super().__init__(manifest, shard, anchor_N)
        self._codec = make_codec(manifest.outer)
        self.aggregator = AGGREGATORS[manifest.outer.aggregator](
            cell_elements=manifest.cell_elements
        )
        """The rule of the run."""
        self.memory = CellMemory()
        """Where parts and results lie, but for the own contribution."""
        self._parts: dict[bytes, dict[int, Item]] = {}
        self._squares: tuple[object, dict[int, Floats]] = (), {}
        self._results: dict[bytes, ResultCells] = {}
        self._candidates: dict[bytes, State | StateRoots] = {}
        self._ahead: Ahead | None = None
        """By LIST: the outer step that is taken while its result is still coming."""
        self._stepped: dict[bytes, Step] = {}
        """By LIST: the outer steps that were taken on the results which are here."""
        self._kept: list[tuple[set[bytes], set[bytes]]] = []
        self._kept_parts: list[set[bytes]] = []
        self.lag = manifest.outer.overlap
        """L of R1: how many rounds may be in flight (R5)."""
        self._early: set[bytes] = set()
        """LISTs of no sealed round when the last one was adopted, of which there are results: they
        may be of the round that is under way beside it (R5)."""
        self.find_file: FindFile = lambda _, __: None
        """Where results lie on the disk, by round and LIST, once they are durable."""
        self._pinned: set[bytes] = set()
        """Parts of the round that is final next, while a branch goes on behind it."""

    def replace_state(self, state: State) -> None:
        """Go on from a synchronised state; forgets parts and results."""
        self.state = self.final = state
        self._states = {state.root: state}
        self._parts.clear()
        self._results.clear()
        self._stepped.clear()
        self._candidates.clear()
        self._ahead = None
        self._kept.clear()
        self._kept_parts.clear()
        self._pinned.clear()

    # Cells --------------------------------------------------------------------------------------

    def part_bytes(self, cell: int, *, fragment: int = 0) -> int:
        """Size of a part of `cell`, exact but for codecs that may send less."""
        return self._codec.payload_bytes(self.layout.cell_numel(fragment, cell))

    def result_bytes(self, cell: int, *, fragment: int = 0) -> int:
        """Exact size of the encoded result of `cell`."""
        return self._result_codec.payload_bytes(self.layout.cell_numel(fragment, cell))

    def result_sizes(self, fragment: int) -> list[int]:
        """Exact sizes of all cells of an encoded result."""
        cells = range(self.layout.num_cells(fragment))
        return [self.result_bytes(cell, fragment=fragment) for cell in cells]

    def put_part(self, root: bytes, item: Item, *, fragment: int = 0) -> None:
        """Keep a part of the contribution with that root.

        Raises ProofError for other bytes and DecodeError for bytes that decode to no finite cell:
        such a contribution is never complete, so it is never listed.
        """
        node, count = cell_root(item.payload), self.layout.num_cells(fragment)
        check_merkle_proof(root, node, item.proof, index=item.index, count=count)
        self._check(self._codec, item.payload, self.layout.cell_numel(fragment, item.index))
        self._parts.setdefault(root, {})[item.index] = item

    def put_result(
        self,
        digest: bytes,
        root: bytes,
        item: Item,
        *,
        first: int,
        stop: int,
        fragment: int = 0,
    ) -> None:
        """Keep a result cell of the LIST `digest`; `root` is the AGG's over [first, stop).

        Raises ProofError and DecodeError as `put_part` does.
        """
        node = cell_root(item.payload)
        check_merkle_proof(root, node, item.proof, index=item.index - first, count=stop - first)
        numel = self.layout.cell_numel(fragment, item.index)
        self._check(self._result_codec, item.payload, numel)
        self._results_of(digest).put(item.index, item.payload, node)

    def forget_parts(self, roots: Iterable[bytes]) -> None:
        """Let go of contributions that nobody needs any more."""
        for root in roots:
            self._parts.pop(root, None)

    def parts(self, root: bytes, cells: Iterable[int]) -> list[Item]:
        """Those of the cells that are here, of the own contribution or another's."""
        held = self._parts.get(root, {})
        return [held[cell] for cell in cells if cell in held]

    def results(self, digest: bytes, *, first: int, stop: int) -> list[Item]:
        """All result cells of a slice, or none while one of them is not here."""
        held = self._results.get(digest)
        return [Item(*found) for found in held.proofs(first, stop)] if held else []

    def result(self, digest: bytes, cell: int, *, first: int, stop: int) -> Item:
        """One of `results`. Raises StateError if it is not here, or not what it was."""
        held = self._results.get(digest)
        found = held.proved(cell, first, stop) if held else None
        if found is None:
            raise StateError(f"cell {cell} of a result is gone")
        return Item(*found)

    def result_cells(self, digest: bytes) -> list[bytes]:
        """The encoded result of a LIST, all cells of it; asked when it is whole."""
        held = self._results.get(digest)
        return held.whole() if held else []

    def result_roots(self, digest: bytes) -> list[bytes]:
        """The roots of `result_cells`; asked when it is whole."""
        held = self._results.get(digest)
        return held.roots() if held else []

    def whole_result(self, digest: bytes, *, fragment: int = 0) -> list[bytes]:
        """As `result_cells`; none while a cell of it is not here."""
        held = self._results.get(digest)
        is_whole = held and len(held) == self.layout.num_cells(fragment)
        return self.result_cells(digest) if is_whole else []

    def restore_result(self, digest: bytes, data: bytes, *, fragment: int = 0) -> None:
        """Take back what `result_cells` gave, its cells behind one another.

        Raises StateError for another size and DecodeError for bytes that are no result.
        """
        sizes = self.result_sizes(fragment)
        if len(data) != sum(sizes):
            raise StateError(f"a stored result has {len(data)} bytes of {sum(sizes)}")
        cells, position = [], 0
        for cell, size in enumerate(sizes):
            cells.append(data[position : position + size])
            numel = self.layout.cell_numel(fragment, cell)
            self._check(self._result_codec, cells[cell], numel)
            position += size
        self._results[digest] = ResultCells(cells)

    def _results_of(self, digest: bytes) -> ResultCells:
        return self._results.setdefault(digest, ResultCells())

    # Arithmetic ---------------------------------------------------------------------------------

    def contribute(
        self, payloads: Sequence[bytes], *, fragment: int = 0
    ) -> tuple[bytes, tuple[float, ...]]:
        """Keep the own contribution; its root and the norms of its decoded cells.

        Raises StateError if the trainer sent something else than one payload per cell.
        """
        numels = self.layout.cell_numels[fragment]
        fits = all(
            admits(self._codec, len(one), n) for one, n in zip(payloads, numels, strict=False)
        )
        if len(payloads) != len(numels) or not fits:
            raise StateError("the trainer's contribution does not fit the grid")
        norms: list[float] = []
        roots = []
        for payload, numel in zip(payloads, numels, strict=True):
            norms.append(self._norm(payload, numel))
            roots.append(cell_root(payload))  # Now, while it is in the cache.
        if max(norms) > limits.CELL_NORM_MAX:
            raise StateError(f"training diverged: a cell of the contribution has norm {max(norms)}")
        tree = MerkleTree(roots)
        root = tree.root
        assert root is not None
        self._parts[root] = {
            cell: Item(cell, payload, tree.proof(cell)) for cell, payload in enumerate(payloads)
        }
        return root, tuple(norms)

    def _norm(self, payload: bytes, numel: int) -> float:
        """L2 norm of what a payload decodes to. Raises DecodeError."""
        adder = adder_of(self._codec)
        squares = adder.squared_norm(payload, numel) if adder else None
        if squares is None:
            squares = squared_norm(self._decoded(self._codec, payload, numel))
        return math.sqrt(squares)

    def decode(self, payloads: Sequence[bytes], *, fragment: int = 0) -> Vector:
        """The vector of the fragment that the payloads of a whole contribution stand for."""
        return np.concatenate(
            [
                self._decoded(self._codec, payload, self.layout.cell_numel(fragment, cell))
                for cell, payload in enumerate(payloads)
            ]
        )

    def encode(self, vector_N: Vector, *, fragment: int = 0) -> list[bytes]:
        """The payloads of a whole contribution; `vector_N` is of the fragment."""
        layout = self.layout
        spans = [layout.cell_range(fragment, cell) for cell in range(layout.num_cells(fragment))]
        return [self._codec.encode(vector_N[start:stop]) for start, stop in spans]

    def measure(self, entries: Entries, *, first: int, stop: int, fragment: int = 0) -> bytes:
        """What the rule asks of cells [first, stop) to judge whole vectors, in its wire form."""
        squares, stats = self._squares_of(entries, fragment), []
        rows_PN = self._blank_rows(entries)
        for cell in range(first, stop):
            cell_PN = rows_PN[:, : self.layout.cell_numel(fragment, cell)]
            found = self.aggregator.measure(self._decode_rows(entries, cell, cell_PN))
            stats.append(found.stats)
            if found.squares_CP is not None:
                squares[cell] = found.squares_CP
        return wire_form(sum(stats[1:], stats[0]), len(entries))

    def reduce(
        self,
        digest: bytes,
        entries: Entries,
        *,
        first: int,
        stop: int,
        fragment: int = 0,
        grams: Sequence[bytes] = (),
    ) -> bytes:
        """Sum cells [first, stop); keep the encoded result; the root over its cell roots.

        `entries` are in ascending order of sender: the order of the rows, and so of the additions.
        `grams` is what `measure` found in all slices, if the rule uses that. It may be made up, by
        two reducers of one slice: where it leads to no factors the result is zero.
        """
        weights_P = np.array([float(entry.weight) for entry, _ in entries])
        held, factors = self._results_of(digest), coefficients_of(self.aggregator, grams, weights_P)
        for cell, sum_N in self._sums(entries, factors, first, stop, fragment):
            payload = self.memory.copied(encode_to_read(self._result_codec, sum_N))
            held.put(cell, payload, cell_root(payload))
        return held.root(first, stop)

    def _sums(
        self, entries: Entries, factors: Vector, first: int, stop: int, fragment: int
    ) -> Iterator[tuple[int, Vector]]:
        """Cell by cell what the rule makes of the parts."""
        rule, adder, rows_PN = self.aggregator, adder_of(self._codec), self._blank_rows(entries)
        squares = self._squares_of(entries, fragment)
        for cell in range(first, stop):
            numel, known, sum_N = self.layout.cell_numel(fragment, cell), squares.get(cell), None
            if adder and (factors_P := rule.row_factors(factors, known)) is not None:
                sum_N = adder.weighted_sum(self._payloads(entries, cell), factors_P, numel)
            if sum_N is None:
                cell_PN = self._decode_rows(entries, cell, rows_PN[:, :numel])
                sum_N = rule.combine_measured(cell_PN, factors, known)
            yield cell, sum_N

    def _squares_of(self, entries: Entries, fragment: int) -> dict[int, Floats]:
        """By cell the squared norms (1, P) that were measured in these very contributions: a pass
        that `reduce` is spared. Only those of the last list are kept."""
        key = fragment, *(root for _, root in entries)
        kept = self._squares
        if kept[0] != key:
            # Looked at once and replaced whole: another thread may be about another list.
            kept = self._squares = key, {}
        return kept[1]

    def _payloads(self, entries: Entries, cell: int) -> list[bytes]:
        return [self._parts[root][cell].payload for _, root in entries]

    def _blank_rows(self, entries: Entries) -> Vector:
        """For one cell after the other: what is written is in the cache, and no page is new."""
        return np.empty((len(entries), self.layout.cell_elements), dtype=np.float32)

    def _decode_rows(self, entries: Entries, cell: int, out_PN: Vector) -> Vector:
        """The parts of a cell, in the memory that is given."""
        for payload, row_N in zip(self._payloads(entries, cell), out_PN, strict=True):
            self._decode_part(payload, row_N)
        return out_PN

    def _decode_part(self, payload: bytes, row_N: Vector) -> None:
        """SEAM: write the numbers of a checked part; a simulated world decodes each once."""
        decode_into(self._codec, payload, row_N)

    def _check(self, codec: Codec, payload: bytes, numel: int) -> None:
        """SEAM: raise DecodeError for what is no cell; a simulated world decodes it here."""
        check_payload(codec, payload, numel)

    def _decoded(
        self, codec: Codec, payload: bytes, numel: int, *, is_checked: bool = False
    ) -> Vector:
        """SEAM: the numbers of a cell, to be read only; a simulated world decodes each once."""
        return decode_to_read(codec, payload, numel, is_checked=is_checked)
