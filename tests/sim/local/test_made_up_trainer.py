"""The stand-in for the trainer, over the real channel to a network process's end of it."""

import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from node.processes.children import child_environment
from node.trainers.trainer import Trainer, TrainerConfig, open_trainer
from protocol.identity import Ed25519Signer
from protocol.wire import encode
from sim.local.made_up_trainer import made_up_drift, pace_s
from sim.local.options import LocalOptions, local_manifest
from tests.node.edge import FOUNDER_SEED, signed
from training.channel.exchange import Contribution, Outcome, RunClock, Turn
from training.channel.frames import Ready, Start
from training.compression import make_codec

pytestmark = pytest.mark.slow

MANIFEST = local_manifest(
    LocalOptions(peers=3, folder=Path(), elements=4000), Ed25519Signer(FOUNDER_SEED).peer_id
)
NUMEL = MANIFEST.layout(0).fragment_numels[0]
COMMAND = (sys.executable, "-P", "-m", "sim.local.made_up_trainer")
LEASE = ((0, 8),)


DELAYED = local_manifest(
    LocalOptions(peers=3, folder=Path(), elements=4000, preset="one_step_delay"),
    Ed25519Signer(FOUNDER_SEED).peer_id,
)


@asynccontextmanager
async def trainer(folder, name="B", *more: str, manifest=MANIFEST):
    folder = folder / name
    folder.mkdir(exist_ok=True)
    path = folder / "manifest"
    path.write_bytes(encode(signed(manifest)))
    config = TrainerConfig(
        folder=folder, manifest=manifest, manifest_path=path, inner_folder=folder / "inner"
    )
    command = (*COMMAND, "--seed", "1", "--name", name, "--round-s", "0.01", *more)
    with trio.fail_after(30):
        async with open_trainer(config, command=command) as one:
            yield one


def clock(round_index: int) -> RunClock:
    return RunClock(round=round_index, step=round_index, tokens=0)


def anchor(value: float):
    return np.full(NUMEL, value, dtype=np.float32)


async def contribution(one: Trainer):
    while not isinstance(event := await one.next_event(), Contribution):
        assert isinstance(event, Ready)
    return event


async def begin(one: Trainer, round_index: int, anchor_N, *, listed=False, resync=False):
    sealed = (round_index - 1,) if listed else ()
    since = round_index if resync else round_index - 1
    start = Start(clock=clock(round_index), lease=LEASE, since=since, listed=sealed)
    await one.start(start, anchors=(anchor_N,))
    return await contribution(one)


async def go_on(one: Trainer, round_index: int, anchor_N, *, listed: bool, resync=False):
    outcome = Outcome(
        listed=listed,
        is_resync=resync,
        anchor_N=anchor_N,
        clock=clock(round_index),
        lease=LEASE,
    )
    await one.deliver(outcome)
    return await contribution(one)


def decoded(one, manifest=MANIFEST):
    codec, layout = make_codec(manifest.outer), manifest.layout(0)
    cells = [codec.decode(p, layout.cell_numel(0, c)) for c, p in enumerate(one.payloads)]
    return np.concatenate(cells)


async def test_contribution_pulls_the_anchor_towards_one_and_differs_by_name_and_round(tmp_path):
    async with trainer(tmp_path) as one, trainer(tmp_path, "C") as other:
        first = await begin(one, 1, anchor(3.0))
        second = await go_on(one, 2, anchor(3.0), listed=True)
        others = await begin(other, 1, anchor(3.0))
    assert np.abs(decoded(first) - 0.2).max() < 0.01
    assert len({first.payloads, second.payloads, others.payloads}) == 3
    assert (first.samples, first.tokens > 0) == (
        MANIFEST.inner.inner_steps * MANIFEST.inner.batch,
        True,
    )


async def test_residual_follows_what_became_of_the_contribution(tmp_path):
    async with trainer(tmp_path) as one:
        first = await begin(one, 1, anchor(3.0))
        listed = await go_on(one, 2, anchor(2.9), listed=True)
        dropped = await go_on(one, 3, anchor(2.8), listed=False)
        late = await go_on(one, 6, anchor(2.7), listed=True)
        synced = await go_on(one, 7, anchor(2.7), listed=True, resync=True)
    assert listed.residual_before == first.residual_after != first.residual_before
    assert dropped.residual_before == listed.residual_before
    assert late.residual_before == dropped.residual_after
    assert synced.residual_before == first.residual_before


