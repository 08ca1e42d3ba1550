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
from training.methods.presets import PRESETS
from training.models.genesis import VOCABULARY, GptShape
from training.outer.optimizers import make_outer

Process = Literal["network", "trainer"]
Place = Literal["memory", "card", "disk", "written"]
"""`card` is the memory of the device, where there is one beside the processor; else it is memory.
`written` is what goes to the disk in a round."""

NETWORK_BASE_BYTES, TRAINER_BASE_BYTES = 115 * MIB, 280 * MIB
"""Of the two processes before they hold a number: libraries, torch and its threads, and what large
writes are staged in. Measured with `barnraise bench size`."""

INNER_STATES_KEPT = 3
"""As `training.loop.inner_state`, whose module needs torch."""

STATE_VECTORS = 3
"""Weights and AdamW's two moments, float32."""

FLOAT_BYTES = 4

INNER_STATE = "inner state"
"""The purpose of what a trainer writes while it stands still."""


@dataclass(frozen=True, slots=True)
class Item:
    """`times` a unit, in a place, of one process."""

    process: Process
    place: Place
    purpose: str
    unit: str
    times: float
    why: str


TABLE = (
    # Memory of the network process. What both map counts half for each.
    Item("network", "memory", "anchor", "vector", 0.5, "mapped: the trainer reads it there"),
    Item("network", "memory", "anchor, its own", "copied", 1, "where the trainer has a copy"),
    Item("network", "memory", "outer state", "slots", 1, "stepped in place"),
    Item("network", "memory", "own contribution", "payload", 0.5, "mapped, as it was written"),
    Item("network", "memory", "the one before", "payload", 1, "for who is a round behind"),
    Item(
        "network", "memory", "parts of others", "parts", 1 + ROUNDS_KEPT, "of this round and before"
    ),
    Item("network", "memory", "results", "result", 2, "until it is on the disk the next one comes"),
    Item("network", "memory", "state being written", "state", 0.375, "as a round ends; fitted"),
    Item("network", "memory", "audit", "audited", 7, "states before and after, and a residual"),
    # Memory of the trainer; `card` is the device's, where there is one.
    Item("trainer", "card", "weights", "vector", 1, "float32"),
    Item("trainer", "card", "gradients", "vector", 1, "float32; they stay until the next step"),
    Item("trainer", "card", "moments", "moments", 1, "AdamW's two, float32"),
    Item("trainer", "card", "activations", "activations", 1, "of one pass"),
    Item("trainer", "card", "weights before a climb", "climb", 1, "sam_radius"),
    Item("trainer", "memory", "anchor", "vector", 0.5, "mapped: the network process has it"),
    Item("trainer", "memory", "anchor, its own", "copied", 1, "of several fragments, or in flight"),
    Item("trainer", "memory", "drift", "fragment", 2, "what drifted, and the weights it is of"),
    Item("trainer", "memory", "residual", "residual", 1, "of all fragments"),
    Item("trainer", "memory", "next residual", "loss", 3, "the sum, what is left, as it is hashed"),
    Item("trainer", "memory", "contribution", "payload", 1, "encoded"),
    Item("trainer", "memory", "variates", "variates", 1.25, "SCAFFOLD's four, and the correction"),
    Item("trainer", "memory", "audit", "audited", 7, "a model of its own, and where it begins"),
    # On the disk.
    Item("network", "disk", "checkpoints", "state", CHECKPOINTS_KEPT + 1, "kept, and a new one"),
    Item("network", "disk", "results", "result", limits.RESULT_ROUNDS_KEPT, "of the last rounds"),
    Item("network", "disk", "mapped file", "mapped", 1, "between the two processes"),
    Item("trainer", "disk", "inner states", "inner", INNER_STATES_KEPT + 1, "kept, and a new one"),
    Item("trainer", "disk", "traces for audits", "traces", 1, "what peers may ask to see"),
    # Written in a round.
    # The system writes mapped pages back after half a minute, which most rounds are longer than.
    Item("network", "written", "mapped anchor", "vector", 1, "written back by the system"),
    Item("trainer", "written", "mapped contribution", "payload", 1, "written back by the system"),
    Item("network", "written", "results", "result", 1, "before the SEAL"),
    Item("network", "written", "checkpoint", "state", 1, "of most rounds"),
    Item("trainer", "written", INNER_STATE, "inner", 1, "before the COMMIT leaves"),
    Item(
        "trainer", "written", "traces for audits", "traced", 1, "states and residual of the round"
    ),
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
    inner = inner_state_bytes(layout, has_residual=has_residual, overlap=outer.overlap) + payload
    return {
        "vector": vector,
        "copied": vector * (not spec.is_read_in_place),
        "fragment": fragment,
        "loss": fragment * has_residual,
        "slots": vector * slots,
        "state": vector * (1 + slots),
        "moments": vector * (STATE_VECTORS - 1) * (manifest.inner.optimizer == "adamw"),
        "residual": vector * has_residual,
        "payload": payload,
        "parts": parts,
        "result": max(sum(sizes) for sizes in cell_sizes(manifest).result),
        "activations": activation_bytes(manifest),
        "climb": vector * (manifest.inner.sam_radius > 0.0),
        "variates": variates,
        "inner": inner + variates + vector * preset.has_own_weights,
        "mapped": spec.used_bytes,
        "audited": vector * (manifest.audits.rate > 0.0),
        "traces": trace_bytes(manifest),
        "traced": traced_bytes(manifest),
    }


def amounts(
    manifest: RunManifest, peers: int, place: Place, process: Process | None = None
) -> Iterator[tuple[Item, int]]:
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


def saved_bytes(manifest: RunManifest, peers: int) -> int:
    """What is on the disk before a contribution leaves: its trainer waits for that."""
    return sum(
        num_bytes
        for item, num_bytes in amounts(manifest, peers, "written", "trainer")
        if item.purpose == INNER_STATE
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
    "close other programs or free space, take a smaller model or another disk (--state), or start "
    "all the same with --skip-machine-check"
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
    each = ACTIVATION_VECTORS * shape.width * shape.layers + 3 * VOCABULARY
    return FLOAT_BYTES * each * shape.context * manifest.inner.batch


def inner_state_bytes(layout: Layout, *, has_residual: bool, overlap: int = 1) -> int:
    """What a trainer keeps of a round on the disk, beside its contribution: two moments, residuals
    before and after, and the working weights of all fragments but the round's, which with two in
    flight goes on as well."""
    numels = layout.fragment_numels
    residuals = (layout.numel + max(numels)) * has_residual
    drifting = layout.numel - (min(numels) if overlap == 1 else 0)
    return FLOAT_BYTES * (2 * layout.numel + residuals + drifting)


def audit_bytes(manifest: RunManifest) -> int:
    """What one audit moves: the state that a segment begins with, the last one, and a residual."""
    return FLOAT_BYTES * (2 * STATE_VECTORS + 1) * manifest.layout(0).numel


def traced_bytes(manifest: RunManifest) -> int:
    """What a node writes of a round for those who may ask: an anchor, the later states that
    `kept_states` names, and a residual; the first moments are the last of the round before."""
    if not manifest.audits.rate:
        return 0
    later = len(kept_states(manifest)) - 1
    return FLOAT_BYTES * (1 + STATE_VECTORS * later + 1) * manifest.layout(0).numel


def trace_bytes(manifest: RunManifest) -> int:
    """What a node keeps of its rounds for those who may ask, on average.

    Of a round an anchor, the states that `kept_states` names, and a residual; where it follows upon
    one that is whole, its first moments are the other's last. The last two are whole, for their
    beacons are not known; of FETCHED_WITHIN + 1 before them those for which somebody may have been
    drawn, at SUSPECT_RATE or more; of the others the anchor alone.
    """
    audits = manifest.audits
    if not audits.rate:
        return 0
    later = len(kept_states(manifest)) - 1
    anchor, first_moments, others = 1, STATE_VECTORS - 1, STATE_VECTORS * later + 1
    # Of v auditors each is drawn with rate / v: none with e^-rate, for many.
    drawn = (FETCHED_WITHIN + 1) * (1.0 - math.exp(-max(audits.rate, SUSPECT_RATE)))
    whole = 2 + drawn
    vectors = TRACED_ROUNDS_KEPT * anchor + whole * others + (1 + drawn) * first_moments
    return round(FLOAT_BYTES * vectors * manifest.layout(0).numel)
