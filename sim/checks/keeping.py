"""What honest peers keep in worlds: their good name (I6), and their seats and votes (I9).

I6: nobody honest suspects whom it hears, so that no seat is lost for nothing (R1). That a roster
follows from its LIST is I2; here it is whether what the COMMITs say of others is so. Who runs and
between whom messages pass is known here; what is said of somebody that was out of reach lately, be
it of that very peer or in a run with audits of anybody, is not judged. Absence is not looked at:
whoever is late in two rounds loses its seat, and may have been slow.

I9: no honest voter who was in reach and committed loses its seat or its vote.

Whoever lies can say little or nothing of others, and that must cost nobody honest anything. *In
reach*: since before the rounds that a seat or vote can be lost by, it ran, as all honest members
did, and messages passed both ways between any two of them. (Where somebody else is away or cut off
for a while, that may cost those a seat who are heard through it.) *Committed*: in each of those
rounds its COMMIT was with a quorum of honest voters when they said what they held, or voted; both
are known here from the nodes themselves. Who says LEAVE goes, and where seats are short they are
given up in turn.

Counted are losses of all honest peers that were in reach, whether they committed or not: a run in
which nothing else goes wrong has none.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import combinations_with_replacement

from node.reporting.tracing import Adopted, Confirmed, Record, Signed
from protocol.identity import PeerId, short_id
from protocol.messages import Commit, Kind, SealValue
from protocol.rounds.round_view import RoundView
from sim.checks.history import History
from sim.checks.progress import ProgressCheck
from sim.world.world import SimNode, World

# I6: nobody honest is suspected ------------------------------------------------------------------

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


# I9: seats and votes ------------------------------------------------------------------------------

SPAN_OF_SEAT = 3
"""A seat is lost by two rounds: absent in both, or suspected in the COMMITs of the second."""

SPAN_OF_VOTE = 6
"""A vote is lost by the four rounds in which no SEAL was shown, of a round each before them."""

START_S = 1.0
"""Within which those who begin together are linked."""

ROUNDS_KEPT = 16
SPEAKS = frozenset({Kind.HAVE, Kind.VOTE})


class Keeping:
    """I9 over the rosters of a world."""

    name = "I9"
    kinds = (Signed, Adopted, Confirmed)

    def __init__(self, history: History, world: World, hearing: Hearing) -> None:
        self._history, self._world, self._hearing = history, world, hearing
        self._suspect_s = world.manifest.timing.suspect_s
        self.votes_lost = self.seats_lost = 0
        self._seen: set[bytes] = set()
        self._ended_s: dict[int, float] = {}
        """When each round was first final somewhere; of those before the first, never."""
        self._had: dict[bytes, dict[PeerId, frozenset[PeerId]]] = {}
        """By the basis of a round and voter, whose COMMITs were there when it said so."""
        self._round_of: dict[bytes, int] = {}
        self._left: set[PeerId] = set()
        self._missed: dict[PeerId, int] = {}
        """The last round in which somebody who sits had not committed in time."""

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        if isinstance(record, Signed):
            self._signed(record)
            return
        assert isinstance(record, Adopted | Confirmed)
        value = record.certificate.value
        before = self._history.values.get(value.before)
        if value.digest in self._seen or before is None or not value.round:
            return
        self._seen.add(value.digest)
        self._note_committed(value)
        self._ended_s.setdefault(value.round, self._world.now_s)
        yield from self._lost(before, value)

    # What is known of a round ---------------------------------------------------------------------

    def _signed(self, record: Signed) -> None:
        slot, peer = record.message.slot, record.peer
        if slot.kind is Kind.LEAVE:
            self._left.add(peer)
        if slot.kind not in SPEAKS or peer in self._had.get(slot.basis, ()):
            return
        view = self._view_of(peer, slot.basis)
        if view is not None:
            self._had.setdefault(slot.basis, {})[peer] = frozenset(view.ballots.commits)
            self._round_of[slot.basis] = slot.round
            for basis in [b for b, at in self._round_of.items() if at < slot.round - ROUNDS_KEPT]:
                del self._had[basis], self._round_of[basis]

    def _view_of(self, peer: PeerId, basis: bytes) -> RoundView | None:
        machine = self._world.nodes[peer].core.machine
        views = [*machine.standing.under_way, *([machine.previous] if machine.previous else [])]
        return next((view for view in views if view.basis == basis), None)

    def _note_committed(self, value: SealValue) -> None:
        """Who had not committed in time to a round that is final."""
        electorate, named = self._history.electorate(value.basis), self._history.values[value.basis]
        had = self._had.get(value.basis, {})
        for peer in named.roster.members:
            there = {voter for voter, senders in had.items() if peer in senders} - self._liars
            if electorate is None or not electorate.is_quorum(there):
                self._missed[peer] = value.round

    @property
    def _liars(self) -> AbstractSet[PeerId]:
        return self._history.bent | self._world.settings.liars.keys()

    # What is lost -------------------------------------------------------------------------------

    def _lost(self, before: SealValue, value: SealValue) -> Iterator[str]:
        seats = set(before.roster.members) - set(value.roster.members)
        votes = set(before.roster.voters) - set(value.roster.voters)
        is_short = len(value.roster.seats) >= self._world.manifest.admission.seats
        texts = []
        for peer in sorted((seats | votes) - self._liars - self._left):
            is_unseated = peer in seats
            first = value.round - (SPAN_OF_SEAT if is_unseated else SPAN_OF_VOTE)
            if not self._is_in_reach(peer, value, first) or (is_unseated and is_short):
                continue
            self.seats_lost += is_unseated
            self.votes_lost += peer in votes
            if self._missed.get(peer, first) <= first and peer in before.roster.voter_set:
                what = "seat and vote" if is_unseated else "vote"
                texts.append(f"round {value.round} takes {what} of {short_id(peer)}, which is")
        yield from (f"{text} honest, was in reach and had committed" for text in texts)

    def _is_in_reach(self, peer: PeerId, value: SealValue, first: int) -> bool:
        """All honest members and voters of each other, since before round `first` ended."""
        if first > 0 and first not in self._ended_s:
            return False
        # Who was silent shortly before may be suspected in it.
        since_s = max(START_S, self._ended_s.get(first, 0.0) - 2 * self._suspect_s)
        roster = self._history.values[value.basis].roster
        honest = sorted((roster.member_set | roster.voter_set | {peer}) - self._liars)
        pairs = combinations_with_replacement(honest, 2)
        return all(self._hearing.apart_s(one, other) < since_s for one, other in pairs)
