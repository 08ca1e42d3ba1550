"""What the listed COMMITs of a round say of round r - L: who was there, who sealed, who kept others
waiting (R1, R8). Pure.

Who is absent follows from no LIST. Whom a LIST names is the choice of one closer, made from what a
few reducers say that they hold, so that one of them would have the say over the seat of another.
It follows from the words of more members than may lie, said a round later, when what was late has
come.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Commit, Roster, SeatRecord
from protocol.rounds.bit_maps import unpack_senders

SET_BACK_ROUNDS = 8
"""So long who kept others waiting comes last among reducers and closers (R8); twice as long where
it does so again within as many rounds after that."""


class CommitReports:
    """What `commits`, listed in round `round_index` of that roster, say; they are those of the
    members whose word on others counts, of whom `may_lie` may lie. `lag` is L."""

    def __init__(
        self,
        roster: Roster,
        commits: Sequence[Commit],
        round_index: int,
        *,
        may_lie: int,
        lag: int,
    ) -> None:
        self._roster, self._round, self._lag, self._may_lie = roster, round_index, lag, may_lie
        size = -(-len(roster.seats) // 8)
        said = [commit for commit in commits if len(commit.committed) == size]
        self._num_words = len(said)
        self._committed = self._count([commit.committed for commit in said])
        self._sealed = self._count([commit.sealed for commit in said])
        self._lapsed = self._count([commit.lapsed for commit in said])

    def _count(self, maps: Sequence[bytes]) -> Counter[PeerId]:
        members, counts = self._roster.members, Counter[PeerId]()
        for bits, number in Counter(maps).items():  # Most say the same.
            for peer in unpack_senders(bits, members):
                counts[peer] += number
        return counts

    def says_sealed(self, peer: PeerId) -> bool:
        """Whether enough say that its SEAL of round r - L is of what became final."""
        return self._sealed[peer] > self._may_lie

    def absences(self, seat: SeatRecord) -> int:
        """How many rounds in a row too few have seen a COMMIT of a member that is not listed now.

        Nobody is charged where so few words are listed that those of liars may be half of them, nor
        for a round in which it had no seat.
        """
        was_seated = seat.seated <= self._round - 2 * self._lag
        if self._num_words <= 2 * self._may_lie or self._round <= self._lag or not was_seated:
            return seat.absent
        return 0 if self._committed[seat.peer] > self._may_lie else seat.absent + 1

    def with_set_back(self, seat: SeatRecord) -> SeatRecord:
        """The seat, set back if enough say that it kept them waiting."""
        if self._lapsed[seat.peer] <= self._may_lie:
            return seat
        last = SET_BACK_ROUNDS << max(0, seat.set_backs - 1)
        if seat.set_backs and self._round < seat.set_back_until - last + 2 * self._lag:
            return seat  # That round began before it was set back.
        is_again = seat.set_backs and self._round <= seat.set_back_until + last
        count = min(seat.set_backs + 1, limits.SET_BACKS_MAX) if is_again else 1
        until = min(self._round + (SET_BACK_ROUNDS << (count - 1)), limits.ROUNDS_MAX)
        return replace(seat, set_backs=count, set_back_until=until)
