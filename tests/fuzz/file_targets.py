"""Decoders of a run's files: checkpoints, inner state, exports, manifests."""

import dataclasses
import json
import shutil
import tempfile
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import numpy as np
from blake3 import blake3

from node.using.run_on_disk import open_export, open_signed
from protocol import limits
from protocol.errors import (
    CheckpointError,
    ConfigError,
    ManifestError,
    PeerError,
)
from protocol.manifest import AuditSpec
from protocol.segments import MOMENTS, SegmentPlace, SegmentState
from tests.fuzz.mutations import json_bytes
from tests.fuzz.target import (
    FILE_BYTES,
    MANIFEST_BYTES,
    PACKER_BYTES,
    Read,
    Target,
    from_bytes,
    from_file,
)
from tests.node.state_run import StateRun, founded, write_state
from tests.training.files.test_exported import provenance_of
from tests.training.loop.test_inner_state import state as inner_state
from tests.training.replicas import small_manifest
from training.audits.traces import TraceFolder, read_trace_names
from training.channel.manifest_file import open_known_manifest, read_manifest
from training.device.inner import (
    accumulate_gradient,
    apply_gradient,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from training.files.exported import read_provenance, read_tensors, write_export
from training.files.state import META_FILE, load_checkpoint, named_tensors
from training.files.tensor_file import read_metadata
from training.files.tensor_file import read_tensors as read_tensor_file
from training.loop.inner_state import InnerFolder, InnerState
from training.loop.moments import MomentsFile
from training.loop.sums import MOMENTS_FILE, read_sums
from training.models.building import build_model
from training.models.genesis import genesis_weights

MANIFEST = founded()


SPEC = MANIFEST.shards[0]


@cache
def disk() -> StateRun:
    """A state folder with one checkpoint, for the life of the tests' process."""
    folder = Path(tempfile.mkdtemp(prefix="barnraise-fuzz-"))
    return write_state(folder, 4)


def remove_disk() -> None:
    """Whoever has used `disk` calls it at the end."""
    shutil.rmtree(disk().state, ignore_errors=True)
    disk.cache_clear()


def _checkpoint(name: str) -> Read:
    """The checkpoint of `disk` with one of its files replaced."""

    def read(data: bytes, folder: Path) -> object:
        source = disk().path(4)
        target = folder / "checkpoints" / source.name
        if not target.exists():
            shutil.copytree(source, target)
        path = target / name
        before = path.read_bytes()
        path.write_bytes(data)
        try:
            return load_checkpoint(target, SPEC, run=MANIFEST.digest, slots=("momentum",))
        finally:
            path.write_bytes(before)

    return read


def _file_of_checkpoint(name: str) -> tuple[bytes, ...]:
    return ((disk().path(4) / name).read_bytes(),)


def _meta() -> tuple[object, ...]:
    body = json.loads((disk().path(4) / META_FILE).read_bytes())
    del body["digest"]
    return (body,)


def _signed_meta(tree: object) -> bytes:
    """As the writer would have it: a sound digest over whatever it says."""
    if not isinstance(tree, dict):
        return json_bytes(tree)
    body = {str(key): value for key, value in tree.items()}
    text = json.dumps(body, sort_keys=True, indent=1).encode("utf-8", "surrogatepass") + b"\n"
    whole = body | {"digest": blake3(text).hexdigest()}
    return json.dumps(whole, sort_keys=True, indent=1).encode("utf-8", "surrogatepass") + b"\n"


def _with_digest(body: bytes) -> bytes:
    return body + blake3(body).digest()


SUMS = np.arange(24, dtype="<f4").tobytes()


def _read_sums(path: Path) -> None:
    """With the digest of what is read: else only one file has a chance."""
    read_sums(path, 24, blake3(path.read_bytes()).digest())


def _tensor_file(state: InnerState | None = None) -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        InnerFolder(Path(folder), MANIFEST).save(state or inner_state(3))
        return ((Path(folder) / "round-000003.safetensors").read_bytes()[:-32],)


def _read_inner(data: bytes, folder: Path) -> None:
    (folder / "round-000003.safetensors").write_bytes(data)
    found = InnerFolder(folder, MANIFEST).newest(3)
    if found is None:
        raise CheckpointError("passed over")
    assert found.round == 3
    assert all(x_N is None or x_N.dtype == np.float32 for x_N in found.residuals)


def _read_moments_file(path: Path) -> object:
    return MomentsFile(path.parent, {}).read(tensors_max=40)


def _read_moments(data: bytes, folder: Path) -> None:
    """What an inner state says of moments either fits the model or is refused whole."""
    (folder / "round-000003.safetensors").write_bytes(data)
    found = InnerFolder(folder, MANIFEST).newest(3)
    if found is None:
        raise CheckpointError("passed over")
    model = build_model(MANIFEST)
    optimizer = make_optimizer(model, MANIFEST.inner)
    load_optimizer_tensors(model, optimizer, found.moments)
    assert optimizer_tensors(model, optimizer).keys() == found.moments.keys()


def _moments_file() -> tuple[bytes, ...]:
    model = build_model(MANIFEST)
    optimizer = make_optimizer(model, MANIFEST.inner)
    accumulate_gradient(model, optimizer, np.zeros((1, 9), np.uint8))
    apply_gradient(model, optimizer, MANIFEST, 0)
    return _tensor_file(inner_state(3, moments=optimizer_tensors(model, optimizer)))


def _export_file() -> bytes:
    tensors = named_tensors(SPEC, genesis_weights(MANIFEST))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        write_export(path, provenance_of(MANIFEST, tensors), tensors)
        return path.read_bytes()


def _export_header() -> object:
    data = _export_file()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def _behind_header(tree: object) -> bytes:
    body = json_bytes(tree)
    data = _export_file()
    tensors = data[8 + int.from_bytes(data[:8], "little") :]
    return len(body).to_bytes(8, "little") + body + tensors


TRACED = dataclasses.replace(
    small_manifest(), trust="open", survive="quorum", audits=AuditSpec(rate=0.5, segments=1)
)


def _trace_file() -> tuple[bytes, ...]:
    """As a trainer ends one; of states that are small."""
    with tempfile.TemporaryDirectory() as folder:
        zeros_N = np.zeros(TRACED.layout(0).numel, np.float32)
        state = SegmentState(zeros_N, (zeros_N,) * MOMENTS, 1)
        writer = TraceFolder(Path(folder), TRACED).writer(
            SegmentPlace(round=1, step=0, segment=0, lease=((0, 1),)), zeros_N
        )
        writer.add(state)
        writer.add(state)
        writer.close(None)
        return ((Path(folder) / "round-000001.trace").read_bytes(),)


def _read_open(path: Path) -> None:
    found = TraceFolder(path.parent, TRACED).still_open(1)
    if found is None:
        raise CheckpointError("passed over")
    assert found <= {0, 1}


def _read_export(path: Path) -> None:
    with suppress(ConfigError, CheckpointError):
        open_export(path)
    read_tensors(path, read_provenance(path, open_signed))


CHECKPOINT = Target(
    name="",
    covers=("training.files.state.load_checkpoint",),
    read=_checkpoint(META_FILE),
    errors=(CheckpointError,),
    memory_base=FILE_BYTES + PACKER_BYTES,
)

TENSORS = Target(
    name="",
    covers=(),
    read=_read_inner,
    errors=(CheckpointError,),
    examples=_tensor_file,
    wrap=_with_digest,
    memory_base=FILE_BYTES + PACKER_BYTES,
    memory_factor=8,
)

TENSOR_FILES: tuple[tuple[str, str, Read, tuple[type[Exception], ...]], ...] = (
    (
        "tensor file",
        "training.files.tensor_file.read_tensors",
        from_file(partial(read_tensor_file, tensors_max=40), "x.safetensors"),
        (CheckpointError,),
    ),
    (
        "text of a tensor file",
        "training.files.tensor_file.read_metadata",
        from_file(read_metadata, "x.safetensors"),
        (CheckpointError,),
    ),
    (
        "moments of their own file",
        "training.loop.moments.MomentsFile.read",
        from_file(_read_moments_file, MOMENTS_FILE),
        (),
    ),
)
"""Name, what is covered, how it is read, and what it may raise."""


TARGETS = [
    *(
        dataclasses.replace(
            CHECKPOINT,
            name=f"checkpoint {name}",
            read=_checkpoint(name),
            examples=partial(_file_of_checkpoint, name),
        )
        for name in ("anchor.safetensors", "outer.safetensors", META_FILE)
    ),
    dataclasses.replace(
        CHECKPOINT,
        name="checkpoint meta with a sound digest",
        trees=_meta,
        dump=_signed_meta,
        memory_factor=60,
    ),
    dataclasses.replace(
        TENSORS,
        name="inner state",
        covers=(
            "training.files.tensor_file.read_tensors",
            "training.loop.inner_state.InnerFolder.newest",
        ),
        read=_read_inner,
    ),
    Target(
        name="moments",
        covers=("training.device.inner.load_optimizer_tensors",),
        read=_read_moments,
        errors=(CheckpointError,),
        examples=_moments_file,
        wrap=_with_digest,
        memory_base=FILE_BYTES + PACKER_BYTES + limits.MIB,
        memory_factor=16,
        weight=4,
    ),
    Target(
        name="trace",
        covers=("training.audits.traces.read_trace_names",),
        read=from_file(partial(read_trace_names, manifest=TRACED), "round-000001.trace"),
        errors=(CheckpointError,),
        examples=_trace_file,
        memory_base=FILE_BYTES + PACKER_BYTES,
        memory_factor=16,
    ),
    Target(
        name="segments that are open",
        covers=("training.audits.traces.TraceFolder.still_open",),
        read=from_file(_read_open, "round-000001.open"),
        errors=(CheckpointError,),
        examples=lambda: (b"\x90", b"\x92\x00\x01"),
        memory_base=FILE_BYTES + PACKER_BYTES,
    ),
    *(
        dataclasses.replace(TENSORS, name=name, covers=(covered,), read=read, errors=errors)
        for name, covered, read, errors in TENSOR_FILES
    ),
    Target(
        name="sums",
        covers=("training.loop.sums.read_sums",),
        read=from_file(_read_sums, "round-000003.sums"),
        errors=(CheckpointError,),
        examples=lambda: (SUMS,),
        memory_base=FILE_BYTES,
        memory_factor=8,
    ),
    Target(
        name="export",
        covers=(
            "training.files.exported.read_provenance",
            "training.files.exported.read_tensors",
            "node.using.run_on_disk.open_export",
        ),
        read=from_file(_read_export, "export.safetensors"),
        errors=(CheckpointError, ConfigError),
        examples=lambda: (_export_file(),),
        trees=lambda: (_export_header(),),
        dump=_behind_header,
        memory_base=FILE_BYTES + PACKER_BYTES,
        memory_factor=8,
    ),
    Target(
        name="manifest of a known run",
        covers=(
            "training.channel.manifest_file.open_known_manifest",
            "training.channel.manifest_file.read_manifest",
        ),
        read=from_file(partial(read_manifest, run=MANIFEST.digest), "manifest.msgpack"),
        errors=(PeerError, ManifestError),
        examples=lambda: (disk().signed,),
        memory_base=MANIFEST_BYTES,
        memory_factor=10,
    ),
    Target(
        name="manifest in an export",
        covers=("training.channel.manifest_file.open_known_manifest",),
        read=from_bytes(partial(open_known_manifest, run=MANIFEST.digest)),
        errors=(PeerError, ManifestError),
        examples=lambda: (disk().signed,),
        memory_base=MANIFEST_BYTES,
        memory_factor=10,
    ),
]
