"""S1, S3, L1: no two seals of one round, no slot filled twice, and progress after any chaos."""

import random

import pytest

from tests.node.builders import head_of, peers_named
from tests.node.soup import Soup


def stir(seed: str) -> Soup:
    """Chaos among one to five voters, then a good run."""
    rng = random.Random(seed)
    num_voters = rng.choice((1, 2, 3, 3, 4, 5))
    peers = peers_named(num_voters + rng.choice((0, 0, 1)))
    soup = Soup(head_of(peers[:num_voters], peers[num_voters:]), rng)
    soup.shake(rng.choice((100, 400, 1500)))
    if num_voters >= 3 and rng.random() < 0.6:
        soup.kill(rng.choice(peers))
    soup.shake(300)
    soup.heal()
    assert not soup.faults, f"honest peers convict each other: {soup.faults}"
    assert all(len(values) == 1 for values in soup.adopted.values())
    return soup


def test_no_slot_is_filled_twice_and_no_round_has_two_seals_whatever_arrives(seed):
    rounds = [len(stir(f"{seed}/{case}").adopted) for case in range(60)]
    assert sum(rounds) >= 60, "a soup in which nothing happens shows nothing"


@pytest.mark.slow
def test_no_slot_is_filled_twice_and_no_round_has_two_seals_in_many_soups(seed):
    for case in range(2000):
        stir(f"{seed}/{case}")
