"""Mirrors of a run's text: blocks by HTTP, from whoever keeps a copy of the token store's files.

A mirror is believed in nothing: digests are checked against the root, blocks against their digests.
One that stalls, lies, sends too little or too much, or leads elsewhere costs a retry at another.

The manifest names the mirrors, and so a stranger says whom this node connects to. Names of the
public network must lead to public addresses, at first and after every redirect; what is checked is
the address that is connected to, not one that was looked up before. Only a mirror that the manifest
itself names by a private address or a name of the local network may lead there.
"""

import ipaddress
import logging
import os
import ssl
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

import httpcore
import trio

from node.text.shown import shown
from protocol import limits
from protocol.errors import ConfigError, NetworkError
from protocol.serving_text.text_shape import DigestTree, TextShape, block_digest
from protocol.wire import DIGEST_BYTES

logger = logging.getLogger(__name__)

MIRRORS_MAX = 8
URL_BYTES_MAX = 512
REDIRECTS_MAX = 4
RESUMES_MAX = 3
"""So often what broke off is asked for again at the same mirror, from where it broke off."""

STALL_S = 3.0
"""Less than the patience of whoever waits for the block, so that another mirror has its turn."""

BYTES_PER_S_MIN = 16 * limits.KIB

REST_S, REST_S_MAX, LIED_REST_S = 2.0, 120.0, 600.0

LOCAL_NAMES = (".localhost", ".local", ".lan", ".internal", ".home.arpa")
"""Names that nobody can register for the public network, as names without a dot."""

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class MirrorError(NetworkError):
    """A mirror did not give what it was asked for; `is_lie` if it gave something else."""

    def __init__(self, reason: str, *, is_lie: bool = False) -> None:
        super().__init__(reason)
        self.is_lie = is_lie


def check_mirrors(urls: Sequence[str]) -> None:
    """Raise ConfigError unless each can be the address of a mirror: a folder, http or https."""
    if len(urls) > MIRRORS_MAX:
        raise ConfigError(f"{len(urls)} mirrors, there may be {MIRRORS_MAX}")
    for url in urls:
        try:
            _split(url)
        except MirrorError as error:
            raise ConfigError(f"{shown(repr(url), 80)} is no mirror: {error}") from None


def _split(url: str) -> SplitResult:
    """The parts of an address that may be connected to. Raises MirrorError."""
    if len(url) > URL_BYTES_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise MirrorError(f"it is longer than {URL_BYTES_MAX} characters, or not of plain ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise MirrorError(str(error)) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise MirrorError("it does not begin with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise MirrorError("it names a user, a password or a fragment")
    return parts


# Where a mirror may lead --------------------------------------------------------------------------


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public network; also what it carries inside."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if found in _NAT64:
            inner = ipaddress.IPv4Address(found.packed[-4:])
        if inner is not None:
            found = inner
        elif found.teredo is not None:
            return False
    return found.is_global and not found.is_multicast


def is_local_name(host: str) -> bool:
    """Whether a host of an address is said to be in a private network: by a private address, or by
    a name that nobody can register. What a public name leads to is not asked: that may change."""
    host = host.rstrip(".").lower()
    try:
        return not is_public(host)
    except ValueError:
        return "." not in host or host.endswith(LOCAL_NAMES)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, never to names."""

    def __init__(self, *, may_be_private: bool) -> None:
        self._inner = httpcore.TrioBackend()
        self._may_be_private = may_be_private

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 -- httpcore passes it by this name
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises ConnectError where every address of the host is refused or does not answer."""
        del local_address
        try:
            found = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} is not known: {error}") from error
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        allowed = [address for address in addresses if self._allows(address)]
        if not allowed:
            raise MirrorError(f"{host} leads into a private network", is_lie=True)
        failure: Exception | None = None
        for address in allowed:
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout=timeout, socket_options=socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        assert failure is not None
        raise failure

    async def sleep(self, seconds: float) -> None:
        """As of any backend."""
        await trio.sleep(seconds)

    def _allows(self, address: str) -> bool:
        plain = ipaddress.ip_address(address.partition("%")[0])
        if plain.is_link_local or plain.is_multicast or plain.is_unspecified:
            return False  # Where clouds tell machines their secrets, among others.
        return self._may_be_private or is_public(address)


def _proxy_of(parts: SplitResult) -> str | None:
    """The proxy that this machine's owner wants for an address; as curl reads the environment."""
    host = parts.hostname or ""
    if urllib.request.proxy_bypass(host):
        return None
    proxies = urllib.request.getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def _ssl_context() -> ssl.SSLContext:
    context = httpcore.default_ssl_context()
    authorities = os.environ.get("SSL_CERT_FILE")
    if authorities:  # Of a proxy that looks inside, as a rule.
        with suppress(OSError):
            context.load_verify_locations(authorities)
    return context


