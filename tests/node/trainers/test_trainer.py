"""The network process and its trainer: real processes, and small ones that break the rules."""

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from node.holdings.shard_store import ShardStore
from node.processes.children import child_environment, trainer_threads
from node.trainers import trainer as trainer_edge
from node.trainers.trainer import TrainerConfig, anchors_in_place, open_trainer
from protocol.errors import ManifestError, TrainerError
from tests.training.disk_run import MANIFEST_FILE, write_run
from tests.training.replicas import INNER
from training.channel.exchange import Contribution, Outcome, RunClock
from training.channel.frames import Audit, Progress, Ready, Start, Validation
from training.models.genesis import genesis_weights
from training.numeric.arithmetic import joined
from training.numeric.memory import is_held_elsewhere

SAMPLES = INNER.inner_steps * INNER.batch
LONG_BATCH = 16_384
"""So large that a step takes a good part of a second."""

CLOCK = RunClock(round=0, step=0, tokens=0)
AUDIT = Audit(
    number=0,
    path="",
    round=0,
    step=0,
    segment=0,
    lease=(),
    before=b"",
    residual_before=b"",
    inherited=(),
    since=0,
)
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux has pidfd, to watch a process not our child"
)

PRELUDE = """
import os, signal, sys, threading
from training.channel.exchange import TrainerTimes
from training.channel.frames import *
READY = Ready(threads=1, parameters=1, device="cpu", precision="float32", micro_batch=1)
def say(frame):
    os.write(1, pack_frame(frame))
def contribute(sequence=0, fragment=0, lengths=(0, 0), **more):
    say(Contributed(sequence=sequence, fragment=fragment, lengths=lengths, tokens=1, samples=1,
                    steps=1, residual_before=b"", residual_after=b"", loss=1.0, **more))
def wait():
    threading.Event().wait()
"""


def config(folder, **inner):
    manifest = write_run(folder, inner=dataclasses.replace(INNER, **inner))
    path = folder / MANIFEST_FILE
    return TrainerConfig(folder=folder, manifest=manifest, manifest_path=path, device="cpu")


def trainer_that(does):
    return (sys.executable, "-c", PRELUDE + does)


def fake(folder, does):
    return open_trainer(config(folder), command=trainer_that(does))


async def next_of(trainer, kind):
    async for event in trainer:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"the trainer ended without a {kind.__name__}")


async def start(trainer, config, *, validate=False):
    inner = config.manifest.inner
    lease = ((0, inner.inner_steps * inner.batch),)
    await trainer.start(
        Start(clock=CLOCK, lease=lease, validate=validate),
        anchors=genesis_weights(config.manifest),
    )


def outcome_of_round(number, anchor_N, *, last=False):
    first = number * SAMPLES
    return Outcome(
        listed=True,
        anchor_N=anchor_N,
        clock=RunClock(round=number, step=number * INNER.inner_steps, tokens=1),
        lease=() if last else ((first, first + SAMPLES),),
    )


async def end_of(pid):
    descriptor = os.pidfd_open(pid)
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


TRAINS_WHEN_ASKED = """
os.read(0, 65536)
say(Progress(step=1, loss=1.0))
os.read(0, 65536)
contribute()
wait()
"""


async def test_anchor_that_is_read_in_place_is_held_until_the_contribution_and_no_longer(tmp_path):
    async with fake(tmp_path, TRAINS_WHEN_ASKED) as trainer:
        assert trainer.reads_in_place
        anchor_N = trainer.anchors.take()
        anchor_N[:] = 2.0
        place, gone = trainer.anchors.place_of(anchor_N), weakref.ref(anchor_N)
        await trainer.start(Start(clock=CLOCK, lease=((0, SAMPLES),)), anchors=(anchor_N[:],))
        del anchor_N
        await next_of(trainer, Progress)
        assert gone() is not None
        assert trainer.anchors.place_of(trainer.anchors.take()) != place
        await trainer.audit(AUDIT)
        await next_of(trainer, Contribution)
        assert gone() is None
        assert trainer.anchors.place_of(trainer.anchors.take()) == place


READS_ON_UNTIL_ASKED = """
os.read(0, 65536)
contribute(reads_on=True)
os.read(0, 65536)
say(AnchorRead())
say(Progress(step=1, loss=1.0))
wait()
"""


