"""Exhaustive search over everything that may happen: breadth first, with shortest traces.

A Model says where it starts, which moves a state allows, when two states are the same, and what is
wrong with one. `explore` visits every state within its bounds once, nearest first, so that the
first violation it meets has a shortest trace. `walk` draws random traces where that takes too long.

`python -m sim.explorer` runs the catalogue of `sim.exploration` over the shipped
machines.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

StateT = TypeVar("StateT")
Outcome = Literal["exhausted", "bounded", "walked", "violated"]
Report = Callable[[int, int], None]
"""Told now and then: how many states were seen, and how deep they are."""

REPORT_EVERY = 2048


class Model(Protocol[StateT]):
    """What can be explored. States are values: a move returns a new one and changes none."""

    def start(self) -> StateT:
        """The state in which every trace begins."""
        ...

    def moves(self, state: StateT) -> Iterable[tuple[str, StateT]]:
        """What may happen next, in a fixed order: a label in plain words, and the state after."""
        ...

    def key(self, state: StateT) -> Hashable:
        """Equal for two states only if nothing that follows can tell them apart."""
        return state

    def check(self, state: StateT) -> str:
        """What is wrong with this state; empty if nothing is."""
        ...


class Later(Generic[StateT]):
    """A model that begins in the middle: behind `trace`, each step the start of a label.

    What is found from there is shortest from there.
    """

    def __init__(self, model: Model[StateT], trace: Iterable[str]) -> None:
        self._model, self._trace = model, tuple(trace)
        self.moves, self.key, self.check = model.moves, model.key, model.check

    def start(self) -> StateT:
        """The state behind the trace. Raises ValueError if a step of it is no move there."""
        state = self._model.start()
        for step in self._trace:
            for label, following in self.moves(state):
                if label.startswith(step):
                    state = following
                    break
            else:
                known = "; ".join(label for label, _ in self.moves(state))
                raise ValueError(f"no move begins with {step!r} here, only: {known}")
        return state


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where a search stops, whichever comes first; `depth` counts moves from the start."""

    states: int = 1_000_000
    seconds: float = 600.0
    depth: int = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exploration:
    """What a search found.

    `outcome` is "exhausted" if every reachable state was seen, "bounded" if a bound stopped the
    search, "walked" for random walks, "violated" if `violation` was met, and `trace` leads there.
    `depth` is that of the deepest state seen. `seed` is that of the walk, -1 for a search.
    """

    outcome: Outcome
    states: int
    transitions: int
    depth: int
    seconds: float
    violation: str = ""
    trace: tuple[str, ...] = ()
    seed: int = -1


def explore(model: Model[StateT], bound: Bound, report: Report | None = None) -> Exploration:
    """Visit the states of `model` breadth first, until a violation, the bound, or the end."""
    search = _Search(model, bound, report)
    return search.run()


class _Search(Generic[StateT]):
    """One breadth-first search; parents are kept by number, states only while they wait."""

    def __init__(self, model: Model[StateT], bound: Bound, report: Report | None) -> None:
        self._model = model
        self._bound, self._report = bound, report
        self._numbers: dict[Hashable, int] = {}
        self._came_from: list[tuple[int, str]] = []
        self._transitions = 0
        self._depth = 0
        self._began_s = time.monotonic()

    def run(self) -> Exploration:
        """The whole search, once."""
        start = self._model.start()
        self._number(start, -1, "")
        if wrong := self._model.check(start):
            return self._result("violated", wrong, 0)
        waiting = deque([(0, 0, start)])
        outcome: Outcome = "exhausted"
        while waiting:
            number, depth, state = waiting.popleft()
            if depth >= self._bound.depth:
                outcome = "bounded"
                continue
            for label, following in self._model.moves(state):
                self._transitions += 1
                fresh = self._number(following, number, label)
                if fresh is None:
                    continue
                self._depth = depth + 1
                if wrong := self._model.check(following):
                    return self._result("violated", wrong, fresh)
                waiting.append((fresh, depth + 1, following))
            if self._is_over():
                return self._result("bounded" if waiting else outcome)
        return self._result(outcome)

    def _number(self, state: StateT, parent: int, label: str) -> int | None:
        """The number of a state that was not seen before."""
        number = len(self._came_from)
        if self._numbers.setdefault(self._model.key(state), number) != number:
            return None
        self._came_from.append((parent, label))
        if self._report is not None and number % REPORT_EVERY == REPORT_EVERY - 1:
            self._report(number + 1, self._depth)
        return number

    def _is_over(self) -> bool:
        is_late = time.monotonic() - self._began_s > self._bound.seconds
        return is_late or len(self._came_from) >= self._bound.states

    def _trace(self, number: int) -> tuple[str, ...]:
        labels = []
        while number > 0:
            number, label = self._came_from[number]
            labels.append(label)
        return tuple(reversed(labels))

    def _result(self, outcome: Outcome, violation: str = "", number: int = 0) -> Exploration:
        return Exploration(
            outcome=outcome,
            states=len(self._came_from),
            transitions=self._transitions,
            depth=self._depth,
            seconds=time.monotonic() - self._began_s,
            violation=violation,
            trace=self._trace(number),
        )


def walk(
    model: Model[StateT], bound: Bound, *, seed: int, report: Report | None = None
) -> Exploration:
    """Follow random traces of at most `bound.depth` moves, until a violation or the bound.

    `states` counts the different states seen. The trace of a violation is no shortest one. The
    same seed walks the same traces.
    """
    began_s = time.monotonic()
    seen: set[Hashable] = set()
    transitions = deepest = 0
    wrong, run = "", 0
    labels: list[str] = []
    while not wrong and len(seen) < bound.states:
        if time.monotonic() - began_s > bound.seconds:
            break
        rng = random.Random(f"{seed}/walk/{run}")
        run += 1
        state, labels = model.start(), []
        wrong = model.check(state)
        seen.add(model.key(state))
        while not wrong and len(labels) < bound.depth:
            choices = list(model.moves(state))
            if not choices:
                break
            # All that may happen is worked out anyway: what is wrong is not left to luck.
            wrongs = [choice for choice in choices if model.check(choice[1])]
            label, state = rng.choice(wrongs or choices)
            labels.append(label)
            transitions += 1
            seen.add(model.key(state))
            wrong = model.check(state)
        deepest = max(deepest, len(labels))
        if report is not None and run % 16 == 0:
            report(len(seen), deepest)
    return Exploration(
        outcome="violated" if wrong else "walked",
        states=len(seen),
        transitions=transitions,
        depth=deepest,
        seconds=time.monotonic() - began_s,
        violation=wrong,
        trace=tuple(labels) if wrong else (),
        seed=seed,
    )
