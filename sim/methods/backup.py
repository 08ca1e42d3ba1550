"""Dynamic backup workers: how many contributions of a round are worth waiting for (Xu et al. 2020).

R members, k of them waited for. Pure.

    gain(k) = eta |G|^2 - L eta^2 / 2 (|G|^2 + V / k)     what a step of k takes off the loss
    k       = argmax gain(k) / T(k)                       T(k): when the k-th comes, learned

|G|^2 is the squared length of the mean of all, V how far one contribution is from it, both by what
came; L follows from how far the loss fell. Far from the goal few are enough, near it many are worth
their time.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ConfigError

ROUNDS_KEPT = 64
"""Of arrival times."""

KEPT_SHARE = 0.98
"""What is past counts so much per round in the estimates. With 0.9 a bad guess of L passes for the
end of all gain, and a run takes up to twice as long as with the best k of all that never change."""


class BackupWorkers:
    """Chooses k; is told of each round when its contributions came and what they were like."""

    def __init__(self, members: int, *, learning_rate: float) -> None:
        """Raises ConfigError for nobody, or for steps of no length."""
        if members < 1 or learning_rate <= 0.0:
            raise ConfigError(f"{members} members at a rate of {learning_rate}")
        self._members, self._rate = members, learning_rate
        self._came_s: list[deque[float]] = [deque(maxlen=ROUNDS_KEPT) for _ in range(members)]
        self._spread, self._length2 = _Mean(), _Mean()
        self._missed, self._bent = _Mean(), _Mean()
        self._before: _LossStep | None = None
        self._waited = members

    def arrived(self, came_s: Sequence[float]) -> None:
        """How long after the round's begin contributions came, ascending; also those that nobody
        waited for, as far as they are known."""
        for place, seconds in enumerate(came_s[: self._members]):
            self._came_s[place].append(seconds)

    def stepped(self, length2: float, spread: float | None, count: int, loss: float) -> None:
        """A step was taken with `count` contributions: `length2` is the squared length of their
        mean, `spread` that of one from the mean of all that are known (of n, summed over n - 1;
        None of one alone), `loss` what it was before the step."""
        if self._before is not None:
            self._missed.take(self._before.promised - (self._before.loss - loss))
            self._bent.take(self._before.bent)
        if spread is not None:
            self._spread.take(spread)
        self._waited = count
        noise = self._spread.value / count
        # Not cut off at zero: what is below it weighs against what is above. And L is found from
        # what this step was like, not from means: they lag, and |G|^2 falls.
        self._length2.take(length2 - noise)
        self._before = _LossStep(
            loss=loss,
            promised=self._rate * (length2 - noise),
            bent=self._rate**2 / 2 * length2,
        )

    def times(self) -> list[float]:
        """T(k) for k = 1..R as far as it is known: means that never fall."""
        known: list[float] = []
        for came_s in self._came_s:
            if not came_s:
                break
            mean_s = sum(came_s) / len(came_s)
            known.append(max(mean_s, known[-1] if known else 0.0))
        return known

    def gain(self, count: int) -> float:
        """What a step of so many takes off the loss; 0 where it takes nothing or is not known."""
        if not self._bent.value:
            return 0.0
        curvature = max(0.0, self._missed.value / self._bent.value)
        length2 = max(0.0, self._length2.value)
        noise = self._rate**2 / 2 * (length2 + self._spread.value / count)
        return max(0.0, self._rate * length2 - curvature * noise)

    def choose(self) -> int:
        """How many to wait for in the next round."""
        times = self.times()
        if not times or not self._bent.value:
            return -(-self._members // 2)  # Nothing is known yet; so many show how they differ.
        # Where none gains anything, one more than before: to wait for all at once costs most.
        best, most = min(self._members, self._waited + 1), 0.0
        for count, seconds in enumerate(times, 1):
            worth = self.gain(count) / max(seconds, 1e-9)
            # Of equal ones the larger: it costs nothing.
            if worth > 0.0 and worth >= most:
                best, most = count, worth
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _LossStep:
    """The last one: the loss before it, what a straight way would have taken off it, and by what of
    it L counts."""

    loss: float
    promised: float
    bent: float


class _Mean:
    """Of what was seen, the past counting less and less; the first ones count alike."""

    def __init__(self) -> None:
        self.value = 0.0
        self._weight = 0.0

    def take(self, seen: float) -> None:
        """One more."""
        self._weight = KEPT_SHARE * self._weight + 1.0
        self.value += (seen - self.value) / self._weight
