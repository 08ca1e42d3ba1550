"""The status server over real HTTP: whom it answers, whom it refuses, and how it ends."""

import gc
import json
import logging
import os
import socket
import stat
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from node.status.client import FoundApi, ask
from node.status.records import PHASES, TOKEN_FILE, NodeStatus, PeerTable, RoundTable, from_plain
from node.status.server import Bucket, ServerLimits, _Desk, serve_status
from protocol.errors import ConfigError
from tests.node.status_scene import board_at, busy_snapshot
from tests.node.status_web import PATIENCE_S, read_all, serving

pytestmark = pytest.mark.net

ROUTES = ["/v1/status", "/v1/peers", "/v1/rounds", "/metrics"]


async def test_tables_come_whole_and_marked_as_json(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        shot = server.board.current
        assert shot is not None
        status = server.ask("/v1/status")
        assert status.status == 200
        assert status.headers["Content-Type"] == "application/json"
        assert status.headers["X-Content-Type-Options"] == "nosniff"
        assert status.headers["Cache-Control"] == "no-store"
        said = from_plain(NodeStatus, status.plain)
        assert (said.run, said.last_round) == (shot.status.run, shot.status.last_round)
        assert from_plain(PeerTable, server.ask("/v1/peers").plain) == shot.peers
        assert from_plain(RoundTable, server.ask("/v1/rounds").plain) == shot.rounds


async def test_text_of_peers_is_escaped_and_cut(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for route in ROUTES:
            body = server.ask(route).body
            assert b"\x1b" not in body
            assert "\u202e".encode() not in body
            assert b"x" * 500 not in body
        reason = server.ask().plain["faults"][0]["reason"]
        assert reason.startswith("evil\\n\\x1b[2J[red]\\u202exxx")


async def test_answer_is_of_the_newest_snapshot_and_tells_its_age(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert 0.0 <= server.ask().plain["age_s"] < 60.0
        assert server.ask("/v1/peers").plain["peers"][0]["heard_s_ago"] == 10.0
        server.board.current = busy_snapshot(11.0)
        assert server.ask().plain["uptime_s"] == 11.0
        assert server.ask("/v1/peers").plain["peers"][0]["heard_s_ago"] == 11.0


async def test_node_that_only_starts_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        server.board.current = None
        assert server.ask().status == 503


@pytest.mark.quick(10)
@pytest.mark.parametrize("route", [*ROUTES, "/", "/v1/nothing"])
@pytest.mark.parametrize("authorization", [None, "", "Bearer ", "Bearer x", "basic", "Bearer é"])
async def test_nothing_is_told_without_the_token(
    tmp_path: Path, route: str, authorization: str | None
) -> None:
    async with serving(tmp_path) as server:
        answer = server.ask(route, Authorization=authorization)
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert server.api.token.encode() not in answer.body
        assert set(answer.plain) == {"error"}


async def test_part_of_the_token_is_no_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        token = server.api.token
        for wrong in (token[:-1], token + "0", token.upper(), "0" * len(token)):
            assert server.ask(Authorization=f"Bearer {wrong}").status == 401
        assert server.ask(f"/v1/status?token={token}", Authorization=None).status == 401


@pytest.mark.parametrize(
    "host",
    ["evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "", None],
)
async def test_foreign_host_is_refused_even_with_the_token(
    tmp_path: Path, host: str | None
) -> None:
    async with serving(tmp_path) as server:
        named = host.format(port=server.port) if host is not None else None
        assert server.ask(Host=named).status in (400, 403)


async def test_two_hosts_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        hosts = [("Host", f"127.0.0.1:{server.port}"), ("Host", "evil.example")]
        answer = server.send(
            "GET", "/v1/status", [*hosts, ("Authorization", f"Bearer {server.api.token}")]
        )
        assert answer.status in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "LocalHost:{port}"])
async def test_own_names_are_let_in(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path) as server:
        assert server.ask(Host=host.format(port=server.port)).status == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", ""])
async def test_pages_are_refused_even_with_the_token(tmp_path: Path, origin: str) -> None:
    async with serving(tmp_path) as server:
        assert server.ask(Origin=origin).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
async def test_only_get_is_answered(tmp_path: Path, method: str) -> None:
    async with serving(tmp_path) as server:
        answer = server.ask(method=method)
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET"
        assert server.ask(method=method, Authorization=None).status == 401


async def test_body_is_refused_unread(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert server.ask(Content_Length=str(10**12)).status == 413
        assert server.ask(method="POST", Content_Length=str(10**12)).status == 405
        assert server.ask(Transfer_Encoding="chunked").status == 413


async def test_oversized_requests_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert server.ask("/" + "x" * 4096).status == 400
        assert server.ask(X_Long="x" * 4096).status == 400
        many = {f"X-{index}": "x" for index in range(100)}
        assert server.ask(**many).status == 400
        opened = server.connect()
        opened.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000)
        answer = read_all(opened)
        assert answer == b"" or b" 400 " in answer.partition(b"\r\n")[0]


@pytest.mark.parametrize("junk", [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"\r\n" * 5000])
async def test_junk_is_refused_and_the_server_lives(tmp_path: Path, junk: bytes) -> None:
    async with serving(tmp_path) as server:
        opened = server.connect()
        opened.sendall(junk)
        opened.shutdown(socket.SHUT_WR)
        answer = read_all(opened)
        assert answer == b"" or b" 400 " in answer.partition(b"\r\n")[0]
        assert server.ask().status == 200


@pytest.mark.parametrize("split", ["\n\n", "\n", "\n\r\n"])
async def test_no_head_means_one_thing_to_the_door_and_another_behind_it(
    tmp_path: Path, split: str
) -> None:
    async with serving(tmp_path) as server:
        lines = f"Host: 127.0.0.1:{server.port}{split}Origin: http://elsewhere.example\r\n"
        token = f"Authorization: Bearer {server.api.token}\r\n\r\n"
        opened = server.connect()
        opened.sendall(f"GET /v1/status HTTP/1.1\r\n{lines}{token}".encode())
        status = read_all(opened).partition(b"\r\n")[0]
        assert any(code in status for code in (b" 400 ", b" 401 ")), status


async def test_a_connection_carries_one_request(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        head = f"Host: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.api.token}\r\n\r\n"
        opened = server.connect()
        opened.sendall(f"GET /v1/status HTTP/1.1\r\n{head}".encode() * 3)
        assert read_all(opened).count(b"HTTP/1.1 ") == 1


async def test_slow_clients_are_cut_off(tmp_path: Path) -> None:
    limits = ServerLimits(connection_s=0.05)
    async with serving(tmp_path, limits) as server:
        silent, slow = server.connect(), server.connect()
        slow.sendall(b"GET /v1/status HTTP/1.1\r\nHost: ")
        assert read_all(silent) == b""
        assert read_all(slow) == b""


async def test_connections_are_capped_and_come_back(tmp_path: Path) -> None:
    limits = ServerLimits(strangers=2, connection_s=PATIENCE_S, stranger_s=PATIENCE_S)
    async with serving(tmp_path, limits) as server:
        first, second, third = (server.connect() for _ in range(3))
        assert read_all(first) == b""  # The oldest makes room.
        head = f"Host: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.api.token}\r\n\r\n"
        for opened in (second, third):
            opened.sendall(f"GET /v1/peers HTTP/1.1\r\n{head}".encode())
            assert read_all(opened).startswith(b"HTTP/1.1 200")
        assert server.ask().status == 200


async def test_places_of_those_with_the_token_are_counted_too(tmp_path: Path) -> None:
    async with serving(tmp_path, ServerLimits(connections=0)) as server:
        assert server.ask().status == 429


def hold(port: int, stop: threading.Event) -> None:
    """A stranger of this machine: it connects, says half a word, and holds on."""
    while not stop.is_set():
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as opened:
            opened.settimeout(6.0)
            opened.sendall(b"GET /v1/st")
            opened.recv(1)


async def test_strangers_that_hold_connections_lock_nobody_out_and_fill_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """More of them than there are places of either kind, each at it again and again."""
    limits = ServerLimits(strangers=24, connections=4)
    stop = threading.Event()
    async with serving(tmp_path, limits) as server:
        threads = [threading.Thread(target=hold, args=(server.port, stop)) for _ in range(40)]
        for thread in threads:
            thread.start()
        try:
            found = FoundApi(api=server.api, folder=tmp_path)
            for _ in range(20):
                table = await trio.to_thread.run_sync(ask, found, "/v1/peers", PeerTable)
                assert table.peers
        finally:
            stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    gc.collect()  # What the loop has not let go of would be told of here, as an error.
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_no_request_is_read_of_who_has_not_shown_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    real = _Desk.answer

    def counted(desk: _Desk, head: bytes) -> bytes:
        made.append(desk)
        return real(desk, head)

    monkeypatch.setattr(_Desk, "answer", counted)
    async with serving(tmp_path) as server:
        for strange in (None, "Bearer x", server.api.token):
            assert server.ask(Authorization=strange).status == 401
        twice = [("Host", "x"), *[("Authorization", f"Bearer {server.api.token}")] * 2]
        assert server.send("GET", "/v1/status", twice).status == 401
        assert made == []
        assert server.ask().status == 200
        assert len(made) == 1


async def test_strangers_use_up_only_their_own_requests(tmp_path: Path) -> None:
    async with serving(tmp_path, ServerLimits(requests_per_s=2.0)) as server:
        guesses = [server.ask(Authorization="Bearer x") for _ in range(8)]
        assert guesses[0].status == 401
        refused = [answer for answer in guesses if answer.status == 429]
        assert refused
        assert refused[0].headers["Retry-After"] == "1"
        assert server.ask().status == 200
        assert 429 in [server.ask().status for _ in range(8)]


def test_bucket_gives_so_many_a_second() -> None:
    bucket = Bucket(50.0, 0.0)
    assert sum(bucket.take(0.0) for _ in range(100)) == 50
    assert sum(bucket.take(0.5) for _ in range(100)) == 25
    assert sum(bucket.take(1000.0) for _ in range(100)) == 50


async def test_metrics_are_what_prometheus_reads(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = server.ask("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(answer.body.decode()))
        assert all(family.name.startswith("barnraise_") for family in families)
        assert all(family.documentation for family in families)
        samples = {s.name: s for family in families for s in family.samples}
        values = {name: sample.value for name, sample in samples.items()}
        assert values["barnraise_round"] == 5.0
        assert values["barnraise_members"] == 3.0
        assert values["barnraise_sent_bytes_total"] == 10.0
        assert values["barnraise_received_bytes_total"] == 20.0
        assert values["barnraise_faults_total"] == 1.0
        assert values["barnraise_rounds_sealed_total"] == 2.0
        assert values["barnraise_sealed_round_duration_seconds"] == 1.5
        assert values["barnraise_validation_loss_nats_per_byte"] == 2.5
        assert values["barnraise_validation_windows"] == 48.0
        assert values["barnraise_step_seconds"] == 45.0 / 40
        assert values["barnraise_trainer_rounds_seconds_total"] == 50.0
        spent = {
            sample.labels["phase"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "barnraise_phase_seconds_total"
        }
        assert spent == dict.fromkeys(PHASES, 0.0) | {"train": 45.0, "encode": 3.0, "wait": 2.0}
        assert values["barnraise_uptime_seconds"] == 10.0
        assert samples["barnraise_node_info"].labels["title"] == "simulated"
        states = {
            sample.labels["state"]: sample.value
            for family in families
            for sample in family.samples
            if sample.name == "barnraise_state"
        }
        assert states["pushing"] == 1.0
        assert sum(states.values()) == 1.0
        again = server.ask("/metrics").body.decode()
        assert len(list(text_string_to_metric_families(again))) == len(families)


async def test_token_file_is_for_its_owner_and_goes_with_the_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        path = tmp_path / TOKEN_FILE
        note = json.loads(path.read_bytes())
        assert note == {"url": server.api.url, "token": server.api.token, "pid": os.getpid()}
        assert len(bytes.fromhex(server.api.token)) == 32
        if os.name == "posix":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert server.api.token not in repr(server.api)
    assert os.listdir(tmp_path) == []


async def test_token_is_fresh_at_every_start_and_replaces_a_stale_one(tmp_path: Path) -> None:
    (tmp_path / TOKEN_FILE).write_text('{"url": "stale"}')
    tokens = set()
    for _ in range(2):
        async with serving(tmp_path) as server:
            tokens.add(server.api.token)
            assert json.loads((tmp_path / TOKEN_FILE).read_bytes())["token"] == server.api.token
    assert len(tokens) == 2


async def test_token_file_of_another_node_is_left_alone(tmp_path: Path) -> None:
    async with serving(tmp_path):
        (tmp_path / TOKEN_FILE).write_text("of another")
    assert (tmp_path / TOKEN_FILE).read_text() == "of another"


async def test_listens_on_loopback_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        assert server.api.url.startswith("http://127.0.0.1:")
        with pytest.raises(OSError, match=r".*"):
            socket.create_connection(("127.0.0.2", server.port), timeout=1.0)


async def test_server_ends_at_once_whatever_its_clients_do(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        idle, slow = server.connect(), server.connect()
        slow.sendall(b"GET /v1/status HTTP/1.1\r\nHost: ")
        assert server.ask().status == 200
        kept = [idle.dup(), slow.dup()]
        began_s = time.monotonic()
    # Promised are 0.3 s on an idle machine.
    assert time.monotonic() - began_s < 2.0
    for opened in kept:
        with opened:
            assert read_all(opened) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1.0)


async def test_port_in_use_is_told_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with trio.open_nursery() as nursery:
            with pytest.raises(ConfigError, match=f"port {port} is in use: take another"):
                await nursery.start(partial(serve_status, board_at(), tmp_path, port=port))
    assert os.listdir(tmp_path) == []


async def test_port_that_is_asked_for_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with trio.open_nursery() as nursery:
        api = await nursery.start(partial(serve_status, board_at(), tmp_path, port=port))
        assert api.url == f"http://127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


async def test_folder_that_cannot_be_written_reaches_the_caller(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        with pytest.raises(OSError, match="No such file"):
            await nursery.start(serve_status, board_at(), tmp_path / "absent")


async def test_token_never_shows_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(tmp_path) as server:
        server.ask()
        server.ask(Authorization="Bearer x")
        server.ask(X_Long="x" * 4096)
        token = server.api.token
    assert "status served" in caplog.text
    assert token not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
