"""Nodes that only gossip, in virtual time: the shipped `Gossip` over links that lose frames.

The edge is made up: whoever sends to a peer without a link dials first, and what waits for the link
is lost with the dial. A link that is not used goes after a while. Every frame may be lost, which a
stream would repeat: harsher than the real thing. Frames cost their bytes on the wire.
"""

import random
from collections import Counter
from dataclasses import dataclass, field

from blake3 import blake3

from protocol.events import Fault, Send
from protocol.frames import decode_frame, encode_frame
from protocol.gossip import GossipFrame
from protocol.gossiping.gossiped import Offered
from protocol.gossiping.machine import Action, Gone, Gossip
from protocol.gossiping.settings import GossipSettings
from protocol.identity import PeerId
from sim.crowds.gossip_book import MARK, SimBook
from sim.crowds.timeline import Timeline

START_UNIX_S = 1_800_000_000.0
IDLE_S = 30.0
LENGTH_BYTES = 4
"""Before each frame of a stream."""

DIAL_ROUND_TRIPS = 4
"""TCP, the handshake of Noise and two negotiations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipNetwork:
    """The network between nodes; latencies are one-way and of each node by itself."""

    one_way_s: tuple[float, float] = (0.01, 0.08)
    loss: float = 0.0
    is_encoding: bool = False
    """Whether frames arrive decoded from their bytes, which costs a third of the time."""

    gossip: GossipSettings = field(default_factory=GossipSettings)


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was counted, since it was last reset."""

    sent_bytes: int = 0
    frames: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)


class GossipWorld:
    """Nodes, network and time."""

    def __init__(self, network: GossipNetwork, *, seed: int) -> None:
        self.network = network
        self.timeline = Timeline(seed)
        self.nodes: dict[PeerId, GossipNode] = {}
        self.seen = Seen()
        self.faults: list[tuple[PeerId, PeerId, str]] = []
        """By whom, whom, and why."""
        self.gone: list[tuple[float, PeerId, PeerId]] = []
        """When, by whom, and who was given up."""
        self.holding: dict[bytes, list[tuple[float, PeerId]]] = {}
        """By entry id, when each node came to hold it, the first of them its writer."""
        self._luck = self.timeline.stream("network")
        self._sides: dict[PeerId, int] = {}
        self._size: tuple[GossipFrame | None, int] = (None, 0)
        self._trace = blake3()

    @property
    def trace_hash(self) -> str:
        """A digest over all frames that arrived, and when."""
        return self._trace.hexdigest()

    def join(self, name: str, known: list[PeerId]) -> "GossipNode":
        """A node appears, and was told of some peers."""
        node = GossipNode(self, name)
        self.nodes[node.peer] = node
        for peer in known:
            node.carry_out(node.gossip.meet(peer, (), now_s=self.timeline.now_s))
        node.plan()
        return node

    def write(self, peer: PeerId, text: bytes, *, size: int = 400) -> bytes:
        """A node writes an entry of about so many bytes; its id."""
        node = self.nodes[peer]
        encoded = (MARK + text + b" ").ljust(size, b".")
        now_s = self.timeline.now_s
        offered, actions = node.gossip.publish(encoded, wall_s=node.wall_s, now_s=now_s)
        node.carry_out(actions)
        node.plan()
        return offered.entry_id

    def split(self, sides: list[list[PeerId]]) -> None:
        """Nothing passes between the sides from now on."""
        self._sides = {peer: index for index, side in enumerate(sides) for peer in side}
        for node in self.nodes.values():
            node.connected = {p: s for p, s in node.connected.items() if self.passes(node.peer, p)}

    def heal(self) -> None:
        """Everybody can reach everybody again."""
        self._sides = {}

    def passes(self, source: PeerId, target: PeerId) -> bool:
        """Whether the two are on the same side."""
        return self._sides.get(source) == self._sides.get(target)

    def carry(self, source: "GossipNode", peer: PeerId, frame: GossipFrame) -> None:
        """A frame leaves; it may arrive."""
        seen, now_s = self.seen, self.timeline.now_s
        if self._size[0] is not frame:
            self._size = frame, len(encode_frame(frame)) + LENGTH_BYTES
        seen.sent_bytes += self._size[1]
        seen.frames += 1
        seen.by_kind[type(frame).__name__] += self._size[1]
        target = self.nodes.get(peer)
        if target is None or not self.passes(source.peer, peer):
            return
        delay_s = self._one_way_s() + self._one_way_s()
        dial_s = source.dial_s(target, now_s, delay_s)
        if self._luck.random() >= self.network.loss:
            # Frames of one stream keep their order.
            at_s = max(now_s + dial_s + delay_s, source.last_s.get(peer, 0.0))
            source.last_s[peer] = at_s
            self.timeline.later(at_s - now_s, target.hear, source.peer, frame)

    def _one_way_s(self) -> float:
        low, high = self.network.one_way_s
        return 0.5 * (low + (high - low) * self._luck.random())

    def arrived(self, source: PeerId, target: PeerId, frame: GossipFrame) -> GossipFrame:
        """A frame is heard: it is part of the trace."""
        self._trace.update(f"{self.timeline.now_s:.9f} {type(frame).__name__} ".encode())
        self._trace.update(source + target)
        if not self.network.is_encoding:
            return frame
        heard: GossipFrame = decode_frame(encode_frame(frame))  # type: ignore[assignment]  # it is one
        return heard


