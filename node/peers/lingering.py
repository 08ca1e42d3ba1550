"""How long a node stays behind the last round of its run, for those who still need it. Pure."""

from protocol.core.node_core import NodeCore
from protocol.identity import PeerId
from protocol.messages import Kind

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

    def _missing(self) -> set[PeerId]:
        """Who had a seat in the last round and may not be through."""
        last = self._core.views()[-1]
        left = {peer for known in self._core.views() for peer in known.ballots.of(Kind.LEAVE)}
        return set(last.members) - self._through - left - {last.me}
