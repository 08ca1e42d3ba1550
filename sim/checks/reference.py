"""I2 in worlds: the state is what the listed wire bytes give, to the bit, on every node (R7).

The sum and the outer step are written down once more, from what R7 asks for. They share no code
with `training.aggregation` and `training.outer`, so that a wrong one there does not pass. Rules,
codecs and optimizers that are unknown here are asked for what they give on cells.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from node.holdings.shard_store import ShardStore, State
from node.reporting.tracing import Adopted, Advanced, Began, Confirmed, Record, Signed, Synced
from protocol.identity import PeerId
from protocol.manifest import OuterSpec
from protocol.messages import Commit, Kind, SealValue
from protocol.rounds.reducers import slices as slices_of
from sim.checks.history import History
from sim.checks.seating import weighed_rows
from sim.world.world import World
from training.aggregation import AGGREGATORS, coefficients_of
from training.compression import make_codec, result_codec
from training.numeric.gram import wire_form
from training.outer.optimizers import OuterInfo, make_outer

Vector = NDArray[np.float32]

# The sum and the outer step -----------------------------------------------------------------------

DTYPES = {"none": "<f4", "fp16": "<f2"}


def slices_after(
    before: SealValue, num_cells: int, trust: str, topology: str = "butterfly"
) -> list[tuple[int, int]]:
    """The cells of each slice of the round behind a seal."""
    if topology == "gather":
        return [(0, num_cells)]
    found = slices_of(before.roster, before.digest, num_cells, trust=trust)
    return [(piece.first, piece.stop) for piece in found]


@dataclass(frozen=True, slots=True)
class Expected:
    """Anchor and outer slots after a round."""

    anchor_N: Vector
    slots: Mapping[str, Vector]


def aggregate(
    outer: OuterSpec,
    listed: Sequence[tuple[PeerId, int, Vector]],
    cell_elements: int,
    slices: Sequence[tuple[int, int]] = (),
) -> Vector:
    """Of (sender, tokens, decoded wire): the mean by tokens, rows by ascending sender, and what its
    encoding makes of it. `slices` are the cells of each slice of that round."""
    rows = sorted(listed, key=lambda row: row[0])
    if outer.aggregator == "mean":
        total = float(sum(tokens for _, tokens, _ in rows))
        sum_N = np.zeros_like(rows[0][2])
        for index, (_, tokens, wire_N) in enumerate(rows):
            term_N = wire_N * np.float32(tokens / total)
            sum_N = term_N if index == 0 else sum_N + term_N
    else:
        weights_P = np.array([float(tokens) for _, tokens, _ in rows])
        rule = AGGREGATORS[outer.aggregator](cell_elements=cell_elements)
        rows_PN = np.stack([wire_N for _, _, wire_N in rows])
        # Whole vectors are judged, by numbers that were rounded once for each slice.
        pieces = [
            rows_PN[:, first * cell_elements : stop * cell_elements]
            for first, stop in slices or [(0, -(-rows_PN.shape[1] // cell_elements))]
        ]
        is_asked = rule.uses_stats
        grams = [wire_form(rule.stats(one), len(rows)) for one in pieces] if is_asked else []
        sum_N = rule.combine(rows_PN, coefficients_of(rule, grams, weights_P))
    # R7: results travel at eight bits or more.
    if outer.codec not in DTYPES:
        codec = result_codec(outer)
        cells = np.split(sum_N, range(cell_elements, len(sum_N), cell_elements))
        return np.concatenate([codec.decode(codec.encode(cell_N), len(cell_N)) for cell_N in cells])
    dtype = np.dtype(DTYPES[outer.codec])
    most = np.float32(np.finfo(dtype).max)
    return np.clip(sum_N, -most, most).astype(dtype).astype(np.float32)


def fragment_step(
    outer: OuterSpec, before: Expected, aggregate_N: Vector, span: slice, index: int
) -> Expected:
    """What follows upon `before` where the round is about the elements in `span` alone."""
    part = {name: slot_N[span] for name, slot_N in before.slots.items()}
    stepped = outer_step(outer, Expected(before.anchor_N[span], part), aggregate_N, index)
    slots = {name: _with(before.slots[name], span, stepped.slots[name]) for name in before.slots}
    return Expected(_with(before.anchor_N, span, stepped.anchor_N), slots)


def _with(whole_N: Vector, span: slice, part_N: Vector) -> Vector:
    return np.concatenate([whole_N[: span.start], part_N, whole_N[span.stop :]])


def outer_step(outer: OuterSpec, before: Expected, aggregate_N: Vector, index: int) -> Expected:
    """What follows upon `before` in round `index`."""
    for then in outer.then:
        rule = replace(outer, then=())
        if index >= then.from_round:
            rule = replace(
                rule,
                optimizer=then.optimizer,
                learning_rate=then.learning_rate,
                momentum=then.momentum,
            )
        found = outer_step(rule, before, aggregate_N, index)
        zeros = {name: np.zeros_like(momentum_N) for name, momentum_N in before.slots.items()}
        return Expected(found.anchor_N, {**zeros, **found.slots})
    rate, momentum = np.float32(outer.learning_rate), np.float32(outer.momentum)
    if outer.optimizer == "nesterov":
        momentum_N = momentum * before.slots["momentum"] + aggregate_N
        update_N = rate * (momentum * momentum_N + aggregate_N)
        return Expected(before.anchor_N - update_N, {"momentum": momentum_N})
    if outer.optimizer == "sgd":
        return Expected(before.anchor_N - rate * aggregate_N, {})
    info = OuterInfo(round=index, slots=before.slots)
    step = make_outer(outer).step(before.anchor_N, aggregate_N, info)
    return Expected(step.anchor_N, dict(step.slots))


# The check ----------------------------------------------------------------------------------------

ROUNDS_KEPT = 4
"""Wire bytes and states of so many rounds stay, for nodes that lag behind."""


class Reference:
    """I2 over the bytes of a world's nodes."""

    name = "I2"
    kinds = (Began, Signed, Adopted, Advanced, Confirmed, Synced)

    def __init__(self, history: History, world: World) -> None:
        self._history = history
        self._world = world
        self._layout = world.manifest.layout(0)
        self._wires: dict[bytes, Vector] = {}
        """By root: the decoded contributions that nodes have committed to."""
        self._rounds: dict[bytes, int] = {}
        self._expected: dict[bytes, Expected] = {}
        """By seal."""
        self.num_recomputed = 0
        self.num_skipped = 0
        """Rounds whose bytes were gone before anybody told of the seal."""

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        match record:
            case Signed():
                self._keep_wire(record.peer)
            case Began(head=certificate):
                store = self._world.nodes[record.peer].store
                yield from self._compare(store.final, certificate.value)
            case Advanced(certificate=certificate):
                node, value = self._world.nodes[record.peer], certificate.value
                # A node that comes back has but the state of the last seal of its branch.
                head = node.core.machine.standing.head.value
                if value.root == node.store.state.root or value.digest == head.digest:
                    yield from self._compare(node.store.state, value)
            case (
                Adopted(certificate=certificate)
                | Confirmed(certificate=certificate)
                | Synced(certificate=certificate)
            ):
                store = self._world.nodes[record.peer].store
                yield from self._compare(store.final, certificate.value)
                self._forget(certificate.value.round)
            case _:
                pass

    def finish(self) -> Iterator[str]:
        """See Check."""
        head = self._history.final
        for _, node in sorted(self._world.nodes.items()):
            if node.is_alive and head is not None and node.core.machine.head == head:
                yield from self._compare(node.store.final, head)

    # Wires --------------------------------------------------------------------------------------

    def _keep_wire(self, peer: PeerId) -> None:
        said = self._history.said
        if said is None or said.message.slot.kind is not Kind.COMMIT:
            return
        assert isinstance(said.body, Commit)
        self._rounds[said.body.root] = said.message.slot.round
        stores = [self._world.nodes[peer].store]
        wire_N = self._find_wire(said.body.root, stores, said.message.slot.round)
        if wire_N is not None:
            self._wires[said.body.root] = wire_N

    def _find_wire(
        self, root: bytes, stores: Sequence[ShardStore], round_index: int
    ) -> Vector | None:
        """A contribution from the parts of it that the nodes hold: what was on the wire."""
        layout, outer = self._layout, self._world.manifest.outer
        fragment = layout.fragment_of(round_index)
        pieces: list[Vector] = []
        for cell in range(layout.num_cells(fragment)):
            items = (item for store in stores for item in store.parts(root, [cell]))
            item = next(items, None)
            if item is None:
                return None
            pieces.append(_decoded(item.payload, outer, layout.cell_numel(fragment, cell)))
        return np.concatenate(pieces)

    def _wire(self, root: bytes, round_index: int) -> Vector | None:
        if root not in self._wires:
            stores = [node.store for _, node in sorted(self._world.nodes.items())]
            wire_N = self._find_wire(root, stores, round_index)
            if wire_N is None:
                return None
            self._wires[root] = wire_N
        return self._wires[root]

    def _forget(self, round_index: int) -> None:
        for root in [r for r, index in self._rounds.items() if index < round_index - ROUNDS_KEPT]:
            del self._rounds[root]
            self._wires.pop(root, None)
        values = self._history.values
        for seal in [s for s in self._expected if values[s].round < round_index - ROUNDS_KEPT]:
            del self._expected[seal]

    # States -------------------------------------------------------------------------------------

    def _compare(self, state: State, value: SealValue) -> Iterator[str]:
        if state.root != value.root and value.round:
            yield f"goes on from round {value.round} with another state than was sealed"
            return
        expected = self._expected.get(value.digest) or self._recompute(value)
        if expected is None:
            # The first that is known of this round: its root is the sealed one.
            self._expected[value.digest] = Expected(state.anchor_N, dict(state.slots))
            self.num_skipped += value.round > 0
            return
        self._expected[value.digest] = expected
        different = _difference(expected, state)
        if different:
            yield f"{different} after round {value.round} is not what the listed bytes give"

    def _recompute(self, value: SealValue) -> Expected | None:
        before = self._expected.get(value.before)
        said = [self._history.commits.get(digest) for digest in value.commits]
        listed: list[tuple[PeerId, int, Vector]] = []
        classes: dict[PeerId, str] = {}
        for each in said:
            if each is None or before is None:
                return None
            assert isinstance(each.body, Commit)
            wire_N = self._wire(each.body.root, value.round)
            if wire_N is None:
                return None
            listed.append((each.message.sender, each.body.tokens, wire_N))
            for work in each.body.work:
                classes[each.message.sender] = work.device
        named = self._history.values.get(value.basis)
        if before is None or named is None:
            return None
        self.num_recomputed += 1
        if not listed:
            return before
        manifest = self._world.manifest
        rows = weighed_rows(named, listed, manifest, classes)
        fragment = self._layout.fragment_of(value.round)
        cells, topology = self._layout.num_cells(fragment), manifest.outer.topology
        cuts = slices_after(named, cells, manifest.trust, topology)
        # Of rows that weigh nothing no rule makes anything.
        rows = rows or [(listed[0][0], 1, np.zeros_like(listed[0][2]))]
        sum_N = aggregate(manifest.outer, rows, manifest.cell_elements, cuts)
        span = self._layout.fragment_span(fragment)
        return fragment_step(manifest.outer, before, sum_N, span, value.round)


def _decoded(payload: bytes, outer: OuterSpec, numel: int) -> Vector:
    if outer.codec in DTYPES:
        return np.frombuffer(payload, dtype=DTYPES[outer.codec]).astype(np.float32)
    return make_codec(outer).decode(payload, numel)


def _difference(expected: Expected, state: State) -> str:
    """The name of the first vector whose bits differ; empty if none do."""
    ours = {"the anchor": expected.anchor_N, **dict(expected.slots)}
    theirs = {"the anchor": state.anchor_N, **dict(state.slots)}
    if ours.keys() != theirs.keys():
        return "the outer state"
    return next((name for name in ours if ours[name].tobytes() != theirs[name].tobytes()), "")
