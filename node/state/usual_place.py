"""Where a node keeps its state if nobody says otherwise. It loads little: help texts name it."""

from pathlib import Path

import platformdirs


def default_state() -> Path:
    """The system's place for user data."""
    return Path(platformdirs.user_data_dir("barnraise", appauthor=False))


def shown_state(within: str = "") -> str:
    """That place, or a folder in it, as people write it."""
    path = default_state() / within
    home = Path.home()
    return str(Path("~") / path.relative_to(home)) if path.is_relative_to(home) else str(path)
