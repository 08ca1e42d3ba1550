"""One simulated node as others see it, its machine, what it asks of the world around it, and its
name.

What a node does with events and actions is `sim.world.edge`.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from node.holdings.shard_store import Item, ShardStore, State
from node.plane.gathered import Gathered
from node.plane.hooks import NodeHooks
from node.plane.served import Served
from node.plane.work_desk import WorkStore
from node.reporting.tracing import Record
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.frames import BulkHeader
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from protocol.rounds.restart import Restart
from sim.attacks.alone import Conspiracy
from sim.world.disk import Disk, DiskSpec
from sim.world.links import Direction, Network
from sim.world.sharing import Shared
from sim.world.trainer import MOMENTS, SimTrainer, Vector

# Machines -----------------------------------------------------------------------------------------

Seconds = tuple[float, float]
"""A range from which a duration is drawn, uniformly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One machine. The defaults are a desktop that does nothing else.

    `train_s` is a round's training, `compute_s` one task of the worker thread, `ready_s` the start
    of the trainer. Its monotonic clock runs `clock_rate` times as fast as the world's; its wall
    clock is `wall_offset_s` ahead. With chance `nap` a round of training is interrupted: the whole
    machine stands still for `nap_s`, as a laptop whose lid is closed.
    """

    train_s: Seconds = (0.8, 1.4)
    compute_s: Seconds = (0.005, 0.015)
    ready_s: Seconds = (0.1, 0.5)
    checkpoint_s: Seconds = (0.0, 1.0)
    """From an adopted round to its checkpoint; what is adopted meanwhile replaces it."""

    clock_rate: float = 1.0
    wall_offset_s: float = 0.0
    nap: float = 0.0
    nap_s: Seconds = (1.0, 6.0)

    def __post_init__(self) -> None:
        for name in ("train_s", "compute_s", "ready_s", "checkpoint_s", "nap_s"):
            low, high = getattr(self, name)
            if not 0.0 <= low <= high:
                raise ValueError(f"{name}: {low}..{high} is no range of seconds")
        if not 0.1 <= self.clock_rate <= 10.0:
            raise ValueError(f"clock_rate: {self.clock_rate} is not within 0.1..10")
        if not 0.0 <= self.nap <= 1.0:
            raise ValueError(f"nap: {self.nap} is no chance")


@dataclass(frozen=True, slots=True)
class Clock:
    """A machine's monotonic clock: where it started, and how fast it runs."""

    offset_s: float
    rate: float

    def own_s(self, world_s: float) -> float:
        """What it shows at that time of the world."""
        return self.offset_s + self.rate * world_s

    def world_s(self, own_s: float) -> float:
        """The time of the world at which it shows that."""
        return (own_s - self.offset_s) / self.rate


@dataclass(slots=True)
class Labour:
    """What all trainers of a world did, in rounds of one peer: for themselves, and again for
    audits."""

    trained: int = 0
    audited: float = 0.0
    spans_s: list[tuple[PeerId, Seconds]] = field(default_factory=list)
    """Who trained from when to when."""

    @property
    def share(self) -> float:
        """Audits, in parts of what was trained."""
        return self.audited / max(1, self.trained)

    def trained_share(self, peer: PeerId, since_s: float, until_s: float) -> float:
        """For how much of that time the trainer of a node trained."""
        trained_s = sum(
            max(0.0, min(end_s, until_s) - max(begin_s, since_s))
            for who, (begin_s, end_s) in self.spans_s
            if who == peer
        )
        return trained_s / (until_s - since_s) if until_s > since_s else 0.0


# Nodes --------------------------------------------------------------------------------------------

