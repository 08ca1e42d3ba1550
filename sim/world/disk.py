"""A node's disk in the simulator: the shipped journal, and checkpoints, on simulated files.

What a crash leaves is decided by `sim.world.files`. Of checkpoints the order of writes is the
shipped one (`training.files.state`, which hands its files to a library that opens them itself):
written beside, synced, renamed, the older ones removed, then the journal told. Each is one file
here, not three.
"""

import errno
import json
import logging
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from node.holdings.journal import CHAIN_FILE, RESULTS_FOLDER, SLOTS_FILE, FileJournal
from node.holdings.recovery import StoredState
from node.holdings.shard_store import ShardStore
from node.plane.gathered import PartialCells
from node.plane.served import FindCheckpoint, StateInMemory
from protocol.identity import PeerId
from protocol.messages import SealCertificate
from sim.world.files import Fate, SimFiles
from sim.world.sharing import Shared
from training.files.durable import WRITING, Bytes, make_folder_durably, replace_durably
from training.files.state import CHECKPOINTS_KEPT, checkpoint_name

if TYPE_CHECKING:
    from protocol.evidence import Evidence

logger = logging.getLogger(__name__)

RUN_FOLDER = Path("/run")
CHECKPOINTS_FOLDER = RUN_FOLDER / "checkpoints"

SPOILABLE = ("slots", "chain", "result", "checkpoint")
"""What `Disk.spoil` takes."""

