"""Options of a group of commands that are said before the command."""

import pytest
from typer.testing import CliRunner

from node.commands import credit, founding, looking  # noqa: F401 - they register
from node.commands.app import app
from sim import commands  # noqa: F401 - it registers `local` and `bench`


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("credit --state FOLDER verify FILE", "--state"),
        ("evidence --json --run 1 verify FILE", "--run"),
        ("invite --uses 2 list", "--uses"),
    ],
)
def test_option_that_the_command_does_not_have_is_refused(words: str, option: str) -> None:
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == 2
    assert f"{words.split()[-2 if 'FILE' in words else -1]} takes no {option}" in result.stderr


@pytest.mark.parametrize("words", ["invite --state {} list", "credit --run 1 --state {} export F"])
def test_folder_that_is_named_before_the_command_is_the_one_that_is_looked_at(
    words: str, tmp_path
) -> None:
    result = CliRunner().invoke(app, words.format(tmp_path).split())
    assert str(tmp_path) in str(result.exception)


@pytest.mark.parametrize("command", ["demo", "local", "compare", "bench fault"])
@pytest.mark.parametrize("seed", ["-1", str(1 << 63)])
def test_seed_that_no_manifest_holds_is_bad_usage(command: str, seed: str) -> None:
    # Refused by the manifest it would look like a peer's doing: exit status 4.
    result = CliRunner().invoke(app, [*command.split(), "--seed", seed])
    assert result.exit_code == 2
    assert "--seed" in result.stderr
