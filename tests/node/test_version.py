"""`barnraise --version`: what somebody who reports a fault is asked for."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from node.commands import looking  # noqa: F401 - an app without commands takes no options
from node.commands.app import app
from node.processes import version as module
from protocol.manifest import WIRE_VERSION

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_version_is_that_of_the_installed_package_and_of_the_wire() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert done.exit_code == 0
    number = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    assert done.stdout.startswith(f"barnraise {number}, wire {WIRE_VERSION}, ")
    assert done.stdout.count("\n") == 1


def test_sources_that_are_not_installed_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert module.version() == module.UNKNOWN
