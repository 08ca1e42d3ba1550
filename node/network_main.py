"""The network process as a child: of the demo, or of a user's own training program. No torch.

    python -P -m node.network_main --state DIR --manifest FILE [--bootstrap ADDRESS]
    python -P -m node.network_main --state DIR --join LINK_OR_ADDRESS --attached

It lives as long as its standard input: whoever started it ends it by closing the pipe. `barnraise
run` and `barnraise join` are network processes themselves (`node.daemon.foreground`).
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from node.daemon.assembly import Node
from node.daemon.network_child import JOIN_VARIABLE, take_from_environment
from node.daemon.running import RunContext, run_node
from node.peers.departure import Departure
from node.peers.joining import join_run, parse_target
from node.peers.neighbours import look_around, says_so
from node.plane.hooks import NodeHooks, hooks_named
from node.processes.exit_codes import EXIT_INTERRUPTED, exit_status, user_error
from node.processes.interrupts import end_now
from node.processes.loop import run_loop
from node.reporting.logs import start_logging
from node.reporting.trace_file import tracing
from node.state.config import (
    DEVICE_DEFAULT,
    LISTEN_DEFAULT,
    SECURITIES,
    VALIDATION_SHARE_DEFAULT,
    NodeConfig,
)
from node.state.folder import MANIFEST_FILE, run_folder
from node.state.keystore import check_private, has_identity, load_or_create_identity, read_psk
from node.state.lock import locked_state
from node.state.stored_manifest import make_run_folder, read_signed_manifest
from node.status.board import EventLog, StatusBoard
from node.trainers.attached_trainer import Attachment, attachment
from protocol.errors import BarnraiseError, ConfigError
from protocol.identity import Ed25519Signer
from protocol.manifest import SignedManifest

logger = logging.getLogger(__name__)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="node.network_main", description=__doc__)
    parser.add_argument(
        "--state", type=Path, required=True, help="state folder, with the key and the checkpoints"
    )
    run = parser.add_mutually_exclusive_group()
    run.add_argument("--manifest", type=Path, help="the run's signed manifest")
    run.add_argument(
        "--join", help=f"an invite link, or a peer's address; by default what {JOIN_VARIABLE} says"
    )
    parser.add_argument(
        "--listen", default=LISTEN_DEFAULT, help="address to listen on, e.g. /ip4/0.0.0.0/tcp/4001"
    )
    parser.add_argument("--bootstrap", action="append", default=[], help="a peer's address")
    parser.add_argument("--psk", type=Path, help="key file of a private swarm")
    parser.add_argument(
        "--security", choices=SECURITIES, default="tls", help="encryption of connections"
    )
    parser.add_argument(
        "--model-file", type=Path, help="the model file of the run, if its manifest names one"
    )
    parser.add_argument("--corpus", type=Path, help="the token store of the run's text")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the trainer")
    parser.add_argument("--device", default=DEVICE_DEFAULT, help="where the trainer computes")
    parser.add_argument(
        "--start-with", type=int, default=1, help="peers, itself included, a founder waits for"
    )
    parser.add_argument(
        "--start-within-s", type=float, default=0.0, help="seconds it waits for them; 0: no limit"
    )
    parser.add_argument(
        "--validate-every",
        type=int,
        default=1,
        help="measure the held-out loss every so many rounds; 0 is never",
    )
    parser.add_argument(
        "--validation-share",
        type=float,
        default=VALIDATION_SHARE_DEFAULT,
        help="share of the trainer's time that measuring it may take",
    )
    parser.add_argument(
        "--observer", action="store_true", help="follow the run without contributing"
    )
    parser.add_argument(
        "--status-port", type=int, help="port of the status server; 0 takes a free port"
    )
    parser.add_argument(
        "--attached", action="store_true", help="the trainer is the process that started this one"
    )
    parser.add_argument(
        "--announce",
        action="append",
        default=[],
        help="address that peers are told in place of the node's own",
    )
    parser.add_argument(
        "--trace", type=Path, help="append a record of each of the node's steps to this file"
    )
    parser.add_argument(
        "--events", action="store_true", help="print events as JSON lines on standard output"
    )
    parser.add_argument("--test-switch", default="", help=argparse.SUPPRESS)
    parser.add_argument("--trainer-command", default="[]", help=argparse.SUPPRESS)
    return parser


def _config(arguments: argparse.Namespace) -> NodeConfig:
    return NodeConfig(
        state=arguments.state,
        manifest=arguments.manifest or Path(),
        listen=arguments.listen,
        announce=tuple(arguments.announce),
        bootstrap=tuple(arguments.bootstrap),
        psk=arguments.psk,
        security=arguments.security,
        model_file=arguments.model_file,
        corpus=arguments.corpus,
        threads=arguments.threads,
        device=arguments.device,
        start_with=arguments.start_with,
        start_within_s=arguments.start_within_s,
        validate_every=arguments.validate_every,
        validation_share=arguments.validation_share,
        is_observer=arguments.observer,
        trace=arguments.trace,
        status_port=arguments.status_port,
    )


async def _main(arguments: argparse.Namespace, departure: Departure) -> None:
    if not arguments.attached:
        with departure.handling_signals():
            await _run(arguments, departure, None)
        return
    async with attachment() as attached:
        # Ctrl+C is for the user's process to act on.
        with departure.handling_signals(but_interrupts=True):
            await _run(arguments, departure, attached)


async def _run(
    arguments: argparse.Namespace, departure: Departure, attached: Attachment | None
) -> None:
    board = StatusBoard()
    log = EventLog.on_stdout(is_enabled=arguments.events, also=(board,))
    failure: BarnraiseError | None = None
    try:
        config = _config(arguments)
        hooks = arguments.hooks or hooks_named(arguments.test_switch)
        trainer_command = _words(arguments.trainer_command)
        with locked_state(config.state):
            is_new_peer = not has_identity(config.state)
            signer = load_or_create_identity(config.state)
            psk = read_psk(config.psk) if config.psk is not None else None
            config, signed = await _obtain(config, arguments.join, signer, psk)
            folder = make_run_folder(config.state, signed.manifest.digest)
            check_private(folder, psk)
            with (
                start_logging(folder, log_json=False, console=attached is None) as logs,
                tracing(config.trace, signer.peer_id) as trace,
            ):
                if hooks.name:
                    logger.warning("this node is bent for a test switch=%s", hooks.name)
                if trainer_command:
                    logger.warning("this node's trainer is another program, for a test")
                node = Node(
                    config=config,
                    signed=signed,
                    signer=signer,
                    hooks=hooks,
                    log=log,
                    is_new_peer=is_new_peer,
                    attached=attached,
                    trainer_command=trainer_command,
                    trace=trace,
                )
                around = RunContext(
                    departure=departure,
                    board=board,
                    num_lost_lines=lambda: logs.num_lost,
                    has_lifeline=attached is None,
                )
                await run_node(node, around)
    except* (BarnraiseError, OSError) as group:
        failure = user_error(group, arguments.state)
    if failure is not None:
        # Out here: Pythons before 3.11.4 wrap what is raised inside of `except*`.
        log.emit("error", kind=type(failure).__name__, message=str(failure))
        if attached is not None:
            await attached.fail(failure)
        raise failure


def _words(text: str) -> tuple[str, ...]:
    """A command line as a JSON list: no shell's rules about blanks. Raises ConfigError."""
    try:
        words = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--trainer-command: no JSON: {error}") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError("--trainer-command: not a list of words")
    return tuple(words)


