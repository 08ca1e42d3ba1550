"""`barnraise bench discovery`: real processes store and find, also with one of them frozen."""

import json
import os
import subprocess
import sys

import pytest

from sim.bench.discovery import quantile_ms
from tests.e2e.demo_command import environment
from tests.e2e.node_command import COMMAND

KEYS = (
    *("peers", "keys", "join_p50_s", "store_p50_ms", "store_p99_ms", "get_p50_ms", "get_p99_ms"),
    *("agreed_get_p50_ms", "agreed_get_p99_ms"),
)


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.skipif(os.name != "posix", reason="freezes a process")
def test_every_key_is_found_with_a_node_frozen() -> None:
    words = ["bench", "discovery", "--peers", "4", "--keys", "12", "--frozen", "1", "--json"]
    done = subprocess.run(
        [*COMMAND, *words], env=environment(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["success"] == 1.0
    assert told["cpu_ms_per_store"] > 0.0
    assert all(told[key] > 0 for key in KEYS)


@pytest.mark.slow
@pytest.mark.net
def test_nodes_that_enter_at_once_know_all() -> None:
    words = ["bench", "discovery", "--peers", "4", "--keys", "2", "--at-once", "--json"]
    done = subprocess.run(
        [*COMMAND, *words], env=environment(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert 0.0 < told["join_p50_s"] <= told["join_max_s"]
    assert told["success"] == 1.0


class DhtNode:
    """A node of the DHT in a process of its own, which lives as long as its input."""

    def __init__(self, number: int) -> None:
        line = [sys.executable, "-P", "-m", "sim.bench.dht_node", str(number)]
        self.process = subprocess.Popen(
            line, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.address = ""

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        said = json.loads(self.process.stdout.readline())
        assert isinstance(said, dict)
        return said

    def ask(self, *words: str) -> dict[str, object]:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.hear()


@pytest.mark.slow
@pytest.mark.net
def test_halves_that_began_apart_are_one_once_any_node_knows_both() -> None:
    nodes = [DhtNode(number + 1) for number in range(7)]
    try:
        for node in nodes:
            addresses = node.hear()["addresses"]
            assert isinstance(addresses, list)
            node.address = str(addresses[0])
        one, other, bridge = nodes[:3], nodes[3:6], nodes[6]
        for half in (one, other):
            for node in half:
                node.ask("join", *([half[0].address] if node is not half[0] else []))
        one[1].ask("store", "early")
        assert other[1].ask("get", "early", "1")["found"] is False
        bridge.ask("join", one[2].address, other[2].address)
        # What is said from now on is found from either side, and so is what was said before.
        other[0].ask("store", "late")
        assert one[0].ask("get", "late", "1")["found"] is True
        assert other[1].ask("get", "early", "1")["found"] is True
        # Nobody is left in the middle.
        bridge.process.kill()
        one[0].ask("store", "last")
        assert other[0].ask("get", "last", "1")["found"] is True
    finally:
        for node in nodes:
            node.process.kill()
            node.process.communicate()


def test_quantiles_are_of_the_ordered_times() -> None:
    times_s = [0.004, 0.001, 0.003, 0.002]
    assert quantile_ms(times_s, 0.5) == 3.0
    assert quantile_ms(times_s, 0.99) == 4.0
    assert quantile_ms([0.0015], 0.5) == 1.5
