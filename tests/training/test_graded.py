"""Each peer's own bits per element: a payload's size tells them, and decodes as that codec's."""

import numpy as np
import pytest

from protocol.errors import ConfigError, DecodeError
from tests.training.test_compression import vector
from training.compression import (
    ErrorFeedback,
    admits,
    bits_per_element,
    coarsest_of,
    in_grade,
    lattice_of,
)
from training.compression.blocks import GRADES, GradedCodec, Int4Codec, Int8Codec, TernaryCodec
from training.compression.seam import Codec
from training.methods.presets import PRESETS

ALONE: dict[int, Codec] = {8: Int8Codec(), 4: Int4Codec(), 2: TernaryCodec()}


@pytest.mark.parametrize("numel", [1, 2, 3, 5, 63, 1024, 1025, 5000, 70_000])
@pytest.mark.parametrize("bits", GRADES)
def test_payload_of_any_grade_is_decoded_without_a_word_about_it(
    numel: int, bits: int, seed: int
) -> None:
    codec, x_N = GradedCodec(), vector(seed, numel)
    by = codec.at(bits, numel)
    payload = by.encode(x_N)
    assert len(payload) == ALONE[bits].payload_bytes(numel)
    assert admits(codec, len(payload), numel)
    assert codec.decode(payload, numel).tobytes() == by.decode(payload, numel).tobytes()
    if numel > 2:
        assert type(by) is type(ALONE[bits])


def test_of_few_elements_the_finer_of_equal_sizes_is_taken(seed: int) -> None:
    """int4 and ternary send one element in a byte, as int8 does."""
    x_N = vector(seed, 1)
    for bits in GRADES:
        assert GradedCodec().at(bits, 1).encode(x_N) == Int8Codec().encode(x_N)


def test_grades_that_the_run_does_not_allow_are_no_payloads(seed: int) -> None:
    codec, x_N = GradedCodec(finest=4, coarsest=2), vector(seed, 5000)
    assert codec.grades == (4, 2)
    fine = Int8Codec().encode(x_N)
    assert not admits(codec, len(fine), 5000)
    for read in (codec.decode, codec.check, codec.decode_to_read, codec.squared_norm):
        with pytest.raises(DecodeError, match="are no payload of 5000 elements"):
            read(fine, 5000)
    assert bits_per_element(codec) < 4.1
    assert bits_per_element(coarsest_of(codec)) < 2.1


def test_usual_grade_is_that_of_who_is_not_told_another(seed: int) -> None:
    x_N = vector(seed, 5000)
    for bits in GRADES:
        codec = GradedCodec(usual=bits)
        expected = ALONE[bits].encode(x_N)
        assert codec.encode(x_N) == in_grade(codec, 0, 5000).encode(x_N) == expected
    assert in_grade(ALONE[4], 0, 5000) is ALONE[4]
    assert coarsest_of(ALONE[4]) is ALONE[4]


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"usual": 3}, "usual 3 is none of 8, 4 and 2; take 4"),
        ({"finest": 16}, "take 8"),
        ({"coarsest": 0}, "take 2"),
        ({"finest": 2, "coarsest": 4, "usual": 4}, "coarsest 4 is finer than finest 2; take 2"),
        ({"finest": 4, "usual": 8}, "usual 8 is not in 2..4; take 4"),
        ({"coarsest": 4, "usual": 2}, "usual 2 is not in 4..8; take 4"),
    ],
)
def test_impossible_settings_name_the_nearest_choice(settings, nearest: str) -> None:
    with pytest.raises(ConfigError, match=nearest):
        GradedCodec(**settings)


def test_sums_of_equal_grades_are_those_of_their_codec_and_others_are_decoded(seed: int) -> None:
    codec, numel = GradedCodec(), 1 << 14
    fine = [Int8Codec().encode(vector(seed + row, numel)) for row in range(3)]
    coarse = TernaryCodec().encode(vector(seed, numel))
    ones = np.ones(3, dtype=np.float32)
    expected_N = Int8Codec().weighted_sum(fine, ones, numel)
    found_N = codec.weighted_sum(fine, ones, numel)
    assert (found_N is None) == (expected_N is None)  # As there are kernels or not.
    if found_N is not None and expected_N is not None:
        assert found_N.tobytes() == expected_N.tobytes()
    assert codec.weighted_sum([fine[0], coarse, fine[1]], ones, numel) is None
    # Who does not count may have any grade.
    without = np.array([1.0, 0.0, 1.0], dtype=np.float32)
    beside_N = codec.weighted_sum([fine[0], coarse, fine[1]], without, numel)
    if expected_N is not None:
        both_N = Int8Codec().weighted_sum(fine[:2], ones[:2], numel)
        assert beside_N is not None
        assert both_N is not None
        assert beside_N.tobytes() == both_N.tobytes()
    assert codec.weighted_sum([fine[0]], np.zeros(1, dtype=np.float32), numel) is None
    assert codec.squared_norm(fine[0], numel) == Int8Codec().squared_norm(fine[0], numel)
    assert codec.squared_norm(coarse, numel) is None
    assert lattice_of(codec, coarse, numel) is None


def test_feedback_loses_nothing_whatever_grades_follow_each_other(seed: int) -> None:
    """What was sent and what is kept add up to all that drifted."""
    feedback, numel = ErrorFeedback(GradedCodec(), 1.0, cell_elements=1024), 3000
    codec, draw = GradedCodec(), np.random.default_rng(seed)
    drifted_N, sent_N = np.zeros(numel), np.zeros(numel)
    for bits in draw.choice((0, *GRADES), size=12).tolist():
        drift_N = draw.normal(size=numel).astype(np.float32)
        payloads = feedback.encode(drift_N, grade=bits).payloads
        for cell, payload in enumerate(payloads):
            of_cell = slice(1024 * cell, min(1024 * (cell + 1), numel))
            size = of_cell.stop - of_cell.start
            assert len(payload) == ALONE[bits or 2].payload_bytes(size)
            sent_N[of_cell] += codec.decode(payload, size)
        drifted_N += drift_N
        feedback.commit()
    residual_N = feedback.residual_N
    assert residual_N is not None
    np.testing.assert_allclose(sent_N + residual_N, drifted_N, atol=1e-3)


@pytest.mark.parametrize(("mbit", "bits"), [(10.0, 2), (39.0, 2), (40.0, 4), (99.0, 4), (100.0, 8)])
def test_preset_auto_allows_all_grades_and_begins_with_the_founders_word(
    mbit: float, bits: int
) -> None:
    auto = PRESETS["auto"]
    preset = auto(200, uplink_mbit=mbit)
    assert preset.codec == "graded"
    assert preset.codec_settings == {"coarsest": 2, "finest": 8, "usual": bits}
    assert preset.feedback == 1.0
    assert auto(200).codec_settings["usual"] == 2
    assert auto(200, uplink_mbit=9.9).codec == PRESETS["sparseloco"](200).codec
