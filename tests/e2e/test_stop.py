"""The manifest's stop conditions with real processes: a last seal, "run finished", status 0."""

import time
from pathlib import Path

import pytest

from protocol.manifest import StopSpec
from tests.e2e.swarm import Swarm, swarm_of


def ends_together(swarm: Swarm) -> int:
    """The round in which all nodes end, with equal anchors; their exit statuses are 0."""
    statuses = [node.ended(timeout_s=90.0) for node in swarm.nodes]
    assert statuses == [0] * len(statuses), "\n".join(node.log()[-2000:] for node in swarm.nodes)
    finished = [[e for e in n.events if e["event"] == "finished"] for n in swarm.nodes]
    rounds = {events[0]["round"] for events in finished}
    assert len(rounds) == 1
    anchors = {
        (Path(events[0]["checkpoint"]) / "anchor.safetensors").read_bytes() for events in finished
    }
    assert len(anchors) == 1
    (last,) = rounds
    return int(last)


@pytest.mark.slow
def test_run_ends_with_the_seal_that_reaches_its_tokens(tmp_path: Path) -> None:
    tokens_each = 8 * 4 * 16
    with swarm_of(tmp_path, 2, stop=StopSpec(tokens=60 * tokens_each)) as swarm:
        last = ends_together(swarm)
    # Of one or two contributions each round.
    assert 30 <= last <= 60


@pytest.mark.slow
def test_run_ends_with_the_first_seal_past_its_date(tmp_path: Path) -> None:
    end_s = int(time.time()) + 20
    with swarm_of(tmp_path, 2, stop=StopSpec(unix_s=end_s)) as swarm:
        swarm.until_round(3, timeout_s=19.0)
        last = ends_together(swarm)
        assert time.time() >= end_s
        assert last > 3


@pytest.mark.slow
def test_node_started_after_the_end_has_nothing_to_do_and_says_so(tmp_path: Path) -> None:
    with swarm_of(tmp_path, 1, rounds=4) as swarm:
        assert ends_together(swarm) == 4
        (node,) = swarm.nodes
        node.start()
        assert node.ended(timeout_s=60.0) == 0
        mine = [e["event"] for e in node.events if e["life"] == 2]
        assert "finished" in mine
        assert "sealed" not in mine
