"""What one node takes of a machine at its busiest, and what it writes in a round: one table.

Each row of `TABLE` says that a process has so many times a unit in a place, for which purpose, and
why. Units are sizes that follow from the manifest: a vector is the model in float32, a payload one
contribution. Where a node comes to hold or write something in another way, a row changes here, and
`check`, the refusals of `run` and `join`, and `bench size`, which measures, follow.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from node.holdings.checkpoints import LARGE_KEPT, LARGE_STATE_BYTES
from node.holdings.shard_store import ROUNDS_KEPT
from node.holdings.states import cell_sizes
from node.processes.machine import Machine, Wants, check_machine, held_bytes
from node.settings.run_file import EXPECTED_PEERS, num_reducers
from protocol import limits
from protocol.auditing.audit_rounds import FETCHED_WITHIN, SUSPECT_RATE
from protocol.auditing.audit_rounds import ROUNDS_KEPT as TRACED_ROUNDS_KEPT
from protocol.errors import ManifestError
from protocol.grid import Layout
from protocol.limits import MIB
from protocol.manifest import RunManifest
from protocol.segments import kept_states
from training.channel.trainer_end import channel_spec
from training.compression import make_codec
from training.files.state import CHECKPOINTS_KEPT
from training.loop.sums import INNER_STATES_KEPT, is_large
from training.methods.presets import PRESETS
from training.models.genesis import GptShape
from training.outer.optimizers import make_outer

Process = Literal["network", "trainer"]
Place = Literal["memory", "card", "disk", "written", "seldom"]
"""`card` is the memory of the device, where there is one beside the processor; else it is memory.
`written` is what goes to the disk in each round, `seldom` what does so every ROUNDS_APART rounds or
every MOMENTS_APART_S seconds."""

NETWORK_BASE_BYTES, TRAINER_BASE_BYTES = 115 * MIB, 225 * MIB
"""Of the two processes before they hold a number: libraries, torch and its threads, and what large
writes are staged in. Measured with `barnraise bench size`."""

SUMS_KEPT = 5
"""Of a large model: what makes the contributions of the last rounds again, and a new one."""

EXACT = ("none", "fp16")
"""Codecs whose payload follows from what it was encoded from alone, without more on the disk."""

STATE_VECTORS = 3
"""Weights and AdamW's two moments, float32."""

FLOAT_BYTES = 4

INNER_STATE, CONTRIBUTION = "inner state", "contribution"
"""The purposes of what a trainer writes before its contribution leaves."""

CHECKPOINT, MOMENTS = "checkpoint", "moments"
"""The purposes of what is written every ROUNDS_APART rounds, and every MOMENTS_APART_S seconds."""


@dataclass(frozen=True, slots=True)
class Need:
    """`times` a unit, in a place, of one process."""

    process: Process
    place: Place
    purpose: str
    unit: str
    times: float
    why: str


TABLE = (
    # Memory of the network process. What both map counts half for each.
    Need("network", "memory", "anchor", "vector", 0.5, "mapped: the trainer reads it there"),
    Need("network", "memory", "anchor, its own", "copied", 1, "where the trainer has a copy"),
    Need("network", "memory", "anchor before", "vector", 0.75, "as a round ends; fitted"),
    Need("network", "memory", "outer state", "slots", 1, "stepped in place"),
    Need("network", "memory", "own contribution", "payload", 0.5, "mapped, as it was written"),
    Need(
        "network", "memory", "parts of others", "parts", 1 + ROUNDS_KEPT, "of this round and before"
    ),
    Need("network", "memory", "results", "result", 1, "until they are on the disk"),
    Need("network", "memory", "audits", "audit", 2, "what two begin with, held at once"),
    # Memory of the trainer; `card` is the device's, where there is one.
    Need("trainer", "card", "weights", "vector", 1, "float32"),
    Need(
        "trainer",
        "card",
        "gradients",
        "vector",
        1,
        "float32; then the drift takes their place",
    ),
    Need("trainer", "card", "moments", "moments", 1, "AdamW's two, float32"),
    Need("trainer", "card", "activations", "activations", 1, "of one pass"),
    Need("trainer", "card", "weights before a climb", "climb", 1, "sam_radius"),
    Need("trainer", "memory", "anchor", "vector", 0.5, "mapped: the network process has it"),
    Need("trainer", "memory", "anchor, its own", "copied", 1, "of several fragments, or in flight"),
    Need("trainer", "memory", "residual", "residual", 1, "of all fragments"),
    Need("trainer", "memory", "contribution", "payload", 0.5, "mapped, as the network sends it"),
    Need("trainer", "memory", "in flight", "in flight", 2, "what it left over, weights as sent"),
    Need("trainer", "memory", "variates", "variates", 1.25, "SCAFFOLD's four, and the correction"),
    Need("trainer", "memory", "audit", "audited", 7, "a model of its own, and where it begins"),
    # On the disk.
    Need("network", "disk", "checkpoints", "state", LARGE_KEPT + 1, "two kept, and a new one"),
    Need(
        *("network", "disk", "one more checkpoint", "small state", CHECKPOINTS_KEPT - LARGE_KEPT),
        why="a small model keeps three",
    ),
    Need("network", "disk", "results", "result", limits.RESULT_ROUNDS_KEPT, "of the last rounds"),
    Need("trainer", "disk", "inner states", "inner", INNER_STATES_KEPT + 1, "kept, and a new one"),
    Need("trainer", "disk", "contributions", "sums", SUMS_KEPT, "of the last rounds"),
    Need("trainer", "disk", "moments", "moments apart", 2, "the last, and a new one"),
    Need("trainer", "disk", "traces for audits", "traces", 1, "what peers may ask to see"),
    # Written in a round.
    Need("network", "written", "results", "result", 1, "before the SEAL"),
    Need("network", "written", "checkpoint", "small state", 1, "as often as the disk takes it"),
    Need("trainer", "written", INNER_STATE, "inner", 1, "before the COMMIT leaves"),
    Need("trainer", "written", CONTRIBUTION, "sums", 1, "what makes it again, before the COMMIT"),
    Need(
        "trainer", "written", "traces for audits", "traced", 1, "states and residual of the round"
    ),
    # Written every so many rounds, or seconds.
    Need(
        "network", "seldom", CHECKPOINT, "large state", 1, "the rounds between are in the results"
    ),
    Need("trainer", "seldom", MOMENTS, "moments apart", 1, "beside training"),
)


