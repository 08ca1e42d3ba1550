"""Virtual time: one heap of (time, sequence, call), and one seeded stream of luck per purpose."""

import heapq
import random
from collections.abc import Callable


class Timeline:
    """What is to happen, in order. Two things at the same time happen in the order of `later`."""

    def __init__(self, seed: int) -> None:
        self.now_s = 0.0
        self.num_events = 0
        self._seed = seed
        self._heap: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._sequence = 0
        self._streams: dict[str, random.Random] = {}

    def later(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        """Call it when that much time has passed."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._sequence, call, args))

    def run_until(self, end_s: float, is_done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass up to `end_s`; whether `is_done` came true before."""
        while not is_done():
            if not self._heap or self._heap[0][0] > end_s:
                self.now_s = max(self.now_s, end_s)
                return False
            self.now_s, _, call, args = heapq.heappop(self._heap)
            self.num_events += 1
            call(*args)
        return True

    def stream(self, path: str) -> random.Random:
        """The luck of one purpose, so that a new node changes no other node's."""
        if path not in self._streams:
            self._streams[path] = random.Random(f"{self._seed}/{path}")
        return self._streams[path]
