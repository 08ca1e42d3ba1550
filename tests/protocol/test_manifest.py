"""The manifest: one digest, one signature, and the name of what differs."""

import dataclasses
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings

from protocol import limits
from protocol.errors import (
    DecodeError,
    ManifestError,
    ManifestMismatch,
    SignatureError,
    VersionError,
)
from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import PeerId
from protocol.manifest import (
    NO_ADMISSION,
    WIRE_VERSION,
    AdmissionSpec,
    AuditSpec,
    ModelSpec,
    RunManifest,
    Setting,
    SignedManifest,
    TimingSpec,
    first_difference,
    open_manifest,
    sign_manifest,
)
from protocol.wire import decode, encode
from tests.protocol.strategies import values
from tests.protocol.vectors import MANIFEST, OTHER, SIGNER

# A ramp is for open runs, and probation has one behind it. Audits are for whole shards.
ADMITTING = replace(
    MANIFEST,
    trust="open",
    shards=tuple(replace(s, fragments=(tuple(range(len(s.tensors))),)) for s in MANIFEST.shards),
    admission=AdmissionSpec(puzzle_bits=20, probation=3, ramp=10),
)


AUDITED = replace(ADMITTING, audits=AuditSpec(rate=0.5, segments=2))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"trust": "friends", "admission": NO_ADMISSION}, "audits are for open runs"),
        ({"audits": replace(AUDITED.audits, segments=AUDITED.inner.inner_steps + 1)}, "segments"),
        ({"outer": replace(AUDITED.outer, overlap=2)}, "with one round in flight"),
    ],
)
def test_audits_of_what_they_cannot_run_again_are_refused(wrong, named):
    with pytest.raises(ValueError, match=named):
        replace(AUDITED, **wrong)


@pytest.mark.parametrize("fragments", [((1, 0), (2,)), ((0,), (2, 1))])
def test_fragment_that_does_not_ascend_is_refused_whichever_it_is(fragments):
    """Else one layout would have two digests."""
    tensors = tuple(TensorSpec(name, (4,)) for name in "abc")
    with pytest.raises(ValueError, match="ascending"):
        ShardSpec("whole", tensors, fragments)


def changed(path: str, value: Any, example: RunManifest = MANIFEST) -> RunManifest:
    """The example with one field, by dotted name, set to another value."""

    def change(part: Any, names: list[str]) -> Any:
        name, *rest = names
        return replace(part, **{name: change(getattr(part, name), rest) if rest else value})

    manifest: RunManifest = change(example, path.split("."))
    return manifest


def leaves(part: Any, path: str = "") -> list[tuple[str, Any]]:
    if not dataclasses.is_dataclass(part):
        return [(path, part)]
    names = [field.name for field in dataclasses.fields(part)]
    parts = [leaves(getattr(part, name), f"{path}.{name}" if path else name) for name in names]
    return [leaf for found in parts for leaf in found]


def another(path: str, value: Any) -> Any:
    """A valid value of that field which is not the example's."""
    special = {
        "trust": "open",
        "outer.topology": "gather",
        "access.mode": "invited",
        "access.allow": (PeerId(bytes(32)),),
        "survive": "quorum",
        "cell_elements": 1 << 17,
        "outer.overlap": 2,
        "audits.unaudited": 0.5,
        "corpus.token_bytes": 4,
        "corpus.block_bytes": 1 << 17,
        "admission.seats": 16,
        "inner.optimizer": "sgd",
        "inner.sam_radius": 0.05,
        "inner.equal_steps": True,
        "timing.heartbeat_s": 0.25,
        "model.settings": (),
        "outer.codec_settings": (),
        "outer.then": (),
        "shards": (replace(MANIFEST.shards[0], name="other"),),
    }
    if path in special:
        return special[path]
    match value:
        case float():
            return value * 0.8 + 0.05
        case int():
            return value + 1
        case bytes():
            return bytes(32)
    return value + "x"


# Of the two versions this code knows one value each; another is refused, not compared.
FIELDS = [path for path, _ in leaves(MANIFEST) if path not in ("wire", "arithmetic")]


