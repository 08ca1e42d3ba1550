"""In how many bits a node encodes, by what leaves it."""

import pytest

from node.trainers.choosing import SURELY, grading
from training.compression import CODECS
from training.compression.graded import GradedCodec
from training.methods.presets import GRADE_FROM_MBIT

ALL = GradedCodec()


def test_codec_without_grades_is_left_alone() -> None:
    assert grading(CODECS["int8"](), 0, 500.0).bits == 0


def test_until_the_line_is_known_it_is_the_usual_or_the_last() -> None:
    assert grading(GradedCodec(usual=4), 0, None).bits == 4
    assert grading(ALL, 8, None).bits == 8
    assert "until enough has been sent" in grading(ALL, 0, None).why


@pytest.mark.parametrize(
    ("mbit", "bits"), [(1.0, 2), (39.0, 2), (51.0, 4), (99.0, 4), (126.0, 8), (1e5, 8)]
)
def test_line_decides(mbit: float, bits: int) -> None:
    found = grading(ALL, 0, mbit)
    assert found.bits == bits
    assert f"{mbit:.0f} Mbit/s leave this node" in found.why


@pytest.mark.parametrize("bits", [4, 8])
def test_line_at_the_edge_does_not_change_the_grade_with_every_round(bits: int) -> None:
    edge = GRADE_FROM_MBIT[bits]
    coarser = bits // 2
    for before in (bits, coarser):
        assert grading(ALL, before, edge * 1.01).bits == before
    assert grading(ALL, bits, edge * 0.99).bits == coarser
    assert grading(ALL, coarser, edge * SURELY).bits == bits


def test_run_may_allow_fewer_grades_than_there_are() -> None:
    assert grading(GradedCodec(finest=4), 0, 1e4).bits == 4
    assert grading(GradedCodec(coarsest=4, usual=4), 0, 1.0).bits == 4
