"""R9: of no sample is it unknown what became of it, and none is used twice in an epoch."""

import random
from dataclasses import replace

import numpy as np
import pytest

from protocol.limits import LEASE_INTERVALS_MAX
from protocol.messages import Commit, Interval, SealClock, SealValue
from protocol.rounds import roster as rosters
from protocol.rounds.chain import num_forgotten, num_in_flight
from protocol.rounds.roster import ClockRules, ListedContribution, next_clock
from tests.node.builders import commit_body, head_of, peers_named
from tests.training.data.random_corpus import random_blocks
from training.data.sampling import SampledBlocks

EACH = 20
RULES = ClockRules(samples_each=EACH, rounds=10**6, tokens=0, tokens_each=16)
CONTEXT = 64


class Swarm:
    """Rounds of members that use what a test says, and what became of every sample.

    With `lag` 2 the round behind each one is leased before it is sealed (R5).
    """

    def __init__(self, num_members: int, *, lag: int = 1) -> None:
        self.rules = replace(RULES, lag=lag)
        head = head_of(peers_named(num_members)).value
        self.value: SealValue = replace(head, round=0)
        self.named: list[SealValue] = [self.value] * lag
        """By these seals the rounds under way are leased, the next one to be sealed first."""
        self.used: set[int] = set()
        self.times: list[int] = []
        """Every sample that was trained on, as often as it was."""

    @property
    def clock(self) -> SealClock:
        return self.value.clock

    @property
    def unused(self) -> set[int]:
        return {n for gap in self.clock.unused for n in range(gap.first, gap.stop)}

    def round(self, samples: list[int | None]) -> None:
        """Each member's samples; None for one that is not listed."""
        basis, index = self.named[0], self.value.round + 1
        leased = rosters.leased_for(index, basis, EACH)
        entries = []
        for peer, count in zip(basis.roster.members, samples, strict=True):
            if count is not None:
                numbers = [n for first, stop in leased[peer] for n in range(first, stop)]
                self.times += numbers[:count]
                entries.append(ListedContribution(peer, self.commit(count), is_proved=False))
        self.used = set(self.times)
        clock = next_clock(self.value, entries, self.rules, basis=basis)
        self.value = replace(self.value, round=index, clock=clock)
        self.named = [*self.named[1:], self.value]

    @property
    def in_flight(self) -> set[int]:
        """Samples of the rounds behind the next one, which are leased already."""
        rounds = range(self.value.round + 1, self.value.round + self.rules.lag)
        named = zip(rounds, self.named, strict=False)
        found = [rosters.leased_for(index, basis, EACH) for index, basis in named]
        spans = [span for leased in found for lease in leased.values() for span in lease]
        return {n for first, stop in spans for n in range(first, stop)}

    def commit(self, samples: int) -> Commit:
        return commit_body(self.value, samples=samples, tokens=samples * RULES.tokens_each)


@pytest.mark.quick(1)
@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("used_at_most", [1, 3, EACH])
def test_what_is_forgotten_is_counted_by_the_seals_alone(used_at_most, lag, seed):
    choose = random.Random(f"{seed}/{used_at_most}/forgotten")
    swarm = Swarm(64, lag=lag)
    for _ in range(60):
        before = swarm.value
        swarm.round(
            [None if choose.random() < 0.1 else choose.randint(1, used_at_most) for _ in range(64)]
        )
        in_flight = swarm.in_flight
        assert len(in_flight) == num_in_flight(before, swarm.rules) == (lag - 1) * 64 * EACH
        # Else a round under way would train on what another one has, or on what came back.
        assert not in_flight & (swarm.used | swarm.unused)
        forgotten = set(range(swarm.clock.cursor)) - swarm.used - swarm.unused - in_flight
        found = num_forgotten(swarm.clock, RULES.tokens_each, in_flight=len(in_flight))
        assert found == len(forgotten)
        assert len(swarm.times) == len(swarm.used)
        assert not swarm.used & swarm.unused
        assert len(swarm.clock.unused) <= LEASE_INTERVALS_MAX
    # A loop that never overflows the list would count nothing.
    assert forgotten or used_at_most == EACH


def test_samples_of_a_branch_are_not_taken_for_used_ones_of_this_chain():
    swarm = Swarm(3)
    swarm.round([5, EACH, None])
    clock = replace(swarm.clock, tokens=swarm.clock.tokens + 7 * RULES.tokens_each)
    assert num_forgotten(clock, RULES.tokens_each, drift_tokens=7 * RULES.tokens_each) == 0


def test_returned_leases_that_touch_are_one_before_anything_is_forgotten():
    # The list is full; the first lease that comes back would be one interval too many by itself.
    gaps = [(0, 100), *((1000 + 10 * n, 1003 + 10 * n) for n in range(LEASE_INTERVALS_MAX - 1))]
    unused = tuple(Interval(first=first, stop=stop) for first, stop in gaps)
    start = SealClock(step=0, tokens=0, cursor=9000, unused=unused, ends_run=False)
    swarm = Swarm(2)
    swarm.value = replace(swarm.value, clock=start)
    swarm.named = [swarm.value]
    swarm.round([None, None])
    assert swarm.clock == start


@pytest.mark.parametrize("lag", [1, 2])
def test_late_returns_use_no_window_twice_in_an_epoch(lag, seed):
    dataset = SampledBlocks(*random_blocks(seed=seed))
    epoch = dataset.samples_per_epoch(CONTEXT)
    choose = random.Random(f"{seed}/epochs")
    swarm = Swarm(7, lag=lag)
    is_late = False
    while swarm.clock.cursor < 4 * epoch:
        # Now and then most are absent, so that leases come back and wait beyond their epoch's end.
        absent = 0.9 if choose.random() < 0.3 else 0.1
        swarm.round(
            [None if choose.random() < absent else choose.randint(1, EACH) for _ in range(7)]
        )
        oldest = min((gap.first for gap in swarm.clock.unused), default=swarm.clock.cursor)
        is_late |= oldest // epoch < swarm.clock.cursor // epoch
    assert is_late
    numbers_B = np.array(sorted(swarm.times))
    windows_BW = dataset.windows(numbers_B, CONTEXT)
    for index in np.unique(numbers_B // epoch):
        rows = windows_BW[numbers_B // epoch == index]
        assert len(np.unique(rows, axis=0)) == len(rows)