async def test_anchor_that_is_still_measured_behind_the_contribution_is_held_until_it_was_read(
    tmp_path,
):
    async with fake(tmp_path, READS_ON_UNTIL_ASKED) as trainer:
        anchor_N = trainer.anchors.take()
        gone = weakref.ref(anchor_N)
        await trainer.start(Start(clock=CLOCK, lease=((0, SAMPLES),)), anchors=(anchor_N[:],))
        del anchor_N
        await next_of(trainer, Contribution)
        assert gone() is not None
        await trainer.audit(AUDIT)
        await next_of(trainer, Progress)
        assert gone() is None


@pytest.fixture
def on_disk(monkeypatch):
    """As where there is no memory for the mapped file."""
    monkeypatch.setattr(trainer_edge, "free_memory_bytes", lambda: 0)


@LINUX
async def test_trainer_gets_its_mapped_file_in_memory_which_is_gone_with_it(tmp_path):
    def files():
        names = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.exists()]
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [name for name in (*names, *maps) if "barnraise.channel" in name]

    gc.collect()
    before = len(files())
    anchors = genesis_weights(config(tmp_path).manifest)
    async with fake(tmp_path, TRAINS_WHEN_ASKED) as trainer:
        assert len(files()) > before
        assert not list(tmp_path.glob("*.channel"))
        await trainer.start(Start(clock=CLOCK, lease=((0, SAMPLES),)), anchors=anchors)
        await next_of(trainer, Progress)
        await trainer.audit(AUDIT)
        contribution = await next_of(trainer, Contribution)
        assert contribution.payloads
    del trainer, contribution
    gc.collect()
    assert len(files()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="holes of Linux")
async def test_anchor_that_lies_elsewhere_is_copied_and_the_copy_goes_with_the_contribution(
    tmp_path, on_disk
):
    def blocks():
        (path,) = tmp_path.glob("*.channel")
        return path.stat().st_blocks

    async with fake(tmp_path, TRAINS_WHEN_ASKED) as trainer:
        anchors = genesis_weights(config(tmp_path).manifest)
        before = blocks()
        await trainer.start(Start(clock=CLOCK, lease=((0, SAMPLES),)), anchors=anchors)
        assert blocks() > before
        await next_of(trainer, Progress)
        await trainer.audit(AUDIT)
        await next_of(trainer, Contribution)
        assert blocks() == before


async def test_state_lies_where_the_trainer_reads_it_and_is_held_by_the_store_alone(tmp_path):
    run = config(tmp_path)
    store = ShardStore(run.manifest, 0, joined(genesis_weights(run.manifest)))
    anchor_N = store.state.anchor_N
    async with fake(tmp_path, TRAINS_WHEN_ASKED) as trainer:
        async with anchors_in_place(trainer, store) as moved:
            assert moved is not None
            assert moved[0] is anchor_N
            assert moved[1] is store.state.anchor_N
            assert np.array_equal(moved[1], anchor_N)
            assert trainer.anchors.place_of(moved[1]) is not None
            del moved
            vectors = store._let_go()
            with trio.fail_after(20):
                # By the thread that moved it, which ends by itself.
                while is_held_elsewhere(vectors, 0):
                    await trio.lowlevel.checkpoint()
        assert not trainer.anchors.made(store._step_rules.anchors.take())


