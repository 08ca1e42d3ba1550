"""One node from listening to its end: the tasks of the network process, in one nursery."""

import logging
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TextIO

import trio

from dht.directory import DirectoryConfig, KademliaDirectory
from dht.reaching.addresses import PrivateAddresses, told_in_records
from dht.reaching.relay_server import RelayServer, volunteer_limits
from dht.transport.libp2p_transport import Libp2pTransport
from node.daemon.assembly import Machinery, Node, assemble
from node.daemon.driver import Driver
from node.daemon.entry import FirstPeers
from node.daemon.founding import Enter, wait_for_peers
from node.peers.departure import Departure
from node.peers.invite import InviteSeal, invite_link, invite_to
from node.peers.leaving import HAND_OVER_S_MAX, HandingOver, Lingering
from node.peers.links import CONTROL_PROTOCOL, Links, probe
from node.peers.listening import full_addresses, listening
from node.peers.manifest_fetch import MANIFEST_PROTOCOL, ManifestServer
from node.peers.neighbours import Neighbourhood, Neighbours, says_so
from node.peers.public_runs import keep_said
from node.plane.bulk_streams import BULK_PROTOCOL
from node.state.config import NodeConfig
from node.state.folder import (
    KNOWN_PEERS_FILE,
    has_history,
    run_folder,
)
from node.state.known_peers import KnownPeersKeeper, keep_table
from node.status.board import StatusBoard
from node.status.snapshot import NetworkView, StatusSources, keep_status
from node.trainers.attached_trainer import Attachment
from protocol import events as ev
from protocol.errors import BarnraiseError, first_of
from protocol.identity import peer_id_text
from protocol.transport import Transport

logger = logging.getLogger(__name__)

TRAINER_END_S = 5.0
"""For the trainer's look at the last anchor."""

LEAVE_S = 0.2
"""For the LEAVE to reach the peers before the streams close."""

LEAVE_QUEUED_S = 0.4
"""For it to get into a queue that is full. Whoever wants to go is not held up for longer."""

NOT_HANDED_OVER = (
    "this node goes with a vote that is needed, and nobody here could take it over: until it is "
    "back nothing of this run becomes final. The same command goes on from here"
)

INPUT_LINE_BYTES_MAX = 256

PLACE_S = 6.0
"""For the first relay or proof, before people are shown a link that has neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a node is run in."""

    departure: Departure
    board: StatusBoard
    """Hears the events of the node's log; the status server shows it."""

    num_lost_lines: Callable[[], int] = int
    """Log lines that the disk did not take of late; `Logs.num_lost`."""

    has_lifeline: bool = False
    """Whether standard input is the pipe of whoever started this node, and its end is ours."""

    enter: Enter | None = None
    """How the user of a founder says that it is to wait for no more peers."""


