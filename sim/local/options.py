"""What `barnraise local` is asked to do, and what that decides of the manifest of its run."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from protocol import limits
from protocol.errors import ConfigError
from protocol.identity import PeerId
from protocol.manifest import AuditSpec, OuterSpec, RunManifest, Setting
from sim.attacks.alone import Lies, check_audits
from sim.processes.node_process import NODE_COMMAND, check_test_switch
from sim.processes.recipe import outer_spec, sign_run, small_manifest, with_then
from sim.processes.shaper import Shape
from sim.processes.sitting import check_choice, check_range, check_signal
from training.methods.presets import PRESETS
from training.models.genesis import shard_spec

PEERS_MIN, PEERS_MAX = 2, 32
PEERS_FOR_CHAOS = 3
"""With two voters the elder one alone is a quorum, and without it nothing goes on."""

ELEMENTS_MIN, ELEMENTS_MAX = 1024, 100_000_000

KINDS = {
    "kill": "a process dies at once, and starts again later",
    "freeze": "a node's processes stand still for a while",
    "churn": "nodes leave, come back, and new ones join",
    "stall": "a node's network line stands still, connections open",
    "reset": "all connections of a node break",
    "partition": "nothing passes between some nodes and the others, connections open",
}
NEEDS_SIGNALS = ("freeze",)
NEEDS_SHAPER = ("stall", "reset", "partition")
NEEDS_DIALLER = ("partition",)
"""The shaper must know both ends of a connection, which only Linux tells."""

TRUSTS = ("friends", "open")
TRAINERS = ("made-up", "real")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """One run of real nodes. `folder` is where everything goes; it must be new or empty."""

    peers: int
    folder: Path
    rounds: int | None = None
    """The run's last round; None where `duration_s` ends it."""

    duration_s: float | None = 60.0
    shape: Shape | None = None
    rates: tuple[float, ...] = ()
    """Bits per second of the line of each node, in the order of their start, where they differ."""

    kinds: tuple[str, ...] = ()
    """Faults that are dealt, one every `every_s` seconds."""

    every_s: float = 10.0
    seed: int = 0
    node_command: tuple[str, ...] = NODE_COMMAND
    """Which program is the network process."""

    trainer: str = "made-up"
    trainer_module: str = "sim.local.made_up_trainer"
    """Which program makes up what is contributed."""

    trainer_words: tuple[str, ...] = ()
    """More of its options."""

    train_s: float = 0.5
    """Seconds of made-up training per round."""

    start_within_s: float = 12.0
    """So long the founder waits for the seats of the others with its first round."""

    security: str = "tls"
    """How connections are encrypted; see `NodeConfig.security`."""

    elements: int = 100_000
    """Parameters of the made-up model; as many as fit its shapes, a few less."""

    fragments: int = 1
    """Of the model, synced in turn."""

    seats: int = limits.SEATS_MAX
    """So many contribute to a round."""

    preset: str | None = None
    """The method; None is the demo's. It also says into how many fragments, where it cuts."""

    then: tuple[str, int] | None = None
    """Another method, from that round on."""

    lag: int | None = None
    """Rounds in flight, L of R1; None are the preset's."""

    validates: bool = False
    """Whether nodes measure the loss on held-out text in turn, as they do by default."""

    steps: int | None = None
    """Inner steps of a round of real training; None are the preset's, or the demo's."""

    is_reckless: bool = False
    """Deal faults also where they leave less than a quorum."""

    keep_state: bool = False
    trust: str = "friends"
    audits: float = 0.0
    """How many each contribution meets, on average, in open runs."""

    attack: Lies | None = None
    """What the last nodes that start together contribute instead of their work."""

    test_switch: str | None = None
    """Bends the second node, to show that the checks can fail."""

    def __post_init__(self) -> None:
        check_range("--peers", self.peers, PEERS_MIN, PEERS_MAX)
        if (self.rounds is None) == (self.duration_s is None):
            raise ConfigError("give either --rounds or --duration")
        check_range("--rounds", self.rounds, 1, limits.ROUNDS_MAX)
        check_choice("--trainer", self.trainer, TRAINERS)
        check_range("--elements", self.elements, ELEMENTS_MIN, ELEMENTS_MAX)
        check_test_switch(self.test_switch)
        check_choice("--preset", self.preset, PRESETS)
        check_choice("--then", self.then and self.then[0], PRESETS)
        if self.preset is not None and (lacks := PRESETS[self.preset](1).lacks):
            raise ConfigError(f"--preset {self.preset!r}: no node runs it, it needs {lacks}")
        check_choice("--trust", self.trust, TRUSTS)
        check_range("--lag", self.lag, 1, 2)
        check_range("--audits", self.audits, 0, 1)
        if self.audits and self.trust != "open":
            raise ConfigError("--audits is for open runs: friends trust each other")
        if self.attack is not None:
            check_audits(self.attack.name, self.audits)
        self._check_kinds()

    def _check_kinds(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ConfigError(f"--chaos: no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
        if len(set(self.kinds)) != len(self.kinds):
            raise ConfigError("--chaos: a fault is named twice")
        if self.kinds and self.peers < PEERS_FOR_CHAOS and not self.is_reckless:
            raise ConfigError(
                f"--chaos takes at least {PEERS_FOR_CHAOS} peers: of {self.peers}, one that is "
                "missing is one too many. --reckless does it all the same"
            )
        for kind in self.kinds:
            if kind in NEEDS_DIALLER and not sys.platform.startswith("linux"):
                raise ConfigError(f"--chaos {kind}: only Linux tells whose a connection is")
            if kind in NEEDS_SIGNALS:
                check_signal(f"--chaos {kind}", "SIGSTOP")

    @property
    def exchange_s(self) -> float:
        """What the line of a node takes at most for what a round moves: two bytes of a part and two
        of a result per parameter, to each of the others."""
        rate = self.shape.bits_per_s if self.shape is not None else None
        return 0.0 if rate is None else 8 * 4 * self.elements * (self.peers - 1) / rate

    @property
    def needs_shaper(self) -> bool:
        """Whether there is a proxy between the nodes."""
        return self.shape is not None or any(kind in NEEDS_SHAPER for kind in self.kinds)


def then_named(text: str | None) -> tuple[str, int] | None:
    """`eager:25` as a preset and a round. Raises ConfigError for no such text."""
    if text is None:
        return None
    name, _, number = text.partition(":")
    if not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise ConfigError(f"--then {text!r} is no preset and round, such as eager:25")
    return name, int(number)


def kinds_named(text: str | None) -> tuple[str, ...]:
    """`kill,freeze` as a tuple; which kinds there are is checked with the other options."""
    return () if text is None else tuple(part.strip() for part in text.split(","))


# The run that its nodes take part in --------------------------------------------------------------

SEGMENTS = 8
"""Of a round, in runs with audits; a made-up round has as many steps."""

ROUNDS_WITHOUT_END = 1_000_000
PATIENT = {"deadline_floor_s": 10.0, "deadline_cap_s": 30.0}
"""Of runs with liars: nodes of one machine are slow to start, and no rule bears a round of whose
contributions only those of the liars are there in time."""

CELLS = 24
"""At least about so many, so that there are some for every reducer."""

_CONTEXT_MIN, _CONTEXT_MAX = 16, 1 << 20


def model_settings(elements: int) -> tuple[Setting, ...]:
    """Settings of a GPT of `elements` parameters, or up to 63 fewer.

    Nobody runs it: a long table of positions makes up what is missing.
    """
    for width in (64, 16, 4, 1):
        fixed = 256 * width + width + 2 * width + 12 * width * width
        context = (elements - fixed) // width
        if context >= _CONTEXT_MIN:
            break
    else:
        context = _CONTEXT_MIN
    layers = 1
    while context > _CONTEXT_MAX:
        # Of layers there may be many; of positions there is a most.
        layers += 1
        context = (elements - 257 * width - layers * (2 * width + 12 * width * width)) // width
    return (
        Setting("context", context),
        Setting("heads", 1),
        Setting("layers", layers),
        Setting("width", width),
    )


def local_manifest(options: LocalOptions, founder: PeerId) -> RunManifest:
    """The manifest. Raises CorpusError where this Python lacks its library sources."""
    rounds = ROUNDS_WITHOUT_END if options.rounds is None else options.rounds
    base = small_manifest("barnraise local", founder, rounds=rounds, seed=options.seed)
    # As a founder's run.toml that names no rule.
    outer, fragments = base.outer, options.fragments
    preset = None if options.preset is None else PRESETS[options.preset](rounds)
    if preset is not None:
        assert options.preset is not None
        outer = outer_spec(options.preset, preset)
        fragments = max(fragments, preset.fragments)
    if options.then is not None:
        name, from_round = options.then
        outer = with_then(outer, name, from_round, rounds)
    rule = "default" if options.trust == "open" else outer.aggregator
    timing = replace(base.timing, **PATIENT) if options.attack else base.timing
    lag = options.lag or outer.overlap
    if not any(PRESETS[one](rounds).is_delayed for one in methods_of(outer)):
        # Two rounds in flight are about different fragments (R5).
        fragments = max(fragments, lag)
    manifest = replace(
        base,
        trust=options.trust,
        timing=timing,
        outer=replace(outer, aggregator=rule, overlap=lag),
        admission=replace(base.admission, seats=options.seats),
    )
    steps = options.steps or (preset.inner_steps if preset else base.inner.inner_steps)
    audits = base.audits
    if options.audits:
        _check_audited(manifest.outer, steps if options.trainer == "real" else SEGMENTS)
        audits = AuditSpec(rate=options.audits, segments=SEGMENTS)
    if options.trainer == "real":
        shard = shard_spec(manifest.model, fragments=fragments)
        inner = replace(manifest.inner, inner_steps=steps)
        if preset is not None:
            radius = preset.sam_radius
            inner = replace(inner, optimizer=preset.inner_optimizer, sam_radius=radius)
        return replace(manifest, shards=(shard,), inner=inner, audits=audits)
    model = replace(manifest.model, settings=model_settings(options.elements))
    shard = shard_spec(model, fragments=fragments)
    numel = sum(tensor.numel for tensor in shard.tensors) // fragments
    cell = 1 << max(0, (numel // CELLS).bit_length() - 1)
    cell = min(max(cell, limits.CELL_ELEMENTS_MIN), limits.CELL_ELEMENTS_MAX)
    inner = replace(manifest.inner, inner_steps=SEGMENTS if options.audits else 1, batch=1)
    return replace(
        manifest, model=model, shards=(shard,), cell_elements=cell, inner=inner, audits=audits
    )


def _check_audited(outer: OuterSpec, steps: int) -> None:
    """Raises ConfigError for what a run with audits cannot be."""
    if outer.overlap > 1:
        raise ConfigError(
            f"--audits: are for runs with one round in flight, not {outer.overlap}; --audits 0 goes"
            " without"
        )
    if steps < SEGMENTS:
        raise ConfigError(
            f"--audits: a round has {SEGMENTS} segments, and {steps} steps are fewer; take more"
            " --steps, or --audits 0"
        )


def methods_of(outer: OuterSpec) -> tuple[str, ...]:
    """The presets of a run, in order."""
    return outer.preset, *(one.preset for one in outer.then)


def found_run(
    options: LocalOptions,
    *,
    state: Path,
    manifest_path: Path,
    amend: Callable[[RunManifest], RunManifest] = lambda manifest: manifest,
) -> RunManifest:
    """Make the founder's key in its state folder, and the signed manifest as a file for all.

    `amend` makes another manifest of the usual one.
    """
    return sign_run(lambda founder: amend(local_manifest(options, founder)), state, manifest_path)
