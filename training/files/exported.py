"""A run's weights as one safetensors file that speaks for itself.

The tensors stand under their names. The header's metadata say where they are from:

    format     "barnraise-export-1"
    run        digest of the manifest, which names the run
    manifest   the founder's signed manifest, base64: model, corpus and method are all in there
    seal       digest of the seal that made these weights
    round      the round that it sealed, and `step` and `tokens` of the run by then
    tensors    BLAKE3 over all tensors in ascending order of name, as little-endian float32
    ...        what else the writer says, for people to read

The founder's signature covers the manifest. That these weights are what the swarm sealed is the
word of whoever exported them: the seal only names what to compare them with.
"""

import base64
import binascii
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from protocol import limits
from protocol.errors import CheckpointError, ConfigError, ManifestError, PeerError
from protocol.manifest import RunManifest
from training.channel.exchange import RunClock
from training.files.durable import replace_durably
from training.files.state import flat_fragment
from training.models.genesis import MODEL_FILE, SCHEMAS, file_digest
from training.numeric.arithmetic import all_finite

FORMAT = "barnraise-export-1"

HEADER_BYTES_MAX = 8 * limits.MIB
"""A manifest of 256 KiB names every tensor: its names, escaped at worst six bytes each, are 1.5
MiB, its shapes in decimal 1 MiB, 16 384 times dtype and offsets 1.5 MiB, the manifest itself 0.4.
"""

_METADATA = "__metadata__"
_OWN_KEYS = ("format", "manifest", "round", "run", "seal", "step", "tensors", "tokens")
_NUMBER_DIGITS_MAX = 20

OpenSigned = Callable[[bytes], RunManifest]
"""Checks the bytes of a signed manifest, as far as the caller needs it; raises PeerError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where exported weights are from.

    `signed` is the signed manifest, `clock` that of the round that starts from these weights,
    `about` what the header says beyond that, by key.
    """

    manifest: RunManifest
    signed: bytes = field(repr=False)
    clock: RunClock
    seal: bytes
    tensors: bytes
    about: Mapping[str, str]

    @property
    def sealed_round(self) -> int:
        """The round whose seal made these weights."""
        return self.clock.round - 1


def require_whole_model(manifest: RunManifest) -> None:
    """Refuse a run unless one shard holds the model, and nothing else.

    Raises ConfigError for an unknown model, for several shards, or a shard of other tensors: so no
    model is ever built that is larger than the weights at hand.
    """
    if len(manifest.shards) != 1:
        raise ConfigError(f"the model lies in {len(manifest.shards)} shards: only whole ones work")
    if manifest.model.name == MODEL_FILE:
        # Its schema is the shard; the file itself is looked at where the model is built.
        file_digest(manifest.model)
        return
    schema = SCHEMAS[manifest.model.name](manifest.model)
    named = {tensor.name: tensor.shape for tensor in manifest.shards[0].tensors}
    if named != {name: initial.shape for name, initial in schema.items()}:
        raise ManifestError(
            f"the manifest's tensors are not those of its model {manifest.model.name}"
        )