async def run_node(node: Node, around: RunContext) -> None:
    """Run one node until its run is finished, or `around.departure` is asked.

    Raises ConfigError if it cannot listen, UnreachableError if a node that is new to the run
    reaches none of the peers that it was told, ManifestMismatch or RefusedError if all of these
    refuse it.
    """
    departure = around.departure
    # Asked first: assembling it makes the files that this looks for.
    is_resumed = has_history(run_folder(node.config.state, node.signed.manifest.digest))
    async with listening(
        node.config, node.signer.seed, bulk_protocols=frozenset({BULK_PROTOCOL})
    ) as transport:
        private = node.config.records_private
        config = DirectoryConfig(private_addresses=private)
        directory = KademliaDirectory(transport, node.signer, time.time, config=config)
        made = assemble(node, transport, directory)
        transport.keep_places_for(lambda: made.driver.core.machine.head.roster.member_set)
        if is_resumed or not node.config.bootstrap or _is_founder(node):
            made.links.met.set()
        transport.serve(CONTROL_PROTOCOL, made.links.accept)
        transport.serve(BULK_PROTOCOL, made.driver.bulk.accept)
        transport.serve(MANIFEST_PROTOCOL, ManifestServer(node.signed).serve)
        _volunteer(node.config, transport)
        departure.begin()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_leave, node, departure, made, nursery.cancel_scope)
                _watch_parent(node, around, made.driver, nursery)
                await _start_status(node, around, made, transport, directory, nursery)
                _tell_listening(node, transport)
                nursery.start_soon(_keep_inviting, node, transport, made.driver)
                nursery.start_soon(transport.reach.run)
                nursery.start_soon(made.checkpoints.run)
                nursery.start_soon(made.driver.run)
                nursery.start_soon(made.entries.run, around.board)
                if node.trace is not None:
                    nursery.start_soon(node.trace.keep_telling_use, made.driver.core)
                nursery.start_soon(_work, made, departure)
                await nursery.start(directory.run)
                nursery.start_soon(_watch_connections, transport, made.links, made.driver)
                neighbours = _meet_neighbours(node, transport, directory, made.links, nursery)
                entry = FirstPeers(node, transport, directory, made.links, neighbours)
                nursery.start_soon(entry.watch_company)
                if is_resumed:
                    nursery.start_soon(entry.knock)
                else:
                    await entry.enter()
                nursery.start_soon(entry.watch_refusals)
                nursery.start_soon(wait_for_peers, made.driver, node.log, around.enter)
                nursery.start_soon(made.links.run)
                nursery.start_soon(_keeper(node, made.links).run)
                nursery.start_soon(keep_table, node.config.state, directory.contacts, time.time)
                told = partial(_told_in_records, transport, private)
                nursery.start_soon(keep_said, directory, node.signed.manifest, told)
                await _to_the_end(node, made)
                nursery.cancel_scope.cancel()
        except* (BarnraiseError, OSError) as group:
            # A trainer that dies of the same Ctrl+C is no news.
            if not departure.asked.is_set():
                _trace_end(node, str(first_of(group)))
                raise
        finally:
            made.entries.close()
    ending = "finished" if made.driver.finished.is_set() else "stopped"
    _trace_end(node, "left" if departure.asked.is_set() else ending)
    if departure.asked.is_set():
        node.log.emit("left", reason=departure.signal_name)


def _told_in_records(transport: Transport, private: PrivateAddresses) -> tuple[str, ...]:
    """The addresses of this node that strangers may read now."""
    return told_in_records(transport.addresses(), private)


def _is_founder(node: Node) -> bool:
    """Whether the run was founded with this node's key."""
    return node.signed.manifest.founder == node.signer.peer_id


def _trace_end(node: Node, reason: str) -> None:
    if node.trace is not None:
        node.trace.ended(reason)


async def _to_the_end(node: Node, made: Machinery) -> None:
    """Until the run is finished, its last anchor on the disk, and nobody needs us any more."""
    await made.driver.finished.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_tell_finished, node, made)
        await _linger(made.driver, node.config.linger_s)
    with trio.move_on_after(TRAINER_END_S):
        await made.work.done.wait()


async def _tell_finished(node: Node, made: Machinery) -> None:
    """The end is told once the last anchor is on the disk."""
    await made.checkpoints.flushed()
    node.log.emit(
        "finished",
        round=made.driver.core.machine.head.round,
        checkpoint=str(made.checkpoints.latest),
    )


async def _linger(driver: Driver, linger_s: float) -> None:
    """Serve those who are not through with the last round, as far as one knows.

    Watched from the end on, also while the last anchor is written: peers come and go meanwhile.
    """
    is_resumed = driver.was_finished
    lingering = Lingering(driver.core, now_s=trio.current_time(), is_resumed=is_resumed)
    ends_s = trio.current_time() + linger_s
    while lingering.is_needed(now_s := trio.current_time()):
        if now_s >= ends_s and not lingering.is_giving(now_s):
            return
        # Whoever takes a state is looked at with each event, and a heartbeat is one.
        with trio.move_on_at(ends_s if now_s < ends_s else inf):
            await driver.changed()