_DIGEST_BYTES = 32
_NAME = re.compile(r"round-(\d{6,12})")
_NEEDS_ROOM = ("write", "create", "make folder")
_CAN_FAIL = (*_NEEDS_ROOM, "sync", "sync folder", "rename")
_TORN = (Fate.PREFIX, Fate.SECTORS, Fate.ZEROS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSpec:
    """Chances of what goes wrong on a disk.

    When the power goes: `reorder` that unsynced writes fare each by itself; else all up to one are
    there and none behind it. `lose` that such a write is gone, `tear` that a part of it is there.
    `fail` that an operation ends with EIO, `slow` that a checkpoint is still being written when the
    next is due. The log of signatures is cut beyond `rotate_bytes`, earlier than a real node's, so
    that a short run sees it.
    """

    lose: float = 0.5
    tear: float = 0.5
    reorder: float = 0.5
    fail: float = 0.0
    slow: float = 0.25
    rotate_bytes: int = 16 << 10


class Disk:
    """What one peer has kept, over all its processes. `reopen` comes before all else.

    Journal and `save` raise OSError where the disk is full (`is_full`) or fails: the process then
    ends, as a real node does.
    """

    def __init__(
        self,
        stream: random.Random,
        spec: DiskSpec | None = None,
        shared: Shared | None = None,
        *,
        peer: PeerId | None = None,
    ) -> None:
        self._shared, self._peer = shared, peer
        self.is_full = False
        self.evidence: dict[PeerId, Evidence] = {}
        """Of the replicated state, what convicts somebody; a file of its own in a real node."""
        self._stream = stream
        self._spec = spec or DiskSpec()
        self._files = SimFiles(stream, before=self._before)
        self._journal: FileJournal | None = None
        self._fetched: PartialCells | None = None
        self._begun: StoredState | None = None
        self._is_wiped = False

    @property
    def journal(self) -> FileJournal:
        """The journal of the process that opened the disk last."""
        assert self._journal is not None, "reopen first"
        return self._journal

    @property
    def fetched(self) -> PartialCells:
        """What the process that opened the disk last has fetched of a state."""
        assert self._fetched is not None, "reopen first"
        return self._fetched

    def finder(self, store: ShardStore) -> FindCheckpoint:
        """Finds sealed states in the checkpoints."""

        def find(certificate: SealCertificate) -> StateInMemory | None:
            value = certificate.value
            for stored in self.states():
                if stored.round == value.round:
                    state = store.make_state(stored.anchor_N, stored.slots)
                    return StateInMemory(store, state) if state.root == value.root else None
            return None

        return find

    @property
    def bytes_used(self) -> int:
        """Bytes of all files."""
        return self._files.bytes_used

    def _before(self, operation: str, path: Path) -> None:
        if self.is_full and operation in _NEEDS_ROOM:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        fail = self._spec.fail
        if fail and operation in _CAN_FAIL and self._stream.random() < fail:
            raise OSError(errno.EIO, "Input/output error", str(path))

    # Processes ----------------------------------------------------------------------------------

    def reopen(self) -> None:
        """The next process opens its files. Raises OSError: the start has then failed."""
        self._journal, self._begun = None, None
        files = self._files
        is_empty = not any(
            files.exists(path) and files.content(path)
            for path in (RUN_FOLDER / SLOTS_FILE, RUN_FOLDER / CHAIN_FILE)
        )
        # As a node whose key is older than what its run's folder has (`node.daemon.assembly`).
        is_wiped = self._is_wiped and is_empty and not self._checkpoints()
        self._journal = FileJournal(
            RUN_FOLDER,
            rotate_bytes=self._spec.rotate_bytes,
            is_wiped=is_wiped,
            me=self._peer,
            files=files,
            pack=None if self._shared is None else self._shared.pack_record,
        )
        self._fetched = PartialCells(RUN_FOLDER, files)

    def crash(self, *, is_power_off: bool | None = None) -> None:
        """The process is gone; with the power also what was not synced. None: one of the two."""
        if is_power_off is None:
            is_power_off = self._stream.random() < 0.5
        if is_power_off:
            self._files.power_off(list(self._fates(self._files.num_unsynced)))

    def _fates(self, count: int) -> Iterator[Fate]:
        stream, spec = self._stream, self._spec
        is_reordered = stream.random() < spec.reorder
        is_over = False
        for _ in range(count):
            if not is_over and stream.random() >= spec.lose:
                yield Fate.WHOLE
                continue
            is_torn = not is_over and stream.random() < spec.tear
            is_over = not is_reordered
            yield stream.choice(_TORN) if is_torn else Fate.LOST

    def forget(self) -> None:
        """A new disk, with nothing on it; the node will know that there was another."""
        self._files = SimFiles(self._stream, before=self._before)
        self.evidence = {}
        self._journal, self._begun, self._is_wiped = None, None, True

    def image(self) -> Mapping[str, bytes | None]:
        """All that is on the disk now, for `roll_back`."""
        return self._files.image()

    def roll_back(self, image: Mapping[str, bytes | None]) -> None:
        """The disk is as it was once, and the node does not know (R12)."""
        self._files = SimFiles(self._stream, before=self._before)
        self._files.restore(image)
        self._journal, self._begun = None, None

    def spoil(self, what: str) -> bool:
        """One bit of a stored file flips (see SPOILABLE); False if there is no such file yet.

        Of the logs in their first half: that the last append of one was spoiled nobody can tell
        from an append that never returned.
        """
        if not self.can_spoil(what):
            return False
        paths = self._spoilable(what)
        path = self._stream.choice(paths) if what == "result" else paths[0]
        size = len(self._files.content(path))
        end = size // 2 if what in ("slots", "chain") else size
        self._files.flip(path, self._stream.randrange(8 * end))
        return True

    def can_spoil(self, what: str) -> bool:
        """Whether there is such a file, with something in it."""
        paths = self._spoilable(what)
        return bool(paths) and all(len(self._files.content(path)) >= 2 for path in paths)

    def _spoilable(self, what: str) -> list[Path]:
        assert what in SPOILABLE, what
        if what in ("slots", "chain"):
            path = RUN_FOLDER / (SLOTS_FILE if what == "slots" else CHAIN_FILE)
            return [path] if self._files.exists(path) else []
        if what == "checkpoint":
            newest = self._checkpoints()[:1]
            return [CHECKPOINTS_FOLDER / checkpoint_name(one) for one in newest]
        folder = RUN_FOLDER / RESULTS_FOLDER
        names = self._files.names(folder) if self._files.exists(folder) else []
        return [folder / name for name in names]

    # Checkpoints --------------------------------------------------------------------------------

    def save(self, state: StoredState) -> None:
        """Write a checkpoint; on the disk when this returns.

        The newest three stay, and the results of rounds that are not in all of them.
        """
        begun, self._begun = self._begun, None
        make_folder_durably(CHECKPOINTS_FOLDER, self._files)
        if begun is not None:
            self._finish(begun)
        self._finish(state)

    def save_behind(self, state: StoredState) -> None:
        """Write a checkpoint beside the rounds: now and then it is only begun.

        It is finished when the next one is due. Until then a crash leaves what there is of it.
        """
        if self._stream.random() >= self._spec.slow:
            self.save(state)
            return
        begun, self._begun = self._begun, state
        make_folder_durably(CHECKPOINTS_FOLDER, self._files)
        if begun is not None:
            self._finish(begun)
        path = CHECKPOINTS_FOLDER / (WRITING + checkpoint_name(state.round))
        self._files.create(path).write(b"".join(self._packed(state)))

    def _finish(self, state: StoredState) -> None:
        replace_durably(
            CHECKPOINTS_FOLDER / checkpoint_name(state.round), self._packed(state), self._files
        )
        rounds = self._checkpoints()
        kept = [index for index in rounds if index <= state.round][:CHECKPOINTS_KEPT]
        for index in rounds:
            # What is above belongs to a branch that was given up.
            if index not in kept:
                self._files.unlink(CHECKPOINTS_FOLDER / checkpoint_name(index))
        for name in self._files.names(CHECKPOINTS_FOLDER):
            if name.startswith(WRITING):
                self._files.unlink(CHECKPOINTS_FOLDER / name)
        self.journal.saved_up_to(kept[-1] + 1)

    def _packed(self, state: StoredState) -> Sequence[Bytes]:
        return _packed(state) if self._shared is None else self._shared.packed(state, _packed)

    def _checkpoints(self) -> list[int]:
        """Rounds of the checkpoints, the newest first; whether they are whole is not looked at."""
        if not self._files.exists(CHECKPOINTS_FOLDER):
            return []
        matches = map(_NAME.fullmatch, self._files.names(CHECKPOINTS_FOLDER))
        return sorted((int(match[1]) for match in matches if match is not None), reverse=True)

    def states(self) -> Sequence[StoredState]:
        """The whole checkpoints, newest first."""
        states = []
        for index in self._checkpoints():
            path = CHECKPOINTS_FOLDER / checkpoint_name(index)
            state = _unpacked(self._files.content(path))
            if state is None:
                logger.warning("checkpoint skipped path=%s reason=not what was written", path)
            else:
                states.append(state)
        return states


def _packed(state: StoredState) -> Sequence[Bytes]:
    """A line of JSON, anchor and slots as little-endian float32, BLAKE3 of it all."""
    head = {"round": state.round, "seal": state.seal.hex(), "slots": list(state.slots)}
    vectors = [state.anchor_N, *state.slots.values()]
    body = json.dumps(head).encode() + b"\n"
    body += b"".join(vector_N.astype("<f4", copy=False).tobytes() for vector_N in vectors)
    return body, blake3(body).digest()


def _unpacked(data: bytes) -> StoredState | None:
    body, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if blake3(body).digest() != digest:
        return None
    line, _, vectors = body.partition(b"\n")
    head = json.loads(line)
    names = head["slots"]
    all_N = np.frombuffer(vectors, dtype="<f4").reshape(1 + len(names), -1).copy()
    slots = dict(zip(names, all_N[1:], strict=True))
    return StoredState(head["round"], bytes.fromhex(head["seal"]), all_N[0], slots)
