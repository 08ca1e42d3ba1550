"""Whether the quorum is in reach, and who goes on where it is not (R4). Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from protocol.identity import PeerId
from protocol.messages import Roster
from protocol.rounds.branches import Opening, Position, next_round, provisional_sealers
from protocol.rounds.round_config import RoundConfig


@dataclass(slots=True)
class Reach:
    """For how long the quorum is out of reach; one per RoundMachine.

    Nobody branches off because a link broke for a moment, nor in its first moments: a node that
    was just started has not met anybody yet.
    """

    config: RoundConfig
    me: PeerId
    lost_s: float | None = None
    """Since when no quorum is in reach."""

    def sealers(
        self, position: Position, suspects: Collection[PeerId], *, now_s: float
    ) -> tuple[Opening, frozenset[PeerId]]:
        """The round to work in, and who has to seal it; nobody in particular where it is ordinary.

        An ordinary round whose quorum is out of reach waits for it.
        """
        ordinary = Opening(position.final, is_provisional=False)
        known = {*position.voting.members, *position.seated.members, self.me}
        reachable = known - (set(suspects) - {self.me})
        opening = next_round(
            position, reachable, trust=self.config.trust, survive=self.config.survive
        )
        if opening is None or not opening.is_provisional:
            self.lost_s = None
            return ordinary, frozenset()
        if self.lost_s is None:
            self.lost_s = now_s
        if now_s < self.due_s:
            return ordinary, frozenset()
        return opening, frozenset(provisional_sealers(position, reachable))

    def has_all(self, roster: Roster, suspects: Collection[PeerId]) -> bool:
        """Whether the round is an ordinary one without another look, as nearly always: every voter
        of the round that is final next is in reach, or nobody may branch."""
        if self.config.may_branch:
            if not roster.voter_set.isdisjoint(suspects):
                return False
            self.lost_s = None
        return True

    def has_member(self, roster: Roster, suspects: Collection[PeerId]) -> bool:
        """Whether anybody in reach has a seat there; who went on to a round in which nobody has one
        would leave it at once."""
        return any(peer == self.me or peer not in suspects for peer in roster.members)

    @property
    def due_s(self) -> float:
        """When the grace is over; in the past or never where there is none."""
        return 0.0 if self.lost_s is None else self.lost_s + self.config.grace_s
