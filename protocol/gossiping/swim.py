"""Who of the neighbours is gone: pings, pings through others, suspicion, self-doubt. Pure.

After SWIM (Das, Gupta, Motivala 2002) and Lifeguard (Dadgar, Phillips, Currey 2017): whoever does
not answer is asked through others, then suspected, and given up unless it contradicts in time; who
is slow itself doubts itself first. Ours: rumours come unsigned from anybody, so they only make a
node look. It gives up nobody whom it has not itself found silent.
"""

import random
from dataclasses import dataclass, field
from math import log

from protocol import limits
from protocol.gossip import Ack, Farewell, Ping, PingFor, Rumour, RumourKind
from protocol.gossiping.settings import GossipSettings
from protocol.gossiping.spreading import RumourMill
from protocol.identity import PeerId

DOUBT_MAX = 8
"""Lifeguard's: at the most, times are nine times as long."""

CONFIRMATIONS = 3
"""So many others who suspect a peer too make its time the shortest."""

UNANSWERED = 4
"""Asks in a row that come to nothing before a peer is given up, however many others suspect it too.
Where a fifth of all frames is lost one ask in 37 does, and two more of them would be luck again."""

REFUTATIONS = 3
"""So often hearsay puts a suspicion off; then only the peer's own answer counts."""

SLEPT_S = 2.0
"""Who was away for so long has not waited for any answer."""

CONTRADICTED_S = 5.0
"""Contradicting makes a node doubt itself at most so often: else whoever slanders it deafens it."""

INCARNATIONS_AT_ONCE = 1024
"""Others may remember more than a node that started anew; a leap beyond this is made up."""

LATE_ANSWER_S = 10.0
"""An answer may come late, and still says that the peer was there."""

ERRANDS_MAX = 64

Said = Ping | PingFor | Ack | Farewell


@dataclass(slots=True)
class _Watched:
    """A neighbour; suspected since `suspect_s`, if it is."""

    suspect_s: float | None = None
    unanswered: int = 0
    confirmed_by: set[PeerId] = field(default_factory=set)
    refutations: int = 0

    def trust(self) -> None:
        """It is suspected no more."""
        self.suspect_s, self.unanswered = None, 0
        self.confirmed_by.clear()


@dataclass(slots=True)
class _Probe:
    """A question under way. `helpers` were asked and have not said anything yet."""

    peer: PeerId
    due_s: float
    asked_s: float
    helpers: set[PeerId] | None = None
    num_helpers: int = 0
    is_answered: bool = False
    is_over: bool = False


@dataclass(slots=True)
class _Errand:
    """A ping for somebody else."""

    asker: PeerId
    nonce: int
    target: PeerId
    due_s: float


@dataclass(slots=True, kw_only=True)
class SwimCounts:
    """What came of it so far."""

    suspicions: int = 0
    refuted: int = 0
    gone: int = 0


