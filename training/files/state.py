"""Checkpoints of a shard on disk: anchor, outer state and what they belong to.

N elements of a fragment

    checkpoints/round-000042/anchor.safetensors    the tensors of the shard, by name
                             outer.safetensors     the outer optimizer's, named slot/tensor
                             meta.json             run, round, seal, clock, digests of both files
    checkpoints/latest                             the name of the folder to start from

A folder appears under its name when all of it is on the disk, never in part. Nothing that is read
is believed: every byte of a checkpoint is under a digest, and every tensor held against the shard.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protocol.errors import CheckpointError, ConfigError
from protocol.grid import ShardSpec
from protocol.manifest import RunManifest
from training.channel.exchange import RunClock
from training.files.durable import (
    BLOCK_BYTES,
    SYSTEM_FILES,
    WRITING,
    fsync_file,
    fsync_folder,
    in_blocks,
    make_folder_durably,
    replace_durably,
)
from training.outer.optimizers import make_outer

# Float32 tensors in the form of a safetensors file, from where they lie --------------------------
#
# The library's own writer takes a copy of all tensors first: a model's size of fresh memory for
# each checkpoint. Source: github.com/huggingface/safetensors, "Format".

LENGTH_BYTES = 8
ALIGNMENT = 8


def entry(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    """What a header says of a tensor whose bytes are [start, stop) of the data."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def header_bytes(entries: Mapping[str, object], alignment: int = ALIGNMENT) -> bytes:
    """A file's first bytes: the length of the header, and the header, padded with blanks so that
    what follows begins at a multiple of `alignment`."""
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % alignment)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def file_parts(tensors: Mapping[str, NDArray[np.float32]]) -> Iterator[bytes | memoryview]:
    """The file's bytes, in order; nobody may write to the tensors, which are little-endian and
    contiguous, before the last of them is used.

    Tensors begin at a block of the file, and those that lie behind one another come in one piece:
    of a vector that begins at a page all can be written from where it lies.
    """
    entries, offset = {}, 0
    for name in sorted(tensors):
        tensor = tensors[name]
        assert tensor.dtype == np.dtype("<f4")
        entries[name] = entry("F32", list(tensor.shape), offset, offset + tensor.nbytes)
        offset += tensor.nbytes
    yield header_bytes(entries, BLOCK_BYTES)
    for piece_N in _joined(tensors[name].reshape(-1) for name in sorted(tensors)):
        yield piece_N.data


