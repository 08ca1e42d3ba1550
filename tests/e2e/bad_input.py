"""A state folder of a run that got somewhere, what is in it, and commands that must not harm it."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.holdings.record_log import read_records
from node.state.folder import MANIFEST_FILE, RUNS_FOLDER
from node.state.keystore import load_or_create_identity
from node.state.stored_manifest import read_signed_manifest
from protocol.manifest import SignedManifest
from tests.e2e.node_command import LOOPBACK, NodeCommand, command, node

RUN_TOML = """\
[run]
title = "a test"
rounds = 100000

[model]
cell_elements = 1024

[model.settings]
context = 16
heads = 2
layers = 1
width = 16

[inner]
inner_steps = 8
batch = 4
warmup_steps = 10

[timing]
deadline_floor_s = 1.0
deadline_cap_s = 10.0
heartbeat_s = 0.25
suspect_s = 2.0
"""
"""A model so small that a round takes a tenth of a second."""

ROUNDS_FIRST = 6
"""So many the run has sealed at least when a test gets its state folder."""

_PASSING = {
    *("lock", "api.token", "node.log", "known_peers.json", "port"),
    *("state.sqlite", "state.sqlite-wal", "state.mark"),
}
"""Files that every start writes, or that say where the node was."""


@dataclass(frozen=True)
class Lived:
    """A founder's state folder, after its node has run and left; and the run.toml."""

    folder: Path
    state: Path

    @property
    def run(self) -> Path:
        """The folder of its one run."""
        (manifest,) = (self.state / RUNS_FOLDER).glob(f"*/{MANIFEST_FILE}")
        return manifest.parent

    @property
    def manifest_file(self) -> Path:
        return self.run / MANIFEST_FILE

    @property
    def signed(self) -> SignedManifest:
        return read_signed_manifest(self.manifest_file, load_or_create_identity(self.state))

    @property
    def head(self) -> int:
        """The last round that it knows to be sealed."""
        return len(self.seals())

    def seals(self) -> list[bytes]:
        """The sealed rounds in order, as they are on the disk."""
        records, _, is_damaged = read_records(self.run / "chain.log")
        assert not is_damaged
        return records

    def log(self) -> str:
        """What it logged over all its starts."""
        return (self.run / "node.log").read_text()

    def files(self) -> dict[str, bytes]:
        """All that must not be lost."""
        paths = (path for path in self.state.rglob("*") if path.is_file())
        return {
            str(path.relative_to(self.state)): path.read_bytes()
            for path in paths
            if path.name not in _PASSING
        }

    def again(self, *options: str) -> tuple[str, ...]:
        """The command that goes on with the run."""
        return ("run", str(self.folder / "run.toml"), "--device", "cpu", *LOOPBACK, *options)

    def refused(self, *arguments: str, status: int = 2) -> str:
        """What a command says that must fail, and does no harm to the folder."""
        before = self.files()
        said = refused(self.folder, *arguments, "--state", str(self.state), status=status)
        assert self.files() == before
        return said

    @contextmanager
    def going_on(self, *options: str) -> Iterator[NodeCommand]:
        """The node again, once it has taken up the run where it was."""
        head = self.head
        with node(self.state.parent, self.state.name, *self.again(*options)) as one:
            assert int(one.wait_for(r"goes on from round (\d+)")) >= head
            yield one

    def must_go_on(self, rounds: int = 1) -> None:
        """A correct start seals further rounds, on top of those that there are."""
        seals = self.seals()
        with self.going_on() as one:
            for index in range(len(seals) + 1, len(seals) + 1 + rounds):
                one.wait_for(rf"round +{index} of \d+ sealed: 1 of 1 listed")
            one.interrupt()
        assert self.seals()[: len(seals)] == seals
        assert self.head >= len(seals) + rounds


def refused(folder: Path, *arguments: str, status: int = 2) -> str:
    """What a command that must fail says on standard error: for people, no traceback."""
    done = command(folder, *arguments)
    assert done.returncode == status, (done.returncode, done.stderr[-3000:])
    assert "Traceback" not in done.stderr
    said = done.stderr[done.stderr.index("barnraise: ") :]
    assert len(said.splitlines()) < 12
    return said


def founded(folder: Path, state: str = "state") -> Lived:
    """A run that has been founded, has sealed some rounds, and was left."""
    (folder / "run.toml").write_text(RUN_TOML)
    lived = Lived(folder, folder / state)
    with node(folder, state, *lived.again()) as one:
        one.wait_for(rf"round +{ROUNDS_FIRST} of \d+ sealed")
        one.interrupt()
        assert one.process.returncode == 130, one.said()[-3000:]
    return lived


def last_lines(text: str) -> str:
    """For messages of failed assertions."""
    return "\n".join(text.splitlines()[-30:])


def joined(text: str) -> str:
    """Words as they follow each other, whatever the line ends."""
    return re.sub(r"\s+", " ", text)


@contextmanager
def small_disk(folder: Path, size: str, *options: str) -> Iterator[Path]:
    """A file system of its own, of that size; skips where this user may not mount any."""
    folder.mkdir()
    settings = ",".join((f"size={size}", *options))
    mount = ["mount", "-t", "tmpfs", "-o", settings, "tmpfs", str(folder)]
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    done = subprocess.run(mount, capture_output=True, check=False) if is_root else None
    if done is None or done.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
