"""What `barnraise check` finds in a run.toml: the method written out, and the costs of a round.

Costs are those of one node, from the manifest alone: bytes, memory, disk, seconds. What is counted
is payload, by the formulas below; control messages, proofs and the transport's records come on top:
some tens of kilobytes a round and peer, as `CONTROL_BYTES` has it.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from node.holdings.checkpoints import ROUNDS_APART
from node.holdings.states import cell_sizes
from node.processes.machine import Machine, Wants, gib, read_machine, shortages
from node.settings.footprint import (
    CHECKPOINT,
    MOMENTS,
    NETWORK_BASE_BYTES,
    TRAINER_BASE_BYTES,
    Place,
    activation_bytes,
    amounts,
    audit_bytes,
    check_room,
    saved_bytes,
    seldom_bytes,
    total,
    trace_bytes,
    wants_of,
)
from node.settings.run_file import (
    Founder,
    as_its_preset,
    build_manifest,
    num_reducers,
    other_than,
    parse_run_file,
    run_file_of,
    write_out,
)
from node.settings.sections import (
    BUTTERFLY,
    GATHER,
    TITLE_DEFAULT,
    run_file_text,
)
from node.state.config import DEVICE_DEFAULT
from node.state.folder import run_folder
from node.status.records import EQUAL_STEPS
from node.trainers.choosing import COVER, SHARE
from protocol import limits
from protocol.errors import ConfigError
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.rounds.seating import Turns
from training.compression import in_grade, make_codec, with_grades
from training.loop.sums import MOMENTS_APART_S
from training.methods.method import has_equal_steps
from training.methods.presets import IN_PROCESS, PRESETS, is_paced
from training.models.genesis import VOCABULARY, GptSize

CONTROL_BYTES = 5_000
"""Of a round, to each other peer: signed messages, beats, gossip, headers. Measured with real nodes
(`barnraise local --peers 3`, and 6), rounds of a second: 5.1 and 4.3 KB."""

MESSAGE_DELAYS = 8
"""One-way delays in a row: COMMIT, parts, HAVE, LIST, VOTE, AGG, results, SEAL. Worlds take 0.9 to
0.95 of what comes of it (`tests/sim/world/test_world_costs.py`)."""

MESSAGE_DELAYS_GATHER = 6
"""Where everybody sums nobody waits for an AGG or a result."""


ENCODE_NS = {"fp16": 26.0, "int8": 9.0, "int4": 12.0, "sparse2bit_gaps": 21.0}
"""Per parameter, one core of the machine of `tests/bench/RESULTS.md`: the codec and the residual
around it. A codec that was not measured takes fp16's."""

SEAL_NS = 45.0
"""Per parameter, the same core: 41 to 60 ns of a network process in a round of two."""

DISK_BYTES_PER_S = 500e6
"""What a home's solid-state disk takes with syncs; an old hard disk takes a fifth of it."""


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


MBIT_MIN, MBIT_MAX, RTT_MS_MAX = 0.01, 1e6, 60_000.0


