"""Worlds whose rounds are about one fragment after the other (R5)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from node.holdings.states import OuterStepping, round_config
from sim.checks.invariants import InvariantBroken
from sim.trials.scenario import overridden
from sim.trials.scenario_file import read_scenario
from sim.trials.trial import run_trial
from sim.world.nodes import SimNode
from sim.world.toy_run import toy_run
from sim.world.trainer import SimTrainer
from tests.node.builders import peers_named, toy_manifest
from tests.sim.worlds import WatchedWorld

CELLS, ROUNDS = (2, 1, 3), 10


def world_of(num_peers: int, seed: int) -> WatchedWorld:
    peers = peers_named(num_peers)
    timing = toy_manifest(peers[0]).timing
    manifest = toy_run(peers[0], rounds=ROUNDS, cells=CELLS, timing=timing)
    manifest = replace(manifest, outer=replace(manifest.outer, codec="int4"))
    world = WatchedWorld(manifest, seed=seed)
    config = round_config(manifest)
    for number, peer in enumerate(peers[:-1]):
        waiting = replace(config, wait_seats=num_peers - 2) if number == 0 else config
        world.join(peer, config=waiting)
    return world


def fragments_of(node: SimNode, index: int) -> list[bytes]:
    anchor_N = np.frombuffer(node.anchors[index], dtype=np.float32)
    layout = node.store.layout
    return [anchor_N[layout.fragment_span(f)].tobytes() for f in range(layout.num_fragments)]


def test_latecomer_kill_and_restart_leave_all_fragments_equal_everywhere(seed):
    """All invariants are watched: I2 sums what was listed once more, I5 follows each residual."""
    world = world_of(5, seed)
    *members, late = peers_named(5)
    world.until_round(3)
    world.crash(members[1])
    world.join(late)
    world.until_round(5)
    world.bounce(members[1])
    world.finish()
    nodes = world.living()
    assert len(nodes) == 5
    for index in range(2, ROUNDS + 1):
        have = [node for node in nodes if index in node.anchors and index - 1 in node.anchors]
        after = {tuple(fragments_of(node, index)) for node in have}
        assert len(after) <= 1
        for node in have:
            before = fragments_of(node, index - 1)
            changed = [f for f, x in enumerate(fragments_of(node, index)) if x != before[f]]
            assert changed in ([], [index % len(CELLS)])


@contextmanager
def _residuals_mixed_up() -> Iterator[None]:
    """What becomes of one fragment's contribution ends the residual of the next."""
    finish = SimTrainer.finish

    def mixed_up(trainer: SimTrainer, round_index: int, *args) -> None:
        finish(trainer, round_index, *args)
        trainer.feedback[round_index % len(CELLS)].restore(None)

    with patch.object(SimTrainer, "finish", mixed_up):
        yield


@contextmanager
def _momentum_forgotten() -> Iterator[None]:
    """A step keeps the momentum of its own fragment alone; on all nodes alike."""
    finish = OuterStepping.finish

    def forgetting(stepping: OuterStepping, cells):
        anchor_N, slots, roots = finish(stepping, cells)
        span = stepping._layout.fragment_span(stepping.fragment)
        for slot_N in slots.values():
            slot_N[: span.start] = slot_N[span.stop :] = 0.0
        return anchor_N, slots, roots

    with patch.object(OuterStepping, "finish", forgetting):
        yield


@pytest.mark.parametrize(
    ("broken", "name"), [(_residuals_mixed_up, "I5"), (_momentum_forgotten, "I2")]
)
def test_fragments_that_are_mixed_up_are_noticed(seed, broken, name):
    world = world_of(3, seed)
    with broken(), pytest.raises(InvariantBroken, match=name):
        world.finish()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_what_was_sealed_is_what_was_applied_whatever_goes_wrong(seed):
    """Latecomers, kills, partitions and all else of the scenario, with error feedback."""
    scenario = overridden(read_scenario("fragments"), peers=6)
    assert run_trial(scenario, seed).violation is None
