"""I5 where machines use only a part of their leases, so that samples come back in many pieces."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from protocol import leases as shipped
from protocol import limits
from protocol.leases import Lease
from protocol.messages import Commit
from protocol.rounds import agreement
from protocol.rounds.chain import num_forgotten
from sim.checks.invariants import InvariantBroken
from tests.sim.mixed import Mixed

COMMIT_BODY = agreement.commit_body


def part_used(*args: Any) -> Commit:
    """A COMMIT of a machine that was slow: of 3 to 7 samples of its lease, as its root has it."""
    said = COMMIT_BODY(*args)
    samples = 3 + said.root[0] % 5
    return replace(said, samples=samples, tokens=samples)


def play(seed: int, *, rounds: int = 20) -> Mixed:
    """A small world with faults, whose seals can carry few intervals."""
    with (
        patch("protocol.rounds.round_machine.commit_body", part_used),
        patch.object(limits, "LEASE_INTERVALS_MAX", 4),
    ):
        mixed = Mixed(seed, rounds=rounds)
        mixed.run()
        return mixed


@pytest.mark.extended
@pytest.mark.parametrize("number", range(3))
def test_samples_that_are_forgotten_are_counted_in_worlds_too(seed, number):
    # A world that ends early, with the disk of whoever is a quorum alone, says too little.
    worlds = (play(1000 * seed + number + step) for step in range(0, 1000, 10))
    mixed = next(world for world in worlds if not world.is_ended_by_a_disk())
    head = max(
        (node.core.machine.head for node in mixed.world.nodes.values()),
        key=lambda v: v.round,
    )
    assert head.round >= 20
    assert num_forgotten(head.clock, 1) > 0


def test_pieces_that_are_forgotten_and_leased_again_later_are_found(seed):
    give_back = shipped.give_back
    dropped: list[tuple[int, int]] = []

    def forgetful(unused: Lease, lease: Lease) -> Lease:
        """Forgets the longest of too many, not the shortest."""
        everything = shipped.normalised((*unused, *lease))
        longest = sorted(everything, key=lambda gap: gap[0] - gap[1])
        dropped.extend(longest[: max(0, len(everything) - limits.LEASE_INTERVALS_MAX)])
        return give_back(tuple(gap for gap in everything if gap not in dropped), ())

    with (
        patch("protocol.rounds.roster.give_back", forgetful),
        pytest.raises(InvariantBroken, match=r"I5.*other samples than were left"),
    ):
        play(seed)
    assert dropped
