"""A world of nodes in virtual time: one queue of (time, sequence, node, event), no I/O, no threads.

It runs the shipped NodeCore, ShardStore, journal, recovery, codec and error feedback; links, disks,
machines and clocks are made up, all from one seed. The same seed gives the same trace, to the byte.

What the world does not model: what a node costs (disk and arithmetic of its event loop take no
time, and its event queue has no bound); the queue of 1024 frames and the write time-out of a link,
so that a frozen peer stays linked; hellos that are refused, brief links as strikes, the search for
peers and its growing delays (whoever can be linked is, a second later at most); an open stream's
flow control.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from struct import pack

import numpy as np
from blake3 import blake3

from node.holdings.recovery import recover
from node.holdings.shard_store import ShardStore
from node.holdings.states import round_config
from node.reporting.tracing import (
    Accused,
    Adopted,
    Advanced,
    Began,
    Confirmed,
    Convicted,
    Ended,
    FellBack,
    Record,
    Signed,
    Synced,
    Tracer,
)
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.identity import KeyedHashSigner, PeerId, Signer, short_id
from protocol.manifest import RunManifest
from protocol.messages import Roster, SealCertificate, SeatRecord
from protocol.rounds.chain import genesis
from protocol.rounds.round_config import Rare, as_it_is, never
from protocol.rounds.round_view import RoundConfig
from sim.world.disk import Disk
from sim.world.edge import Edge
from sim.world.links import Link, Network
from sim.world.nodes import (
    Around,
    Call,
    Clock,
    Device,
    Labour,
    NodeParts,
    SimNode,
    Wire,
    WorldSettings,
    peer_named,
    signer_named,
)
from sim.world.sharing import Shared, SharedStore
from sim.world.timeline import CalendarQueue
from sim.world.traffic import Sessions
from sim.world.trainer import MOMENTS, Learner, SimTrainer, TextModel, drift

__all__ = ["Device", "Link", "SimNode", "World", "WorldSettings", "peer_named", "signer_named"]

# A process, made of what its peer owns; nothing runs yet ------------------------------------------

DEVICE_CLASS = "simulated"
"""All machines of a world compute equal bits."""

CLOCK_START_S = (1e3, 1e6)
"""Where a machine's monotonic clock may stand: it counts from its boot, and nobody knows when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What stays of a peer from one process to the next."""

    signer: Signer
    config: RoundConfig
    device: Device
    disk: Disk
    trainer: SimTrainer


def assemble(world: Around, peer: PeerId, owned: Owned) -> tuple[NodeParts, SealCertificate]:
    """The machines of a process, and the genesis that they start from; as
    `node.daemon.assembly`."""
    manifest, path = world.manifest, short_id(peer)
    clock = Clock(world.luck(f"clock/{path}").uniform(*CLOCK_START_S), owned.device.clock_rate)
    anchor_N = np.zeros(manifest.layout(0).numel, dtype=np.float32)
    shared = world.shared
    store = (
        ShardStore(manifest, 0, anchor_N)
        if shared is None
        else SharedStore(manifest, 0, anchor_N, shared)
    )
    store.find_file = lambda index, digest: owned.disk.journal.find_result(index, digest)
    start = genesis_of(manifest, store.state.root, world.settings.seated)
    liar = world.settings.liars.get(peer)
    config = replace(
        owned.config,
        rare=_rare(world, path),
        device=DEVICE_CLASS,
        moments=MOMENTS,
        derived=shared,
        bend=as_it_is if liar is None else liar.said,
    )
    core = NodeCore(manifest, config, owned.signer, start, now_s=clock.own_s(world.now_s))
    parts = NodeParts(
        core=core,
        store=store,
        trainer=owned.trainer,
        disk=owned.disk,
        device=owned.device,
        clock=clock,
    )
    return parts, start


def genesis_of(manifest: RunManifest, root: bytes, seated: Sequence[PeerId]) -> SealCertificate:
    """Genesis; with `seated` all of them vote from the start, and are equally old."""
    start = genesis(manifest, 0, root)
    if not seated:
        return start
    seats = tuple(
        SeatRecord(peer=peer, seated=0, voter_since=0, proved=0, absent=0)
        for peer in sorted(seated)
    )
    roster = Roster(seats=seats, window=(0,))
    return SealCertificate(value=replace(start.value, roster=roster), seals=())


