"""Who had a seat and never contributed to a round: it waits longer each time it asks again. Pure.

A proof that a state is held can be made for any number of keys by one who holds it. Such a key is
seated once, is not waited for, and loses its seat; each voter of an open run remembers that by
itself. Friends make up no keys.
"""

from protocol.identity import PeerId
from protocol.messages import Roster

IDLERS_MAX = 4096
"""So many are remembered, the last ones."""

DOUBLINGS_MAX = 12


class Idlers:
    """Of one node: how often each idle key was seated, and until when its next seat waits."""

    def __init__(self) -> None:
        self._known: dict[PeerId, tuple[int, int]] = {}

    def saw(self, before: Roster, after: Roster, round_index: int) -> None:
        """The round was sealed: who has lost its seat without one SEAL that anybody saw."""
        for seat in before.seats:
            if seat.peer in after.member_set:
                if seat.proved >= 0:
                    self._known.pop(seat.peer, None)
                continue
            if seat.proved < 0:
                count, _ = self._known.pop(seat.peer, (0, 0))
                count = min(count + 1, DOUBLINGS_MAX)
                self._known[seat.peer] = (count, round_index + (1 << count))
        while len(self._known) > IDLERS_MAX:
            del self._known[next(iter(self._known))]

    def unwelcome(self, round_index: int) -> frozenset[PeerId]:
        """Who is not named for a seat in that round."""
        if not self._known:
            return frozenset()
        return frozenset(p for p, (_, until) in self._known.items() if round_index <= until)