@pytest.mark.extended
async def test_a_trainer_contributes_takes_over_the_outcome_and_ends_with_its_run(tmp_path):
    from training.data.corpus import open_corpus
    from training.loop.idle_validation import VALIDATION_WINDOWS, anchor_loss
    from training.models.building import build_model

    run = dataclasses.replace(config(tmp_path), validation_share=1.0)
    anchor = genesis_weights(run.manifest)[0] * np.float32(0.5)
    async with open_trainer(run) as trainer:
        await start(trainer, run, validate=True)
        ready = await next_of(trainer, Ready)
        assert ready == Ready(
            threads=1, parameters=len(anchor), device="cpu", precision="float32", micro_batch=4
        )
        if os.name != "nt":
            os.kill(trainer.pid, signal.SIGINT)  # Ctrl+C is for the network process to act on.
        first = await next_of(trainer, Contribution)
        await trainer.deliver(outcome_of_round(1, anchor))
        second = await next_of(trainer, Contribution)
        await trainer.deliver(outcome_of_round(2, anchor, last=True), validate=True)
        halved = await next_of(trainer, Validation)
        rest = [event async for event in trainer]

    held_out = open_corpus(run.manifest.corpus).held_out_windows(VALIDATION_WINDOWS, 8)
    model = build_model(run.manifest)
    shard = run.manifest.shards[0]
    assert all(isinstance(event, Progress) for event in rest)
    assert halved.round == 2
    assert halved.windows == halved.of_windows == len(held_out)
    assert second.times is not None
    assert second.times.validate_s > 0.0
    assert halved.loss == pytest.approx(anchor_loss(model, shard, [anchor], held_out), rel=1e-5)
    assert (first.samples, first.tokens, first.steps) == (SAMPLES, 8 * SAMPLES, 10)
    assert len(first.payloads) == run.manifest.layout(0).num_cells(0)
    # Drift from the anchor that was delivered: ten steps of 0.003 move no weight further.
    drift = np.concatenate([np.frombuffer(payload, np.float32) for payload in second.payloads])
    assert 0 < np.abs(drift).max() < 0.05
    assert np.abs(genesis_weights(run.manifest)[0] - anchor).max() > 0.05


@pytest.mark.extended
@LINUX
async def test_a_killed_trainer_is_seen_within_a_second(tmp_path):
    run = config(tmp_path)
    async with open_trainer(run) as trainer:
        await start(trainer, run)
        await next_of(trainer, Progress)
        os.kill(trainer.pid, signal.SIGKILL)
        with trio.fail_after(1), pytest.raises(TrainerError, match="status -9"):
            await next_of(trainer, Validation)
        with pytest.raises(TrainerError, match="status -9"):
            await trainer.deliver(outcome_of_round(1, genesis_weights(run.manifest)[0]))


@pytest.mark.slow
async def test_leaving_ends_a_trainer_in_the_middle_of_a_long_step(tmp_path):
    run = config(tmp_path, batch=LONG_BATCH)
    async with open_trainer(run) as trainer:
        await start(trainer, run)
        await next_of(trainer, Ready)  # It is in its first step from here on.
        began = trio.current_time()
    assert trio.current_time() - began < 1
    assert not is_running(trainer.pid)


