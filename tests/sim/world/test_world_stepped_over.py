"""Worlds whose states are stepped in their own memory go the way of all others, to the byte."""

import pytest

from node.holdings.shard_store import ShardStore
from tests.sim.worlds import world_of

ALWAYS, NEVER = 0, 1 << 62


@pytest.mark.quick(1)
@pytest.mark.parametrize("num_peers", [1, 5])
def test_world_has_one_trace_however_large_a_state_is_taken_to_be(monkeypatch, num_peers, seed):
    traces, anchors, over = set(), [], []
    step_over = ShardStore._step_over

    def counted(store, digest, roots):
        over.append(digest)
        step_over(store, digest, roots)

    monkeypatch.setattr(ShardStore, "_step_over", counted)
    for most in (ALWAYS, NEVER):
        monkeypatch.setattr(ShardStore, "step_over_bytes_min", most)
        world = world_of(num_peers, seed=seed, rounds=6)
        world.finish()
        traces.add(world.trace_hash)
        anchors.append([node.anchors for node in world.nodes.values()])
        assert bool(over) is (most == ALWAYS)
        over.clear()
    assert len(traces) == 1
    assert anchors[0] == anchors[1]