# One mirror ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Mirror:
    """One of the manifest's mirrors; who lied rests long."""

    url: str
    rests_until_s: float = float("-inf")
    rest_s: float = REST_S
    is_local: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_local = is_local_name(_split(self.url).hostname or "")

    def rest(self, now_s: float, *, is_lie: bool) -> None:
        self.rests_until_s = now_s + (LIED_REST_S if is_lie else self.rest_s)
        self.rest_s = min(2.0 * self.rest_s, REST_S_MAX)


@dataclass(frozen=True, slots=True)
class _Piece:
    """The bytes [first, stop) of a file of the store."""

    name: str
    first: int
    stop: int


class TextMirrors:
    """All mirrors of one text. `token_blocks` of its blocks lie in tokens.bin, the others in
    documents.bin. One owner; closed by `aclose`."""

    def __init__(self, urls: Sequence[str], shape: TextShape, token_blocks: int) -> None:
        """Raises ConfigError for addresses that cannot be mirrors."""
        check_mirrors(urls)
        self._shape, self._token_blocks = shape, token_blocks
        self._mirrors = [_Mirror(url if url.endswith("/") else f"{url}/") for url in urls]
        self._pools: dict[tuple[bool, str | None], httpcore.AsyncConnectionPool] = {}
        self._tree: DigestTree | None = None
        self._digests = b""
        self._listing = trio.Lock()

    async def aclose(self) -> None:
        """Close all connections."""
        for pool in self._pools.values():
            await pool.aclose()

    async def fetch(
        self, number: int, on_bytes: Callable[[], object] = lambda: None
    ) -> tuple[bytes, tuple[bytes, ...]]:
        """A block and its proof, which lead to the root. `on_bytes` is called as they come.

        Raises MirrorError if none of the mirrors gave it.
        """
        async with self._listing:
            if self._tree is None:
                await self._fetch_digests(on_bytes)
        assert self._tree is not None
        size, behind = self._shape.block_bytes, number - self._token_blocks
        name, place = ("tokens.bin", number) if behind < 0 else ("documents.bin", behind)
        expected = self._digests[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)]

        def check(payload: bytes) -> None:
            if block_digest(payload) != expected:
                raise MirrorError(f"block {number} is not of this text", is_lie=True)

        payload = await self._from_any(
            _Piece(name, size * place, size * (place + 1)), check, on_bytes
        )
        return payload, self._tree.proof(number)

    async def _fetch_digests(self, on_bytes: Callable[[], object]) -> None:
        trees: list[DigestTree] = []

        def check(digests: bytes) -> None:
            tree = DigestTree(digests)
            if tree.root != self._shape.root:
                raise MirrorError("its blocks.bin does not lead to the root", is_lie=True)
            trees.append(tree)

        piece = _Piece("blocks.bin", 0, DIGEST_BYTES * self._shape.num_blocks)
        self._digests = await self._from_any(piece, check, on_bytes)
        (self._tree,) = trees[-1:]

    async def _from_any(
        self, piece: _Piece, check: Callable[[bytes], None], on_bytes: Callable[[], object]
    ) -> bytes:
        """The piece from the first mirror that gives it; those that rest are asked last of all."""
        reasons = []
        for mirror in sorted(self._mirrors, key=lambda one: one.rests_until_s):
            now_s = trio.current_time()
            if now_s < mirror.rests_until_s:
                reasons.append(f"{mirror.url} rests")
                continue
            try:
                found = await self._whole(mirror, piece, on_bytes)
                await trio.to_thread.run_sync(check, found)
            except MirrorError as error:
                mirror.rest(trio.current_time(), is_lie=error.is_lie)
                reasons.append(f"{mirror.url}: {error}")
                logger.info("mirror failed url=%s reason=%s", mirror.url, shown(str(error), 200))
            except trio.Cancelled:
                mirror.rest(trio.current_time(), is_lie=False)  # Nobody waits for it any more.
                raise
            else:
                mirror.rest_s = REST_S
                return found
        raise MirrorError("no mirror gave it:\n" + "\n".join(reasons))

    async def _whole(self, mirror: _Mirror, piece: _Piece, on_bytes: Callable[[], object]) -> bytes:
        """A piece from one mirror; where it breaks off behind some bytes, the rest of it again."""
        got = bytearray()
        wanted = piece.stop - piece.first
        with trio.move_on_after(2 * STALL_S + wanted / BYTES_PER_S_MIN):
            for _ in range(RESUMES_MAX + 1):
                before = len(got)
                rest = _Piece(piece.name, piece.first + before, piece.stop)
                try:
                    await self._append(mirror, rest, got, on_bytes)
                except MirrorError as error:
                    if error.is_lie or len(got) == before:
                        raise
                if len(got) == wanted:
                    return bytes(got)
            raise MirrorError(f"it broke off {RESUMES_MAX + 1} times")
        raise MirrorError(f"{len(got)} of {wanted} bytes came in time")

    async def _append(
        self, mirror: _Mirror, piece: _Piece, got: bytearray, on_bytes: Callable[[], object]
    ) -> None:
        """What the mirror sends of a piece. Raises MirrorError where it ends before all is here."""
        try:
            await self._follow(mirror, piece, got, on_bytes)
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.ProxyError,
            httpcore.TimeoutException,
            httpcore.UnsupportedProtocol,
            OSError,
        ) as error:
            raise MirrorError(f"{type(error).__name__} {error}".strip()) from error

    async def _follow(
        self, mirror: _Mirror, piece: _Piece, got: bytearray, on_bytes: Callable[[], object]
    ) -> None:
        url = urljoin(mirror.url, piece.name)
        for _ in range(REDIRECTS_MAX + 1):
            parts = _split(url)
            host = parts.hostname or ""
            if is_local_name(host) and not mirror.is_local:
                raise MirrorError(f"{shown(host, 80)} is in a private network", is_lie=True)
            if parts.scheme == "http" and mirror.url.startswith("https:"):
                raise MirrorError("it leads from https to http", is_lie=True)
            pool = self._pool(parts, may_be_private=mirror.is_local)
            headers = [
                ("Host", parts.netloc),
                ("User-Agent", "barnraise"),
                ("Accept-Encoding", "identity"),
                ("Range", f"bytes={piece.first}-{piece.stop - 1}"),
            ]
            timeout = dict.fromkeys(("connect", "read", "write", "pool"), STALL_S)
            asking = pool.stream("GET", url, headers=headers, extensions={"timeout": timeout})
            async with asking as response:
                on_bytes()
                if response.status not in (301, 302, 303, 307, 308):
                    await _take(response, piece, got, on_bytes)
                    return
                url = urljoin(url, _header(response, b"location"))
        raise MirrorError(f"it leads on and on, {REDIRECTS_MAX} times")

    def _pool(self, parts: SplitResult, *, may_be_private: bool) -> httpcore.AsyncConnectionPool:
        """Connections to where this address leads: those of mirrors of the local network, and those
        of each proxy, are kept apart."""
        proxy = _proxy_of(parts)
        key = (may_be_private, proxy)
        if key not in self._pools:
            given: dict[str, Any] = {"ssl_context": _ssl_context(), "max_connections": 8}
            if proxy is None:
                backend = GuardedBackend(may_be_private=may_be_private)
                self._pools[key] = httpcore.AsyncConnectionPool(network_backend=backend, **given)
            else:
                # The machine's owner named it, and it looks names up: it may be anywhere.
                self._pools[key] = httpcore.AsyncConnectionPool(proxy=_proxy(proxy), **given)
        return self._pools[key]


