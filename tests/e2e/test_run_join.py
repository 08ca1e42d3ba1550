"""Founding, joining, leaving and coming back, as people do it."""

import json
import os
import pty
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from node.peers.listening import full_addresses
from node.state.folder import MANIFEST_FILE, RUNS_FOLDER
from node.state.stored_manifest import read_signed_manifest
from protocol.identity import Ed25519Signer
from protocol.manifest import RunManifest
from sim.demo.result import anchors_equal, final_checkpoint
from tests.e2e.demo_command import environment
from tests.e2e.node_command import (
    COMMAND,
    LINK,
    LOOPBACK,
    SMALL,
    NodeCommand,
    command,
    node,
    wait,
    wait_until_gone,
    write_run_file,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(os.name != "posix", reason="sends signals to process groups"),
]

LONG = SMALL | {"rounds": "100000"}
BOTH = r"2 of 2 listed"

LEAVE_S_MAX = 2.0
BUSY_FACTOR = 2.0
"""The promise is about a machine that is otherwise idle. The one that tests run on is not."""


def manifest_of(state: Path) -> RunManifest:
    (path,) = (state / RUNS_FOLDER).glob(f"*/{MANIFEST_FILE}")
    return read_signed_manifest(path, Ed25519Signer(bytes(32))).manifest


def wait_for_joiner(folder: Path, state: str) -> None:
    """Have a founder hold its first round for a joiner: these runs are short."""
    (folder / state).mkdir()
    (folder / state / "node.toml").write_text("start_with = 2\nstart_within_s = 120.0\n")


def test_founder_and_joiner_finish_with_equal_weights(tmp_path: Path) -> None:
    write_run_file(tmp_path, **SMALL)
    wait_for_joiner(tmp_path, "a")
    with (
        node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a,
        node(tmp_path, "b", "join", a.link(), *LOOPBACK) as b,
    ):
        assert (a.exit_status(), b.exit_status()) == (0, 0), a.said() + b.said()
    manifest = manifest_of(a.state)
    assert manifest == manifest_of(b.state)
    for one in (a, b):
        assert "run finished: 6 rounds" in one.said()
        assert "Traceback" not in one.said()
    assert f"{BOTH}" in b.said()
    assert "IP address" in b.said()
    finals = [final_checkpoint(one.state, manifest) for one in (a, b)]
    assert anchors_equal(finals)
    # What is over stays over, with nobody there.
    for arguments in (["run", "run.toml"], ["join", LINK.findall(a.said())[0]]):
        state = "a" if arguments[0] == "run" else "b"
        done = command(tmp_path, *arguments, *LOOPBACK, "--state", state)
        assert done.returncode == 0, done.stderr
        assert "run finished: 6 rounds" in done.stdout


def test_file_as_init_writes_it_trains_on_a_processor(tmp_path: Path) -> None:
    write_run_file(tmp_path)
    with node(tmp_path, "a", "run", "run.toml", "--device", "cpu", *LOOPBACK) as a:
        loss = float(a.wait_for(r"round +3 of 200 sealed: 1 of 1 listed, loss ([0-9.]+)"))
        assert loss < 4.5  # Of genesis it is 5.7.
        assert float(a.wait_for(r"held-out loss ([0-9.]+) after round \d+")) < 6.0
        a.interrupt()
        assert a.exit_status() == 130


def test_founder_in_a_terminal_waits_for_a_peer_until_enter(tmp_path: Path) -> None:
    write_run_file(tmp_path, **SMALL)
    line = [*COMMAND, "run", "run.toml", *LOOPBACK, "--state", "a"]
    child, terminal = pty.fork()
    if not child:
        os.chdir(tmp_path)
        os.execve(line[0], line, environment())
    said, is_pressed, status = b"", False, -1
    try:
        # Read as it comes: at its end a terminal gives an error, or nothing.
        with suppress(OSError):
            while part := os.read(terminal, 4096):
                said += part
                if b"held-out loss" in said and not is_pressed:
                    assert b"Enter starts at once" in said
                    assert b"round 1 of 6" not in said
                    wait(1.0)
                    os.write(terminal, b"\r")
                    is_pressed = True
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(terminal)
    assert status == 0, said.decode()
    assert b"starts without waiting for 1 peer" in said
    assert b"round 6 of 6 sealed: 1 of 1 listed" in said


