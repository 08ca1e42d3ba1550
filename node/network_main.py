"""The network process: one nursery, wiring only. Never imports torch.

    python -P -m node.network_main --state DIR --manifest FILE [--bootstrap ADDRESS]

Lives as long as its standard input: whoever started it ends it by closing the pipe.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TextIO

import trio

from dht.directory import KademliaDirectory
from dht.libp2p_transport import Libp2pTransport, TransportConfig, open_transport
from dht.routing import Contact
from node import events as ev
from node.assembly import Node, assemble
from node.bulk_streams import BULK_PROTOCOL
from node.config import LISTEN_DEFAULT, NodeConfig, parse_peer_address
from node.exchange import Driver
from node.hooks import hooks_named
from node.keystore import load_or_create_identity
from node.links import CONTROL_PROTOCOL, Links
from node.state_lock import locked_state
from node.status import EventLog
from protocol import limits
from protocol.errors import BarnraiseError, ConfigError, NetworkError, PeerError, UnreachableError
from protocol.identity import Ed25519Signer, peer_id_text
from protocol.manifest import SignedManifest, open_manifest
from protocol.wire import decode

logger = logging.getLogger(__name__)

EXIT_BUG, EXIT_CONFIG, EXIT_UNREACHABLE = 1, 2, 3
TRAINER_END_S = 5.0
"""For the trainer's look at the last anchor."""

LEAVE_S = 0.3
"""For the LEAVE to reach the peers before the streams close."""

LEAVE_QUEUED_S = 1.0
"""For it to get into a queue that is full. Whoever wants to go is not held up for longer."""

INPUT_LINE_BYTES_MAX = 256


