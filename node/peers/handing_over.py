"""Whether a node that wants to leave is needed for its vote, and who takes that over. Pure."""

from protocol.core.node_core import NodeCore
from protocol.identity import PeerId
from protocol.rounds.roster import may_go

HAND_OVER_S_MAX = 600.0
"""Nobody waits longer for others to take the vote over: a service is to end some time."""


class HandingOver:
    """Made when the owner wishes that the node leaves; asked after every event.

    A voter whom the others need for a quorum goes on working until a final seal has its successors
    (R1), and these have said that they work on the round behind it. Whoever leaves as well is no
    heir, nor is who has no seat and has not asked for one.
    """

    def __init__(self, core: NodeCore) -> None:
        self._core = core

    @property
    def is_needed(self) -> bool:
        """Whether the run could seal nothing, were this node gone now.

        Where no quorum is in reach anyhow, its going makes nothing worse.
        """
        core, machine = self._core, self._core.machine
        if core.is_finished or machine.is_muted or machine.standing.branch:
            return False
        rest = self._rest()
        views = machine.standing.worked_for
        here = rest | {machine.view.me}
        if not all(view.has_quorum(here) for view in views):
            return False
        trust = machine.config.trust
        if not all(may_go(view.roster, view.me, rest, trust=trust) for view in views):
            return True
        # The seal that dropped it has to be theirs as well, or they wait for it with nobody to ask.
        previous = machine.previous
        if previous is None or may_go(previous.roster, previous.me, rest, trust=trust):
            return False
        through = {peer for peer in rest if core.rounds.get(peer, 0) >= views[0].index}
        return not views[0].has_quorum(through)

    @property
    def heirs(self) -> frozenset[PeerId]:
        """Who may take the vote over: in reach, to stay, with a seat or with one to come."""
        views = self._core.machine.standing.worked_for
        seated = {peer for view in views for peer in view.member_set | view.proven_seats}
        return frozenset(self._rest() & (seated | self._core.machine.head.roster.member_set))

    @property
    def is_due(self) -> bool:
        """Whether to go on working for now: it is needed, and somebody can take its place."""
        return self.is_needed and bool(self.heirs)

    def _rest(self) -> set[PeerId]:
        machine = self._core.machine
        lost = machine.view.suspects | machine.convicted | machine.left
        return set(self._core.liveness.linked) - lost - {machine.view.me}
