"""Mirrors that are honest, and mirrors that stall, lie, send short, or lead where nobody may go."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpcore
import pytest
import trio
import trio.testing

from node.plane import text_mirrors
from node.plane.text_mirrors import (
    GuardedBackend,
    MirrorError,
    TextMirrors,
    check_mirrors,
    is_local_name,
    is_public,
)
from protocol.errors import ConfigError
from protocol.serving_text.text_shape import DigestTree, TextShape, block_digest

SIZE, COUNT, TOKEN_BLOCKS = 4096, 9, 7
BLOCKS = [bytes([n]) * SIZE for n in range(COUNT)]
DIGESTS = b"".join(map(block_digest, BLOCKS))
SHAPE = TextShape(DigestTree(DIGESTS).root, COUNT, SIZE)
FILES = {
    "/blocks.bin": DIGESTS,
    "/tokens.bin": b"".join(BLOCKS[:TOKEN_BLOCKS]),
    "/documents.bin": b"".join(BLOCKS[TOKEN_BLOCKS:]),
}

Answer = Callable[["Server", trio.SocketStream, str, int, int], Awaitable[None]]


@dataclass
class Server:
    """A web server of this test; `answer` decides what it does with a request."""

    answer: Answer
    port: int = 0
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    target: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    async def serve(self, stream: Any) -> None:
        try:
            while True:
                head = b""
                while b"\r\n\r\n" not in head:
                    data = await stream.receive_some()
                    if not data:
                        return
                    head += data
                lines = head.decode().split("\r\n")
                path = lines[0].split(" ")[1]
                if "://" in path:  # As a proxy is asked.
                    path = "/" + path.split("/", 3)[3]
                fields = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                first, last = map(int, fields["range"].removeprefix("bytes=").split("-"))
                self.asked.append((path, first, last + 1))
                await self.answer(self, stream, path, first, last + 1)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return


def head_of(first: int, stop: int, length: int, status: str = "206 Partial") -> bytes:
    return (
        f"HTTP/1.1 {status}\r\nContent-Range: bytes {first}-{stop - 1}/*\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


async def honest(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(head_of(first, stop, stop - first) + FILES[path][first:stop])


async def lies(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(head_of(first, stop, stop - first) + bytes(stop - first))


async def lies_in_blocks(server: Server, stream, path: str, first: int, stop: int) -> None:
    await (honest if path == "/blocks.bin" else lies)(server, stream, path, first, stop)


async def stalls(server: Server, stream, path: str, first: int, stop: int) -> None:
    await trio.sleep_forever()


async def stalls_midway(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(head_of(first, stop, stop - first) + FILES[path][first : first + 10])
    await trio.sleep_forever()


async def drips(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(head_of(first, stop, stop - first))
    for at in range(first, stop):
        await stream.send_all(FILES[path][at : at + 1])
        with trio.move_on_after(2.0):  # Of a clock that jumps.
            await trio.sleep_forever()


async def sends_short(server: Server, stream, path: str, first: int, stop: int) -> None:
    some = min(stop - first, 7)
    await stream.send_all(head_of(first, stop, some) + FILES[path][first : first + some])


async def breaks_off(server: Server, stream, path: str, first: int, stop: int) -> None:
    half = first + (stop - first + 1) // 2
    end = stop if stop - first < SIZE // 2 else half
    await stream.send_all(head_of(first, stop, stop - first) + FILES[path][first:end])
    await stream.aclose()


async def sends_long(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(
        head_of(first, stop, stop - first + 9) + FILES[path][first:stop] + b"9" * 9
    )


async def is_chunked(server: Server, stream, path: str, first: int, stop: int) -> None:
    head = head_of(first, stop, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    while True:
        await stream.send_all(head + b"5\r\n00000\r\n")
        head = b""


async def sends_all(server: Server, stream, path: str, first: int, stop: int) -> None:
    whole = FILES[path]
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(whole) + whole)


async def sends_other_range(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(head_of(0, stop - first, stop - first) + FILES[path][: stop - first])


async def is_no_http(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(b"\x00garbage\r\n\r\n" * 20)


async def has_nothing(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


async def has_endless_headers(server: Server, stream, path: str, first: int, stop: int) -> None:
    await stream.send_all(b"HTTP/1.1 206 OK\r\n")
    while True:
        await stream.send_all(b"X-More: " + b"x" * 8000 + b"\r\n")


async def is_zipped(server: Server, stream, path: str, first: int, stop: int) -> None:
    head = head_of(first, stop, stop - first).replace(
        b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"
    )
    await stream.send_all(head + FILES[path][first:stop])


async def leads_on(server: Server, stream, path: str, first: int, stop: int) -> None:
    target = (server.target or server.url).rstrip("/") + path
    await stream.send_all(
        b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % target.encode()
    )


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[list[Server]]:
    servers = [Server(answer) for answer in answers]
    async with trio.open_nursery() as nursery:
        for server in servers:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            server.port = listener.socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield servers
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def mirrors_of(*urls: str) -> AsyncIterator[TextMirrors]:
    mirrors = TextMirrors(urls, SHAPE, TOKEN_BLOCKS)
    try:
        yield mirrors
    finally:
        with trio.CancelScope(shield=True):
            await mirrors.aclose()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


async def test_every_block_comes_with_its_proof_in_ranges():
    async with serving(honest) as (server,), mirrors_of(server.url) as mirrors:
        heard = []
        for number, block in enumerate(BLOCKS):
            payload, proof = await mirrors.fetch(number, lambda: heard.append(1))
            assert payload == block
            SHAPE.check(number, payload, proof)
        assert len(heard) >= COUNT
        assert server.asked[0] == ("/blocks.bin", 0, 32 * COUNT)
        assert server.asked[1] == ("/tokens.bin", 0, SIZE)
        assert server.asked[-1] == ("/documents.bin", SIZE, 2 * SIZE)
        assert len(server.asked) == COUNT + 1


@pytest.mark.parametrize(
    "answer",
    [
        *(lies, lies_in_blocks, sends_short, sends_long, sends_all, sends_other_range, is_chunked),
        *(is_no_http, has_nothing, has_endless_headers, is_zipped, leads_on),
    ],
    ids=lambda answer: answer.__name__,
)
async def test_mirror_that_does_wrong_costs_a_retry_elsewhere_and_never_a_wrong_block(answer):
    async with serving(answer, honest) as (bad, good), mirrors_of(bad.url, good.url) as mirrors:
        for number in (3, 8):
            payload, proof = await mirrors.fetch(number)
            SHAPE.check(number, payload, proof)
        asked_bad = len(bad.asked)
        assert asked_bad
        assert len(good.asked) >= 2
        # It rests meanwhile.
        await mirrors.fetch(4)
        assert len(bad.asked) == asked_bad


@pytest.mark.parametrize("answer", [stalls, stalls_midway, drips], ids=lambda one: one.__name__)
async def test_mirror_that_stalls_is_left_in_time(answer, autojump_clock, monkeypatch):
    monkeypatch.setattr(httpcore.TrioBackend, "connect_tcp", _through_memory)
    server = Server(answer)
    _MEMORY.update({1: server, 2: (good := Server(honest))})
    async with trio.open_nursery() as nursery:
        _MEMORY["nursery"] = nursery
        async with mirrors_of("http://127.0.0.1:1/", "http://127.0.0.1:2/") as mirrors:
            began_s = trio.current_time()
            payload, _ = await mirrors.fetch(5)
            assert payload == BLOCKS[5]
            assert trio.current_time() - began_s < 10.0
            assert (bool(server.asked), bool(good.asked)) == (True, True)
        nursery.cancel_scope.cancel()


_MEMORY: dict[Any, Any] = {}


class MemoryLine(httpcore.AsyncNetworkStream):
    """A connection in memory, so that time jumps."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        try:
            with trio.fail_after(timeout or 60.0):
                return bytes(await self._stream.receive_some(max_bytes))
        except trio.TooSlowError as error:
            raise httpcore.ReadTimeout from error

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.send_all(buffer)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return None


