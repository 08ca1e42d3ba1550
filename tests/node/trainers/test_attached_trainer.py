"""The network process's side of a user's own process, over pipes in memory."""

import os
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from node.trainers import trainer as trainer_edge
from node.trainers.attached_trainer import Attachment, _end_early
from node.trainers.trainer import TrainerConfig
from protocol.errors import RefusedError, TrainerError
from tests.training.disk_run import MANIFEST_FILE, write_run
from training.channel.exchange import Contribution, Outcome, RunClock, Turn
from training.channel.frames import (
    TO_USER,
    Attach,
    Contributed,
    Deliver,
    Failed,
    FrameReader,
    Leaving,
    Proceed,
    Progress,
    Ready,
    Start,
    ToUser,
    pack_frame,
)
from training.channel.trainer_end import ChannelFile, channel_spec
from training.models.genesis import genesis_weights

CLOCK = RunClock(round=0, step=0, tokens=0)
READY = Ready(threads=1, parameters=7, device="", precision="", micro_batch=1)


class User:
    """The user's process: what it says and hears."""

    def __init__(self, folder):
        self.manifest = write_run(folder)
        self.config = TrainerConfig(
            folder=folder,
            manifest=self.manifest,
            manifest_path=folder / MANIFEST_FILE,
            inner_folder=folder / "inner",
        )
        self._read_fd, node_writes = os.pipe()
        node_reads, self._write_fd = os.pipe()
        self.node_fds = [node_reads, node_writes]
        self.attached = Attachment(node_reads, node_writes)
        self._reader = FrameReader(TO_USER)
        self._heard: list[ToUser] = []
        self._is_gone = False

    def say(self, *frames):
        os.write(self._write_fd, b"".join(pack_frame(frame) for frame in frames))

    def say_bytes(self, data):
        os.write(self._write_fd, data)

    async def hear(self):
        while not self._heard:
            data = await trio.to_thread.run_sync(os.read, self._read_fd, 65_536)
            self._heard += self._reader.feed(data)
        return self._heard.pop(0)

    def contribute(self):
        cells = self.manifest.layout(0).num_cells(0)
        self.say(
            Contributed(
                sequence=0,
                fragment=0,
                lengths=(0,) * cells,
                tokens=1,
                samples=1,
                steps=1,
                residual_before=b"",
                residual_after=b"",
                loss=1.0,
            )
        )

    def die(self):
        if not self._is_gone:
            self._is_gone = True
            os.close(self._write_fd)
            os.close(self._read_fd)

    @asynccontextmanager
    async def reading(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.attached.read)
            yield
            self.die()


@pytest.fixture
def user(tmp_path):
    user = User(tmp_path)
    yield user
    user.die()
    for descriptor in user.node_fds:
        os.close(descriptor)
    assert not list(tmp_path.glob("*.channel"))


async def test_a_users_process_is_told_of_the_run_and_trains_like_any_trainer(user, tmp_path):
    anchor_N = genesis_weights(user.manifest)[0]
    async with user.reading(), user.attached.open_trainer(user.config) as trainer:
        attach = await user.hear()
        assert isinstance(attach, Attach)
        assert attach.run == user.manifest.digest
        assert attach.manifest == str(tmp_path / MANIFEST_FILE)
        assert attach.inner == str(tmp_path / "inner")
        spec = channel_spec(user.manifest, attach.shard)
        with ChannelFile.open(Path(attach.channel), spec) as channel:
            user.say(READY)
            assert await trainer.next_event() == READY
            await trainer.start(Start(clock=CLOCK, lease=((0, 9),)), anchors=(anchor_N,))
            assert isinstance(await user.hear(), Start)
            assert np.array_equal(channel.read_anchor(0), anchor_N)
            user.contribute()
            assert isinstance(await trainer.next_event(), Contribution)
            await trainer.deliver(
                Outcome(listed=True, anchor_N=-anchor_N, clock=CLOCK, lease=((9, 10),))
            )
            assert isinstance(await user.hear(), Deliver)
            assert np.array_equal(channel.read_anchor(0), -anchor_N)
            await trainer.proceed(Turn(clock=CLOCK, lease=((9, 10),), members=4))
            assert await user.hear() == Proceed(clock=CLOCK, lease=((9, 10),), members=4)


@pytest.mark.parametrize("leave", ["word", "death"])
async def test_leaving_at_any_time_is_no_failure(user, leave):
    async with user.reading(), user.attached.open_trainer(user.config) as trainer:
        start = Start(clock=CLOCK, lease=((0, 9),))
        await trainer.start(start, anchors=genesis_weights(user.manifest))
        if leave == "word":
            user.say(READY, Leaving(), READY)
        else:
            user.say(READY)
            user.die()
        # What it said before it left is still heard, and nothing that it says behind.
        assert [event async for event in trainer] == [READY]
        assert user.attached.left.is_set()
        # Nobody reads any more, and that is nobody's failure either.
        user.die()
        await user.attached.send(
            Deliver(sequence=0, listed=False, clock=CLOCK, lease=(), validate=False)
        )
        await user.attached.fail(RefusedError("too late"))


@pytest.mark.parametrize(
    ("says", "complaint"),
    [
        (b"hello world", "claims"),
        (pack_frame(Start(clock=CLOCK, lease=())), "unknown kind"),
        (pack_frame(Progress(step=1, loss=1.0)) * 1000, "more than 64 frames"),
    ],
)
async def test_a_process_that_breaks_the_rules_is_a_trainer_error_and_no_leaving(
    user, says, complaint
):
    async with user.reading(), trio.open_nursery() as nursery:
        user.say_bytes(says)
        await trio.testing.wait_all_tasks_blocked()
        while not user.attached._broken:
            await trio.lowlevel.checkpoint()
        async with user.attached.open_trainer(user.config) as trainer:
            with pytest.raises(TrainerError, match=complaint):
                async for _ in trainer:
                    pass
        assert not user.attached.left.is_set()
        nursery.cancel_scope.cancel()


async def test_a_failure_is_the_last_word_before_or_after_there_is_a_trainer(user):
    async with user.reading():
        await user.attached.fail(RefusedError("not on the list"))
        assert await user.hear() == Failed(kind="RefusedError", message="not on the list", field="")


async def test_leaving_before_there_is_a_trainer_ends_everything_at_once(user):
    with trio.CancelScope() as scope:
        async with user.reading():
            user.say(Leaving())
            await _end_early(user.attached, scope)
            assert scope.cancel_called


async def test_leaving_a_trainer_is_for_the_node_to_act_on(user):
    async with user.reading(), trio.open_nursery() as nursery:
        nursery.start_soon(_end_early, user.attached, nursery.cancel_scope)
        async with user.attached.open_trainer(user.config) as trainer:
            user.say(Leaving())
            assert [event async for event in trainer] == []
            await trio.testing.wait_all_tasks_blocked()
            assert not nursery.cancel_scope.cancel_called


async def test_the_file_is_gone_with_the_trainer_and_a_raised_error_is_not_wrapped(
    user, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer_edge, "free_memory_bytes", lambda: 0)
    async with user.reading():

        async def raises():
            async with user.attached.open_trainer(user.config):
                assert len(list(tmp_path.glob("*.channel"))) == 1
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            await raises()
    assert not list(tmp_path.glob("*.channel"))