def tensors_digest(tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    """The digest that the header names."""
    hasher = blake3()
    for name in sorted(tensors):
        hasher.update(_raw(tensors[name]).data)
    return hasher.digest()


def write_export(
    path: Path, provenance: Provenance, tensors: Mapping[str, NDArray[np.float32]]
) -> None:
    """Write the file durably (see `replace_durably`); a file that is there is replaced.

    Raises OSError where it cannot be written.
    """
    clock = provenance.clock
    metadata = {
        **provenance.about,
        "format": FORMAT,
        "run": provenance.manifest.digest.hex(),
        "manifest": base64.b64encode(provenance.signed).decode("ascii"),
        "seal": provenance.seal.hex(),
        "round": str(provenance.sealed_round),
        "step": str(clock.step),
        "tokens": str(clock.tokens),
        "tensors": provenance.tensors.hex(),
    }
    raw = [_raw(tensors[name]).data for name in sorted(tensors)]
    replace_durably(path, [_header(metadata, tensors), *raw])


def _header(metadata: Mapping[str, str], tensors: Mapping[str, NDArray[np.float32]]) -> bytes:
    # The library's writer puts metadata in any order; ours gives one file for one checkpoint, so
    # that peers can compare what they exported by its hash.
    entries: dict[str, object] = {}
    stop = 0
    for name in sorted(tensors):
        start, stop = stop, stop + tensors[name].nbytes
        shape = list(tensors[name].shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}
    body = json.dumps({_METADATA: dict(sorted(metadata.items())), **entries}).encode("ascii")
    # Tensors begin at a multiple of eight, as the format's own writer has it.
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


def _raw(tensor: NDArray[np.float32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(tensor, dtype="<f4").reshape(-1).view(np.uint8)


_WAY_ON = "name a file that `barnraise export` wrote"


def read_provenance(path: Path, open_signed: OpenSigned) -> Provenance:
    """What the header of an exported file says; the tensors are not looked at.

    Raises ConfigError for a file that cannot be read or is no export, CheckpointError for one that
    is damaged.
    """
    metadata = _read_metadata(path)
    missing = [key for key in _OWN_KEYS if key not in metadata]
    if metadata.get("format") != FORMAT or missing:
        raise ConfigError(
            f"{path} is no export of barnraise: its header lacks {', '.join(missing) or FORMAT}; "
            f"{_WAY_ON}"
        )
    try:
        signed = base64.b64decode(metadata["manifest"], validate=True)
        manifest = open_signed(signed)
        seal, tensors = (bytes.fromhex(metadata[key]) for key in ("seal", "tensors"))
        numbers = {key: _number(metadata[key]) for key in ("round", "step", "tokens")}
    except (binascii.Error, ValueError, PeerError) as error:
        raise CheckpointError(f"the header of {path} was changed: {error}") from error
    if manifest.digest.hex() != metadata["run"]:
        raise CheckpointError(f"the header of {path} was changed: its manifest is of another run")
    return Provenance(
        manifest=manifest,
        signed=signed,
        clock=RunClock(round=numbers["round"] + 1, step=numbers["step"], tokens=numbers["tokens"]),
        seal=seal,
        tensors=tensors,
        about={key: text for key, text in metadata.items() if key not in _OWN_KEYS},
    )


def read_tensors(path: Path, provenance: Provenance) -> tuple[NDArray[np.float32], ...]:
    """The weights of an export, as flat anchors per fragment, checked to the last byte.

    Raises what `require_whole_model` does, CheckpointError if they are not those of the header.
    """
    require_whole_model(provenance.manifest)
    (spec,) = provenance.manifest.shards
    tensors = {}
    try:
        _check_size(path)
        with safe_open(path, framework="numpy") as file:
            shapes = {name: file.get_slice(name) for name in tuple(file.keys())}
            named = {tensor.name: ("F32", list(tensor.shape)) for tensor in spec.tensors}
            # Before a tensor is read: other types and shapes would take other memory.
            if {n: (s.get_dtype(), s.get_shape()) for n, s in shapes.items()} != named:
                raise CheckpointError(f"{path} has other tensors than its manifest names")
            tensors = {name: file.get_tensor(name) for name in named}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if tensors_digest(tensors) != provenance.tensors:
        raise CheckpointError(f"{path} is damaged: its tensors are not those that were written")
    anchors = tuple(flat_fragment(spec, index, tensors) for index in range(len(spec.fragments)))
    if not all(all_finite(anchor_N) for anchor_N in anchors):
        raise CheckpointError(f"{path} holds weights that are not finite")
    return anchors


def _read_metadata(path: Path) -> dict[str, str]:
    try:
        _check_size(path)
        with safe_open(path, framework="numpy") as file:
            return dict(file.metadata() or {})
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}; {_WAY_ON}") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {error}; {_WAY_ON}") from error


def _check_size(path: Path) -> None:
    # Before a parser allocates what a length claims.
    with path.open("rb") as file:
        length, first = int.from_bytes(file.read(8), "little"), file.read(1)
        size = file.seek(0, os.SEEK_END)
    if first not in (b"{", b""):
        raise ConfigError(f"{path} is no safetensors file; {_WAY_ON}")
    if length > min(HEADER_BYTES_MAX, size - 8):
        raise CheckpointError(f"{path} is damaged: it claims a header of {length} bytes; {_WAY_ON}")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX):
        raise ValueError(f"{text[:32]!r} is no number")
    return int(text)
