"""Faults that worlds found in the shipped code: each seed still finds its fault where the mend is
undone, and nothing where it is not.

Found in other ways, and held elsewhere: ten faults of the journal by every crash point
(`tests/node/durable/test_journal_crashes.py`), two of a lost disk by the explorer
(`sim/exploration`), the collapse of slow lines by real processes
(`tests/sim/world/test_world_slow.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from protocol.rounds import roster as rosters
from protocol.rounds.restart import Restart, Silence
from protocol.rounds.round_view import RoundView
from sim.trials.scenario_file import read_scenario_file
from sim.trials.trial import run_trial

FOLDER = Path(__file__).parent / "regressions"


def _settle_alone(self, view, base, doubted=()):
    """As it was: whoever knows of no other voter need not hear anybody."""
    if self._heard is None:
        return
    if self._has_forgotten:
        blocking = rosters.blocking(len(view.roles.electorate), view.config.trust)
        needed = min(blocking, len(view.other_voters))
        is_there = view.index >= max(self._through, *self._told.values(), 0)
        is_enough = is_there and len(self._heard & view.other_voters) >= needed
    else:
        is_enough = view.has_quorum(self._heard | {view.me})
    if is_enough:
        self._heard, self._has_forgotten = None, False


def _listed_whoever_trained(self, value):
    """As it was: a COMMIT from before the loss counts for a contribution that is not there yet."""
    own = self.ballots.commits.get(self.me)
    if own is None or own[0] not in value.commits:
        return False
    return self.own.contribution is None or self.own.contribution.root == own[1].root


_recall = Silence.recall


def _recall_at_its_start(self, view, *, now_s):
    """As it was: signatures are filed where a node comes to their round from its own disk."""
    if self._restart is not None and self._restart.chain[-1].value.digest == view.basis:
        _recall(self, view, now_s=now_s)


@contextmanager
def _listed_as(is_listed_in: Callable[..., bool]) -> Iterator[None]:
    """What is filed after a sync as well hides these faults behind fewer of them, and a residual
    that is dropped in doubt hides them too."""
    with (
        patch.object(RoundView, "is_listed_in", is_listed_in),
        patch.object(RoundView, "is_doubtful", lambda self, value: False),
        patch.object(Silence, "recall", _recall_at_its_start),
    ):
        yield


@dataclass(frozen=True)
class Found:
    """A scenario and seed, the mend undone, and what that broke."""

    file: str
    seed: int
    undone: Callable[[], AbstractContextManager[object]]
    invariant: str
    text: str


FOUND = [
    Found(
        "founder-without-its-disk",
        1,
        lambda: patch.object(Silence, "settle", _settle_alone),
        "I3",
        "two different COMMIT in one slot",
    ),
    Found(
        "signatures-lost-in-the-log",
        0,
        lambda: patch.object(Restart, "is_whole", property(lambda self: True)),
        "I5",
        "its residual says otherwise",
    ),
    Found(
        "signatures-lost-in-the-log",
        7,
        lambda: patch.object(RoundView, "is_doubtful", lambda self, value: False),
        "I5",
        "its residual says otherwise",
    ),
    Found(
        "commit-of-a-lost-disk",
        23,
        lambda: _listed_as(_listed_whoever_trained),
        "I5",
        "its residual says otherwise",
    ),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize("found", FOUND, ids=lambda found: f"{found.file}-{found.seed}")
def test_seed_finds_its_fault_where_the_mend_is_undone_and_nothing_else(found):
    scenario = read_scenario_file(FOLDER / f"{found.file}.toml")
    assert run_trial(scenario, found.seed).violation is None
    with found.undone():
        violation = run_trial(scenario, found.seed).violation
    assert violation is not None
    assert violation.name == found.invariant
    assert found.text in violation.text


def test_every_file_is_played():
    assert {path.stem for path in FOLDER.glob("*.toml")} == {found.file for found in FOUND}