def line_named(text: str) -> Line:
    """`250,40,30` as a line. Raises ConfigError for no such text."""
    try:
        down_mbit, up_mbit, rtt_ms = map(float, text.split(","))
    except ValueError:
        down_mbit = up_mbit = rtt_ms = math.nan
    rates = (down_mbit, up_mbit)
    if not (all(MBIT_MIN <= rate <= MBIT_MAX for rate in rates) and 0.0 <= rtt_ms <= RTT_MS_MAX):
        raise ConfigError(
            f"--line {text!r} is no line such as 250,40,30: megabits per second down and up,"
            f" {MBIT_MIN:g}..{MBIT_MAX:g}, and milliseconds there and back, 0..{RTT_MS_MAX:g}"
        )
    return Line(text, down_mbit, up_mbit, rtt_ms)


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
    audits_bytes: int
    """What audits move, on average."""

    network_memory_bytes: int
    trainer_host_bytes: int
    trainer_card_bytes: int
    """Of the device, where there is one beside the processor; else of the host as well."""

    activation_bytes: int
    """What of that is for one pass through the model; 0 of one that nobody knows."""

    disk_bytes: int
    written_bytes: int
    """To the disk in each round, by both processes."""

    checkpoint_bytes: int
    """Every `ROUNDS_APART` rounds beside that; 0 of a small model, which writes one in each."""

    moments_bytes: int
    """Every `MOMENTS_APART_S` seconds beside that; 0 of a small model."""

    saved_bytes: int
    """Of these, what the trainer waits for before its COMMIT."""

    synced_parameters: int
    """Of a round: of several fragments the mean."""

    codec: str
    message_delays: int = MESSAGE_DELAYS

    @property
    def trainer_memory_bytes(self) -> int:
        """Of the trainer on the processor."""
        return self.trainer_host_bytes + self.trainer_card_bytes

    @property
    def exchange_bytes(self) -> int:
        """What leaves a node for a round itself; as much comes in."""
        return self.parts_bytes + self.results_bytes + self.control_bytes

    @property
    def up_bytes(self) -> int:
        """All that leaves a node in a round; as much comes in."""
        return self.exchange_bytes + self.audits_bytes

    @property
    def encode_s(self) -> float:
        """From the last step to the contribution, encoded."""
        return 1e-9 * ENCODE_NS.get(self.codec, ENCODE_NS["fp16"]) * self.synced_parameters

    @property
    def save_s(self) -> float:
        """From there to the COMMIT: what has to be on the disk."""
        return self.saved_bytes / DISK_BYTES_PER_S

    @property
    def seal_s(self) -> float:
        """Sums, the outer step and its roots, at both ends of the exchange."""
        return 1e-9 * SEAL_NS * self.synced_parameters

    def exchange_s(self, line: Line) -> float:
        """From the last COMMIT to the last SEAL where all have such a line."""
        # Parts and results follow each other; of either as much goes up as comes down.
        rate = 1e6 / 8 * min(line.up_mbit, line.down_mbit)
        return self.exchange_bytes / rate + self.message_delays * line.rtt_ms / 2000


def costs_of(manifest: RunManifest, peers: int) -> Costs:
    """The costs of a node among so many. Raises ConfigError for a manifest that cannot run."""
    layout, outer = manifest.layout(0), manifest.outer
    codec = make_codec(outer)
    # Each round is about another fragment.
    payloads = [
        sum(in_grade(codec, 0, numel).payload_bytes(numel) for numel in numels)
        for numels in layout.cell_numels
    ]
    results_each = [sum(sizes) for sizes in cell_sizes(manifest).result]
    payload, result = max(payloads), max(results_each)
    reducers = num_reducers(peers, manifest.trust, outer.topology)
    turns = peers * layout.num_fragments
    seldom = seldom_bytes(manifest, peers)
    parts = sum(payloads) * reducers * (peers - 1) // turns
    results = sum(results_each) * (peers - reducers) // turns
    if outer.preset in IN_PROCESS:
        parts, results = round(payload * IN_PROCESS[outer.preset].copies(peers)), 0
    return Costs(
        parameters=layout.numel,
        peers=peers,
        payload_bytes=payload,
        result_bytes=result,
        parts_bytes=parts,
        results_bytes=results,
        control_bytes=CONTROL_BYTES * (peers - 1),
        audits_bytes=round(manifest.audits.rate * audit_bytes(manifest)),
        network_memory_bytes=NETWORK_BASE_BYTES + total(manifest, peers, "memory", "network"),
        trainer_host_bytes=TRAINER_BASE_BYTES + total(manifest, peers, "memory", "trainer"),
        trainer_card_bytes=total(manifest, peers, "card", "trainer"),
        activation_bytes=activation_bytes(manifest),
        disk_bytes=total(manifest, peers, "disk"),
        written_bytes=total(manifest, peers, "written"),
        checkpoint_bytes=seldom[CHECKPOINT],
        moments_bytes=seldom[MOMENTS],
        saved_bytes=saved_bytes(manifest, peers),
        synced_parameters=layout.numel // layout.num_fragments,
        codec=outer.codec,
        message_delays=MESSAGE_DELAYS_GATHER if outer.everybody_sums else MESSAGE_DELAYS,
    )


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

    machine: Machine | None = None
    """What this one has free; None where nobody looked."""

    device: str = DEVICE_DEFAULT
    lines: tuple[Line, ...] = HOME_LINES

    @property
    def wants(self) -> Wants:
        """What a node takes of this machine."""
        is_on_card = self.machine is not None and self.machine.is_on_card(self.device)
        return wants_of(self.manifest, self.costs.peers, is_on_card=is_on_card)

    @property
    def short(self) -> list[str]:
        """What this machine has too little of, in words."""
        return [] if self.machine is None else shortages(self.wants, self.machine)


