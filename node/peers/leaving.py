"""Whether a node that wants to leave is needed for its vote, and who takes that over. Pure."""

from protocol.core.node_core import NodeCore
from protocol.identity import PeerId
from protocol.messages import Kind
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
        seated = {peer for view in views for peer in view.member_set | view.seats.proven}
        return frozenset(self._rest() & (seated | self._core.machine.head.roster.member_set))

    @property
    def is_due(self) -> bool:
        """Whether to go on working for now: it is needed, and somebody can take its place."""
        return self.is_needed and bool(self.heirs)

    def _rest(self) -> set[PeerId]:
        machine = self._core.machine
        lost = machine.view.peers.suspects | machine.convicted | machine.left
        return set(self._core.liveness.linked) - lost - {machine.view.me}


# Lingering ----------------------------------------------------------------------------------------
#
# How long a node stays behind the last round of its run, for those who still need it.

LAST_BEAT_S = 0.2
"""For the heartbeat that tells of our end to reach the peers."""


class Lingering:
    """Made when the run is over here; asked after every event.

    Who is linked and works on the last round is served. Who had a seat in the last round and is not
    here may have died within it: it comes back and finds the end with us or with nobody. Those who
    left, and those whom earlier seals dropped, are not waited for. With
    `is_resumed` nobody needs to be known: a node that was started again after the end is here for
    nothing else, and whoever was killed with it may need some time to come and ask.

    A heartbeat later than the end at the earliest: peers that do not hear that we are through would
    take us for one of the missing.
    """

    def __init__(self, core: NodeCore, *, now_s: float, is_resumed: bool) -> None:
        self._core = core
        self._is_resumed = is_resumed
        self._ended_s = now_s
        self._beat_s = now_s + core.manifest.timing.heartbeat_s + LAST_BEAT_S
        self._through: set[PeerId] = set()

    def is_needed(self, now_s: float) -> bool:
        """Whether somebody may still come for the last round."""
        core = self._core
        last, rounds = core.machine.head.round, core.rounds
        # Remembered: once they are through they go, and maybe before us.
        self._through |= {peer for peer, index in rounds.items() if index > last}
        if self._is_resumed or any(index <= last for index in rounds.values()):
            return True
        if rounds and now_s < self._beat_s:
            return True
        return bool(self._missing())

    def is_giving(self, now_s: float) -> bool:
        """Whether somebody makes progress with the state that it takes here: the run's end does not
        cut it off, for as long as a round would have been held for it (R11)."""
        return self._core.machine.giving.is_giving(now_s, ended_s=self._ended_s)

    def _missing(self) -> set[PeerId]:
        """Who had a seat in the last round and may not be through."""
        last = self._core.views()[-1]
        left = {peer for known in self._core.views() for peer in known.ballots.of(Kind.LEAVE)}
        return set(last.members) - self._through - left - {last.me}
