"""Checkpoints in the background, on a disk that may be full."""

import os
from pathlib import Path

import numpy as np
import pytest

from node.chain import genesis
from node.checkpoints import Checkpoints
from tests.node.edge import NUMEL, toy_manifest

resource = pytest.importorskip("resource")


async def test_disk_that_takes_no_more_is_an_os_error(tmp_path: Path) -> None:
    manifest = toy_manifest()
    anchor_N = np.zeros(NUMEL, dtype=np.float32)
    checkpoints = Checkpoints(tmp_path, manifest, 0)
    checkpoints.offer(genesis(manifest, 0, bytes(32)), anchor_N, {"momentum": anchor_N})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        with pytest.raises(OSError, match=r"anchor|large"):
            await checkpoints.run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "latest" not in os.listdir(tmp_path)