def _joined(vectors: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """The same elements; views of one vector that follow each other there are one view."""
    whole_N: NDArray[np.float32] | None = None
    start = stop = 0
    for vector_N in vectors:
        base_N, first = _place_of(vector_N)
        if base_N is not whole_N or first != stop:
            if whole_N is not None:
                yield whole_N[start:stop]
            whole_N, start = base_N, first
        stop = first + len(vector_N)
    if whole_N is not None:
        yield whole_N[start:stop]


def _place_of(vector_N: NDArray[np.float32]) -> tuple[NDArray[np.float32], int]:
    """The vector that it is a view of, and where it begins there; of any other itself."""
    base_N = vector_N.base
    if not isinstance(base_N, np.ndarray) or base_N.ndim != 1 or base_N.dtype != vector_N.dtype:
        return vector_N, 0
    distance = _address(vector_N) - _address(base_N)
    is_plain = base_N.flags.c_contiguous and distance % vector_N.itemsize == 0
    return (base_N, distance // vector_N.itemsize) if is_plain else (vector_N, 0)


def _address(vector_N: NDArray[np.float32]) -> int:
    address: int = vector_N.__array_interface__["data"][0]
    return address


# Checkpoints -------------------------------------------------------------------------------------

CHECKPOINTS_KEPT = 3
ANCHOR_FILE, OUTER_FILE, META_FILE = "anchor.safetensors", "outer.safetensors", "meta.json"

_VERSION = 1
_LATEST = "latest"
_NAME = re.compile(r"round-(\d{6,12})")
_META_BYTES_MAX = 4096
_PIECE_BYTES = 4 << 20
"""Hashed and written while it is in the cache."""

_HEADER_BYTES_PER_TENSOR_MAX = 2048
"""Name of 256 characters, escaped at worst six bytes each; shape, dtype, offsets."""

Slots = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """What a joiner needs of a shard: per fragment the flat anchor and the outer slot vectors."""

    anchors: tuple[NDArray[np.float32], ...]
    slots: tuple[Slots, ...]
    """A missing vector is zero, as at genesis; on disk zero is written for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMeta:
    """What a checkpoint belongs to.

    `seal` is the digest of the seal that made it, empty at genesis. `clock.round` is the round
    that starts from this anchor; it names the folder.
    """

    run: bytes
    shard: str
    seal: bytes
    clock: RunClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint read back, whole and of the right run."""

    path: Path
    meta: CheckpointMeta
    state: ShardState


def checkpoint_name(round_index: int) -> str:
    """Name of the folder of the checkpoint that round `round_index` starts from."""
    return f"round-{round_index:06d}"


def save_checkpoint(
    folder: Path,
    spec: ShardSpec,
    state: ShardState,
    meta: CheckpointMeta,
    *,
    kept: int = CHECKPOINTS_KEPT,
) -> Path:
    """Write a checkpoint into `folder` and point `latest` at it; so many are `kept`.

    When it returns all of it is on the disk. A crash at any moment leaves the checkpoint before it.
    One process writes to a folder at a time. Raises OSError where the disk is full, and leaves
    nothing of the new one then.
    """
    make_folder_durably(folder)
    for left in folder.glob(WRITING + "*"):
        _remove(left)
    name = checkpoint_name(meta.clock.round)
    writing = folder / (WRITING + name)
    writing.mkdir()
    try:
        _write_files(writing, spec, state, meta)
    except OSError:
        # It would take the space that the disk has not got.
        shutil.rmtree(writing, ignore_errors=True)
        raise
    target = folder / name
    if target.exists():  # The round was sealed anew on another branch.
        target.rename(folder / f"{WRITING}old-{name}")
    writing.rename(target)
    fsync_folder(folder)
    replace_durably(folder / _LATEST, [f"{name}\n".encode("ascii")])
    _prune(folder, meta.clock.round, kept)
    return target


def _write_files(folder: Path, spec: ShardSpec, state: ShardState, meta: CheckpointMeta) -> None:
    digests = {
        ANCHOR_FILE: _write(named_tensors(spec, state.anchors), folder / ANCHOR_FILE),
        OUTER_FILE: _write(_slot_tensors(spec, state.slots), folder / OUTER_FILE),
    }
    (folder / META_FILE).write_bytes(_pack_meta(meta, _slot_names(state.slots), digests))
    fsync_file(folder / META_FILE)
    fsync_folder(folder)


def _write(tensors: Mapping[str, NDArray[np.float32]], path: Path) -> str:
    """A file of tensors, on the disk when this returns; BLAKE3 of its bytes, hexadecimal."""
    hasher = blake3()
    file = SYSTEM_FILES.create(path)
    try:
        for large in in_blocks(file_parts(tensors)):
            view = memoryview(large)
            for start in range(0, len(view), _PIECE_BYTES):
                piece = view[start : start + _PIECE_BYTES]
                hasher.update(piece)
                file.write(piece)
        file.sync()
    finally:
        file.close()
    return hasher.hexdigest()


def load_checkpoint(path: Path, spec: ShardSpec, *, run: bytes, slots: Sequence[str]) -> Checkpoint:
    """The checkpoint in folder `path`; `slots` are the outer optimizer's.

    Raises CheckpointError if it is torn, changed, or of another run, shard or optimizer.
    """
    meta, written_slots, digests = _read_meta(path / META_FILE)
    if (meta.run, meta.shard) != (run, spec.name):
        raise CheckpointError(
            f"{path} is of run {meta.run.hex()[:12]}, shard {meta.shard}; "
            f"this is run {run.hex()[:12]}, shard {spec.name}"
        )
    if path.name != checkpoint_name(meta.clock.round):
        raise CheckpointError(f"{path} holds the state of round {meta.clock.round}")
    if not set(written_slots) <= set(slots):
        raise CheckpointError(f"{path} is of another outer optimizer")
    shapes = {tensor.name: tensor.shape for tensor in spec.tensors}
    anchors = _read_tensors(path / ANCHOR_FILE, digests[ANCHOR_FILE], shapes)
    slot_shapes = {
        f"{slot}/{name}": shape for slot in written_slots for name, shape in shapes.items()
    }
    outer = _read_tensors(path / OUTER_FILE, digests[OUTER_FILE], slot_shapes)
    fragments = range(len(spec.fragments))
    state = ShardState(
        anchors=tuple(flat_fragment(spec, fragment, anchors) for fragment in fragments),
        slots=tuple(
            {slot: flat_fragment(spec, fragment, outer, f"{slot}/") for slot in written_slots}
            for fragment in fragments
        ),
    )
    return Checkpoint(path=path, meta=meta, state=state)


def round_of(path: Path) -> int:
    """The round that the checkpoint in a folder of such a name starts."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, "a checkpoint's folder"
    return int(match[1])


def checkpoint_folders(folder: Path) -> list[Path]:
    """The checkpoints to start from, the newest first; whether they are whole is not looked at."""
    rounds = _rounds(folder)
    try:
        with (folder / _LATEST).open("rb") as file:
            text = file.read(64).decode("ascii", "replace")
    except OSError:
        text = ""
    match = _NAME.fullmatch(text.removesuffix("\n"))
    if match is not None:
        # What is above the pointer belongs to a branch that was given up.
        rounds = {index: path for index, path in rounds.items() if index <= int(match[1])}
    return [rounds[index] for index in sorted(rounds, reverse=True)]


def _rounds(folder: Path) -> dict[int, Path]:
    if not folder.is_dir():
        return {}
    matches = ((path, _NAME.fullmatch(path.name)) for path in folder.iterdir())
    return {int(match[1]): path for path, match in matches if match is not None}


def named_tensors(
    spec: ShardSpec, vectors: Sequence[NDArray[np.float32]], prefix: str = ""
) -> dict[str, NDArray[np.float32]]:
    """Flat vectors, one per fragment, as tensors by name; views where they can be."""
    tensors = {}
    for fragment, vector_N in zip(spec.fragments, vectors, strict=True):
        start = 0
        for index in fragment:
            tensor = spec.tensors[index]
            part = vector_N[start : start + tensor.numel].reshape(tensor.shape)
            tensors[prefix + tensor.name] = np.array(part, dtype="<f4", order="C", copy=None)
            start += tensor.numel
        assert vector_N.shape == (start,), "a vector has the size of its fragment"
    return tensors


def _slot_tensors(spec: ShardSpec, slots: Sequence[Slots]) -> dict[str, NDArray[np.float32]]:
    numels = [sum(spec.tensors[index].numel for index in part) for part in spec.fragments]
    zeros = [np.zeros(numel, np.float32) for numel in numels]
    tensors: dict[str, NDArray[np.float32]] = {}
    for name in _slot_names(slots):
        vectors = [part.get(name, zero_N) for part, zero_N in zip(slots, zeros, strict=True)]
        tensors |= named_tensors(spec, vectors, f"{name}/")
    return tensors


def _slot_names(slots: Sequence[Slots]) -> list[str]:
    return sorted({name for fragment in slots for name in fragment})


def flat_fragment(
    spec: ShardSpec, fragment: int, tensors: Mapping[str, NDArray[np.float32]], prefix: str = ""
) -> NDArray[np.float32]:
    """Inverse of `named_tensors` for one fragment: a new flat vector."""
    names = [prefix + spec.tensors[index].name for index in spec.fragments[fragment]]
    return np.concatenate([tensors[name].reshape(-1) for name in names])


def _read_tensors(
    path: Path, digest: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[np.float32]]:
    try:
        check_header(path, len(shapes))
        if blake3().update_mmap(path).hexdigest() != digest:
            raise CheckpointError(f"{path} is not the file that was written")
        with safe_open(path, framework="numpy") as file:
            if sorted(file.keys()) != sorted(shapes):
                raise CheckpointError(f"{path} has other tensors than the shard")
            tensors = {name: file.get_tensor(name) for name in shapes}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    for name, shape in shapes.items():
        if tensors[name].shape != shape or tensors[name].dtype != np.float32:
            raise CheckpointError(f"{path}: {name} is not float32 of shape {shape}")
    return tensors


def check_header(path: Path, num_tensors: int) -> None:
    """Bound a safetensors header before a parser allocates what a torn length claims.

    Raises CheckpointError if it is longer than that of `num_tensors` tensors can be.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > _HEADER_BYTES_PER_TENSOR_MAX * (num_tensors + 1) + BLOCK_BYTES:
        raise CheckpointError(f"{path} claims a header of {length} bytes")


def _pack_meta(meta: CheckpointMeta, slots: Sequence[str], digests: Mapping[str, str]) -> bytes:
    body: dict[str, object] = {
        "version": _VERSION,
        "run": meta.run.hex(),
        "shard": meta.shard,
        "seal": meta.seal.hex(),
        "round": meta.clock.round,
        "step": meta.clock.step,
        "tokens": meta.clock.tokens,
        "slots": list(slots),
        **digests,
    }
    return _canonical(body | {"digest": blake3(_canonical(body)).hexdigest()})


def _read_meta(path: Path) -> tuple[CheckpointMeta, tuple[str, ...], dict[str, str]]:
    try:
        with path.open("rb") as file:
            data = file.read(_META_BYTES_MAX)
        body = json.loads(data)
        digest = body.pop("digest")
        if blake3(_canonical(body)).hexdigest() != digest or body["version"] != _VERSION:
            raise CheckpointError(f"{path} was changed, or is of another version")
        if _canonical(body | {"digest": digest}) != data:
            raise CheckpointError(f"{path} was changed")
        clock = RunClock(round=body["round"], step=body["step"], tokens=body["tokens"])
        run, seal = bytes.fromhex(body["run"]), bytes.fromhex(body["seal"])
        digests = {name: body[name] for name in (ANCHOR_FILE, OUTER_FILE)}
        meta = CheckpointMeta(run=run, shard=body["shard"], seal=seal, clock=clock)
        slots = tuple(body["slots"])
    # A body with a right digest was written by us; the others fail in one of these ways.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    counts, texts = (clock.round, clock.step, clock.tokens), (meta.shard, *slots, *digests.values())
    # Anybody can make a digest, and a folder may be a stranger's.
    are_counts = all(type(count) is int and count >= 0 for count in counts)
    if not are_counts or not all(type(text) is str for text in texts):
        raise CheckpointError(f"{path} is no meta file of ours")
    return meta, slots, digests


def _canonical(body: Mapping[str, object]) -> bytes:
    return json.dumps(body, sort_keys=True, indent=1).encode() + b"\n"


def _prune(folder: Path, newest: int, most: int) -> None:
    rounds = _rounds(folder)
    kept = sorted(index for index in rounds if index <= newest)[-most:]
    for index in rounds.keys() - set(kept):
        # Renamed first: a crash in the middle leaves no half folder under a real name.
        _remove(rounds[index].rename(folder / (WRITING + rounds[index].name)))
    for left in folder.glob(WRITING + "*"):
        _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


_SCANS_MAX = 5
"""A node that prunes what we are reading has written a newer one meanwhile: we look again. Even the
quickest rounds do not seal three checkpoints while one is read, again and again."""

Tell = Callable[[str], None]
"""Gets a sentence about each checkpoint that had to be passed over."""


def sealed_round(checkpoint: Checkpoint) -> int:
    """The round whose seal made these weights; the folder is named after the one that follows."""
    return checkpoint.meta.clock.round - 1


def newest_whole(
    folder: Path, manifest: RunManifest, tell: Tell, *, round_index: int | None = None
) -> Checkpoint:
    """The newest whole checkpoint in `folder`, or the one that round `round_index` sealed.

    Raises ConfigError for a round that is not kept, CheckpointError where none is whole.
    """
    told: set[Path] = set()
    for _ in range(_SCANS_MAX):
        paths = _paths(folder, round_index)
        for path in paths:
            try:
                return _load(path, manifest)
            except CheckpointError as error:
                if not path.exists():
                    break
                if round_index is not None:
                    raise
                if path not in told:
                    told.add(path)
                    tell(f"passed over a checkpoint that is not whole: {error}")
        else:
            raise CheckpointError(
                f"{folder} holds no whole checkpoint: start the node again, and it fetches the "
                "run's state from its peers"
                if paths
                else f"{folder} holds no checkpoint yet: a sealed round makes the first"
            )
    raise CheckpointError(f"{folder} changes faster than it can be read: try again")


def every_whole(folder: Path, manifest: RunManifest, tell: Tell) -> Iterator[Checkpoint]:
    """All whole checkpoints in `folder`, the oldest first.

    Raises CheckpointError where there is none.
    """
    num_whole = 0
    for path in reversed(checkpoint_folders(folder)):
        try:
            checkpoint = _load(path, manifest)
        except CheckpointError as error:
            # One that is gone was pruned by a running node.
            if path.exists():
                tell(f"passed over a checkpoint that is not whole: {error}")
            continue
        num_whole += 1
        yield checkpoint
    if num_whole == 0:
        # Perhaps there is one by now; if not, it says what to do.
        yield newest_whole(folder, manifest, tell)


def _load(path: Path, manifest: RunManifest) -> Checkpoint:
    slots = make_outer(manifest.outer).slots
    return load_checkpoint(path, manifest.shards[0], run=manifest.digest, slots=slots)


def _paths(folder: Path, round_index: int | None) -> list[Path]:
    paths = checkpoint_folders(folder)
    if round_index is None:
        return paths
    kept = {int(path.name.rpartition("-")[2]) - 1: path for path in paths}
    if round_index not in kept:
        rounds = ", ".join(str(index) for index in sorted(kept)) or "none"
        raise ConfigError(f"{folder} does not keep round {round_index}; it keeps: {rounds}")
    return [kept[round_index]]
