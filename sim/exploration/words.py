"""R1 over rounds of an open run: who votes, whatever LISTs there are, whatever one liar says.

Every round lists some voters. The honest say truly who was there and who sealed; the liar L, if it
is listed, says so too, or denies one or all, or vouches for D, which is gone from the start. What
may not happen is that an honest voter loses seat or vote, or that who is gone keeps its vote.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from typing import NamedTuple

from protocol.identity import PeerId
from protocol.messages import Commit, Roster
from protocol.rounds import roster as rosters
from protocol.rounds.belief import pack_senders
from protocol.rounds.roster import liars
from sim.exploration.table import seat
from sim.exploration.windows import commit_naming
from sim.world.nodes import peer_named

START = 4
GONE_ROUNDS = 8
"""So many rounds behind its last one at the latest nobody counts on who is gone."""


class WordsState(NamedTuple):
    """The roster after so many rounds, and how many small LISTs there may still be."""

    roster: Roster
    round: int
    small: int


class Words:
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

    def key(self, state: WordsState) -> WordsState:
        """States are values."""
        return state

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
