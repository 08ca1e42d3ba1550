"""Writes checkpoints in the background: always the newest, never two at a time."""

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import trio
from numpy.typing import NDArray

from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from training.exchange import RunClock
from training.state import CheckpointMeta, ShardState, save_checkpoint

logger = logging.getLogger(__name__)

Offer = tuple[SealCertificate, NDArray[np.float32], Mapping[str, NDArray[np.float32]]]


def run_clock(certificate: SealCertificate) -> RunClock:
    """The clock of the round that starts from a seal."""
    value = certificate.value
    return RunClock(round=value.round + 1, step=value.clock.step, tokens=value.clock.tokens)


class Checkpoints:
    """The checkpoints of one shard in one folder. `run` writes what was offered last."""

    def __init__(self, folder: Path, manifest: RunManifest, shard: int) -> None:
        self.folder = folder
        self._manifest = manifest
        self._shard = shard
        self._offered: Offer | None = None
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.latest: Path | None = None

    def offer(
        self,
        certificate: SealCertificate,
        anchor_N: NDArray[np.float32],
        slots: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """A newly sealed state; replaces one that is still waiting. Nobody may write to it."""
        self._offered = (certificate, anchor_N, slots)
        self._idle = trio.Event()
        self._wanted.set()

    async def flushed(self) -> None:
        """Until the newest offer is on the disk."""
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled. Raises OSError where the disk is full."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            offer, self._offered = self._offered, None
            if offer is not None:
                self.latest = await trio.to_thread.run_sync(partial(self._write, offer))
            if self._offered is None:
                self._idle.set()

    def _write(self, offer: Offer) -> Path:
        certificate, anchor_N, slots = offer
        spec = self._manifest.shards[self._shard]
        meta = CheckpointMeta(
            run=self._manifest.digest,
            shard=spec.name,
            seal=certificate.value.digest,
            clock=run_clock(certificate),
        )
        state = ShardState(anchors=(anchor_N,), slots=(dict(slots),))
        return save_checkpoint(self.folder, spec, state, meta)