# Digest and signature


def test_digest_names_the_run_and_is_stable():
    assert MANIFEST.digest == replace(MANIFEST).digest
    assert MANIFEST.digest.hex() == (
        "e8d51e373f5345803215ea23b6dfcbaf0761ef31d5d031bdeb75500778a62aec"
    )


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_is_in_the_digest_and_is_named_when_it_differs(path):
    example = ADMITTING if path.startswith(("admission.", "audits.")) else MANIFEST
    theirs = changed(path, another(path, dict(leaves(example))[path]), example)
    assert theirs.digest != example.digest
    mismatch = first_difference(example, theirs)
    assert isinstance(mismatch, ManifestMismatch)
    assert mismatch.field == ("shards[0].name" if path == "shards" else path)


def test_equal_manifests_have_no_difference():
    assert first_difference(MANIFEST, replace(MANIFEST)) is None


def test_first_of_several_differences_is_named():
    theirs = changed("outer.momentum", 0.9)
    theirs = replace(theirs, rounds=41, model=replace(theirs.model, seed=8))
    mismatch = first_difference(MANIFEST, theirs)
    assert mismatch is not None
    assert mismatch.field == "rounds"
    assert str(mismatch).startswith("manifest differs at rounds: ours 40, theirs 41; that peer")


def test_difference_within_a_list_names_its_place():
    first = MANIFEST.shards[0]
    tensors = (*first.tensors[:2], replace(first.tensors[2], shape=(6,)))
    mismatch = first_difference(
        MANIFEST, replace(MANIFEST, shards=(replace(first, tensors=tensors),))
    )
    assert mismatch is not None
    assert mismatch.field == "shards[0].tensors[2].shape[0]"


@pytest.mark.parametrize(("ours", "theirs"), [(1, True), (1, 1.0), (0, False), (2.0, 2)])
def test_values_that_only_python_calls_equal_differ(ours, theirs):
    one, two = (changed("model.settings", (Setting("depth", value),)) for value in (ours, theirs))
    assert one.digest != two.digest
    mismatch = first_difference(one, two)
    assert mismatch is not None
    assert mismatch.field == "model.settings[0].value"


