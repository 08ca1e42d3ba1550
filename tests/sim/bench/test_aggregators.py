"""The bench of aggregators: every rule that has a name, and numbers that can be read."""

import json

import pytest
from typer.testing import CliRunner

from node.commands.app import app
from protocol.errors import ConfigError
from sim import bench_commands as commands
from training.aggregation import AGGREGATORS

assert commands.bench_app is not None, "importing it registers the command"


def test_bench_measures_every_registered_rule() -> None:
    words = ["bench", "aggregators", "--peers", "7", "--elements", "3000", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["peers"], found["elements"]) == (7, 3000)
    assert set(found["rules"]) == set(AGGREGATORS)
    for name in AGGREGATORS:
        assert set(found[name]) == {"wall_s", "cpu_s", "peak_mib"}
        assert found[name]["wall_s"] > 0.0


@pytest.mark.parametrize("words", [["--peers", "0"], ["--elements", "0"], ["--peers", "65"]])
def test_bench_refuses_sizes_that_no_group_has(words: list[str]) -> None:
    result = CliRunner().invoke(app, ["bench", "aggregators", *words])
    assert isinstance(result.exception, ConfigError)