def _volunteer(config: NodeConfig, transport: Libp2pTransport) -> None:
    """Be a relay, within the owner's limits, from when others have found this node on."""
    if config.relay_gib:
        limits = volunteer_limits(config.relay_gib, config.relay_mbit)
        reach = transport.reach
        RelayServer(transport, limits, seen=transport.seen, is_open=reach.is_proved)


# Telling --------------------------------------------------------------------------------------


def _tell_listening(node: Node, transport: Libp2pTransport) -> None:
    """Say where we are to whoever started us."""
    me = node.signer.peer_id
    node.log.emit(
        "listening",
        peer=peer_id_text(me),
        pid=os.getpid(),
        addresses=full_addresses(me, transport.addresses()),
    )


async def _keep_inviting(node: Node, transport: Libp2pTransport, driver: Driver) -> None:
    """An invite link to hand on, with the newest seal; another one when other relays lead to us.

    A node waits for its first relay, or for others to find it where it says it is: a link without
    either may be good at home only.
    """
    me, manifest = node.signer.peer_id, node.signed.manifest
    reach = transport.reach
    if node.config.bootstrap and not node.config.announce:
        with trio.move_on_after(PLACE_S):
            # A public address may be one that a router lets nobody come to, as those of IPv6 are.
            while not (reach.places.addresses() or reach.is_proved()):
                await reach.changed()
    told: tuple[str, ...] = ()
    while True:
        addresses = transport.addresses()
        # A relay that went may come back, and the link that names it with it.
        if not set(addresses) <= set(told):
            told = addresses
            head = driver.core.machine.head
            seal = InviteSeal(head.round, head.digest) if head.round else None
            link = invite_link(invite_to(manifest, me, addresses, seal=seal))
            node.log.emit("invite", run=manifest.digest.hex(), title=manifest.title, link=link)
        await reach.changed()


async def _start_status(
    node: Node,
    around: RunContext,
    made: Machinery,
    transport: Libp2pTransport,
    directory: KademliaDirectory,
    nursery: trio.Nursery,
) -> None:
    """The board's snapshots, and the server that shows them."""
    reach = transport.reach
    view = NetworkView(
        path=transport.path,
        traffic_with=transport.traffic_with,
        round_trip_s=directory.kademlia.times.round_trip_s,
        seen_as=reach.places.seen,
        needs_relay=reach.places.is_wanted,
        answers_at=reach.dial_back.proved,
        silent_at=reach.dial_back.refuted,
    )
    sources = StatusSources(
        core=made.driver.core,
        board=around.board,
        traffic=transport.traffic,
        network=view,
        own_addresses=lambda: full_addresses(node.signer.peer_id, transport.addresses()),
        addresses=made.links.acquaintances,
        told=lambda: made.entries.told,
        checkpoint=lambda: made.checkpoints.latest,
        is_observer=node.config.is_observer,
        num_tasks=lambda: trio.lowlevel.current_statistics().tasks_living,
        num_lost_lines=around.num_lost_lines,
    )
    nursery.start_soon(keep_status, sources)
    port = node.config.status_port
    if port is not None:
        # What it needs takes a while to load, and not every node serves.
        from node.status.server import serve_status

        folder = run_folder(node.config.state, node.signed.manifest.digest)
        await nursery.start(partial(serve_status, around.board, folder, port=port))


# Meeting peers ---------------------------------------------------------------------------------


def _meet_neighbours(
    node: Node,
    transport: Libp2pTransport,
    directory: KademliaDirectory,
    links: Links,
    nursery: trio.Nursery,
) -> Neighbours | None:
    if node.hooks.finds_nobody or not says_so(node.config):
        return None
    me, run = node.signer.peer_id, node.signed.manifest.digest
    # Whoever is on the network may say so: it is dialled as others' words are.
    know = partial(links.know, is_chosen=False)
    said = Neighbourhood(me=me, run=run, addresses=transport.addresses, know=know)
    neighbours = Neighbours(said, directory)
    nursery.start_soon(neighbours.run)
    return neighbours


