"""Who is linked, who is silent, and whom this node suspects. Pure; later gossip feeds it too.

A suspicion is local and only ever acts through COMMITs (R1). Silence is measured against the own
scheduling lag, so that a node that was itself late does not accuse the others.
"""

from node.rare import Rare, never
from protocol.identity import PeerId

TICKS_PER_HEARTBEAT = 4

UNLINKED_GRACE_HEARTBEATS = 2.0
"""A link that broke may come back; a peer that is gone does not. Two beats tell them apart."""

UNLINKED_SILENCE_FACTOR = 3.0
"""Peers without a direct link are heard of through others, later and less often."""


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
        self._unlinked_s.pop(peer, None)
        self._heard_s[peer] = self._look_again_s = now_s

    def link_down(self, peer: PeerId, now_s: float) -> None:
        """The last control stream to `peer` ended."""
        if peer in self._linked:
            self._linked.remove(peer)
            self.linked = tuple(sorted(self._linked))
            self._unlinked_s[peer] = self._look_again_s = now_s

    def heard(self, peer: PeerId, now_s: float) -> None:
        """Any sign of life: a frame, bytes of a bulk stream, a signed message through others."""
        self._heard_s[peer] = now_s
        if peer not in self._linked and peer in self._unlinked_s:
            self._unlinked_s[peer] = now_s
        if peer in self._suspects:
            self._look_again_s = now_s

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
        late_s = max(0.0, elapsed_s - self.tick_interval_s)
        self._tick_s = now_s
        if not late_s and not self._lag_s:
            return False  # As nearly always.
        if late_s > self._suspect_s:
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
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
            self._asked_of = peers
            suspects = {peer for peer in peers if self._is_silent(peer, now_s)}
            if self._rare("live-suspected"):
                # Another one at every look; who it is does not matter.
                suspects.add(peers[int(now_s / self.tick_interval_s) % len(peers)])
            self._suspects = frozenset(suspects - {self._me})
            self._forget_strangers(peers)
        return self._suspects

    def _forget_strangers(self, peers: tuple[PeerId, ...]) -> None:
        """Neither linked nor asked for: keys cost nothing, and each would be kept for ever."""
        if len(self._heard_s) > len(self._linked) + len(peers):
            kept = self._linked | set(peers)
            self._heard_s = {p: t for p, t in self._heard_s.items() if p in kept}
            self._unlinked_s = {p: t for p, t in self._unlinked_s.items() if p in kept}

    def _is_silent(self, peer: PeerId, now_s: float) -> bool:
        silence_s = now_s - self._heard_s.setdefault(peer, now_s)
        if silence_s <= self._suspect_s and peer in self._linked:
            return False  # As nearly always.
        allowed_s = self._suspect_s + 2.0 * self.lag_s
        if peer in self._linked:
            return silence_s > allowed_s
        if peer in self._unlinked_s:
            # Whose silence broke the link in the end has had its grace.
            grace_s = UNLINKED_GRACE_HEARTBEATS * self._heartbeat_s + self.lag_s
            return silence_s > allowed_s or now_s - self._unlinked_s[peer] > grace_s
        return silence_s > UNLINKED_SILENCE_FACTOR * allowed_s
