"""Where a command may write what it was told to."""

from pathlib import Path

from protocol.errors import ConfigError


def refuse_taken(out: Path, *, force: bool) -> None:
    """Raise ConfigError for a path that is no file's, and for a file that is there, unless it may
    be replaced. A device or a pipe is never replaced: a file would stand in its place."""
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: name a file with --out")
    if not out.exists():
        return
    if not out.is_file():
        raise ConfigError(f"{out} is a device or a pipe: name a file with --out")
    if not force:
        raise ConfigError(f"{out} exists: name another file with --out, or replace it with --force")
