"""Options of the benches: what is refused, and what a machine must have."""

import os
import signal
import sys

import pytest

from protocol.errors import ConfigError
from protocol.limits import MIB
from sim.bench.allreduce import AllreduceOptions
from sim.bench.faults import FaultOptions
from sim.bench.staging import SLOW_BYTES_PER_S, timing
from sim.processes import usage as needs_module
from sim.processes.usage import (
    Needs,
    check_needs,
    cpu_ticks,
    memory_available,
    memory_bytes,
    needs,
    proportional_bytes,
    resident_bytes,
)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"peers": 1}, "--peers 1"),
        ({"peers": 2}, "--fault takes at least 3 peers"),
        ({"elements": 10}, "--elements 10"),
        ({"fault": "fire"}, "--fault 'fire' is none of kill, freeze, none"),
        ({"moment": "noon"}, "--moment 'noon' is none of training"),
        ({"victim": "me"}, "--victim 'me' is none of member"),
        ({"repeat": 0}, "--repeat 0"),
        ({"rounds": 0}, "--rounds 0"),
        ({"codec": "zip"}, "--codec 'zip' is none of cosine, dense2bit, e3m0"),
        ({"aggregator": "luck"}, "--aggregator 'luck' is none of bulyan"),
    ],
)
def test_option_that_makes_no_sense_is_refused(change, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        FaultOptions(**{"peers": 4, "elements": 5000, "folder": tmp_path, **change})


def test_freeze_needs_a_system_that_can(monkeypatch, tmp_path):
    FaultOptions(peers=4, elements=5000, folder=tmp_path, fault="freeze")
    monkeypatch.delattr(signal, "SIGSTOP")
    with pytest.raises(ConfigError, match="no signal"):
        FaultOptions(peers=4, elements=5000, folder=tmp_path, fault="freeze")


def test_two_peers_may_be_calm_and_average(tmp_path):
    assert FaultOptions(peers=2, elements=5000, folder=tmp_path, fault="none").is_calm
    assert AllreduceOptions(peers=2, elements=5000, folder=tmp_path).rounds == 3


def test_machine_that_is_too_small_is_told_how_much_is_wanted(monkeypatch, tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    2097152 kB\n")
    monkeypatch.setattr(needs_module, "_MEMORY_FILE", meminfo)
    check_needs(Needs(memory=2 << 30, disk=1), tmp_path)
    with pytest.raises(ConfigError, match=r"needs 3\.0 GiB of memory and 2\.0 GiB are free"):
        check_needs(Needs(memory=3 << 30, disk=1), tmp_path)
    with pytest.raises(ConfigError, match=r"of disk .* --out"):
        check_needs(Needs(memory=1, disk=1 << 60), tmp_path)
    meminfo.unlink()
    check_needs(Needs(memory=1 << 60, disk=1), tmp_path)  # A system that does not say.


def test_needs_grow_with_peers_and_elements():
    small, more, large = needs(3, 100_000), needs(6, 100_000), needs(3, 50_000_000)
    assert more.memory == 2 * small.memory
    assert large.memory > 3 * 4 * 50_000_000
    assert small.memory > 3 * 100 * MIB
    assert large.disk > 3 * 4 * 4 * 50_000_000


def test_texts_of_the_system_are_understood():
    assert memory_available("MemAvailable: x kB\nMemAvailable: 7 kB") == 7 * 1024
    assert memory_available("nothing") is None
    stat = "12 (a ) b) R 1 2 3 4 5 6 7 8 9 10 700 30 0 0"
    assert cpu_ticks(stat) == 730
    assert proportional_bytes("Rss: 9 kB\nPss:    5 kB\n") == 5 * 1024
    assert proportional_bytes("") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the system says it in /proc")
def test_resident_memory_is_that_of_all_processes_that_live() -> None:
    alone = resident_bytes([os.getpid()])
    assert alone > memory_bytes([os.getpid()]) // 2 > 1 << 20
    assert resident_bytes([os.getpid(), os.getpid(), 1 << 30]) > 1.9 * alone


def test_deadline_gives_slow_peers_time_for_large_vectors():
    assert timing(1000).deadline_floor_s == 1.0
    large = timing(50_000_000)
    assert large.deadline_floor_s == 4 * 50_000_000 / SLOW_BYTES_PER_S
    assert large.deadline_cap_s > large.deadline_floor_s
