"""`bench link --shape`: what it is asked, what it counts, and one small run of the whole."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from protocol.errors import ConfigError
from protocol.grid import MerkleTree, cell_root
from sim.bench.link import PathOptions, PathResult, path_json, path_text
from sim.bench.path_end import CELL_ELEMENTS, MARK_EVERY, marked, path_run
from sim.processes.shaper import Line, Shape

LINE = Shape(bits_per_s=200e6, round_trip_s=0.06)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mib": 0}, "--mib 0"),
        ({"security": "rot13"}, "--security 'rot13' is none of noise, tls"),
        ({"breaks": -1}, "--break -1"),
    ],
)
def test_option_that_makes_no_sense_is_refused(change, why):
    with pytest.raises(ConfigError, match=why):
        PathOptions(shape=LINE, **change)


def test_share_is_of_the_lines_own_rate_and_bytes_are_those_beyond_the_state():
    options = PathOptions(shape=LINE, mib=1000, breaks=3)
    result = PathResult(wall_s=50.0, line_bytes=1010 << 20, connections_broken=6)
    found = path_json(options, "abc", result)
    assert found["path_mib_s"] == 20.0
    assert found["line_share"] == pytest.approx(20 * 8 * 1024**2 / 200e6, abs=1e-4)
    assert found["more_bytes"] == 0.01
    assert "83.9% of the line" in path_text(options, result)
    no_rate = replace(options, shape=Shape(round_trip_s=0.06))
    assert path_json(no_rate, "abc", result)["line_share"] is None


def test_no_two_cells_are_equal_and_a_shifted_one_is_another():
    anchor_N = marked(3)
    cells = [anchor_N[at : at + CELL_ELEMENTS] for at in range(0, len(anchor_N), CELL_ELEMENTS)]
    assert len({cell_root(cell.data.cast("B")) for cell in cells}) == 3
    assert (anchor_N[:MARK_EVERY] != anchor_N[MARK_EVERY : 2 * MARK_EVERY]).any()
    assert path_run(3).layout(0).num_cells(0) == 3
    assert MerkleTree([cell_root(cell.data.cast("B")) for cell in cells]).root is not None


async def test_line_tells_when_so_many_bytes_are_through(autojump_clock):
    line = Line(8e6)
    await line.passed(0)
    line.take(600, 0.0)
    line.take(400, 0.0)
    await line.passed(1000)
    assert line.num_bytes == 1000


@pytest.mark.slow
@pytest.mark.net
def test_state_comes_over_a_line_that_breaks_with_few_bytes_more():
    """On a loaded machine it is slower, and never more bytes."""
    command = [sys.executable, "-P", "-m", "node.cli", "bench", "link"]
    words = ["--shape", "100mbit,20ms", "--mib", "64", "--break", "2", "--json"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["connections_broken"] >= 2
    assert found["faults"] == []
    assert 0.3 < found["line_share"] <= 1.0
    # Of 64 MiB each break may cost what was on its way: some MiB.
    assert 0.0 < found["more_bytes"] < 0.2
