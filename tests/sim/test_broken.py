"""Each invariant finds a build that is broken on purpose, and finds nothing in the one we ship."""

import pytest

from sim.checks.invariants import ALL
from tests.sim.broken import BUGS, Bug
from tests.sim.mixed import finding

SEEDS_MAX = 50

QUICK = {
    "votes not recorded",
    "rows as they came",
    "fence removed",
    "absence by the LIST",
    "one word sets back",
    "one reducer's word is enough",
    "one voter hurries all",
    "waits for the dead",
    "samples not given back",
    "late is a fault",
    "once suspected is suspected",
    "early never dropped",
    "seed in SEAT",
    "the last member is gone",
}


def caught_at(bug: Bug) -> int:
    """The number of worlds that it took to find the bug; what was found first is what it breaks."""
    for seed in range(SEEDS_MAX):
        with bug.patch():
            found = finding(seed, **bug.settings)
        if found is not None:
            assert found.name == bug.name, f"seed {seed}: {found}"
            return seed + 1
    raise AssertionError(f"not found in {SEEDS_MAX} worlds: {bug.title}")


@pytest.mark.quick(2)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.title in QUICK], ids=str)
def test_broken_build_is_found_by_the_invariant_that_it_breaks(bug):
    assert caught_at(bug) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.title not in QUICK], ids=str)
def test_rarer_broken_build_is_found_within_fifty_seeds(bug):
    assert caught_at(bug) <= SEEDS_MAX


def test_every_invariant_has_a_broken_build_in_the_quick_tests():
    assert {bug.name for bug in BUGS if bug.title in QUICK} == ALL
    assert {bug.title for bug in BUGS} >= QUICK


@pytest.mark.extended
@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"is_signing_for_real": True},
        {"trust": "open"},
        {"trust": "open", "hurrying": True},
    ],
    ids=["hashed", "signed", "open", "open-hurried"],
)
def test_shipped_build_breaks_nothing_in_the_same_worlds(settings, seed):
    assert finding(seed, **settings) is None


@pytest.mark.slow
@pytest.mark.parametrize("rare", [0.0, 0.05])
@pytest.mark.parametrize("seed", range(SEEDS_MAX))
def test_shipped_build_breaks_nothing_in_fifty_worlds(seed, rare):
    assert finding(seed, rare=rare) is None
