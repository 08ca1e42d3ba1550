"""An error keeps its class and words on its way to a user's process."""

import inspect

import pytest

from protocol import errors
from protocol.errors import BarnraiseError, ManifestMismatch, RefusedError
from training.channel.frames import (
    TO_USER,
    Failed,
    FrameReader,
    error_of,
    failure_frame,
    pack_frame,
)

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, BarnraiseError) and kind is not ManifestMismatch
]


def passed_on(error: BarnraiseError) -> BarnraiseError:
    (frame,) = FrameReader(TO_USER).feed(pack_frame(failure_frame(error)))
    assert isinstance(frame, Failed)
    return error_of(frame)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_class_of_the_tree_comes_back_as_itself(kind):
    error = passed_on(kind("what to do"))

    assert type(error) is kind
    assert str(error) == "what to do"


def test_a_mismatch_keeps_its_field_and_its_words():
    before = ManifestMismatch("inner.batch", 4, 8)
    error = passed_on(before)

    assert isinstance(error, ManifestMismatch)
    assert (error.field, str(error)) == ("inner.batch", str(before))


def test_a_class_of_a_later_version_is_told_by_name():
    error = error_of(Failed(kind="BannedError", message="two signatures", field=""))

    assert type(error) is BarnraiseError
    assert str(error) == "BannedError: two signatures"


def test_a_name_that_is_no_error_of_ours_raises_nothing_else():
    assert type(error_of(Failed(kind="SystemExit", message="0", field=""))) is BarnraiseError


def test_a_message_beyond_bounds_is_cut_and_the_frame_passes():
    assert 0 < len(str(passed_on(RefusedError("x" * 5_000_000)))) < 10_000
