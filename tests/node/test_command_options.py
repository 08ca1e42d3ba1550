"""Options of a group of commands that are said before the command."""

import pytest
import typer
from typer.testing import CliRunner

from node.commands.options import JsonOption, RunOption, StateOption, hand_down

app = typer.Typer()


@app.callback(invoke_without_command=True)
def group(
    context: typer.Context,
    state: StateOption = None,
    run: RunOption = None,
    json: JsonOption = False,
) -> None:
    """Print its own options, unless a command follows."""
    if context.invoked_subcommand is not None:
        hand_down(context)
        return
    typer.echo(f"group {state} {run} {json}")


@app.command()
def export(state: StateOption = None, json: JsonOption = False) -> None:
    """Print its options."""
    typer.echo(f"export {state} {json}")


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ("--state a --run 1", "group a 1 False"),
        ("export", "export None False"),
        ("--state a export", "export a False"),
        ("export --state a", "export a False"),
        ("--state a --json export --state b", "export b True"),
    ],
)
def test_what_is_said_before_a_command_counts_for_it(words: str, printed: str) -> None:
    result = CliRunner().invoke(app, words.split())
    assert (result.exit_code, result.stdout.strip()) == (0, printed)


def test_option_that_the_command_does_not_have_is_refused() -> None:
    result = CliRunner().invoke(app, ["--run", "1", "export"])
    assert result.exit_code == 2
    assert "export takes no --run" in result.stderr
