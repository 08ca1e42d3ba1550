"""What a run costs each of its nodes, from the manifest alone: bytes, memory, disk, seconds. Pure.

Who sums decides most of it, so that choice stands here as well: few each cell, or everybody all
cells (R8), whatever lets the fewest bytes travel.

What is counted is payload, by the formulas below; control messages, proofs and the transport's
records come on top: some tens of kilobytes a round and peer, as `CONTROL_BYTES` has it.
"""

from dataclasses import dataclass

from node.cells.shard_store import ROUNDS_KEPT
from node.cells.states import CellSizes
from node.rules.belief import copies, liars
from protocol import limits
from protocol.grid import Layout
from protocol.manifest import OuterSpec, RunManifest
from training.channel.trainer_end import channel_spec
from training.compression import in_grade, make_codec, result_codec
from training.files.state import CHECKPOINTS_KEPT
from training.loop.method import has_variates
from training.methods.in_process import IN_PROCESS
from training.methods.presets import PRESETS
from training.outer.optimizers import make_outer

BUTTERFLY, GATHER = "butterfly", "gather"

EXPECTED_PEERS = 8
"""For so many a founder's file chooses where it says nothing: nobody knows how many come."""


def num_reducers(peers: int, trust: str, topology: str) -> int:
    """How many sum each cell; each has the result of what it summed."""
    if topology == GATHER:
        return peers
    # In an open run in which all vote more than may lie.
    return min(peers, max(copies(trust), liars(peers, trust) + 1))


def topology_for(spec: OuterSpec, trust: str, peers: int = EXPECTED_PEERS) -> str:
    """Gather where all contributions whole are fewer bytes than shares of them and of the result.

    Never with two rounds in flight (R5): nobody explored that.
    Raises ConfigError for a codec that is none.
    """
    if spec.overlap > 1:
        return BUTTERFLY
    numel = limits.CELL_ELEMENTS_MAX
    payload = make_codec(spec).payload_bytes(numel)
    result = result_codec(spec).payload_bytes(numel)
    reducers = num_reducers(peers, trust, BUTTERFLY)
    of_few = payload * reducers * (peers - 1) + result * (peers - reducers)
    return GATHER if payload * peers * (peers - 1) < of_few else BUTTERFLY


def other_than(topology: str) -> str:
    """The other one."""
    return BUTTERFLY if topology == GATHER else GATHER


INNER_STATES_KEPT = 3
"""As `training.loop.inner_state`, whose module needs torch."""

CONTROL_BYTES = 5_000
"""Of a round, to each other peer: signed messages, beats, gossip, headers. Measured with real nodes
(`barnraise local --peers 3`, and 6), rounds of a second: 5.1 and 4.3 KB."""

MESSAGE_DELAYS = 8
"""One-way delays in a row: COMMIT, parts, HAVE, LIST, VOTE, AGG, results, SEAL. Worlds take 0.9 to
0.95 of what comes of it (`tests/sim/world/test_world_costs.py`)."""

MESSAGE_DELAYS_GATHER = 6
"""Where everybody sums nobody waits for an AGG or a result."""

NETWORK_BASE_BYTES, TRAINER_BASE_BYTES = 90 << 20, 300 << 20
"""Of the two processes before they hold a number: libraries, torch."""

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A home's way to the net: megabits per second, and milliseconds there and back."""

    name: str
    down_mbit: float
    up_mbit: float
    rtt_ms: float


HOME_LINES = (
    Line("DSL", 50.0, 10.0, 40.0),
    Line("cable", 250.0, 40.0, 30.0),
    Line("fibre", 500.0, 200.0, 15.0),
)
"""What homes commonly have; both ends are taken to have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of one node and round; memory and disk are what a node has at its busiest."""

    parameters: int
    peers: int
    payload_bytes: int
    """One contribution, of a codec with grades in the usual one; of fragments the largest."""

    result_bytes: int
    """What all contributions became, as it travels; of fragments the largest."""

    parts_bytes: int
    """Of contributions: what leaves a node, and as much comes in; the mean of all fragments."""

    results_bytes: int
    """The same of results."""

    control_bytes: int
    network_memory_bytes: int
    trainer_memory_bytes: int
    """Weights, gradients, AdamW, anchor, residuals; activations come on top."""

    disk_bytes: int
    message_delays: int = MESSAGE_DELAYS

    @property
    def up_bytes(self) -> int:
        """All that leaves a node in a round; as much comes in."""
        return self.parts_bytes + self.results_bytes + self.control_bytes

    def exchange_s(self, line: Line) -> float:
        """From the last COMMIT to the last SEAL where all have such a line."""
        # Parts and results follow each other; of either as much goes up as comes down.
        rate = 1e6 / 8 * min(line.up_mbit, line.down_mbit)
        return self.up_bytes / rate + self.message_delays * line.rtt_ms / 2000


