"""Who is not let in is told why within 5 seconds, from the command to its end: real processes."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.demo_command import environment
from tests.e2e.node_command import (
    LINK,
    LOOPBACK,
    SMALL,
    NodeCommand,
    command,
    node,
    wait,
    write_run_file,
)

pytestmark = [pytest.mark.slow, pytest.mark.net]

TOLD_S_MAX = 5.0
EVERYWHERE = ("--listen", "/ip4/0.0.0.0/tcp/0")
"""So that nodes of this network are looked for where the link leads nowhere."""


def slowness(folder: Path) -> float:
    """How many times longer a start takes here now than on a machine that does nothing else."""
    program = "import node.daemon.foreground, time; print(time.process_time())"
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return max(1.0, (time.monotonic() - began_s) / float(done.stdout))


def refused(folder: Path, link: str, *arguments: str, status: int) -> str:
    """What a join that is refused says, in time."""
    slow = slowness(folder)
    began_s = time.monotonic()
    done = command(folder, "join", link, *arguments)
    took_s = time.monotonic() - began_s
    print(f"refused after {took_s:.2f} s, bound {TOLD_S_MAX * slow:.2f} s, {os.getloadavg()}")  # noqa: T201
    assert done.returncode == status, done.stdout + done.stderr
    assert took_s <= TOLD_S_MAX * slow, (took_s, slow, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_node_without_the_psk_or_with_another_is_told_so(tmp_path: Path) -> None:
    write_run_file(tmp_path, **(SMALL | {"rounds": "100000"}))
    for key in ("ours", "other"):
        assert command(tmp_path, "psk", key).returncode == 0
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK, "--psk", "ours") as a:
        link = a.link()
        said = refused(tmp_path, link, "--state", "b", *EVERYWHERE, status=3)
        assert "a private swarm has a PSK, which its members give you" in said
        assert "are they running" not in said
        other = ("--state", "c", *EVERYWHERE, "--psk", "other")
        assert "its PSK is not ours" in refused(tmp_path, link, *other, status=3)


@contextmanager
def invited_run(folder: Path) -> Iterator[NodeCommand]:
    """A run for the invited, whose founder has sealed."""
    write_run_file(folder, **(SMALL | {"rounds": "100000", "mode": '"invited"'}))
    with node(folder, "a", "run", "run.toml", *LOOPBACK) as a:
        a.wait_for("1 of 1 listed")
        yield a


def invitation(folder: Path, uses: int) -> tuple[str, str]:
    """A link of the founder's, and the name to take it back by."""
    done = command(folder, "invite", "--uses", str(uses), "--state", "a")
    link, name = LINK.search(done.stdout), re.search(r"invite revoke (\w+)", done.stdout)
    assert link is not None, done.stderr
    assert name is not None, done.stdout
    return link.group(), name.group(1)


def test_bearer_of_a_used_up_invitation_is_told_so(tmp_path: Path) -> None:
    with invited_run(tmp_path):
        link, _ = invitation(tmp_path, 1)
        with node(tmp_path, "b", "join", link, *LOOPBACK) as b:
            b.wait_for("2 of 2 listed")
            said = refused(tmp_path, link, "--state", "c", *LOOPBACK, status=4)
        assert "the invitation is used up: it was for 1" in said


def test_bearer_of_a_revoked_invitation_is_told_so(tmp_path: Path) -> None:
    with invited_run(tmp_path):
        link, name = invitation(tmp_path, 5)
        assert command(tmp_path, "invite", "revoke", name, "--state", "a").returncode == 0
        wait(2.0)  # "once this node has told it"
        said = refused(tmp_path, link, "--state", "b", *LOOPBACK, status=4)
        assert "the invitation was revoked" in said
