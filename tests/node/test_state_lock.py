"""One node per state folder."""

from pathlib import Path

import pytest

from node.state.lock import locked_state
from protocol.errors import ConfigError


def test_second_node_on_a_state_folder_is_told_to_take_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with locked_state(folder), pytest.raises(ConfigError, match="--state"), locked_state(folder):
        pass
    with locked_state(folder):  # It is free again.
        pass
