"""What the system was asked to make durable, and when names were given."""

import os
from pathlib import Path

import pytest


class Syncs:
    """Notes each sync by the inode of what it was of, which a new name does not change, and each
    new name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._events: list[int | str] = []
        fsync, rename, replace = os.fsync, Path.rename, Path.replace

        def noting_fsync(descriptor: int) -> None:
            fsync(descriptor)
            self._events.append(os.fstat(descriptor).st_ino)

        def noting_rename(path: Path, target: Path) -> Path:
            self._events.append(f"name {target.name}")
            return rename(path, target)

        def noting_replace(path: Path, target: Path) -> Path:
            self._events.append(f"name {target.name}")
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", noting_fsync)
        monkeypatch.setattr(Path, "rename", noting_rename)
        monkeypatch.setattr(Path, "replace", noting_replace)

    def take(self, *paths: Path) -> list[str]:
        """What happened since it was asked last; `paths` are all that may have been synced, under
        the names that they have by now."""
        names = {path.stat().st_ino: f"sync {path.name}" for path in paths}
        events, self._events = self._events, []
        return [event if isinstance(event, str) else names[event] for event in events]
