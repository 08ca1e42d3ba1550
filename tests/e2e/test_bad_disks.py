"""What machines do to a node's disk: the message, the exit status, and that nothing is lost.

The table of all cases is in test_bad_input.py.
"""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from node.peers.listening import full_addresses
from protocol.identity import Ed25519Signer
from tests.e2e.bad_input import Lived, founded, last_lines, refused, small_disk
from tests.e2e.demo_command import environment
from tests.e2e.node_command import COMMAND, LOOPBACK, WAIT_S, command, node
from training.files.state import checkpoint_folders, load_checkpoint, save_checkpoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="sends signals to process groups"),
]

GONE = full_addresses(Ed25519Signer(b"g" * 32).peer_id, ["/ip4/127.0.0.1/tcp/1"])[0]


# Checkpoints ------------------------------------------------------------------------------------


def flip(lived: Lived, newest: Path) -> str:
    path = newest / "anchor.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return "is not the file that was written"


def truncate(lived: Lived, newest: Path) -> str:
    path = newest / "anchor.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    return "is not the file that was written"


def replace_by_another_runs(lived: Lived, newest: Path) -> str:
    manifest = lived.signed.manifest
    slots = ["momentum"] if manifest.outer.optimizer == "nesterov" else []
    whole = load_checkpoint(newest, manifest.shards[0], run=manifest.digest, slots=slots)
    shutil.rmtree(newest)
    foreign = dataclasses.replace(whole.meta, run=b"\x07" * 32)
    assert save_checkpoint(newest.parent, manifest.shards[0], whole.state, foreign) == newest
    return f"is of run {'07' * 6}, shard model; this is run {manifest.digest.hex()[:12]}"


def remove(lived: Lived, newest: Path) -> str:
    (newest / "anchor.safetensors").unlink()
    return "No such file"


@pytest.fixture(scope="module")
def unspoiled(original: Lived, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The seals that follow on an unspoiled disk: on one machine the same lead to the same."""
    state = tmp_path_factory.mktemp("unspoiled") / "state"
    shutil.copytree(original.state, state)
    lived = Lived(original.folder, state)
    lived.must_go_on(2)
    return lived.seals()


@pytest.mark.parametrize("spoil", [flip, truncate, replace_by_another_runs, remove])
def test_newest_checkpoint_that_is_spoiled_gives_way_to_the_older_one(
    lived: Lived, unspoiled: list[bytes], tmp_path: Path, spoil
) -> None:
    head = lived.head
    newest, older = checkpoint_folders(lived.run / "checkpoints")[:2]
    rounds = [int(path.name.rpartition("-")[2]) - 1 for path in (newest, older)]
    assert rounds[0] == head
    why = spoil(lived, newest)
    # Whoever only reads says so, and takes the older one.
    exported = tmp_path / "model.safetensors"
    state = ("--state", str(lived.state))
    done = command(tmp_path, "export", *state, "--out", str(exported), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["round"] == rounds[1]
    assert str(newest) in done.stderr
    assert why in done.stderr
    # The node also steps again through what was sealed since.
    with lived.going_on() as one:
        told = re.search(r"warning: a checkpoint is no good, an older one is .*", one.said())
        assert told is not None, last_lines(one.said())
        assert str(newest) in told[0]
        assert why in told[0]
        assert f"goes on from round {head}," in one.said()
        one.wait_for(rf"round +{head + 2} of \d+ sealed: 1 of 1 listed")
        one.interrupt()
    assert f"checkpoint skipped path={newest} reason=" in lived.log().replace('"', "")
    # It went on from the very state that had been sealed: what it sealed then is the same, too.
    assert lived.seals()[: head + 2] == unspoiled[: head + 2]


# Disks ------------------------------------------------------------------------------------------


def test_full_disk_is_named_and_after_making_room_the_node_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        lived = founded(disk)
        head = lived.head
        with node(tmp_path, "disk/state", *lived.again()) as one:
            one.wait_for(rf"round +{head + 2} of \d+ sealed")
            filler = disk / "filler"
            fill(filler)
            assert one.exit_status() == 2, last_lines(one.said())
            said = one.said()[one.said().rindex("barnraise: ") :]
        assert "No space left on device" in said
        assert str(lived.state) in said
        assert "make room" in said or "free space" in said
        assert "Traceback" not in one.said()
        told = [int(found) for found in re.findall(r"round +(\d+) of \d+ sealed", one.said())]
        # A start on a disk that is still full changes nothing. What the node left half written
        # is gone, and was room.
        fill(filler)
        said = lived.refused(*lived.again())
        assert "No space left on device" in said
        filler.unlink()
        # What people were told is sealed is on the disk.
        assert lived.head >= max(told)
        lived.must_go_on(2)


def fill(path: Path) -> None:
    """Leave not a byte on the disk of `path`."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def test_file_size_limit_is_named_and_behind_it_the_node_goes_on(lived: Lived) -> None:
    resource = pytest.importorskip("resource", reason="only POSIX limits the size of files")
    if not hasattr(resource, "prlimit"):
        pytest.skip("limits of another process are Linux's")
    command_line = [*COMMAND, *lived.again("--json"), "--state", str(lived.state)]
    with subprocess.Popen(
        command_line,
        env=environment() | {"PYTHONDONTWRITEBYTECODE": "1"},  # As in tests.training.full_disk.
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        sealed = 0
        for line in process.stdout:
            sealed += '"event": "sealed"' in line
            if sealed == 2:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, -1))
                break
        # What it says to people fits a pipe.
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2, said
    assert "File too large" in said
    assert str(lived.state) in said
    assert "make room" in said
    assert "Traceback" not in said
    lived.must_go_on()


# One node, one folder ---------------------------------------------------------------------------


def test_second_node_on_one_identity_is_refused_and_the_first_trains_on(lived: Lived) -> None:
    with lived.going_on() as one:
        for arguments in (lived.again(), ("join", GONE, *LOOPBACK)):
            said = refused(lived.folder, *arguments, "--state", str(lived.state))
            assert f"another node runs in {lived.state}" in said
            assert "stop that one first, or give this one a folder of its own with --state" in said
        sealed = one.said().count("sealed")
        one.wait_for("sealed", sealed + 2)
        # A frozen one is a running one.
        one.send(signal.SIGSTOP)
        assert "another node runs" in refused(
            lived.folder, *lived.again(), "--state", str(lived.state)
        )
        one.send(signal.SIGCONT)
        one.interrupt()
    lived.must_go_on()


def test_state_folder_below_a_file_is_named_with_what_to_do(
    original: Lived, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "state"):
        said = refused(original.folder, *original.again(), "--state", str(path))
        assert f"cannot use the folder {path}: " in said
        assert "name another with --state" in said
    assert (tmp_path / "file").read_text() == "mine"


def test_state_folder_that_is_not_writable_is_named_with_what_to_do(
    original: Lived, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        state = disk / "state"
        shutil.copytree(original.state, state)
        lived = Lived(original.folder, state)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        said = lived.refused(*lived.again())
        assert str(state) in said
        assert "Read-only file system" in said
        assert "--state" in said
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        lived.must_go_on()


def test_damaged_identity_is_named_and_no_other_is_made(lived: Lived) -> None:
    path = lived.state / "identity.key"
    kept = path.read_bytes()
    path.write_bytes(b"short")
    said = lived.refused(*lived.again())
    assert f"{path} is no key" in said
    assert "put back the copy" in said
    path.write_bytes(kept)