async def _through_memory(self, host, port, **_):
    near, far = trio.testing.memory_stream_pair()
    _MEMORY["nursery"].start_soon(_MEMORY[port].serve, far)
    return MemoryLine(near)


async def test_what_broke_off_is_asked_for_from_there_on():
    async with serving(breaks_off) as (server,), mirrors_of(server.url) as mirrors:
        payload, _ = await mirrors.fetch(2)
        assert payload == BLOCKS[2]
        starts = [first for path, first, _ in server.asked if path == "/tokens.bin"]
        assert starts == [2 * SIZE, 2 * SIZE + SIZE // 2, 2 * SIZE + 3 * SIZE // 4]


async def test_no_mirror_that_gives_is_told_with_all_reasons():
    async with serving(has_nothing, lies) as (one, other), mirrors_of(one.url, other.url) as both:
        with pytest.raises(MirrorError) as caught:
            await both.fetch(1)
        assert f"{one.url}: status 404" in str(caught.value)
        assert f"{other.url}: its blocks.bin" in str(caught.value)
        with pytest.raises(MirrorError, match="rests"):
            await both.fetch(1)


async def test_mirror_leads_to_another_host_and_port():
    async with serving(leads_on, honest) as (first, second):
        first.target = second.url
        async with mirrors_of(first.url) as mirrors:
            payload, _ = await mirrors.fetch(6)
        assert payload == BLOCKS[6]


# Where a mirror may lead --------------------------------------------------------------------------


@pytest.fixture(name="hosts")
def fixture_hosts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names of this test, and what they lead to; a public address leads to this machine's."""
    hosts: dict[str, str] = {}
    original, connect = trio.socket.getaddrinfo, httpcore.TrioBackend.connect_tcp

    async def resolve(host, port, **given):
        return await original(hosts.get(host, host), port, **given)

    async def reach(self, host, port, **given):
        return await connect(self, "127.0.0.1" if host == "93.184.216.34" else host, port, **given)

    monkeypatch.setattr(trio.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(httpcore.TrioBackend, "connect_tcp", reach)
    return hosts


@pytest.mark.parametrize(
    "target", ["http://127.0.0.1:{}/", "http://[::ffff:127.0.0.1]:{}/", "http://inside.example:{}/"]
)
async def test_public_mirror_may_not_lead_into_a_private_network(hosts, target):
    hosts |= {"public.example": "93.184.216.34", "inside.example": "127.0.0.1"}
    async with serving(leads_on, honest) as (public, inside):
        public.target = target.format(inside.port)
        async with mirrors_of(f"http://public.example:{public.port}/") as mirrors:
            with pytest.raises(MirrorError, match="private network"):
                await mirrors.fetch(1)
        assert public.asked
        assert not inside.asked, "not even a request"


async def test_name_that_turns_to_a_private_address_is_refused_when_it_does(hosts):
    hosts["public.example"] = "93.184.216.34"
    async with serving(honest) as (server,):
        async with mirrors_of(f"http://public.example:{server.port}/") as mirrors:
            await mirrors.fetch(1)
        hosts["public.example"] = "127.0.0.1"
        async with mirrors_of(f"http://public.example:{server.port}/") as mirrors:
            with pytest.raises(MirrorError, match="private network"):
                await mirrors.fetch(1)


async def test_link_local_addresses_are_refused_to_all():
    backend = GuardedBackend(may_be_private=True)
    for host in ("169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1"):
        with pytest.raises(MirrorError, match="private network"):
            await backend.connect_tcp(host, 80)


async def test_https_may_not_lead_to_http(hosts, monkeypatch):
    made = TextMirrors(["https://public.example/"], SHAPE, TOKEN_BLOCKS)
    urls = iter(["http://public.example/blocks.bin"])

    class Pool:
        def stream(self, *_, **__):
            return Redirect()

        async def aclose(self):
            return

    class Redirect:
        async def __aenter__(self):
            return httpcore.Response(302, headers=[(b"Location", next(urls).encode())])

        async def __aexit__(self, *_):
            return

    monkeypatch.setattr(TextMirrors, "_pool", lambda *_, **__: Pool())
    with pytest.raises(MirrorError, match="from https to http"):
        await made.fetch(1)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *(("93.184.216.34", True), ("2606:2800:220:1::1", True), ("10.0.0.1", False)),
        *(("192.168.1.1", False), ("172.16.0.9", False), ("127.0.0.1", False), ("::1", False)),
        *(("169.254.169.254", False), ("100.64.0.1", False), ("0.0.0.0", False)),
        *(("224.0.0.1", False), ("fe80::1%eth0", False), ("fd00::1", False), ("ff02::1", False)),
        *(("::ffff:10.0.0.1", False), ("::ffff:93.184.216.34", True)),
        *(("64:ff9b::a00:1", False), ("64:ff9b::5db8:d822", True)),
        *(("2002:a00:1::1", False), ("2001:0:1::1", False)),
    ],
)
def test_public_addresses_are_told_from_others(address, expected):
    assert is_public(address) is expected
    assert is_local_name(address.partition("%")[0]) is not expected


