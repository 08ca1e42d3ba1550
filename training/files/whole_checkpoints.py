"""Which checkpoint of a run to use: the newest whole one, also while a node writes new ones."""

from collections.abc import Callable, Iterator
from pathlib import Path

from protocol.errors import CheckpointError, ConfigError
from protocol.manifest import RunManifest
from training.files.state import Checkpoint, checkpoint_folders, load_checkpoint
from training.outer.optimizers import make_outer

_SCANS_MAX = 5
"""A node that prunes what we are reading has written a newer one meanwhile: we look again. Even the
quickest rounds do not seal three checkpoints while one is read, again and again."""

Tell = Callable[[str], None]
"""Gets a sentence about each checkpoint that had to be passed over."""


def sealed_round(checkpoint: Checkpoint) -> int:
    """The round whose seal made these weights; the folder is named after the one that follows."""
    return checkpoint.meta.clock.round - 1


def newest_whole(
    folder: Path, manifest: RunManifest, tell: Tell, *, round_index: int | None = None
) -> Checkpoint:
    """The newest whole checkpoint in `folder`, or the one that round `round_index` sealed.

    Raises ConfigError for a round that is not kept, CheckpointError where none is whole.
    """
    told: set[Path] = set()
    for _ in range(_SCANS_MAX):
        paths = _paths(folder, round_index)
        for path in paths:
            try:
                return _load(path, manifest)
            except CheckpointError as error:
                if not path.exists():
                    break
                if round_index is not None:
                    raise
                if path not in told:
                    told.add(path)
                    tell(f"passed over a checkpoint that is not whole: {error}")
        else:
            raise CheckpointError(
                f"{folder} holds no whole checkpoint: start the node again, and it fetches the "
                "run's state from its peers"
                if paths
                else f"{folder} holds no checkpoint yet: a sealed round makes the first"
            )
    raise CheckpointError(f"{folder} changes faster than it can be read: try again")


def every_whole(folder: Path, manifest: RunManifest, tell: Tell) -> Iterator[Checkpoint]:
    """All whole checkpoints in `folder`, the oldest first.

    Raises CheckpointError where there is none.
    """
    num_whole = 0
    for path in reversed(checkpoint_folders(folder)):
        try:
            checkpoint = _load(path, manifest)
        except CheckpointError as error:
            # One that is gone was pruned by a running node.
            if path.exists():
                tell(f"passed over a checkpoint that is not whole: {error}")
            continue
        num_whole += 1
        yield checkpoint
    if num_whole == 0:
        # Perhaps there is one by now; if not, it says what to do.
        yield newest_whole(folder, manifest, tell)


def _load(path: Path, manifest: RunManifest) -> Checkpoint:
    slots = make_outer(manifest.outer).slots
    return load_checkpoint(path, manifest.shards[0], run=manifest.digest, slots=slots)


def _paths(folder: Path, round_index: int | None) -> list[Path]:
    paths = checkpoint_folders(folder)
    if round_index is None:
        return paths
    kept = {int(path.name.rpartition("-")[2]) - 1: path for path in paths}
    if round_index not in kept:
        rounds = ", ".join(str(index) for index in sorted(kept)) or "none"
        raise ConfigError(f"{folder} does not keep round {round_index}; it keeps: {rounds}")
    return [kept[round_index]]