def _keeper(node: Node, links: Links) -> KnownPeersKeeper:
    return KnownPeersKeeper(
        path=node.config.state / KNOWN_PEERS_FILE,
        run_digest=node.signed.manifest.digest,
        links=links,
        wall_clock=time.time,
    )


async def _watch_connections(transport: Libp2pTransport, links: Links, driver: Driver) -> None:
    async with trio.open_nursery() as nursery:
        async for peer, is_up in transport.connection_events():
            links.connection_changed()
            if not is_up:
                nursery.start_soon(probe, transport, links, peer, driver.tell)


# Leaving ----------------------------------------------------------------------------------------


async def _leave(
    node: Node, departure: Departure, made: Machinery, scope: trio.CancelScope
) -> None:
    """Once asked: hand a vote on that is needed, say that we go, give it a moment, and go."""
    await departure.asked.wait()
    logger.info("leaving signal=%s", departure.signal_name or "none")
    core, reason = made.driver.core, departure.signal_name or "asked to"
    handing = HandingOver(core)
    if handing.is_needed:
        await _hand_over(node, departure, made.driver, handing)
        departure.go()
    elif not core.machine.view.is_voter:
        departure.go()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.entries.leave, reason)
        await _say_leaving(made.driver)
    await trio.sleep(LEAVE_S)
    if not departure.going.is_set() and handing.is_needed:
        # Others, without whom it can be done no longer, have left in the same moment.
        await _hand_over(node, departure, made.driver, handing)
    departure.go()
    scope.cancel()


async def _say_leaving(driver: Driver) -> None:
    with trio.move_on_after(LEAVE_QUEUED_S):
        await driver.tell(ev.Leaving())


async def _hand_over(
    node: Node, departure: Departure, driver: Driver, handing: HandingOver
) -> None:
    """Work on until others have the vote without which nothing becomes final."""
    # A user's own trainer has ended, and without a contribution there is no round more.
    if node.attached is None and handing.is_due:
        departure.stay()
        node.log.emit("handing_over", heirs=len(handing.heirs))
        await _say_leaving(driver)
        with trio.move_on_after(HAND_OVER_S_MAX):
            while handing.is_due:
                await driver.changed()
    if handing.is_needed:
        node.log.emit("warning", key="vote", text=NOT_HANDED_OVER)
    else:
        node.log.emit("handed_over", round=driver.core.machine.head.round)


async def _work(made: Machinery, departure: Departure) -> None:
    """The trainer, until the run is over or we leave: it ends while peers are told."""
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await departure.going.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(end)
        await made.work.run()
        nursery.cancel_scope.cancel()


def _watch_parent(node: Node, around: RunContext, driver: Driver, nursery: trio.Nursery) -> None:
    """End with whoever started this node, if it is somebody's child."""
    if node.attached is not None:
        nursery.start_soon(_watch_attached, node.attached, around.departure, driver)
    elif around.has_lifeline:
        nursery.start_soon(_watch_stdin, around.departure, nursery.cancel_scope)


async def _watch_attached(attached: Attachment, departure: Departure, driver: Driver) -> None:
    """Leave with the user's process, unless the run is over: then peers may need us for a while."""
    await attached.left.wait()
    if not driver.core.is_finished:
        departure.ask()


async def _watch_stdin(departure: Departure, scope: trio.CancelScope) -> None:
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
            departure.ask()


def read_line(stdin: TextIO | None) -> bytes:
    """The next line or piece of one, whatever bytes it is made of; empty at the end.

    There is no standard input at all where it was closed before the process began.
    """
    return b"" if stdin is None else stdin.buffer.readline(INPUT_LINE_BYTES_MAX)
