"""The trainer's end of the channel to the network process.

Weights and payloads pass through one memory-mapped file, everything else as frames over a pipe:

    0      header: magic, version, slots, sizes, run digest
    4096   anchor, float32, one fragment behind the other          written by the network process
    ...    `slots` payload slots; a contribution's cells lie       written by the trainer
           behind one another in slot (sequence modulo slots)

A frame is sent after the bytes that it speaks of are in place. A slot is reused when the outcome of
the contribution in it has arrived, so neither end ever writes what the other reads.
"""

import errno
import mmap
import os
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from protocol import limits
from protocol.errors import TrainerError
from protocol.manifest import RunManifest
from training.compression import make_codec
from training.control_pipe import ControlPipe
from training.exchange import NO_TRACE, Contribution, Outcome, Turn
from training.frames import (
    Audit,
    Audited,
    Contributed,
    Deliver,
    Frame,
    Proceed,
    Reopen,
    Start,
    ToUser,
)
from training.spare_vectors import SpareVectors

_MAGIC = b"BARNCHAN"
_VERSION = 1
_HEADER = struct.Struct(">8sIIQQ32s")
_REGION_BYTES = 4096
"""Regions start at multiples of this, a page on most machines."""

CHANNEL_SUFFIX = ".channel"

_NOTHING = np.empty(0, dtype=np.float32)

RunsAudits = Callable[[Audit | Reopen], bytes]


@dataclass(frozen=True)
class ChannelSpec:
    """Sizes of a channel: a function of the manifest alone, so both ends compute the same."""

    run: bytes
    fragment_numels: tuple[int, ...]
    slot_bytes: int
    slots: int

    @cached_property
    def anchor_offsets(self) -> tuple[int, ...]:
        """Where each fragment's anchor begins in the file."""
        offsets, offset = [], _REGION_BYTES
        for numel in self.fragment_numels:
            offsets.append(offset)
            offset += 4 * numel
        return tuple(offsets)

    @property
    def slots_offset(self) -> int:
        """Where the first payload slot begins."""
        return _rounded(_REGION_BYTES + 4 * sum(self.fragment_numels))

    @property
    def file_bytes(self) -> int:
        """Size of the whole file."""
        return self.slots_offset + self.slots * self.slot_bytes

    @property
    def header(self) -> bytes:
        """The first bytes of the file."""
        anchor_bytes = 4 * sum(self.fragment_numels)
        return _HEADER.pack(_MAGIC, _VERSION, self.slots, anchor_bytes, self.slot_bytes, self.run)


def channel_spec(manifest: RunManifest, shard: int) -> ChannelSpec:
    """The channel for shard number `shard`: a payload slot for each round in flight (R5)."""
    layout = manifest.layout(shard)
    codec = make_codec(manifest.outer)
    slot_bytes = max(
        sum(
            codec.payload_bytes(layout.cell_numel(fragment, cell))
            for cell in range(layout.num_cells(fragment))
        )
        for fragment in range(len(layout.fragment_numels))
    )
    return ChannelSpec(
        run=manifest.digest,
        fragment_numels=layout.fragment_numels,
        slot_bytes=_rounded(slot_bytes),
        slots=manifest.outer.overlap,
    )


