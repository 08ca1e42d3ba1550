"""A text in swarms that lose members: nothing is lost, or it is named and comes from elsewhere."""

import pytest

from protocol.serving_text import block_keeper, givers
from sim.crowds.text_swarm import STRIKE_S, TextSwarm, TextTrial


def test_struck_swarms_keep_what_is_promised(seed: int) -> None:
    outcome = TextTrial(16, seed).run()
    assert outcome.is_as_promised, outcome
    assert outcome.two_at_once_lost == 0
    assert outcome.named_late == outcome.never_came == 0


def test_two_swarms_of_one_seed_are_the_same(seed: int) -> None:
    one, other = TextSwarm(seed), TextSwarm(seed)
    for swarm in (one, other):
        swarm.time.run_until(STRIKE_S)
        swarm.vanish(swarm.alive[:2])
        assert swarm.time.run_until(200.0, swarm.is_repaired)
    assert (one.time.now_s, one.time.num_events) == (other.time.now_s, other.time.num_events)


def test_swarm_without_members_that_copy_is_not_repaired(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_keeper.BlockKeeper, "_list_copies", lambda self: None)
    swarm = TextSwarm(seed)
    swarm.time.run_until(STRIKE_S)
    swarm.vanish(swarm.alive[:2])
    assert not swarm.time.run_until(200.0, swarm.is_repaired)


def test_lost_blocks_are_late_where_nobody_names_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_keeper, "NAMED_AFTER_S", 1e9)
    monkeypatch.setattr(block_keeper, "NAMED_AT_LAST_S", 1e9)
    monkeypatch.setattr(givers, "PATIENCE_S", 12.0)
    assert TextTrial(12, seed).run().named_late