def costs_of(manifest: RunManifest, peers: int) -> Costs:
    """The costs of a node among so many. Raises ConfigError for a manifest that cannot run."""
    layout, outer = manifest.layout(0), manifest.outer
    numel, slots = layout.numel, len(make_outer(outer).slots)
    codec = make_codec(outer)
    # Each round is about another fragment.
    payloads = [
        sum(in_grade(codec, 0, numel).payload_bytes(numel) for numel in numels)
        for numels in layout.cell_numels
    ]
    largest = max(sum(map(codec.payload_bytes, numels)) for numels in layout.cell_numels)
    results_each = [sum(sizes) for sizes in CellSizes.from_manifest(manifest).result]
    payload, result = max(payloads), max(results_each)
    reducers = num_reducers(peers, manifest.trust, outer.topology)
    turns = peers * layout.num_fragments
    parts = sum(payloads) * reducers * (peers - 1) // turns
    results = sum(results_each) * (peers - reducers) // turns
    if outer.preset in IN_PROCESS:
        parts, results = round(payload * IN_PROCESS[outer.preset].copies(peers)), 0
    vectors = _FLOAT_BYTES * numel
    state = vectors * (1 + slots)
    has_residual = outer.feedback > 0
    # The own contribution, and the parts of what this node sums.
    held = outer.overlap * largest * (1 + reducers * (peers - 1) / peers)
    if outer.everybody_sums:
        held *= 1 + ROUNDS_KEPT  # Who is a round behind sums them too.
    kept = result * limits.RESULT_ROUNDS_KEPT
    inner = inner_state_bytes(layout, has_residual=has_residual, overlap=outer.overlap) + payload
    # SCAFFOLD: c, c_r before and after, the anchor; beside them in memory the correction.
    variates = 4 * has_variates(outer.preset)
    # SPARTA: the weights of a replica, which the round's anchor does not have.
    inner += vectors * (variates + PRESETS[outer.preset](manifest.rounds).has_own_weights)
    is_uphill = manifest.inner.sam_radius > 0.0  # What to come back to.
    channel = channel_spec(manifest, 0).used_bytes
    return Costs(
        parameters=numel,
        peers=peers,
        payload_bytes=payload,
        result_bytes=result,
        parts_bytes=parts,
        results_bytes=results,
        control_bytes=CONTROL_BYTES * (peers - 1),
        # The states and results of the last rounds, of this one, and the one in the making.
        network_memory_bytes=int(
            NETWORK_BASE_BYTES + (state + result) * (ROUNDS_KEPT + 2) + held + channel
        ),
        # Weights, gradients, two moments, the anchor, what is encoded; the residual and the next.
        trainer_memory_bytes=TRAINER_BASE_BYTES
        + vectors * (6 + 3 * has_residual + variates + bool(variates) + is_uphill)
        + payload,
        disk_bytes=state * (CHECKPOINTS_KEPT + 1)
        + inner * (INNER_STATES_KEPT + 1)
        + kept
        + channel,
        message_delays=MESSAGE_DELAYS_GATHER if outer.everybody_sums else MESSAGE_DELAYS,
    )


def inner_state_bytes(layout: Layout, *, has_residual: bool, overlap: int = 1) -> int:
    """What a trainer keeps of a round on the disk, beside its contribution: two moments, residuals
    before and after, and the working weights of all fragments but the round's, which with two in
    flight goes on as well."""
    numels = layout.fragment_numels
    residuals = (layout.numel + max(numels)) * has_residual
    drifting = layout.numel - (min(numels) if overlap == 1 else 0)
    return _FLOAT_BYTES * (2 * layout.numel + residuals + drifting)