class GossipNode:
    """One node, and its edge."""

    def __init__(self, world: GossipWorld, name: str) -> None:
        self.peer = PeerId(blake3(b"barnraise/sim/gossip/" + name.encode()).digest())
        self.book = _WatchedBook(world, self.peer)
        self.is_alive = True
        self.naps_until_s = 0.0
        self.connected: dict[PeerId, float] = {}
        """To whom there is a link, and when it was last used."""
        self.last_s: dict[PeerId, float] = {}
        self._world = world
        self._time = world.timeline
        self._due_s = float("inf")
        rng = random.Random(self._time.stream(f"node/{name}").random())
        self.gossip = Gossip(
            self.peer,
            self.book,
            rng,
            addresses=lambda: (f"/ip4/192.0.2.1/tcp/4001/{name}",),
            settings=world.network.gossip,
            now_s=self._time.now_s,
        )

    @property
    def wall_s(self) -> float:
        """Unix seconds by this node's clock."""
        return START_UNIX_S + self._time.now_s

    def vanish(self) -> None:
        """It is gone without a word: or frozen, which looks the same from outside."""
        self.is_alive = False

    def nap(self, seconds: float) -> None:
        """The machine stalls: what arrives waits, timers are late."""
        self.naps_until_s = self._time.now_s + seconds

    def leave(self) -> None:
        """It says goodbye, and is gone."""
        self.carry_out(self.gossip.leave(now_s=self._time.now_s))
        self.is_alive = False

    def dial_s(self, target: "GossipNode", now_s: float, round_trip_s: float) -> float:
        """How long until a link stands: no time if there is one."""
        used_s = self.connected.get(target.peer)
        if used_s is None or now_s - used_s > IDLE_S:
            self.connected[target.peer] = target.connected[self.peer] = now_s
            return DIAL_ROUND_TRIPS * 2.0 * round_trip_s
        self.connected[target.peer] = now_s
        return 0.0

    def hear(self, source: PeerId, frame: GossipFrame) -> None:
        """A frame arrives."""
        if not self.is_alive:
            return
        now_s = self._time.now_s
        if now_s < self.naps_until_s:
            self._time.later(self.naps_until_s - now_s, self.hear, source, frame)
            return
        heard = self._world.arrived(source, self.peer, frame)
        self.carry_out(self.gossip.handle(source, heard, wall_s=self.wall_s, now_s=now_s))
        self.plan()

    def carry_out(self, actions: list[Action]) -> None:
        """What the machine wants done."""
        for action in actions:
            match action:
                case Send(peer=peer, frame=frame):
                    self._world.carry(self, peer, frame)  # type: ignore[arg-type]  # gossip only
                case Fault(peer=peer, reason=reason):
                    self._world.faults.append((self.peer, peer, reason))
                case Gone(peer=peer):
                    self._world.gone.append((self._time.now_s, self.peer, peer))

    def plan(self) -> None:
        """Set the timer, if something is due before it."""
        due_s = self.gossip.wakeup_s()
        if due_s < self._due_s:
            self._due_s = due_s
            self._time.later(max(0.0, due_s - self._time.now_s) + 1e-6, self._wake, due_s)

    def _wake(self, due_s: float) -> None:
        if not self.is_alive or due_s > self._due_s:
            return
        now_s = self._time.now_s
        if now_s < self.naps_until_s:
            self._time.later(self.naps_until_s - now_s, self._wake, due_s)
            return
        self._due_s = float("inf")
        if self.gossip.wakeup_s() <= now_s:
            self.carry_out(self.gossip.tick(now_s=now_s))
        self.plan()


class _WatchedBook(SimBook):
    """Tells the world when it comes to hold something."""

    def __init__(self, world: GossipWorld, peer: PeerId) -> None:
        super().__init__()
        self._world, self._peer = world, peer

    def offer(self, encoded: bytes, *, wall_s: float, now_s: float) -> Offered:
        """See Gossiped."""
        offered = super().offer(encoded, wall_s=wall_s, now_s=now_s)
        if offered.is_new:
            held = self._world.holding.setdefault(offered.entry_id, [])
            held.append((self._world.timeline.now_s, self._peer))
        return offered
