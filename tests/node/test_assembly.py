"""What a node refuses before anything of the run is on its disk."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.daemon.assembly import Node, assemble
from node.plane.hooks import NodeHooks
from node.state.config import NodeConfig
from node.status.board import EventLog
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer
from tests.node.cells.test_work_desk import MANIFEST
from tests.node.edge import FOUNDER_SEED, signed


@pytest.mark.parametrize(
    ("preset", "is_attached", "why"),
    [("diloco", True, "a training loop"), ("auto", False, "steps")],
)
def test_run_with_audits_is_refused_where_nobody_could_run_its_work_again(
    tmp_path: Path, preset: str, is_attached: bool, why: str
) -> None:
    manifest = replace(MANIFEST, outer=replace(MANIFEST.outer, preset=preset))
    attached: Any = object() if is_attached else None
    node = Node(
        config=NodeConfig(manifest=tmp_path / "manifest", state=tmp_path),
        signed=signed(manifest),
        signer=Ed25519Signer(FOUNDER_SEED),
        hooks=NodeHooks(),
        log=EventLog(None, 0.0),
        attached=attached,
    )
    nothing: Any = None
    with pytest.raises(ConfigError, match=why):
        assemble(node, nothing, nothing)
    assert not list(tmp_path.rglob("*journal*"))
