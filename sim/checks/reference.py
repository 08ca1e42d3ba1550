"""I2 in worlds: the state is what the listed wire bytes give, to the bit, on every node (R7).

The sum and the outer step are those of `sim.checks.arithmetic`. Codecs that are unknown there are
asked for what they give.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from node.holdings.shard_store import ShardStore, State
from node.reporting.tracing import Adopted, Advanced, Began, Confirmed, Record, Signed, Synced
from protocol.identity import PeerId
from protocol.manifest import OuterSpec
from protocol.messages import Commit, Kind, SealValue
from sim.checks.arithmetic import (
    DTYPES,
    Expected,
    Vector,
    aggregate,
    fragment_step,
    slices_after,
)
from sim.checks.earning import weighed_rows
from sim.checks.history import History
from sim.world.world import World
from training.compression import make_codec

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
