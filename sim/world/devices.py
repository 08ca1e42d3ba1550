"""What a node runs on: how fast it trains and computes, when it naps, what its clocks show."""

from dataclasses import dataclass

Seconds = tuple[float, float]
"""A range from which a duration is drawn, uniformly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One machine. The defaults are a desktop that does nothing else.

    `train_s` is a round's training, `compute_s` one task of the worker thread, `ready_s` the start
    of the trainer. Its monotonic clock runs `clock_rate` times as fast as the world's; its wall
    clock is `wall_offset_s` ahead. With chance `nap` a round of training is interrupted: the whole
    machine stands still for `nap_s`, as a laptop whose lid is closed.
    """

    train_s: Seconds = (0.8, 1.4)
    compute_s: Seconds = (0.005, 0.015)
    ready_s: Seconds = (0.1, 0.5)
    checkpoint_s: Seconds = (0.0, 1.0)
    """From an adopted round to its checkpoint; what is adopted meanwhile replaces it."""

    clock_rate: float = 1.0
    wall_offset_s: float = 0.0
    nap: float = 0.0
    nap_s: Seconds = (1.0, 6.0)

    def __post_init__(self) -> None:
        for name in ("train_s", "compute_s", "ready_s", "checkpoint_s", "nap_s"):
            low, high = getattr(self, name)
            if not 0.0 <= low <= high:
                raise ValueError(f"{name}: {low}..{high} is no range of seconds")
        if not 0.1 <= self.clock_rate <= 10.0:
            raise ValueError(f"clock_rate: {self.clock_rate} is not within 0.1..10")
        if not 0.0 <= self.nap <= 1.0:
            raise ValueError(f"nap: {self.nap} is no chance")


@dataclass(frozen=True, slots=True)
class Clock:
    """A machine's monotonic clock: where it started, and how fast it runs."""

    offset_s: float
    rate: float

    def own_s(self, world_s: float) -> float:
        """What it shows at that time of the world."""
        return self.offset_s + self.rate * world_s

    def world_s(self, own_s: float) -> float:
        """The time of the world at which it shows that."""
        return (own_s - self.offset_s) / self.rate