@pytest.mark.parametrize(
    ("next_round", "listed", "resync"),
    [
        (1, False, False),
        (2, True, False),
        (2, False, False),
        (2, False, True),
        (5, False, True),
    ],
)
async def test_trainer_that_died_goes_on_as_one_that_did_not(tmp_path, next_round, listed, resync):
    """Killed with a contribution under way, and started anew in the same round or a later one."""
    (tmp_path / "killed").mkdir()
    (tmp_path / "spared").mkdir()
    async with trainer(tmp_path / "killed") as one:
        before = await begin(one, 1, anchor(3.0))
        under_way = await go_on(one, 2, anchor(2.9), listed=True)
    value = 2.9 if next_round == 1 else 2.8
    async with trainer(tmp_path / "killed") as one:
        after = await begin(one, 1 + next_round, anchor(value), listed=listed, resync=resync)
    if next_round == 1:
        assert after == under_way
        return
    async with trainer(tmp_path / "spared") as one:
        assert await begin(one, 1, anchor(3.0)) == before
        assert await go_on(one, 2, anchor(2.9), listed=True) == under_way
        index = 1 + next_round
        assert await go_on(one, index, anchor(value), listed=listed, resync=resync) == after


async def test_with_a_round_of_delay_it_waits_for_the_round_before_and_restarts_with_it(tmp_path):
    """R5: the drift is that of the version it began from, the residual that of the outcome."""
    lease = LEASE
    async with trainer(tmp_path, manifest=DELAYED) as one:
        first = await begin(one, 1, anchor(3.0))
        await one.proceed(Turn(clock=clock(2), lease=lease))
        with trio.move_on_after(0.5) as scope:
            await contribution(one)
        assert scope.cancelled_caught
        outcome = Outcome(listed=True, anchor_N=anchor(1.0), clock=clock(2), lease=())
        await one.deliver(outcome)
        second = await contribution(one)
        await one.proceed(Turn(clock=clock(3), lease=lease))
        outcome = Outcome(listed=True, anchor_N=anchor(1.0), clock=clock(3), lease=())
        await one.deliver(outcome)
        third = await contribution(one)
    assert second.residual_before == first.residual_after != first.residual_before
    assert np.abs(decoded(second, DELAYED) - 0.2).max() < 0.02
    assert np.abs(decoded(third, DELAYED)).max() < 0.02
    # While its second one was under way.
    (tmp_path / "again").mkdir()
    async with trainer(tmp_path / "again", manifest=DELAYED) as one:
        assert await begin(one, 1, anchor(3.0)) == first
        await one.proceed(Turn(clock=clock(2), lease=lease))
        outcome = Outcome(listed=True, anchor_N=anchor(1.0), clock=clock(2), lease=())
        await one.deliver(outcome)
        assert await contribution(one) == second
    async with trainer(tmp_path / "again", manifest=DELAYED) as one:
        assert await begin(one, 2, anchor(1.0), listed=True) == second


def test_trainer_is_small_and_loads_neither_torch_nor_trio():
    code = """
import sys, time
from pathlib import Path
import sim.local.made_up_trainer
status = Path("/proc/self/status")
lines = status.read_text().splitlines() if status.exists() else ["VmHWM: 0 kB"]
(peak,) = [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
print("torch" in sys.modules, "trio" in sys.modules, time.process_time() < 1.0, peak < 60 * 1024)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=child_environment(), capture_output=True, check=True
    )
    assert done.stdout.split() == [b"False", b"False", b"True", b"True"]


def test_drift_and_pace_are_functions_of_their_path():
    anchor_N = anchor(1.0)
    assert np.array_equal(made_up_drift(anchor_N, "1/B", 3), made_up_drift(anchor_N, "1/B", 3))
    assert not np.array_equal(made_up_drift(anchor_N, "1/B", 3), made_up_drift(anchor_N, "1/B", 4))
    paces = {pace_s(1.0, f"1/B/{number}") for number in range(50)}
    assert len(paces) == 50
    assert 0.75 <= min(paces) < max(paces) <= 1.25


async def test_trainer_that_is_held_begins_when_the_file_is_there(tmp_path):
    hold = tmp_path / "go"
    async with trainer(tmp_path, "B", "--hold", str(hold)) as one:
        await one.start(Start(clock=clock(1), lease=LEASE), anchors=(anchor(3.0),))
        assert isinstance(await one.next_event(), Ready)
        with trio.move_on_after(0.5) as scope:
            await one.next_event()
        assert scope.cancelled_caught
        hold.touch()
        assert isinstance(await one.next_event(), Contribution)
