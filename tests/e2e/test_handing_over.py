"""The founder of a young run leaves by itself, with real processes: the others go on without it."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.swarm import NodeUnderTest, Swarm, swarm_of


def told(node: NodeUnderTest, event: str) -> list[dict[str, Any]]:
    return [one for one in node.life() if one["event"] == event]


def seals_on(swarm: Swarm, nodes: list[NodeUnderTest]) -> None:
    """Five rounds more are final at all of these, and equal."""
    newest = max(node.sealed() for node in nodes)
    swarm.wait(
        "five rounds more",
        lambda: all(max(node.seals(), default=0) >= newest + 5 for node in nodes),
    )
    for index in range(newest, newest + 5):
        assert len({digest for node in nodes for digest in node.seals().get(index, ())}) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize("trust", ["open", "friends"])
def test_founder_that_is_the_only_voter_hands_its_vote_on_and_goes(
    tmp_path: Path, trust: str
) -> None:
    with swarm_of(tmp_path, 3, trust=trust) as swarm:
        founder, *others = swarm.nodes
        swarm.wait(
            "a seat for somebody", lambda: any(e["members"] > 1 for e in told(founder, "sealed"))
        )
        assert founder.process is not None
        founder.process.send_signal(signal.SIGINT)
        assert founder.ended(timeout_s=60.0) == 130
        assert not told(founder, "warning"), "it went with a vote that is needed"
        assert told(founder, "left")
        seals_on(swarm, others)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_only_voter_that_is_alone_says_what_its_going_costs(tmp_path: Path) -> None:
    with swarm_of(tmp_path, 1) as swarm:
        (founder,) = swarm.nodes
        swarm.until_round(1)
        assert founder.process is not None
        founder.process.send_signal(signal.SIGINT)
        assert founder.ended(timeout_s=10.0) == 130
        (said,) = told(founder, "warning")
        assert "nothing of this run becomes final" in said["text"]
