"""What would be lost for good is kept beside the run's files until it is of no use any more.

    set-aside/chain.log       a log with records missing, as it was before it was cut; the longest
    set-aside/chain.log.1     the last one that was not longer than that
    set-aside/round-000050    a checkpoint of later rounds than those that the node goes on from

Both come of a damaged disk. Peers give such a node what it lacks; where there are none, these files
are all that is left of its later rounds.
"""

import shutil
from pathlib import Path

from training.files.durable import Files, fsync_folder, make_folder_durably, replace_durably
from training.files.state import checkpoint_folders, round_of

SET_ASIDE_FOLDER = "set-aside"


def keep_log(path: Path, files: Files) -> Path:
    """Copy a log that is about to be cut, beside a longer one that was kept before. Raises OSError
    where the disk is full: it is not to be cut then."""
    folder = path.parent / SET_ASIDE_FOLDER
    kept, data = folder / path.name, files.content(path)
    before = files.content(kept) if files.exists(kept) else b""
    if before == data:
        return kept
    if len(before) >= len(data):
        kept = kept.with_name(f"{path.name}.1")
    files.make_folder(folder)
    replace_durably(kept, [data], files)
    files.sync_folder(path.parent)
    return kept


def keep_later(checkpoints: Path, round_index: int) -> Path | None:
    """Move the newest checkpoint away if it starts a later round than the one that is about to be
    written: it would be removed with that. Raises OSError."""
    newest = next(iter(checkpoint_folders(checkpoints)), None)
    if newest is None or round_of(newest) <= round_index:
        return None
    folder = checkpoints.parent / SET_ASIDE_FOLDER
    make_folder_durably(folder)
    for kept in _kept(folder):
        if round_of(kept) > round_of(newest):
            return None
        shutil.rmtree(kept)
    to = newest.rename(folder / newest.name)
    fsync_folder(folder)
    fsync_folder(checkpoints)
    return to


def forget_before(checkpoints: Path, round_index: int) -> None:
    """Remove what was kept of rounds that are on the disk again. Raises OSError."""
    folder = checkpoints.parent / SET_ASIDE_FOLDER
    for kept in _kept(folder):
        if round_of(kept) <= round_index:
            shutil.rmtree(kept)


def _kept(folder: Path) -> list[Path]:
    return checkpoint_folders(folder) if folder.is_dir() else []