def test_events_and_status_are_json(tmp_path: Path) -> None:
    write_run_file(tmp_path, **SMALL)
    done = command(tmp_path, "run", "run.toml", "--alone", "--json", *LOOPBACK, "--state", "a")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds.count("sealed") == 6
    assert kinds.count("finished") == 1
    (invite,) = [event for event in events if event["event"] == "invite"]
    assert LINK.fullmatch(invite["link"])
    assert invite["run"] == manifest_of(tmp_path / "a").digest.hex()
    assert "run finished" in done.stderr


def test_nodes_that_were_killed_find_each_other_again(tmp_path: Path) -> None:
    write_run_file(tmp_path, **LONG)
    wait_for_joiner(tmp_path, "a")
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        link = a.link()
        with node(tmp_path, "b", "join", link, *LOOPBACK) as b:
            b.wait_for(BOTH, 2)
    port = (tmp_path / "a" / "port").read_text()
    # The joiner is first, alone, and waits; the founder knows its peer from the disk.
    with node(tmp_path, "b", "join", link, *LOOPBACK) as b:
        b.wait_for("goes on from round")
        with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
            a.wait_for(BOTH, 2)
            assert (tmp_path / "a" / "port").read_text() == port
            assert link == a.link()
            assert "resumed" in a.said()
        b.wait_for("linked now")
        assert b.process.poll() is None


def test_changed_run_file_is_refused_and_the_running_one_untouched(tmp_path: Path) -> None:
    write_run_file(tmp_path, **SMALL)
    assert (
        command(tmp_path, "run", "run.toml", "--alone", *LOOPBACK, "--state", "a").returncode == 0
    )
    text = (tmp_path / "run.toml").read_text()
    (tmp_path / "run.toml").write_text(text.replace("batch = 4", "batch = 5"))
    done = command(tmp_path, "run", "run.toml", *LOOPBACK, "--state", "a")
    assert done.returncode == 2
    assert "[inner] batch was 4 and is 5" in done.stderr
    assert "--new" in done.stderr


def test_what_cannot_work_ends_with_its_status_and_what_to_do(tmp_path: Path) -> None:
    write_run_file(tmp_path, **LONG)
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        link = a.link()
        port = int((tmp_path / "a" / "port").read_text())
        peer = read_peer(tmp_path, link)
        # A second node on the identity, and on the port.
        done = command(tmp_path, "run", "run.toml", "--state", "a")
        assert (done.returncode, "--state" in done.stderr) == (2, True), done.stderr
        listen = ("--listen", f"/ip4/127.0.0.1/tcp/{port}")
        done = command(tmp_path, "join", link, "--state", "c", *listen)
        assert (done.returncode, f"port {port}" in done.stderr) == (2, True), done.stderr
        assert "--listen" in done.stderr
        # A node that trains another run, and asks this one for company.
        write_run_file(tmp_path, "other.toml", **(LONG | {"rounds": "7"}))
        there = f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"
        other = ("run", "other.toml", "--bootstrap", there, *LOOPBACK)
        done = command(tmp_path, *other, "--state", "d")
        assert done.returncode == 4, done.stderr
        assert "manifest differs at founder" in done.stderr
    done = command(tmp_path, "join", link[:-5], "--state", "e")
    assert (done.returncode, "barnraise://join/" in done.stderr) == (2, True)
    for line in done.stderr.splitlines():
        assert "Traceback" not in line


