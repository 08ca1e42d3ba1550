"""The exported file: what is in it, and that nothing in it can be changed unseen."""

import dataclasses
import json
import struct

import numpy as np
import pytest
from blake3 import blake3
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from node.using.run_on_disk import open_signed
from protocol.errors import CheckpointError, ConfigError, ManifestError
from protocol.grid import ShardSpec, TensorSpec
from protocol.manifest import ModelSpec, Setting, sign_manifest
from protocol.wire import encode
from tests.node.state_run import FOUNDER, founded
from training.channel.exchange import RunClock
from training.files.exported import (
    HEADER_BYTES_MAX,
    Provenance,
    read_provenance,
    read_tensors,
    require_whole_model,
    tensors_digest,
    write_export,
)
from training.files.state import named_tensors
from training.models.genesis import genesis_weights


def provenance_of(manifest, tensors, **changes):
    fields = {
        "manifest": manifest,
        "signed": encode(sign_manifest(manifest, FOUNDER)),
        "clock": RunClock(round=42, step=420, tokens=9000),
        "seal": bytes([7]) * 32,
        "tensors": tensors_digest(tensors),
        "about": {"title": "a barn", "founder": "somebody"},
    }
    return Provenance(**(fields | changes))


@pytest.fixture
def manifest():
    return founded()


@pytest.fixture
def tensors(manifest):
    return named_tensors(manifest.shards[0], genesis_weights(manifest))


@pytest.fixture
def path(tmp_path, manifest, tensors):
    path = tmp_path / "model.safetensors"
    write_export(path, provenance_of(manifest, tensors), tensors)
    return path


def header_of(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def rewrite(path, change, data=None):
    """Put another header before the tensors; `change` gets the old one."""
    header, tensors = header_of(path)
    change(header)
    body = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + (tensors if data is None else data))


def test_what_was_written_is_read(path, manifest, tensors):
    found = read_provenance(path, open_signed)
    assert found == provenance_of(manifest, tensors)
    assert found.sealed_round == 41
    (anchor_N,) = read_tensors(path, found)
    assert anchor_N.tobytes() == genesis_weights(manifest)[0].tobytes()


def test_any_reader_of_the_format_gets_the_tensors_by_name(path, manifest, tensors):
    loaded = load_file(path)
    assert {name: x.tobytes() for name, x in loaded.items()} == {
        name: x.tobytes() for name, x in tensors.items()
    }
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert metadata["run"] == manifest.digest.hex()
    assert (metadata["round"], metadata["step"], metadata["tokens"]) == ("41", "420", "9000")
    raw = b"".join(loaded[name].tobytes() for name in sorted(loaded))
    assert metadata["tensors"] == blake3(raw).hexdigest()


def test_one_checkpoint_gives_one_file(path, tmp_path, manifest, tensors):
    again = tmp_path / "again.safetensors"
    shuffled = dict(reversed(tensors.items()))
    write_export(again, provenance_of(manifest, tensors), shuffled)
    assert again.read_bytes() == path.read_bytes()
    assert len(header_of(path)[0]) == 1 + len(tensors)
    # The format wants its tensors at multiples of eight.
    assert int.from_bytes(path.read_bytes()[:8], "little") % 8 == 0


def test_nothing_but_the_file_is_left(path, tmp_path, manifest, tensors):
    folder = tmp_path / "in the way"
    folder.mkdir()
    (folder / "file").touch()
    with pytest.raises(OSError, match="in the way"):
        write_export(folder, provenance_of(manifest, tensors), tensors)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [folder.name, path.name]


@pytest.mark.parametrize("key", ["run", "manifest", "seal", "round", "step", "tokens", "tensors"])
def test_header_that_was_changed_is_refused(path, key):
    def change(header):
        header["__metadata__"][key] = "x" + header["__metadata__"][key][1:]

    rewrite(path, change)
    with pytest.raises(CheckpointError, match="was changed"):
        read_provenance(path, open_signed)


@pytest.mark.parametrize("key", ["format", "run", "manifest", "tensors"])
def test_file_of_somebody_else_is_no_export(path, key):
    rewrite(path, lambda header: header["__metadata__"].pop(key))
    with pytest.raises(ConfigError, match=f"no export of barnraise: its header lacks .*{key}"):
        read_provenance(path, open_signed)


def test_file_without_metadata_and_other_versions_are_no_exports(path, tmp_path):
    plain = tmp_path / "plain.safetensors"
    save_file({"a": np.zeros(3, np.float32)}, plain)
    with pytest.raises(ConfigError, match="no export of barnraise"):
        read_provenance(plain, open_signed)
    rewrite(path, lambda header: header["__metadata__"].update(format="barnraise-export-2"))
    with pytest.raises(ConfigError, match="barnraise-export-1"):
        read_provenance(path, open_signed)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nothing\.safetensors: No such file"):
        read_provenance(tmp_path / "nothing.safetensors", open_signed)


def test_folder_in_place_of_a_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot read"):
        read_provenance(tmp_path, open_signed)


