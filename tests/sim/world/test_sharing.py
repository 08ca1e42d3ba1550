"""What nodes of a world share: the same worlds to the byte, and nothing for whoever differs."""

from dataclasses import replace

import numpy as np
import pytest

from node.holdings.shard_store import ShardStore
from protocol.errors import DecodeError
from sim.trials.trial import build_world, run_trial
from sim.world.sharing import UNSHARED_EACH, Shared, SharedStore, shares
from sim.world.world import World
from tests.node.cells.test_shard_store import LIST, MANIFEST, contribution, filled, vector
from tests.sim.trials.scenarios import scenario, with_faults

FAULTS = (
    'kind = "bounce", round = 3, victims = ["n01", "n02"], duration_s = 1.0',
    'kind = "partition", round = 6, victims = ["n00", "n01"], duration_s = 8.0',
)
"""Restarts, and branches: two states in one round."""


def store_of(shared: Shared, anchor_N=None) -> SharedStore:
    return SharedStore(MANIFEST, 0, vector("anchor") if anchor_N is None else anchor_N, shared)


def plain(anchor_N=None) -> ShardStore:
    return ShardStore(MANIFEST, 0, vector("anchor") if anchor_N is None else anchor_N)


def applied(store: ShardStore, round_index: int = 1, tokens=(10, 30, 50)) -> bytes:
    filled(store, tokens)
    root = store.apply(LIST, is_empty=False, round_index=round_index)
    store.adopt(LIST)
    return root


@pytest.mark.parametrize("text", ["rare = 0.1\nencoding = 1.0", "fragments = 2"])
def test_world_that_shares_is_the_same_one(seed, text):
    one = scenario(text)
    alone, shared = run_trial(one, seed), run_trial(one, seed, is_sharing=True)
    assert replace(shared, wall_s=alone.wall_s) == alone


def test_world_with_faults_that_shares_is_the_same_one(seed):
    faulty = with_faults(*FAULTS, rounds=9, peers=4)
    alone, shared = (run_trial(faulty, seed, is_sharing=is_sharing) for is_sharing in (False, True))
    assert replace(shared, wall_s=alone.wall_s) == alone


def test_nodes_hold_one_state_and_one_seal_where_they_share_and_their_own_where_not(monkeypatch):
    worlds = []

    def kept(*arguments, **options):
        worlds.append(build_world(*arguments, **options))
        return worlds[-1]

    monkeypatch.setattr("sim.trials.trial.build_world", kept)
    monkeypatch.setattr(World, "end", lambda world: None)
    found = []
    for is_sharing in (True, False):
        run_trial(scenario(), 1, is_sharing=is_sharing)
        nodes = [node for node in worlds[-1].nodes.values() if node.is_over or node.is_alive]
        states = {id(node.store.state) for node in nodes}
        values = {id(node.core.machine.head) for node in nodes}
        found.append((len(nodes), len(states), len(values)))
    assert found == [(3, 1, 1), (3, 3, 3)]


def test_step_is_looked_up_by_state_round_and_result_alone():
    shared = Shared()
    one, same = store_of(shared), store_of(shared)
    assert applied(one) == applied(same) == applied(plain())
    assert one.state is same.state
    other_N = vector("other")
    assert applied(store_of(shared, other_N)) == applied(plain(other_N)) != one.state.root
    tokens = (10, 30, 51)
    assert applied(store_of(shared), 1, tokens) == applied(plain(), 1, tokens) != one.state.root
    assert len(shared.states) == 3
    applied(store_of(shared), 2)
    assert len(shared.states) == 4


def test_decoded_cells_are_checked_by_the_first_and_read_only():
    shared = Shared()
    store, size = store_of(shared), store_of(shared).part_bytes(0)
    root, said_N = contribution(store, "x")
    (item,) = store.parts(root, [0])
    decoded_N = shared.decoded[item.payload]
    np.testing.assert_array_equal(decoded_N, said_N[: len(decoded_N)])
    assert not decoded_N.flags.writeable
    bad = np.full(size // 2, np.inf, dtype="<f2").tobytes()
    for _ in range(2):  # What is bad is bad for the second one, too.
        with pytest.raises(DecodeError):
            store_of(shared)._decoded(store._codec, bad, size // 2)


def test_sweeps_share_in_all_but_one_of_eight_seeds():
    assert UNSHARED_EACH == 8
    assert [seed for seed in range(20) if not shares(seed)] == [0, 8, 16]