def units_of(manifest: RunManifest, peers: int) -> dict[str, float]:
    """Bytes of each unit of the table."""
    layout, outer = manifest.layout(0), manifest.outer
    codec, preset = make_codec(outer), PRESETS[outer.preset](manifest.rounds)
    vector, slots = FLOAT_BYTES * layout.numel, len(make_outer(outer).slots)
    payload = max(sum(map(codec.payload_bytes, numels)) for numels in layout.cell_numels)
    reducers = num_reducers(peers, manifest.trust, outer.topology)
    has_residual, spec = outer.feedback > 0, channel_spec(manifest, 0)
    fragment = FLOAT_BYTES * max(layout.fragment_numels)
    parts = outer.overlap * payload * reducers * (peers - 1) / peers
    variates = 4 * vector * preset.has_variates
    of_method = variates + vector * preset.has_own_weights
    moments = vector * (STATE_VECTORS - 1) * (manifest.inner.optimizer == "adamw")
    # With audits the traces have moments and weights.
    is_traced = manifest.audits.rate > 0.0
    has_sums = is_large(manifest)
    inner = of_method + drifting_bytes(layout, overlap=outer.overlap) * (not is_traced)
    sums = 0.0
    if has_sums:
        sums = fragment * has_residual + payload * (not has_residual or outer.codec not in EXACT)
    else:
        residuals = FLOAT_BYTES * (layout.numel + max(layout.fragment_numels)) * has_residual
        inner += payload + residuals + moments * (not is_traced)
    state = vector * (1 + slots)
    return {
        "vector": vector,
        "copied": vector * (not spec.is_read_in_place),
        "slots": vector * slots,
        "state": state,
        "small state": state * (state < LARGE_STATE_BYTES),
        "large state": state * (state >= LARGE_STATE_BYTES),
        "moments": moments,
        "moments apart": moments * has_sums,
        "residual": vector * has_residual,
        "payload": payload,
        "in flight": fragment * (outer.overlap > 1),
        "parts": parts,
        "result": max(sum(sizes) for sizes in cell_sizes(manifest).result),
        "activations": activation_bytes(manifest),
        "climb": vector * (manifest.inner.sam_radius > 0.0),
        "variates": variates,
        "inner": inner,
        "sums": sums,
        "audit": audit_bytes(manifest) * (manifest.audits.rate > 0.0),
        "audited": vector * (manifest.audits.rate > 0.0),
        "traces": trace_bytes(manifest),
        "traced": traced_bytes(manifest),
    }


def amounts(
    manifest: RunManifest, peers: int, place: Place, process: Process | None = None
) -> Iterator[tuple[Need, int]]:
    """The rows of a place, of one process or both, each with its bytes; without those of nothing.

    The memory of the trainer includes that of the device, if `place` is memory.
    """
    units = units_of(manifest, peers)
    for item in TABLE:
        is_there = item.place == place and process in (None, item.process)
        if is_there and (num_bytes := round(item.times * units[item.unit])):
            yield item, num_bytes


def total(manifest: RunManifest, peers: int, place: Place, process: Process | None = None) -> int:
    """The bytes of all rows of a place."""
    return sum(num_bytes for _, num_bytes in amounts(manifest, peers, place, process))


def seldom_bytes(manifest: RunManifest, peers: int) -> dict[str, int]:
    """What is written at a time of what is written seldom, by purpose."""
    found = dict.fromkeys((CHECKPOINT, MOMENTS), 0)
    return found | {one.purpose: size for one, size in amounts(manifest, peers, "seldom")}


