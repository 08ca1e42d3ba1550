"""R1 where voters leave by themselves: the shipped roster rule, and the shipped word on who may go.

A voted alone so far; all others have a seat, since the first round or a later one. Each may say
that it leaves, and then works on until the others no longer need it. Meanwhile in every round at
most one of those who are there is late or proves nothing, not twice in a row, and one peer may die
wherever the rest is a quorum. What must not happen: that those who are there, leavers that stay
included, are no quorum though nobody died since; or that somebody works on for ever, though those
who stay are all in time.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from protocol.identity import PeerId
from protocol.messages import Roster, SeatRecord
from protocol.rounds import roster as rosters
from protocol.rounds.belief import pack_senders
from sim.exploration.table import LETTERS
from sim.exploration.windows import commit_naming
from sim.world.nodes import peer_named

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


class LeavingModel:
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

    def key(self, state: LeavingState) -> LeavingState:
        """States are values."""
        return state

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
