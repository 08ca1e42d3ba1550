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
from contextlib import suppress
from pathlib import Path

from protocol.errors import BarnraiseError, ConfigError
from training.channel.child_process import (
    exit_now,
    leave_interrupts_to_parent,
    set_thread_budget,
    take_control_pipe,
)
from training.channel.frames import failure_frame, pack_frame
from training.channel.manifest_file import read_manifest
from training.channel.trainer_end import ChannelExchange, ChannelFile, ControlPipe, channel_spec

logger = logging.getLogger(__name__)

EXIT_FAILED, EXIT_CONFIG = 1, 2
"""The second is for what the user can mend, such as a device that is not there."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one trainer; returns the exit status."""
    leave_interrupts_to_parent()
    options = _parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    read_fd, write_fd = take_control_pipe()
    try:
        manifest = read_manifest(options.manifest, bytes.fromhex(options.run))
        spec = channel_spec(manifest, options.shard)
        with ChannelFile.open(options.channel, spec) as channel:
            # The watcher must run before torch is imported: that takes a second or more.
            pipe = ControlPipe(read_fd, write_fd, on_closed=exit_now)
            exchange = ChannelExchange(channel, pipe)
            set_thread_budget(options.threads)
            from training.loop.trainer_loop import TrainerOptions, train

            train(
                manifest,
                exchange,
                TrainerOptions(
                    shard=options.shard,
                    device=options.device,
                    model_file=options.model_file,
                    corpus=options.corpus,
                    inner_folder=options.inner,
                    validation_share=options.validation_share,
                ),
            )
    except (BarnraiseError, OSError) as error:
        logger.error("%s: %s", type(error).__name__, error)  # noqa: TRY400 - not a bug of ours
        told = _for_the_user(error)
        if told is None:
            return EXIT_FAILED
        # The network process ends with it; nobody reads it where that one is gone.
        with suppress(OSError):
            os.write(write_fd, pack_frame(failure_frame(told)))
        return EXIT_CONFIG
    return 0


def _for_the_user(error: BarnraiseError | OSError) -> ConfigError | None:
    """What the user can mend, a disk for instance; None for what is the network process's."""
    if isinstance(error, OSError):
        why = error.strerror or str(error)
        return ConfigError(f"{error.filename}: {why}" if error.filename else why)
    return error if isinstance(error, ConfigError) else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="training.trainer_main", description=__doc__)
    parser.add_argument(
        "--channel", type=Path, required=True, help="the memory-mapped file of the channel"
    )
    parser.add_argument("--manifest", type=Path, required=True, help="the signed manifest")
    parser.add_argument("--run", required=True, help="digest of the manifest, hexadecimal")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument(
        "--model-file", type=Path, help="the model file of the run, if its manifest names one"
    )
    parser.add_argument("--corpus", type=Path, help="the token store of the run's text")
    parser.add_argument(
        "--inner", type=Path, help="folder for inner states; without it none are kept"
    )
    parser.add_argument(
        "--validation-share",
        type=float,
        default=0.0,
        help="share of the time that may go into the held-out loss while the run goes on",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
