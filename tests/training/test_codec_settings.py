"""The settings of a codec as a manifest carries them, and the codec that results travel by."""

import ast
import re
from dataclasses import replace

import numpy as np
import pytest

from protocol.errors import ConfigError
from protocol.manifest import OuterSpec, Setting
from tests.training.replicas import OUTER
from training.compression import CODECS, admits, codec_defaults, make_codec, result_codec
from training.compression.seeded import RandomShiftCodec


def spec(codec: str, **settings: object) -> OuterSpec:
    given = tuple(Setting(name, settings[name]) for name in sorted(settings))  # type: ignore[arg-type]
    return replace(OUTER, codec=codec, codec_settings=given)


@pytest.mark.parametrize("name", list(CODECS))
def test_codec_of_a_manifest_with_all_defaults_is_the_bare_one(name: str, seed: int) -> None:
    x_N = np.random.default_rng(seed).normal(size=5000).astype(np.float32)
    payload = make_codec(spec(name, **codec_defaults(name))).encode(x_N)
    assert payload == CODECS[name]().encode(x_N) == make_codec(spec(name)).encode(x_N)


def test_settings_of_a_manifest_change_what_travels() -> None:
    assert dict(codec_defaults("topk")) == {"chunk": 4096, "density": 1 / 64}
    dense = make_codec(spec("topk", chunk=64, density=0.25))
    assert dense.payload_bytes(64) == 16 * 2 + 16 * 6 // 8
    assert make_codec(spec("lowrank", rank=1)).payload_bytes(1 << 18) == 8 + 512


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("topk", {"density": 1}, "density must be a number with a point, not 1; take 0.015625"),
        ("lowrank", {"rank": 2.0}, "rank must be a whole number, not 2.0; take 16"),
        ("lowrank", {"rank": True}, "rank must be a whole number, not True"),
        ("lowrank", {"rank": "8"}, "rank must be a whole number, not '8'"),
        ("lowrank", {"rank": 10**18}, "take 256"),
        ("lowrank", {"energy": 0.0}, "take 0.5"),
        ("lowrank", {"energy": 1.5}, "take 1.0"),
        ("topk", {"chunk": 2**62}, "take 4096"),
        ("topk", {"dense": 1.0}, "'dense' is no setting of the codec topk; did you mean density"),
        ("none", {"bits": 8}, "it has none: leave it out"),
        ("random_mask", {"seed": 3}, "'seed' is no setting of the codec random_mask"),
        ("nune", {}, "unknown codec 'nune'"),
    ],
)
def test_setting_that_a_codec_does_not_have_is_refused(
    name: str, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_codec(spec(name, **settings))
    assert words in str(caught.value)


NUMBERS: dict[type, tuple[float, ...]] = {
    int: (-1, 0, 3, 1000, 10**18),
    float: (float("nan"), -1.0, 0.0, 1e-9, 0.03, 0.45, 0.9, 1.5, 1e300),
}


def refusal_of(name: str, settings: dict[str, object]) -> str | None:
    try:
        make_codec(spec(name, **settings))
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", [name for name in CODECS if codec_defaults(name)])
def test_nearest_choice_that_a_refusal_names_is_taken(name: str) -> None:
    """As a founder would write it into run.toml."""
    for key, default in codec_defaults(name).items():
        for value in NUMBERS[type(default)]:
            settings: dict[str, object] = {key: value}
            advised: set[str] = set()
            while (refusal := refusal_of(name, settings)) is not None:
                found = re.fullmatch(r"(\w+) .*; take (\S+)", refusal)
                assert found, refusal
                assert found[1] not in advised, refusal
                advised.add(found[1])
                settings[found[1]] = ast.literal_eval(found[2])


@pytest.mark.parametrize(
    ("name", "settings"), [("topk", {"density": 0.75}), ("int8", {}), ("topk", {"density": 1.0})]
)
def test_results_leave_no_element_out_however_many_bits_the_codec_spends(
    name: str, settings: dict[str, object]
) -> None:
    """R7: a reducer has no feedback, so what a sparse codec left out would be lost for good."""
    assert isinstance(result_codec(spec(name, **settings)), RandomShiftCodec)


def test_results_of_codecs_that_send_floats_are_their_own() -> None:
    for name in ("none", "fp16"):
        assert result_codec(spec(name)).payload_bytes(10) == CODECS[name]().payload_bytes(10)


def any_settings(name: str, generator: np.random.Generator) -> dict[str, object]:
    """Settings that the codec admits, its extremes among them."""
    chunk = 1 << int(generator.integers(6, 13))
    density = float(generator.choice([1.0, 1 / 64, generator.uniform(1 / 64, 1.0)]))
    if name == "random_mask":
        density = 1 / int(generator.integers(1, 65))
    coarsest, usual, finest = sorted(generator.choice((2, 4, 8), size=3).tolist())
    choices: dict[str, object] = {
        "coarsest": coarsest,
        "usual": usual,
        "finest": finest,
        "chunk": chunk,
        "density": density,
        "rank": int(generator.choice([1, 256, int(generator.integers(1, 257))])),
        "bits": int(generator.choice([4, 8])),
        "energy": float(generator.choice([0.5, 1.0, generator.uniform(0.5, 1.0)])),
    }
    return {key: choices[key] for key in codec_defaults(name)}


@pytest.mark.parametrize("name", [name for name in CODECS if codec_defaults(name)])
def test_whatever_a_manifest_sets_a_payload_is_no_larger_than_floats_and_decodes(
    name: str, seed: int
) -> None:
    """A hostile manifest chooses the settings: they must not choose our memory."""
    generator = np.random.default_rng(seed)
    for _ in range(12):
        codec = make_codec(spec(name, **any_settings(name, generator)))
        numel = int(generator.choice([1, 63, 64, 1000, 4101]))
        assert codec.payload_bytes(numel) <= 4 * numel + 64
        x_N = generator.normal(size=numel).astype(np.float32)
        payload = codec.encode(x_N)
        assert len(payload) <= codec.payload_bytes(numel)
        assert admits(codec, len(payload), numel)
        error = np.linalg.norm(codec.decode(payload, numel) - x_N)
        assert error <= np.linalg.norm(x_N) * (1 + 1e-6)
