"""Worlds under watch: every signature, every seal and every anchor is checked as it comes."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from node import events as ev
from node.chain import check_seal
from node.round_view import RoundConfig, RoundView
from protocol.identity import KeyedHashSigner, PeerId
from protocol.manifest import RunManifest
from sim.devices import Device
from sim.edge import Edge
from sim.links import Link
from sim.work import SimWork, Wanted
from sim.world import SimNode, World, WorldSettings
from tests.node.builders import peers_named, toy_manifest
from tests.node.soup import Oracle


class WatchedWork(SimWork):
    """R6, from what the listed COMMITs say and not from what this node was told."""

    def deliver(self, wanted: Wanted) -> None:
        trained_for, trainer = self.round, self._node.trainer
        encoded = trainer._saved[trained_for].encoded
        super().deliver(wanted)
        world = self._world
        assert isinstance(world, WatchedWorld)
        if wanted.round == trained_for + 1 and not wanted.action.is_resync:
            # Not known where all were killed before anybody looked at what they had adopted.
            listed = world.listed.get(trained_for)
            if listed is not None:
                # Sealed with me, the residual is what I lost since; without me, what it was.
                is_listed = self._node.peer in listed
                kept = encoded.residual_after if is_listed else encoded.residual_before
                assert trainer.feedback.root == kept


class WatchedNode(Edge):
    """One process of a WatchedWorld."""

    world: "WatchedWorld"

    def __init__(self, world, parts) -> None:
        super().__init__(world, parts)
        self.work = WatchedWork(world, self)

    def begin(self, restart) -> None:
        self.world.oracle.opened(self.core.chain[0])
        self.world.states.setdefault(0, (self.store.state.anchor_N, np.zeros(1, np.float32)))
        super().begin(restart)

    def carry_out(self, actions: list[ev.CoreAction]) -> None:
        for action in actions:
            if isinstance(action, ev.RecordSlot):
                self.world.oracle.saw(action.message)
            elif isinstance(action, ev.Adopt):
                # Durable from here on, even if the node is killed before it acts upon it.
                self.world.oracle.opened(action.certificate)
        super().carry_out(actions)
        if self.is_alive:
            # R7: what the node goes on from is what a quorum has sealed, at any time.
            head = self.core.machine.head
            assert self.store.state.root == head.root or head.round == 0

    def act(self, action: ev.CoreAction) -> None:
        super().act(action)
        if isinstance(action, ev.Adopt):
            self.world.check_adopted(self, action)

    def tell(self, event: ev.CoreEvent) -> None:
        if isinstance(event, ev.Contributed):
            items = self.store.parts(event.root, range(self.store.num_cells))
            assert len(items) == self.store.num_cells
            wire = b"".join(item.payload for item in items)
            self.world.wires[event.root] = np.frombuffer(wire, dtype="<f2").astype(np.float32)
        super().tell(event)


class WatchedWorld(World):
    """A world that fails at the first broken promise."""

    makes_node = WatchedNode

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
        self.oracle = Oracle()
        self.listed: dict[int, tuple[PeerId, ...]] = {}
        self.states: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.wires: dict[bytes, np.ndarray] = {}

    def check_adopted(self, node: SimNode, action: ev.Adopt) -> None:
        """The seal is proven, and the anchor is what the listed wire bytes give, to the bit."""
        value, chain = action.certificate.value, node.core.chain
        previous = next(c.value for c in chain if c.value.digest == value.before)
        check_seal(previous, action.certificate, KeyedHashSigner(node.peer), trust="friends")
        assert value.digest in self.oracle.final[value.before]
        if value.round not in self.states and value.round - 1 in self.states:
            view = node.core.machine.previous
            assert view is not None
            self._reference(view, value.round, value.commits)
        if value.round in self.states:
            assert node.anchors[value.round] == self.states[value.round][0].tobytes()

    def _reference(self, view: RoundView, index: int, commits: tuple[bytes, ...]) -> None:
        by_digest = {d: (sender, commit) for sender, d, commit in view.commits()}
        found = sorted((by_digest[digest] for digest in commits), key=lambda entry: entry[0])
        self.listed[index] = tuple(sender for sender, _ in found)
        outer = self.manifest.outer
        anchor_N, momentum_N = self.states[index - 1]
        if found:
            wire_PN = [self.wires[commit.root] for _, commit in found]
            total = sum(commit.tokens for _, commit in found)
            weights_P = [np.float32(commit.tokens / total) for _, commit in found]
            mean_N: np.ndarray = wire_PN[0] * weights_P[0]
            for wire_N, weight in zip(wire_PN[1:], weights_P[1:], strict=True):
                mean_N = mean_N + wire_N * weight
            mean_N = mean_N.astype(np.float16).astype(np.float32)
            momentum_N = np.float32(outer.momentum) * momentum_N + mean_N
            step_N = np.float32(outer.momentum) * momentum_N + mean_N
            anchor_N = anchor_N - np.float32(outer.learning_rate) * step_N
        self.states[index] = (anchor_N, momentum_N)

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
        self.run(
            lambda: (
                2 * sum(n.core.machine.head.round >= index for n in self.living()) > len(self.nodes)
            ),
            max_s=max_s,
        )

    def finish(self, *, max_s: float = 400.0) -> None:
        """Let the run come to its end on every living node; the anchors of all rounds are equal."""
        self.until_round(self.manifest.rounds, max_s=max_s)
        assert not self.faults, f"honest peers accuse each other: {self.faults[:3]}"
        for index in range(1, self.manifest.rounds + 1):
            anchors = {n.anchors[index] for n in self.living() if index in n.anchors}
            # None where all were killed before anybody looked at what they had adopted.
            assert len(anchors) <= 1, f"round {index} has {len(anchors)} anchors"
        assert all(self.manifest.rounds in node.anchors for node in self.living())


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
    config = RoundConfig.from_manifest(manifest)
    for number, peer in enumerate(peers):
        waiting = replace(config, wait_seats=num_peers - 1) if number == 0 else config
        world.join(peer, config=waiting, device=(devices or {}).get(peer))
    return world
