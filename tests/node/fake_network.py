"""A network process in memory, for a Swarm: pipes whose other ends a test holds."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from node.daemon.network_child import NetworkChild
from node.swarm import Swarm
from protocol.errors import TrainerError
from protocol.leases import Lease
from protocol.manifest import RunManifest
from tests.training.disk_run import MANIFEST_FILE
from training.channel.exchange import RunClock
from training.channel.frames import (
    FROM_USER,
    TO_USER,
    Attach,
    Deliver,
    FrameReader,
    FromUser,
    Leaving,
    Proceed,
    Start,
    ToUser,
    pack_frame,
)
from training.channel.trainer_end import ChannelFile, ControlPipe, channel_spec


class FakeChild(NetworkChild):
    """NetworkChild without a process."""

    def __init__(self, pipe: ControlPipe) -> None:
        self.pipe = pipe
        self.lingered_s: list[float] = []

    @contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except TrainerError:
            raise self.pipe.told or TrainerError("gone") from None

    def close(self, *, linger_s: float = 0.0) -> None:
        self.lingered_s.append(linger_s)


class FakeNetwork:
    """The network process's side: what it says may be said long before it is read."""

    def __init__(self, folder: Path, manifest: RunManifest) -> None:
        self.manifest = manifest
        spec = channel_spec(manifest, 0)
        self.file = ChannelFile.create(folder / "a.channel", spec)
        user_read, self._write_fd = os.pipe()
        self._read_fd, user_write = os.pipe()
        self._fds = [user_read, self._read_fd, user_write]
        self._reader = FrameReader(FROM_USER)
        self._heard: list[FromUser] = []
        self.child = FakeChild(ControlPipe(user_read, user_write, kinds=TO_USER))
        self.attach = Attach(
            run=manifest.digest,
            manifest=str(folder / MANIFEST_FILE),
            channel=str(folder / "a.channel"),
            inner=str(folder / "inner"),
            shard=0,
        )
        self.swarm = Swarm(
            self.child, self.attach, manifest, ChannelFile.open(folder / "a.channel", spec)
        )

    @property
    def samples_per_round(self) -> int:
        return self.manifest.inner.batch * self.manifest.inner.inner_steps

    def lease(self, number: int) -> Lease:
        return ((number * self.samples_per_round, (number + 1) * self.samples_per_round),)

    def clock(self, number: int) -> RunClock:
        return RunClock(round=number, step=number * self.manifest.inner.inner_steps, tokens=number)

    def say(self, frame: ToUser) -> None:
        os.write(self._write_fd, pack_frame(frame))

    def start(self, number: int = 0, *, anchor: float = 0.0, is_over: bool = False) -> None:
        numel = self.file.spec.fragment_numels[0]
        self.file.write_anchor(0, np.full(numel, anchor, np.float32))
        lease = () if is_over else self.lease(number)
        self.say(Start(clock=self.clock(number), lease=lease))

    def open(self, number: int = 0, *, is_over: bool = False) -> None:
        """Start, and have the swarm take it."""
        self.start(number, is_over=is_over)
        assert self.swarm.start.clock.round == number

    def deliver(self, sequence: int, number: int, *, is_over: bool = False) -> None:
        lease = () if is_over else self.lease(number)
        self.say(
            Deliver(
                sequence=sequence,
                listed=True,
                clock=self.clock(number),
                lease=lease,
                validate=False,
            )
        )

    def goes_on(self, number: int, *, is_over: bool = False) -> None:
        """To that round, with two in flight."""
        lease = () if is_over else self.lease(number)
        self.say(Proceed(clock=self.clock(number), lease=lease))

    def hear(self, kind: type[FromUser]) -> FromUser:
        """The next frame of a kind; others before it are passed over."""
        while True:
            while self._heard:
                frame = self._heard.pop(0)
                if isinstance(frame, kind):
                    return frame
            self._heard += self._reader.feed(os.read(self._read_fd, 65_536))

    def hears_leaving(self) -> bool:
        return isinstance(self.hear(Leaving), Leaving)

    def close(self) -> None:
        os.close(self._write_fd)
        assert self.child.pipe.wait_closed(60)
        for descriptor in self._fds:
            os.close(descriptor)
        self.file.close()
