"""SEAM Schedule: which fragment is handed over, and which is awaited, at which local step."""

from dataclasses import dataclass
from typing import Protocol

from training.registry import Registry


@dataclass(frozen=True, slots=True)
class Due:
    """What follows a local step: fragments to hand over, then fragments to await, in order."""

    begin: tuple[int, ...] = ()
    finish: tuple[int, ...] = ()


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
