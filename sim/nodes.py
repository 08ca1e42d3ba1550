"""One simulated node: what it is made of, and how fast it is."""

from dataclasses import dataclass, field

from blake3 import blake3

from node.core import NodeCore
from node.shard_store import ShardStore
from protocol.identity import PeerId
from protocol.messages import SealCertificate
from sim.disk import Disk
from sim.trainer import SimTrainer


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a node's work takes, uniform in the ranges; a round of training, a computation."""

    train_s: tuple[float, float] = (0.8, 1.4)
    compute_s: float = 0.01


@dataclass(slots=True)
class SimNode:
    """One node: its decisions, its bytes, and what the made-up trainer needs."""

    peer: PeerId
    core: NodeCore
    store: ShardStore
    trainer: SimTrainer
    disk: Disk = field(default_factory=Disk)
    is_alive: bool = True
    wakeup_s: float = -1.0
    fetching: SealCertificate | None = None
    state_cells: dict[int, bytes] = field(default_factory=dict)
    sealed: dict[int, bytes] = field(default_factory=dict)
    anchors: dict[int, bytes] = field(default_factory=dict)


def peer_named(name: str) -> PeerId:
    """The peer id that a world gives to `name`."""
    return PeerId(blake3(b"barnraise/sim/peer/" + name.encode()).digest())