def test_names_that_nobody_can_register_are_local():
    for host in ("localhost", "nas", "nas.local", "box.lan", "a.b.internal", "x.home.arpa", "NAS."):
        assert is_local_name(host)
    for host in ("example.org", "local.example.org", "internal.com"):
        assert not is_local_name(host)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://a.org/", "file:///etc/passwd", "http://", "https:///x", "http://a.org:99999/"),
        *("http://user:word@a.org/", "http://a.org/#x", "http://a b.org/", "http://ä.org/"),
        *("http://a.org:0/", "http://[::1/", "http://" + "a" * 600, "http://a.org/\r\nX: y", ""),
    ],
)
def test_address_that_cannot_be_a_mirror_is_refused(url):
    with pytest.raises(ConfigError, match="no mirror"):
        check_mirrors([url])


def test_mirrors_are_few():
    check_mirrors(["https://a.org/x"] * 8)
    with pytest.raises(ConfigError, match="9 mirrors"):
        check_mirrors(["https://a.org"] * 9)


# Proxies ------------------------------------------------------------------------------------------


async def test_proxy_of_the_environment_is_used_and_no_proxy_too(monkeypatch):
    async with serving(honest, honest) as (proxy, direct):
        monkeypatch.setenv("http_proxy", proxy.url)
        async with mirrors_of("http://public.example/") as mirrors:
            payload, _ = await mirrors.fetch(1)
        assert payload == BLOCKS[1]
        assert proxy.asked
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        proxy.asked.clear()
        async with mirrors_of(direct.url) as mirrors:
            await mirrors.fetch(1)
        assert direct.asked
        assert not proxy.asked


