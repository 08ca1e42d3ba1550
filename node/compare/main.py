"""`barnraise compare` from its options to its exit status."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from rich.console import Console
from rich.table import Table

from node.compare.runs import (
    LINE,
    SIGNER,
    Compared,
    CompareOptions,
    Point,
    compare_json,
    runs_of,
    step_s_of,
)
from node.processes.exit_codes import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED
from node.processes.json_child import Line, number, run_json_child
from node.state.folder import write_atomically
from protocol.errors import ConfigError
from protocol.manifest import sign_manifest
from protocol.wire import encode

COMMAND = (sys.executable, "-P", "-m", "sim.methods.compare_main")
PLOT_FILE, RESULT_FILE = "compare.png", "compare.json"
_WIDTH = 110


def run_compare(options: CompareOptions, *, to_stderr: bool) -> tuple[dict[str, object], int]:
    """Train each preset, tell, and write plot and numbers; the object, and the exit status.

    Numbers are written behind each preset: a Ctrl+C leaves those that are done.

    Raises ConfigError for a preset or a folder that cannot be used.
    """
    runs, done = runs_of(options), list[Compared]()
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {options.folder}: {error.strerror}") from error
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
    from node.compare.plot import draw_plot

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

    def hear(line: Line) -> None:
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