@pytest.mark.parametrize("is_link", [True, False], ids=["link", "address"])
def test_joiner_waits_for_a_founder_that_is_away(tmp_path: Path, is_link: bool) -> None:
    write_run_file(tmp_path, **LONG)
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        link = a.link()
    port = int((tmp_path / "a" / "port").read_text())
    there = f"/ip4/127.0.0.1/tcp/{port}/p2p/{read_peer(tmp_path, link)}"
    with node(tmp_path, "b", "join", link if is_link else there, *LOOPBACK) as b:
        b.wait_for("tries again in [0-9]+ s; Ctrl.C ends")
        assert there in b.said()
        with node(tmp_path, "a", "run", "run.toml", *LOOPBACK):
            b.wait_for("joined now")
            b.wait_for("linked now")


def test_joiner_that_waits_ends_with_ctrl_c(tmp_path: Path) -> None:
    gone = Ed25519Signer(b"g" * 32).peer_id
    (address,) = full_addresses(gone, ["/ip4/127.0.0.1/tcp/1"])
    with node(tmp_path, "b", "join", address, *LOOPBACK) as b:
        b.wait_for("tries again in", 2)
        assert b.said().count("no peer answered") == 1  # And not with every try.
        b.interrupt()
        assert b.process.returncode == 130
        assert "Traceback" not in b.said()


def read_peer(folder: Path, link: str) -> str:
    from node.peers.invite import parse_invite
    from protocol.identity import peer_id_text

    return peer_id_text(parse_invite(link).peers[0].peer)


def leaves_in_time(one: NodeCommand, when: str, number: int = signal.SIGINT) -> None:
    spent_s = one.interrupt(number)
    sys.stdout.write(f"left in {spent_s:.2f} s {when}\n")
    assert one.process.returncode == 128 + number
    assert "Traceback" not in one.said()
    assert spent_s < LEAVE_S_MAX * BUSY_FACTOR


@pytest.mark.parametrize("after_s", [0.3, 0.7, 1.2, 2.0])
def test_interrupt_while_starting_ends_without_a_trace(tmp_path: Path, after_s: float) -> None:
    write_run_file(tmp_path, **LONG)
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        wait(after_s)
        leaves_in_time(a, f"{after_s} s after the start")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_while_training_is_a_clean_leave(tmp_path: Path, number: int) -> None:
    write_run_file(tmp_path, **LONG)
    wait_for_joiner(tmp_path, "a")
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        with node(tmp_path, "b", "join", a.link(), *LOOPBACK) as b:
            b.wait_for(BOTH, 2)
            leaves_in_time(b, "while two train", number)
            assert "left; the same command goes on" in b.said()
            a.wait_for(r"gone, 0 linked now")
        leaves_in_time(a, "while one trains", number)


def test_interrupt_while_waiting_for_peers_is_a_clean_leave(tmp_path: Path) -> None:
    write_run_file(tmp_path, **LONG)
    wait_for_joiner(tmp_path, "a")
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        link = a.link()
        with node(tmp_path, "b", "join", link, *LOOPBACK) as b:
            b.wait_for(BOTH, 1)
    with node(tmp_path, "b", "join", link, *LOOPBACK) as b:
        b.wait_for("goes on from round")
        leaves_in_time(b, "while waiting for the founder")


def test_interrupt_while_a_link_is_tried_ends_without_a_trace(tmp_path: Path) -> None:
    write_run_file(tmp_path, **LONG)
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        link = a.link()
        # A frozen peer takes the connection and says nothing.
        a.send(signal.SIGSTOP)
        with node(tmp_path, "b", "join", link, *LOOPBACK) as b:
            wait(3.0)
            leaves_in_time(b, "while a manifest is asked for")


def test_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    write_run_file(tmp_path, **LONG)
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        a.wait_for("round +2 of")
        a.send(signal.SIGINT)
        # Less than what a goodbye takes.
        wait(0.05)
        a.send(signal.SIGINT)
        assert a.exit_status() == 130
        assert "left;" not in a.said()
        assert "Traceback" not in a.said()
        wait_until_gone(a.state, 0.0)