@settings(deadline=None, max_examples=settings().max_examples // 3)
@given(one=values(RunManifest), two=values(RunManifest))
def test_two_manifests_differ_somewhere_exactly_if_their_digests_do(one, two):
    assert (first_difference(one, two) is None) == (one.digest == two.digest)
    assert first_difference(one, one) is None


def test_mismatch_cuts_what_the_peer_said():
    theirs = changed("title", "\n\x1b[2J" * 30)
    message = str(first_difference(MANIFEST, theirs))
    assert len(message) < 320
    assert message.isprintable()


def test_signed_manifest_opens_to_itself():
    data = encode(sign_manifest(MANIFEST, SIGNER))
    assert open_manifest(data, OTHER) == MANIFEST


def test_only_the_founder_signs():
    with pytest.raises(ManifestError, match="founder"):
        sign_manifest(MANIFEST, OTHER)


def test_manifest_under_a_signature_of_somebody_else_is_refused():
    signature = sign_manifest(MANIFEST, SIGNER).signature
    for forged in (changed("rounds", 41), changed("founder", OTHER.peer_id)):
        with pytest.raises(SignatureError):
            open_manifest(encode(SignedManifest(forged, signature)), OTHER)


def test_manifest_beyond_its_limit_is_refused_on_both_sides():
    tensors = tuple(TensorSpec(f"{number:0200}", (1,)) for number in range(1300))
    large = changed("shards", (ShardSpec("model", tensors, (tuple(range(1300)),)),))
    data = encode(SignedManifest(large, bytes(64)))
    assert len(data) > limits.MANIFEST_BYTES_MAX
    with pytest.raises(DecodeError, match="at most"):
        open_manifest(data, SIGNER)
    with pytest.raises(ManifestError, match="takes"):
        sign_manifest(large, SIGNER)


def test_names_and_numbers_of_tensors_beyond_the_limit_come_with_what_to_do():
    long = (TensorSpec("x" * 257, (1,)),)
    many = tuple(TensorSpec(f"{n:05}", (1,)) for n in range(limits.TENSORS_MAX + 1))
    for tensors, said in ((long, "has 257 bytes.* shorter names"), (many, "16385 .*stack those")):
        shard = ShardSpec("model", tensors, (tuple(range(len(tensors))),))
        with pytest.raises(ManifestError, match=said):
            sign_manifest(changed("shards", (shard,)), SIGNER)


def test_size_that_is_checked_is_that_of_what_travels(monkeypatch):
    size = len(encode(SignedManifest(MANIFEST, bytes(64))))
    monkeypatch.setattr(limits, "MANIFEST_BYTES_MAX", size)
    sign_manifest(MANIFEST, SIGNER)
    monkeypatch.setattr(limits, "MANIFEST_BYTES_MAX", size - 1)
    with pytest.raises(ManifestError, match=f"takes {size} bytes of {size - 1}.*shorter names"):
        sign_manifest(MANIFEST, SIGNER)


@pytest.mark.parametrize(
    ("field", "name", "by", "cure"),
    [
        (0, "wire", 1, "upgrade barnraise on this machine"),
        (1, "arithmetic", 1, "upgrade this one"),
        (1, "arithmetic", -1, "keeps the version"),
    ],
)
def test_manifest_of_another_version_says_which_and_what_to_do(field, name, by, cure):
    body = list(msgpack.unpackb(encode(MANIFEST)))
    ours = body[field]
    body[field] += by
    with pytest.raises(VersionError, match=rf"{name} version {body[field]}, .* {ours}: .*{cure}"):
        open_manifest(msgpack.packb([body, bytes(64)]), SIGNER)


# Validation: what is no manifest


WRONG = {
    "wire": (0, WIRE_VERSION + 1, True),
    "arithmetic": (2,),
    "title": ("", "x" * 129),
    "founder": (b"", bytes(31)),
    "created_unix_s": (-1,),
    "trust": ("foes", ""),
    "survive": ("all",),
    "rounds": (0, limits.ROUNDS_MAX + 1),
    "model.name": ("", "x" * 65),
    "shards": ((),),
    "cell_elements": (1 << 19,),
    "corpus.training_blocks": (0,),
    "corpus.token_bytes": (8,),
    "corpus.vocab_size": (1,),
    "corpus.shuffle_blocks": (0,),
    "corpus.block_bytes": (limits.CHUNK_BYTES + 2,),
    "inner.inner_steps": (0,),
    "inner.batch": (0, 65_537),
    "inner.learning_rate": (-0.1, float("nan"), float("inf"), 1),
    "inner.beta1": (1.1,),
    "inner.drift_max": (0, 17),
    "outer.codec_settings": (tuple(Setting(f"{n:02}", 1) for n in range(17)),),
    "outer.feedback": (-0.5, 1.5),
    "outer.momentum": (1.5,),
    "outer.overlap": (0, 3),
    "timing.deadline_floor_s": (0.0,),
    "timing.heartbeat_s": (0.0,),
}
CASES = [(path, value) for path, wrong in WRONG.items() for value in wrong]


@pytest.mark.parametrize(("path", "value"), CASES, ids=[f"{p}={v!r:.20}" for p, v in CASES])
def test_value_out_of_range_cannot_be_signed_and_is_named(path, value):
    with pytest.raises(ManifestError, match=path.replace(".", r"\.")):
        sign_manifest(changed(path, value), SIGNER)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("corpus.vocab_size", (1 << 16) + 1, "do not fit 2 bytes"),
        ("corpus.block_bytes", 65_537, "no whole number of tokens"),
        ("corpus.held_out_tokens", 100 * 32_768 + 1, "more held-out tokens"),
        ("corpus.held_out_blocks", 0, "more held-out tokens"),
        ("corpus.token_bytes", 0, "do not fit 0 bytes"),
    ],
)
def test_corpus_that_contradicts_itself_is_refused(path, value, why):
    with pytest.raises(ValueError, match=why):
        changed(path, value)


