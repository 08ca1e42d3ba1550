"""Worlds under watch: all invariants are checked after every event of the shipped code."""

import math
from collections.abc import Mapping
from dataclasses import replace

from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Confirmed, Record
from protocol import events as ev
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from sim.checks.invariants import ALL
from sim.trials.watching import watch
from sim.world.edge import Edge
from sim.world.links import Link
from sim.world.nodes import Device
from sim.world.world import SimNode, World, WorldSettings
from tests.node.builders import peers_named, toy_manifest


class WatchedNode(Edge):
    """One process of a WatchedWorld."""

    world: "WatchedWorld"


class WatchedWorld(World):
    """A world that fails at the first broken promise."""

    makes_node = WatchedNode
    checked = ALL
    """The invariants that hold in it."""

    def __init__(
        self,
        manifest: RunManifest,
        *,
        seed: int,
        link: Link | None = None,
        device: Device | None = None,
        settings: WorldSettings | None = None,
    ) -> None:
        # Who was down at the end of the run is to find somebody.
        settings = settings or WorldSettings(linger_s=math.inf)
        super().__init__(manifest, seed=seed, link=link, device=device, settings=settings)
        self.checks = watch(self, self.checked)
        self.tracers.append(self._note)
        self.listed: dict[int, tuple[PeerId, ...]] = {}
        """By round: whom its seal lists."""

    def _note(self, record: Record) -> None:
        if not isinstance(record, Adopted | Confirmed):
            return
        value, commits = record.certificate.value, self.checks.records.history.commits
        said = [commits[digest].message for digest in value.commits if digest in commits]
        if len(said) == len(value.commits):
            self.listed.setdefault(value.round, tuple(sorted(message.sender for message in said)))

    # What tests ask -----------------------------------------------------------------------------

    def living(self) -> list[SimNode]:
        """Whoever was not killed: those too that went because their run was over."""
        return [n for _, n in sorted(self.nodes.items()) if n.is_alive or n.is_over]

    def tell(self, peer: PeerId, event: ev.CoreEvent) -> None:
        """An event of a node's own edge: its operator, its trainer."""
        self.nodes[peer].tell(event)

    def until_round(self, index: int, *, max_s: float = 200.0) -> None:
        """Let time pass until every living, thawed node has sealed that round."""
        self.run(
            lambda: all(
                node.core.machine.head.round >= index
                for node in self.living()
                if not node.is_frozen
            ),
            max_s=max_s,
        )

    def until_round_of_most(self, index: int, *, max_s: float = 200.0) -> None:
        """Let time pass until a majority of the nodes has sealed that round."""
        self.run(lambda: self.is_round_of_most(index), max_s=max_s)

    def is_round_of_most(self, index: int) -> bool:
        """Whether a majority of the nodes has sealed that round."""
        return 2 * sum(n.core.machine.head.round >= index for n in self.living()) > len(self.nodes)

    def finish(self, *, max_s: float = 400.0) -> None:
        """Let the run come to its end on every living node; the anchors of all rounds are equal."""
        self.until_round(self.manifest.rounds, max_s=max_s)
        self.checks.finish()
        assert not self.faults, f"honest peers accuse each other: {self.faults[:3]}"
        last = {node.anchors.get(self.manifest.rounds) for node in self.living()}
        assert len(last) == 1
        assert None not in last


def world_of(
    num_peers: int,
    *,
    seed: int | str,
    rounds: int = 12,
    link: Link | None = None,
    kind: type[WatchedWorld] = WatchedWorld,
    devices: Mapping[PeerId, Device] | None = None,
) -> WatchedWorld:
    """A world whose founder, the first of `peers_named`, waits for everybody's seat."""
    peers = peers_named(num_peers)
    manifest = toy_manifest(peers[0], rounds=rounds, cells=6)
    # A world takes a number; a text names a case readably.
    number = seed if isinstance(seed, int) else int.from_bytes(seed.encode(), "big")
    world = kind(manifest, seed=number, link=link)
    config = round_config(manifest)
    for number, peer in enumerate(peers):
        waiting = replace(config, wait_seats=num_peers - 1) if number == 0 else config
        world.join(peer, config=waiting, device=(devices or {}).get(peer))
    return world