class ChannelFile:
    """The mapped file. Every read copies out of it and every write copies into it."""

    def __init__(self, path: Path, spec: ChannelSpec, mapping: mmap.mmap) -> None:
        self.path = path
        self.spec = spec
        self._mapping = mapping
        # Of each fragment one: that which the trainer has done with when the next is here.
        self._spare = [SpareVectors(numel, most=1) for numel in spec.fragment_numels]

    @classmethod
    def create(cls, path: Path, spec: ChannelSpec) -> "ChannelFile":
        """A fresh file of zeros at `path`, which must not exist; readable by this user alone.

        All of its blocks are allocated: a hole that does not fit on a full disk would kill
        whichever process touches it first. Raises OSError where the disk is full.
        """
        with open(path, "x+b", opener=_open_private) as file:
            _allocate(file, spec.file_bytes)
            file.seek(0)
            file.write(spec.header)
            file.flush()
            return cls(path, spec, mmap.mmap(file.fileno(), spec.file_bytes))

    @classmethod
    def open(cls, path: Path, spec: ChannelSpec) -> "ChannelFile":
        """The file that the other process made. Raises TrainerError if it is not one for `spec`."""
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if size != spec.file_bytes or file.read(_HEADER.size) != spec.header:
                raise TrainerError(f"{path} is no channel of this run and version")
            return cls(path, spec, mmap.mmap(file.fileno(), spec.file_bytes))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmap; the file stays."""
        self._mapping.close()

    def write_anchor(self, fragment: int, anchor_N: NDArray[np.float32]) -> None:
        """Copy the anchor of one fragment into the file."""
        numel = self.spec.fragment_numels[fragment]
        assert anchor_N.dtype == np.float32
        assert anchor_N.shape == (numel,)
        offset = self.spec.anchor_offsets[fragment]
        np.frombuffer(self._mapping, np.float32, numel, offset)[:] = anchor_N

    def read_anchor(self, fragment: int) -> NDArray[np.float32]:
        """A copy of one fragment's anchor, not writable. Its memory is that of a later one once
        nobody holds it, or a view of it."""
        numel = self.spec.fragment_numels[fragment]
        offset = self.spec.anchor_offsets[fragment]
        anchor_N = self._spare[fragment].take()
        anchor_N[:] = np.frombuffer(self._mapping, np.float32, numel, offset)
        anchor_N.flags.writeable = False
        return anchor_N

    def write_payloads(self, sequence: int, payloads: tuple[bytes, ...]) -> None:
        """Copy a contribution into its slot. Raises TrainerError if it is larger than a slot."""
        total = sum(len(payload) for payload in payloads)
        if total > self.spec.slot_bytes or len(payloads) > limits.CELLS_MAX:
            raise TrainerError(f"a contribution of {total} bytes, {self.spec.slot_bytes} at most")
        offset = self._slot_offset(sequence)
        for payload in payloads:
            self._mapping[offset : offset + len(payload)] = payload
            offset += len(payload)

    def read_payloads(self, sequence: int, lengths: tuple[int, ...]) -> tuple[bytes, ...]:
        """Copies of a contribution's cells. Raises TrainerError if they leave the slot."""
        if sum(lengths) > self.spec.slot_bytes or min(lengths, default=0) < 0:
            raise TrainerError(f"a contribution claims {sum(lengths)} bytes of its slot")
        payloads, offset = [], self._slot_offset(sequence)
        for length in lengths:
            payloads.append(self._mapping[offset : offset + length])
            offset += length
        return tuple(payloads)

    def _slot_offset(self, sequence: int) -> int:
        return self.spec.slots_offset + sequence % self.spec.slots * self.spec.slot_bytes


