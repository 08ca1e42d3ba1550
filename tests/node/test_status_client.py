"""Finding the node that runs, and what is told when it is not there or does not answer."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.status.client import FoundApi, ask, ask_plain, find_api
from node.status.records import TOKEN_FILE, Api, NodeStatus, PeerTable
from protocol.errors import ConfigError, NetworkError, StateError
from tests.node.status_web import serving

TOKEN = "ab" * 32


def note(state: Path, run: str, **changes: object) -> Path:
    """A token file as a node that runs has it; of this process, which surely does."""
    folder = state / "runs" / run
    folder.mkdir(parents=True)
    body = {"url": "http://127.0.0.1:1", "token": TOKEN, "pid": os.getpid()} | changes
    (folder / TOKEN_FILE).write_text(json.dumps(body))
    return folder


def ended_pid() -> int:
    """The id of a process that has ended a moment ago."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


@pytest.mark.parametrize("make", [[], ["runs"], ["runs", "runs/aaaaaaaaaaaa"]])
def test_state_without_a_node_says_how_to_start_one(tmp_path: Path, make: list[str]) -> None:
    for name in make:
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigError) as caught:
        find_api(tmp_path, None)
    assert str(caught.value) == (
        f"no node runs in {tmp_path}: start one with barnraise run or barnraise join, "
        "or name its folder with --state"
    )


def test_folder_that_does_not_exist_is_told_the_same(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no node runs in"):
        find_api(tmp_path / "absent", None)


def test_the_one_node_is_found(tmp_path: Path) -> None:
    folder = note(tmp_path, "0123456789ab")
    found = find_api(tmp_path, None)
    assert found.folder == folder
    assert found.api == Api(url="http://127.0.0.1:1", token=TOKEN, pid=os.getpid())


@pytest.mark.parametrize("run", ["01", "0123456789ab", "0123456789AB" + "cd" * 26])
def test_run_is_named_by_the_first_digits_or_all(tmp_path: Path, run: str) -> None:
    wanted = note(tmp_path, "0123456789ab")
    note(tmp_path, "ba9876543210")
    assert find_api(tmp_path, run).folder == wanted


def test_several_nodes_are_named(tmp_path: Path) -> None:
    note(tmp_path, "0123456789ab")
    note(tmp_path, "ba9876543210")
    with pytest.raises(ConfigError, match="name one with --run: 0123456789ab, ba9876543210"):
        find_api(tmp_path, None)


def test_run_that_no_node_works_on_is_told(tmp_path: Path) -> None:
    note(tmp_path, "0123456789ab")
    with pytest.raises(ConfigError, match=r"no node runs in .* for the run ffff: start one"):
        find_api(tmp_path, "ffff")


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no signal 0 to ask whether a process lives"
)
def test_killed_node_is_told_apart_and_does_not_hide_a_live_one(tmp_path: Path) -> None:
    pid = ended_pid()
    note(tmp_path, "0123456789ab", pid=pid)
    with pytest.raises(ConfigError, match=f"process {pid} is gone without a farewell; start one"):
        find_api(tmp_path, None)
    live = note(tmp_path, "ba9876543210")
    assert find_api(tmp_path, None).folder == live


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "http://203.0.113.1:80"},
        {"url": "http://127.0.0.1:80/evil"},
        {"url": "https://127.0.0.1:80"},
        {"url": 5},
        {"token": "a\r\nX: y"},
        {"token": ""},
        {"token": "é" * 64},
        {"pid": "1"},
        {"pid": 0},
        {"pid": -1},
    ],
)
def test_odd_token_file_is_no_node(tmp_path: Path, changes: dict[str, object]) -> None:
    note(tmp_path, "0123456789ab", **changes)
    with pytest.raises(ConfigError, match="no node runs in"):
        find_api(tmp_path, None)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"x" * 100_000])
def test_torn_token_file_is_no_node(tmp_path: Path, data: bytes) -> None:
    folder = note(tmp_path, "0123456789ab")
    (folder / TOKEN_FILE).write_bytes(data)
    with pytest.raises(ConfigError, match="no node runs in"):
        find_api(tmp_path, None)


def test_token_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs" / "0123456789ab" / TOKEN_FILE).mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot read .*api\.token: .*; ask as the user"):
        find_api(tmp_path, None)


@pytest.mark.net
async def test_running_server_is_found_and_asked(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "0123456789ab"
    folder.mkdir(parents=True)
    async with serving(folder) as server:
        found = find_api(tmp_path, "0123")
        shot = server.board.current
        assert shot is not None
        assert ask(found, "/v1/status", NodeStatus).run == shot.status.run
        assert ask(found, "/v1/peers", PeerTable) == shot.peers
        with pytest.raises(StateError, match="404"):
            ask_plain(found, "/v1/nothing")
        server.board.current = None
        with pytest.raises(NetworkError, match=r"cannot answer now \(503.*try again"):
            ask_plain(found, "/v1/status")
    with pytest.raises(ConfigError, match="no node runs in"):
        find_api(tmp_path, None)
    with pytest.raises(ConfigError, match="is gone: nobody listens at"):
        ask_plain(found, "/v1/status")


def found_at(port: int, token: str = TOKEN) -> FoundApi:
    api = Api(url=f"http://127.0.0.1:{port}", token=token, pid=os.getpid())
    return FoundApi(api=api, folder=Path("somewhere"))


@pytest.mark.net
async def test_token_of_another_node_is_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        with pytest.raises(ConfigError, match="is another node"):
            ask_plain(found_at(server.port), "/v1/status")


@pytest.mark.net
def test_node_that_hangs_is_told_after_the_patience(tmp_path: Path) -> None:
    told = r"has not answered for 0\.05 s: it is stopped"
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        pytest.raises(NetworkError, match=told),
    ):
        ask_plain(found_at(mute.getsockname()[1]), "/v1/status", timeout_s=0.05)


@pytest.mark.net
@pytest.mark.parametrize(
    ("answer", "error", "told"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", StateError, "is no node"),
        (b"SSH-2.0-server\r\n", NetworkError, "broke the connection: BadStatusLine"),
        (b"", NetworkError, "broke the connection: RemoteDisconnected"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\n{}", StateError, "answers /v1/status"),
    ],
)
def test_what_is_no_node_is_told(answer: bytes, error: type[Exception], told: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve_once() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(answer)

        thread = threading.Thread(target=serve_once)
        thread.start()
        try:
            with pytest.raises(error, match=told):
                ask_plain(found_at(server.getsockname()[1]), "/v1/status")
        finally:
            thread.join()