def _rare(world: Around, path: str) -> Rare:
    chance = world.settings.rare
    if not chance:
        return never
    stream = world.luck(f"rare/{path}")

    def rare(name: str) -> bool:
        del name
        return stream.random() < chance

    return rare


# What happened, as a digest -----------------------------------------------------------------------


class TraceHash:
    """Takes records and verbs as they happen, each with its virtual time: two worlds with the same
    digest did the same."""

    def __init__(self) -> None:
        self._hasher = blake3()

    def record(self, record: Record) -> None:
        """A node did something."""
        update = self._hasher.update
        update(type(record).__name__.encode() + pack("<d", record.at_s) + record.peer)
        update(_told(record))

    def verb(self, at_s: float, name: str, peers: tuple[PeerId, ...]) -> None:
        """Somebody did something to nodes or links."""
        self._hasher.update(pack("<d", at_s) + name.encode() + b" " + b"".join(peers))

    @property
    def hex(self) -> str:
        """The digest so far, in letters."""
        return self._hasher.hexdigest()


def _told(record: Record) -> bytes:
    """What the digest takes of a record besides its kind, time and node."""
    match record:
        case Signed(message=message):
            return message.digest
        case Began(head=head, is_lost=is_lost):
            return head.value.digest + bytes([is_lost])
        case (
            Adopted(certificate=certificate, root=root, was_listed=was_listed)
            | Advanced(certificate=certificate, root=root, was_listed=was_listed)
        ):
            return certificate.value.digest + root + bytes([was_listed])
        case (
            Synced(certificate=certificate, root=root)
            | Confirmed(certificate=certificate, root=root)
        ):
            return certificate.value.digest + root
        case FellBack(final=final, lost=lost):
            return final.value.digest + lost.value.digest
        case Accused(of=of, reason=reason):
            return of + reason.encode()
        case Convicted(evidence=evidence):
            return evidence.entry_id
        case _:
            return str(getattr(record, "reason", "")).encode()


# Nodes, links and time ----------------------------------------------------------------------------

Trigger = Callable[["World", SimNode, ev.CoreAction | None], None]
"""Asked before each action of a node, and with None after all actions of an event."""

Look = Callable[[SimNode], None]
"""Looks at a node after all actions of an event; must not change anything."""


