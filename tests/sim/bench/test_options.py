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
from sim.processes.usage import (
    PeakMemory,
    bytes_to_disk,
    cpu_ticks,
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


def test_needs_grow_with_peers_and_elements():
    small, more, large = needs(3, 100_000), needs(6, 100_000), needs(3, 50_000_000)
    assert more.memory_bytes == 2 * small.memory_bytes
    assert large.memory_bytes > 3 * 4 * 50_000_000
    assert small.memory_bytes > 3 * 100 * MIB
    assert large.disk_bytes > 3 * 4 * 4 * 50_000_000


def test_texts_of_the_system_are_understood():
    assert bytes_to_disk("wchar: 9\nwrite_bytes: 4096\ncancelled_write_bytes: 1\n") == 4096
    assert bytes_to_disk("wchar: 9\nwrite_bytes: x\n") == bytes_to_disk("") == 0
    stat = "12 (a ) b) R 1 2 3 4 5 6 7 8 9 10 700 30 0 0"
    assert cpu_ticks(stat) == 730
    assert proportional_bytes("Rss: 9 kB\nPss:    5 kB\n") == 5 * 1024
    assert proportional_bytes("") == 0


def test_peak_between_two_looks_is_the_system_s_mark_without_what_others_share() -> None:
    peak = PeakMemory()
    peak.take(resident=100, proportional=70, high=100)
    peak.take(resident=120, proportional=80, high=300)
    peak.take(resident=50, proportional=45, high=300)
    assert peak.num_bytes == 300 - 40
    # The mark is of when most was there, not of when most was its own.
    peak.take(resident=110, proportional=109, high=300)
    assert peak.num_bytes == 300 - 40
    calm = PeakMemory()
    calm.take(resident=100, proportional=70, high=0)
    assert calm.num_bytes == 70


@pytest.mark.skipif(sys.platform != "linux", reason="the system says it in /proc")
def test_peak_of_a_living_process_is_at_least_what_it_has() -> None:
    peak = PeakMemory()
    peak.look(os.getpid())
    peak.look(1 << 30)
    assert peak.num_bytes >= memory_bytes([os.getpid()]) // 2 > 0


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
