"""`make fuzz`: every decoder of the register under libFuzzer, whose mutants follow branch coverage.

    python -m tests.fuzz.atheris_main --seconds 600 [--target NAME] [--jobs N]

On demand, not in the suite: it takes its time, and atheris has wheels for Linux alone (3.0 for
Python 3.11, 3.1 for 3.12 and 3.13), so no lock file names it. Every target gets an equal share of
the time in a forked process of its own. What breaks one is kept in `tests/fuzz/crashes/TARGET/`,
where the quick suite tries it for ever after (`test_crashes.py`). Exit status 1: something broke.
"""

import argparse
import difflib
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ["protocol", "dht", "training", "node"]
CRASHES = Path(__file__).parent / "crashes"
INPUT_BYTES_MAX = 1 << 16
TIMEOUT_S, RSS_MIB_MAX, ALLOCATION_MIB_MAX = 20, 2048, 512
LAST_WORDS = 3000
SETUP_ERROR = 2
"""Exit status of a child that never came to fuzz."""


def fuzz_target(atheris: Any, target: Any, seconds: int) -> None:
    """Fuzz one decoder in this process, which ends with it."""
    CRASHES.mkdir(exist_ok=True)
    kept = CRASHES / target.name
    with tempfile.TemporaryDirectory() as name:
        folder, seeds = Path(name) / "work", Path(name) / "seeds"
        for place in (folder, seeds):
            place.mkdir()
        for number, example in enumerate((*target.examples(), *_dumped(target))):
            (seeds / str(number)).write_bytes(example)
        kept.mkdir(exist_ok=True)
        options = [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-timeout={TIMEOUT_S}",
            f"-rss_limit_mb={RSS_MIB_MAX}",
            f"-malloc_limit_mb={ALLOCATION_MIB_MAX}",
            f"-artifact_prefix={kept}/",
            "-print_final_stats=1",
            str(seeds),
        ]

        def once(data: bytes) -> None:
            target.attempt(target.wrap(data), folder)

        atheris.Setup(options, once)
        atheris.Fuzz()


def _dumped(target: Any) -> Iterator[bytes]:
    if target.dump is not None:
        yield from (target.dump(tree) for tree in target.trees())


def child(atheris: Any, target: Any, seconds: int, log: Path) -> int:
    """The id of a forked process that fuzzes `target`; its output goes to `log`."""
    pid = os.fork()
    if pid:
        return pid
    status = SETUP_ERROR
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        fuzz_target(atheris, target, seconds)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else SETUP_ERROR
    except OSError:
        traceback.print_exc()  # Else nobody would know why it never came to fuzz.
    finally:
        os._exit(status)


def executions(log: Path) -> int:
    """How many inputs a child tried, by its last words."""
    for line in log.read_text("utf-8", "replace").splitlines():
        if line.startswith("stat::number_of_executed_units:"):
            return int(line.split()[-1])
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description="every decoder under libFuzzer")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    try:
        import atheris
    except ImportError:
        sys.stdout.write("atheris is not installed: `make fuzz`, on Linux\n")
        return SETUP_ERROR
    # Branches are counted in what is imported from here on.
    with atheris.instrument_imports(include=PACKAGES):
        from tests.fuzz.test_decoders import TARGETS
    logging.disable(logging.CRITICAL)
    names = [one.name for one in TARGETS]
    for name in options.target:
        if name not in names:
            close = ", ".join(repr(one) for one in difflib.get_close_matches(name, names))
            sys.stdout.write(f"--target {name!r} is no decoder; near it: {close or names[0]!r}\n")
            return SETUP_ERROR
    chosen = [one for one in TARGETS if not options.target or one.name in options.target]
    seconds = max(1, options.seconds * options.jobs // max(1, len(chosen)))
    broken, total = [], 0
    with tempfile.TemporaryDirectory() as name:
        # No threads: whoever forks beside them takes their locks along.
        waiting, running = list(enumerate(chosen)), dict[int, tuple[Any, Path]]()
        done = 0
        while waiting or running:
            while waiting and len(running) < options.jobs:
                number, target = waiting.pop(0)
                log = Path(name) / f"{number}.log"
                running[child(atheris, target, seconds, log)] = (target, log)
            pid, wait_status = os.wait()
            target, log = running.pop(pid)
            status = os.waitstatus_to_exitcode(wait_status)
            total, done = total + executions(log), done + 1
            sys.stdout.write(f"{done} of {len(chosen)}  {target.name}: {executions(log)} inputs\n")
            sys.stdout.flush()
            if status or not executions(log):
                broken.append(target.name)
                last_words = log.read_text("utf-8", "replace")[-LAST_WORDS:]
                sys.stdout.write(f"{target.name}: exit {status}\n{last_words}\n")
    for place in CRASHES.iterdir() if CRASHES.exists() else ():
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
    counts = f"{len(chosen)} decoders, {seconds} s each, {total} inputs"
    sys.stdout.write(f"{counts}, {len(broken)} broken {broken}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
