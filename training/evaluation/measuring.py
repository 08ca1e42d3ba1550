"""What the processes share that measure a run: options, threads, errors, and lines of output."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from protocol.errors import BarnraiseError
from protocol.manifest import RunManifest
from training.channel.child_process import (
    exit_when_stdin_closes,
    leave_interrupts_to_parent,
    set_thread_budget,
)
from training.channel.manifest_file import read_manifest
from training.data.corpus import open_corpus
from training.data.sampling import Dataset

EXIT_FAILED = 1


def measuring_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The options that every measuring process has."""
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--manifest", type=Path, required=True, help="the signed manifest")
    parser.add_argument("--run", required=True, help="digest of the manifest, hexadecimal")
    parser.add_argument(
        "--child", action="store_true", help="end when standard input closes; ignore Ctrl+C"
    )
    return parser


def measure(
    options: argparse.Namespace, threads: int, work: Callable[[RunManifest, Dataset], None]
) -> int:
    """Open manifest and corpus, hold torch to so many threads, and do the work.

    Returns the exit status; an error is one line on standard error.
    """
    if options.child:
        leave_interrupts_to_parent()
        exit_when_stdin_closes()
    try:
        manifest = read_manifest(options.manifest, bytes.fromhex(options.run))
        dataset = open_corpus(manifest.corpus)
        set_thread_budget(threads)
        work(manifest, dataset)
    except (BarnraiseError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return EXIT_FAILED
    return 0


def say(kind: str, **fields: object) -> None:
    """Write one line of output, a JSON object with its kind."""
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()
