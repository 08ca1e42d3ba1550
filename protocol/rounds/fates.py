"""What became of the own contributions: what a trainer must hear of them (R6). Pure.

A trainer may be late: rounds end while it is busy with one, or while it is being started. So what
each seal said is kept until the trainer takes it over.
"""

from protocol import events as ev


class Fates:
    """Rounds from `since` on are told of; behind a resync nothing that was before counts."""

    def __init__(self) -> None:
        self.since = -1
        """The first round of which it is known whether it lists us; -1 before the first Train."""
        self._listed: set[int] = set()
        self._names: dict[int, bytes] = {}
        """By round what names it, of those whose seals were told since the trainer took one over:
        of the same number there may be one on each branch (R4)."""
        self._in_hand = -1
        """The round that the trainer works for."""
        self._is_astray = False
        """Whether a resync led to that round or before it, so that it is of another branch (R4)."""
        self._basis: bytes | None = None
        """The round that took what the trainer made, by the seal that it follows."""

    def hear(self, action: ev.Train) -> None:
        """Take every Train action in, in order."""
        sealed = action.certificate.value.round
        if action.is_resync:
            self._is_astray |= self._in_hand > sealed
            self.since = sealed + 1
            self._listed.clear()
            self._names.clear()
            return
        if self.since < 0:
            self.since = sealed
        self._names[sealed] = action.certificate.value.basis
        if action.was_listed:
            self._listed.add(sealed)

    @property
    def listed(self) -> tuple[int, ...]:
        """The rounds whose seals list the own contribution, ascending."""
        return tuple(sorted(self._listed))

    @property
    def names(self) -> tuple[bytes, ...]:
        """What names the rounds that are over, for a trainer that begins: what it kept of a round
        of another name is of a branch that was left."""
        return tuple(self._names.values())

    def was_listed(self, round_index: int) -> bool:
        """Whether the seal of that round lists the own contribution."""
        return round_index in self._listed

    def is_behind(self, round_index: int) -> bool:
        """Whether a resync left that round behind: what it gave belongs to weights long gone."""
        return self._is_astray or round_index < self.since

    @property
    def is_astray(self) -> bool:
        """Whether the trainer works for a round of a branch that was left, and has not heard it."""
        return self._is_astray

    def contributed(self, basis: bytes) -> None:
        """What the trainer made is for the round behind that seal, which is under way, if only
        again: a branch that was left came back."""
        self._is_astray, self._basis = False, basis

    def is_pending(self, basis: bytes) -> bool:
        """Whether the round behind that seal has the contribution: only its own seal is an answer,
        not that the branch was left and came back."""
        return self._basis == basis

    def taken_over(self, round_index: int, sealed: int | None = None) -> None:
        """The trainer works for that round, and knows what became of the rounds before it; with
        two in flight (R5) of those up to `sealed`."""
        known = round_index - 1 if sealed is None else sealed
        self._listed = {index for index in self._listed if index > known}
        self._names.clear()
        self._in_hand, self._is_astray, self._basis = round_index, False, None