class Swim:
    """Detects failures among `watch`ed peers. Everything that it says collects in `outbox`."""

    def __init__(
        self, me: PeerId, rng: random.Random, settings: GossipSettings, *, now_s: float
    ) -> None:
        self._me = me
        self._rng = rng
        self._settings = settings
        self._mill = RumourMill()
        self._watched: dict[PeerId, _Watched] = {}
        self._turns: list[PeerId] = []
        self._urgent: list[PeerId] = []
        self._probes: dict[int, _Probe] = {}
        self._errands: dict[int, _Errand] = {}
        self._incarnation = 0
        self._doubt = 0
        self._lag_s = 0.0
        self._contradicted_s = float("-inf")
        self._tick_s = now_s
        self._next_s = now_s + rng.random() * settings.ping_s
        self.counts = SwimCounts()
        self.outbox: list[tuple[PeerId, Said]] = []
        """Whom to tell what; whoever owns this takes it."""
        self.gone: list[PeerId] = []
        """Who was given up since it was last looked at."""

    # What is asked --------------------------------------------------------------------------------

    @property
    def doubt(self) -> int:
        """How much this node mistrusts its own ears, from 0 to 8."""
        return self._doubt

    @property
    def suspects(self) -> frozenset[PeerId]:
        """Neighbours that are suspected now."""
        return frozenset(p for p, w in self._watched.items() if w.suspect_s is not None)

    @property
    def incarnation(self) -> int:
        """How often this node has contradicted that it is gone."""
        return self._incarnation

    def wakeup_s(self) -> float:
        """When `tick` is due at the latest."""
        due = [self._next_s]
        due += [probe.due_s for probe in self._probes.values() if not probe.is_over]
        due += [errand.due_s for errand in self._errands.values()]
        return min(due)

    def watch(self, peers: tuple[PeerId, ...]) -> None:
        """These are the neighbours from now on."""
        if self._watched.keys() == set(peers):
            return
        self._watched = {peer: self._watched.get(peer) or _Watched() for peer in peers}
        self._turns = [peer for peer in self._turns if peer in self._watched]
        self._urgent = [peer for peer in self._urgent if peer in self._watched]

    # What happens ---------------------------------------------------------------------------------

    def heard(self, peer: PeerId) -> None:
        """A frame of the peer itself: whatever it says, it is there."""
        watched = self._watched.get(peer)
        if watched is not None and watched.suspect_s is not None:
            self._clear(peer, watched)

    def look(self, peer: PeerId) -> None:
        """There is reason to ask this neighbour next: its link broke, or others suspect it."""
        if peer in self._watched and peer not in self._urgent:
            self._urgent.append(peer)

    def take(self, peer: PeerId, frame: Said, *, knows: bool, now_s: float) -> None:
        """A frame of a peer; `knows` says whether it is in view, so that its Farewell is passed on.

        Rumours are taken by `hear`.
        """
        match frame:
            case Ping(nonce=nonce):
                self._say(peer, self._ack(nonce, is_there=True))
            case Ack():
                self._answered(peer, frame)
            case PingFor(nonce=nonce, target=target):
                self._run_errand(peer, nonce, target, now_s)
            case Farewell(incarnation=incarnation):
                if knows:
                    rumour = Rumour(kind=RumourKind.GONE, peer=peer, incarnation=incarnation)
                    self._mill.hear(rumour)
                self._watched.pop(peer, None)

    def hear(self, rumour: Rumour, teller: PeerId, now_s: float) -> None:
        """Hearsay about a peer that is in view, or about this node."""
        if rumour.peer == self._me:
            if rumour.kind is not RumourKind.ALIVE:
                self._contradict(rumour.incarnation, now_s)
            return
        is_news = self._mill.hear(rumour)
        watched = self._watched.get(rumour.peer)
        if watched is None or teller == rumour.peer:
            return
        if rumour.kind is RumourKind.ALIVE:
            if is_news and watched.suspect_s is not None and watched.refutations < REFUTATIONS:
                watched.refutations += 1
                watched.trust()
                self.counts.refuted += 1
            return
        if watched.suspect_s is not None:
            if teller not in watched.confirmed_by and len(watched.confirmed_by) < CONFIRMATIONS:
                watched.confirmed_by.add(teller)
        elif is_news:
            self.look(rumour.peer)

    def leave(self) -> Farewell:
        """What to tell the neighbours when this node goes on purpose."""
        return Farewell(incarnation=self._incarnation)

    def tick(self, now_s: float) -> None:
        """Ask, ask again through others, suspect, give up: whatever time has made due."""
        self._note_lag(now_s)
        for nonce in [n for n, e in self._errands.items() if now_s >= e.due_s]:
            errand = self._errands.pop(nonce)
            self._say(errand.asker, self._ack(errand.nonce, is_there=False))
        for nonce, probe in list(self._probes.items()):
            if probe.is_over:
                if now_s - probe.asked_s > LATE_ANSWER_S:
                    del self._probes[nonce]
            elif now_s >= probe.due_s:
                self._overdue(nonce, probe, now_s)
        for peer, watched in list(self._watched.items()):
            if self._is_out_of_patience(watched, now_s):
                self._give_up(peer)
        if now_s >= self._next_s:
            self._next_s = now_s + self._settings.ping_s
            self._ask_some(now_s)

    # Own lateness ---------------------------------------------------------------------------------

    def _note_lag(self, now_s: float) -> None:
        elapsed_s, self._tick_s = now_s - self._tick_s, now_s
        late_s = max(0.0, elapsed_s - self._settings.ping_s)
        self._lag_s = max(late_s, self._lag_s * 0.5 ** (elapsed_s / SLEPT_S))
        if late_s <= self._settings.answer_s:
            return
        self._doubt = min(DOUBT_MAX, self._doubt + 1)
        if late_s >= SLEPT_S:
            # Answers may lie unread before us, and contradictions: nobody was silent but we.
            self._probes.clear()
            for watched in self._watched.values():
                if watched.suspect_s is not None:
                    watched.suspect_s = now_s

    def _wait_s(self, watched: _Watched | None) -> float:
        """For an answer. Doubt puts a suspicion off, but not what comes behind it."""
        is_suspect = watched is not None and watched.suspect_s is not None
        return self._settings.answer_s * (1 if is_suspect else 1 + self._doubt) + self._lag_s

    def _is_out_of_patience(self, watched: _Watched, now_s: float) -> bool:
        if watched.suspect_s is None or watched.unanswered < UNANSWERED:
            return False
        return now_s >= watched.suspect_s + self._patience_s(watched)

    def _patience_s(self, watched: _Watched) -> float:
        """Lifeguard's: from the longest to the shortest, the more others suspect it too."""
        shortest_s, longest_s = self._settings.suspicion_s
        share = log(1 + len(watched.confirmed_by)) / log(1 + CONFIRMATIONS)
        return self._lag_s + longest_s - (longest_s - shortest_s) * share

    # Asking ---------------------------------------------------------------------------------------

    def _ask_some(self, now_s: float) -> None:
        """One in turn, and all who are suspected or were looked at askance."""
        asked = [p for p, w in self._watched.items() if w.suspect_s is not None]
        asked += [peer for peer in self._urgent if peer not in asked]
        self._urgent.clear()
        if not self._turns:
            self._turns = list(self._watched)
            self._rng.shuffle(self._turns)
        if self._turns and self._turns[-1] not in asked:
            asked.append(self._turns[-1])
        del self._turns[-1:]
        under_way = {probe.peer for probe in self._probes.values() if not probe.is_over}
        for peer in asked:
            if peer not in under_way:
                self._ask(peer, now_s)

    def _ask(self, peer: PeerId, now_s: float) -> None:
        nonce = self._rng.getrandbits(60)
        self._probes[nonce] = _Probe(peer, now_s + self._wait_s(self._watched.get(peer)), now_s)
        self._say(peer, self._ping(nonce, self._mill.take(self._reproach(peer))))

    def _ping(self, nonce: int, rumours: tuple[Rumour, ...]) -> Ping:
        return Ping(nonce=nonce, is_neighbour=True, rumours=rumours)

    def _reproach(self, peer: PeerId) -> list[Rumour]:
        """What a suspected peer must hear to contradict it."""
        watched = self._watched.get(peer)
        if watched is None or watched.suspect_s is None:
            return []
        incarnation = self._mill.incarnation(peer)
        return [Rumour(kind=RumourKind.SUSPECT, peer=peer, incarnation=incarnation)]

    def _overdue(self, nonce: int, probe: _Probe, now_s: float) -> None:
        """No answer in time: ask once more, and through others; then suspect."""
        watched = self._watched.get(probe.peer)
        if watched is None or probe.is_answered:
            probe.is_over = True
            return
        if probe.helpers is None:
            able = [p for p, w in self._watched.items() if p != probe.peer and w.suspect_s is None]
            helpers = self._rng.sample(sorted(able), min(self._settings.helpers, len(able)))
            probe.helpers, probe.num_helpers = set(helpers), len(helpers)
            probe.due_s = now_s + 2.0 * self._wait_s(watched)
            rumours = self._mill.take(self._reproach(probe.peer))
            self._say(probe.peer, self._ping(nonce, rumours))
            for helper in helpers:
                self._say(
                    helper, PingFor(nonce=nonce, target=probe.peer, addresses=(), rumours=rumours)
                )
            return
        probe.is_over = True
        if len(probe.helpers) * 2 > probe.num_helpers:
            # Not even the helpers were heard: it may be us.
            self._doubt = min(DOUBT_MAX, self._doubt + 1)
        watched.unanswered += 1
        if watched.suspect_s is None:
            watched.suspect_s = now_s
            self.counts.suspicions += 1
            self._mill.hear(self._reproach(probe.peer)[0])
        # Without a pause: that it is there may come to be known before time is up.
        self._ask(probe.peer, now_s)

    def _answered(self, peer: PeerId, ack: Ack) -> None:
        errand = self._errands.get(ack.nonce)
        if errand is not None:
            if errand.target == peer and ack.is_there:
                del self._errands[ack.nonce]
                self._say(errand.asker, self._ack(errand.nonce, is_there=True))
            return
        probe = self._probes.get(ack.nonce)
        if probe is None:
            return
        if peer == probe.peer:
            self._doubt = max(0, self._doubt - 1)
        elif probe.helpers is None or peer not in probe.helpers:
            return  # Whoever was not asked cannot know the nonce, and is not believed if it does.
        else:
            probe.helpers.discard(peer)
            if not ack.is_there:
                return
        probe.is_answered = probe.is_over = True
        watched = self._watched.get(probe.peer)
        if watched is not None and watched.suspect_s is not None:
            self._clear(probe.peer, watched)

    def _run_errand(self, asker: PeerId, nonce: int, target: PeerId, now_s: float) -> None:
        if target == self._me:
            self._say(asker, self._ack(nonce, is_there=True))
        elif len(self._errands) < ERRANDS_MAX:
            own = self._rng.getrandbits(60)
            # In time for the asker, who waits twice as long for it.
            due_s = now_s + 1.5 * self._settings.answer_s
            self._errands[own] = _Errand(asker, nonce, target, due_s)
            rumours = self._mill.take()
            self._say(target, Ping(nonce=own, is_neighbour=False, rumours=rumours))

    def _ack(self, nonce: int, *, is_there: bool) -> Ack:
        return Ack(
            nonce=nonce,
            is_there=is_there,
            incarnation=self._incarnation,
            rumours=self._mill.take(),
        )

    def _say(self, peer: PeerId, frame: Said) -> None:
        self.outbox.append((peer, frame))

    # Suspicion ------------------------------------------------------------------------------------

    def _clear(self, peer: PeerId, watched: _Watched) -> None:
        """It is there: by its own word, or by that of a helper that we chose."""
        watched.trust()
        watched.refutations = 0
        self.counts.refuted += 1

    def _contradict(self, incarnation: int, now_s: float) -> None:
        """Others think that this node is gone: it may well be slow."""
        if not 0 <= incarnation - self._incarnation < INCARNATIONS_AT_ONCE:
            return
        if now_s - self._contradicted_s >= CONTRADICTED_S:
            self._contradicted_s = now_s
            self._doubt = min(DOUBT_MAX, self._doubt + 1)
        self._incarnation = min(limits.INCARNATION_MAX, incarnation + 1)
        rumour = Rumour(kind=RumourKind.ALIVE, peer=self._me, incarnation=self._incarnation)
        self._mill.hear(rumour)

    def _give_up(self, peer: PeerId) -> None:
        del self._watched[peer]
        self.counts.gone += 1
        incarnation = self._mill.incarnation(peer)
        self._mill.hear(Rumour(kind=RumourKind.GONE, peer=peer, incarnation=incarnation))
        self.gone.append(peer)
