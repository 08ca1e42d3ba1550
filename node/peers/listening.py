"""Listening for peers: on the port of the last start where none is named."""

import errno
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from dht.transport.libp2p_transport import Libp2pTransport, TransportConfig, open_transport
from node.state.config import LISTEN_DEFAULT, NodeConfig, PeerAddress, parse_peer_address
from node.state.folder import keep_port, read_port
from node.state.keystore import read_psk
from protocol.errors import ConfigError
from protocol.identity import PeerId

logger = logging.getLogger(__name__)

_LISTEN_CURES: dict[int | None, str] = {
    errno.EADDRNOTAVAIL: "name an address that this machine has",
    errno.EACCES: "name a port that you may take, above 1023,",
}


def full_addresses(peer: PeerId, addresses: Sequence[str]) -> list[str]:
    """Multiaddrs with the peer's id at their end."""
    return [str(PeerAddress(peer, address)) for address in addresses]


@asynccontextmanager
async def listening(
    config: NodeConfig, seed: bytes, *, bulk_protocols: frozenset[str] = frozenset()
) -> AsyncIterator[Libp2pTransport]:
    """The transport, on the port of the last start if none is named and it is free.

    Streams of `bulk_protocols` travel on a connection of their own.

    Raises ConfigError naming a port that was asked for and is taken.
    """
    kept = read_port(config.state) if config.listen_port == 0 else 0
    async with AsyncExitStack() as stack:
        try:
            transport = await stack.enter_async_context(_open(config, kept, seed, bulk_protocols))
        except ConfigError as error:
            if not kept:
                raise
            logger.warning("port of the last start is taken port=%d reason=%s", kept, error)
            transport = await stack.enter_async_context(_open(config, 0, seed, bulk_protocols))
        addresses = transport.addresses()
        if config.listen_port == 0 and not config.announce and addresses:
            keep_port(config.state, int(addresses[0].rpartition("/")[2]))
        yield transport


def transport_config(
    config: NodeConfig, port: int = 0, bulk_protocols: frozenset[str] = frozenset()
) -> TransportConfig:
    """As a node's config has it; `port` where that names none. Raises ConfigError naming what is
    wrong with an address or a name."""
    return TransportConfig(
        listen_host=config.listen_host,
        listen_port=config.listen_port or port,
        announce=config.announce,
        named=tuple(parse_peer_address(one).address for one in config.bootstrap),
        interface=config.interface,
        has_port_mapping=config.has_port_mapping,
        bulk_protocols=bulk_protocols,
        security=config.security,
        psk=read_psk(config.psk) if config.psk is not None else None,
    )


@asynccontextmanager
async def _open(
    config: NodeConfig, port: int, seed: bytes, bulk_protocols: frozenset[str]
) -> AsyncIterator[Libp2pTransport]:
    settings = transport_config(config, port, bulk_protocols)
    async with AsyncExitStack() as stack:
        try:
            opened = open_transport(settings, signer_seed=seed)
            transport = await stack.enter_async_context(opened)
        except ConfigError as error:
            number = error.__cause__.errno if isinstance(error.__cause__, OSError) else None
            cure = _LISTEN_CURES.get(number, "end the program that has it, or name another")
            raise ConfigError(
                f"{error}: {cure} with --listen, such as {LISTEN_DEFAULT} for any free port"
            ) from error
        yield transport
