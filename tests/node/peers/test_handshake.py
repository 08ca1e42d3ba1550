"""Hello between two ends of a stream."""

import msgpack
import pytest
import trio

from node.peers.handshake import HELLO_S, shake_hands
from protocol.errors import (
    DecodeError,
    ManifestMismatch,
    ProofError,
    RefusedError,
    StreamClosedError,
    VersionError,
)
from protocol.frames import Hello, Refusal, decode_frame, encode_frame, hello_version
from protocol.identity import Ed25519Signer, PeerId
from tests.memory_transport import MemoryNetwork, MemoryStream, stream_pair
from tests.node.edge import signed, toy_manifest

OURS, THEIRS = Ed25519Signer(b"a" * 32), Ed25519Signer(b"b" * 32)


async def ends() -> tuple[MemoryStream, MemoryStream]:
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=OURS.seed) as near,
        network.open(signer_seed=THEIRS.seed) as far,
    ):
        return stream_pair(near, far)


async def test_hello_of_the_same_run_gives_the_other_sides_addresses() -> None:
    near, far = await ends()
    ours = signed(toy_manifest())
    answers: list[Hello] = []

    async def other() -> None:
        answers.append(await shake_hands(far, ours, ("/ip4/2.2.2.2/tcp/2",), THEIRS))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        hello = await shake_hands(near, ours, ("/ip4/1.1.1.1/tcp/1",), OURS)
    assert hello.addresses == ("/ip4/2.2.2.2/tcp/2",)
    assert answers[0].addresses == ("/ip4/1.1.1.1/tcp/1",)


async def test_hello_of_another_run_names_the_first_differing_field_on_both_sides() -> None:
    near, far = await ends()
    fields: list[str] = []

    async def side(stream: MemoryStream, manifest: object, signer: Ed25519Signer) -> None:
        with pytest.raises(ManifestMismatch) as caught:
            await shake_hands(stream, manifest, (), signer)  # type: ignore[arg-type]
        fields.append(caught.value.field)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(side, near, signed(toy_manifest()), OURS)
        nursery.start_soon(side, far, signed(toy_manifest(rounds=6, title="other")), THEIRS)
    assert fields == ["title", "title"]


async def test_hello_that_never_comes_ends_in_time(autojump_clock: trio.abc.Clock) -> None:
    near, _far = await ends()
    started_s = trio.current_time()
    with pytest.raises(trio.TooSlowError):
        await shake_hands(near, signed(toy_manifest()), (), OURS)
    assert trio.current_time() - started_s == pytest.approx(HELLO_S)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", DecodeError),
        (b"\x01garbage", DecodeError),
        (bytes([9]) + b"\x93\x00\x00", DecodeError),
        (encode_frame(Refusal(reason="go\x1baway", manifest=b"")), RefusedError),
        (encode_frame(Refusal(reason="no", manifest=b"not a manifest")), RefusedError),
    ],
)
async def test_hello_of_garbage_is_a_peer_error(data: bytes, error: type[Exception]) -> None:
    near, far = await ends()
    await far.send_frame(data)
    with pytest.raises(error) as caught:
        await shake_hands(near, signed(toy_manifest()), (), OURS)
    assert "\x1b" not in str(caught.value)


async def test_hello_cut_short_is_a_closed_stream() -> None:
    near, far = await ends()
    await far.send_all(b"\x00\x00\x00\x20abc")
    await far.aclose()
    with pytest.raises(StreamClosedError):
        await shake_hands(near, signed(toy_manifest()), (), OURS)


class Door:
    """An Access with a fixed answer."""

    is_for_all = False
    credential = b"mine"

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.shown: list[bytes] = []

    def refusal(self, peer: PeerId, shown: bytes) -> str:
        self.shown.append(shown)
        return self.answer


async def test_hello_into_a_run_for_the_invited_tells_both_sides_why_one_stays_out() -> None:
    near, far = await ends()
    ours = signed(toy_manifest())
    inner, outer = Door("used up\x1b[2J"), Door("")

    async def member() -> None:
        with pytest.raises(ProofError, match="not let in: used up"):
            await shake_hands(far, ours, (), THEIRS, inner)  # type: ignore[arg-type]

    with trio.fail_after(5.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member)
            with pytest.raises(RefusedError, match=r"^used up\?\[2J$"):
                await shake_hands(near, ours, (), OURS, outer)  # type: ignore[arg-type]
    assert inner.shown == outer.shown == [b"mine"]


async def test_hello_of_the_invited_is_welcome_on_both_sides() -> None:
    near, far = await ends()
    ours = signed(toy_manifest())
    with trio.fail_after(5.0):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shake_hands, far, ours, (), THEIRS, Door(""))
            hello = await shake_hands(near, ours, (), OURS, Door(""))  # type: ignore[arg-type]
    assert hello.credential == b"mine"


@pytest.mark.parametrize(
    ("theirs", "told", "upgrade"),
    [(8, "upgrade this one", "it"), (6, "upgrade the peer's one", "yours")],
)
async def test_hello_of_another_wire_names_both_versions_and_who_must_upgrade(
    theirs: int, told: str, upgrade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.peers.handshake.WIRE_VERSION", 7)
    near, far = await ends()
    # Whatever else that version has in its hello.
    await far.send_frame(bytes([1]) + msgpack.packb([theirs, "unheard of", [1, 2], None]))
    with pytest.raises(VersionError) as caught:
        await shake_hands(near, signed(toy_manifest()), (), OURS)
    assert f"wire version {theirs}, and this barnraise 7: " in str(caught.value)
    assert told in str(caught.value)
    await far.receive_frame(1 << 16)
    refusal = decode_frame(await far.receive_frame(1 << 16))
    assert isinstance(refusal, Refusal)
    assert refusal.reason == f"it speaks wire version 7, and you {theirs}: upgrade {upgrade}"


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01\x91\xc0", b"\x02\x91\x07", b"\x01\x07", b"\x01\x91\x00"]
)
def test_what_is_no_hello_names_no_version(data: bytes) -> None:
    assert hello_version(data) is None