def test_manifest_of_a_stranger_is_refused(path, manifest, tensors):
    """A manifest that the founder did not sign: everything else about the file is right."""
    forged = dataclasses.replace(manifest, title="another barn")
    body = encode(sign_manifest(manifest, FOUNDER)).replace(
        manifest.title.encode(), forged.title.encode()
    )
    # The text got shorter: its length stands before it.
    body = body.replace(
        bytes([0xA0 + len(manifest.title)]) + b"another", bytes([0xA0 + 12]) + b"another"
    )
    write_export(path, provenance_of(forged, tensors, signed=body), tensors)
    with pytest.raises(CheckpointError, match="not signed by the founder"):
        read_provenance(path, open_signed)


@pytest.mark.parametrize("cut", [0, 1, 7, 8, 100, -1])
def test_torn_file_is_refused(path, cut):
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CheckpointError):
        read_provenance(path, open_signed)


@pytest.mark.parametrize("text", ['[run]\ntitle = "t"\n', "\x7fELF" * 9])
def test_file_of_another_kind_is_bad_usage_that_says_what_to_name(path, text):
    path.write_text(text)
    with pytest.raises(ConfigError, match="no safetensors file; name a file that `barnraise ex"):
        read_provenance(path, open_signed)


@pytest.mark.parametrize("way", ["missing", "folder"])
def test_file_that_cannot_be_read_says_what_to_name(path, way):
    path.unlink()
    if way == "folder":
        path.mkdir()
    with pytest.raises(ConfigError, match="; name a file that `barnraise export` wrote"):
        read_provenance(path, open_signed)


def test_header_that_claims_too_much_is_refused_unread(path):
    with path.open("r+b") as file:
        file.write(struct.pack("<Q", HEADER_BYTES_MAX + 1))
        file.truncate(HEADER_BYTES_MAX + 100)
    with pytest.raises(CheckpointError, match="claims a header"):
        read_provenance(path, open_signed)


def test_flipped_bit_in_any_tensor_is_seen(path, tensors):
    found = read_provenance(path, open_signed)
    data = bytearray(path.read_bytes())
    size = sum(tensor.nbytes for tensor in tensors.values())
    for offset in (1, size // 2, size):
        data[-offset] ^= 1
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match="is damaged"):
            read_tensors(path, found)
        data[-offset] ^= 1


def swap_names(header):
    names = ["blocks.0.attention_norm.weight", "blocks.0.feed_forward_norm.weight"]
    header[names[0]], header[names[1]] = header[names[1]], header[names[0]]


def test_tensors_that_changed_places_are_seen(path, manifest, tensors):
    swapped = dict(tensors)
    first, second = "blocks.0.attention_norm.weight", "blocks.0.feed_forward_norm.weight"
    swapped[first] = tensors[first] + np.float32(1)
    write_export(path, provenance_of(manifest, swapped), swapped)
    found = read_provenance(path, open_signed)
    rewrite(path, swap_names)
    with pytest.raises(CheckpointError, match="is damaged"):
        read_tensors(path, found)
    assert second in tensors


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["norm.weight"].update(dtype="I32"),
        lambda header: header["norm.weight"].update(shape=[4, 4]),
        lambda header: header.update({"norm.bias": header.pop("norm.weight")}),
    ],
    ids=["type", "shape", "name"],
)
def test_other_types_shapes_and_names_are_refused(path, change):
    found = read_provenance(path, open_signed)
    rewrite(path, change)
    with pytest.raises(CheckpointError, match="other tensors than its manifest names"):
        read_tensors(path, found)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused(path, manifest, tensors, value):
    broken = tensors | {"norm.weight": np.full(16, value, np.float32)}
    write_export(path, provenance_of(manifest, broken), broken)
    with pytest.raises(CheckpointError, match="not finite"):
        read_tensors(path, read_provenance(path, open_signed))


def model_named(name, *settings):
    return ModelSpec(name=name, settings=settings, seed=0)


def test_unknown_model_is_named_with_the_known_ones(manifest):
    unknown = dataclasses.replace(manifest, model=model_named("oracle"))
    with pytest.raises(ConfigError, match="unknown model 'oracle'; known: gpt"):
        require_whole_model(unknown)


def test_model_that_is_larger_than_its_tensors_is_refused_before_it_is_built(manifest):
    """The weights would fit a page, the module terabytes."""
    settings = {"context": 8, "heads": 1, "layers": 1024, "width": 65_536}
    huge = model_named("gpt", *(Setting(name, value) for name, value in settings.items()))
    with pytest.raises(ManifestError, match="not those of its model gpt"):
        require_whole_model(dataclasses.replace(manifest, model=huge))


def test_model_in_several_shards_is_refused(manifest):
    shard = ShardSpec("other", (TensorSpec("a", (1,)),), ((0,),))
    with pytest.raises(ConfigError, match="in 2 shards"):
        require_whole_model(dataclasses.replace(manifest, shards=(*manifest.shards, shard)))


def test_model_in_a_file_has_whatever_tensors_the_run_has(manifest):
    shard = ShardSpec("model", (TensorSpec("a", (3,)),), ((0,),))
    model = model_named("file", Setting("context", 8), Setting("digest", "ab" * 32))
    require_whole_model(dataclasses.replace(manifest, model=model, shards=(shard,)))
