"""In how many bits a node encodes, where the codec has grades: by what leaves it. Pure.

Nothing is agreed upon: a payload's size tells its grade, and what a coarse one leaves out is kept
in the residual. Who is on a slow line does not hold the others up, who is on a fast one does not
round for nothing.
"""

from dataclasses import dataclass

from training.compression import Codec, with_grades
from training.methods.presets import GRADE_FROM_MBIT

SURELY = 1.25
"""So much more than a grade asks for a line has to send before a finer one is taken: at the edge it
would change with every round."""


@dataclass(frozen=True, slots=True)
class Grading:
    """`bits` per element of the next contribution, 0 where the codec has no grades; and why."""

    bits: int
    why: str


def grading(codec: Codec, before: int, mbit: float | None) -> Grading:
    """`before` are the bits of the last one, 0 of none; `mbit` is what the line sends, None while
    nobody knows."""
    of_grades = with_grades(codec)
    if of_grades is None:
        return Grading(0, "")
    last = before or of_grades.usual
    if mbit is None:
        return Grading(last, "the usual, until enough has been sent to tell")
    fitting = [
        bits
        for bits in of_grades.grades
        if mbit >= GRADE_FROM_MBIT[bits] * (SURELY if bits > last else 1.0)
    ]
    return Grading(max(fitting, default=of_grades.grades[-1]), f"{mbit:.0f} Mbit/s leave this node")
