"""`barnraise compare` from its options to its exit status."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from rich.console import Console
from rich.table import Table

from node.processes.children import JsonLine, number, run_json_child
from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from node.settings.check import Costs, Line, costs_of
from node.settings.run_file import Founder, build_manifest, parse_run_file, write_out
from node.settings.sections import InnerSection, OuterSection, RunFile, RunSection
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer
from protocol.manifest import RunManifest, sign_manifest
from protocol.wire import encode
from sim.processes.sitting import claim_folder
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


COMMAND = (sys.executable, "-P", "-m", "sim.methods.compare_main")
PLOT_FILE, RESULT_FILE = "compare.png", "compare.json"
_WIDTH = 110


def run_compare(options: CompareOptions, *, to_stderr: bool) -> tuple[dict[str, object], int]:
    """Train each preset, tell, and write plot and numbers; the object, and the exit status.

    Numbers are written behind each preset: a Ctrl+C leaves those that are done.

    Raises ConfigError for a preset or a folder that cannot be used.
    """
    runs, done = runs_of(options), list[Compared]()
    claim_folder(options.folder, is_fresh=False)
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)  # A file has no edge.
    status = EXIT_DONE
    try:
        with TemporaryDirectory() as folder:
            for run in runs:
                _train_and_tell(run, options.peers, Path(folder) / "manifest.msgpack", console)
                done.append(run)
                console.print(f"{len(done)} of {len(runs)}  {_told(run)}", soft_wrap=True)
                _write_numbers(done, options)
    except KeyboardInterrupt:
        if not done:
            raise
        console.print("interrupted: these were done", style="yellow")
        status = EXIT_INTERRUPTED
    console.print(table_of(done))
    # matplotlib takes half a second to load, and only this needs it.
    from sim.compare.plot import draw_plot

    try:
        draw_plot(done, options.folder / PLOT_FILE)
    except OSError as error:
        raise ConfigError(f"--out {options.folder}: {error.strerror}") from error
    console.print(f"{PLOT_FILE} and {RESULT_FILE} are in {options.folder}", soft_wrap=True)
    failed = any(run.error for run in done)
    return dict(compare_json(done, options)), status or (EXIT_FAILED if failed else EXIT_DONE)


def _write_numbers(runs: Sequence[Compared], options: CompareOptions) -> None:
    text = json.dumps(compare_json(runs, options), indent=1) + "\n"
    try:
        write_atomically(options.folder / RESULT_FILE, text.encode(), 0o644)
    except OSError as error:
        raise ConfigError(f"--out {options.folder}: {error.strerror}") from error


def _train_and_tell(run: Compared, peers: int, path: Path, console: Console) -> None:
    """Shows how far it is, on a terminal."""
    steps = run.manifest.total_inner_steps

    def seen() -> None:
        step, loss = run.points[-1].step, run.points[-1].loss
        shown.update(f"{run.preset}: step {step} of {steps}, loss {loss:.3f}")

    with console.status(f"{run.preset}: {steps} steps") as shown:
        _train(run, peers, path, seen)


def _told(run: Compared) -> str:
    if run.loss is None:
        return f"{run.preset}: {run.error}"
    return f"{run.preset}: loss {run.loss:.4f}, {run.wall_s:.0f} s"


def _train(run: Compared, peers: int, path: Path, seen: Callable[[], None]) -> None:
    """One preset, in a process of its own: it loads torch. `seen` is called for each point."""
    path.write_bytes(encode(sign_manifest(run.manifest, SIGNER)))
    words = ["--manifest", str(path), "--run", run.manifest.digest.hex(), "--peers", str(peers)]
    if run.model_file is not None:
        words += ["--model-file", str(run.model_file)]

    def hear(line: JsonLine) -> None:
        if line["kind"] == "point":
            run.points.append(Point(int(number(line["step"])), number(line["loss"])))
            seen()
            return
        run.loss = number(line["loss"])
        run.payload_bytes = int(number(line["payload_bytes"]))
        run.wall_s = number(line["wall_s"])

    log = path.with_suffix(".log")
    with log.open("wb") as stderr:
        child = partial(run_json_child, [*COMMAND, *words, "--child"], hear, stderr=stderr)
        status = trio.run(child)
    if status != 0:
        *_, last = ["no word", *log.read_text("utf-8", "replace").splitlines()]
        run.error = last


def table_of(runs: Sequence[Compared]) -> Table:
    """What people see of the runs at the end."""
    table = Table(box=None, pad_edge=False)
    for title in ("preset", "codec"):
        table.add_column(title, no_wrap=True)
    titles = ("rounds", "H", "loss", "payload", "fewer", "wire", "fewer", "this machine", LINE.name)
    for title in titles:
        table.add_column(title, justify="right")
    step_s, most = step_s_of(runs), max(run.payload_bytes for run in runs)
    widest = max(run.wire_bytes for run in runs)
    for run in runs:
        manifest = run.manifest
        loss = f"{run.loss:.4f}" if run.loss is not None else run.error[:40]
        table.add_row(
            run.preset,
            manifest.outer.codec,
            str(manifest.rounds),
            str(manifest.inner.inner_steps),
            loss,
            f"{run.payload_bytes / 1e6:.2f} MB",
            f"{most / run.payload_bytes:.1f}" if run.payload_bytes else "",
            f"{run.wire_bytes / 1e6:.2f} MB",
            f"{widest / run.wire_bytes:.1f}" if run.wire_bytes else "",
            f"{run.wall_s:.0f} s",
            f"{run.line_s_at(manifest.total_inner_steps, step_s):.0f} s",
        )
    table.caption = (
        "loss: nats per byte of held-out text; payload: one peer's contributions; wire: all that"
        " leaves it, by the formula of `barnraise check`; fewer: against the largest here"
    )
    return table
