"""I2 in worlds: the state is what the listed wire bytes give, to the bit, on every node (R7).

The sum and the outer step are written down here once more, from the design, and share no code with
`training.aggregation` and `training.outer`. Codecs, rules and optimizers that are unknown here are
asked for what they give on whole vectors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.shard_store import ShardStore, State
from node.tracing import Adopted, Began, Record, Signed, Synced
from protocol.identity import PeerId
from protocol.manifest import OuterSpec, RunManifest
from protocol.messages import Commit, Kind, SealValue
from sim.checks.history import History
from sim.world import World
from training.aggregation import AGGREGATORS
from training.compression import CODECS
from training.outer import OuterInfo, make_outer

Vector = NDArray[np.float32]

DTYPES = {"none": "<f4", "fp16": "<f2"}
ROUNDS_KEPT = 4
"""Wire bytes and states of so many rounds stay, for nodes that lag behind."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """Anchor and outer slots after a round."""

    anchor_N: Vector
    slots: Mapping[str, Vector]


class Reference:
    """I2 over the bytes of a world's nodes."""

    name = "I2"
    kinds = (Began, Signed, Adopted, Synced)

    def __init__(self, history: History, world: World) -> None:
        self._history = history
        self._world = world
        self._wires: dict[bytes, Vector] = {}
        """By root: the decoded contributions that nodes have committed to."""
        self._rounds: dict[bytes, int] = {}
        self._expected: dict[bytes, _Expected] = {}
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
                yield from self._compare(record.peer, certificate.value)
            case Adopted(certificate=certificate) | Synced(certificate=certificate):
                yield from self._compare(record.peer, certificate.value)
                self._forget(certificate.value.round)
            case _:
                pass

    def finish(self) -> Iterator[str]:
        """See Check."""
        head = self._history.final
        for peer, node in sorted(self._world.nodes.items()):
            if node.is_alive and head is not None and node.core.machine.head == head:
                yield from self._compare(peer, head)

    # Wires --------------------------------------------------------------------------------------

    def _keep_wire(self, peer: PeerId) -> None:
        said = self._history.said
        if said is None or said.message.slot.kind is not Kind.COMMIT:
            return
        assert isinstance(said.body, Commit)
        self._rounds[said.body.root] = said.message.slot.round
        wire_N = self._find_wire(said.body.root, [self._world.nodes[peer].store])
        if wire_N is not None:
            self._wires[said.body.root] = wire_N

    def _find_wire(self, root: bytes, stores: Sequence[ShardStore]) -> Vector | None:
        """A contribution from the parts of it that the nodes hold: what was on the wire."""
        layout, codec = self._world.manifest.layout(0), self._world.manifest.outer.codec
        pieces: list[Vector] = []
        for cell in range(layout.num_cells(0)):
            items = (item for store in stores for item in store.parts(root, [cell]))
            item = next(items, None)
            if item is None:
                return None
            pieces.append(_decoded(item.payload, codec, layout.cell_numel(0, cell)))
        return np.concatenate(pieces)

    def _wire(self, root: bytes) -> Vector | None:
        if root not in self._wires:
            stores = [node.store for _, node in sorted(self._world.nodes.items())]
            wire_N = self._find_wire(root, stores)
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

    def _compare(self, peer: PeerId, value: SealValue) -> Iterator[str]:
        state = self._world.nodes[peer].store.state
        if state.root != value.root and value.round:
            yield f"goes on from round {value.round} with another state than was sealed"
            return
        expected = self._expected.get(value.digest) or self._recompute(value)
        if expected is None:
            # The first that is known of this round: its root is the sealed one.
            self._expected[value.digest] = _Expected(state.anchor_N, dict(state.slots))
            self.num_skipped += value.round > 0
            return
        self._expected[value.digest] = expected
        different = _difference(expected, state)
        if different:
            yield f"{different} after round {value.round} is not what the listed bytes give"

    def _recompute(self, value: SealValue) -> _Expected | None:
        before = self._expected.get(value.before)
        said = [self._history.commits.get(digest) for digest in value.commits]
        listed: list[tuple[PeerId, int, Vector]] = []
        for each in said:
            if each is None or before is None:
                return None
            assert isinstance(each.body, Commit)
            wire_N = self._wire(each.body.root)
            if wire_N is None:
                return None
            listed.append((each.message.sender, each.body.tokens, wire_N))
        if before is None:
            return None
        self.num_recomputed += 1
        if not listed:
            return before
        outer = self._world.manifest.outer
        return _step(outer, before, _aggregate(self._world.manifest, listed), value.round)


def _aggregate(manifest: RunManifest, listed: Sequence[tuple[PeerId, int, Vector]]) -> Vector:
    """The mean by tokens, rows by ascending sender, and what its encoding makes of it."""
    outer = manifest.outer
    rows = sorted(listed, key=lambda row: row[0])
    if outer.aggregator == "mean":
        total = float(sum(tokens for _, tokens, _ in rows))
        sum_N = np.zeros_like(rows[0][2])
        for index, (_, tokens, wire_N) in enumerate(rows):
            term_N = wire_N * np.float32(tokens / total)
            sum_N = term_N if index == 0 else sum_N + term_N
    else:
        weights_P = np.array([float(tokens) for _, tokens, _ in rows])
        rule = AGGREGATORS[outer.aggregator]()
        sum_N = rule(np.stack([wire_N for _, _, wire_N in rows]), weights_P).value
    # R7: results travel at eight bits or more.
    dtype = np.dtype(DTYPES.get(outer.codec, "<f4"))
    most = np.float32(np.finfo(dtype).max)
    return np.clip(sum_N, -most, most).astype(dtype).astype(np.float32)


def _step(outer: OuterSpec, before: _Expected, aggregate_N: Vector, index: int) -> _Expected:
    rate, momentum = np.float32(outer.learning_rate), np.float32(outer.momentum)
    if outer.optimizer == "nesterov":
        momentum_N = momentum * before.slots["momentum"] + aggregate_N
        update_N = rate * (momentum * momentum_N + aggregate_N)
        return _Expected(before.anchor_N - update_N, {"momentum": momentum_N})
    if outer.optimizer == "sgd":
        return _Expected(before.anchor_N - rate * aggregate_N, {})
    info = OuterInfo(round=index, slots=before.slots)
    step = make_outer(outer).step(before.anchor_N, aggregate_N, info)
    return _Expected(step.anchor_N, dict(step.slots))


def _decoded(payload: bytes, codec: str, numel: int) -> Vector:
    if codec in DTYPES:
        return np.frombuffer(payload, dtype=DTYPES[codec]).astype(np.float32)
    return CODECS[codec]().decode(payload, numel)


def _difference(expected: _Expected, state: State) -> str:
    """The name of the first vector whose bits differ; empty if none do."""
    ours = {"the anchor": expected.anchor_N, **dict(expected.slots)}
    theirs = {"the anchor": state.anchor_N, **dict(state.slots)}
    if ours.keys() != theirs.keys():
        return "the outer state"
    return next((name for name in ours if ours[name].tobytes() != theirs[name].tobytes()), "")
