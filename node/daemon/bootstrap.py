"""`barnraise bootstrap`: a node of the DHT and a relay, at an address that stays.

It holds records, tells strangers of each other, and carries what peers behind routers say to each
other, within limits and without a key to it. It sees no run, holds no weights and decides nothing:
when it is gone, those who have met go on, and newcomers enter through any other peer.
`barnraise runs` looks into the DHT in the same way, for a moment.
"""

import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from dht.directory import DirectoryConfig, KademliaDirectory
from dht.kademlia.routing import Contact
from dht.reaching.relay_server import RelayLimits, RelayServer
from dht.transport.libp2p_host import visiting_host
from dht.transport.libp2p_transport import TransportConfig, open_transport
from node.peers.departure import Departure
from node.peers.listening import full_addresses, listening
from node.peers.neighbours import Neighbourhood, Neighbours, says_so
from node.peers.public_runs import PublicRun, find_public_runs
from node.processes.exit_codes import user_error
from node.processes.loop import run_loop
from node.settings.sections import NodeFile, psk_file, read_node_file
from node.state.config import NodeConfig, PeerAddress, parse_dialable
from node.state.folder import KNOWN_PEERS_FILE
from node.state.keystore import load_or_create_identity, read_psk
from node.state.known_peers import keep_table, read_known_peers, read_table
from node.state.lock import locked_state
from node.status.board import EventLog
from protocol.errors import BarnraiseError, ConfigError, UnreachableError
from protocol.identity import KEY_SEED_BYTES, Ed25519Signer, peer_id_text

logger = logging.getLogger(__name__)

PORT = 4001
LISTEN = f"/ip4/0.0.0.0/tcp/{PORT}"
"""A bootstrap node's address is told to people, so that its port is no accident."""

_TRIED_SHOWN = 4

LOOK_S = 20.0
"""For `barnraise runs`: to enter, and to ask under sixteen topics."""


def bootstrap_in_foreground(
    state: Path,
    config: NodeConfig,
    relay: RelayLimits | None,
    *,
    is_json: bool,
    say: Callable[[str], None],
) -> int:
    """Serve the DHT until a signal, and as a relay if limits are given; the exit status."""
    _hush()
    departure = Departure()
    with departure.handling_signals(), locked_state(state):
        run_loop(_serve, state, config, relay, departure, is_json, say)
        departure.done()
    return departure.status


async def _serve(
    state: Path,
    config: NodeConfig,
    relay: RelayLimits | None,
    departure: Departure,
    is_json: bool,
    say: Callable[[str], None],
) -> None:
    log = EventLog.on_stdout(is_enabled=is_json)
    failure: BarnraiseError | None = None
    try:
        signer = load_or_create_identity(state)
        async with listening(config, signer.seed) as transport, trio.open_nursery() as nursery:
            if relay is not None:
                RelayServer(transport, relay, seen=transport.seen)
            told = DirectoryConfig(private_addresses=config.records_private)
            directory = KademliaDirectory(transport, signer, time.time, config=told)
            await nursery.start(directory.run)
            departure.begin()
            addresses = full_addresses(signer.peer_id, transport.addresses())
            log.emit("listening", peer=peer_id_text(signer.peer_id), addresses=addresses)
            say(_serving_at(addresses, is_relay=relay is not None))
            nursery.start_soon(transport.reach.run)
            nursery.start_soon(keep_table, state, directory.contacts, time.time)
            nursery.start_soon(directory.join, _origins(state, config.bootstrap))
            if says_so(config):
                said = Neighbourhood(me=signer.peer_id, addresses=transport.addresses)
                nursery.start_soon(Neighbours(said, directory).run)
            await departure.asked.wait()
            nursery.cancel_scope.cancel()
    except* (BarnraiseError, OSError) as group:
        failure = user_error(group, state)
    if failure is not None:
        log.emit("error", kind=type(failure).__name__, message=str(failure))
        raise failure
    log.emit("left", reason=departure.signal_name)


