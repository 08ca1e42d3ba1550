"""The in-process swarm of each preset: `training.loop.replicas`, or what
`training.methods.presets` names."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from protocol.manifest import RunManifest
from sim.methods.compass_swarm import CompassSwarm
from sim.methods.gossip import MIXINGS
from sim.methods.gossip_swarm import AcidSwarm, GossipSwarm, NoLoCoSwarm
from sim.methods.staleness import Polynomial, fedbuff_weights, fedfix_weights
from sim.methods.variance import Corrected
from sim.methods.virtual_swarm import AsyncSwarm, SampledSwarm, VirtualSwarm
from training.loop.replicas import MemorySession, Swarm, run_replicas

T = TypeVar("T")

SPEEDS = (1.0, 1.0, 2.0, 4.0)
"""Of replicas, in turn, where some are faster (Q9)."""

_MIXING_OF: Mapping[str, str] = {
    "gossip": "pairwise",
    "gossip_corrected": "pairwise",
    "gossip_ring": "ring",
    "gossip_multi_step": "multi_step",
    "gossip_accelerated": "accelerated",
    "dfedsam": "multi_step",
}


def swarm_of(manifest: RunManifest, replicas: int) -> Swarm:
    """The swarm that trains this run, none of its rounds kept but the last."""
    name = manifest.outer.preset
    if name in _MIXING_OF:
        mixing = MIXINGS[_MIXING_OF[name]]()
        if name == "gossip_corrected":
            mixing = Corrected(mixing, manifest.shards[0].tensors)
        return GossipSwarm(manifest, replicas, rounds_kept=1, mixing=mixing)
    if name == "noloco":
        return NoLoCoSwarm(manifest, replicas, rounds_kept=1)
    if name == "acid":
        return AcidSwarm(manifest, replicas, rounds_kept=1)
    if name == "fedcompass":
        steps = manifest.inner.inner_steps
        step_s = tuple(taken_s / steps for taken_s in _round_seconds(replicas))
        return CompassSwarm(manifest, replicas, step_s=step_s)
    if name == "modest":
        return SampledSwarm(manifest, replicas, size=max(1, replicas // 2))
    if name in ("fedbuff", "fedfix"):
        return _asynchronous(manifest, replicas, name)
    return Swarm(manifest, replicas, rounds_kept=1)


def _round_seconds(replicas: int) -> tuple[float, ...]:
    """What each takes for H steps; the slowest a second."""
    return tuple(1.0 / SPEEDS[replica % len(SPEEDS)] for replica in range(replicas))


def _asynchronous(manifest: RunManifest, replicas: int, name: str) -> AsyncSwarm:
    seconds = _round_seconds(replicas)
    shares = [1.0 / replicas] * replicas
    if name == "fedfix":
        # Half a round of the slowest: others come once or twice in it.
        interval_s = max(seconds) / 2
        weights = fedfix_weights(shares, seconds, interval_s)
        return AsyncSwarm(
            manifest, replicas, seconds=seconds, weights=weights, interval_s=interval_s
        )
    size = max(1, replicas // 2)
    weights = fedbuff_weights(shares, seconds, size)
    return AsyncSwarm(
        manifest,
        replicas,
        seconds=seconds,
        weights=weights,
        size=size,
        staleness=Polynomial(),
    )


def run_swarm(swarm: Swarm, train: Callable[[MemorySession], T]) -> None:
    """`train(session)` for every replica, until the run is over; the first failure is raised."""
    if isinstance(swarm, VirtualSwarm):
        swarm.conducted(train)
    else:
        run_replicas(swarm, train)