async def _obtain(
    config: NodeConfig, target: str | None, signer: Ed25519Signer, psk: bytes | None
) -> tuple[NodeConfig, SignedManifest]:
    """The manifest that was given as a file, or the one of the run to join."""
    if target is None:
        return config, read_signed_manifest(config.manifest, signer)
    look = look_around if says_so(config) else None
    joined = await join_run(parse_target(target), config.state, signer, psk=psk, look_around=look)
    path = run_folder(config.state, joined.signed.manifest.digest) / MANIFEST_FILE
    bootstrap = tuple(dict.fromkeys((*config.bootstrap, *joined.bootstrap)))
    return replace(config, manifest=path, bootstrap=bootstrap), joined.signed


def main(words: Sequence[str] | None = None, hooks: NodeHooks | None = None) -> int:
    """Entry point; the exit status, see `node.processes.exit_codes`. `words` are those of the
    command line.

    `hooks` bend this node; only `sim` has any.
    """
    parser = _parser()
    arguments = parser.parse_args(words, argparse.Namespace(hooks=hooks))
    said = take_from_environment()
    if arguments.manifest is None and arguments.join is None:
        arguments.join = said
    if arguments.manifest is None and arguments.join is None:
        parser.error("one of --manifest and --join is needed")
    departure = Departure()
    try:
        run_loop(_main, arguments, departure)
    except BarnraiseError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the last word to the user
        return exit_status(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return departure.status


if __name__ == "__main__":
    end_now(main())
