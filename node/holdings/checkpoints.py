"""Writes checkpoints in the background: always the newest, never two at a time, never all the time.

What a checkpoint lacks follows from the results behind it, which are on the disk before any seal.
So where states are large, and sealed faster than the disk takes them, most of the disk is left to
the results: rounds wait for those.

A large state is written every so many rounds only: the rounds between are in the results that are
on the disk anyway, and a start steps through them again. The last one is written when the node
ends, and one that a joiner fetches, whose memory is then not needed for that.

A state that waits to be written is nobody's reason to keep it: where the next one is made in its
memory, that one is written. One that is being written stays, and costs memory if a round ends
meanwhile, so a write begins with a new state.
"""

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import trio
from numpy.typing import NDArray

from node.holdings.record_log import forget_before, keep_later
from node.holdings.recovery import StoredState
from node.holdings.states import State
from protocol import limits
from protocol.errors import CheckpointError
from protocol.manifest import RunManifest
from protocol.messages import SealCertificate
from training.channel.exchange import RunClock
from training.files.state import (
    CHECKPOINTS_KEPT,
    CheckpointMeta,
    ShardState,
    checkpoint_folders,
    load_checkpoint,
    round_of,
    save_checkpoint,
)
from training.numeric.arithmetic import joined

logger = logging.getLogger(__name__)

REST = 3.0
"""After a write the disk is left alone for so many times as long as it took."""

REST_S_MAX = 60.0

PATIENCE_S = 60.0
"""So long the state that came while the disk rested waits for the one behind it."""

ROUNDS_APART = 8
"""Rounds from one checkpoint of a large state to the next. Each costs every start up to a step per
round, and who reads checkpoints a state that is so old; and saves eight bytes per parameter of each
round in between. Fewer than the results that are kept (`limits.RESULT_ROUNDS_KEPT`)."""

LARGE_STATE_BYTES = 32 * limits.MIB
"""States from this size on; smaller ones wear no disk, and are written as often as it takes them.
"""

LARGE_KEPT = 2
"""Checkpoints of large states: results are kept back to the older one."""

Offer = tuple[SealCertificate, NDArray[np.float32], Mapping[str, NDArray[np.float32]]]


def run_clock(certificate: SealCertificate) -> RunClock:
    """The clock of the round that starts from a seal."""
    value = certificate.value
    return RunClock(round=value.round + 1, step=value.clock.step, tokens=value.clock.tokens)


