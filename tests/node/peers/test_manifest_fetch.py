"""Fetching a manifest: the digest decides, whatever a peer sends, and every address is named."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Self

import msgpack
import pytest
import trio
import trio.testing

from node.peers.manifest_fetch import (
    FETCH_S,
    MANIFEST_PROTOCOL,
    SERVED_AT_ONCE_MAX,
    STAGGER_S,
    ManifestServer,
    fetch_manifest,
)
from node.state.config import PeerAddress
from protocol import limits
from protocol.errors import RefusedError, UnreachableError, VersionError
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import WIRE_VERSION, SignedManifest
from protocol.transport import Stream
from protocol.wire import encode
from tests.memory_transport import MemoryNetwork, MemoryTransport, stream_pair
from tests.node.edge import signed, toy_manifest

SIGNER = Ed25519Signer(b"j" * 32)
RUN = signed(toy_manifest())
OTHER = signed(toy_manifest(title="an\x1bother"))

Handler = Callable[[Stream], Awaitable[None]]


def sends(data: bytes) -> Handler:
    async def handler(stream: Stream) -> None:
        await stream.send_all(len(data).to_bytes(4, "big") + data)

    return handler


async def claims_too_much(stream: Stream) -> None:
    await stream.send_all((limits.MANIFEST_BYTES_MAX + 1).to_bytes(4, "big"))


async def breaks_off(stream: Stream) -> None:
    await stream.send_all(b"\x00\x00\x01\x00abc")


async def says_nothing(_stream: Stream) -> None:
    await trio.sleep_forever()


class Place:
    """A network with one asker; each handler is a peer that serves the protocol with it."""

    def __init__(self) -> None:
        self.network = MemoryNetwork()
        self.addresses: list[PeerAddress] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.__aenter__()
        self.asker = await self.open(b"j" * 32)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def open(self, seed: bytes) -> MemoryTransport:
        return await self._stack.enter_async_context(self.network.open(signer_seed=seed))

    async def peer(self, handler: Handler | None) -> PeerId:
        transport = await self.open(bytes([len(self.addresses)]) * 32)
        if handler is not None:
            transport.serve(MANIFEST_PROTOCOL, handler)
        self.addresses.append(PeerAddress(transport.peer_id, transport.addresses()[0]))
        return transport.peer_id

    async def fetch(self, run: bytes | None = RUN.manifest.digest) -> tuple[SignedManifest, PeerId]:
        fetched = await fetch_manifest(self.asker, self.addresses, SIGNER, run=run)
        return fetched.signed, fetched.peer


async def test_manifest_comes_from_a_peer_of_the_run() -> None:
    async with Place() as place:
        peer = await place.peer(ManifestServer(RUN).serve)
        assert await place.fetch() == (RUN, peer)


async def test_without_a_digest_the_peers_own_run_is_taken() -> None:
    async with Place() as place:
        peer = await place.peer(ManifestServer(OTHER).serve)
        assert await place.fetch(run=None) == (OTHER, peer)


FORGED = SignedManifest(RUN.manifest, bytes(64))

BAD: list[tuple[Handler, str]] = [
    (sends(b""), "SignedManifest"),
    (sends(b"\x90"), "0 fields"),
    (sends(encode(FORGED)), "not signed by the founder"),
    (sends(encode(RUN) + b"\x00"), "bytes behind the end"),
    (ManifestServer(OTHER).serve, "another run, 'an\\x1bother'"),
    (claims_too_much, "262145 bytes"),
]


@pytest.mark.parametrize(("handler", "words"), BAD)
async def test_peer_with_another_manifest_is_refused_and_named(
    handler: Handler, words: str
) -> None:
    async with Place() as place:
        await place.peer(handler)
        with pytest.raises(RefusedError) as caught:
            await place.fetch()
    said = str(caught.value)
    assert words in said
    assert place.addresses[0].address in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    "handler",
    [bad for bad, _ in BAD] + [breaks_off, says_nothing, None],
    ids=map(str, range(len(BAD) + 3)),
)
async def test_after_a_bad_peer_the_next_is_asked(
    handler: Handler | None, autojump_clock: trio.abc.Clock
) -> None:
    async with Place() as place:
        await place.peer(handler)
        good = await place.peer(ManifestServer(RUN).serve)
        assert await place.fetch() == (RUN, good)
        assert trio.current_time() <= STAGGER_S + 0.1


def of_version(wire: int) -> bytes:
    """A manifest of another version, with a field that this one has never heard of."""
    return bytes(msgpack.packb([[wire, 1, "title", {"new": [1]}], bytes(64)]))


@pytest.mark.parametrize(
    ("wire", "cure"),
    [(WIRE_VERSION + 2, "on this machine"), (WIRE_VERSION + 1, "upgrade barnraise on this")],
)
async def test_run_of_another_version_is_told_in_one_line_with_who_must_upgrade(
    wire: int, cure: str
) -> None:
    async with Place() as place:
        for _ in range(2):
            await place.peer(sends(of_version(wire)))
        with pytest.raises(VersionError, match=f"version {wire}, this node {WIRE_VERSION}: "):
            await place.fetch()
        await place.peer(sends(b"\x90"))
        with pytest.raises(RefusedError, match="0 fields") as caught:
            await place.fetch()
    # One that lies is listed beside others, and does not speak for them.
    assert cure in str(caught.value)


async def test_unreachable_peers_are_listed_with_the_reason(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with Place() as place:
        await place.peer(None)
        await place.peer(says_nothing)
        place.addresses.append(PeerAddress(Ed25519Signer(b"g" * 32).peer_id, "/memory/gone"))
        with pytest.raises(UnreachableError) as caught:
            await place.fetch()
        assert trio.current_time() < FETCH_S + 3 * STAGGER_S
    said = str(caught.value)
    assert all(one.address in said for one in place.addresses)
    for words in ("does not serve", f"no manifest within {FETCH_S:.0f} s", "nobody listens"):
        assert words in said


async def test_one_wrong_manifest_among_unreachable_peers_is_a_refusal() -> None:
    async with Place() as place:
        await place.peer(ManifestServer(OTHER).serve)
        place.addresses.append(PeerAddress(Ed25519Signer(b"g" * 32).peer_id, "/memory/gone"))
        with pytest.raises(RefusedError, match="nobody listens"):
            await place.fetch()


async def test_askers_who_do_not_read_cannot_take_all_the_memory() -> None:
    async with Place() as place:
        server = ManifestServer(RUN)
        served = 0

        class Stuck:
            async def send_frame(self, _frame: bytes) -> None:
                nonlocal served
                served += 1
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            for _ in range(3 * SERVED_AT_ONCE_MAX):
                nursery.start_soon(server.serve, Stuck())
            await trio.testing.wait_all_tasks_blocked()
            assert served == SERVED_AT_ONCE_MAX
            nursery.cancel_scope.cancel()
        # Those who are gone leave their places to others.
        near, far = stream_pair(place.asker, place.asker)
        await server.serve(far)
        assert await near.receive_frame(limits.MANIFEST_BYTES_MAX) == encode(RUN)
