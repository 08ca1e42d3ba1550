"""Two rounds in flight (R5): training goes on while a fragment is on its way.

N elements of a fragment

Streaming DiLoCo (Douillard et al. 2025) takes an outcome over within the next round. A turn names
the round to go on for, behind each hand-over; outcomes bring anchors and residuals alone.
"""

from collections.abc import Callable

from typing_extensions import override

from training.channel.exchange import Exchange, Outcome, Turn
from training.methods.method import METHODS, Due, Method, MethodSetting, Vector


class InFlight(Method):
    """After H steps hand over the fragment round mod F and go on; its outcome is taken over `tau`
    steps later, or as soon as it is here, and training goes on from the anchor.

    H is that of a round: of the paper's H / P, in which tau steps must fit.
    """

    def __init__(self, setting: MethodSetting) -> None:
        super().__init__(setting)
        self._overlap, self._tau = setting.spec.overlap, setting.tau

    @override
    def due(self, local_step: int, round_index: int) -> Due:
        if local_step == self._inner_steps:
            begin = (round_index % self._num_fragments,)
            return Due(begin=begin, take=begin if self._tau == 0 else ())
        take = ((round_index - 1) % self._num_fragments,) if local_step >= self._tau else ()
        return Due(take=take)

    @override
    def sent_weights(self, local_N: Vector) -> Vector | None:
        return local_N

    @override
    def next_turn(self, exchange: Exchange) -> Turn | None:
        return exchange.proceed()

    @override
    def is_awaited(self, round_index: int, turn: Turn) -> bool:
        is_before = turn.clock.round - self._overlap < round_index < turn.clock.round
        return bool(turn.lease) and is_before

    @override
    def is_over(self, round_index: int, turn: Turn) -> bool:
        return round_index in turn.listed or round_index <= turn.clock.round - self._overlap

    @override
    def next_round(self, outcome: Outcome) -> Turn | None:
        return None

    @override
    def keeps_weights(self, fragment: int, contributed: int) -> bool:
        return True

    @override
    def newest_kept(self, next_round: int) -> int:
        return next_round + self._overlap - 1


METHODS.register("in_flight", InFlight)


class AtOnce(InFlight):
    """In a run that will have two rounds in flight by a later method: each outcome is awaited
    before the next round is trained for, and what was in flight before a hand-over."""

    @override
    def due(self, local_step: int, round_index: int) -> Due:
        begin = Method.due(self, local_step, round_index).begin
        return Due(join=begin, begin=begin, finish=begin)


METHODS.register("at_once", AtOnce)


class Streaming(InFlight):
    """What was trained while the fragment was in flight stays, whole, on the new anchor.

        theta_r <- theta + (theta_r - what was sent)

    The round has nothing of it, and the next one has it: nothing is lost or counted twice. The
    paper's blend keeps a share of it, and the same share of what the outer step made of the drift
    before.
    """

    @override
    def take_in(
        self, round_index: int, outcome: Outcome, local: Callable[[], Vector], sent_N: Vector | None
    ) -> Vector:
        """The anchor, as far from it as training went since; after a restart the anchor itself."""
        if sent_N is None or not outcome.listed:
            return outcome.anchor_N
        carried_N: Vector = outcome.anchor_N + (local() - sent_N)
        return carried_N


METHODS.register("streaming", Streaming)
