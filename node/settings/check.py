"""What `barnraise check` finds in a run.toml: the method written out, and the costs of a round.

Costs are those of one node, from the manifest alone: bytes, memory, disk, seconds. What is counted
is payload, by the formulas below; control messages, proofs and the transport's records come on top:
some tens of kilobytes a round and peer, as `CONTROL_BYTES` has it.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from node.holdings.shard_store import ROUNDS_KEPT as STATES_KEPT
from node.holdings.states import cell_sizes
from node.settings.run_file import (
    Founder,
    as_its_preset,
    build_manifest,
    num_reducers,
    other_than,
    parse_run_file,
    write_out,
)
from node.settings.sections import BUTTERFLY, GATHER
from node.trainers.choosing import COVER, SHARE
from protocol import limits
from protocol.auditing.audit_rounds import FETCHED_WITHIN, SUSPECT_RATE
from protocol.auditing.audit_rounds import ROUNDS_KEPT as TRACED_ROUNDS_KEPT
from protocol.errors import ConfigError
from protocol.grid import Layout
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.rounds.seating import Turns
from protocol.segments import kept_states
from training.channel.trainer_end import channel_spec
from training.compression import in_grade, make_codec, with_grades
from training.files.state import CHECKPOINTS_KEPT
from training.methods.presets import IN_PROCESS, PRESETS, is_paced
from training.outer.optimizers import make_outer

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
    results_each = [sum(sizes) for sizes in cell_sizes(manifest).result]
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
        held *= 1 + STATES_KEPT  # Who is a round behind sums them too.
    kept = result * limits.RESULT_ROUNDS_KEPT
    inner = inner_state_bytes(layout, has_residual=has_residual, overlap=outer.overlap) + payload
    # SCAFFOLD: c, c_r before and after, the anchor; beside them in memory the correction.
    variates = 4 * PRESETS[outer.preset](manifest.rounds).has_variates
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
            NETWORK_BASE_BYTES + (state + result) * (STATES_KEPT + 2) + held + channel
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


# What is found, for programs and for people -----------------------------------------------------

MIB = 1 << 20
STEP_S_MIN, STEP_S_MAX = 1e-6, 86_400.0
"""From a toy's step to a day of a model that no home trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A run.toml that founds a run."""

    manifest: RunManifest
    costs: Costs
    other: Costs
    """What it would cost with the other topology."""

    changed: tuple[str, ...]
    """Keys of [outer] that the file has in place of the preset's."""

    warnings: tuple[str, ...] = ()
    """What of the model may not be meant."""


def check_step(step_s: float | None) -> None:
    """Raises ConfigError for seconds that no inner step takes."""
    if step_s is not None and not STEP_S_MIN <= step_s <= STEP_S_MAX:
        bounds = f"{STEP_S_MIN:g}..{STEP_S_MAX:g}"
        raise ConfigError(f"--step-s {step_s:g} is not within {bounds}: no inner step takes that")


def check_run_file(path: Path, peers: int) -> Checked:
    """Read it as a founder does, and count for so many peers. Raises ConfigError naming each key
    that is wrong, with what to write instead."""
    given = parse_run_file(path)
    written, bare = write_out(given, path), as_its_preset(given).outer
    founder, warnings = Founder(PeerId(bytes(32)), int(time.time())), list[str]()
    manifest = build_manifest(written, founder, path, warn=warnings.append)
    changed = [key for key, value in written.outer if value != getattr(bare, key)]
    if given.outer.topology is None and "topology" in changed:
        changed.remove("topology")  # It follows from the others.
    # Whoever waits for its turn contributes nothing.
    peers = min(peers, manifest.admission.seats)
    outer = replace(manifest.outer, topology=other_than(manifest.outer.topology))
    return Checked(
        manifest=manifest,
        costs=costs_of(manifest, peers),
        other=costs_of(replace(manifest, outer=outer), peers),
        changed=tuple(changed),
        warnings=tuple(warnings),
    )


def steps_on(found: Checked, exchange_s: float, step_s: float | None) -> int:
    """Inner steps of a round where all have such an exchange: H, or what peers would choose."""
    most, outer = found.manifest.inner.inner_steps, found.manifest.outer
    if step_s is None or not is_paced(outer.preset):
        return most
    cover = SHARE / (1.0 - SHARE) if outer.overlap == 1 else COVER
    return max(1, min(most, math.ceil(cover * exchange_s / step_s)))


def round_s_on(found: Checked, exchange_s: float, step_s: float) -> float:
    """A round where all have such an exchange: it follows the steps, or goes on beside them."""
    training_s = steps_on(found, exchange_s, step_s) * step_s
    if found.manifest.outer.overlap > 1:
        return max(training_s, exchange_s)
    return exchange_s + training_s


