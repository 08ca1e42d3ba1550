"""Who is linked, who is silent, and whom this node suspects. Pure; later gossip feeds it too.

A suspicion is local and only ever acts through COMMITs (R1). Silence is measured against the own
scheduling lag, so that a node that was itself late does not accuse the others.
"""

import math
from collections.abc import Collection

from protocol.identity import PeerId
from protocol.rounds.round_config import Rare, never

TICKS_PER_HEARTBEAT = 4

UNLINKED_GRACE_HEARTBEATS = 2.0
"""A link that broke may come back; a peer that is gone does not. Two beats tell them apart."""

UNLINKED_SILENCE_FACTOR = 3.0
"""Peers without a direct link are heard of through others, later and less often."""

SURE_HEARTBEATS = 2.5
"""For a linked peer that it heard so lately a node stands surety towards others. Shorter than any
suspicion: who died is vouched for by nobody, long before it would be suspected."""

VOUCHED_HEARTBEATS = 2.0
"""A surety counts so long, which is the grace of a broken link: one that was on its way when a peer
died holds up nothing for longer than that way."""


class Liveness:
    """Links and silences of the peers that this node cares about."""

    def __init__(
        self,
        me: PeerId,
        *,
        heartbeat_s: float,
        suspect_s: float,
        now_s: float,
        rare: Rare = never,
    ) -> None:
        self._me = me
        self._rare = rare
        self._heartbeat_s = heartbeat_s
        self._suspect_s = suspect_s
        self.tick_interval_s = heartbeat_s / TICKS_PER_HEARTBEAT
        """How often `tick` is to be called at least."""
        self.linked: tuple[PeerId, ...] = ()
        """Peers with an open control stream, ascending."""
        self._linked: set[PeerId] = set()
        self._heard_s: dict[PeerId, float] = {}
        self._unlinked_s: dict[PeerId, float] = {}
        self._vouched_s: dict[PeerId, float] = {}
        self._direct_s: dict[PeerId, float] = {}
        """When each linked peer last spoke itself: nobody stands surety for hearsay."""
        self._far: tuple[PeerId, ...] | None = None
        """Those asked for that are not linked; None if it must be looked up."""
        self._gone_s: dict[PeerId, float] = {}
        self._lag_s = 0.0
        self._tick_s = now_s
        self._beat_s = now_s
        self._asked_of: tuple[PeerId, ...] = ()
        self._suspects: frozenset[PeerId] = frozenset()
        self._look_again_s = now_s

    def link_up(self, peer: PeerId, now_s: float) -> None:
        """A control stream to `peer` is open and its hello is checked."""
        self._linked.add(peer)
        self.linked = tuple(sorted(self._linked))
        self._far = None
        self._unlinked_s.pop(peer, None)
        self._vouched_s.pop(peer, None)
        self._gone_s.pop(peer, None)
        self._direct_s[peer] = self._heard_s[peer] = self._look_again_s = now_s

    def link_down(self, peer: PeerId, now_s: float, *, is_gone: bool = False) -> None:
        """The last control stream to `peer` ended; whether its process has, too.

        A peer that is gone is suspected at once. A restart says by a link that it is back, and
        whoever is wrongly held for gone by what others forward of it.
        """
        if is_gone:
            self._gone_s[peer] = self._look_again_s = now_s
        if peer in self._linked:
            self._linked.remove(peer)
            self.linked = tuple(sorted(self._linked))
            self._far = None
            self._unlinked_s[peer] = self._look_again_s = now_s

    def heard(self, peer: PeerId, now_s: float) -> None:
        """Any sign of life: a frame, bytes of a bulk stream, a signed message through others."""
        self._heard_s[peer] = now_s
        if self._gone_s and now_s > self._gone_s.get(peer, now_s) + self._heartbeat_s:
            del self._gone_s[peer]  # Not what was under way when it ended.
        # Both nearly always empty: nothing is hashed for them.
        if self._unlinked_s and peer not in self._linked and peer in self._unlinked_s:
            self._unlinked_s[peer] = now_s
        if self._suspects and peer in self._suspects:
            self._look_again_s = now_s

    def spoke(self, peer: PeerId, now_s: float) -> None:
        """The peer itself said or sent something, on a link or a stream of its own."""
        self._direct_s[peer] = now_s
        self.heard(peer, now_s)

    def vouched(self, links: Collection[PeerId], silent: Collection[PeerId], now_s: float) -> None:
        """A linked peer is linked to these, and hears all but the silent ones.

        What SWIM asks others for, heartbeats say anyway. It counts for peers without a link only:
        whoever is linked is heard or not. A teller that lies can keep such a peer from being
        suspected for its silence; then it loses its seat by being absent twice (R1).
        """
        if self._far is None:
            self._far = tuple(p for p in self._asked_of if p not in self._linked and p != self._me)
        for peer in self._far:
            if peer in links and peer not in silent:
                self._vouched_s[peer] = now_s
                if peer in self._suspects:
                    self._look_again_s = now_s

    def silent_links(self, now_s: float) -> tuple[PeerId, ...]:
        """Linked peers that this node has not heard of late: for the others it stands surety."""
        sure_s = SURE_HEARTBEATS * self._heartbeat_s + self._lag_s
        return tuple(
            peer for peer in self.linked if now_s - self._direct_s.get(peer, -math.inf) > sure_s
        )

    def silence_s(self, peer: PeerId, now_s: float) -> float | None:
        """How long ago `peer` gave its last sign of life; None if it is not known here."""
        heard_s = self._heard_s.get(peer)
        return None if heard_s is None else now_s - heard_s

    def tick(self, now_s: float) -> bool:
        """Note that this node runs; True if it did not for so long that others went on (R3).

        Called before every event, so that nothing is decided between waking and noticing it. After
        a sleep everybody starts with a clean slate: their silence was ours.
        """
        elapsed_s = now_s - self._tick_s
        self._tick_s = now_s
        if elapsed_s <= self.tick_interval_s and not self._lag_s:
            return False  # As nearly always.
        late_s = max(0.0, elapsed_s - self.tick_interval_s)
        if late_s > self._suspect_s:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
            self._vouched_s = dict.fromkeys(self._vouched_s, now_s)
            self._unlinked_s = dict.fromkeys(self._unlinked_s, now_s)
            self._lag_s = 0.0
            self._look_again_s = now_s
            return True
        self._lag_s = max(late_s, self._lag_s * 0.5 ** (elapsed_s / self._suspect_s))
        return False

    @property
    def lag_s(self) -> float:
        """The own lateness of late, in seconds; what is past counts half per suspicion time."""
        return self._lag_s

    def is_quiet(self, peers: tuple[PeerId, ...], now_s: float) -> bool:
        """Whether no heartbeat is due, and `suspects` would say what it said last."""
        return now_s < self._look_again_s and now_s < self._beat_s and peers is self._asked_of

    def beat_due(self, now_s: float) -> bool:
        """Whether a heartbeat is due; if so, the next one is a heartbeat away."""
        if now_s < self._beat_s:
            return False
        self._beat_s = now_s + self._heartbeat_s
        return True

    def suspects(self, peers: tuple[PeerId, ...], now_s: float) -> frozenset[PeerId]:
        """Those of `peers` that are silent for too long or whose link broke and stayed broken.

        Asked after every event; looked at again once per tick, or when there is reason to.
        """
        is_asked_before = peers is self._asked_of or peers == self._asked_of
        if now_s >= self._look_again_s or not is_asked_before:
            self._look_again_s = now_s + self.tick_interval_s
            if not is_asked_before:
                self._far = None
                if self._asked_of:
                    self._begin_with({*peers}.difference(self._asked_of), now_s)
            self._asked_of = peers
            # Nearly all are linked and were heard of lately: no more is asked of those.
            heard_s, linked, suspect_s = self._heard_s, self._linked, self._suspect_s
            doubtful = [
                peer
                for peer in peers
                if peer not in linked or now_s - heard_s.get(peer, -math.inf) > suspect_s
            ]
            suspects = {peer for peer in doubtful if self._is_silent(peer, now_s)}
            if self._rare("live-suspected"):
                # Another one at every look; who it is does not matter.
                suspects.add(peers[int(now_s / self.tick_interval_s) % len(peers)])
            self._suspects = frozenset(suspects - {self._me})
            self._forget_strangers(peers)
        return self._suspects

    def _begin_with(self, peers: set[PeerId], now_s: float) -> None:
        """Nobody listened for them until now: what was heard of them long ago says nothing."""
        for peer in peers - self._linked:
            self._heard_s[peer] = max(now_s, self._heard_s.get(peer, now_s))
            self._unlinked_s.pop(peer, None)

    def _forget_strangers(self, peers: tuple[PeerId, ...]) -> None:
        """Neither linked nor asked for: keys cost nothing, and each would be kept for ever."""
        if len(self._heard_s) > len(self._linked) + len(peers):
            kept = self._linked | set(peers)
            self._heard_s = {p: t for p, t in self._heard_s.items() if p in kept}
            self._unlinked_s = {p: t for p, t in self._unlinked_s.items() if p in kept}
            self._vouched_s = {p: t for p, t in self._vouched_s.items() if p in kept}
            self._direct_s = {p: t for p, t in self._direct_s.items() if p in kept}
            self._gone_s = {p: t for p, t in self._gone_s.items() if p in kept}

    def _is_silent(self, peer: PeerId, now_s: float) -> bool:
        silence_s = now_s - self._heard_s.setdefault(peer, now_s)
        if silence_s <= self._suspect_s and peer in self._linked:
            return False  # As nearly always.
        allowed_s = self._suspect_s + 2.0 * self.lag_s
        if peer in self._linked:
            return silence_s > allowed_s
        vouched_s = self._vouched_s.get(peer, -math.inf)
        if peer in self._gone_s and vouched_s <= self._gone_s[peer] + self._heartbeat_s:
            return True  # Who vouches for it later has heard of a process that is back.
        unheard_s = now_s - vouched_s
        if unheard_s <= VOUCHED_HEARTBEATS * self._heartbeat_s + self.lag_s:
            return False
        if peer in self._unlinked_s:
            # Whose silence broke the link in the end has had its grace.
            grace_s = UNLINKED_GRACE_HEARTBEATS * self._heartbeat_s + self.lag_s
            return silence_s > allowed_s or now_s - self._unlinked_s[peer] > grace_s
        if peer in self._vouched_s:
            # It was heard of with every beat: for it the longer time is not needed.
            return min(silence_s, unheard_s) > allowed_s
        return silence_s > UNLINKED_SILENCE_FACTOR * allowed_s
