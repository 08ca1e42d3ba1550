"""Checkpoints in the background, on a disk that may be full."""

import os
from pathlib import Path

import numpy as np
import pytest

from node.chain import genesis
from node.checkpoints import Checkpoints
from tests.node.edge import NUMEL, toy_manifest
from tests.training.full_disk import files_of_at_most


async def test_disk_that_takes_no_more_is_an_os_error(tmp_path: Path) -> None:
    manifest = toy_manifest()
    anchor_N = np.zeros(NUMEL, dtype=np.float32)
    checkpoints = Checkpoints(tmp_path, manifest, 0)
    checkpoints.offer(genesis(manifest, 0, bytes(32)), anchor_N, {"momentum": anchor_N})
    with files_of_at_most(1024), pytest.raises(OSError, match=r"anchor|large"):
        await checkpoints.run()
    assert "latest" not in os.listdir(tmp_path)
