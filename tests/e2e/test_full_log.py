"""A log that the disk does not take: the node goes on, and its status says so."""

import sys
from pathlib import Path

import pytest

from node.status.client import ask, find_api
from node.status.records import NodeStatus
from tests.e2e.swarm import swarm_of


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_log_lines_that_are_lost_are_a_warning_in_the_status(tmp_path: Path) -> None:
    with swarm_of(tmp_path, 1, status=True) as swarm:
        swarm.until_round(1)
        (node,) = swarm.nodes
        assert node.leave() == 0
        log = swarm.folder(node) / "node.log"
        log.unlink()
        log.symlink_to("/dev/full")
        node.start()

        def is_told() -> bool:
            if not (swarm.folder(node) / "api.token").exists():
                return False
            status = ask(find_api(node.state, None), "/v1/status", NodeStatus)
            return any("log lines" in warning for warning in status.warnings)

        swarm.wait("a warning of lost log lines", is_told)
        sealed = node.sealed()
        swarm.until_round(sealed + 2)
