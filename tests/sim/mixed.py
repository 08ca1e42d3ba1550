"""Small worlds in which one thing after another goes wrong, all from a seed.

Scenarios are richer (`sim.trials.chaos`). These use the verbs of a world and nothing else, so that
what finds a broken build rests on as little as possible.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Record, Signed
from protocol.identity import PeerId
from protocol.manifest import TimingSpec
from protocol.messages import Kind, SealValue
from protocol.rounds.roster import has_quorum, liars, voters
from sim.checks.invariants import InvariantBroken
from sim.trials.watching import Checks, watch
from sim.world.links import Link
from sim.world.nodes import peer_named, signer_named
from sim.world.toy_run import toy_run
from sim.world.world import World, WorldSettings

TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.0)
LINKS = (
    Link(),
    Link(loss=0.03, duplication=0.03),
    Link(latency_s=(0.005, 0.3), reordering=0.1),
)
DURATIONS_S = (0.2, 1.0, 4.0, 9.0)
BETWEEN_S = (0.5, 6.0)
DEADLY_SHARE = 0.3


class Mixed:
    """One world of 3 to 7 nodes, watched, and what goes wrong in it."""

    def __init__(
        self, seed: int, *, rounds: int = 12, deadly: Kind | None = None, **settings: Any
    ) -> None:
        self.rng = random.Random(f"{seed}/mixed")
        self.rounds = rounds
        self.trust: str = settings.pop("trust", "friends")
        hurrying: bool = settings.pop("hurrying", False)
        least = 3 if self.trust == "friends" else 5
        names = [f"n{index}" for index in range(self.rng.randint(least, 7))]
        is_real = settings.get("is_signing_for_real", False)
        ids = [signer_named(name).peer_id if is_real else peer_named(name) for name in names]
        manifest = toy_run(ids[0], rounds=rounds, cells=6, timing=TIMING, trust=self.trust)
        if self.trust == "open":
            settings["seated"] = tuple(ids)
        link = self.rng.choice(LINKS)
        self.world = World(manifest, seed=seed, link=link, settings=WorldSettings(**settings))
        self.checks: Checks = watch(self.world)
        self.peers = [self.world.peer(name) for name in names]
        self._has_lost_disk = self._is_hurrying = False
        self._useless: PeerId | None = None
        """Who sums wrongly now and then, or has lost its disk."""
        self._deadly = deadly
        self.world.tracers.append(self._saw)
        config = round_config(manifest)
        wait_seats = len(names) - 1 if self.trust == "friends" else 0
        self.world.join(self.peers[0], config=replace(config, wait_seats=wait_seats))
        for peer in self.peers[1:]:
            self.world.join(peer)
        if hurrying:
            self._hurry(self.peers[-1])

    def run(self) -> None:
        """To the end of the run on most nodes. Raises what the invariants raise."""
        self.world.later(self.rng.uniform(6.0, 10.0), self._strike)
        self.world.run(self._is_over, max_s=3000.0, every_s=0.5)
        self.checks.finish()

    def _is_over(self) -> bool:
        nodes = self.world.nodes.values()
        if 2 * sum(node.round >= self.rounds for node in nodes) > len(nodes):
            return True
        if self.is_ended_by_a_disk():
            return True
        # Who is a quorum alone goes when it is through, also while others are cut off: what they
        # sealed since then nobody can make final any more.
        return any(node.is_over for node in nodes) and all(
            node.is_over or node.core.machine.standing.head.value.round >= self.rounds
            for node in nodes
        )

    def is_ended_by_a_disk(self) -> bool:
        """R12: with one voter finality is as durable as its disk.

        None is lost by whoever is alone already (`_lose_disk`), but the seal that makes it so may
        be under way just then.
        """
        machines = [node.core.machine for node in self.world.nodes.values()]
        newest = max((machine.head for machine in machines), key=lambda head: head.round)
        lost = {machine.view.me for machine in machines if machine.has_forgotten}
        return any(has_quorum(newest.roster, {peer}, trust=self.trust) for peer in lost)

    def _saw(self, record: Record) -> None:
        """Whoever signs a deadly kind is killed now and then, and soon back.

        Where no voter may lie any more, nobody does: of two reducers nobody knows which is wrong.
        """
        if isinstance(record, Adopted) and not self._may_lie(record.certificate.value):
            for node in self.world.nodes.values():
                node.sums_wrongly = False
        if not isinstance(record, Signed) or record.message.slot.kind is not self._deadly:
            return
        if self.rng.random() < DEADLY_SHARE:
            self.world.later(0.0, lambda: self.world.crash(record.peer))
            self.world.later(0.3, lambda: self._back(record.peer))

    def _strike(self) -> None:
        rng, world = self.rng, self.world
        if max(node.round for node in world.nodes.values()) >= self.rounds - 2 or self._is_hurrying:
            return
        peer, other = rng.sample(self.peers, 2)
        blows = (self._crash, self._crash, self._freeze, self._lose_disk, self._fill_disk)
        links = (self._part, self._block, self._hold, self._cut, self._clog)
        undo: Callable[[], object] | None
        if self.trust == "open" and rng.random() < 0.3 and world.nodes[peer].is_alive:
            undo = self._sum_wrongly(peer)
        elif rng.random() < 0.5:
            undo = rng.choice(blows)(peer) if world.nodes[peer].is_alive else None
        else:
            undo = rng.choice(links)(peer, other)
        if undo is not None:
            world.later(rng.choice(DURATIONS_S), undo)
        world.later(rng.uniform(*BETWEEN_S), self._strike)

    def _back(self, peer: PeerId) -> None:
        node = self.world.nodes[peer]
        if not node.is_alive and not node.is_over:
            self.world.bounce(peer)

    def _crash(self, peer: PeerId) -> Callable[[], object]:
        self.world.crash(peer)
        return lambda: self._back(peer)

    def _freeze(self, peer: PeerId) -> Callable[[], object]:
        self.world.freeze(peer)
        return lambda: self.world.thaw(peer)

    def _lose_disk(self, peer: PeerId) -> Callable[[], object]:
        self.world.crash(peer)
        # One only, and not of whoever is a quorum alone: nobody can replace its memory (R12).
        may_lose = not self._has_lost_disk and self._useless in (None, peer)
        if may_lose and len(self.peers) > 3 and not self._is_alone(peer):
            self._has_lost_disk, self._useless = True, peer
            self.world.lose_disk(peer)
        return lambda: self._back(peer)

    def _is_alone(self, peer: PeerId) -> bool:
        heads = [node.core.machine.head for node in self.world.nodes.values()]
        return any(has_quorum(head.roster, {peer}, trust=self.trust) for head in heads)

    def _sum_wrongly(self, peer: PeerId) -> Callable[[], object] | None:
        """Always the same one: what two that agree say would be believed, also one after another.

        Nor another than whoever lost its disk: of five voters one may be of no use, not two.
        """
        nodes = self.world.nodes
        if self._useless not in (None, peer):
            return None
        if not all(self._may_lie(node.core.machine.head) for node in nodes.values()):
            return None
        node, self._useless = nodes[peer], peer
        node.sums_wrongly = True
        return lambda: setattr(node, "sums_wrongly", False)

    def _may_lie(self, head: SealValue) -> bool:
        return liars(len(voters(head.roster)), self.trust) > 0

    def _hurry(self, peer: PeerId) -> None:
        """A voter that leaves every attempt as soon as there is a LIST, and skips the next.

        Nothing else goes wrong then.
        """
        self._is_hurrying = True
        self.checks.records.bend(peer)
        machine = self.world.nodes[peer].core.machine

        def rare(name: str) -> bool:
            return name in ("left-at-list", "attempt-skipped")

        machine.config = replace(machine.config, rare=rare)
        machine.view.config = machine.config

    def _fill_disk(self, peer: PeerId) -> Callable[[], object]:
        self.world.fill_disk(peer)

        def undo() -> None:
            self.world.free_disk(peer)
            self._back(peer)

        return undo

    def _part(self, peer: PeerId, other: PeerId) -> Callable[[], object]:
        del peer, other
        shuffled = self.rng.sample(self.peers, len(self.peers))
        size = self.rng.randint(1, len(shuffled) - 1)
        self.world.partition([shuffled[:size], shuffled[size:]])
        return self.world.repair

    def _block(self, peer: PeerId, other: PeerId) -> Callable[[], object]:
        self.world.block(peer, other)
        return lambda: self.world.unblock(peer, other)

    def _hold(self, peer: PeerId, other: PeerId) -> Callable[[], object]:
        self.world.hold(peer, other)
        return lambda: self.world.release(peer, other)

    def _cut(self, peer: PeerId, other: PeerId) -> Callable[[], object]:
        self.world.cut(peer, other)
        return lambda: self.world.heal(peer, other)

    def _clog(self, peer: PeerId, other: PeerId) -> None:
        self.world.clog(peer, other, self.rng.choice(DURATIONS_S))


def finding(seed: int, **settings: Any) -> InvariantBroken | None:
    """What the invariants find in the world of that seed."""
    try:
        Mixed(seed, **settings).run()
    except InvariantBroken as error:
        return error
    return None