Call = Callable[..., object]
"""What happens to a node; called with its arguments when the time has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """How a world is run, besides its links and machines.

    `is_signing_for_real` takes Ed25519 in place of keyed hashes, `is_encoding` sends every frame
    and header through its wire form. `rare` is the chance that a named rare branch is taken
    (`protocol.rounds.round_config`). `trainer` is what nodes learn: a made-up drift, or a small
    model on text (`sim.world.trainer`). `linger_s` is how long a node serves its peers after the
    last round; if it is infinite, nobody goes at the end of the run. `state_bytes_per_s` is what
    each gives joiners of its line, 0 sets no limit. `disk` is what disks do wrong. `seated` vote
    from the start, as in a run that is old already: open runs admit few voters in sixteen rounds.
    `liars` are bent; a `conspiracy` of theirs hears of all that is made. `costs_time` says that
    frames keep a node's loop busy, for as long as `protocol.core.budgets` puts them at: where
    somebody floods it. `is_sharing` has equal results worked out once for all nodes
    (`sim.world.sharing`). With `fits_steps` each trainer takes as many steps as fit its speed.
    """

    is_signing_for_real: bool = False
    is_encoding: bool = False
    rare: float = 0.0
    trainer: str = "drift"
    linger_s: float = 15.0
    state_bytes_per_s: float = 0.0
    disk: DiskSpec = field(default_factory=DiskSpec)
    seated: tuple[PeerId, ...] = ()
    liars: Mapping[PeerId, NodeHooks] = field(default_factory=dict)
    conspiracy: Conspiracy | None = None
    costs_time: bool = False
    is_sharing: bool = False
    fits_steps: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.rare <= 1.0:
            raise ValueError(f"rare: {self.rare} is no chance")
        if self.trainer not in ("drift", "model"):
            raise ValueError(f"trainer: {self.trainer!r} is neither 'drift' nor 'model'")


@dataclass(slots=True, kw_only=True)
class NodeParts:
    """What a process is made of when it begins."""

    core: NodeCore
    store: ShardStore
    trainer: SimTrainer
    disk: Disk
    device: Device
    clock: Clock


class SimNode(ABC):
    """One process. The next process of the same peer is another one.

    `waiting` holds what happened while it is frozen, and is None while it runs. `is_over` says
    that it ended because its run did. By round, over all processes of the peer: `sealed` the
    digests of the seals that it adopted, `anchors` the bytes of the anchors that it had. `gathered`
    and `served` are there once it has begun.
    """

    gathered: Gathered
    served: Served

    __deletable__ = ("core", "disk", "store", "trainer", "works")
    """Asked for by mypyc, of what `let_go` deletes."""

    def __init__(self, parts: NodeParts) -> None:
        self.peer: PeerId = parts.core.machine.view.me
        self.core, self.store = parts.core, parts.store
        self.trainer, self.disk = parts.trainer, parts.disk
        self.device, self.clock = parts.device, parts.clock
        self.is_alive = True
        self._hooks, self._is_liar = NodeHooks(), False
        self.sums_wrongly = False
        """Whether what it sums is off by a bit: a broken machine, or a crude liar."""
        self.has_erred = False
        """Whether it ever did: such a machine may be banned."""
        self.lies_in_gram = False
        """Of that alone: whoever sums wrongly lies in both."""
        self.is_over = False
        self.waiting: list[tuple[Call, tuple[object, ...]]] | None = None
        self.sealed: dict[int, bytes] = {}
        self.anchors: dict[int, bytes] = {}
        self.wires: dict[PeerId, Wire] = {}
        self.works = WorkStore(self.store.layout, self.trainer.kept, moments=MOMENTS)

    def let_go(self) -> None:
        """The world is over: nothing is asked of this node any more.

        All that a world is made of refers to each other. Taken apart it is gone at once; else the
        collector would go through it all to find that out, for 4 % of a sweep.
        """
        self.wires.clear()
        del self.core, self.disk, self.store, self.trainer, self.works

    def anchor(self, round_index: int) -> Vector | None:
        """The anchor that a round led to here; zeros of genesis."""
        if not round_index:
            return np.zeros(self.store.layout.numel, dtype=np.float32)
        data = self.anchors.get(round_index)
        return None if data is None else np.frombuffer(data, dtype=np.float32)

    @property
    def hooks(self) -> NodeHooks:
        """What bends it."""
        return self._hooks

    @hooks.setter
    def hooks(self, hooks: NodeHooks) -> None:
        self._hooks, self._is_liar = hooks, bool(hooks.name)

    @property
    def is_bent(self) -> bool:
        """Whether it lies, or its machine is broken; asked behind every event."""
        return self.sums_wrongly or self._is_liar

    @property
    def is_frozen(self) -> bool:
        """Whether it stands still."""
        return self.waiting is not None

    @property
    def round(self) -> int:
        """The last round that is final here."""
        return self.core.machine.head.round

    @abstractmethod
    def tell(self, event: ev.CoreEvent) -> None:
        """The core takes an event in, and its actions are carried out."""

    @abstractmethod
    def hear(self, wire: "Wire", event: ev.FrameArrived) -> None:
        """A frame that was sent on that wire is here."""

    @abstractmethod
    def num_unread(self, peer: PeerId) -> int:
        """How many frames of a peer wait to be read, because it sends more than its share."""

    @abstractmethod
    def linked(self, wire: "Wire") -> None:
        """A link to a peer stands at this end."""

    @abstractmethod
    def unlinked(self, session: "Session") -> None:
        """This end hears that a link is over."""

    @abstractmethod
    def cells_came(self, transfer: "Transfer", num_here: int) -> None:
        """More of a bulk transfer is here, `num_here` of its items by now."""

    @abstractmethod
    def state_came(self, certificate: SealCertificate, state: State) -> None:
        """All cells of a sealed state are here and verified."""

    @abstractmethod
    def leave(self) -> None:
        """The operator stops it."""

    @abstractmethod
    def strike(self, peer: PeerId) -> None:
        """Another broke the protocol: with too many faults it is left alone for a while."""

    @abstractmethod
    def begin(self, restart: Restart) -> None:
        """The first actions, from what the disk led to."""

    @abstractmethod
    def is_paused(self, peer: PeerId) -> bool:
        """Whether a peer is left alone for a while, for what it did."""


class Session:
    """One conversation; ended for good once `is_over`, though an end may not know it yet."""

    __slots__ = ("acceptor", "is_over", "opener")

    def __init__(self, opener: SimNode, acceptor: SimNode) -> None:
        self.opener, self.acceptor = opener, acceptor
        self.is_over = False

    def other(self, node: SimNode) -> SimNode:
        """Whom an end speaks with."""
        return self.acceptor if node is self.opener else self.opener


class Wire:
    """One end of a session: where its frames go, and the luck that they have."""

    __slots__ = ("direction", "session", "to")

    def __init__(self, session: Session, to: SimNode, direction: Direction) -> None:
        self.session, self.to, self.direction = session, to, direction


class Transfer:
    """One bulk stream: items of one header, of which the first `num_here` have arrived.

    `wait_s` is when its next cell is given up, because nothing here commits to it; below 0 it is
    not waited for.
    """

    __slots__ = (
        "given_s",
        "header",
        "is_over",
        "items",
        "next",
        "num_here",
        "timed_s",
        "wait_s",
        "wire",
    )

    def __init__(self, wire: Wire, header: BulkHeader, items: list[Item], begin_s: float) -> None:
        self.wire, self.header, self.items = wire, header, items
        self.num_here = self.next = 0
        self.wait_s = -1.0
        self.timed_s = begin_s
        """Until when its bytes were timed; at first, when they began to arrive."""
        self.given_s = begin_s
        """When its sender was told last that they are read."""
        self.is_over = False


class Around(ABC):
    """What a node's edge and its links ask of their world."""

    now_s: float
    manifest: RunManifest
    settings: WorldSettings
    network: Network
    shared: Shared | None
    """What the nodes of this world work out once for all; None: each does it by itself."""
    labour: Labour
    nodes: dict[PeerId, SimNode]
    """The latest process of every peer."""

    @abstractmethod
    def push(self, time_s: float, node: SimNode | None, call: Call, *args: object) -> None:
        """Call it then, if the node still lives, and once it no longer is frozen."""

    @abstractmethod
    def deliver(self, time_s: float, wire: Wire, event: ev.FrameArrived) -> None:
        """Have a frame heard then at the end of a wire; as `push`, which takes anything."""

    @abstractmethod
    def luck(self, path: str) -> random.Random:
        """The one stream of a readable path."""

    @abstractmethod
    def emit(self, record: Record) -> None:
        """A node did something that is traced."""

    @abstractmethod
    def ask(self, node: SimNode, action: ev.CoreAction | None) -> None:
        """A node is about to carry out an action, or None: is through with all of an event."""

    @abstractmethod
    def accuse(self, node: SimNode, peer: PeerId, reason: str, *, is_strike: bool = True) -> None:
        """A node holds that another broke the protocol."""

    @abstractmethod
    def hang_up(self, node: SimNode, peer: PeerId, pause_s: float) -> None:
        """A node drops a link, and wants no other for so long."""

    @abstractmethod
    def look_for(self, node: SimNode, peer: PeerId) -> None:
        """A link is over: a node wants another one."""

    @abstractmethod
    def learned(self, node: SimNode, round_index: int, loss: float) -> None:
        """A trainer tells its loss."""

    @abstractmethod
    def made(self, node: SimNode, payloads: Sequence[bytes], fragment: int) -> None:
        """A trainer has made a contribution; nobody is told of it but liars who know all."""

    @abstractmethod
    def training_now(self, node: SimNode) -> Collection[PeerId]:
        """All others that run and contribute."""

    @abstractmethod
    def nap(self, node: SimNode) -> None:
        """The machine stands still for a while."""

    @abstractmethod
    def ended(self, node: SimNode, reason: str, *, is_over: bool = False) -> None:
        """A process ends by itself."""


def peer_named(name: str) -> PeerId:
    """The peer id that a world with hashed signatures gives to `name`."""
    return PeerId(blake3(b"barnraise/sim/peer/" + name.encode()).digest())


def signer_named(name: str) -> Ed25519Signer:
    """The key that a world with real signatures gives to `name`."""
    return Ed25519Signer(blake3(b"barnraise/sim/key/" + name.encode()).digest())
