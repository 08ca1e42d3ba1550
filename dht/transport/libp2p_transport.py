"""SEAM Transport over libp2p: connections by peer id, streams by protocol name.

    async with open_transport(TransportConfig(listen_port=4001), signer_seed=seed) as transport:
        transport.serve("/barnraise/control/1", handler)
        await transport.connect(peer, addresses)
        stream = await transport.open_stream(peer, "/barnraise/control/1")

Import this module only in the process that uses the network: libp2p takes a second to load.
What the library gets wrong is mended in the other `libp2p_*` modules. Here it is kept at arm's
length: no await on it that a caller cannot leave, and no end of ours that waits for a peer.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import trio
from libp2p.abc import INetConn, INetStream
from libp2p.exceptions import BaseLibp2pError
from libp2p.host.basic_host import BasicHost
from multiaddr import Multiaddr

from dht.reaching.addresses import CIRCUIT_PROTOCOL, is_gone
from dht.reaching.relay_client import accept_circuit
from dht.transport.libp2p_dialing import CircuitConnection, Dialer
from dht.transport.libp2p_host import (
    TransportConfig,
    build_host,
    library_id,
    reserved_port,
)
from dht.transport.libp2p_inbound import BAD_BYTES, Inbound, request_protocol
from dht.transport.libp2p_knocking import Door
from dht.transport.libp2p_link import ConnectionEvent, Links, Task, link_of
from dht.transport.libp2p_reach import Reach
from dht.transport.libp2p_stream import Libp2pStream, Traffic, root_message
from protocol.errors import (
    FULL,
    ConfigError,
    PeerFullError,
    RefusedError,
    StreamClosedError,
    UnreachableError,
)
from protocol.identity import Ed25519Signer, PeerId, short_id
from protocol.transport import Pace, Stream, StreamHandler, at_once

if TYPE_CHECKING:
    # libp2p brings stubs of trio that hide trio's own types; they know it by this name.
    from trio_typing import TaskStatus

logger = logging.getLogger(__name__)

__all__ = ["ConnectionEvent", "Libp2pTransport", "TransportConfig", "open_transport"]


DISCONNECT_GRACE_S = 0.2
"""For a goodbye over a connection that may be stuck; then its socket is closed."""

CLOSE_S_MAX = 0.9
"""For an orderly end of the transport; what is left then is cancelled."""

_NOWHERE = Multiaddr("/p2p-circuit")
"""Where a circuit comes from, in the library's log."""


