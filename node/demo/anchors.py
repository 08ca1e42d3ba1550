"""Whether nodes hold the same weights: from the bytes of their checkpoints, and from nothing else.

What a node reports about itself proves nothing about what it would start from tomorrow.
"""

from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, deserialize

from protocol.manifest import RunManifest
from training.files.state import ANCHOR_FILE, checkpoint_name

Tensors = dict[str, tuple[str, tuple[int, ...], bytes]]
"""Per tensor its dtype, shape and raw bytes."""


def final_checkpoint(state: Path, manifest: RunManifest) -> Path:
    """Where the node with this state folder keeps what the last round of the run made."""
    run = state / "runs" / manifest.digest.hex()[:12]
    # A checkpoint is named after the round that starts from it, and rounds count from 1.
    return run / "checkpoints" / checkpoint_name(manifest.rounds + 1)


def anchor_bytes(checkpoint: Path) -> Tensors | None:
    """The tensors of the anchor in a checkpoint folder; None if there is no whole one."""
    try:
        data = (checkpoint / ANCHOR_FILE).read_bytes()
        parts = deserialize(data)  # type: ignore[no-untyped-call]  # unannotated upstream
    except (OSError, SafetensorError):
        return None
    return {
        name: (str(part["dtype"]), tuple(part["shape"]), bytes(part["data"]))
        for name, part in parts
    }


def anchors_equal(checkpoints: Sequence[Path]) -> bool:
    """Whether all these checkpoints exist and hold the same bytes under the same names.

    The caller names one checkpoint of the same round per surviving node.
    """
    anchors = [anchor_bytes(path) for path in checkpoints]
    return bool(anchors) and anchors[0] is not None and all(a == anchors[0] for a in anchors)
