"""The runs that are compared: one run.toml, with one preset after the other in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.settings.check import Costs, Line, costs_of
from node.settings.run_file import Founder, build_manifest, parse_run_file, write_out
from node.settings.sections import InnerSection, OuterSection, RunFile, RunSection
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer
from protocol.manifest import RunManifest
from training.methods.presets import PRESETS

TOY = RunFile(
    run=RunSection(title="barnraise compare"), inner=InnerSection(batch=8, warmup_steps=100)
)
"""What is trained where no run.toml is named: the GPT of `barnraise init`, with small batches."""

PRESETS_DEFAULT = (
    "diloco_fp32",
    "diloco",
    "diloco_int8",
    "diloco_int4",
    "diloco_ternary",
    "sparseloco",
)

SIGNER = Ed25519Signer(b"barnraise compare: nobody joins.")
"""Signs manifests that never leave this machine."""

LINE = Line("20 Mbit/s, 80 ms", 20.0, 20.0, 80.0)
"""Of the seconds that are compared: in one process there is no line to wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """What to compare. `inner_steps` None is each preset's own H; `file` None is the toy run."""

    presets: tuple[str, ...]
    steps: int
    peers: int
    inner_steps: int | None
    seed: int
    file: Path | None
    folder: Path


@dataclass(frozen=True, slots=True)
class Point:
    """Of a curve: validation loss, nats per byte, after so many inner steps of each replica."""

    step: int
    loss: float


@dataclass(slots=True, kw_only=True)
class Compared:
    """One preset: its run, and what came of it."""

    preset: str
    manifest: RunManifest
    costs: Costs
    model_file: Path | None = None
    """Where the model's own code lies, if it has any."""
    points: list[Point] = field(default_factory=list)
    loss: float | None = None
    """On the large sample of held-out text; None where the run failed."""

    payload_bytes: int = 0
    """Counted: one peer's contributions."""

    wall_s: float = 0.0
    """On this machine, all replicas together, without validation."""

    error: str = ""

    @property
    def wire_bytes(self) -> int:
        """All that leaves one peer in the whole run, by the formula of `barnraise check`."""
        return self.manifest.rounds * self.costs.up_bytes

    def wire_bytes_at(self, step: int) -> int:
        """The same after so many inner steps."""
        return step // self.manifest.inner.inner_steps * self.costs.up_bytes

    def line_s_at(self, step: int, step_s: float) -> float:
        """When so many steps of `step_s` are done among peers on the LINE."""
        rounds = step // self.manifest.inner.inner_steps
        return step * step_s + rounds * self.costs.exchange_s(LINE)


def runs_of(options: CompareOptions) -> list[Compared]:
    """The runs, ready to be trained. Raises ConfigError for what cannot be run."""
    path = options.file or Path("the built-in run")
    base = TOY if options.file is None else parse_run_file(path)
    model_file = None if base.model.file is None else path.parent / base.model.file
    runs = []
    for preset in options.presets:
        parsed = write_out(_with_preset(base, preset, options), path, in_process=True)
        # Equal runs have equal manifests, whenever they are compared.
        manifest = build_manifest(parsed, Founder(SIGNER.peer_id, 0), path)
        costs = costs_of(manifest, options.peers)
        runs.append(Compared(preset=preset, manifest=manifest, costs=costs, model_file=model_file))
    return runs


def _with_preset(base: RunFile, preset: str, options: CompareOptions) -> RunFile:
    """The file with the preset's method in place of its own, as long as is asked for."""
    inner_steps = options.inner_steps
    if inner_steps is None:
        # An unknown preset is refused with the file.
        inner_steps = PRESETS[preset](1).inner_steps if preset in PRESETS else 1
    if not 1 <= inner_steps <= options.steps:
        raise ConfigError(f"--steps {options.steps}: {preset} has rounds of {inner_steps} steps")
    run = base.run.model_copy(update={"rounds": options.steps // inner_steps})
    inner = base.inner.model_copy(update={"inner_steps": inner_steps})
    model = base.model.model_copy(update={"seed": options.seed})
    corpus = base.corpus.model_copy(update={"permutation_seed": options.seed})
    return base.model_copy(
        update={
            "run": run,
            "inner": inner,
            "outer": OuterSection(preset=preset),
            "model": model,
            "corpus": corpus,
        }
    )


def step_s_of(runs: Sequence[Compared]) -> float:
    """Seconds of one inner step: of the fastest run, so that all are shown with the same."""
    times = [run.wall_s / run.manifest.total_inner_steps for run in runs if run.wall_s > 0.0]
    return min(times, default=0.0)


def compare_json(runs: Sequence[Compared], options: CompareOptions) -> Mapping[str, object]:
    """The line that `--json` ends with."""
    step_s = step_s_of(runs)
    return {
        "peers": options.peers,
        "steps": options.steps,
        "seed": options.seed,
        "parameters": runs[0].costs.parameters,
        "line": LINE.name,
        "presets": [
            {
                "preset": run.preset,
                "codec": run.manifest.outer.codec,
                "rounds": run.manifest.rounds,
                "inner_steps": run.manifest.inner.inner_steps,
                "loss": run.loss,
                "payload_bytes": run.payload_bytes,
                "wire_bytes": run.wire_bytes,
                "wall_s": run.wall_s,
                "line_s": round(run.line_s_at(run.manifest.total_inner_steps, step_s), 1),
                "error": run.error,
                "curve": [(point.step, round(point.loss, 5)) for point in run.points],
            }
            for run in runs
        ],
    }