def check_json(found: Checked, step_s: float | None) -> dict[str, object]:
    """The line that `--json` ends with; seconds are of one round."""
    manifest, costs, outer = found.manifest, found.costs, found.manifest.outer

    def of_line(line: Line) -> dict[str, object]:
        exchange_s = costs.exchange_s(line)
        round_s = None if step_s is None else round(round_s_on(found, exchange_s, step_s), 3)
        about = dataclasses.asdict(line)
        return {
            "line": about.pop("name"),
            **about,
            "exchange_s": round(exchange_s, 3),
            "steps": steps_on(found, exchange_s, step_s),
            "round_s": round_s,
        }

    def of(record: object, *names: str) -> dict[str, object]:
        return {name: getattr(record, name) for name in names}

    return {
        **of(outer, "preset", "codec"),
        "codec_settings": {one.name: one.value for one in outer.codec_settings},
        **of(outer, "feedback", "aggregator", "optimizer", "learning_rate", "momentum"),
        "fragments": len(manifest.shards[0].fragments),
        "overlap": outer.overlap,
        "then": [dataclasses.asdict(one) for one in outer.then],
        "topology": outer.topology,
        "other_topology": other_than(outer.topology),
        "other_up_bytes": found.other.up_bytes,
        "inner_steps": manifest.inner.inner_steps,
        "rounds": manifest.rounds,
        "changed": list(found.changed),
        "warnings": list(found.warnings),
        **of(costs, "parameters", "peers", "payload_bytes", "result_bytes", "up_bytes"),
        "down_bytes": costs.up_bytes,
        "memory_bytes": costs.network_memory_bytes + costs.trainer_memory_bytes,
        "disk_bytes": costs.disk_bytes,
        "audited_share": round(manifest.audits.rate / manifest.audits.segments, 6),
        "audit_bytes": round(manifest.audits.rate * audit_bytes(found)),
        "trace_bytes": trace_bytes(found),
        "lines": [of_line(line) for line in HOME_LINES],
    }


STATE_VECTORS = 3
"""Weights and AdamW's two moments, float32."""


def audit_bytes(found: Checked) -> int:
    """What one audit moves: the state that a segment begins with; of the encoding the weights of a
    fragment, and a residual."""
    fragment = found.costs.parameters / found.manifest.layout(0).num_fragments
    return round(4 * (STATE_VECTORS * found.costs.parameters + 2 * fragment))


def trace_bytes(found: Checked) -> int:
    """What a node keeps of its rounds for those who may ask, on average, as a round ends.

    The last two rounds are whole, for their beacons are not known: the states that `kept_states`
    names, and a residual; the first is the anchor, what the round before left of the other
    fragments, and its moments. Of FETCHED_WITHIN + 1 before them those are kept for which somebody
    may have been drawn, at SUSPECT_RATE or more: a state, the weights of a fragment and a residual.
    Anchors of all that are judged differ in one fragment each.
    """
    audits = found.manifest.audits
    if not audits.rate:
        return 0
    later = len(kept_states(found.manifest)) - 1
    fragment = 1.0 / found.manifest.layout(0).num_fragments
    first = STATE_VECTORS - fragment  # One fragment of its weights is the anchor's.
    whole = STATE_VECTORS * later + fragment
    # Of v auditors each is drawn with rate / v: none with e^-rate, for many.
    drawn = (FETCHED_WITHIN + 1) * (1.0 - math.exp(-max(audits.rate, SUSPECT_RATE)))
    anchors = 1.0 + (TRACED_ROUNDS_KEPT - 1) * fragment
    vectors = anchors + first + 2 * whole + drawn * (first + 2 * fragment)
    return round(4 * vectors * found.costs.parameters)


