"""Builds whose branches (R4) are broken on purpose are found, and the one that we ship is not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from node.holdings.shard_store import ShardStore
from protocol.messages import Kind, SignedMessage
from protocol.rounds.ballots import Ballots
from protocol.rounds.branches import Opening, Position
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView
from protocol.rounds.standing import Reach, Standing
from sim.trials.scenario import Scenario
from sim.trials.scenario_file import read_scenario_file
from sim.trials.trial import Violation, run_trial

SCENARIOS = Path(__file__).parents[2] / "sim" / "scenarios"
SEEDS_MAX = 50


def scenario(name: str, peers: tuple[int, int], rounds: int) -> Scenario:
    found = read_scenario_file(SCENARIOS / f"{name}.toml")
    return replace(found, peers=peers, rounds=rounds)


THREE_WAYS = scenario("partition-three", (6, 9), 24)
LOST = scenario("majority-lost", (5, 8), 12)
LOST = replace(
    LOST,
    expect=replace(LOST.expect, provisional_s=0.0),
    limits=replace(LOST.limits, virtual_s=400.0),
)
SILENT = scenario("mass-silence", (5, 8), 40)


@contextmanager
def _pseals_count() -> Iterator[None]:
    """Who PSEALed a value has sealed it, somebody thought."""
    index = Ballots._index

    def index_both(ballots: Ballots, message: SignedMessage, body: Any) -> None:
        index(ballots, message, body)
        if message.slot.kind is Kind.PSEAL:
            place = (message.slot.subject, message.slot.attempt, body)
            ballots._seals.setdefault(place, {})[message.sender] = message
            ballots._sealed.pop(message.slot.subject, None)

    with patch.object(Ballots, "_index", index_both):
        yield


@contextmanager
def _branch_is_final() -> Iterator[None]:
    """A branch of all who are in reach is as good as a final one."""
    adopt = RoundMachine._adopt

    with patch.object(RoundMachine, "_advance", adopt):
        yield


@contextmanager
def _left_branches_forgotten() -> Iterator[None]:
    """What was signed on a branch that was left is forgotten with it."""
    fall_back = Standing.fall_back

    def forget(standing: Standing) -> list[RoundView]:
        left = fall_back(standing)
        standing.given_up.clear()
        return left

    with patch.object(Standing, "fall_back", forget):
        yield


@contextmanager
def _anchor_not_kept() -> Iterator[None]:
    """The last final anchor makes room for the branch's."""
    advance = ShardStore.advance

    def drop(store: ShardStore, digest: bytes) -> None:
        advance(store, digest)
        store.final = store.state

    with patch.object(ShardStore, "advance", drop):
        yield


@contextmanager
def _waits_for_the_quorum() -> Iterator[None]:
    """Without a quorum nobody does anything."""

    def ordinary(reach: Reach, position: Position, *_: Any, **__: Any) -> Any:
        return Opening(position.final, is_provisional=False), frozenset()

    with patch.object(Reach, "sealers", ordinary):
        yield


@dataclass(frozen=True)
class Bug:
    """A broken build, the scenario that shows it, and what finds it."""

    title: str
    patch: Callable[[], Any]
    where: Scenario
    names: frozenset[str]


SILENCED = frozenset({"I3", "back_rounds"})
"""Who hears of a signature of its own that it does not know takes its disk for rolled back."""

BUGS = (
    Bug("waits for the quorum", _waits_for_the_quorum, LOST, frozenset({"I4"})),
    Bug("PSEALs count as SEALs", _pseals_count, THREE_WAYS, frozenset({"I3"})),
    Bug("branch is final", _branch_is_final, THREE_WAYS, frozenset({"I1", "I3", "equal"})),
    Bug("left branches forgotten", _left_branches_forgotten, THREE_WAYS, SILENCED),
    Bug("anchor not kept", _anchor_not_kept, SILENT, frozenset({"I1", "I2", "error"})),
)


def caught(bug: Bug) -> Violation | None:
    for seed in range(SEEDS_MAX):
        with bug.patch():
            violation = run_trial(bug.where, seed).violation
        if violation is not None:
            return violation
    return None


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.title)
def test_broken_branches_are_found_within_fifty_seeds(bug):
    found = caught(bug)
    assert found is not None
    assert found.name in bug.names, found


@pytest.mark.parametrize("where", [THREE_WAYS, SILENT], ids=lambda where: where.name)
@pytest.mark.parametrize("world_seed", [0, 1])
@pytest.mark.quick(1)
def test_shipped_build_breaks_nothing_in_the_same_worlds(where, world_seed):
    assert run_trial(where, world_seed).violation is None
