"""How far a demo is and how long it has still to go. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from node.demo.swarm_view import SwarmView

_ROUNDS_AVERAGED = 10

MEASURING_SHARE = 0.25
"""Measuring takes about this share of the time that the swarm took: one node's work instead of
four's, on two cores."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """What a display shows. `measured` is the share of the yardstick's work; None before it."""

    view: SwarmView
    now_s: Callable[[], float]
    measured: float | None = None
    measuring_since_s: float = 0.0

    def start_measuring(self) -> None:
        """The swarm is done; the yardstick begins."""
        self.measured, self.measuring_since_s = 0.0, self.now_s()

    def tell_measured(self, share: float) -> None:
        """So much of the yardstick's work is done."""
        self.measured = share


def time_left_s(scene: Scene) -> float | None:
    """Seconds to go, guessed from the rounds so far; None before there are two."""
    if scene.measured is not None:
        if scene.measured <= 0.02:
            return None
        spent_s = scene.now_s() - scene.measuring_since_s
        return spent_s * (1.0 - scene.measured) / scene.measured
    times_s = [sealed.at_s for sealed in scene.view.rounds.values()]
    recent_s = times_s[-_ROUNDS_AVERAGED:]
    if len(recent_s) < 2:
        return None
    per_round_s = (recent_s[-1] - recent_s[0]) / (len(recent_s) - 1)
    left_s = per_round_s * (scene.view.num_rounds - len(times_s))
    # The guess falls while nothing is sealed, but not below what is certain to come.
    left_s = max(left_s - (scene.now_s() - recent_s[-1]), left_s - per_round_s, 0.0)
    return left_s + MEASURING_SHARE * per_round_s * scene.view.num_rounds


def tell_duration(seconds: float | None) -> str:
    """About how long, for people."""
    if seconds is None:
        return "time left: not known yet"
    if seconds < 10:
        return "a few seconds left"
    if seconds < 90:
        return f"about {5 * round(seconds / 5)} s left"
    return f"about {round(seconds / 60)} min left"


def megabytes(num_bytes: int) -> str:
    """Bytes as decimal megabytes."""
    return f"{num_bytes / 1e6:.1f} MB"


def sparkline(values: list[float], width: int) -> str:
    """The last `width` values as a row of bars; a lower value is a lower bar."""
    bars = "▁▂▃▄▅▆▇█"
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(bars[round((value - low) * scale)] for value in shown)
