"""S1, S3, L1: no two seals of one round, no slot filled twice, and progress after any chaos."""

import random
from collections import Counter

import pytest

from protocol.rounds.round_config import NAMES, Rare, never
from tests.node.builders import head_of, peers_named
from tests.node.soup import Soup


def stir(
    seed: str, *, restarts: float = 0.0, rare: Rare = never, everybody_sums: bool = False
) -> Soup:
    """Chaos among one to five voters, then a good run."""
    rng = random.Random(seed)
    num_voters = rng.choice((1, 2, 3, 3, 4, 5))
    peers = peers_named(num_voters + rng.choice((0, 0, 1)))
    head = head_of(peers[:num_voters], peers[num_voters:])
    soup = Soup(head, rng, restarts=restarts, rare=rare, everybody_sums=everybody_sums)
    soup.shake(rng.choice((100, 400, 1500)))
    if num_voters >= 3 and rng.random() < 0.6:
        soup.kill(rng.choice(peers))
    soup.shake(300)
    soup.heal()
    assert not soup.faults, f"honest peers convict each other: {soup.faults}"
    assert all(len(values) == 1 for values in soup.adopted.values())
    return soup


few_and_many = pytest.mark.parametrize("cases", [8, pytest.param(60, marks=pytest.mark.extended)])


@few_and_many
def test_no_slot_is_filled_twice_and_no_round_has_two_seals_whatever_arrives(seed, cases):
    rounds = [len(stir(f"{seed}/{case}").adopted) for case in range(cases)]
    assert sum(rounds) >= cases, "a soup in which nothing happens shows nothing"


@pytest.mark.extended
@pytest.mark.parametrize("restarts", [0.0, 0.02])
def test_no_slot_is_filled_twice_where_everybody_sums(restarts, seed):
    soups = [stir(f"{seed}/{case}", restarts=restarts, everybody_sums=True) for case in range(40)]
    assert sum(len(soup.adopted) for soup in soups) >= 40


@pytest.mark.extended
def test_no_slot_is_filled_twice_though_all_peers_are_killed_and_restarted_all_the_time(seed):
    rounds = [len(stir(f"{seed}/{case}", restarts=0.02).adopted) for case in range(60)]
    assert sum(rounds) >= 60, "a soup in which nothing happens shows nothing"


@few_and_many
def test_no_slot_is_filled_twice_by_a_peer_that_lost_its_disk(seed, cases):
    for case in range(cases):
        rng = random.Random(f"{seed}/{case}")
        peers = peers_named(rng.choice((3, 4, 5)))
        soup = Soup(head_of(peers), rng, restarts=0.01)
        for _ in range(6):
            soup.shake(rng.choice((30, 100, 200)))
            # With two voters the eldest alone may have gone on: finality is as durable as its disk.
            peer = rng.choice(peers)
            if not soup.lost and all(len(v.roles.electorate) > 2 for v in soup.views(peer)):
                soup.restart(peer, is_lost=True)
        soup.shake(300)
        assert not soup.faults


class Luck:
    """Takes every rare branch in `share` of the cases, and counts them by name."""

    def __init__(self, seed: str, share: float) -> None:
        self._rng = random.Random(f"{seed}/rare")
        self._share = share
        self.taken: Counter[str] = Counter()

    def __call__(self, name: str) -> bool:
        is_taken = self._rng.random() < self._share
        self.taken[name] += is_taken
        return is_taken


MACHINE_ONLY = set(NAMES) - {
    # What a core does around its machine.
    *("want-ignored", "forward-to-none", "forward-to-all", "beat-skipped"),
    *("live-suspected", "source-given-up"),
}


@pytest.mark.extended
def test_no_rare_branch_fills_a_slot_twice_or_stops_the_rounds(seed):
    taken: Counter[str] = Counter()
    for case in range(90):
        luck = Luck(f"{seed}/{case}", (0.02, 0.1, 0.3)[case % 3])
        stir(f"{seed}/{case}", restarts=(0.0, 0.02)[case % 2], rare=luck)
        taken += luck.taken
    assert set(taken) == MACHINE_ONLY, "branches that the soup never reaches"


@pytest.mark.slow
def test_no_slot_is_filled_twice_after_restarts_in_many_soups(seed):
    for case in range(2000):
        stir(f"{seed}/{case}", restarts=0.02)


@pytest.mark.slow
def test_no_slot_is_filled_twice_and_no_round_has_two_seals_in_many_soups(seed):
    for case in range(2000):
        stir(f"{seed}/{case}")