@LINUX
@pytest.mark.slow
async def test_a_killed_network_process_takes_its_trainer_along(tmp_path):
    script = """
import sys, trio
from pathlib import Path
from tests.node.trainers.test_trainer import *
trainer_edge.free_memory_bytes = lambda: 0
async def main():
    run = config(Path(sys.argv[1]), batch=LONG_BATCH)
    async with open_trainer(run) as trainer:
        await start(trainer, run)
        await next_of(trainer, Ready)
        print(trainer.pid, flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    parent = await trio.lowlevel.open_process(
        [sys.executable, "-c", script, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=child_environment(),
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.receive_some(100))
    async with trio.open_nursery() as nursery:
        with trio.CancelScope(shield=True), trio.fail_after(10):
            nursery.start_soon(end_of, pid)
            await trio.testing.wait_all_tasks_blocked()
            parent.kill()
            began = trio.current_time()
            await parent.wait()
    assert trio.current_time() - began < 1
    await parent.stdout.aclose()
    # What the killed one left behind goes with the next start.
    left = list(tmp_path.glob("*.channel"))
    assert len(left) == 1
    async with fake(tmp_path, "wait()"):
        assert not left[0].exists()
    assert not list(tmp_path.glob("*.channel"))


async def test_a_trainer_that_cannot_start_says_why(tmp_path):
    run = config(tmp_path)
    (tmp_path / MANIFEST_FILE).write_bytes(b"\x90")
    async with open_trainer(run) as trainer:
        with pytest.raises(TrainerError, match=r"(?s)status 1.*DecodeError: SignedManifest"):
            await trainer.next_event()


async def test_a_manifest_of_another_run_is_refused_by_the_trainer(tmp_path):
    run = config(tmp_path)
    write_run(tmp_path, inner=dataclasses.replace(INNER, batch=5))
    async with open_trainer(run) as trainer:
        with pytest.raises(ManifestError, match=r"not [0-9a-f]{12}"):
            await trainer.next_event()


async def test_the_last_words_of_a_dead_trainer_are_in_the_error(tmp_path):
    async with fake(tmp_path, "sys.exit('no such device\\x1b[31m')") as trainer:
        with pytest.raises(TrainerError, match=r"(?s)status 1.*no such device\?\[31m"):
            await trainer.next_event()


async def test_a_trainer_that_ends_before_its_run_is_dead(tmp_path):
    async with fake(tmp_path, "say(READY)") as trainer:
        await trainer.next_event()
        with pytest.raises(TrainerError, match="status 0"):
            await trainer.next_event()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("does", "complaint"),
    [
        ("os.write(1, b'hello world'); wait()", "claims"),
        ("say(Deliver(sequence=0, listed=False, clock=RunClock(round=0, step=0, tokens=0), "
         "lease=(), validate=False)); wait()", "unknown kind"),
        ("contribute(fragment=1); wait()", "fragment 1"),
        ("contribute(lengths=(1,)); wait()", "1 cells"),
        ("contribute(lengths=(1 << 40, 1)); wait()", "of its place"),
        ("contribute(sequence=1); wait()", "out of turn"),
        ("contribute(); contribute(sequence=1); wait()", "before an outcome"),
        ("contribute(); say(AnchorRead()); wait()", "it was not reading"),
        ("contribute(times=TrainerTimes(save_s=-1.0)); wait()", "times that are none"),
        ("contribute(times=TrainerTimes(wait_s=float('nan'))); wait()", "times that are none"),
        ("say(Validation(round=1, loss=2.0, windows=0, of_windows=8)); wait()", "0 of 8 windows"),
    ],
)  # fmt: skip
async def test_a_trainer_that_breaks_the_rules_is_killed(tmp_path, does, complaint):
    async with fake(tmp_path, does) as trainer:
        with trio.fail_after(60), pytest.raises(TrainerError, match=complaint):
            await next_of(trainer, Validation)
        assert not is_running(trainer.pid)


async def test_progress_is_dropped_for_a_slow_reader_and_nothing_else_is(tmp_path):
    does = """
for step in range(1000):
    say(Progress(step=step, loss=1.0))
say(Validation(round=3, loss=2.0, windows=1, of_windows=2))
wait()
"""
    async with fake(tmp_path, does) as trainer:
        await trainer.next_event()
        steps = []
        while isinstance(event := await trainer.next_event(), Progress):
            steps.append(event.step)

        assert event == Validation(round=3, loss=2.0, windows=1, of_windows=2)
        assert steps == sorted(set(steps))


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM cannot be ignored on Windows")
async def test_a_trainer_that_will_not_end_is_killed_within_a_second(tmp_path):
    stubborn = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(READY)
wait()
"""
    async with fake(tmp_path, stubborn) as trainer:
        await trainer.next_event()
        began = trio.current_time()
    assert trio.current_time() - began < 1
    assert not is_running(trainer.pid)


async def test_cancelling_ends_the_trainer_too(tmp_path):
    with trio.CancelScope() as scope:
        async with fake(tmp_path, "say(READY); wait()") as trainer:
            await trainer.next_event()
            scope.cancel()
            await trainer.next_event()
    assert scope.cancelled_caught
    assert not is_running(trainer.pid)


async def test_what_the_body_raises_comes_out_as_it_is(tmp_path, on_disk):
    with pytest.raises(KeyError, match="mine"):
        async with fake(tmp_path, "wait()"):
            raise KeyError("mine")
    assert not list(tmp_path.glob("*.channel"))


async def test_a_command_that_is_not_there_leaves_no_file(tmp_path, on_disk):
    with pytest.raises(FileNotFoundError):
        async with open_trainer(config(tmp_path), command=(str(tmp_path / "absent"),)):
            pass
    assert not list(tmp_path.glob("*.channel"))


@pytest.mark.extended
def test_the_network_process_side_loads_no_torch():
    code = "import node.trainers.trainer, sys; sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=child_environment(), check=False).returncode == 0


def test_thread_budget_is_a_fair_share_and_never_nothing():
    cores = os.cpu_count() or 1

    assert trainer_threads(1) == cores
    assert trainer_threads(10 * cores) == 1