def saved_bytes(manifest: RunManifest, peers: int) -> int:
    """What is on the disk before a contribution leaves: its trainer waits for that."""
    return sum(
        num_bytes
        for item, num_bytes in amounts(manifest, peers, "written", "trainer")
        if item.purpose in (INNER_STATE, CONTRIBUTION)
    )


def wants_of(
    manifest: RunManifest, peers: int, *, is_on_card: bool = False, is_observer: bool = False
) -> Wants:
    """What a node takes of the host, whose trainer computes there or on a device of its own."""
    network = NETWORK_BASE_BYTES + total(manifest, peers, "memory", "network")
    trainer = TRAINER_BASE_BYTES + total(manifest, peers, "memory", "trainer")
    if not is_on_card:
        trainer += total(manifest, peers, "card", "trainer")
    return Wants(
        memory_bytes=network if is_observer else network + trainer,
        disk_bytes=total(manifest, peers, "disk", "network" if is_observer else None),
    )


ADVICE = (
    "close other programs or free space, take a smaller model or another disk (--state of `run`"
    " and `join`), or start all the same with --skip-machine-check"
)


def check_room(
    manifest: RunManifest,
    folder: Path,
    machine: Machine,
    *,
    device: str,
    is_observer: bool = False,
) -> None:
    """Raises ConfigError where this machine has too little for a node of that run, whose `folder`
    may hold some of it already."""
    wants = wants_of(
        manifest,
        min(EXPECTED_PEERS, manifest.admission.seats),
        is_on_card=machine.is_on_card(device),
        is_observer=is_observer,
    )
    wants = replace(wants, disk_bytes=max(0, wants.disk_bytes - held_bytes(folder)))
    check_machine(wants, machine, advice=ADVICE)


# Sizes that units stand for ----------------------------------------------------------------------

ACTIVATION_VECTORS = 17
"""Of a position and block, in vectors of the width, what a pass keeps for the way back: two norms
and their inputs 4, queries, keys and values 3, their mix and its sum 2, the wide layer twice 8."""


def activation_bytes(manifest: RunManifest) -> int:
    """Of one batch of the built-in model, in float32; 0 of a model that nobody knows.

    On a device with too little memory the batch is cut, and they are fewer.
    """
    if manifest.model.name != "gpt":
        return 0
    try:
        shape = GptShape.of(manifest.model)
    except ManifestError:
        return 0  # Of a simulated run, whose model nobody builds.
    each = ACTIVATION_VECTORS * shape.width * shape.layers + 3 * shape.vocabulary
    return FLOAT_BYTES * each * shape.context * manifest.inner.batch


def drifting_bytes(layout: Layout, *, overlap: int) -> int:
    """The working weights of all fragments but the round's, which with two in flight goes on too:
    as they are when a contribution leaves, they are kept with it."""
    numels = layout.fragment_numels
    return FLOAT_BYTES * (layout.numel - (min(numels) if overlap == 1 else 0))


def audit_bytes(manifest: RunManifest) -> int:
    """What one audit moves: the state that a segment begins with; of the encoding the weights of a
    fragment, and a residual."""
    layout = manifest.layout(0)
    return FLOAT_BYTES * (STATE_VECTORS * layout.numel + 2 * layout.numel // layout.num_fragments)


def traced_bytes(manifest: RunManifest) -> int:
    """What a node writes of a round for those who may ask: of the round's fragment the anchor and a
    residual, and the later states that `kept_states` names."""
    if not manifest.audits.rate:
        return 0
    layout, later = manifest.layout(0), len(kept_states(manifest)) - 1
    return FLOAT_BYTES * (
        STATE_VECTORS * later * layout.numel + 2 * layout.numel // layout.num_fragments
    )


def trace_bytes(manifest: RunManifest) -> int:
    """What a node keeps of its rounds for those who may ask, on average, as a round ends.

    The last two rounds are whole, for their beacons are not known: the states that `kept_states`
    names, and a residual; the first is the anchor, what the round before left of the other
    fragments, and its moments. Of FETCHED_WITHIN + 1 before them those are kept for which somebody
    may have been drawn, at SUSPECT_RATE or more: a state, the weights of a fragment and a residual.
    Anchors of all that are judged differ in one fragment each.
    """
    audits = manifest.audits
    if not audits.rate:
        return 0
    later = len(kept_states(manifest)) - 1
    fragment = 1.0 / manifest.layout(0).num_fragments
    first = STATE_VECTORS - fragment  # One fragment of its weights is the anchor's.
    whole = STATE_VECTORS * later + fragment
    # Of v auditors each is drawn with rate / v: none with e^-rate, for many.
    drawn = (FETCHED_WITHIN + 1) * (1.0 - math.exp(-max(audits.rate, SUSPECT_RATE)))
    anchors = 1.0 + (TRACED_ROUNDS_KEPT - 1) * fragment
    vectors = anchors + first + 2 * whole + drawn * (first + 2 * fragment)
    return round(FLOAT_BYTES * vectors * manifest.layout(0).numel)
