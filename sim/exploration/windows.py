"""R1 over many rounds: who votes when the shipped roster rule follows any sequence of LISTs.

Every round lists any subset of the living, or nobody; the others came too late, so that nobody saw
them. Whoever is listed says whom it saw in the round before, and may have proved that it sealed
that, or not. Whoever has no seat asks for one, and is
named. The living must stay a quorum though nobody died since.

With some who wait for a seat all take turns. One may die at any time, if the others are a quorum
then; in each round at most one of the living is late or proves nothing, and not twice in a row.
(Where that happens a swarm that takes no turns may come to no quorum either: whoever was late twice
has no seat, and then somebody else dies.)
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from protocol.identity import PeerId
from protocol.manifest import NO_ADMISSION, AdmissionSpec
from protocol.messages import Commit, Roster, SeatRecord
from protocol.rounds import roster as rosters
from protocol.rounds.belief import pack_senders
from protocol.rounds.turns import TURN_ROUNDS
from sim.exploration.table import LETTERS
from sim.world.nodes import peer_named


class WindowState(NamedTuple):
    """The roster after so many rounds, who is dead, and whom the last round saw."""

    roster: Roster
    round: int
    dead: frozenset[PeerId]
    seen: frozenset[PeerId]


class Windows:
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

    def key(self, state: WindowState) -> WindowState:
        """States are values."""
        return state

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
        gone=gone,
        bans=(),
        is_past_end=False,
        committed=committed,
        sealed=bytes(len(committed)),
        lapsed=bytes(len(committed)),
    )