async def test_proxy_is_asked_for_nothing_private_that_the_manifest_does_not_name(monkeypatch):
    async with serving(leads_on) as (proxy,):
        monkeypatch.setenv("http_proxy", proxy.url)
        proxy.target = "http://10.0.0.7/"
        async with mirrors_of("http://public.example/") as mirrors:
            with pytest.raises(MirrorError, match="private network"):
                await mirrors.fetch(1)
        assert len(proxy.asked) == 1


async def test_proxy_that_is_none_is_told(monkeypatch):
    monkeypatch.setenv("http_proxy", "gopher://x")
    async with mirrors_of("http://public.example/") as mirrors:
        with pytest.raises(MirrorError, match="proxy"):
            await mirrors.fetch(1)


async def test_mirror_of_which_nobody_waits_any_more_rests(monkeypatch, autojump_clock):
    assert text_mirrors.STALL_S < 4.0
    monkeypatch.setattr(httpcore.TrioBackend, "connect_tcp", _through_memory)
    slow, good = Server(stalls), Server(honest)
    _MEMORY.update({1: slow, 2: good})
    async with trio.open_nursery() as nursery:
        _MEMORY["nursery"] = nursery
        async with mirrors_of("http://127.0.0.1:1/", "http://127.0.0.1:2/") as mirrors:
            with trio.move_on_after(1.0):
                await mirrors.fetch(1)
            began_s = trio.current_time()
            await mirrors.fetch(1)
            assert trio.current_time() - began_s < 1.0
        nursery.cancel_scope.cancel()