def _proxy(url: str) -> httpcore.Proxy:
    """Raises MirrorError for an address that names no proxy."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https", "socks5", "socks5h") or not parts.hostname:
        raise MirrorError(f"the environment's proxy {shown(url, 80)} is none that can be used")
    auth = None
    if parts.username is not None:
        auth = (parts.username, parts.password or "")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = parts.port or (1080 if parts.scheme.startswith("socks") else 80)
    return httpcore.Proxy(f"{parts.scheme}://{host}:{port}", auth=auth)


def _header(response: httpcore.Response, name: bytes) -> str:
    """The value of a header that there is once. Raises MirrorError."""
    found = [value for key, value in response.headers if key.lower() == name]
    if len(found) != 1:
        raise MirrorError(f"{len(found)} headers {name.decode()}", is_lie=True)
    return found[0].decode("latin-1")


async def _take(
    response: httpcore.Response, piece: _Piece, got: bytearray, on_bytes: Callable[[], object]
) -> None:
    """The body of an answer that is the piece, or the beginning of it."""
    if response.status != 206:
        # Of a server without ranges a whole file would come, of any size.
        raise MirrorError(f"status {response.status} in place of 206")
    span = _header(response, b"content-range").partition("/")[0]
    if span != f"bytes {piece.first}-{piece.stop - 1}":
        raise MirrorError(f"range {shown(span, 80)} in place of the one asked for", is_lie=True)
    if any(key.lower() == b"content-encoding" for key, _ in response.headers):
        raise MirrorError("an encoding that nobody asked for", is_lie=True)
    wanted = piece.stop - piece.first
    length = _header(response, b"content-length")
    if not length.isdecimal() or len(length) > 9 or int(length) > wanted:
        raise MirrorError(f"{shown(length, 80)} bytes in place of {wanted}", is_lie=True)
    # To the end, of which the length is known: httpcore's generators are not to be left before.
    async for data in response.aiter_stream():
        got += data
        on_bytes()
    if int(length) < wanted:
        raise MirrorError(f"{length} bytes in place of {wanted}")
