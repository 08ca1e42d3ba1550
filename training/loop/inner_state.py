"""The trainer's transaction (R6) on the disk, one file per round, and what of it counts at a start.

N elements of a fragment

    round-000042.safetensors    what was contributed to round 42, and the error feedback's residual
                                before and after
    round-000042.sums           of a large model: what that contribution was encoded from

It is written before the contribution leaves the trainer. So a trainer that starts anew knows what
it may have said: while the round is open it sends the same bytes again, without training; when the
round is over the seal tells which of the two residuals is the right one. With two rounds in flight
(R5) two may be open; bytes are sent again where the fragment is still the version that they are
relative to.

Of a small model the file has both residuals, the payload, and the moments. Of a large one these are
most of what a node writes, so there the sums stand for payload and residual after, the residual
before is named by the round that left it over, and moments are written now and then beside the
rounds (`training.loop.moments`). In runs with audits all is in the file: whoever audits goes by
moments, too.
"""

import errno
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protocol.errors import CheckpointError
from protocol.manifest import RunManifest
from training.channel.exchange import Contribution, RunStart, TraceRoots
from training.compression import HearsSums, make_codec, residual_root
from training.compression.dense import DenseCodec
from training.device.inner import load_optimizer_tensors
from training.files.durable import WRITING, make_folder_durably
from training.files.tensor_file import TensorFile, read_metadata, read_tensors, write_tensors
from training.loop.moments import MomentsFile
from training.loop.sums import (
    INNER_STATES_KEPT,
    MOMENTS_APART_S,
    SUMS_SUFFIX,
    SumsWriter,
    is_large,
    read_sums,
)
from training.methods.method import Method, MethodNotes, anchor_digest

logger = logging.getLogger(__name__)

_VERSION = "1"
_SUFFIX = ".safetensors"
_NAME = re.compile(r"round-(\d{6,12})" + re.escape(_SUFFIX))
_MOMENTS = "moments/"
_RESIDUAL = "residual/"
_RESIDUAL_AFTER = "residual_after"
_DRIFTING = "drifting/"
_PAYLOAD, _LENGTHS = "payload", "lengths"
_TRACE = "trace"
_SUMS, _BEFORE = "sums", "before"
_NO_RESIDUAL, _IN_HERE = "-", "here"
_OUR_TENSORS = (_RESIDUAL_AFTER, _PAYLOAD, _LENGTHS)
_OUR_WORDS = (
    *("version", "run", "shard", "round", "anchor", "optimizer", "fragment", "tokens", "samples"),
    *("steps", "loss", "residual_before", "residual_after", "pending", "basis", _TRACE),
    *(_SUMS, _BEFORE),
)
_METHOD_VECTORS_MAX = 4
_TENSORS_PER_PARAMETER_MAX = 8
"""AdamW keeps three per parameter, the greediest optimizer of torch five."""

_DISK_IS_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerState:
    """What a trainer must know again after a crash.

    `residuals` are those of all fragments before the contribution, `roots` theirs where they are
    known, `residual_after_N` that of the contribution's fragment if it is sealed; None stands for
    zero. `anchor` is the digest of the anchor that the contribution is relative to; with a round of
    delay of the newest that was known when it was handed over. `optimizer` names the class that
    `moments` are of.
    `drifting` are the working weights of the other fragments, which go on against older anchors:
    by fragment the digest of the anchor, and the weights; with two rounds in flight (R5) that of
    the contribution is among them. `pending` are earlier rounds that were contributed to and had no
    outcome yet. `notes` are the method's. `basis` is the RunClock's.
    """

    round: int
    anchor: bytes
    contribution: Contribution
    residuals: tuple[NDArray[np.float32] | None, ...]
    residual_after_N: NDArray[np.float32] | None
    optimizer: str
    moments: Mapping[str, Tensor]
    drifting: Mapping[int, tuple[bytes, NDArray[np.float32]]] = field(default_factory=dict)
    pending: tuple[int, ...] = ()
    notes: MethodNotes = field(default_factory=MethodNotes)
    basis: bytes = b""
    roots: tuple[bytes, ...] = ()


