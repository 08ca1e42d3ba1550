"""What was applied in a world, against what its seals say: both made again from wire bytes."""

from typing import TYPE_CHECKING

import numpy as np

from node.reporting.tracing import Adopted, Record, Signed
from protocol.messages import Commit, Kind, SealValue, decode_body
from sim.checks.reference import aggregate, slices_after
from tests.sim.worlds import WatchedWorld
from training.compression import make_codec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from protocol.identity import PeerId
    from protocol.wire import Digest


class Applied:
    """Watches a world whose outer step is plain subtraction (`sgd` at rate 1), from genesis on.

    For runs without branches: of each round there is one seal, and `check` holds them to that.
    """

    def __init__(self, world: WatchedWorld) -> None:
        assert (world.manifest.outer.optimizer, world.manifest.outer.learning_rate) == ("sgd", 1.0)
        self._world = world
        self._codec, self._layout = make_codec(world.manifest.outer), world.manifest.layout(0)
        self._wires: dict[bytes, NDArray[np.float32]] = {}
        self._commits: dict[bytes, tuple[PeerId, Commit]] = {}
        self._seals: dict[Digest, SealValue] = {}
        self._first_N = next(iter(world.nodes.values())).store.final.anchor_N.astype(np.float64)
        world.tracers.append(self._see)

    def _see(self, record: Record) -> None:
        if isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            body = decode_body(record.message)
            assert isinstance(body, Commit)
            message, layout = record.message, self._layout
            fragment = layout.fragment_of(message.slot.round)
            self._commits[message.digest] = (message.sender, body)
            store = self._world.nodes[record.peer].store
            parts = store.parts(body.root, range(layout.num_cells(fragment)))
            self._wires[body.root] = np.concatenate(
                [self._codec.decode(p.payload, layout.cell_numel(fragment, p.index)) for p in parts]
            )
        elif isinstance(record, Adopted):
            value = record.certificate.value
            self._seals[value.digest] = value

    def check(self, rounds: int, peers: int) -> None:
        """The sum of the aggregates of all seals is the way from the first anchor to the last one,
        fragment by fragment, on every node; all peers had a share in it."""
        world, layout = self._world, self._layout
        total_N, senders = np.zeros_like(self._first_N), set()
        assert sorted(value.round for value in self._seals.values()) == [*range(1, rounds + 1)]
        for value in self._seals.values():
            fragment = layout.fragment_of(value.round)
            listed = [self._commits[digest] for digest in value.commits]
            senders |= {sender for sender, _ in listed}
            if listed:
                rows = [(sender, body.tokens, self._wires[body.root]) for sender, body in listed]
                named = self._seals.get(value.basis)
                trust, num_cells = world.manifest.trust, layout.num_cells(fragment)
                cuts = slices_after(named, num_cells, trust) if named else ()
                sum_N = aggregate(world.manifest.outer, rows, layout.cell_elements, cuts)
                total_N[layout.fragment_span(fragment)] += sum_N
        ends = {node.store.final.anchor_N.tobytes() for node in world.living()}
        assert len(ends) == 1, "equal bits on every node"
        (end,) = ends
        applied_N = self._first_N - np.frombuffer(end, dtype=np.float32)
        assert np.abs(applied_N - total_N).max() <= 1e-5
        for fragment in range(layout.num_fragments):
            assert np.abs(total_N[layout.fragment_span(fragment)]).max() > 0.1
        assert len(senders) == peers
