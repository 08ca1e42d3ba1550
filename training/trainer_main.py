"""The trainer process: inner steps in torch, rounds through the channel to the network process.

Run by the network process as `python -P -m training.trainer_main`. Standard input and output are
the control pipe; what the trainer has to say goes to standard error. It ends when its run is over,
and at once, in mid-step, when the pipe closes.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from protocol.errors import BarnraiseError
from training.channel import ChannelExchange, ChannelFile, channel_spec
from training.child_process import exit_now, leave_interrupts_to_parent, set_thread_budget
from training.manifest_file import read_manifest

logger = logging.getLogger(__name__)

EXIT_FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trainer; returns the exit status."""
    leave_interrupts_to_parent()
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    read_fd, write_fd = _take_pipe()
    try:
        manifest = read_manifest(options.manifest, bytes.fromhex(options.run))
        spec = channel_spec(manifest, options.shard)
        with ChannelFile.open(options.channel, spec) as channel:
            # The watcher must run before torch is imported: that takes a second or more.
            exchange = ChannelExchange(
                channel, read_fd=read_fd, write_fd=write_fd, on_closed=exit_now
            )
            set_thread_budget(options.threads)
            from training.trainer_loop import train

            train(manifest, exchange, shard=options.shard)
    except (BarnraiseError, OSError) as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - not a bug of ours
        return EXIT_FAILED
    return 0


def _take_pipe() -> tuple[int, int]:
    """The control pipe, for us alone: what a library prints goes to standard error instead."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return read_fd, write_fd


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="training.trainer_main", description=__doc__)
    parser.add_argument("--channel", type=Path, required=True, help="the mapped file")
    parser.add_argument("--manifest", type=Path, required=True, help="the signed manifest")
    parser.add_argument("--run", required=True, help="its digest, hexadecimal")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