def print_check(console: Console, found: Checked, step_s: float | None) -> None:
    """The same for people."""
    manifest, costs, outer = found.manifest, found.costs, found.manifest.outer
    rounds = manifest.rounds
    summary = PRESETS[outer.preset](rounds).summary
    settings = ", ".join(f"{one.name} {one.value:g}" for one in outer.codec_settings)
    if with_grades(make_codec(outer)) is not None:
        settings += "; bits per element, of each node what its line sends"
    radius = manifest.inner.sam_radius
    uphill = f", gradients from {radius:g} uphill in two passes" if radius else ""
    rows = [
        ("method", f"{outer.preset}: {summary}" + _but(found.changed)),
        ("codec", outer.codec + (f" ({settings})" if settings else "")),
        ("feedback", f"{outer.feedback:g}"),
        ("outer step", f"{outer.optimizer}, rate {outer.learning_rate:g}, mu {outer.momentum:g}"),
        ("sum", outer.aggregator),
        ("rounds", f"{rounds} of {manifest.inner.inner_steps} inner steps{uphill}"),
    ]
    num_fragments = len(manifest.shards[0].fragments)
    if num_fragments > 1:
        rows.append(("fragments", f"{num_fragments}, of which each round syncs the next"))
    for then in outer.then:
        later = f"{then.preset}: {PRESETS[then.preset](rounds).summary}; {then.optimizer}, rate"
        numbers = f"{then.learning_rate:g}, mu {then.momentum:g}"
        rows.append((f"from round {then.from_round}", f"{later} {numbers}"))
    if outer.overlap > 1:
        rows.append(("in flight", f"{outer.overlap} rounds: training goes on beside the exchange"))
    if manifest.audits.rate:
        audits = manifest.audits
        share, moved = audits.rate / audits.segments, audits.rate * audit_bytes(found)
        rows.append(
            (
                "audits",
                f"{audits.rate:g} of each contribution: {share:.1%} more training, about"
                f" {_size(round(moved))} of each node in a round, {_size(trace_bytes(found))} of"
                " disk. Who bends what it sends is met by an audit, on average, within"
                f" {math.ceil(1 / audits.rate)} rounds. Devices other than the CPU: only what they"
                " encode",
            )
        )
    law = found.manifest.admission
    if law.seats < limits.SEATS_MAX:
        length = Turns(0, law, found.manifest.trust).length
        rows.append(("seats", f"{law.seats}; more peers take turns, of {length} rounds or longer"))
    rows += [
        ("model", f"{costs.parameters:,} parameters, {costs.peers} peers"),
        ("a contribution", f"{_size(costs.payload_bytes)}, a result {_size(costs.result_bytes)}"),
        ("a round", f"{_size(costs.up_bytes)} up, {_size(costs.up_bytes)} down, of each node"),
        ("who sums", _who_sums(found)),
        (
            "memory",
            f"about {_size(costs.network_memory_bytes)} network process,"
            f" {_size(costs.trainer_memory_bytes)} trainer and its activations",
        ),
        ("disk", f"about {_size(costs.disk_bytes)}"),
    ]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(name, text)
    console.print(table)
    console.print()
    console.print(_lines(found, step_s))
    for text in found.warnings:
        console.print(f"\nwarning: {text}", markup=False, soft_wrap=True)


def _but(changed: Sequence[str]) -> str:
    """Of a method's summary what the file has otherwise, which stands below."""
    return f"; but not its {', '.join(changed)}" if changed else ""


_WHO_SUMS = {
    BUTTERFLY: "each cell few, who send the result to all",
    GATHER: "everybody all cells, from contributions whole",
}


def _who_sums(found: Checked) -> str:
    """The topology, what the other would cost, and whether that is less."""
    topology = found.manifest.outer.topology
    up, other_up, other = found.costs.up_bytes, found.other.up_bytes, other_than(topology)
    is_advised = other_up < up and found.manifest.outer.overlap == 1
    advice = f": cheaper, set topology to {other!r}" if is_advised else ""
    return f"{topology}: {_WHO_SUMS[topology]}; as {other} {_size(other_up)} a round{advice}"


def _lines(found: Checked, step_s: float | None) -> Table:
    costs = found.costs
    table = Table("line", "down", "up", box=None, pad_edge=False)
    table.add_column("exchange", justify="right")
    table.add_column("a round" if step_s is not None else "90 % training from", justify="right")
    for line in HOME_LINES:
        exchange_s = costs.exchange_s(line)
        steps = steps_on(found, exchange_s, step_s)
        # Where a step takes that long or longer, waiting is a tenth of the round or less.
        nine_tenths = 9 if found.manifest.outer.overlap == 1 else 0.9
        last = (
            f"{round_s_on(found, exchange_s, step_s):.1f} s, {steps} steps"
            if step_s is not None
            else f"steps of {_seconds(nine_tenths * exchange_s / steps)}"
        )
        mbit = (f"{line.down_mbit:g} Mbit/s", f"{line.up_mbit:g} Mbit/s")
        table.add_row(line.name, *mbit, f"{exchange_s:.1f} s", last)
    return table


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1.0 else f"{seconds:,.1f} s"


def _size(num_bytes: int) -> str:
    if num_bytes < MIB:
        return f"{num_bytes / 1024:.0f} KiB"
    if num_bytes < 1024 * MIB:
        return f"{num_bytes / MIB:.1f} MiB"
    return f"{num_bytes / (1024 * MIB):.1f} GiB"