def _serving_at(addresses: Sequence[str], *, is_relay: bool) -> str:
    """What whoever starts it is told."""
    what = f"serving the DHT{' and as a relay' if is_relay else ''}"
    if not addresses:
        return (
            f"{what}, but this machine has no address that others could dial: give it one, and it "
            "will be told, or name one with --announce"
        )
    return "\n".join(
        [
            f"{what} at",
            *(f"  {one}" for one in addresses),
            "whoever founds a run names it, and links of the run lead here too:",
            f"  barnraise run run.toml --bootstrap {addresses[0]}",
        ]
    )


def _origins(state: Path, named: Sequence[str]) -> tuple[Contact, ...]:
    """Whom to ask first: the named ones, then those of the last start."""
    return (*_contacts(map(parse_dialable, named)), *read_table(state))


def _contacts(addresses: Iterable[PeerAddress]) -> tuple[Contact, ...]:
    return tuple(Contact(one.peer, (one.address,)) for one in addresses)


def look_for_runs(
    state: Path, named: Sequence[str], psk: Path | None = None
) -> tuple[PublicRun, ...]:
    """The public runs that can be seen from here: one short visit under a key of its own.

    `psk` is the key file of a private swarm to look into, else node.toml's.

    Raises ConfigError if nobody is known to be asked, UnreachableError if nobody answers.
    """
    _hush()
    file = read_node_file(state) if state.exists() else NodeFile()
    key_file = psk_file(file, {"psk": psk}, state)
    key = read_psk(key_file) if key_file is not None else None
    given = (*named, *file.bootstrap)
    known = read_known_peers(state / KNOWN_PEERS_FILE)
    met = [Contact(one.peer, one.addresses) for peers in known.runs.values() for one in peers]
    contacts = (*_origins(state, given), *met)
    if not contacts:
        raise ConfigError(
            "nobody is known who could be asked: name a peer with --bootstrap, like "
            f"/ip4/203.0.113.1/tcp/{PORT}/p2p/12D3Koo..., or join a run by its link first"
        )
    return trio.run(_look, contacts, key)


async def _look(contacts: tuple[Contact, ...], psk: bytes | None) -> tuple[PublicRun, ...]:
    async with _visit(psk) as directory:
        with trio.move_on_after(LOOK_S):
            if not await directory.join(contacts):
                raise UnreachableError(_nobody_of(contacts))
            return await find_public_runs(directory)
    raise UnreachableError(f"the DHT did not answer within {LOOK_S:.0f} s")


def _nobody_of(contacts: Sequence[Contact]) -> str:
    """That none of them answers, and who the first of them were."""
    tried = [
        f"  {', '.join(full_addresses(one.peer, one.addresses))}" for one in contacts[:_TRIED_SHOWN]
    ]
    more = len(contacts) - len(tried)
    lines = [*tried, f"  and {more} more"] if more else tried
    return "\n".join(
        ["no peer answers:", *lines, "is one of them running, and in reach from here?"]
    )


@asynccontextmanager
async def _visit(psk: bytes | None) -> AsyncIterator[KademliaDirectory]:
    """A directory that asks and is told to nobody: it is gone in a moment."""
    signer = Ed25519Signer(os.urandom(KEY_SEED_BYTES))
    async with open_transport(
        TransportConfig(listen_host=visiting_host(), psk=psk), signer_seed=signer.seed
    ) as transport:
        directory = KademliaDirectory(transport, signer, time.time, is_visitor=True)
        async with trio.open_nursery() as nursery:
            await nursery.start(directory.run)
            yield directory
            nursery.cancel_scope.cancel()


def _hush() -> None:
    if not logging.getLogger().hasHandlers():
        # The library's calls of `logging.debug` itself would hang a handler of their own in there.
        logging.getLogger().addHandler(logging.NullHandler())
