"""`bench link`: what it is asked, how it counts, and one small run of the whole."""

import cProfile
import json
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from protocol.errors import ConfigError
from sim.bench.link import (
    LinkOptions,
    LinkResult,
    LinkTransfers,
    link_json,
    percentile_ms,
    print_link,
)
from sim.bench.link_ends import OTHER, stage_of, stages_of


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mib": 0}, "--mib 0"),
        ({"security": "rot13"}, "--security 'rot13' is none of noise, tls"),
        ({"repeat": 0}, "--repeat 0"),
    ],
)
def test_option_that_makes_no_sense_is_refused(change, why):
    with pytest.raises(ConfigError, match=why):
        LinkOptions(**change)


def test_percentile_is_a_value_that_so_many_do_not_exceed():
    values_s = [number / 1000 for number in range(100, 0, -1)]
    assert percentile_ms(values_s, 50) == 50
    assert percentile_ms(values_s, 99) == 99
    assert percentile_ms([0.002], 99) == 2
    assert percentile_ms([], 50) is None


def test_rates_are_medians_and_ratios_are_of_one_run():
    fast, slow = LinkTransfers([0.5, 1.0, 9.0], [0.1] * 3, [0.2] * 3), LinkTransfers([4.0])
    result = LinkResult(
        {"ours": fast, "stock": slow, "tls": LinkTransfers(), "tcp": LinkTransfers()}
    )
    slow.send_cpu_s, slow.receive_cpu_s = [1.0], [2.0]
    found = link_json(LinkOptions(mib=512), "abc", result)
    assert found["stream_mib_s"] == 512
    assert found["times_stock"] == 4
    assert found["of_raw_tls"] is None
    assert found["send_cpu_s_per_gib"] == 0.2
    assert found["receive_cpu_s_per_gib"] == 0.4
    print_link(Console(quiet=True), LinkOptions(mib=512), result)


def test_profile_is_grouped_by_stage():
    near, far = socket.socketpair()
    with near, far, cProfile.Profile() as profile:
        for _ in range(100):
            near.send(bytes(1000))
            far.recv(1000)
            b"".join([bytes(10)] * 100)
    stages = stages_of(profile)
    assert stages["system calls"] > 0
    assert stages["copying"] > 0
    assert stage_of("/x/site-packages/trio/_core/_run.py", "checkpoint") == "scheduling"
    assert stage_of("/x/nothing.py", "known") == OTHER


@pytest.mark.slow
@pytest.mark.net
def test_link_is_measured_beside_the_others():
    command = [sys.executable, "-P", "-m", "node.cli", "bench", "link"]
    words = ["--mib", "2", "--repeat", "1", "--profile", "--json"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("stream_mib_s", "stock_libp2p_mib_s", "raw_tcp_mib_s", "raw_tls_mib_s"):
        assert found[name] > 0
    assert found["send_cpu_s_per_gib"] > 0
    assert 0 < found["rpc_p50_ms"] <= found["rpc_p99_ms"]
    assert found["stages"]["send"]["cipher"] > 0
