"""`bench codecs`: every registered codec is measured, by its name alone."""

from io import StringIO

import pytest
from rich.console import Console

from protocol.errors import ConfigError
from sim.bench.costs import bench_codecs, measure_codec, print_codecs
from training.compression import CODECS, in_grade
from training.kernels import arithmetic


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", CODECS)
def test_codec_is_measured_with_its_size_and_its_error(name: str, seed: int) -> None:
    result = measure_codec(name, 300_000, seed)
    codec = CODECS[name]()
    sizes = sum(in_grade(codec, 0, n).payload_bytes(n) for n in (1 << 18, 300_000 - (1 << 18)))
    assert result.bytes_per_param == sizes / 300_000
    assert result.encode_mib_s > 0
    assert result.decode_mib_s > 0
    assert 0 <= result.relative_error < 1
    assert (result.relative_error == 0) == (name == "none")
    assert result.is_biased == codec.is_biased


@pytest.mark.extended
def test_codecs_are_measured_in_the_order_that_they_are_named_in() -> None:
    results = bench_codecs(["none", "fp16"], 1024, 0)
    assert [one.name for one in results] == ["none", "fp16"]
    assert [one.bytes_per_param for one in results] == [4.0, 2.0]


def test_table_has_a_line_for_each_codec(seed: int) -> None:
    text = StringIO()
    names = ("int4", "topk")
    print_codecs(Console(file=text, width=100), [measure_codec(name, 1024, seed) for name in names])
    lines = text.getvalue().splitlines()
    assert lines[0].split()[0] == "codec"
    assert [line.split()[0] for line in lines[1:-1]] == [*names]
    assert lines[-1] == f"arithmetic: {arithmetic()}"


@pytest.mark.parametrize(
    ("names", "elements", "why"), [(["zip"], 1024, "unknown codec 'zip'"), ([], 10, "--elements")]
)
def test_what_cannot_be_measured_is_refused(names: list[str], elements: int, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        bench_codecs(names, elements, 0)
