"""An option that nothing would read is refused before anything runs."""

import pytest
from typer.testing import CliRunner

from node.commands.app import app
from sim import commands  # noqa: F401 - they register


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("local --steps 3", "--steps does nothing without --trainer real"),
        ("local --trainer real --train 1s", "--train does nothing without --trainer made-up"),
        ("local --trainer real --elements 5000", "--elements does nothing without --trainer made"),
        ("local --every 3s", "--every does nothing without --chaos"),
        ("local --reckless", "--reckless does nothing without --chaos"),
        ("sim sweep mixed --model gpt", "--model does nothing without `robustness`"),
        ("sim sweep --liars 2", "--liars does nothing without `robustness`"),
        ("sim sweep --skew 0.3", "--skew does nothing without `robustness`"),
        ("sim sweep --no-bare", "--bare does nothing without `robustness`"),
        ("sim sweep robustness --interpreted", "--interpreted does nothing without a scenario"),
        ("sim sweep robustness mixed", "`robustness` is no scenario: sweep it alone"),
    ],
)
def test_option_that_nothing_would_read_is_refused(
    words: str, why: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, words.split())
    assert result.exit_code == 2
    assert why in result.stderr
    assert not list(tmp_path.iterdir())
