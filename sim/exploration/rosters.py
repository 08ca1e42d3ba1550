"""R1 over many rounds: who votes when the shipped roster rule follows any sequence of LISTs.

`Windows`: every round lists any subset of the living, or nobody; the others came too late, so that
nobody saw them. Whoever is listed says whom it saw in the round before, and may have proved that it
sealed that, or not. Whoever has no seat asks for one, and is named. The living must stay a quorum
though nobody died since. With some who wait for a seat all take turns. One may die at any time, if
the others are a quorum then; in each round at most one of the living is late or proves nothing, and
not twice in a row. (Where that happens a swarm that takes no turns may come to no quorum either:
whoever was late twice has no seat, and then somebody else dies.)

`LeavingModel`: voters leave by themselves, by the shipped word on who may go. A voted alone so far;
all others have a seat, since the first round or a later one. Each may say that it leaves, and then
works on until the others no longer need it. Meanwhile at most one is late and one may die, as
above. What must not happen: that those who are there, leavers that stay included, are no quorum
though nobody died since; or that somebody works on for ever, though those who stay are all in time.

`Words`: in an open run every round lists some voters. The honest say truly who was there and who
sealed; the liar L, if it is listed, says so too, or denies one or all, or vouches for D, which is
gone from the start. What may not happen is that an honest voter loses seat or vote, or that who is
gone keeps its vote.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations, product
from typing import NamedTuple

from protocol.identity import PeerId
from protocol.manifest import NO_ADMISSION, AdmissionSpec
from protocol.messages import Commit, Roster, SeatRecord
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import pack_senders
from protocol.rounds.roster import liars
from protocol.rounds.seating import TURN_ROUNDS
from sim.exploration.explorer import Model
from sim.exploration.table import LETTERS, PLAIN_COMMIT, seat
from sim.world.nodes import peer_named

# Any LISTs ----------------------------------------------------------------------------------------


class WindowState(NamedTuple):
    """The roster after so many rounds, who is dead, and whom the last round saw."""

    roster: Roster
    round: int
    dead: frozenset[PeerId]
    seen: frozenset[PeerId]


class Windows(Model[WindowState]):
    """Voters A, B, C, ..., and more peers that wait for a seat: there are none but theirs.

    A, the founder, is dead from the start where nobody waits.
    """

    def __init__(self, *, voters: int, rounds: int, waiting: int = 0) -> None:
        peers = sorted(peer_named(f"window {index}") for index in range(voters + waiting))
        self._names = {peer: LETTERS[index] for index, peer in enumerate(peers)}
        self._peers = tuple(peers)
        self._rounds = rounds
        self._has_turns = waiting > 0
        self._law = AdmissionSpec(seats=voters) if waiting else NO_ADMISSION
        before = TURN_ROUNDS if waiting else 4  # So that somebody's turn is over at once.
        seats = tuple(
            SeatRecord(peer=peer, seated=0, voter_since=0, proved=before, absent=0)
            for peer in peers[:voters]
        )
        roster = Roster(seats=seats, window=tuple(range(before - 3, before + 1)))
        dead = frozenset() if waiting else frozenset(peers[:1])
        self._start = WindowState(roster, before, dead, frozenset(peers))

    def start(self) -> WindowState:
        """All vote, and were listed in each of the last four rounds."""
        return self._start

    def moves(self, state: WindowState) -> Iterator[tuple[str, WindowState]]:
        """The next round is final, with any LIST, if the living are a quorum."""
        roster, before, dead, seen = state
        if before - self._start.round >= self._rounds or not self._is_quorum(state):
            return
        for peer in self._peers if not dead else ():
            after_death = state._replace(dead=frozenset({peer}))
            if self._is_quorum(after_death):
                yield f"{self._names[peer]} dies", after_death
        living = [peer for peer in self._peers if peer not in dead]
        seated = [peer for peer in roster.members if peer in living]
        joins = tuple(peer for peer in living if peer not in roster.members)
        commit = commit_naming(joins, pack_senders(seen, roster.members))
        for kinds in product((None, True, False), repeat=len(seated)):
            late = [peer for peer, is_proved in zip(seated, kinds, strict=True) if not is_proved]
            if self._has_turns and not self._may_be_late(late, state):
                continue
            listed = [
                rosters.ListedContribution(peer, commit, is_proved=is_proved)
                for peer, is_proved in zip(seated, kinds, strict=True)
                if is_proved is not None
            ]
            after = rosters.next_roster(roster, before + 1, listed, trust="friends", law=self._law)
            names = ", ".join(
                self._names[entry.sender] + ("" if entry.is_proved else " without its SEAL")
                for entry in listed
            )
            label = f"round {before + 1 - self._start.round} lists {{{names}}}"
            # Of an empty LIST, too, nobody knows who was there.
            were = frozenset(entry.sender for entry in listed)
            yield label, WindowState(after, before + 1, dead, were)

    def _may_be_late(self, late: list[PeerId], state: WindowState) -> bool:
        """With turns: one, and not the one that was in the round before."""
        were = {
            seat.peer
            for seat in state.roster.seats
            if seat.proved < state.round and seat.seated < state.round
        }
        return len(late) <= 1 and were.isdisjoint(late)

    def check(self, state: WindowState) -> str:
        """L1: there are voters, and the living are a quorum of them."""
        electorate = rosters.voters(state.roster)
        if not electorate:
            return "L1: nobody votes any more"
        if not self._is_quorum(state):
            names = ", ".join(self._names[peer] for peer in electorate)
            return f"L1: of the voters {names} no quorum is alive, though nobody died since"
        return ""

    def _is_quorum(self, state: WindowState) -> bool:
        living = [peer for peer in self._peers if peer not in state.dead]
        return bool(rosters.voters(state.roster)) and rosters.has_quorum(
            state.roster, living, trust="friends"
        )


def commit_naming(
    joins: tuple[PeerId, ...], committed: bytes, gone: tuple[PeerId, ...] = ()
) -> Commit:
    """A COMMIT that says nothing but who asks for a seat, who was there, and who leaves."""
    nothing = bytes(len(committed))
    return replace(
        PLAIN_COMMIT, joins=joins, gone=gone, committed=committed, sealed=nothing, lapsed=nothing
    )


# Who leaves ---------------------------------------------------------------------------------------

BEFORE = 4
"""Rounds that A has made final alone; not one in which voters of open runs grow."""

PATIENCE = 8
"""So many good rounds, and a leaver is free: the window has passed by, and whoever lost its seat
has it again and is proved."""


class LeavingState(NamedTuple):
    """The roster after so many rounds, who said that it leaves, and who is not there any more."""

    roster: Roster
    round: int
    leaving: frozenset[PeerId] = frozenset()
    gone: frozenset[PeerId] = frozenset()
    dead: frozenset[PeerId] = frozenset()


class LeavingModel(Model[LeavingState]):
    """A and so many others, of whom so many may leave and at most one may die."""

    def __init__(
        self, *, others: int, rounds: int, leavers: int, is_founding: bool, trust: str
    ) -> None:
        peers = sorted(peer_named(f"leaving {index}") for index in range(others + 1))
        self._names = {peer: LETTERS[index] for index, peer in enumerate(peers)}
        self._peers, self._trust = tuple(peers), trust
        self._until, self._leavers = BEFORE + rounds, leavers
        founder = SeatRecord(peer=peers[0], seated=0, voter_since=0, proved=BEFORE, absent=0)
        seated = 1 if is_founding else BEFORE
        newcomers = [
            SeatRecord(peer=peer, seated=seated, voter_since=-1, proved=-1, absent=0)
            for peer in peers[1:]
        ]
        self._start = LeavingState(
            Roster(seats=(founder, *newcomers), window=tuple(range(1, BEFORE + 1))), BEFORE
        )

    def start(self) -> LeavingState:
        """A votes; nobody else has proved itself yet."""
        return self._start

    def moves(self, state: LeavingState) -> Iterator[tuple[str, LeavingState]]:
        """Somebody says that it leaves, goes, or dies; or the next round is final."""
        here = self._here(state)
        if state.round >= self._until or not self._is_quorum(state, here):
            return
        for peer in here:
            name = self._names[peer]
            rest = [p for p in here if p != peer and p not in state.leaving]
            if peer in state.leaving:
                if rosters.may_go(state.roster, peer, rest, trust=self._trust):
                    yield f"{name} goes", state._replace(gone=state.gone | {peer})
            elif len(state.leaving) < self._leavers:
                yield f"{name} wants to leave", state._replace(leaving=state.leaving | {peer})
            if not state.dead and self._is_quorum(state, rest):
                yield f"{name} dies", state._replace(dead=frozenset({peer}))
        for kinds in product((None, True, False), repeat=len(self._seated(state))):
            pairs = list(zip(self._seated(state), kinds, strict=True))
            if not self._may_be_late(state, [peer for peer, is_proved in pairs if not is_proved]):
                continue
            listed = [(peer, is_proved) for peer, is_proved in pairs if is_proved is not None]
            names = ", ".join(
                self._names[peer] + ("" if is_proved else " without its SEAL")
                for peer, is_proved in listed
            )
            label = f"round {state.round + 1 - BEFORE} lists {{{names}}}"
            yield label, self._after(state, listed)

    def _here(self, state: LeavingState) -> list[PeerId]:
        return [peer for peer in self._peers if peer not in state.gone | state.dead]

    def _seated(self, state: LeavingState) -> list[PeerId]:
        return [peer for peer in self._here(state) if peer in state.roster.member_set]

    def _is_quorum(self, state: LeavingState, peers: list[PeerId]) -> bool:
        return rosters.has_quorum(state.roster, peers, trust=self._trust)

    def _may_be_late(self, state: LeavingState, late: list[PeerId]) -> bool:
        """Whoever has a seat since the last seal has no SEAL to show."""
        seats = [seat for seat in state.roster.seats if seat.seated < state.round]
        were = {seat.peer for seat in seats if seat.proved < state.round}
        if state.round == BEFORE:
            were -= set(self._peers[1:])  # Nobody but A could have proved itself.
        new = {seat.peer for seat in state.roster.seats} - {seat.peer for seat in seats}
        late = [peer for peer in late if peer not in new]
        return len(late) <= 1 and were.isdisjoint(late)

    def _after(self, state: LeavingState, listed: list[tuple[PeerId, bool]]) -> LeavingState:
        """All who are there have heard who leaves; who stays and has no seat asks for one."""
        here = [peer for peer in self._here(state) if peer not in state.leaving]
        joins = tuple(peer for peer in here if peer not in state.roster.member_set)
        roster = state.roster
        committed = pack_senders({peer for peer, _ in listed}, roster.members)
        gone = tuple(sorted(state.leaving & roster.member_set))
        commit = commit_naming(joins, committed, gone)
        entries = [rosters.ListedContribution(peer, commit, is_proved=ok) for peer, ok in listed]
        after = rosters.next_roster(state.roster, state.round + 1, entries, trust=self._trust)
        return state._replace(roster=after, round=state.round + 1)

    def check(self, state: LeavingState) -> str:
        """L1: those who are there are a quorum; L2: nobody is kept for ever."""
        names = ", ".join(self._names[peer] for peer in state.roster.voters)
        if not self._is_quorum(state, self._here(state)):
            return f"L1: of the voters {names} no quorum is there, though nobody died since"
        if not state.leaving - state.gone - state.dead:
            return ""
        for _ in range(PATIENCE):
            state = self._after(state, [(peer, True) for peer in self._seated(state)])
        here = self._here(state)
        staying = [peer for peer in here if peer not in state.leaving]
        if staying and not self._is_quorum(state, staying):
            names = ", ".join(self._names[peer] for peer in state.roster.voters)
            return f"L2: the voters are {names}, and who wants to leave is kept for ever"
        return ""


# Words of a liar ----------------------------------------------------------------------------------

START = 4
GONE_ROUNDS = 8
"""So many rounds behind its last one at the latest nobody counts on who is gone."""


class WordsState(NamedTuple):
    """The roster after so many rounds, and how many small LISTs there may still be."""

    roster: Roster
    round: int
    small: int


class Words(Model[WordsState]):
    """Voters A, B, C and the liar L, with `has_gone` also D.

    A LIST leaves out at most so many of the honest as may lie, as voters see to it in the first
    attempts (R2); `small` times any. Up to `may_lose` honest voters may lose their votes then.
    """

    def __init__(
        self, *, rounds: int, small: int = 1, has_gone: bool = True, may_lose: int = 0
    ) -> None:
        ids = [peer_named(f"word {index}") for index in range(4 + has_gone)]
        self._honest, self._liar, self._gone = tuple(ids[:3]), ids[3], ids[4:]
        self._names = dict(zip(ids, "ABCLD", strict=False))
        self._rounds, self._may_lose = rounds, may_lose
        seats = tuple(sorted((seat(peer, votes=True) for peer in ids), key=lambda one: one.peer))
        window = tuple(range(START - 3, START + 1))
        self._start = WordsState(Roster(seats=seats, window=window), START, small)

    def start(self) -> WordsState:
        """All vote, and were there until now."""
        return self._start

    def check(self, state: WordsState) -> str:
        """Who lost what, and who is counted on in vain."""
        roster = state.roster
        if not roster.member_set.issuperset(self._honest):
            return "I9: an honest voter loses its seat"
        if len(set(self._honest) - roster.voter_set) > self._may_lose:
            return "I9: an honest voter loses its vote"
        if any(one.set_backs for one in roster.seats if one.peer in self._honest):
            return "R8: an honest voter is set back"
        is_over = state.round >= START + GONE_ROUNDS
        if is_over and roster.voter_set.intersection(self._gone):
            return "R1: who is gone votes for ever"
        return ""

    def moves(self, state: WordsState) -> Iterator[tuple[str, WordsState]]:
        """The next round, with any LIST and any words of the liar."""
        roster, last, small = state
        if last - START >= self._rounds:
            return
        may_lie = liars(len(roster.voters), "open")
        there = [p for p in (*self._honest, self._liar) if p in roster.member_set]
        for listed in chain.from_iterable(combinations(there, n) for n in range(1, 5)):
            is_small = len(set(self._honest) - set(listed)) > may_lie
            if is_small and not small:
                continue
            for words, lie in self._lies(state) if self._liar in listed else (("", None),):
                true = self._commit(roster, self._seen(state), ())
                entries = [
                    rosters.ListedContribution(
                        p, lie if lie and p == self._liar else true, is_proved=True
                    )
                    for p in sorted(listed)
                ]
                after = rosters.next_roster(roster, last + 1, entries, trust="open")
                names = ", ".join(self._names[peer] for peer in listed)
                label = f"round {last + 1} lists {{{names}}}{words}"
                yield label, WordsState(after, last + 1, small - is_small)

    def _seen(self, state: WordsState) -> set[PeerId]:
        """Who was there in the round that COMMITs speak of; D was, in the one before the first."""
        gone = self._gone if state.round == START else []
        return {*self._honest, self._liar, *gone}

    def _lies(self, state: WordsState) -> Iterator[tuple[str, Commit | None]]:
        yield "", None
        seen, roster = self._seen(state), state.roster
        first, *_, last = self._honest
        for peer in (first, last):
            words = f", L denies {self._names[peer]}"
            yield words, self._commit(roster, seen - {peer}, (peer,))
        yield ", L denies all", self._commit(roster, set(), self._honest)
        if self._gone:
            yield ", L vouches for D", self._commit(roster, {*seen, *self._gone}, ())

    @staticmethod
    def _commit(roster: Roster, seen: set[PeerId], lapsed: tuple[PeerId, ...]) -> Commit:
        bits = pack_senders(seen, roster.members)
        body = commit_naming((), bits)
        return replace(body, sealed=bits, lapsed=pack_senders(lapsed, roster.members))