class Libp2pTransport:
    """Implements `protocol.transport.Transport`. `run` it in a nursery, or use `open_transport`."""

    def __init__(self, config: TransportConfig, *, signer_seed: bytes) -> None:
        self._config = config
        self._peer_id = Ed25519Signer(signer_seed).peer_id
        self._traffic = Traffic()
        self._nursery: trio.Nursery | None = None
        self._links = Links(self._spawn)
        self._door = Door(config.connections_max, self._links)
        self._host = build_host(config, signer_seed, self._links.open, self._door)
        assert self._host.get_id() == library_id(self._peer_id)
        self._inbound = Inbound(
            self._host.multiselect,
            links=self._links,
            wrap=self._wrap,
            spawn=self._spawn,
            timeout_s=config.stream_timeout_s,
        )
        self._dialer = Dialer(self, config, self._links, self._host.get_network())
        self.reach = Reach(self, config, self._links, self._host)
        """How others reach this node; `run` it in a nursery of the node's."""
        self.serve(CIRCUIT_PROTOCOL, self._accept_circuit)
        self._host.get_network().register_notifee(self._links)
        self._host.get_network().set_stream_handler(self._inbound.accept)

    @property
    def peer_id(self) -> PeerId:
        """Our own id, proven to every peer by the secure channel."""
        return self._peer_id

    @property
    def host(self) -> BasicHost:
        """The library's host, for the `libp2p_*` modules that relay and punch holes."""
        return self._host

    def addresses(self) -> tuple[str, ...]:
        """Where others may dial us, never 0.0.0.0; empty until `run` listens. With relays last."""
        return self.reach.addresses()

    def is_direct(self, peer: PeerId) -> bool:
        """Whether streams to a peer go to it directly from now on, and not through a relay."""
        return self._links.is_direct(peer)

    def seen(self, peer: PeerId) -> str:
        """The address that a connected peer comes from, whoever dialled; or nothing."""
        return self._links.seen(peer)

    def keep_places_for(self, members: Callable[[], Collection[PeerId]]) -> None:
        """Of those that dial us, `members` have a place before all others."""
        self._door.places.members = members

    def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Run `handler` for each inbound stream of `protocol`; at any time, for later streams.

        Its PeerError or NetworkError ends that stream. Any other exception is a bug, and ends the
        transport.
        """

        async def serve_bulk(stream: Stream) -> None:
            # Whoever was dialled cannot dial: it may be behind a router.
            self._spawn(partial(self._dialer.second, stream.peer))
            await handler(stream)

        is_bulk = protocol in self._config.bulk_protocols
        self._inbound.serve(protocol, serve_bulk if is_bulk else handler)

    def connected(self) -> tuple[PeerId, ...]:
        """Peers with an open connection, ascending. A frozen peer stays in it: heartbeat."""
        return self._links.peers()

    async def is_gone(self, peer: PeerId, addresses: Sequence[str]) -> bool:
        """Whether the system of a peer whose connection broke says that nothing listens there."""
        reached = self._links.reached(peer)
        return reached is not None and await is_gone(addresses, reached)

    def connection_events(self) -> trio.MemoryReceiveChannel[ConnectionEvent]:
        """(peer, whether it is connected now), as soon as known; first, those connected already.

        Ends when the transport does, or when its reader leaves thousands of events unread: then
        look at `connected` and subscribe again.
        """
        return self._links.events()

    def has_dialled(self, peer: PeerId) -> bool | None:
        """Whether this node dialled a connected peer; None if each has dialled the other."""
        return self._links.has_dialled(peer)

    def dialled(self, peer: PeerId) -> str:
        """The address at which this node has dialled a connected peer, directly; else nothing."""
        return self._links.dialled(peer)

    def traffic(self) -> tuple[int, int]:
        """Payload bytes (sent, received) over all streams since the start."""
        return self._traffic.sent, self._traffic.received

    def traffic_with(self, peer: PeerId) -> tuple[int, int]:
        """Payload bytes (sent, received) with one peer."""
        return self._traffic.of(peer)

    def path(self, peer: PeerId) -> str:
        """How a connected peer is reached: "LAN", "direct", "mapped", "punched" or "relayed"."""
        return self._links.path(peer, is_listed=self.reach.is_listed())

    async def connect(self, peer: PeerId, addresses: Sequence[str], pace: Pace = at_once) -> None:
        """Connect to `peer`; the next address starts when one fails, or beside it after a second.

        Addresses that lead through a relay come last. `pace` is awaited before each dial. Raises
        UnreachableError naming each address and why it failed.
        """
        await self._dialer.connect(peer, addresses, pace)

    async def _accept_circuit(self, stream: Stream) -> None:
        """A relay that we have a place at brings somebody, who proves who it is."""
        if not self.reach.places.holds(stream.peer):
            raise RefusedError("a circuit from a peer that is no relay of ours")
        source = await accept_circuit(stream)
        raw = CircuitConnection(stream, is_initiator=False)
        try:
            muxed = await self._host.get_network().upgrade_inbound_raw_conn(raw, _NOWHERE)
        except BAD_BYTES as error:
            raise StreamClosedError(f"no handshake: {root_message(error)}") from error
        link = link_of(muxed)
        if link is None or link.peer != source:
            await raw.close()
            raise RefusedError("somebody else comes than the relay said")
        # The end of this handler ends the stream.
        await link.lost.wait()

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """A new stream to a connected peer, in one round trip.

        Raises UnreachableError when there is no connection, the peer does not serve `protocol`,
        or it does not answer in time.
        """
        stream: Libp2pStream | None = None
        agreed = False
        try:
            with trio.fail_after(self._config.stream_timeout_s):
                if protocol in self._config.bulk_protocols:
                    await self._dialer.second(peer)
                connection = self._connection(peer, protocol)
                stream = self._wrap(await self._new_stream(connection), peer)
                await request_protocol(stream, protocol)
                agreed = True
                return stream
        except (trio.TooSlowError, StreamClosedError) as error:
            self._raise_if_full(peer)
            why = str(error) or "no answer in time"
            raise UnreachableError(f"{short_id(peer)} {protocol}: {why}") from error
        finally:
            if stream is not None and not agreed:
                await stream.aclose()

    def _connection(self, peer: PeerId, protocol: str = "") -> INetConn:
        """The oldest for most streams, the newest for bulk."""
        connections = {
            link_of(connection.muxed_conn): connection
            for connection in self._host.get_network().get_connections(library_id(peer))
        }
        links = [link for link in self._links.of(peer) if link in connections]
        if not links:
            self._raise_if_full(peer)
            raise UnreachableError(f"{short_id(peer)}: not connected")
        # A punched hole supersedes the relayed connection before it.
        direct = [link for link in links if link.is_direct]
        is_bulk = protocol in self._config.bulk_protocols
        return connections[(direct or links)[-1 if is_bulk else 0]]

    def _raise_if_full(self, peer: PeerId) -> None:
        if not self._links.is_up(peer) and self._links.lost_reason(peer) == FULL:
            raise PeerFullError(f"{short_id(peer)}: {FULL}")

    async def _new_stream(self, connection: INetConn) -> INetStream:
        """Open a stream in a task of its own: cancelled in the middle, it would never be freed."""
        opened: list[INetStream] = []
        done = trio.Event()
        waiting = True

        async def open_it() -> None:
            try:
                opened.append(await connection.new_stream())
            except BaseLibp2pError as error:
                logger.debug("no stream reason=%s", root_message(error))
            done.set()
            if opened and not waiting:
                await opened[0].reset()

        self._spawn(open_it)
        try:
            await done.wait()
        finally:
            waiting = False
        if not opened:
            raise StreamClosedError("the connection is gone")
        return opened[0]

    def _wrap(self, net_stream: INetStream, peer: PeerId) -> Libp2pStream:
        return Libp2pStream(net_stream, peer, traffic=self._traffic, spawn=self._spawn)

    def _spawn(self, task: Task) -> None:
        """Run it beside the transport; after the transport's end, not at all."""
        if self._nursery is not None:
            self._nursery.start_soon(task)

    async def disconnect(self, peer: PeerId) -> None:
        """Close every connection to `peer`, within half a second. Never raises."""
        self._dialer.leave(peer)
        await self._close_connections(self._host.get_network().get_connections(library_id(peer)))

    async def _close_connections(self, connections: Sequence[INetConn]) -> None:
        links = [link_of(connection.muxed_conn) for connection in connections]
        for link in links:
            if link is not None:
                self._links.mark_down(link)

        async def lose_soon() -> None:
            await trio.sleep(DISCONNECT_GRACE_S)
            for link in links:
                if link is not None:
                    link.lose("closed here")

        # Shielded, because a cancelled close leaves the library with a dead connection in its
        # table. It ends soon after the sockets do.
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose_soon)
                async with trio.open_nursery() as closing:
                    for connection in connections:
                        closing.start_soon(connection.close)
                nursery.cancel_scope.cancel()

    async def run(self, *, task_status: "TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until cancelled; started as soon as others can dial. Runs once.

        Raises ConfigError if the port is taken. Cancelled, it closes everything within a second,
        whatever the peers do.
        """
        # The host outlives the cancellation of this task until connections are closed in order.
        host_scope = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await nursery.start(self._run_host, host_scope)
                nursery.start_soon(self._door.keep_clear)
                task_status.started()
                await self._links.keep_awake()
            finally:
                await self._shut_down()
                host_scope.cancel()
                nursery.cancel_scope.cancel()

    async def _run_host(
        self,
        scope: trio.CancelScope,
        *,
        task_status: "TaskStatus[None]" = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with scope:
            async with AsyncExitStack() as stack:
                with reserved_port(self._config) as addresses:
                    await stack.enter_async_context(self._host.run(list(addresses)))
                if not self._host.get_transport_addrs():
                    raise ConfigError(f"cannot listen on {addresses[0]}")
                task_status.started()
                await trio.sleep_forever()

    async def _shut_down(self) -> None:
        network = self._host.get_network()
        with trio.CancelScope(deadline=trio.current_time() + CLOSE_S_MAX, shield=True):
            await self._close_connections(network.get_connections())
            await self._host.close()
        self._nursery = None
        for link in self._links.everything():
            link.lose("closed here")
        self._links.close_events()


@asynccontextmanager
async def open_transport(
    config: TransportConfig,
    *,
    signer_seed: bytes,
    handlers: Mapping[str, StreamHandler] | None = None,
) -> AsyncIterator[Libp2pTransport]:
    """A transport that listens; leaving the context closes it within a second.

    `handlers` are served from the first connection on. An error of the body, and a bug in a
    handler, comes out as itself and not in a group, unless there are several.
    """
    transport = Libp2pTransport(config, signer_seed=signer_seed)
    for protocol, handler in (handlers or {}).items():
        transport.serve(protocol, handler)
    with _single_error():
        async with trio.open_nursery() as nursery:
            await nursery.start(transport.run)
            try:
                yield transport
            finally:
                nursery.cancel_scope.cancel()


@contextmanager
def _single_error() -> Iterator[None]:
    error: BaseException
    try:
        yield
    except BaseExceptionGroup as group:
        error = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            error = error.exceptions[0]
    else:
        return
    raise error
