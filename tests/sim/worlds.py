"""Worlds under watch: every signature, every seal and every anchor is checked as it comes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from node import events as ev
from node.chain import check_seal
from node.round_view import RoundConfig, RoundView
from protocol.identity import KeyedHashSigner, PeerId
from protocol.manifest import RunManifest
from protocol.messages import Commit
from sim.network import Link
from sim.world import Pace, SimNode, Vector, World
from tests.node.builders import peers_named, toy_manifest
from tests.node.soup import Oracle

Trigger = Callable[["WatchedWorld", SimNode, ev.CoreAction | None], None]


class WatchedWorld(World):
    """A world that fails at the first broken promise.

    `triggers` are asked before each action of a node, and with None after all actions of an event.
    """

    def __init__(
        self,
        manifest: RunManifest,
        *,
        seed: int,
        link: Link | None = None,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(manifest, seed=seed, link=link, pace=pace)
        self.oracle = Oracle()
        self.triggers: list[Trigger] = []
        self.listed: dict[int, tuple[PeerId, ...]] = {}
        self.states: dict[int, tuple[Vector, Vector]] = {}
        self.wires: dict[bytes, Vector] = {}

    def join(self, peer: PeerId, *, config: RoundConfig | None = None) -> SimNode:
        node = super().join(peer, config=config)
        self.oracle.opened(node.core.chain[0])
        self.states.setdefault(0, (node.store.state.anchor_N, np.zeros(1, np.float32)))
        return node

    def _carry_out(self, node: SimNode, actions: list[ev.CoreAction]) -> None:
        for action in actions:
            if isinstance(action, ev.RecordSlot):
                self.oracle.saw(action.message)
            elif isinstance(action, ev.Adopt):
                # Durable from here on, even if the node is killed before it acts upon it.
                self.oracle.opened(action.certificate)
        super()._carry_out(node, actions)
        if node.is_alive:
            # R7: what the node goes on from is what a quorum has sealed, at any time.
            head = node.core.machine.head
            assert node.store.state.root == head.root or head.round == 0
            self._ask(node, None)

    def _act(self, node: SimNode, action: ev.CoreAction) -> None:
        self._ask(node, action)
        if not node.is_alive:
            return
        super()._act(node, action)
        if isinstance(action, ev.Adopt):
            self._check_adopted(node, action)

    def _tell(self, node: SimNode, event: ev.CoreEvent) -> None:
        if isinstance(event, ev.Contributed):
            items = node.store.parts(event.root, range(node.store.num_cells))
            assert len(items) == node.store.num_cells
            wire = b"".join(item.payload for item in items)
            self.wires[event.root] = np.frombuffer(wire, dtype="<f2").astype(np.float32)
        super()._tell(node, event)

    def _ask(self, node: SimNode, action: ev.CoreAction | None) -> None:
        for trigger in list(self.triggers):
            trigger(self, node, action)

    def _train(self, node: SimNode, action: ev.Train) -> None:
        before = node.core.machine.previous
        had_contribution = node.trainer.has_open_contribution
        super()._train(node, action)
        # A COMMIT that comes back from others after a lost disk is not of this trainer.
        is_own = before is not None and had_contribution and before.own_commit
        commit = _own_commit(before) if before is not None and is_own else None
        if commit is not None and not action.is_resync:
            # R6: sealed with me, the residual is what I lost since; without me, what it was.
            kept = commit.residual_after if action.was_listed else commit.residual_before
            assert node.trainer.feedback.root == kept

    def _check_adopted(self, node: SimNode, action: ev.Adopt) -> None:
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
            mean_N: Vector = wire_PN[0] * weights_P[0]
            for wire_N, weight in zip(wire_PN[1:], weights_P[1:], strict=True):
                mean_N = mean_N + wire_N * weight
            mean_N = mean_N.astype(np.float16).astype(np.float32)
            momentum_N = np.float32(outer.momentum) * momentum_N + mean_N
            step_N = np.float32(outer.momentum) * momentum_N + mean_N
            anchor_N = anchor_N - np.float32(outer.learning_rate) * step_N
        self.states[index] = (anchor_N, momentum_N)

    # What tests ask -----------------------------------------------------------------------------

    def living(self) -> list[SimNode]:
        return self._living()

    def tell(self, peer: PeerId, event: ev.CoreEvent) -> None:
        """An event of a node's own edge: its operator, its trainer."""
        self._tell(self.nodes[peer], event)

    def until_round(self, index: int, *, max_s: float = 200.0) -> None:
        """Let time pass until every living, thawed node has sealed that round."""
        self.run(
            lambda: all(
                node.core.machine.head.round >= index
                for node in self._living()
                if node.peer not in self._frozen
            ),
            max_s=max_s,
        )

    def until_round_of_most(self, index: int, *, max_s: float = 200.0) -> None:
        """Let time pass until a majority of the nodes has sealed that round."""
        self.run(
            lambda: (
                2 * sum(n.core.machine.head.round >= index for n in self._living())
                > len(self.nodes)
            ),
            max_s=max_s,
        )

    def finish(self, *, max_s: float = 400.0) -> None:
        """Let the run come to its end on every living node; the anchors of all rounds are equal."""
        self.until_round(self.manifest.rounds, max_s=max_s)
        assert not self.faults, f"honest peers accuse each other: {self.faults[:3]}"
        for index in range(1, self.manifest.rounds + 1):
            anchors = {n.anchors[index] for n in self._living() if index in n.anchors}
            # None where all were killed before anybody looked at what they had adopted.
            assert len(anchors) <= 1, f"round {index} has {len(anchors)} anchors"
        assert all(self.manifest.rounds in node.anchors for node in self._living())


def _own_commit(view: RoundView) -> Commit | None:
    found = view.ballots.commits.get(view.me)
    return found[1] if found else None


def world_of(
    num_peers: int,
    *,
    seed: int | str,
    rounds: int = 12,
    link: Link | None = None,
    kind: type[WatchedWorld] = WatchedWorld,
) -> WatchedWorld:
    """A world whose founder, the first of `peers_named`, waits for everybody's seat."""
    peers = peers_named(num_peers)
    manifest = toy_manifest(peers[0], rounds=rounds, cells=6)
    # A world takes a number; a text names a case readably.
    number = seed if isinstance(seed, int) else int.from_bytes(seed.encode(), "big")
    world = kind(manifest, seed=number, link=link)
    config = RoundConfig.from_manifest(manifest)
    world.join(peers[0], config=replace(config, wait_seats=num_peers - 1))
    for peer in peers[1:]:
        world.join(peer)
    return world