def check_step(step_s: float | None) -> None:
    """Raises ConfigError for seconds that no inner step takes."""
    if step_s is not None and not STEP_S_MIN <= step_s <= STEP_S_MAX:
        bounds = f"{STEP_S_MIN:g}..{STEP_S_MAX:g}"
        raise ConfigError(f"--step-s {step_s:g} is not within {bounds}: no inner step takes that")


def check_run_file(path: Path, peers: int, machine: Machine | None = None) -> Checked:
    """Read it as a founder does, and count for so many peers, and for this machine. Raises
    ConfigError naming each key that is wrong, with what to write instead."""
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
        machine=machine,
    )


def steps_on(found: Checked, exchange_s: float, step_s: float | None) -> int:
    """Inner steps of a round where all have such an exchange: H, or what peers would choose."""
    most, outer = found.manifest.inner.inner_steps, found.manifest.outer
    if step_s is None or not is_paced(outer.preset):
        return most
    cover = SHARE / (1.0 - SHARE) if outer.overlap == 1 else COVER
    return max(1, min(most, math.ceil(cover * exchange_s / step_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """What a round is made of where all have such a line, seconds; steps where they are known."""

    steps: int
    train_s: float | None
    encode_s: float
    save_s: float
    exchange_s: float
    seal_s: float
    is_overlapped: bool

    @property
    def waited_s(self) -> float:
        """What is no training."""
        return self.encode_s + self.save_s + self.exchange_s + self.seal_s

    @property
    def round_s(self) -> float | None:
        """The exchange follows the steps, or goes on beside them."""
        if self.train_s is None:
            return None
        if self.is_overlapped:
            own_s = self.train_s + self.encode_s + self.save_s
            return max(own_s, self.exchange_s + self.seal_s)
        return self.train_s + self.waited_s


def round_times(found: Checked, line: Line, step_s: float | None) -> RoundTimes:
    """A round over such lines, as peers would have it."""
    costs = found.costs
    exchange_s = costs.exchange_s(line)
    steps = steps_on(found, exchange_s, step_s)
    return RoundTimes(
        steps=steps,
        train_s=None if step_s is None else steps * step_s,
        encode_s=costs.encode_s,
        save_s=costs.save_s,
        exchange_s=exchange_s,
        seal_s=costs.seal_s,
        is_overlapped=found.manifest.outer.overlap > 1,
    )


def check_size_here(
    size: GptSize,
    path: Path,
    state: Path,
    look_at: Callable[[Path], Machine] = read_machine,
) -> None:
    """Raises ConfigError where this machine is too small for a node of a run of that size, as
    `path` would found it by default."""
    parsed = run_file_of(run_file_text(path.name, TITLE_DEFAULT, size).encode(), path)
    manifest = build_manifest(parsed, Founder(PeerId(bytes(32)), int(time.time())), path)
    check_room(manifest, run_folder(state, manifest.digest), look_at(state), device=DEVICE_DEFAULT)


def check_json(found: Checked, step_s: float | None) -> dict[str, object]:
    """The line that `--json` ends with; seconds are of one round."""
    manifest, costs, outer = found.manifest, found.costs, found.manifest.outer

    def of_line(line: Line) -> dict[str, object]:
        about, times = dataclasses.asdict(line), round_times(found, line, step_s)
        seconds = {
            name: None if value is None else round(value, 3)
            for name in ("train_s", "encode_s", "save_s", "exchange_s", "seal_s", "round_s")
            for value in (getattr(times, name),)
        }
        return {
            "line": about.pop("name"),
            **about,
            **seconds,
            "steps": times.steps,
        }

    def of(record: object, *names: str) -> dict[str, object]:
        return {name: getattr(record, name) for name in names}

    return {
        **of(outer, "preset", "codec"),
        "codec_settings": {one.name: one.value for one in outer.codec_settings},
        **of(outer, "feedback", "aggregator", "optimizer", "learning_rate", "momentum"),
        "fragments": len(manifest.shards[0].fragments),
        "overlap": outer.overlap,
        "equal_steps": has_equal_steps(manifest),
        "then": [dataclasses.asdict(one) for one in outer.then],
        "topology": outer.topology,
        "other_topology": other_than(outer.topology),
        "other_up_bytes": found.other.up_bytes,
        "inner_steps": manifest.inner.inner_steps,
        "rounds": manifest.rounds,
        "text": dataclasses.asdict(text_use(manifest, costs.peers)),
        "changed": list(found.changed),
        "warnings": list(found.warnings),
        **of(costs, "parameters", "peers", "payload_bytes", "result_bytes", "up_bytes"),
        "down_bytes": costs.up_bytes,
        "memory_bytes": costs.network_memory_bytes + costs.trainer_memory_bytes,
        **of(costs, "network_memory_bytes", "trainer_host_bytes", "trainer_card_bytes"),
        **of(costs, "activation_bytes", "disk_bytes", "written_bytes", "checkpoint_bytes"),
        **of(costs, "moments_bytes", "audits_bytes"),
        "items": _items_json(found),
        "machine": None if found.machine is None else dataclasses.asdict(found.machine),
        "short": found.short,
        **of(manifest.timing, "deadline_floor_s", "deadline_cap_s"),
        "audited_share": round(manifest.audits.rate / manifest.audits.segments, 6),
        "trace_bytes": trace_bytes(manifest),
        "lines": [of_line(line) for line in found.lines],
    }


def _items_json(found: Checked) -> list[dict[str, object]]:
    """What memory, disk and writes are made of."""
    places: tuple[Place, ...] = ("memory", "card", "disk", "written", "seldom")
    return [
        {"process": one.process, "place": place, "purpose": one.purpose, "bytes": num_bytes}
        for place in places
        for one, num_bytes in amounts(found.manifest, found.costs.peers, place)
    ]


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
        share = audits.rate / audits.segments
        rows.append(
            (
                "audits",
                f"{audits.rate:g} of each contribution: {share:.1%} more training, about"
                f" {_size(costs.audits_bytes)} of each node in a round and"
                f" {_size(trace_bytes(manifest))} of disk, both in the totals below. Who bends what"
                " it sends is met by an audit, on average, within"
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
        ("text", _text(found)),
        ("a contribution", f"{_size(costs.payload_bytes)}, a result {_size(costs.result_bytes)}"),
        ("a round", f"{_size(costs.up_bytes)} up, {_size(costs.up_bytes)} down, of each node"),
        ("who sums", _who_sums(found)),
        ("memory", _memory(costs)),
        ("disk", f"about {_size(costs.disk_bytes)}; {_written(costs)}"),
        ("this machine", _this_machine(found)),
        ("deadlines", _deadlines(found)),
        ("unequal speed", _unequal(found)),
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


@dataclass(frozen=True, slots=True)
class TextUse:
    """What a run makes of its text: `round_bytes` are of the tokens that one node trains on in a
    round, and `epochs` count all peers."""

    name: str
    tokens: int
    held_out_tokens: int
    vocab_size: int
    epochs: float
    round_bytes: int


def text_use(manifest: RunManifest, peers: int) -> TextUse:
    """Of so many peers that all take all steps."""
    corpus = manifest.corpus
    tokens = corpus.training_blocks * corpus.block_tokens
    round_tokens = tokens_per_round(manifest)
    return TextUse(
        name=corpus.name,
        tokens=tokens,
        held_out_tokens=corpus.held_out_tokens,
        vocab_size=corpus.vocab_size,
        epochs=manifest.rounds * peers * round_tokens / tokens,
        round_bytes=round_tokens * corpus.token_bytes,
    )


def tokens_per_round(manifest: RunManifest) -> int:
    """Tokens that one node trains on in a round of all steps; 0 where a model has no context."""
    context = next((one.value for one in manifest.model.settings if one.name == "context"), 0)
    return manifest.inner.inner_steps * manifest.inner.batch * int(context)


def _text(found: Checked) -> str:
    use = text_use(found.manifest, found.costs.peers)
    kinds = "bytes" if use.vocab_size == VOCABULARY else f"tokens of {use.vocab_size:,}"
    return (
        f"{use.name}: {use.tokens:,} {kinds} to train on, {use.held_out_tokens:,} held out;"
        f" {use.epochs:.2g} epochs; {_size(use.round_bytes)} of each node in a round"
    )


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


def _memory(costs: Costs) -> str:
    """By process, and what of the trainer's would be on a device of its own."""
    host, card = _size(costs.trainer_host_bytes), _size(costs.trainer_card_bytes)
    passes = f"{_size(costs.activation_bytes)} of it activations of a whole batch"
    return (
        f"about {_size(costs.network_memory_bytes)} network process,"
        f" {_size(costs.trainer_memory_bytes)} trainer"
        f" ({passes if costs.activation_bytes else 'activations come on top'}); with a GPU {host}"
        f" trainer and {card} on the card"
    )


def _written(costs: Costs) -> str:
    """To the disk: in each round, and what is written seldom."""
    text = f"{_size(costs.written_bytes)} written a round"
    if costs.checkpoint_bytes:
        text += f", {_size(costs.checkpoint_bytes)} more every {ROUNDS_APART} rounds (a checkpoint)"
    if costs.moments_bytes:
        text += (
            f", {_size(costs.moments_bytes)} more every {MOMENTS_APART_S / 60:g} minutes (moments)"
        )
    return text


def _this_machine(found: Checked) -> str:
    machine = found.machine
    if machine is None:
        return "not looked at"
    if found.short:
        return f"TOO SMALL for a node: {'; '.join(found.short)}"
    return f"has {gib(machine.memory_bytes)} of memory and {gib(machine.disk_bytes)} of disk free"


def _deadlines(found: Checked) -> str:
    timing = found.manifest.timing
    return (
        f"{timing.deadline_floor_s:g} to {timing.deadline_cap_s:g} s in which nothing happens;"
        " work that moves on is waited for"
    )


def _unequal(found: Checked) -> str:
    """What becomes of machines that are slower than the others."""
    if has_equal_steps(found.manifest):
        return f"{EQUAL_STEPS}: with one machine of half the speed the others wait half of the time"
    return "each takes as many of the steps as fit its speed, and counts by its tokens"


def _lines(found: Checked, step_s: float | None) -> Table:
    table = Table("line", "down", "up", box=None, pad_edge=False)
    parts = ("encode", "save", "exchange", "seal")
    for name in parts if step_s is None else ("train", *parts):
        table.add_column(name, justify="right")
    table.add_column("a round" if step_s is not None else "90 % training from", justify="right")
    for line in found.lines:
        times = round_times(found, line, step_s)
        # Where a step takes that long or longer, waiting is a tenth of the round or less.
        nine_tenths = 9 if not times.is_overlapped else 0.9
        last = f"steps of {_seconds(nine_tenths * times.waited_s / times.steps)}"
        seconds = [times.encode_s, times.save_s, times.exchange_s, times.seal_s]
        if times.train_s is not None and times.round_s is not None:
            last = f"{times.round_s:,.1f} s, {times.steps} steps"
            seconds.insert(0, times.train_s)
        mbit = (f"{line.down_mbit:g} Mbit/s", f"{line.up_mbit:g} Mbit/s")
        table.add_row(line.name, *mbit, *map(_seconds, seconds), last)
    return table


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1.0 else f"{seconds:,.1f} s"


def _size(num_bytes: int) -> str:
    if num_bytes < MIB:
        return f"{num_bytes / 1024:.0f} KiB"
    if num_bytes < 1024 * MIB:
        return f"{num_bytes / MIB:.1f} MiB"
    return f"{num_bytes / (1024 * MIB):.1f} GiB"
