"""The bytes of one shard: anchor and outer slots, and the parts and results of rounds in flight.

Plain synchronous arithmetic on numpy arrays. The node calls it from worker threads, the simulator
inline; both run this very code. Nothing here is believed before it is checked against a root.

A state's vectors are of the whole shard, a round is about one fragment of it (R5). A state cell is
one cell of the anchor or of one outer slot, as little-endian float32; of n cells of a fragment cell
i of vector v is number v * n + i, the anchor being vector 0, behind those of the fragments before.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from threading import RLock

import numpy as np
from blake3 import blake3

from node.holdings.states import (
    NO_STATE,
    CellMemory,
    OuterStepping,
    ReadBack,
    ResultCells,
    StepRules,
    finished,
    foreseen,
    make_state,
    step_over,
    wire_view,
)
from node.holdings.states import Item as Item
from node.holdings.states import State as State
from node.holdings.states import StateRoots as StateRoots
from node.holdings.states import Vector as Vector
from protocol import limits
from protocol.errors import ProofError, StateError
from protocol.events import ListEntry
from protocol.grid import CellSizes as CellSizes
from protocol.grid import (
    MerkleTree,
    cell_root,
    check_merkle_proof,
    check_state_proof,
    state_place,
)
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from training.aggregation import AGGREGATORS, Floats, coefficients_of
from training.compression import (
    Codec,
    adder_of,
    admits,
    check_payload,
    decode_into,
    decode_to_read,
    encode_to_read,
    make_codec,
    result_codec,
)
from training.numeric.arithmetic import squared_norm
from training.numeric.gram import wire_form
from training.numeric.memory import SpareVectors, VectorSource, untouched_zeros
from training.outer.optimizers import make_outer

STEP_OVER_BYTES_MIN = 32 << 20
"""A state from this size on is stepped twice and held once; a smaller one the other way round."""


Entries = Sequence[tuple[ListEntry, bytes]]
"""Listed contributions, each with its root."""

FindFile = Callable[[int, bytes], ReadBack | None]

ROUNDS_KEPT = 1
"""So many sealed rounds' contributions, results and states before them stay, for those who are a
round behind: nobody can ask for those of an older round (`RoundMachine.views`)."""


@dataclass(frozen=True, slots=True)
class Step:
    """An outer step: from which state, in which round, and whether on nothing at all."""

    base: bytes
    round: int
    is_empty: bool


Ahead = tuple[bytes, Step, OuterStepping]


class ShardStore:
    """What one node holds of one shard: its state and others that somebody may ask for, the parts
    and results of rounds in flight, and the outer steps on them.

    Parts and results are of the cells of one fragment, which the caller names.
    """

    def __init__(self, manifest: RunManifest, shard: int, anchor_N: Vector) -> None:
        self.layout = manifest.layout(shard)
        self._outer = make_outer(manifest.outer)
        num_vectors = 1 + len(self._outer.slots)
        self.state_counts = tuple(num_vectors * count for count in self.layout.fragment_cells)
        """State cells of each fragment."""
        self._result_codec = result_codec(manifest.outer)
        # One state: that which the step before replaced.
        anchors = SpareVectors(len(anchor_N), most=1)
        spare = SpareVectors(len(anchor_N), most=len(self._outer.slots))
        self._own_anchors = anchors
        self._step_rules = StepRules(
            self.layout, self._outer, self._result_codec, anchors=anchors, spare=spare
        )
        self._whole = RLock()
        """Held while there is no whole state, because one is made of the other."""
        slots = {name: untouched_zeros(len(anchor_N)) for name in self._outer.slots}
        self._state: State = self.make_state(anchor_N, slots)
        self._final: State = self._state
        self._states: dict[bytes, State] = {self._state.root: self._state}
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

    # States -------------------------------------------------------------------------------------

    @property
    def slot_names(self) -> tuple[str, ...]:
        """The outer optimizer's slots."""
        return tuple(self._outer.slots)

    @property
    def state(self) -> State:
        """What the round under way steps on. Who keeps it for longer than that costs a copy."""
        with self._whole:
            return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state

    @property
    def final(self) -> State:
        """The last final state: `state` itself, or on a branch (R4) what that one goes back to."""
        with self._whole:
            return self._final

    @final.setter
    def final(self, state: State) -> None:
        self._final = state

    def use_anchors(self, anchors: VectorSource | None) -> tuple[Vector, Vector] | None:
        """Make anchors in memory of this kind from now on, the one that there is too; None: in
        memory of one's own. Returns the anchor that was moved, as it was and as it is."""
        rules = replace(self._step_rules, anchors=anchors or self._own_anchors)
        with self._whole:
            self._step_rules, state = rules, self._state
            if anchors is None or self._final is not state:
                return None
            anchor_N = anchors.take()
            anchor_N[:] = state.anchor_N
            moved = State(anchor_N, state.slots, state.cell_roots, state.root)
            self._state = self._final = self._states[state.root] = moved
            return state.anchor_N, anchor_N

    @property
    def num_state_cells(self) -> int:
        """Cells of the anchor and of every outer slot."""
        return sum(self.state_counts)

    def make_state(self, anchor_N: Vector, slots: Mapping[str, Vector]) -> State:
        """A state with its Merkle root."""
        vectors = [anchor_N, *(slots[name] for name in self._outer.slots)]
        layout = self.layout
        roots = tuple(
            tuple(
                cell_root(wire_view(vector_N[layout.cell_span(fragment, cell)]))
                for vector_N in vectors
                for cell in range(count)
            )
            for fragment, count in enumerate(layout.fragment_cells)
        )
        return make_state(anchor_N, slots, roots)

    def state_place(self, index: int) -> tuple[int, slice]:
        """Of a state cell: the number of its vector, and where it lies in that."""
        fragment, place = state_place(self.state_counts, index)
        vector, cell = divmod(place, self.layout.num_cells(fragment))
        return vector, self.layout.cell_span(fragment, cell)

    def seat_proof(self, peer: PeerId, basis: bytes, root: bytes = b"") -> bytes:
        """BLAKE3 over the whole state, keyed by peer and seal: only a holder can make it.

        `root` is of another state than the one that is worked on; empty if that is not here.
        """
        state = self.state_of(root) if root else self.state
        return b"" if state is None else self._prove(state, peer, basis)

    def _prove(self, state: State, peer: PeerId, basis: bytes) -> bytes:
        hasher = blake3(key=blake3(peer + basis).digest())
        for vector_N in (state.anchor_N, *state.slots.values()):
            hasher.update(wire_view(vector_N))
        return hasher.digest()

    def blank_vectors(self) -> list[Vector]:
        """Memory for the anchor and the slots of a state that is made cell by cell."""
        return [source.take() for source in self._step_rules.sources()]

    def place_cell(self, vectors: Sequence[Vector], index: int, payload: bytes) -> bytes:
        """A verified state cell, copied to where it belongs; what lies there."""
        vector, span = self.state_place(index)
        place_N = vectors[vector][span]
        place_N[:] = np.frombuffer(payload, dtype="<f4")
        return wire_view(place_N).toreadonly()  # type: ignore[return-value]  # read like bytes

    def assemble(self, root: bytes, vectors: Sequence[Vector]) -> State:
        """The state that `place_cell` made of all cells. Raises StateError unless it has `root`."""
        slots = dict(zip(self._outer.slots, vectors[1:], strict=True))
        state = self.make_state(vectors[0], slots)
        if state.root != root:
            raise StateError("the assembled state does not have the sealed root")
        return state

    def state_bytes(self, index: int) -> int:
        """Exact size of a state cell."""
        fragment, place = state_place(self.state_counts, index)
        return 4 * self.layout.cell_numel(fragment, place % self.layout.num_cells(fragment))

    def check_state_cell(self, root: bytes, item: Item) -> None:
        """Raise ProofError unless `item` is a cell of the state with that root."""
        if len(item.payload) != self.state_bytes(item.index):
            raise ProofError(f"state cell {item.index} has {len(item.payload)} bytes")
        node = cell_root(item.payload)
        check_state_proof(root, node, item.proof, index=item.index, counts=self.state_counts)

    def stepping(
        self, state: State, *, round_index: int, keeps: bool = True, is_checked: bool = False
    ) -> OuterStepping:
        """The outer step of a round on a state, to be fed with the encoded result."""
        return OuterStepping(
            self._step_rules,
            state.anchor_N,
            state.slots,
            round_index=round_index,
            keeps=keeps,
            is_checked=is_checked,
        )

    def stepped(self, state: State, cells: Sequence[bytes], *, round_index: int) -> State:
        """What the outer step on the encoded result of a round makes of a state.

        Raises DecodeError for cells that decode to no finite numbers.
        """
        return finished(self.stepping(state, round_index=round_index), state, cells)

    def state_of(self, root: bytes) -> State | None:
        """One of the last states; None if it is gone."""
        with self._whole:
            return self._states.get(root)

    def state_item(self, state: State, index: int) -> Item:
        """A cell of a state, with its proof."""
        return Item(index, self.state_cell(state, index), state.tree.proof(index))

    def state_cell(self, state: State, index: int) -> bytes:
        """The bytes of a cell of a state."""
        vector, span = self.state_place(index)
        vector_N = state.slots[self._outer.slots[vector - 1]] if vector else state.anchor_N
        return bytes(wire_view(vector_N[span]))

    # Parts and results ----------------------------------------------------------------------------

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

    step_over_bytes_min = STEP_OVER_BYTES_MIN

    # Outer steps ----------------------------------------------------------------------------------

    def admits_part(self, num_bytes: int, cell: int, *, fragment: int = 0) -> bool:
        """Whether a part of `cell` may have so many bytes: some codecs send less than the most."""
        return admits(self._codec, num_bytes, self.layout.cell_numel(fragment, cell))

    def _is_stepped_over(self, step: Step) -> bool:
        """Whether of the next state only the roots are made before it is sealed."""
        with self._whole:
            is_alone = self.lag == 1 and self._final is self._state
            is_on_it = is_alone and step.base == self._state.root and not step.is_empty
        num_vectors = 1 + len(self.slot_names)
        return is_on_it and 4 * num_vectors * self.layout.numel >= self.step_over_bytes_min

    def apply(self, digest: bytes, *, is_empty: bool, round_index: int, base: bytes = b"") -> bytes:
        """The outer step on the results of a LIST, as a candidate; the root of its state.

        It is taken on the state of root `base`: the anchor, or on a branch the last final state.
        """
        step = Step(base or self.state.root, round_index, is_empty)
        self._stepped[digest] = step
        candidate: State | StateRoots
        candidate = self._foreseen(digest, step) or self._take(digest, step)
        self._candidates[digest] = candidate
        return candidate.root

    def step_ahead(
        self, digest: bytes, cells: Iterable[int], *, round_index: int, base: bytes
    ) -> None:
        """Take the outer step on cells of a result as they come; `apply` goes on from there.

        At most one step is under way: that of the LIST which was asked for last.
        """
        step = Step(base or self.state.root, round_index, is_empty=False)
        before, held = self._states.get(step.base), self._results.get(digest)
        if held is None or before is None or digest in self._stepped:
            return
        ahead = self._ahead
        if ahead is None or ahead[:2] != (digest, step):
            self._make_room()
            keeps = not self._is_stepped_over(step)
            if not keeps:
                for source in self._step_rules.sources():
                    source.trim()  # That of a state before a fetched one, for instance.
            index = step.round
            stepping = self.stepping(before, round_index=index, keeps=keeps, is_checked=True)
            ahead = self._ahead = digest, step, stepping
        for cell in cells:
            if (payload := held.get(cell)) is not None:
                ahead[2].take(cell, payload)

    def _make_room(self) -> None:
        """The step makes a state: of the round before, whose memory it takes, it is let go of here
        and not when this round is sealed. Who asks for that one now has it from a checkpoint."""
        if self.lag == 1 and self.final is self.state:
            self._states = {self.state.root: self.state}

    def result_of(self, digest: bytes) -> ResultCells | None:
        """The result of a LIST as far as it is here; None of one that nothing is known of."""
        return self._results.get(digest)

    def is_on_disk(self, digest: bytes) -> bool:
        """Whether the result of a LIST is read from a file when it is asked for."""
        held = self._results.get(digest)
        return held is not None and held.is_on_disk

    def results_to_keep(
        self, digest: bytes, cells: Iterable[int], *, round_index: int
    ) -> list[tuple[int, bytes]]:
        """Those of the cells of a round's result that are here, each with where it begins in the
        whole."""
        held = self._results.get(digest)
        if held is None:
            return []
        # All cells but the last have as many elements.
        each = self.result_bytes(0, fragment=self.layout.fragment_of(round_index))
        found = ((cell * each, held.get(cell)) for cell in cells)
        return [(start, payload) for start, payload in found if payload is not None]

    def _take(self, digest: bytes, step: Step) -> State:
        # Whose state is not the sealed one gets another root than the others, and sees that.
        before = self._states.get(step.base, self.final)
        if step.is_empty:
            return before
        cells = self.result_cells(digest)
        ahead = self._taken_ahead(digest, step)
        if ahead is not None and ahead.keeps:
            return finished(ahead, before, cells)
        return self.stepped(before, cells, round_index=step.round)

    def _taken_ahead(self, digest: bytes, step: Step) -> OuterStepping | None:
        ahead, self._ahead = self._ahead, None
        return ahead[2] if ahead is not None and ahead[:2] == (digest, step) else None

    def _foreseen(self, digest: bytes, step: Step) -> StateRoots | None:
        """The roots of what the step gives; None where its vectors are made at once."""
        if not self._is_stepped_over(step):
            return None
        before = self.state
        stepping = self._taken_ahead(digest, step)
        if stepping is None or stepping.keeps:
            index = step.round
            stepping = self.stepping(before, round_index=index, keeps=False, is_checked=True)
        return foreseen(stepping, before, self.result_cells(digest))

    def _candidate(self, digest: bytes) -> State:
        """What the step on a LIST gives; taken once more where the round was left meanwhile."""
        candidate = self._candidates.pop(digest, None)
        if isinstance(candidate, State):
            return candidate
        return self._take(digest, self._stepped[digest])

    def adopt(self, digest: bytes) -> None:
        """The candidate of the sealed LIST replaces the anchor; what is older than needed goes."""
        previous, candidate = self.final.root, self._candidates.get(digest)
        if isinstance(candidate, StateRoots) and self._is_stepped_over(self._stepped[digest]):
            self._step_over(digest, candidate)
        else:
            self.state = self._candidate(digest)
            self.final = self.state
        self._candidates.clear()
        self._ahead = None
        self._states[self.state.root] = self.state
        unsealed = {listed for listed in self._results if listed not in self._stepped}
        if self.lag > 1:
            unsealed, self._early = unsealed & self._early, unsealed
        self._forget(digest, previous, unsealed)
        self._pinned.clear()
        self._age_parts()
        self._leave_to_disk(digest)

    def _step_over(self, digest: bytes, roots: StateRoots) -> None:
        """Make the state of these roots of the one that there is, which is gone then, unless
        somebody holds it."""
        cells, step = self.result_cells(digest), self._stepped[digest]
        self._ahead = None
        with self._whole:
            names, vectors = self.slot_names, self._let_go()
            vectors = step_over(self._step_rules, vectors, cells, step.round)
            slots = dict(zip(names, vectors[1:], strict=True))
            self.state = self.final = State(vectors[0], slots, roots.cell_roots, roots.root)

    def _let_go(self) -> list[Vector]:
        """The vectors of the state, of which there is no other name in here any more."""
        state, self._state = self._state, NO_STATE
        self._final = NO_STATE
        self._states.clear()
        return [state.anchor_N, *(state.slots[name] for name in self.slot_names)]

    def _leave_to_disk(self, digest: bytes) -> None:
        """A final result is asked for by those alone who are a round behind."""
        step, held = self._stepped[digest], self._results.get(digest)
        read = self.find_file(step.round, digest)
        if held is None or read is None or step.is_empty:
            return
        sizes = self.result_sizes(self.layout.fragment_of(step.round))
        if len(held) == len(sizes):
            held.leave_to_disk(read, sizes)

    def advance(self, digest: bytes, kept: AbstractSet[bytes] = frozenset()) -> None:
        """R4: the anchor goes on by a LIST that is sealed provisionally; what is final stays.

        So do the contributions of these roots, whenever they come.
        """
        left, self.state = self.state, self._candidate(digest)
        self._candidates.clear()
        self._pinned |= kept
        self._age_parts()
        if left is not self.final:
            self._states.pop(left.root, None)
        self._states[self.final.root] = self.final
        self._states[self.state.root] = self.state

    def confirm(self, digest: bytes) -> bytes:
        """R4: what was sealed provisionally by this LIST is final; the root of the final state."""
        step = self._stepped[digest]
        previous = self.final
        self.final = self._take(digest, Step(previous.root, step.round, step.is_empty))
        if self.final.root == self.state.root:
            self.final = self.state
        self._states[self.final.root] = self.final
        self._forget(digest, previous.root, set())
        for kept in self._kept_parts[-1:]:
            kept |= self._pinned
        self._pinned.clear()
        return self.final.root

    def fall_back(self) -> None:
        """R4: the branch is given up: the last final state is the anchor again."""
        if self.state.root != self.final.root:
            self._states.pop(self.state.root, None)
        self.state = self.final
        self._candidates.clear()

    def _forget(self, digest: bytes, previous: bytes, unsealed: set[bytes]) -> None:
        """A LIST is final: what is older than needed goes. Results of later rounds stay (R4)."""
        sealed, stepped = self._stepped[digest].round, self._stepped
        over = {listed for listed, step in stepped.items() if step.round <= sealed}
        self._stepped = {
            d: step for d, step in stepped.items() if step.round >= sealed - ROUNDS_KEPT
        }
        self._kept.append((over | unsealed, {previous}))
        if len(self._kept) > ROUNDS_KEPT:
            results, states = self._kept.pop(0)
            for listed in results:
                self._results.pop(listed, None)
            for root in states - {self.state.root, self.final.root}:
                self._states.pop(root, None)

    def _age_parts(self) -> None:
        """Contributions to rounds that are over stay a little, for those who are a round behind."""
        self._kept_parts.append(set(self._parts) - self._pinned)
        if len(self._kept_parts) > ROUNDS_KEPT + self.lag - 1:
            for root in self._kept_parts.pop(0) - self._pinned:
                self._parts.pop(root, None)
