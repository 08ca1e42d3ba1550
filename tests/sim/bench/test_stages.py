"""Processor time by stage: whose it is, nothing is lost, and a torn file harms nothing."""

import gc
import re
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from protocol.grid import cell_root
from sim.bench.sampling import (
    _STAGES,
    OTHER,
    Profile,
    Sampler,
    median_profile,
    named,
    read_samples,
    stage_of,
    stages_between,
)
from training.compression import CODECS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("function", "stage"),
    [
        ("/x/protocol/grid.py cell_root", "hash"),
        ("/x/training/numeric/arithmetic.py squared_norm", "norms"),
        ("/x/training/compression/blocks.py squared_norm", "norms"),
        ("/x/training/compression/blocks.py weighted_sum", "sum"),
        ("C:\\x\\node\\shard_store.py reduce", "sum"),
        ("/x/dht/transport/libp2p_session.py send", "send, encrypt"),
        ("/x/dht/transport/libp2p_session.py receive", "receive, decrypt"),
        ("/x/dht/transport/libp2p_security.py send", "send, encrypt"),
        ("/x/dht/transport/libp2p_security.py _decrypted", "receive, decrypt"),
        ("/x/dht/transport/libp2p_host.py serve", "connections"),
        ("/x/dht/kademlia/routing.py add", "gossip"),
        ("/x/node/holdings/results.py put", "journal"),
        ("/x/node/holdings/journal.py keep_result", "journal"),
        ("/x/node/holdings/shard_store.py put_part", ""),
        ("/lib/python3.11/queue.py get", ""),
    ],
)
def test_function_has_the_stage_that_it_works_for(function, stage):
    assert named(function) == stage


def test_every_function_that_a_stage_names_is_there():
    # Files move and functions get other names: what nobody is named after counts as another stage.
    paths = [path.relative_to(ROOT) for path in ROOT.glob("*/**/*.py")]
    functions = [
        f"{path.as_posix()} {name}"
        for path in paths
        if path.parts[0] in ("dht", "node", "protocol", "sim", "training")
        for name in ["", *re.findall(r"def (\w+)", (ROOT / path).read_text())]
    ]
    for stage, words in _STAGES:
        for word in words:
            assert any(word in function for function in functions), (stage, word)


def test_stage_is_that_of_the_innermost_function_that_has_one():
    def grid():
        return stage_of(sys._getframe())

    assert grid() == OTHER
    assert stage_of(None) == OTHER


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of threads")
def test_samples_share_out_the_time_of_all_threads_and_of_nobody_twice(tmp_path):
    path = tmp_path / "A.network"
    sampler = Sampler(path)
    sampler.sample(0, None)
    first_s = sum(stages_between([path], 0.0, float("inf")).values())
    before_s, done = time.process_time(), threading.Event()
    data = bytes(1 << 20)

    def hash_on():
        while not done.is_set():
            cell_root(data)

    worker = threading.Thread(target=hash_on)
    worker.start()
    while time.process_time() < before_s + 0.1:
        sampler.sample(0, sys._getframe())
    sampler.sample(0, sys._getframe())
    used_s = time.process_time() - before_s
    done.set()
    worker.join()
    found = stages_between([path, tmp_path / "missing"], 0.0, float("inf"))
    assert found["hash"] > 0.0
    assert sum(found.values()) - first_s == pytest.approx(used_s, rel=0.2, abs=0.05)


def test_samples_of_other_moments_and_torn_lines_are_left_out(tmp_path):
    path = tmp_path / "A.trainer"
    path.write_text("1.0\thash\t0.25\n2.0\thash\t0.5\n2.5\tsum\t1.0\n3.0\thash\t4.0\n3.5\thash\t9")
    assert stages_between([path], 2.0, 3.0) == {"hash": 0.5, "sum": 1.0}
    assert [used_s for _, _, used_s in read_samples(path.read_text())] == [0.25, 0.5, 1.0, 4.0]


def test_median_counts_rounds_without_a_stage_as_nothing():
    sums: Profile = {"network": {"hash": 1.0, "sum": 3.0}}
    rounds: list[Profile] = [sums, {"network": {"hash": 2.0}}, {"network": {}}]
    assert median_profile(rounds) == {"network": {"hash": 1.0, "sum": 0.0}}
    assert median_profile([]) == {}
    assert median_profile([{}, {}]) == {}


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clocks of threads")
def test_sample_holds_nothing_of_what_it_looked_at(tmp_path):
    sampler = Sampler(tmp_path / "A.network")

    def work():
        contribution_N = np.zeros(4, dtype=np.float32)
        sampler.sample(0, sys._getframe())
        return weakref.ref(contribution_N)

    gc.disable()
    try:
        assert work()() is None
    finally:
        gc.enable()


def test_every_codec_is_counted_as_encoding_and_decoding():
    for name in CODECS:
        kind = type(CODECS[name]())
        for what in ("encode", "decode"):
            module = getattr(kind, what).__module__.rpartition(".")[
                2
            ]  # Where it was inherited from.
            assert named(f"/x/training/compression/{module}.py {what}") == what
