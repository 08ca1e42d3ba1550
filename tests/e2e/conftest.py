"""A run that has come some way, made once for all tests that spoil a copy of it."""

import shutil
from pathlib import Path

import pytest

from tests.e2e.bad_input import Lived, founded


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """Not to be changed."""
    return founded(tmp_path_factory.mktemp("lived"))


@pytest.fixture
def lived(original: Lived, tmp_path: Path) -> Lived:
    """A copy, to be spoiled; its node goes on with the original's run."""
    state = tmp_path / "state"
    shutil.copytree(original.state, state)
    return Lived(original.folder, state)
