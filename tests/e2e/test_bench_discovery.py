"""`barnraise bench discovery`: real processes store and find, also with one of them frozen."""

import json
import os
import subprocess

import pytest

from sim.bench.discovery import quantile_ms
from tests.e2e.demo_command import environment
from tests.e2e.node_command import COMMAND

KEYS = ("peers", "keys", "join_p50_s", "store_p50_ms", "store_p99_ms", "get_p50_ms", "get_p99_ms")


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


def test_quantiles_are_of_the_ordered_times() -> None:
    times_s = [0.004, 0.001, 0.003, 0.002]
    assert quantile_ms(times_s, 0.5) == 3.0
    assert quantile_ms(times_s, 0.99) == 4.0
    assert quantile_ms([0.0015], 0.5) == 1.5
