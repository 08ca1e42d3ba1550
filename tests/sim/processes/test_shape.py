import pytest

from protocol.errors import ConfigError
from sim.processes.shaper import Shape, seconds_named, shape_named


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("20mbit,80ms", Shape(bits_per_s=20e6, round_trip_s=0.08)),
        ("80ms, 20Mbit", Shape(bits_per_s=20e6, round_trip_s=0.08)),
        ("512kbit", Shape(bits_per_s=512e3)),
        ("1.5s,2.5%", Shape(round_trip_s=1.5, loss=0.025)),
        ("0ms", Shape()),
    ],
)
def test_shape_is_read(text, shape):
    read = shape_named(text)
    assert read.bits_per_s == shape.bits_per_s
    assert read.round_trip_s == pytest.approx(shape.round_trip_s)
    assert read.loss == pytest.approx(shape.loss)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is no number with a unit"),
        ("20", "'20' is no number with a unit"),
        ("20mbit,", "'' is no number"),
        ("-3ms", "is no number"),
        ("20mbps", "unknown unit; there are kbit, mbit, ms, s, %"),
        ("20mbit,30mbit", "the rate is given twice"),
        ("1s,80ms", "the round trip is given twice"),
        ("1kbit", "a rate is 8kbit to 10000mbit"),
        ("11s", "a round trip is at most 10s"),
        ("60%", "a loss is at most 50%"),
    ],
)
def test_shape_that_is_none_is_refused_with_what_is_wrong(text, why):
    with pytest.raises(ConfigError, match="--shape") as caught:
        shape_named(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("2.5m", 150), ("1h", 3600), ("500ms", 0.5), ("7", 7)]
)
def test_time_is_read(text, seconds):
    assert seconds_named("--every", text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1s", "ten", "5 days", "nan", "1e9"])
def test_time_that_is_none_is_refused_with_the_option(text):
    with pytest.raises(ConfigError, match="--every"):
        seconds_named("--every", text)


def test_chance_of_loss_grows_with_the_segments():
    shape = Shape(loss=0.01)
    assert shape.chance_of_loss(100) == pytest.approx(0.01)
    assert shape.chance_of_loss(1448 * 10) == pytest.approx(1 - 0.99**10)
    assert Shape().chance_of_loss(10_000) == 0.0
