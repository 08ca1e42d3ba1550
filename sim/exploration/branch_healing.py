"""What must hold once links are up again: all end alike, in any order, and rounds become final."""

from dataclasses import replace
from itertools import permutations

from protocol import limits
from protocol.rounds.branches import contributors
from sim.exploration.branch_seals import names_of
from sim.exploration.branch_state import BranchBounds, BranchPeerState, Swarm, groups
from sim.exploration.branches import Branches


class Convergent(Branches):
    """S5: with all links up, whoever compares heads first, all peers end on one head."""

    def check(self, state: Swarm) -> str:
        """What is wrong with the state itself, or with how it heals."""
        standing = tuple((peer.final, peer.head, peer.lock) for peer in state.peers)
        return super().check(state) or self.seals.once(
            ("heal", standing), lambda: self._healing(state.peers)
        )

    def _healing(self, peers: tuple[BranchPeerState, ...]) -> str:
        ends = set()
        for order in permutations(range(len(peers))):
            now = peers
            for index in (*order, *order):
                now = self.step_over(now, index, tuple(range(len(now))))
            if len({peer[:2] for peer in now}) > 1:
                return "S5: healing does not end on one head"
            ends.add(now[0][:2])
        return "S5: healing depends on the order" if len(ends) > 1 else ""

    def step_over(
        self, peers: tuple[BranchPeerState, ...], index: int, met: tuple[int, ...]
    ) -> tuple[BranchPeerState, ...]:
        """The peers after one of them has compared itself with those it met."""
        final, head = self.meet(peers, met)
        # What it lost and signed has no say in this; locks of old rounds are passed over.
        moved = peers[index]._replace(final=final, head=head)
        return (*peers[:index], moved, *peers[index + 1 :])


class MeetingOrder(Convergent):
    """S5: branches end alike, whichever two of them meet first."""

    def _healing(self, peers: tuple[BranchPeerState, ...]) -> str:
        ends: dict[tuple[int, int], str] = {}
        for order in permutations(range(len(peers))):
            now = peers
            for count in range(2, len(order) + 1):
                met = order[:count]
                for index in (*met, *met):
                    now = self.step_over(now, index, met)
            end = now[0][:2]
            ends.setdefault(end, names_of(order))
        if len(ends) < 2:
            return ""
        told = (f"{self.seals.title(end[1])} if they meet as {who}" for end, who in ends.items())
        return f"S5: the outcome depends on who meets first: {', '.join(told)}"


class Healing(Convergent):
    """L1: from every state, with links up and everybody timely, one more round becomes final.

    And with links as they are, whoever may seal provisionally can list somebody.
    """

    def __init__(self, bounds: BranchBounds) -> None:
        super().__init__(bounds)
        timely = replace(
            bounds,
            rounds=limits.ROUNDS_MAX,
            attempts=limits.ATTEMPTS_MAX,
            is_partial=False,
            has_late=False,
            everybody_seals=True,
        )
        self._timely = Branches(timely, self.seals)

    def check(self, state: Swarm) -> str:
        """What is wrong with the state, or with the good run that follows it."""
        return super().check(state) or self._barren_side(state) or self._good_run(state)

    def _barren_side(self, state: Swarm) -> str:
        """A side that has come to one head, and can only seal rounds that list nobody."""
        for group in groups(state.links):
            standing = {state.peers[index][:2] for index in group}
            if len(standing) > 1:
                continue
            opening = self.opening(*standing.pop(), group)
            reachable = [self.seals.peers[index] for index in group]
            if opening is not None and not contributors(opening, reachable):
                return f"L1: {names_of(group)} may seal rounds, but nobody in reach may contribute"
        return ""

    def _good_run(self, state: Swarm) -> str:
        goal = 1 + max(self.seals.values[peer.final].round for peer in state.peers)
        everybody = tuple(range(len(state.peers)))
        now = state._replace(links=(0,) * len(everybody), changes_left=0)
        for _ in range(12 * len(everybody)):
            if all(self.seals.values[peer.final].round >= goal for peer in now.peers):
                return ""
            move = next(self._timely.in_group(now, everybody), None)
            if move is None:
                return "L1: all links are up, but nothing can be done"
            now = move[1]
        return "L1: all links are up, but no round becomes final"