class Checkpoints:
    """The checkpoints of one shard in one folder. `run` writes what was offered last.

    States of `large_bytes` are large. `on_saved` is told the oldest round that a kept checkpoint
    starts, in the writing thread.
    """

    def __init__(
        self,
        folder: Path,
        manifest: RunManifest,
        shard: int,
        *,
        on_saved: Callable[[int], None] = lambda _: None,
        large_bytes: int = LARGE_STATE_BYTES,
    ) -> None:
        self.large_bytes = large_bytes
        self.folder = folder
        self._manifest = manifest
        self._shard = shard
        self._offered: tuple[int, SealCertificate, Callable[[], State | None]] | None = None
        self._num_states = 0
        self._num_written = 0
        """States are numbered as they come: what was overtaken while it waited is not written."""
        self._written_round: int | None = None
        self._is_due = False
        self._is_fetched = False
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._hurried = trio.Event()
        self._on_saved = on_saved
        self._writing = trio.Lock()
        self.latest: Path | None = None

    def offer(self, certificate: SealCertificate, state: State, *, is_held: bool = False) -> None:
        """A newly sealed state; replaces one that is still waiting. In its turn it is written,
        unless nobody holds it any more by then; with `is_held` it is held here."""
        self._num_states += 1
        is_due = self._is_its_turn(certificate, state)
        find = (lambda: state) if is_held else weakref.ref(state)
        self._offered = self._num_states, certificate, find
        self._is_fetched = False
        if is_due:
            self._want()

    def _is_its_turn(self, certificate: SealCertificate, state: State) -> bool:
        since = self._written_round
        if since is None or not self._is_large(state.anchor_N, state.slots):
            return True
        # A round before the last one that was written is of a history that began anew.
        return not since <= certificate.value.round < since + ROUNDS_APART

    def _is_large(
        self, anchor_N: NDArray[np.float32], slots: Mapping[str, NDArray[np.float32]]
    ) -> bool:
        return anchor_N.nbytes + sum(slot_N.nbytes for slot_N in slots.values()) >= self.large_bytes

    def fetched(self, root: bytes) -> None:
        """Somebody fetches the state of that root: if it is the newest it is written, and then
        served from the disk."""
        if self._offered is None or self._is_due or self._is_fetched:
            return
        if self._offered[1].value.root == root:
            self._is_fetched = True
            self._want()

    def _want(self) -> None:
        self._is_due = True
        self._idle = trio.Event()
        self._wanted.set()

    async def save(
        self,
        certificate: SealCertificate,
        anchor_N: NDArray[np.float32],
        slots: Mapping[str, NDArray[np.float32]],
    ) -> None:
        """Write a state now; on the disk when this returns. Raises OSError where it is full."""
        self._num_states += 1
        self._written_round = certificate.value.round
        await self._save(self._num_states, (certificate, anchor_N, slots))

    async def flushed(self) -> None:
        """Until the newest offer is on the disk, which does not rest from now on."""
        self._hurried.set()
        if self._offered is not None:
            self._want()
        self._wanted.set()
        await self._idle.wait()

    async def run(self) -> None:
        """Write until cancelled. Raises OSError where the disk is full."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            offer, began_s = self._take(), trio.current_time()
            if offer is not None:
                await self._save(*offer)
                del offer  # Or it would be held while the disk rests.
            if not self._is_due:
                self._idle.set()
            with trio.move_on_after(min(REST_S_MAX, REST * (trio.current_time() - began_s))):
                await self._hurried.wait()
            if self._is_due and not self._hurried.is_set():
                self._wanted = trio.Event()
                with trio.move_on_after(PATIENCE_S):
                    await self._wanted.wait()
                self._wanted.set()

    def _take(self) -> tuple[int, Offer] | None:
        if not (self._is_due or self._hurried.is_set()):
            return None
        offered, self._offered, self._is_due = self._offered, None, False
        state = None if offered is None else offered[2]()
        if offered is None or state is None:
            return None
        self._written_round = offered[1].value.round
        return offered[0], (offered[1], state.anchor_N, state.slots)

    async def _save(self, number: int, offer: Offer) -> None:
        async with self._writing:
            if number > self._num_written:
                self._num_written = number
                self.latest = await trio.to_thread.run_sync(self._write, offer)

    def _write(self, offer: Offer) -> Path:
        certificate, anchor_N, slots = offer
        spec = self._manifest.shards[self._shard]
        meta = CheckpointMeta(
            run=self._manifest.digest,
            shard=spec.name,
            seal=certificate.value.digest,
            clock=run_clock(certificate),
        )
        layout = self._manifest.layout(self._shard)
        spans = [layout.fragment_span(fragment) for fragment in range(layout.num_fragments)]
        state = ShardState(
            anchors=tuple(anchor_N[span] for span in spans),
            slots=tuple({name: slots[name][span] for name in slots} for span in spans),
        )
        if later := keep_later(self.folder, meta.clock.round):
            logger.warning("checkpoint of a later round set aside path=%s", later)
        kept = LARGE_KEPT if self._is_large(offer[1], offer[2]) else CHECKPOINTS_KEPT
        path = save_checkpoint(self.folder, spec, state, meta, kept=kept)
        oldest = round_of(checkpoint_folders(self.folder)[-1])
        forget_before(self.folder, oldest)
        self._on_saved(oldest)
        return path


def stored_states(
    folder: Path,
    manifest: RunManifest,
    shard: int,
    slots: Sequence[str],
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[StoredState]:
    """The whole checkpoints of a run, newest first.

    What is skipped is logged with its reason, and `tell` gets a sentence about it for people.
    """
    spec = manifest.shards[shard]
    for path in checkpoint_folders(folder):
        try:
            found = load_checkpoint(path, spec, run=manifest.digest, slots=slots)
        except CheckpointError as error:
            logger.warning("checkpoint skipped path=%s reason=%s", path, error)
            tell(f"a checkpoint is no good, an older one is looked for: {error}")
            continue
        yield StoredState(
            round=found.meta.clock.round - 1,
            seal=found.meta.seal,
            anchor_N=joined(found.state.anchors),
            slots={
                name: joined([one[name] for one in found.state.slots])
                for name in found.state.slots[0]
            },
        )
