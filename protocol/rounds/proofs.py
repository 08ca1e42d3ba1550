"""Whose proof for a seat is checked next, and who gave a wrong one (R11). Pure.

Anybody makes up keys, and a check takes a hash over the whole state. So there is one at a time, in
the order of the round: however many ask, and whoever comes first, all have the same chance. In open
runs a key that gave a wrong proof is not heard again for long: who crowds others out pays for a
join puzzle with each check, and not once for ever.
"""

from collections.abc import Iterable

from protocol.events import CheckSeat
from protocol.identity import PeerId
from protocol.messages import Kind, Seat
from protocol.rounds.rates import Rates
from protocol.rounds.round_view import RoundView
from protocol.rounds.turns import in_turn

SHUT_ROUNDS = 64
"""So long nobody hears the SEATs of whose proof was wrong."""

SHUT_MAX = 4096
"""Keys that are remembered for it."""


class Proofs:
    """The proofs that one node looks at: in open runs of peers with which it has a link itself. One
    who holds the state can prove it for any number of keys, and a proof is no sign of life."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._is_checking = False
        self._wrong: dict[PeerId, int] = {}
        """Whose proof was wrong, and in which round."""

    def next(self, views: Iterable[RoundView]) -> list[CheckSeat]:
        """The proof to look at now, if there is one and none is looked at."""
        if self._is_checking:
            return []
        for view in views:
            if view.is_beside:
                continue  # A SEAT shows the state of the seal before, which is not here yet (R5).
            asking = view.ballots.of(Kind.SEAT)
            waiting = asking.keys() - view.seats_checked - {view.me}
            if view.trust == "open" and "links" not in view.without:
                waiting &= set(self._rates.linked)
            if waiting:
                peer = in_turn(view.index, waiting)[0]
                body = asking[peer].body
                assert isinstance(body, Seat)
                view.seats_checked.add(peer)
                self._is_checking = True
                return [CheckSeat(peer, view.basis, body.proof)]
        return []

    def checked(self, peer: PeerId, view: RoundView | None, is_proved: bool | None) -> None:
        """What came of it; `view` is None where that round is over."""
        self._is_checking = False
        if view is None or is_proved is None:
            return
        if is_proved:
            view.proven_seats.add(peer)
            return
        if view.trust != "open":
            return  # Among friends it may be of another branch (R4), and nobody makes up keys.
        self._wrong[peer] = view.index
        if len(self._wrong) > SHUT_MAX:
            del self._wrong[next(iter(self._wrong))]

    def is_shut(self, peer: PeerId, round_index: int) -> bool:
        """Whether SEATs of that peer are not heard in that round."""
        return peer in self._wrong and round_index - self._wrong[peer] < SHUT_ROUNDS
