"""A delay of a whole round: each is trained beside the exchange of the one before, and both are
about the whole model (PCCL's example of asynchronous DiLoCo, DiLoCoX, CO2; Kale et al. 2025).

N elements of the model
"""

from collections.abc import Callable

import numpy as np
from typing_extensions import override

from training.channel.exchange import Exchange, Outcome, Turn
from training.methods.method import METHODS, Due, Method, MethodSetting, Vector
from training.outer.optimizers import OuterInfo, Slots, make_outer

# In flight ----------------------------------------------------------------------------------------
#
# Two rounds in flight (R5): training goes on while a fragment is on its way. Streaming DiLoCo
# (Douillard et al. 2025) takes an outcome over within the next round. A turn names the round to go
# on for, behind each hand-over; outcomes bring anchors and residuals alone.


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


# Delayed ------------------------------------------------------------------------------------------


class Delayed(InFlight):
    """After H steps await the round before, hand over what was trained beside it, and go on from
    the anchor that the round before led to (R5).

    The order is that of PCCL's example. Drift counts from the weights that a round began with, and
    a contribution is to that version of the anchor, whatever is the newest.
    """

    @override
    def due(self, local_step: int, round_index: int) -> Due:
        begin = Method.due(self, local_step, round_index).begin
        return Due(join=begin, begin=begin)

    @override
    def weights_ahead(
        self, anchor_N: Vector, own: Callable[[], Vector], members: int
    ) -> Vector | None:
        """The anchor: the own contribution comes back one round later, in the mean."""
        return anchor_N

    @override
    def sent_weights(self, local_N: Vector) -> Vector | None:
        return None

    @override
    def newest_kept(self, next_round: int) -> int:
        # Who waited for the outcome of the round before has handed over no later one without it.
        return next_round

    @override
    def is_same_version(self, digest: bytes, anchor_N: Vector) -> bool:
        return True

    @override
    def weights_behind(
        self, round_index: int, fragment: int, local_N: Vector, anchor_N: Vector
    ) -> Vector | None:
        return local_N

    @override
    def began_with(self, local_N: Vector) -> Vector | None:
        return local_N


METHODS.register("delayed", Delayed)


class Eager(Delayed):
    """Eager updates: the own share of a mean is applied at once, that of the others one round late
    (Kale et al. 2025).

    Replica r steps with (own of round t + others of round t - 1) / R. The outer optimizers are
    linear in what they are given, so this is the common anchor, which has all up to round t - 1,
    and behind it the own steps ahead of the mean, with a momentum of their own:

        u <- mu u + own / R;   theta_r <- theta - lr (own / R + mu u)

    What runs ahead is forgotten with the next anchor, which has it. So a restart, which begins with
    u = 0, takes nothing from the run. Alone (R = 1) this is the step that the swarm will take.
    """

    def __init__(self, setting: MethodSetting) -> None:
        super().__init__(setting)
        self._outer = make_outer(setting.spec)
        self._slots: Slots = {}
        self._slots_after: Slots = {}

    @override
    def take_in(
        self, round_index: int, outcome: Outcome, local: Callable[[], Vector], sent_N: Vector | None
    ) -> Vector:
        """The anchor: it has what ran ahead, which is from now on part of the momentum."""
        if outcome.listed:
            self._slots = self._slots_after
        return outcome.anchor_N

    @override
    def weights_ahead(
        self, anchor_N: Vector, own: Callable[[], Vector], members: int
    ) -> Vector | None:
        """The anchor with the own step on it."""
        share_N = own() * np.float32(1.0 / max(1, members))
        step = self._outer.step(anchor_N, share_N, OuterInfo(round=0, slots=self._slots))
        self._slots_after = step.slots
        return step.anchor_N


METHODS.register("eager", Eager)