class ChannelExchange:
    """Exchange over the channel. Used by one thread."""

    def __init__(self, channel: ChannelFile, pipe: ControlPipe) -> None:
        self._channel = channel
        self._pipe = pipe
        self._anchors: list[NDArray[np.float32]] = []
        self._sent: dict[int, int] = {}
        """Sequence to fragment of contributions without an outcome."""
        self._outcomes: dict[int, Outcome] = {}
        self._turn: Turn | None = None
        self._awaits_turn = False
        self._next_sequence = 0
        self._validate_round: int | None = None
        self.audits: RunsAudits | None = None
        """Runs segments of others again, while an outcome is waited for."""

    @property
    def anchors(self) -> tuple[NDArray[np.float32], ...]:
        """The newest anchor of every fragment; empty before `opening`. Nobody writes to them."""
        return tuple(self._anchors)

    def opening(self) -> Start:
        """Block until the network process says what to start from; called once, first.

        Raises TrainerError when the network process is gone.
        """
        frame = self._pipe.receive()
        if not isinstance(frame, Start):
            raise TrainerError(f"{type(frame).__name__} before Start")
        fragments = range(len(self._channel.spec.fragment_numels))
        self._anchors = [self._channel.read_anchor(fragment) for fragment in fragments]
        if frame.validate:
            self._validate_round = frame.clock.round
        return frame

    def begin(self, fragment: int, contribution: Contribution) -> "ChannelTicket":
        """Copy the contribution into its slot and tell the network process."""
        assert self._anchors, "begin before opening"
        assert contribution.fragment == fragment
        assert len(self._sent) < self._channel.spec.slots, "a slot is still in use"
        assert fragment not in self._sent.values(), "one round in flight per fragment (R5)"
        assert not self._awaits_turn, "the turn of the round before was not taken"
        sequence = self._next_sequence
        self._next_sequence += 1
        self._awaits_turn = self._channel.spec.slots > 1
        self._channel.write_payloads(sequence, contribution.payloads)
        self._sent[sequence] = fragment
        traced = contribution.traced or NO_TRACE
        self.send(
            Contributed(
                sequence=sequence,
                fragment=fragment,
                lengths=tuple(len(payload) for payload in contribution.payloads),
                tokens=contribution.tokens,
                samples=contribution.samples,
                steps=contribution.steps,
                residual_before=contribution.residual_before,
                residual_after=contribution.residual_after,
                loss=contribution.loss,
                trace=traced.trace,
                before=traced.before,
                after=traced.after,
            )
        )
        return ChannelTicket(self, sequence)

    def outcome(self, sequence: int) -> Outcome:
        """Block until the outcome of contribution `sequence` is here; once per contribution."""
        while sequence not in self._outcomes:
            self._take(self._pipe.receive())
        return self._outcomes.pop(sequence)

    def is_here(self, sequence: int) -> bool:
        """Whether `outcome` would not block. Raises TrainerError as that does."""
        while sequence not in self._outcomes:
            frame = self._pipe.poll()
            if frame is None:
                return False
            self._take(frame)
        return True

    def proceed(self) -> Turn:
        """See Exchange. Raises TrainerError when the network process is gone."""
        assert self._awaits_turn or self._turn is not None, "nothing was handed over"
        while self._turn is None:
            self._take(self._pipe.receive())
        turn, self._turn = self._turn, None
        return turn

    def _take(self, frame: ToUser) -> None:
        """Take a frame in. Raises TrainerError for one that nothing calls for."""
        # In the order of begin: a later one would free a slot that is still in use.
        if isinstance(frame, Deliver) and frame.sequence == min(self._sent, default=None):
            self._take_outcome(frame)
        elif isinstance(frame, Audit | Reopen) and self.audits is not None:
            self.send(Audited(number=frame.number, found=self.audits(frame)))
        elif isinstance(frame, Proceed) and self._awaits_turn:
            self._awaits_turn = False
            changed = self._read_anchors(frame.others)
            self._turn = Turn(
                clock=frame.clock, lease=frame.lease, others=changed, members=frame.members
            )
        else:
            raise TrainerError(f"an unexpected {type(frame).__name__} frame")

    def _take_outcome(self, frame: Deliver) -> None:
        if frame.validate:
            self._validate_round = frame.clock.round
        fragment = self._sent.pop(frame.sequence)
        if fragment in frame.others:
            raise TrainerError(f"anchors of fragments {frame.others}")
        changed = self._read_anchors((fragment, *frame.others))
        self._outcomes[frame.sequence] = Outcome(
            listed=frame.listed,
            is_resync=frame.is_resync,
            anchor_N=changed.pop(fragment),
            clock=frame.clock,
            lease=frame.lease,
            members=frame.members,
            others=changed,
        )

    def _read_anchors(self, fragments: tuple[int, ...]) -> dict[int, NDArray[np.float32]]:
        if not set(fragments) <= set(range(len(self._anchors))):
            raise TrainerError(f"anchors of fragments {fragments}")
        for fragment in fragments:
            # Let go of first: unless somebody holds it, the next one takes its memory.
            self._anchors[fragment] = _NOTHING
            self._anchors[fragment] = self._channel.read_anchor(fragment)
        return {fragment: self._anchors[fragment] for fragment in fragments}

    def take_validation(self) -> int | None:
        """The round whose anchor is to be validated, if one was asked for since the last call."""
        asked, self._validate_round = self._validate_round, None
        return asked

    def send(self, frame: Frame) -> None:
        """Send a frame. Raises TrainerError when the network process is gone."""
        self._pipe.send(frame)


@dataclass(frozen=True, slots=True)
class ChannelTicket:
    """A contribution that the network process has in its hands."""

    exchange: ChannelExchange
    sequence: int

    def is_here(self) -> bool:
        """See Ticket. Raises TrainerError when the network process is gone."""
        return self.exchange.is_here(self.sequence)

    def result(self) -> Outcome:
        """Block until the round is sealed. Raises TrainerError when the network process is gone."""
        return self.exchange.outcome(self.sequence)


def _rounded(size: int) -> int:
    return -(-size // _REGION_BYTES) * _REGION_BYTES


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _allocate(file: BinaryIO, size: int) -> None:
    if sys.platform == "linux":
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        else:
            return
    zeros = bytes(limits.MIB)
    file.writelines(zeros[: size - start] for start in range(0, size, limits.MIB))
