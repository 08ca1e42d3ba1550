"""I4 in worlds: while a quorum can work, rounds are sealed.

Here the circumstances are known: who runs, whose disk takes writes, between whom messages pass. A
quorum can work while its nodes do, and every two of them reach each other. The clock starts anew
with each seal and whenever no quorum of those who could work before still can.
"""

from collections.abc import Iterator, Sequence

from protocol import limits
from protocol.identity import PeerId, short_id
from protocol.messages import SealValue
from sim.checks.history import Electorate, History
from sim.checks.traces import LOOK_S, seal_within_s
from sim.world.world import SimNode, World

ROUNDS_BEHIND = 2

EXCHANGES = 12
"""Messages that wait for one another in a round: COMMIT to SEAL, parts and results, asked for once
more where they were lost. On slow links they count besides the training."""


class ProgressCheck:
    """I4 over the nodes of a world; looks once a second."""

    def __init__(self, history: History, world: World) -> None:
        self._history = history
        self._world = world
        self.look_s = 0.0
        self._final: SealValue | None = None
        self._workers: frozenset[PeerId] = frozenset()
        self._since_s = 0.0
        self._within_s = 0.0
        self._side: tuple[frozenset[PeerId], tuple[bytes, ...]] = (frozenset(), ())
        """Who is left without a quorum, and on which heads they stand; since when."""
        self._side_s = 0.0
        self._lost: set[PeerId] = set()
        """Whose disk is lost, and who may not sign yet for that (R12): nobody can promise when."""
        self._behind: dict[SimNode, tuple[int, float]] = {}
        """Nodes that are far behind although they reach all who work: at which round, since when.
        """
        self.slowest = 0.0
        """The longest that it took, as a share of what is allowed."""

    def lost(self, peer: PeerId) -> None:
        """A node began without its memory."""
        self._lost.add(peer)

    def look(self) -> Iterator[str]:
        """After an event that ends at `look_s` or later: what is broken by nothing having come."""
        now_s, final = self._world.now_s, self._history.final
        if final is None:
            return
        self.look_s = now_s + LOOK_S
        electorate = self._history.behind(final)
        if electorate is None or final.clock.ends_run:
            return
        workers = self._find_workers(electorate)
        still = workers & self._workers
        yield from self._left_alone(electorate, workers)
        if final is not self._final or not electorate.is_quorum(still):
            self._start(final, workers, electorate)
            return
        self._workers = still
        stalled_s = now_s - self._since_s
        self.slowest = max(self.slowest, stalled_s / self._within_s)
        yield from self._lagging(final)
        if stalled_s > self._within_s:
            yield (
                f"{len(still)} of {len(electorate.voters)} voters can work, and for"
                f" {stalled_s:.0f} s nothing was sealed after round {final.round};"
                f" {self._within_s:.0f} s are allowed"
            )

    def _left_alone(self, electorate: Electorate, side: frozenset[PeerId]) -> Iterator[str]:
        """R4: voters without a quorum, whom no other one reaches, seal provisionally."""
        nodes = [self._world.nodes[peer] for peer in sorted(side)]
        machines = [node.core.machine for node in nodes]
        others = [peer for peer in electorate.voters - side if self.is_able(peer)]
        is_alone = not electorate.is_quorum(side) and not any(
            self.is_open(one, other) for one in side for other in others
        )
        may_seal = all(
            machine.config.may_branch
            and not (machine.is_asking or machine.has_forgotten or machine.is_held)
            and not machine._silence.has_lost(machine.view)
            and not machine.standing.head.value.clock.ends_run
            and len(machine.standing.branch) < limits.BRANCH_ROUNDS_MAX
            for machine in machines
        )
        heads = tuple(machine.standing.head.value.digest for machine in machines)
        if not (side and is_alone and may_seal) or (side, heads) != self._side:
            self._side, self._side_s = (side, heads), self._world.now_s
            return
        # Suspected one after the other, and then for a while.
        timing = self._world.manifest.timing
        within_s = self._allowed_s(nodes) + 4 * timing.suspect_s
        alone_s = self._world.now_s - self._side_s
        if alone_s > within_s:
            yield (
                f"{len(side)} of {len(electorate.voters)} voters are on their own, and for"
                f" {alone_s:.0f} s sealed nothing provisionally; {within_s:.0f} s are allowed"
            )

    def _lagging(self, final: SealValue) -> Iterator[str]:
        """T_heal: who reaches a quorum that works comes back to where it is (R11, R12)."""
        behind: dict[SimNode, tuple[int, float]] = {}
        for peer, node in sorted(self._world.nodes.items()):
            is_here = self.is_able(peer) and all(
                self.is_open(peer, other) for other in self._workers if other != peer
            )
            if not is_here or node.round >= final.round - ROUNDS_BEHIND:
                continue
            known = self._behind.get(node)
            since_s = known[1] if known and known[0] == node.round else self._world.now_s
            behind[node] = (node.round, since_s)
            lagging_s = self._world.now_s - since_s
            if lagging_s > self._within_s:
                yield (
                    f"{short_id(peer)} reaches a quorum that works, and for {lagging_s:.0f} s it"
                    f" stays at round {node.round}, while {final.round} is final"
                )
        self._behind = behind

    def _start(self, final: SealValue, workers: frozenset[PeerId], electorate: Electorate) -> None:
        self._final, self._workers, self._since_s = final, workers, self._world.now_s
        if not electorate.is_quorum(workers):
            self._workers = frozenset()
            return
        nodes = [self._world.nodes[peer] for peer in sorted(workers)]
        self._within_s = self._allowed_s(nodes)

    def _allowed_s(self, nodes: Sequence[SimNode]) -> float:
        """How long these may take to the next seal."""
        everybody = [node for node in self._world.nodes.values() if node.is_alive]
        machines = [node.core.machine for node in nodes]
        slowest_s = max(node.device.train_s[1] + node.device.ready_s[1] for node in everybody)
        napping_s = max(node.device.nap_s[1] if node.device.nap else 0.0 for node in everybody)
        slow_clock = min(1.0, *(node.device.clock_rate for node in nodes))
        waits_s = EXCHANGES * max(self._latency_s(nodes), max(n.device.compute_s[1] for n in nodes))
        return (
            seal_within_s(
                self._world.manifest,
                train_s=slowest_s + napping_s + waits_s + self._bytes_s(nodes[0]),
                deadline_s=max(machine._deadline.seconds() for machine in machines),
                time_outs=max(machine.view.times.time_outs for machine in machines),
            )
            / slow_clock
        )

    def _latency_s(self, nodes: Sequence[SimNode]) -> float:
        links = (
            self._world.network.direction(one.peer, other.peer).link
            for one in nodes
            for other in nodes
            if one is not other
        )
        return max((link.latency_s[1] for link in links), default=0.0)

    def _bytes_s(self, node: SimNode) -> float:
        """How long a whole contribution and a whole result take on the slowest line."""
        store = node.store
        cells = range(store.layout.num_cells(0))
        num_bytes = sum(store.part_bytes(cell) + store.result_bytes(cell) for cell in cells)
        return num_bytes / self._world.network.least_bytes_per_s

    # Who can work -------------------------------------------------------------------------------

    def _find_workers(self, electorate: Electorate) -> frozenset[PeerId]:
        """Voters that run and all reach each other; those with the most links first."""
        able = [peer for peer in sorted(electorate.voters) if self.is_able(peer)]
        reach = {
            peer: {other for other in able if other != peer and self.is_open(peer, other)}
            for peer in able
        }
        found: set[PeerId] = set()
        for peer in sorted(able, key=lambda peer: (-len(reach[peer]), peer)):
            if found <= reach[peer]:
                found.add(peer)
        return frozenset(found)

    def is_able(self, peer: PeerId) -> bool:
        """Whether that node runs and can sign."""
        node = self._world.nodes.get(peer)
        if node is None or not node.is_alive or node.is_frozen or node.disk.is_full:
            return False
        if peer in self._lost and not node.core.machine.is_muted:
            self._lost.discard(peer)
        return peer not in self._lost

    def is_open(self, one: PeerId, other: PeerId) -> bool:
        """Whether the two are linked, and messages pass both ways."""
        network, nodes = self._world.network, self._world.nodes
        there, back = network.direction(one, other), network.direction(other, one)
        is_linked = other in nodes[one].wires and one in nodes[other].wires
        return is_linked and all(
            not way.is_blocked and way.held is None and way._stuck_s <= self._world.now_s
            for way in (there, back)
        )
