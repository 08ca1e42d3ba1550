"""An attack of one's own: `python -m examples.own_attack` plays it against two rules.

H honest peers, B liars, N elements of a contribution
"""

import numpy as np

from sim.attacks.seam import ATTACKS, Attack, Context, Rows, Vector, mean_of, repeated
from sim.robustness.game import LyingStage, play, rule_named


class FlipLargest(Attack):
    """The mean of what is seen, with its largest coordinates reversed and enlarged."""

    def __init__(self, *, blind: bool = False, share: float = 0.1, size: float = 5.0) -> None:
        super().__init__(blind=blind)
        self._share, self._size = share, size

    def craft(self, honest_HN: Vector, own_BN: Vector, context: Context) -> Rows:
        """The same vector from every liar; `honest_HN` is their own work if they are blind."""
        del context
        sent_N = mean_of(honest_HN)
        count = max(1, round(self._share * len(sent_N)))
        largest = np.argsort(np.abs(sent_N), kind="stable")[-count:]
        sent_N[largest] *= -self._size
        return repeated(sent_N, own_BN)


ATTACKS.register("flip_largest", FlipLargest)

if __name__ == "__main__":
    for name in ("mean", "default"):
        course = play(LyingStage(), FlipLargest(), rule_named(name), seed=0)
        print(f"{name:16}loss {course.losses[0]:.3f} -> {course.loss_last:.3f} under flip_largest")