def read_signed_manifest(path: Path, signer: Ed25519Signer) -> SignedManifest:
    """The manifest in a file, its signature checked. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(limits.MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the manifest {path}: {error.strerror}") from error
    try:
        open_manifest(data, signer)
    except PeerError as error:
        raise ConfigError(f"{path} is no manifest of a run: {error}") from error
    return decode(SignedManifest, data, max_bytes=limits.MANIFEST_BYTES_MAX)


async def run_node(node: Node) -> None:
    """Run one node until its run is finished, its standard input ends, or a signal comes."""
    config = node.config
    transport_config = TransportConfig(
        listen_host=config.listen_host, listen_port=config.listen_port
    )
    async with open_transport(transport_config, signer_seed=node.signer.seed) as transport:
        directory = KademliaDirectory(transport, node.signer, time.time)
        made = assemble(node, transport, directory)
        driver, links, work, checkpoints = made.driver, made.links, made.work, made.checkpoints
        transport.serve(CONTROL_PROTOCOL, links.accept)
        transport.serve(BULK_PROTOCOL, driver.bulk.accept)
        me = peer_id_text(node.signer.peer_id)
        node.log.emit(
            "listening",
            peer=me,
            pid=os.getpid(),
            addresses=[f"{address}/p2p/{me}" for address in transport.addresses()],
        )
        async with trio.open_nursery() as nursery:
            stop = partial(_stop, nursery.cancel_scope, driver)
            nursery.start_soon(_watch_signals, stop)
            nursery.start_soon(_watch_stdin, stop, nursery.cancel_scope)
            nursery.start_soon(checkpoints.run)
            nursery.start_soon(driver.run)
            nursery.start_soon(work.run)
            await nursery.start(directory.run)
            nursery.start_soon(_watch_connections, transport, links)
            await _join(node, directory, links)
            nursery.start_soon(links.run)
            await driver.finished.wait()
            await checkpoints.flushed()
            node.log.emit(
                "finished",
                round=driver.core.machine.head.round,
                checkpoint=str(checkpoints.latest),
            )
            await _linger(driver, config.linger_s)
            with trio.move_on_after(TRAINER_END_S):
                await work.done.wait()
            nursery.cancel_scope.cancel()


async def _join(node: Node, directory: KademliaDirectory, links: Links) -> None:
    """Ask the bootstrap peers. Raises UnreachableError if there are some and none answers."""
    addresses = [parse_peer_address(text) for text in node.config.bootstrap]
    if not addresses:
        if node.signer.peer_id != node.signed.manifest.founder:
            logger.warning("no --bootstrap address: waiting for peers to find this node")
        return
    for address in addresses:
        links.know(address)
    contacts = [Contact(address.peer, (address.address,)) for address in addresses]
    if await directory.join(contacts) == 0:
        tried = ", ".join(node.config.bootstrap)
        raise UnreachableError(f"no bootstrap peer answered: {tried}")


async def _watch_connections(transport: Libp2pTransport, links: Links) -> None:
    async for _ in transport.connection_events():
        links.connection_changed()


async def _watch_signals(stop: Callable[[], Awaitable[None]]) -> None:
    wanted = [signal.SIGINT, signal.SIGTERM]
    with trio.open_signal_receiver(*wanted) as signals:
        async for _ in signals:
            await stop()


async def _watch_stdin(stop: Callable[[], Awaitable[None]], scope: trio.CancelScope) -> None:
    """`leave` leaves; the end of the input means that whoever started this node is gone."""
    while True:
        # The stubs that libp2p's dependencies bring predate this argument's name.
        line = await trio.to_thread.run_sync(
            partial(read_line, sys.stdin),
            abandon_on_cancel=True,  # type: ignore[call-arg]
        )
        if not line:
            logger.warning("standard input ended: stopping")
            scope.cancel()
            return
        if line.strip() == b"leave":
            await stop()


def read_line(stdin: TextIO | None) -> bytes:
    """The next line or piece of one, whatever bytes it is made of; empty at the end.

    There is no standard input at all where it was closed before the process began.
    """
    return b"" if stdin is None else stdin.buffer.readline(INPUT_LINE_BYTES_MAX)


async def _stop(scope: trio.CancelScope, driver: Driver) -> None:
    """Say that we go, give it a moment to be heard, and go."""
    logger.info("leaving")
    with trio.move_on_after(LEAVE_QUEUED_S):
        await driver.tell(ev.Leaving())
    await trio.sleep(LEAVE_S)
    scope.cancel()


async def _linger(driver: Driver, linger_s: float) -> None:
    """Serve those who still work on the last round."""
    last = driver.core.machine.head.round
    with trio.move_on_after(linger_s):
        while any(round_index <= last for round_index in driver.core.rounds.values()):
            await driver.changed()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="node.network_main", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="folder of key and checkpoints")
    parser.add_argument("--manifest", type=Path, required=True, help="the run's signed manifest")
    parser.add_argument("--listen", default=LISTEN_DEFAULT, help="e.g. /ip4/0.0.0.0/tcp/4001")
    parser.add_argument("--bootstrap", action="append", default=[], help="a peer's address")
    parser.add_argument("--threads", type=int, default=1, help="torch threads of the trainer")
    parser.add_argument("--wait-seats", type=int, default=0, help="joiners to wait for (founder)")
    parser.add_argument("--validate-every", type=int, default=1, help="rounds; 0 is never")
    parser.add_argument("--observer", action="store_true", help="follow without a seat")
    parser.add_argument("--events", action="store_true", help="JSON events on standard output")
    parser.add_argument("--test-switch", default="", help=argparse.SUPPRESS)
    return parser


def _config(arguments: argparse.Namespace) -> NodeConfig:
    return NodeConfig(
        state=arguments.state,
        manifest=arguments.manifest,
        listen=arguments.listen,
        bootstrap=tuple(arguments.bootstrap),
        threads=arguments.threads,
        wait_seats=arguments.wait_seats,
        validate_every=arguments.validate_every,
        is_observer=arguments.observer,
    )


async def _main(arguments: argparse.Namespace) -> None:
    log = EventLog.on_stdout(is_enabled=arguments.events)
    try:
        config = _config(arguments)
        with locked_state(config.state):
            signer = load_or_create_identity(config.state)
            signed = read_signed_manifest(config.manifest, signer)
            hooks = hooks_named(arguments.test_switch)
            if hooks.name:
                logger.warning("this node is bent for a test switch=%s", hooks.name)
            await run_node(Node(config=config, signed=signed, signer=signer, hooks=hooks, log=log))
    except* (BarnraiseError, OSError) as group:
        error = user_error(group, config.state)
        log.emit("error", kind=type(error).__name__, message=str(error))
        raise error from None


def user_error(group: BaseExceptionGroup[BaseException], state: Path) -> BarnraiseError:
    """What to tell the user: the first error, that of a disk with what can be done about it.

    Sockets are not behind it: their errors are NetworkErrors.
    """
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, BarnraiseError):
        return error
    where = getattr(error, "filename", None) or state
    return ConfigError(f"cannot use {where}: {getattr(error, 'strerror', None) or error}")


def main() -> int:
    """Entry point; the exit code: 0 done, 1 bug or dead trainer, 2 bad config, 3 unreachable."""
    arguments = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        trio.run(_main, arguments)
    except BarnraiseError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the last word to the user
        if isinstance(error, ConfigError):
            return EXIT_CONFIG
        return EXIT_UNREACHABLE if isinstance(error, NetworkError) else EXIT_BUG
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