class World(Around):
    """Nodes, links and time.

    Verbs: `join`, `crash`, `bounce`, `lose_disk`, `leave`, `freeze`, `thaw`, `cut`, `heal`,
    `block`, `unblock`, `partition`, `repair`, `hold`, `release`, `clog`, `fill_disk`, `free_disk`,
    `set_link`, `run`, `later`. Whoever is dead cannot be killed or frozen: nothing happens then.
    """

    def cut(self, one: PeerId, other: PeerId) -> None:
        """The link of two nodes breaks, both hear of it, and no new one comes until `heal`."""
        self._verb("cut", one, other)
        self.network.cut(one, other)
        session = self.sessions.between(one, other)
        if session is not None:
            self.sessions.broken(session)

    def heal(self, one: PeerId, other: PeerId) -> None:
        """The two are linked again, at once."""
        self._verb("heal", one, other)
        self.network.heal(one, other)
        # Behind the end of the link before, if that is not heard of yet.
        self.later(0.0, lambda: self.sessions.link_now(one, other, at_once=True))

    def block(self, source: PeerId, target: PeerId) -> None:
        """Nothing arrives any more from the one at the other, and nobody is told."""
        self._verb("block", source, target)
        self.sessions.silence(self.network.direction(source, target))

    def unblock(self, source: PeerId, target: PeerId) -> None:
        """The one reaches the other again."""
        self._verb("unblock", source, target)
        self.sessions.unsilence(self.network.direction(source, target))

    def partition(self, groups: Sequence[Sequence[PeerId]]) -> None:
        """Nothing arrives between the groups, and nobody is told; who is in none reaches all."""
        self._verb("partition", *(peer for group in groups for peer in (*group, PeerId(b"|"))))
        for number, group in enumerate(groups):
            for source in group:
                for others in (*groups[:number], *groups[number + 1 :]):
                    for target in others:
                        self.sessions.silence(self.network.direction(source, target))

    def repair(self) -> None:
        """All links are as they were: nothing is cut, blocked or held."""
        self._verb("repair")
        self.network.heal_all()
        for direction in self.network.directions():
            self.sessions.unsilence(direction)
            self.sessions.release(direction)
        living = self._living()
        for number, node in enumerate(living):
            for other in living[number + 1 :]:
                if other.peer not in node.wires:
                    self.sessions.link_soon(node.peer, other.peer)

    def hold(self, source: PeerId, target: PeerId) -> None:
        """What is sent from the one to the other waits until `release`."""
        self._verb("hold", source, target)
        direction = self.network.direction(source, target)
        direction.held = direction.held if direction.held is not None else []

    def release(self, source: PeerId, target: PeerId) -> None:
        """What waited goes on its way."""
        self._verb("release", source, target)
        self.sessions.release(self.network.direction(source, target))

    def clog(self, source: PeerId, target: PeerId, seconds: float) -> None:
        """What is sent from the one to the other arrives after that time at the earliest."""
        self._verb(f"clog {seconds!r}", source, target)
        self.network.direction(source, target).stick(self.now_s + seconds)

    def set_link(self, source: PeerId, target: PeerId, link: Link) -> None:
        """One direction gets another quality."""
        self._verb(f"link {link!r}", source, target)
        self.network.set_link(source, target, link)

    makes_node = Edge
    """What a process is; a test may bend it."""

    def __init__(
        self,
        manifest: RunManifest,
        *,
        seed: int,
        link: Link | None = None,
        device: Device | None = None,
        settings: WorldSettings | None = None,
    ) -> None:
        self.manifest = manifest
        self.settings = settings or WorldSettings()
        self.now_s = 0.0
        self.events = 0
        self.nodes = {}
        self.shared = Shared() if self.settings.is_sharing else None
        self.faults: list[tuple[PeerId, str]] = []
        self.tracers: list[Tracer] = []
        self.triggers: list[Trigger] = []
        self.looks: list[Look] = []
        self.labour = Labour()
        self._losses: dict[int, dict[PeerId, float]] = {}
        self._seed = seed
        self._device = device or Device()
        self.calendar = CalendarQueue()
        self._sequence = 0
        self._streams: dict[str, random.Random] = {}
        self._signers: dict[PeerId, Signer] = {}
        self._owned: dict[PeerId, Owned] = {}
        self._processes: list[SimNode] = []
        is_real = self.settings.trainer == "model"
        self._learner: Learner = TextModel(manifest, seed) if is_real else drift
        self._trace = TraceHash()
        self.network = Network(link or Link(), self.luck)
        self.sessions = Sessions(self)

    def peer(self, name: str) -> PeerId:
        """The peer id of a name in this world; the founder's must be the manifest's."""
        if not self.settings.is_signing_for_real:
            return peer_named(name)
        signer = signer_named(name)
        self._signers[signer.peer_id] = signer
        return signer.peer_id

    @property
    def trace_hash(self) -> str:
        """A digest over all records and verbs, and when they were."""
        return self._trace.hex

    @property
    def losses(self) -> dict[int, float]:
        """By round the mean loss of those who trained for it, where trainers have one."""
        means = {index: sum(of.values()) / len(of) for index, of in self._losses.items()}
        return dict(sorted(means.items()))

    # Verbs: nodes -------------------------------------------------------------------------------

    def join(
        self,
        peer: PeerId,
        *,
        config: RoundConfig | None = None,
        device: Device | None = None,
        neighbours: Collection[PeerId] | None = None,
    ) -> SimNode:
        """A node with the genesis state appears, and links to every living one or neighbour."""
        self._verb("join", peer)
        self.network.settle(peer, neighbours)
        assert peer not in self.nodes, "it is here already: bounce it"
        owned = Owned(
            signer=self._signers.get(peer) or KeyedHashSigner(peer),
            config=config or round_config(self.manifest),
            device=device or self._device,
            disk=Disk(
                self.luck(f"disk/{short_id(peer)}"), self.settings.disk, self.shared, peer=peer
            ),
            trainer=SimTrainer(self.manifest, self._learner, peer),
        )
        return self._start(peer, owned)

    def crash(self, peer: PeerId) -> None:
        """The machine goes down: process and links, and what is not synced; what it sent comes."""
        node = self.nodes[peer]
        if node.is_alive:
            self._verb("crash", peer)
            self._kill(node)
            node.disk.crash()

    def bounce(self, peer: PeerId) -> SimNode:
        """The node comes back with what its disk has; killed first, if it still runs."""
        self.crash(peer)
        self._verb("bounce", peer)
        old = self.nodes[peer]
        owned = replace(self._owned[peer], device=old.device, trainer=old.trainer.restarted())
        return self._start(peer, owned)

    def lose_disk(self, peer: PeerId) -> None:
        """The disk of a dead node is replaced by an empty one."""
        node = self.nodes[peer]
        assert not node.is_alive, "it is at work on its disk"
        self._verb("lose_disk", peer)
        node.disk.forget()
        node.trainer.forget()

    def leave(self, peer: PeerId) -> None:
        """The operator stops a node: it says goodbye, and a moment later it is gone."""
        self._verb("leave", peer)
        node = self.nodes[peer]
        self.push(self.now_s, node, node.leave)

    def freeze(self, peer: PeerId) -> None:
        """SIGSTOP: links stay up, nothing is processed until `thaw`."""
        node = self.nodes[peer]
        if node.is_alive and node.waiting is None:
            self._verb("freeze", peer)
            node.waiting = []

    def thaw(self, peer: PeerId) -> None:
        """SIGCONT: everything that waited is processed now."""
        node = self.nodes[peer]
        if node.waiting is not None:
            self._verb("thaw", peer)
            waiting, node.waiting = node.waiting, None
            self.push(self.now_s, node, node.tell, ev.Tick())
            for call, arguments in waiting:
                self.push(self.now_s, node, call, *arguments)

    def fill_disk(self, peer: PeerId) -> None:
        """Every write fails from now on."""
        self._verb("fill_disk", peer)
        self.nodes[peer].disk.is_full = True

    def free_disk(self, peer: PeerId) -> None:
        """There is room again."""
        self._verb("free_disk", peer)
        self.nodes[peer].disk.is_full = False

    # Time ---------------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool], max_s: float, *, every_s: float = 0.0) -> None:
        """Let time pass until the condition holds, which is asked after every event, or as often.

        Raises TimeoutError after `max_s` virtual seconds.
        """
        calendar, end_s, asked_s = self.calendar, self.now_s + max_s, -1.0
        while True:
            if self.now_s >= asked_s:
                if until():
                    return
                asked_s = self.now_s + every_s
            next_s = calendar.next_s()
            if next_s > end_s or next_s == inf:
                raise TimeoutError(f"nothing came of it in {max_s} virtual seconds")
            self.now_s, _, node, call, arguments = calendar.take()
            self.events += 1
            if node is None:
                assert call is not None
                call(*arguments)
            elif not node.is_alive:
                pass  # What a process waited for dies with it.
            elif node.waiting is not None:
                node.waiting.append((call or node.hear, arguments))
            else:
                try:
                    if call is None:
                        wire, event = arguments
                        assert isinstance(wire, Wire)
                        assert isinstance(event, ev.FrameArrived)
                        node.hear(wire, event)
                    else:
                        call(*arguments)
                except OSError as error:
                    self._fail(node, error)

    def end(self) -> None:
        """Nothing is asked of this world any more."""
        for node in self._processes:
            node.let_go()
        self._processes.clear()
        self.nodes.clear()
        self.calendar = CalendarQueue()

    def later(self, delay_s: float, verb: Callable[[], object]) -> None:
        """Call a verb when that much time has passed."""
        self.push(self.now_s + delay_s, None, verb)

    # What nodes and links ask of the world: see `sim.world.nodes.Around`
    # --------------------------------

    def push(self, time_s: float, node: SimNode | None, call: Call, *args: object) -> None:
        """See Around."""
        self._sequence += 1
        self.calendar.put((time_s, self._sequence, node, call, args))

    def deliver(self, time_s: float, wire: Wire, event: ev.FrameArrived) -> None:
        """See Around. Two of three events are frames: no bound method is made for each."""
        self._sequence += 1
        self.calendar.put((time_s, self._sequence, wire.to, None, (wire, event)))

    def luck(self, path: str) -> random.Random:
        """See Around. One stream per purpose, so that a new node changes no other node's luck."""
        if path not in self._streams:
            self._streams[path] = random.Random(f"{self._seed}/{path}")
        return self._streams[path]

    def emit(self, record: Record) -> None:
        """See Around."""
        self._trace.record(record)
        try:
            for tracer in self.tracers:
                tracer(record)
        except OSError as error:
            # Of whoever watches, and no node's disk.
            raise RuntimeError(f"a tracer failed: {error}") from error

    def ask(self, node: SimNode, action: ev.CoreAction | None) -> None:
        """See Around."""
        if self.triggers:
            for trigger in tuple(self.triggers):
                trigger(self, node, action)
        if action is None:
            for look in self.looks:
                look(node)

    def accuse(self, node: SimNode, peer: PeerId, reason: str, *, is_strike: bool = True) -> None:
        """See Around."""
        self.faults.append((peer, reason))
        self.emit(Accused(at_s=self.now_s, peer=node.peer, of=peer, reason=reason))
        if is_strike:
            node.strike(peer)

    def hang_up(self, node: SimNode, peer: PeerId, pause_s: float) -> None:
        """See Around."""
        self.sessions.hung_up(node, peer)
        self.push(self.now_s + pause_s, None, self.sessions.link_soon, node.peer, peer)

    def look_for(self, node: SimNode, peer: PeerId) -> None:
        """See Around."""
        self.sessions.link_soon(node.peer, peer)

    def learned(self, node: SimNode, round_index: int, loss: float) -> None:
        """See Around."""
        self._losses.setdefault(round_index, {})[node.peer] = loss

    def made(self, node: SimNode, payloads: Sequence[bytes], fragment: int) -> None:
        """See Around."""
        if (conspiracy := self.settings.conspiracy) is not None:
            vector_N = node.store.decode(payloads, fragment=fragment)
            conspiracy.made(node.peer, node.store.state.root, vector_N)

    def training_now(self, node: SimNode) -> Collection[PeerId]:
        """See Around."""
        return [
            peer
            for peer, other in self.nodes.items()
            if other.is_alive and peer != node.peer and not other.core.is_finished
        ]

    def nap(self, node: SimNode) -> None:
        """See Around."""
        self.freeze(node.peer)
        nap_s = self.luck(f"nap/{short_id(node.peer)}").uniform(*node.device.nap_s)
        self.push(self.now_s + nap_s, None, self._end_nap, node)

    def ended(self, node: SimNode, reason: str, *, is_over: bool = False) -> None:
        """See Around."""
        if node.is_alive:
            node.is_over = is_over
            self._kill(node)
            self.emit(Ended(at_s=self.now_s, peer=node.peer, reason=reason))

    # Helpers ------------------------------------------------------------------------------------

    def _start(self, peer: PeerId, owned: Owned) -> SimNode:
        """The next process of a peer, from what it owns."""
        parts, start = assemble(self, peer, owned)
        node = self.makes_node(self, parts)
        self._processes.append(node)
        old = self.nodes.get(peer)
        if old is not None:
            node.sealed, node.anchors = old.sealed, old.anchors
        self.nodes[peer], self._owned[peer] = node, owned
        try:
            owned.disk.reopen()
            restart = recover(start, node.store, owned.disk.journal, owned.disk.states())
            node.begin(replace(restart, begun=owned.disk.fetched.begun))
        except OSError as error:
            self._fail(node, error)
            return node
        self._await_end_time(node)
        for other in self._living():
            self.sessions.link(node, other)
        return node

    def _await_end_time(self, node: SimNode) -> None:
        """Its own wall clock tells a node that the run's last date is past."""
        if end_unix_s := self.manifest.stop.unix_s:
            start_unix_s = self.manifest.created_unix_s + node.device.wall_offset_s
            at_s = max(self.now_s, float(end_unix_s - start_unix_s))
            self.push(at_s, node, node.tell, ev.EndTimePassed())

    def _end_nap(self, node: SimNode) -> None:
        if self.nodes[node.peer] is node:
            self.thaw(node.peer)

    def _kill(self, node: SimNode) -> None:
        node.is_alive, node.waiting = False, None
        self.sessions.died(node)

    def _fail(self, node: SimNode, error: OSError) -> None:
        """A disk that does not take a write ends the process, as it does a real node."""
        self.ended(node, f"disk: {error.strerror or error}")

    def _living(self) -> list[SimNode]:
        return [node for _, node in sorted(self.nodes.items()) if node.is_alive]

    def _verb(self, name: str, *peers: PeerId) -> None:
        self._trace.verb(self.now_s, name, peers)
