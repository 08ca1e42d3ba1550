"""The state of one shard, and the others that somebody may ask for.

A state's vectors are of the whole shard, a round is about one fragment of it (R5). A state cell is
one cell of the anchor or of one outer slot, as little-endian float32; of n cells of a fragment cell
i of vector v is number v * n + i, the anchor being vector 0, behind those of the fragments before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import RLock

import numpy as np
from blake3 import blake3

from node.cells.outer_step import OuterStepping, StepRules
from node.cells.states import Item, State, Vector, finished, make_state, wire_view
from protocol.errors import ProofError, StateError
from protocol.grid import cell_root, check_state_proof, state_place
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from training.compression import result_codec
from training.outer import make_outer
from training.spare_vectors import SpareVectors, VectorSource


class StateStore:
    """See `node.cells.cell_store`; this has the states."""

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
        slots = {name: np.zeros_like(anchor_N) for name in self._outer.slots}
        self._state: State = self.make_state(anchor_N, slots)
        self._final: State = self._state
        self._states: dict[bytes, State] = {self._state.root: self._state}

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

    def assemble(self, root: bytes, cells: Mapping[int, bytes]) -> State:
        """The state that verified state cells make up. Raises StateError unless it has `root`."""
        if any(index not in cells for index in range(self.num_state_cells)):
            raise StateError("state cells are missing")
        vectors = [source.take() for source in self._step_rules.sources()]
        for index in range(self.num_state_cells):
            vector, span = self.state_place(index)
            vectors[vector][span] = np.frombuffer(cells[index], dtype="<f4")
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
