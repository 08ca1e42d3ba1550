"""How the network process starts its trainer: device, inner folder, and out of Ctrl+C's way."""

import dataclasses
import os

import pytest
import trio

from node.trainers.trainer import TrainerConfig, open_trainer
from protocol.errors import ConfigError
from tests.training.disk_run import MANIFEST_FILE, write_run
from tests.training.replicas import INNER
from training.channel.exchange import Contribution, RunClock
from training.channel.frames import Ready, Start
from training.models.genesis import genesis_weights

SAMPLES = INNER.inner_steps * INNER.batch


def config(folder, **changes):
    manifest = write_run(folder)
    path = folder / MANIFEST_FILE
    plain = TrainerConfig(folder=folder, manifest=manifest, manifest_path=path, device="cpu")
    return dataclasses.replace(plain, **changes)


async def first_contribution(run):
    """Start a trainer at genesis; its contribution, and whether it said that it is ready."""
    async with open_trainer(run) as trainer:
        await trainer.start(
            Start(clock=RunClock(round=0, step=0, tokens=0), lease=((0, SAMPLES),)),
            anchors=genesis_weights(run.manifest),
        )
        events = []
        with trio.fail_after(60):
            while not isinstance(event := await trainer.next_event(), Contribution):
                events.append(event)
        return event, events


@pytest.mark.extended
async def test_a_trainer_whose_device_is_missing_says_which_and_what_to_do(tmp_path):
    async with open_trainer(config(tmp_path, device="cuda:999")) as trainer:
        with pytest.raises(ConfigError, match=r"^--device cuda:999: .*use --device"):
            await trainer.next_event()


@pytest.mark.slow
async def test_a_killed_trainer_is_followed_by_one_that_sends_the_same_and_trains_nothing(
    tmp_path,
):
    run = config(tmp_path, inner_folder=tmp_path / "inner")
    before, _ = await first_contribution(run)
    again, events = await first_contribution(run)

    assert again == before
    assert [type(event) for event in events] == [Ready]


@pytest.mark.skipif(os.name == "nt", reason="there are no process groups on Windows")
async def test_ctrl_c_in_a_terminal_does_not_reach_the_trainer_not_even_while_it_starts(tmp_path):
    """A terminal signals its foreground group, and a Python that starts has no handler yet."""
    async with open_trainer(config(tmp_path)) as trainer:
        assert os.getpgid(trainer.pid) == trainer.pid != os.getpgid(0)
