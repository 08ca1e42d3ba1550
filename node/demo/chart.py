"""The loss chart: its scales for both pictures, and its drawing as inline SVG. Pure."""

import math
from dataclasses import dataclass
from html import escape

from node.demo.result import Curve, DemoResult

_WIDTH, _HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 118, 40, 46
_LABEL_GAP = 20
"""Pixels between two labels at the line ends, so that they can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened in a round."""

    kind: str
    round: int
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A curve, and what stands at its end."""

    kind: str
    label: str
    curve: Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What the axes span. The chart is cut off above `loss_high`, where every curve is steep."""

    rounds: int
    loss_low: float
    loss_high: float
    ticks: tuple[float, ...]


def scales(swarm: Curve, alone: Curve) -> Scales | None:
    """Axes that leave the difference at the end visible; None without a point."""
    points = [*swarm, *alone]
    if not points:
        return None
    rounds = max(1, max(index for index, _ in points))
    # Genesis guesses every byte alike: a loss so high that it would press all else flat.
    steep = max(1, round(rounds * 0.04))
    tail = [loss for index, loss in points if index >= steep] or [loss for _, loss in points]
    low, high = min(tail), max(tail)
    step = _nice_step((high - low) / 6 or 0.1)
    low = math.floor((low - 0.15 * step) / step) * step
    high = math.ceil((high + 0.15 * step) / step) * step
    count = round((high - low) / step)
    ticks = tuple(round(low + index * step, 6) for index in range(count + 1))
    return Scales(rounds=rounds, loss_low=low, loss_high=high, ticks=ticks)


def marks(result: DemoResult) -> list[Mark]:
    """The kill and the late arrival, by round."""
    found = []
    if result.killed_round is not None:
        label = f"{result.killed} killed"
        found.append(Mark(kind="kill", round=result.killed_round.round, label=label))
    if result.late_round is not None:
        label = f"{result.late_name} contributes"
        found.append(Mark(kind="late", round=result.late_round, label=label))
    return sorted(found, key=lambda mark: mark.round)


def endings(result: DemoResult) -> list[Ending]:
    """Both curves with what stands at their ends, the upper first; none without points."""
    found = [
        Ending(kind=kind, label=f"{kind} {curve[-1][1]:.3f}", curve=curve)
        for kind, curve in (("swarm", result.swarm), ("alone", result.alone))
        if curve
    ]
    return sorted(found, key=lambda ending: ending.curve[-1][1], reverse=True)


def draw_chart(result: DemoResult) -> str:
    """The chart as one `<svg>`; colours come from the page's style sheet."""
    spans = scales(result.swarm, result.alone)
    if spans is None:
        return '<p class="muted">Nothing was measured.</p>'
    drawing = _Drawing(spans)
    return "\n".join(
        [
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="chart-title">',
            '<title id="chart-title">Validation loss by round: the swarm, and one node alone'
            "</title>",
            f'<clipPath id="plot"><rect x="{_LEFT}" y="{_TOP}" '
            f'width="{_WIDTH - _LEFT - _RIGHT}" height="{_HEIGHT - _TOP - _BOTTOM}"/></clipPath>',
            *drawing.axes(),
            *drawing.marks(marks(result)),
            drawing.line(result.alone, "alone"),
            drawing.line(result.swarm, "swarm"),
            *drawing.dots(result.alone, "alone", "one node alone"),
            *drawing.dots(result.swarm, "swarm", "swarm"),
            *drawing.end_labels(endings(result)),
            "</svg>",
        ]
    )


class _Drawing:
    """Elements of the SVG in the coordinates of one pair of scales."""

    def __init__(self, spans: Scales) -> None:
        self._spans = spans

    def _x(self, index: float) -> float:
        return _LEFT + index / self._spans.rounds * (_WIDTH - _LEFT - _RIGHT)

    def _y(self, loss: float) -> float:
        share = (loss - self._spans.loss_low) / (self._spans.loss_high - self._spans.loss_low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def axes(self) -> list[str]:
        """Grid lines with their numbers, and what is measured."""
        parts = []
        decimals = max(len(f"{tick:g}".partition(".")[2]) for tick in self._spans.ticks)
        for tick in self._spans.ticks:
            y = self._y(tick)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
                f'y1="{y:.1f}" y2="{y:.1f}"/>'
            )
            parts.append(
                f'<text class="tick" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">'
                f"{tick:.{decimals}f}</text>"
            )
        parts += [
            f'<text class="tick" x="{self._x(index):.1f}" y="{_HEIGHT - _BOTTOM + 20}" '
            f'text-anchor="middle">{index}</text>'
            for index in _round_ticks(self._spans.rounds)
        ]
        middle = (_LEFT + _WIDTH - _RIGHT) / 2
        parts.append(
            f'<text class="tick" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">'
            "rounds sealed</text>"
        )
        return parts

    def marks(self, marks: list[Mark]) -> list[str]:
        """A line and a label for each; neighbours' labels stand on two rows."""
        parts = []
        for row, mark in enumerate(marks):
            x = self._x(mark.round)
            y = _TOP - 24 + 16 * (row % 2)
            # The later one's label goes to the right of its line, so that both stay apart.
            side, shift = ("end", -6) if row < len(marks) - 1 else ("start", 6)
            parts.append(
                f'<line class="mark {mark.kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 10}" '
                f'y2="{_HEIGHT - _BOTTOM}"/>'
                f'<text class="label {mark.kind}" x="{x + shift:.1f}" y="{y}" '
                f'text-anchor="{side}">{escape(mark.label)}</text>'
            )
        return parts

    def line(self, curve: Curve, kind: str) -> str:
        """The curve, cut off at the top."""
        points = " ".join(f"{self._x(index):.1f},{self._y(loss):.1f}" for index, loss in curve)
        return f'<polyline class="line {kind}" points="{points}" clip-path="url(#plot)"/>'

    def dots(self, curve: Curve, kind: str, name: str) -> list[str]:
        """Each point, with its numbers when one rests on it."""
        return [
            f'<circle class="dot {kind}" r="3.5" '
            f'cx="{self._x(index):.1f}" cy="{self._y(loss):.1f}">'
            f"<title>round {index}: {name} {loss:.3f}</title></circle>"
            for index, loss in curve
            if loss <= self._spans.loss_high
        ]

    def end_labels(self, endings: list[Ending]) -> list[str]:
        """Name and final loss beside the end of each curve, never on top of each other."""
        parts = []
        lowest_y = -math.inf
        for ending in endings:
            index, loss = ending.curve[-1]
            y = max(self._y(loss) + 4, lowest_y + _LABEL_GAP)
            lowest_y = y
            parts.append(
                f'<text class="label {ending.kind}" x="{self._x(index) + 8:.1f}" y="{y:.1f}">'
                f"{escape(ending.label)}</text>"
            )
        return parts


def _nice_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if rough <= power * factor * 1.0001)


def _round_ticks(rounds: int) -> list[int]:
    step = max(1, math.ceil(_nice_step(rounds / 8)))
    return list(range(0, rounds + 1, step))
