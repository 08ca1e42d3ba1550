"""R1 over many rounds: who votes when the shipped roster rule follows any sequence of LISTs.

Every round lists any subset of the living, or nobody; the others came too late. Whoever is listed
may have proved that it sealed the round before, or not. Whoever lost its seat asks for a new one,
and is named. The living must stay a quorum though nobody died since.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from node.rules import roster as rosters
from protocol.identity import PeerId
from protocol.messages import Commit, Roster, SeatRecord
from sim.exploration.table import LETTERS
from sim.nodes import peer_named


class State(NamedTuple):
    """The roster after so many rounds."""

    roster: Roster
    round: int


class Windows:
    """Voters A, B, C, ...; A, the founder, is dead from the start if `is_founder_dead`."""

    def __init__(self, *, voters: int, rounds: int, is_founder_dead: bool = True) -> None:
        peers = sorted(peer_named(f"window {index}") for index in range(voters))
        self._names = {peer: LETTERS[index] for index, peer in enumerate(peers)}
        self._living = peers[1:] if is_founder_dead else peers
        self._rounds = rounds
        seats = tuple(
            SeatRecord(peer=peer, seated=0, voter_since=0, proved=4, absent=0) for peer in peers
        )
        self._start = State(Roster(seats=seats, window=(1, 2, 3, 4)), 4)

    def start(self) -> State:
        """All vote, and were listed in each of the last four rounds."""
        return self._start

    def key(self, state: State) -> State:
        """States are values."""
        return state

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        """The next round is final, with any LIST, if the living are a quorum."""
        roster, before = state
        if before - self._start.round >= self._rounds or not self._is_quorum(roster):
            return
        seated = [peer for peer in roster.members if peer in self._living]
        joins = tuple(peer for peer in self._living if peer not in roster.members)
        commit = commit_naming(joins)
        for kinds in product((None, True, False), repeat=len(seated)):
            listed = [
                rosters.Listed(peer, commit, is_proved=is_proved)
                for peer, is_proved in zip(seated, kinds, strict=True)
                if is_proved is not None
            ]
            after = rosters.next_roster(roster, before + 1, listed, trust="friends")
            names = ", ".join(
                self._names[entry.sender] + ("" if entry.is_proved else " without its SEAL")
                for entry in listed
            )
            label = f"round {before + 1 - self._start.round} lists {{{names}}}"
            yield label, State(after, before + 1)

    def check(self, state: State) -> str:
        """L1: there are voters, and the living are a quorum of them."""
        electorate = rosters.voters(state.roster)
        if not electorate:
            return "L1: nobody votes any more"
        if not self._is_quorum(state.roster):
            names = ", ".join(self._names[peer] for peer in electorate)
            return f"L1: of the voters {names} no quorum is alive, though nobody died since"
        return ""

    def _is_quorum(self, roster: Roster) -> bool:
        return bool(rosters.voters(roster)) and rosters.has_quorum(
            roster, self._living, trust="friends"
        )


def commit_naming(joins: tuple[PeerId, ...]) -> Commit:
    """A COMMIT that says nothing but who asks for a seat."""
    return Commit(
        root=bytes(32),
        cell_norms=(1.0,),
        tokens=10,
        samples=10,
        steps=10,
        base=bytes(32),
        residual_before=bytes(32),
        residual_after=bytes(32),
        seal=b"",
        joins=joins,
        suspects=(),
        gone=(),
        bans=(),
        is_past_end=False,
    )