@pytest.mark.parametrize("elements", [1025, 3 << 10, (1 << 18) - 1, 0, -1024])
def test_cell_that_is_no_power_of_two_is_refused(elements):
    with pytest.raises(ValueError, match="power of two"):
        changed("cell_elements", elements)


def test_fragment_of_too_many_cells_is_refused():
    most = limits.CELLS_MAX * limits.CELL_ELEMENTS_MIN

    def of(numel: int) -> RunManifest:
        shard = ShardSpec("model", (TensorSpec("a", (numel,)),), ((0,),))
        return replace(MANIFEST, shards=(shard,), cell_elements=limits.CELL_ELEMENTS_MIN)

    assert of(most).layout(0).num_cells(0) == limits.CELLS_MAX
    with pytest.raises(ValueError, match="over 4096 cells"):
        of(most + 1)


def test_settings_are_sorted_and_each_once():
    for names in (("b", "a"), ("a", "a")):
        with pytest.raises(ValueError, match="sorted"):
            ModelSpec(name="gpt", settings=tuple(Setting(n, 1) for n in names), seed=0)
        with pytest.raises(ValueError, match="codec settings must be sorted"):
            replace(MANIFEST.outer, codec_settings=tuple(Setting(n, 1) for n in names))


def test_missing_setting_is_named():
    assert MANIFEST.model.setting("context") == 64
    with pytest.raises(ManifestError, match="'depth'"):
        MANIFEST.model.setting("depth")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"deadline_cap_s": 1.0}, "deadline_cap_s"), ({"suspect_s": 0.9}, "suspect_s")],
)
def test_times_that_contradict_each_other_are_refused(wrong, named):
    right = {
        field.name: getattr(MANIFEST.timing, field.name) for field in dataclasses.fields(TimingSpec)
    }
    with pytest.raises(ValueError, match=named):
        TimingSpec(**(right | wrong))


def test_schedule_length_and_grid_follow_from_the_manifest():
    assert MANIFEST.total_inner_steps == 800
    assert MANIFEST.layout(0).fragment_numels == (6, 21_000_000)
    assert MANIFEST.layout(0).num_cells(1) == 81


# Fields that came later


def test_topology_at_its_default_is_left_out_and_manifests_from_before_keep_their_bytes():
    butterfly, gather = MANIFEST.outer, replace(MANIFEST.outer, topology="gather")
    assert len(msgpack.unpackb(encode(butterfly))) == len(dataclasses.fields(butterfly)) - 1
    assert msgpack.unpackb(encode(gather)) == [*msgpack.unpackb(encode(butterfly)), "gather"]
    assert decode(type(butterfly), encode(butterfly)) == butterfly
    assert decode(type(butterfly), encode(gather)) == gather


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"optimizer": "sgd"}, ["sgd"]),
        ({"sam_radius": 0.05}, ["adamw", 0.05]),
        ({"equal_steps": True}, ["adamw", 0.0, True]),
    ],
)
def test_of_fields_that_came_later_each_brings_those_before_it(changes, more):
    plain, other = MANIFEST.inner, replace(MANIFEST.inner, **changes)
    assert msgpack.unpackb(encode(other)) == [*msgpack.unpackb(encode(plain)), *more]
    assert decode(type(plain), encode(other)) == other
    late = msgpack.packb([*msgpack.unpackb(encode(plain)), "sgd", 0.0])
    with pytest.raises(DecodeError, match="not the canonical encoding"):
        decode(type(plain), late)


def test_default_that_is_written_out_or_a_field_too_many_is_refused():
    plain = msgpack.unpackb(encode(MANIFEST.outer))
    kind = type(MANIFEST.outer)
    for wrong in ([*plain, "butterfly"], [*plain, "gather", 1], [*plain, "ring"], plain[:-1]):
        with pytest.raises(DecodeError):
            decode(kind, msgpack.packb(wrong))