class InnerStore(Protocol):
    """SEAM: where DiLoCo keeps its transaction; called by the loop, in its thread.

    Implementations: `InnerFolder`; tests. Without one a restart begins with fresh moments and
    without what the codec lost.
    """

    def sums(self, round_index: int) -> HearsSums | None:
        """What hears the numbers that the contribution to a round is encoded from, cell by cell;
        None where nobody does. Called before it is encoded. Raises OSError as `save` does."""
        ...

    def save(self, state: InnerState) -> None:
        """Make the state of a round durable; called before its contribution is handed over.

        The loop goes on to change the vectors in it, and its moments within `updating`. Raises
        OSError on a full disk: the contribution then never leaves.
        """
        ...

    def updating(self) -> AbstractContextManager[None]:
        """Held while a step changes the moments."""
        ...

    def newest(self, round_index: int) -> InnerState | None:
        """The state of the latest round up to `round_index`; called at the start."""
        ...


@runtime_checkable
class KeepsInnerState(Protocol):
    """An Exchange that has a place for inner states: DiLoCo uses it unless it is given another."""

    @property
    def inner_store(self) -> InnerStore:
        """Where the transaction of each round is kept."""
        ...


class InnerFolder:
    """InnerStore on disk, for one shard and one process at a time. Three rounds are kept, and of a
    large model those before them whose residuals they name.

    `large` says whether the model is, where not its size decides; `apart_s` is of its moments.
    """

    def __init__(
        self,
        folder: Path,
        manifest: RunManifest,
        shard: int = 0,
        *,
        large: bool | None = None,
        apart_s: float = MOMENTS_APART_S,
    ) -> None:
        self._folder = folder
        self._run = manifest.digest.hex()
        self._shard = manifest.shards[shard]
        self._layout = manifest.layout(shard)
        self._numels = self._layout.fragment_numels
        self._codec = make_codec(manifest.outer)
        self._is_large = is_large(manifest, shard) if large is None else large
        self._has_sums = self._is_large and manifest.outer.feedback != 0.0
        self._writer: SumsWriter | None = None
        self._kept_in: dict[tuple[int, bytes], int] = {}
        """By fragment and root of a residual the round that left it over, as its file says."""
        self._names: dict[int, frozenset[int]] = {}
        """By round those whose files its own one names."""
        self._is_tidy = False
        words = {"version": _VERSION, "run": self._run, "shard": self._shard.name}
        self.moments = MomentsFile(folder, words, apart_s=apart_s)

    def sums(self, round_index: int) -> HearsSums | None:
        """See InnerStore. Raises OSError that names the folder and what to do."""
        if not self._has_sums:
            return None
        try:
            self._tidy()
            self._drop_sums()
            self._writer = writer = SumsWriter(self._sums_path(round_index))
        except OSError as error:
            raise self._unkept(round_index, error) from error

        def hear(cell_N: NDArray[np.float32]) -> None:
            try:
                writer.add(cell_N)
            except OSError as error:
                self._drop_sums()
                raise self._unkept(round_index, error) from error

        return hear

    def save(self, state: InnerState) -> None:
        """See InnerStore. Raises OSError that names the folder and what to do."""
        try:
            self._tidy()
            path = self._folder / f"round-{state.round:06d}{_SUFFIX}"
            words = self._metadata(state)
            left_out = self._leave_out(state, words) if self._is_large else set()
            tensors = _tensors(state, left_out)
            write_tensors(path, TensorFile(tensors, words))
            self._note(state.round, words)
            self._prune(state.round)
        except OSError as error:
            self._drop_sums()
            raise self._unkept(state.round, error) from error
        if self._is_large:
            optimizer = {"optimizer": state.optimizer}
            self.moments.round_ended(state.moments, optimizer)

    def updating(self) -> AbstractContextManager[None]:
        """See InnerStore."""
        return self.moments.updating() if self._is_large else nullcontext()

    def _tidy(self) -> None:
        """What the process before us left unfinished goes; once, for by now our own thread may
        write."""
        if not self._is_tidy:
            make_folder_durably(self._folder)
            for left in self._folder.glob(WRITING + "*"):
                left.unlink()
            self._is_tidy = True

    def _unkept(self, round_index: int, error: OSError) -> OSError:
        mend = "free space there" if error.errno in _DISK_IS_FULL else "make it writable"
        return OSError(
            error.errno,
            f"cannot keep the state of round {round_index} in {self._folder}: "
            f"{error.strerror or error}; {mend} and start again, nothing that was kept is lost",
        )

    def _sums_path(self, round_index: int) -> Path:
        return self._folder / f"round-{round_index:06d}{SUMS_SUFFIX}"

    def _drop_sums(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.drop()

    def _leave_out(self, state: InnerState, words: dict[str, str]) -> set[str]:
        """Names of the tensors that lie elsewhere; the words say where."""
        left_out = {_MOMENTS + name for name in state.moments}
        writer = self._writer
        if writer is not None and writer.path == self._sums_path(state.round):
            words[_SUMS] = writer.finish().hex()
            self._writer = None
            left_out.add(_RESIDUAL_AFTER)
            if isinstance(self._codec, DenseCodec):
                left_out.add(_PAYLOAD)  # Others are not worth to be encoded again to the bit.
        before = [_NO_RESIDUAL] * len(self._numels)
        for fragment, residual_N in enumerate(state.residuals):
            if residual_N is None:
                continue
            root = state.roots[fragment] if state.roots else b""
            kept_in = self._kept_in.get((fragment, root))
            before[fragment] = _IN_HERE if kept_in is None else str(kept_in)
            if kept_in is not None:
                left_out.add(f"{_RESIDUAL}{fragment}")
        words[_BEFORE] = " ".join(before)
        return left_out

    def _note(self, round_index: int, words: Mapping[str, str]) -> None:
        """What a file of ours has, and which others it names."""
        named = frozenset(int(word) for word in words.get(_BEFORE, "").split() if word.isdecimal())
        self._names[round_index] = named
        for key in [key for key, index in self._kept_in.items() if index == round_index]:
            del self._kept_in[key]
        if _SUMS in words:
            root = bytes.fromhex(words["residual_after"])
            self._kept_in[int(words["fragment"]), root] = round_index

    def newest(self, round_index: int) -> InnerState | None:
        """See InnerStore. A file that is torn, changed or foreign is passed over with a warning.

        So are files of later rounds: they belong to a branch that was given up.
        """
        rounds = self._rounds()
        for index in sorted((index for index in rounds if index <= round_index), reverse=True):
            try:
                return self._load(rounds[index], index)
            except CheckpointError as error:
                logger.warning("inner state skipped path=%s reason=%s", rounds[index], error)
        return None

    def _rounds(self) -> dict[int, Path]:
        if not self._folder.is_dir():
            return {}
        matches = ((path, _NAME.fullmatch(path.name)) for path in self._folder.iterdir())
        return {int(match[1]): path for path, match in matches if match is not None}

    def _prune(self, newest: int) -> None:
        rounds = self._rounds()
        kept = set(sorted(index for index in rounds if index <= newest)[-INNER_STATES_KEPT:])
        kept |= {named for index in kept for named in self._named(rounds[index], index)}
        for index in rounds.keys() - kept:
            rounds[index].unlink()
            self._note(index, {})
        if self._has_sums:
            names = {self._sums_path(index).name for index in kept}
            for path in self._folder.glob(f"*{SUMS_SUFFIX}"):
                if path.name not in names:
                    path.unlink()

    def _named(self, path: Path, index: int) -> frozenset[int]:
        if index not in self._names:
            try:
                self._note(index, read_metadata(path))
            except (CheckpointError, KeyError, ValueError):
                self._note(index, {})
        return self._names[index]

    def _metadata(self, state: InnerState) -> dict[str, str]:
        contribution = state.contribution
        return {
            "version": _VERSION,
            "run": self._run,
            "shard": self._shard.name,
            "round": str(state.round),
            "anchor": state.anchor.hex(),
            "optimizer": state.optimizer,
            "fragment": str(contribution.fragment),
            "tokens": str(contribution.tokens),
            "samples": str(contribution.samples),
            "steps": str(contribution.steps),
            "loss": contribution.loss.hex(),
            "residual_before": contribution.residual_before.hex(),
            "residual_after": contribution.residual_after.hex(),
            "pending": " ".join(map(str, state.pending)),
            "basis": state.basis.hex(),
            **_told_of(contribution.traced),
            **state.notes.words,
        } | {f"{_DRIFTING}{other}": anchor.hex() for other, (anchor, _) in state.drifting.items()}

    def _load(self, path: Path, round_index: int) -> InnerState:
        fragments = len(self._numels)
        content = read_tensors(path, tensors_max=self._tensors_max)
        # A file with a right digest was written by us, if perhaps by another version of us.
        try:
            self._check_owner(path, round_index, content.metadata)
            content = self._gathered(content, round_index)
            state = _state(content, round_index, fragments)
            self._note(round_index, content.metadata)
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path} is of another version: {error!r}") from error
        numel = self._numels[state.contribution.fragment]
        expected = [
            *zip(state.residuals, self._numels, strict=True),
            (state.residual_after_N, numel),
            *((local_N, self._numels[other]) for other, (_, local_N) in state.drifting.items()),
            *((vector_N, numel) for vector_N in state.notes.vectors.values()),
        ]
        if any(x_N is not None and x_N.shape != (size,) for x_N, size in expected):
            raise CheckpointError(f"{path} has residuals of another size")
        return state

    @property
    def _tensors_max(self) -> int:
        parameters, fragments = len(self._shard.tensors), len(self._numels)
        return _TENSORS_PER_PARAMETER_MAX * parameters + 2 * fragments + 3 + _METHOD_VECTORS_MAX

    def _gathered(self, content: TensorFile, round_index: int) -> TensorFile:
        """With what of a large model lies elsewhere. Raises CheckpointError where that is not what
        it was, and ValueError or KeyError."""
        words, tensors = content.metadata, dict(content.tensors)
        if _SUMS in words:
            after_N, payload = self._made_again(content, round_index)
            tensors[_RESIDUAL_AFTER] = torch.from_numpy(after_N)
            tensors[_PAYLOAD] = torch.from_numpy(payload)
        for fragment, word in enumerate(words.get(_BEFORE, "").split()):
            if word in (_NO_RESIDUAL, _IN_HERE):
                continue
            path = self._folder / f"round-{int(word):06d}{_SUFFIX}"
            left = read_tensors(path, tensors_max=self._tensors_max)
            self._check_owner(path, int(word), left.metadata)
            if left.metadata["fragment"] != str(fragment):
                raise ValueError(f"round {word} left no residual of fragment {fragment}")
            residual_N, _ = self._made_again(left, int(word))
            tensors[f"{_RESIDUAL}{fragment}"] = torch.from_numpy(residual_N)
        if self._is_large and (found := self.moments.read(tensors_max=self._tensors_max)):
            words = {**words, "optimizer": found.metadata["optimizer"]}
            tensors |= {_MOMENTS + name: tensor for name, tensor in found.tensors.items()}
        return TensorFile(tensors, words)

    def _made_again(
        self, content: TensorFile, round_index: int
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """Residual and payload of what was encoded from sums, to the bit."""
        words = content.metadata
        numels = self._layout.cell_numels[int(words["fragment"])]
        path = self._sums_path(round_index)
        after_N = read_sums(path, sum(numels), bytes.fromhex(words[_SUMS]))
        cells = np.split(after_N, np.cumsum(numels)[:-1])
        if _PAYLOAD in content.tensors:
            payload = content.tensors[_PAYLOAD].numpy()
        else:
            encoded = bytearray().join(self._codec.encode(cell_N) for cell_N in cells)
            payload = np.frombuffer(encoded, np.uint8)
        lengths = content.tensors[_LENGTHS].tolist()
        start = 0
        for cell_N, length in zip(cells, lengths, strict=True):
            cell = payload[start : start + length].tobytes()
            cell_N -= self._codec.decode(cell, len(cell_N))
            start += length
        # What is left of the sums, in their memory.
        if residual_root(after_N, self._layout.cell_elements).hex() != words["residual_after"]:
            raise CheckpointError(f"{path} leaves another residual than it did")
        return after_N, payload

    def _check_owner(self, path: Path, round_index: int, metadata: Mapping[str, str]) -> None:
        if metadata["version"] != _VERSION:
            raise CheckpointError(f"{path} is of version {metadata['version']}, not {_VERSION}")
        owner = (metadata["run"], metadata["shard"])
        if owner != (self._run, self._shard.name):
            raise CheckpointError(
                f"{path} is of run {owner[0][:12]}, shard {owner[1]}; "
                f"this is run {self._run[:12]}, shard {self._shard.name}"
            )
        if metadata["round"] != str(round_index):
            raise CheckpointError(f"{path} holds the state of round {metadata['round']}")


def take_moments(model: nn.Module, optimizer: torch.optim.Optimizer, state: InnerState) -> None:
    """Put back the moments of a state; they start afresh where they are of another optimizer."""
    if state.optimizer != type(optimizer).__name__:
        logger.warning("moments start afresh reason=they are of %s", state.optimizer)
        return
    try:
        load_optimizer_tensors(model, optimizer, state.moments)
    except CheckpointError as error:
        logger.warning("moments start afresh reason=%s", error)


def _notes(content: TensorFile) -> MethodNotes:
    """What no name of ours stands for is the method's."""
    words = {
        name: word
        for name, word in content.metadata.items()
        if not (name in _OUR_WORDS or name.startswith(_DRIFTING))
    }
    vectors = {
        name: _needed(content.tensors, name)
        for name in content.tensors
        if not (name in _OUR_TENSORS or name.startswith((_MOMENTS, _RESIDUAL, _DRIFTING)))
    }
    return MethodNotes(words, vectors)


def _told_of(traced: TraceRoots | None) -> dict[str, str]:
    if traced is None:
        return {}
    names = (traced.before, traced.after, *traced.trace)
    return {_TRACE: " ".join(root.hex() for root in names)}


def _traced(metadata: Mapping[str, str]) -> TraceRoots | None:
    names = [bytes.fromhex(name) for name in metadata.get(_TRACE, "").split()]
    if not names:
        return None
    before, after, *trace = names
    return TraceRoots(trace=tuple(trace), before=before, after=after)


def _tensors(state: InnerState, left_out: Collection[str]) -> dict[str, Tensor]:
    contribution = state.contribution
    tensors = {_MOMENTS + name: tensor for name, tensor in state.moments.items()}
    for fragment, residual_N in enumerate(state.residuals):
        if residual_N is not None:
            tensors[f"{_RESIDUAL}{fragment}"] = torch.from_numpy(residual_N)
    if state.residual_after_N is not None:
        tensors[_RESIDUAL_AFTER] = torch.from_numpy(state.residual_after_N)
    for other, (_, local_N) in state.drifting.items():
        tensors[f"{_DRIFTING}{other}"] = torch.from_numpy(local_N)
    tensors |= {name: torch.from_numpy(x_N) for name, x_N in state.notes.vectors.items()}
    if _PAYLOAD not in left_out:
        payload = np.frombuffer(bytearray().join(contribution.payloads), dtype=np.uint8)
        tensors[_PAYLOAD] = torch.from_numpy(payload)
    tensors[_LENGTHS] = torch.tensor([len(p) for p in contribution.payloads], dtype=torch.int64)
    return {name: tensor for name, tensor in tensors.items() if name not in left_out}


def _state(content: TensorFile, round_index: int, fragments: int) -> InnerState:
    metadata, tensors = content.metadata, content.tensors
    payload = tensors[_PAYLOAD].numpy().tobytes()
    lengths = [int(length) for length in tensors[_LENGTHS]]
    ends = accumulate(lengths)
    if min(lengths, default=0) < 0 or sum(lengths) != len(payload):
        raise ValueError("payload of another length")
    fragment = int(metadata["fragment"])
    if not 0 <= fragment < fragments:
        raise ValueError(f"fragment {fragment}")
    contribution = Contribution(
        fragment=fragment,
        payloads=tuple(
            payload[end - length : end] for end, length in zip(ends, lengths, strict=True)
        ),
        tokens=int(metadata["tokens"]),
        samples=int(metadata["samples"]),
        steps=int(metadata["steps"]),
        residual_before=bytes.fromhex(metadata["residual_before"]),
        residual_after=bytes.fromhex(metadata["residual_after"]),
        loss=float.fromhex(metadata["loss"]),
        traced=_traced(metadata),
    )
    return InnerState(
        round=round_index,
        anchor=bytes.fromhex(metadata["anchor"]),
        contribution=contribution,
        residuals=tuple(_vector(tensors, f"{_RESIDUAL}{f}") for f in range(fragments)),
        residual_after_N=_vector(tensors, _RESIDUAL_AFTER),
        optimizer=metadata["optimizer"],
        moments={
            name.removeprefix(_MOMENTS): tensor
            for name, tensor in tensors.items()
            if name.startswith(_MOMENTS)
        },
        drifting={
            other: (bytes.fromhex(metadata[name]), local_N)
            for other in range(fragments)
            if (local_N := _vector(tensors, name := f"{_DRIFTING}{other}")) is not None
        },
        # A file from before there was more than one round in flight names none.
        pending=tuple(map(int, metadata.get("pending", "").split()))[:INNER_STATES_KEPT],
        notes=_notes(content),
        basis=bytes.fromhex(metadata.get("basis", "")),
    )


def _vector(tensors: Mapping[str, Tensor], name: str) -> NDArray[np.float32] | None:
    return _needed(tensors, name) if name in tensors else None


def _needed(tensors: Mapping[str, Tensor], name: str) -> NDArray[np.float32]:
    vector_N: NDArray[np.float32] = tensors[name].numpy()
    if vector_N.dtype != np.float32:
        raise ValueError(f"{name} is {vector_N.dtype}")
    return vector_N


Residuals = tuple[NDArray[np.float32] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What counts of it.

    `newest` has the moments. `residuals` are those of all fragments, None where they belong to
    weights long gone. `under_way` are rounds that were contributed to and are not over. `drifting`
    are working weights that go on.
    """

    newest: InnerState
    residuals: Residuals | None
    under_way: dict[int, InnerState] = field(default_factory=dict)
    drifting: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)


def recall(store: InnerStore, start: RunStart, method: Method) -> Recalled | None:
    """What of the store is good for this start; None if nothing is there.

    `method` is that of the round before the one in hand, and says what of working weights goes on.
    What was contributed to a round of a branch that was left (R4) counts for none that is under
    way, nor does its residual, though a round of that number be sealed by now.
    """
    next_round = start.clock.round
    newest = store.newest(method.newest_kept(next_round))
    if newest is None:
        return None
    if newest.round < start.since:
        # From before a resync, or from another branch: it belongs to weights long gone.
        return Recalled(newest=newest, residuals=None)
    kept = {index: _kept(store, index) for index in newest.pending} | {newest.round: newest}
    over = [index for index in kept if index < next_round]
    settled = {state.contribution.fragment for i in over if (state := kept[i]) is not None}
    drifting = _drifting(newest, start, method, settled)
    is_live = newest.round < next_round or _is_live(newest, start, method)
    if not (is_live and _is_of_this_chain(newest, start)):
        return Recalled(newest=newest, residuals=None, drifting=drifting)
    residuals = list(newest.residuals)
    for index in over:
        state = kept[index]
        fragment = index % len(residuals)
        if state is None or index < start.since:
            residuals[fragment] = None  # Nobody tells what became of it.
        elif index in start.listed:
            residuals[fragment] = state.residual_after_N
    under_way = {
        index: state
        for index, state in kept.items()
        if index >= next_round and state is not None and _is_live(state, start, method)
    }
    return Recalled(
        newest=newest, residuals=tuple(residuals), under_way=under_way, drifting=drifting
    )


def _drifting(
    newest: InnerState, start: RunStart, method: Method, settled: Collection[int]
) -> dict[int, NDArray[np.float32]]:
    """Working weights that go on, by fragment."""
    found = {}
    for fragment, (digest, local_N) in newest.drifting.items():
        anchor_N, behind_N = start.anchors[fragment], None
        if newest.round == start.clock.round - 1:
            behind_N = method.weights_behind(newest.round, fragment, local_N, anchor_N)
        if behind_N is not None:
            found[fragment] = behind_N
        elif fragment not in settled and digest == anchor_digest(anchor_N):
            found[fragment] = local_N
    return found


def _kept(store: InnerStore, index: int) -> InnerState | None:
    state = store.newest(index)
    return state if state is not None and state.round == index else None


def _is_live(state: InnerState, start: RunStart, method: Method) -> bool:
    """Whether its contribution is to the same version of its fragment, and there is a round."""
    anchor_N = start.anchors[state.contribution.fragment]
    is_same = method.is_same_version(state.anchor, anchor_N)
    return bool(start.lease) and is_same and _is_of_this_chain(state, start)


def _is_of_this_chain(state: InnerState, start: RunStart) -> bool:
    """Whether its round is one that is or was under way here, not on a branch that was left."""
    return state.basis in start.bases
