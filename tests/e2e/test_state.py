"""State over real processes: one node trains alone and serves, and a whole swarm comes back."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.e2e.node_command import LOOPBACK, SMALL, NodeCommand, node, wait, write_run_file
from tests.e2e.test_run_join import BOTH, wait_for_joiner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="sends signals to process groups"),
]

LONG = SMALL | {"rounds": "100000", "inner_steps": "60"}
"""Rounds of a second or more: a joiner hears of them by heartbeats alone, and must come near.
"""
SEALED = r"round +(\d+) of \d+ sealed"


def last_round(one: NodeCommand) -> int:
    return int(re.findall(SEALED, one.said())[-1])


@pytest.mark.parametrize("rounds_before", [3, 24])
def test_one_node_trains_alone_and_a_second_joins_it_later(
    tmp_path: Path, rounds_before: int
) -> None:
    # A few rounds are stepped through, many of them are fetched as a state.
    write_run_file(tmp_path, **LONG)
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        a.wait_for(f"round +{rounds_before} of .*: 1 of 1 listed")
        with node(tmp_path, "b", "join", a.link(), *LOOPBACK) as b:
            got = int(b.wait_for(r"has the state of round (\d+) from its peers"))
            assert got >= rounds_before - 1
            a.wait_for(BOTH, 2)
            b.wait_for(BOTH, 2)
        # The founder is the eldest voter: it goes on alone, and serves whoever comes next.
        a.wait_for(r"gone, 0 linked now")
        alone = last_round(a)
        a.wait_for(rf"round +{alone + 3} of")
        with node(tmp_path, "b", "join", a.link(), *LOOPBACK) as b:
            b.wait_for("goes on from round")
            b.wait_for(BOTH, 2)
        assert "Traceback" not in a.said() + b.said()


def test_whole_swarm_is_killed_some_checkpoints_are_lost_and_it_goes_on(tmp_path: Path) -> None:
    all_three = r"3 of 3 listed"
    write_run_file(tmp_path, **LONG)
    wait_for_joiner(tmp_path, "a")
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        link = a.link()
        with (
            node(tmp_path, "b", "join", link, *LOOPBACK) as b,
            node(tmp_path, "c", "join", link, *LOOPBACK) as c,
        ):
            nodes = (a, b, c)
            for one in nodes:
                one.wait_for(all_three, 3)
            for one in nodes:
                one.power_cut()
    before = {one.state.name: last_round(one) for one in nodes}
    newest = max(before.values())
    for state, count in (("b", 1), ("c", 99)):
        (folder,) = (tmp_path / state).glob("runs/*/checkpoints")
        for path in sorted(folder.glob("round-*"), reverse=True)[:count]:
            shutil.rmtree(path)
    with (
        node(tmp_path, "c", "join", link, *LOOPBACK) as c,
        node(tmp_path, "b", "join", link, *LOOPBACK) as b,
    ):
        wait(1.0)
        with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
            for one in (a, b, c):
                one.wait_for(all_three, 2)
            for one in (a, b, c):
                first = int(re.findall(SEALED, one.said())[0])
                # What was final is final; of the round that was under way nothing was.
                assert before[one.state.name] - 1 <= first, one.said()
                assert "Traceback" not in one.said()
            assert min(int(re.findall(SEALED, o.said())[0]) for o in (a, b, c)) <= newest + 2
