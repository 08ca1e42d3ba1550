"""SEAM Schedule: which fragment is handed over, and which is awaited, at which local step."""

from dataclasses import dataclass
from typing import Protocol

from training.numeric.registry import Registry


@dataclass(frozen=True, slots=True)
class Due:
    """What follows a local step: fragments to hand over, then fragments to await, in order.

    The outcome of `take` is taken over if it is here; if not, it is asked for again at a later
    step, and awaited at the end of the round. That of `join` is of the round before on a fragment
    of `begin`, and awaited before that is handed over again.
    """

    join: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    finish: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


class Schedule(Protocol):
    """SEAM: asked by the loop after every inner step. Pure: equal arguments, equal answer."""

    def due(self, local_step: int, round_index: int) -> Due:
        """What is due after `local_step` (1..H) inner steps of round `round_index`."""
        ...


SCHEDULES: Registry[Schedule] = Registry("schedule")
"""Factories `(inner_steps, num_fragments)`."""


class EveryH:
    """DiLoCo: after H steps hand over the fragment round mod F and wait for it at once (R5)."""

    def __init__(self, inner_steps: int, num_fragments: int) -> None:
        self._inner_steps = inner_steps
        self._num_fragments = num_fragments

    def due(self, local_step: int, round_index: int) -> Due:
        """See Schedule."""
        if local_step < self._inner_steps:
            return Due()
        fragment = round_index % self._num_fragments
        return Due(begin=(fragment,), finish=(fragment,))


SCHEDULES.register("every_h", EveryH)


class AtOnce(EveryH):
    """`EveryH` in a run that will have two rounds in flight: each outcome is awaited before the
    next round is trained for, and what was in flight before a hand-over."""

    def due(self, local_step: int, round_index: int) -> Due:
        """See Schedule."""
        begin = super().due(local_step, round_index).begin
        return Due(join=begin, begin=begin, finish=begin)


SCHEDULES.register("at_once", AtOnce)


class InFlight:
    """Streaming DiLoCo: after H steps hand over the fragment round mod F and go on; its outcome is
    taken over `tau` steps later, or as soon as it is here (R5).

    H is that of a round: of the paper's H / P, in which tau steps must fit.
    """

    def __init__(self, inner_steps: int, num_fragments: int, tau: int = 0) -> None:
        self._inner_steps = inner_steps
        self._num_fragments = num_fragments
        self._tau = tau

    def due(self, local_step: int, round_index: int) -> Due:
        """See Schedule."""
        if local_step == self._inner_steps:
            begin = (round_index % self._num_fragments,)
            return Due(begin=begin, take=begin if self._tau == 0 else ())
        take = ((round_index - 1) % self._num_fragments,) if local_step >= self._tau else ()
        return Due(take=take)


SCHEDULES.register("in_flight", InFlight)


class Delayed(EveryH):
    """One-step delay: after H steps await the round before, hand over what was trained beside it,
    and go on from the anchor that the round before led to (R5).

    The order is that of PCCL's example of asynchronous DiLoCo. A round is about the whole model.
    """

    def due(self, local_step: int, round_index: int) -> Due:
        """See Schedule."""
        begin = super().due(local_step, round_index).begin
        return Due(join=begin, begin=begin)


SCHEDULES.register("delayed", Delayed)
