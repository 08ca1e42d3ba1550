"""I6 in worlds: nobody honest suspects whom it hears, so that no seat is lost for nothing (R1).

That a roster follows from its LIST is I2; here it is whether what the COMMITs say of others is so.
Who runs and between whom messages pass is known here; what is said of somebody that was out of
reach lately, be it of that very peer or in a run with audits of anybody, is not judged. Absence is
not looked at: whoever is late in two rounds loses its seat, and may have been slow.
"""

from collections.abc import Iterator

from node.reporting.tracing import Record, Signed
from protocol.identity import PeerId, short_id
from protocol.messages import Commit
from sim.checks.history import History
from sim.checks.progress import ProgressCheck
from sim.world.world import SimNode, World

LOOKS_PER_SUSPICION = 4
"""Whoever is silent for less than the time to a suspicion may be overlooked."""

CALM_ROUNDS = 8
"""So long after anybody was out of reach its work may be called unopened, and it be suspected."""


class Hearing:
    """I6 over the COMMITs of a world."""

    kinds = (Signed,)

    def __init__(self, history: History, world: World, progress: ProgressCheck) -> None:
        self._history, self._world, self._progress = history, world, progress
        self._suspect_s = world.manifest.timing.suspect_s
        self._is_audited = world.manifest.audits.rate > 0
        self.look_s = 0.0
        self._nodes: dict[PeerId, SimNode] = {}
        self._apart_s: dict[tuple[PeerId, PeerId], float] = {}
        """When one of two was last seen out of the other's reach, or not there."""
        self._stirred = 0
        """In which round anybody last was."""

    def look(self) -> None:
        """Note who is apart; after an event that ends at `look_s` or later."""
        world, now_s = self._world, self._world.now_s
        self.look_s = now_s + self._suspect_s / LOOKS_PER_SUSPICION
        able = {
            peer
            for peer, node in world.nodes.items()
            if self._progress.is_able(peer) and self._nodes.get(peer) is node
        }
        self._nodes = dict(world.nodes)
        for one in world.nodes:
            for other in world.nodes:
                is_here = one in able and other in able
                if one == other:
                    is_apart = not is_here
                else:
                    is_apart = one < other and not (is_here and self._progress.is_open(one, other))
                if is_apart:
                    self._apart_s[one, other] = now_s
                    self._stirred = self._round

    def apart_s(self, one: PeerId, other: PeerId) -> float:
        """When the two were last seen out of each other's reach; below 0 if never. One that stood
        still, was down or began again was out of everybody's, and of its own."""
        there = [self._nodes.get(peer) is self._world.nodes.get(peer) for peer in (one, other)]
        if not all(there) or one not in self._nodes or other not in self._nodes:
            return self._world.now_s
        return self._apart_s.get((min(one, other), max(one, other)), -1.0)

    @property
    def _round(self) -> int:
        return 0 if self._history.final is None else self._history.final.round

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        assert isinstance(record, Signed)
        said, speaker = self._history.said, record.peer
        if self._world.settings.rare or said is None or not isinstance(said.body, Commit):
            return
        liars = self._history.bent | self._world.settings.liars.keys()
        for peer in said.body.suspects:
            if not ({speaker, peer} & liars or self._is_excused(speaker, peer)):
                yield f"suspects {short_id(peer)}, which is honest, and which it hears"

    def _is_excused(self, speaker: PeerId, peer: PeerId) -> bool:
        """Whether there was, or may have been overlooked, what it is suspected for."""
        pair = (min(speaker, peer), max(speaker, peer))
        there = self._nodes.get(peer)
        if there is None or there is not self._world.nodes.get(peer) or not there.is_alive:
            return True
        if self._is_audited and self._round - self._stirred <= CALM_ROUNDS:
            return True
        since_s = self._world.now_s - self._apart_s.get(pair, -self._suspect_s)
        return since_s <= 2 * self._suspect_s
