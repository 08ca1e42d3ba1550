"""Hello between two ends of a stream."""

from pathlib import Path

import msgpack
import pytest
import trio

from node.peers import handshake
from node.peers.handshake import HELLO_S, shake_hands
from node.peers.manifest_fetch import MANIFEST_PROTOCOL, fetch_manifest
from node.processes.exit_codes import EXIT_REFUSED, exit_status
from node.state import stored_manifest
from node.state.config import PeerAddress
from node.state.stored_manifest import read_signed_manifest
from protocol import manifest
from protocol.errors import (
    ConfigError,
    DecodeError,
    ManifestMismatch,
    ProofError,
    RefusedError,
    StreamClosedError,
    WireVersionError,
)
from protocol.frames import Hello, Refusal, decode_frame, encode_frame
from protocol.identity import Ed25519Signer, PeerId
from protocol.manifest import WIRE_VERSION
from protocol.transport import Stream
from protocol.wire import encode
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
            with pytest.raises(RefusedError, match=r"^used up\\x1b\[2J$"):
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


OUR_WIRE = 5
"""As if there were versions before and behind ours."""


@pytest.fixture
def our_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """This node speaks wire version 5, whatever it is."""
    monkeypatch.setattr(handshake, "WIRE_VERSION", OUR_WIRE)
    monkeypatch.setattr(manifest, "WIRE_VERSION", OUR_WIRE)
    monkeypatch.setattr(stored_manifest, "WIRE_VERSION", OUR_WIRE)


HERE, THERE = "upgrade barnraise on this machine", "they must upgrade barnraise"
OTHERS = ((1, THERE), (4, THERE), (6, HERE), (2**62, HERE))
"""Wire versions of the other side, and who must upgrade."""


async def heard_by_a_peer_of(wire: int, *, hello: bytes | None = None) -> tuple[str, Refusal]:
    """What our side raises at a peer of another wire version, and what it tells the peer."""
    near, far = await ends()
    ours = signed(toy_manifest())
    frame = Hello(wire=wire, run=ours.manifest.digest, addresses=())
    await far.send_frame(encode_frame(frame) if hello is None else hello)
    await far.send_frame(encode_frame(Refusal(reason="another run or wire version", manifest=b"")))
    with trio.fail_after(5.0), pytest.raises(WireVersionError) as caught:
        await shake_hands(near, ours, (), OURS)
    assert isinstance(decode_frame(await far.receive_frame(65_536)), Hello)
    refusal = decode_frame(await far.receive_frame(65_536))
    assert isinstance(refusal, Refusal)
    return str(caught.value), refusal


@pytest.mark.usefixtures("our_wire")
@pytest.mark.parametrize(("theirs", "who"), OTHERS)
async def test_other_wire_version_is_one_line_that_says_who_must_upgrade(
    theirs: int, who: str
) -> None:
    said, refusal = await heard_by_a_peer_of(theirs)
    for line in (said, refusal.reason):
        assert str(theirs) in line
        assert f"{OUR_WIRE}" in line
        assert "\n" not in line
    assert said.endswith(who)
    # An old node prints the reason as it comes, and could not read our manifest.
    assert refusal.reason.endswith(THERE if who == HERE else "upgrade barnraise on your machine")
    assert refusal.manifest == b""


@pytest.mark.usefixtures("our_wire")
async def test_hello_of_a_later_form_is_of_another_version_and_no_garbage() -> None:
    later = b"\x01" + msgpack.packb([6, {"run": "of another form"}, [1], None])
    said, refusal = await heard_by_a_peer_of(6, hello=later)
    assert "wire version 6, this node 5" in said
    assert "wire version 5, yours 6" in refusal.reason


@pytest.mark.parametrize("first", [-1, 0, -(2**40), True, 1.5, "2", b"\x02", None, []])
async def test_what_is_no_version_is_no_hello(first: object) -> None:
    near, far = await ends()
    await far.send_frame(b"\x01" + msgpack.packb([first, bytes(32), []]))
    with pytest.raises(DecodeError):
        await shake_hands(near, signed(toy_manifest()), (), OURS)


async def test_peer_that_hears_nothing_of_its_version_costs_no_more_than_a_hello(
    autojump_clock: trio.abc.Clock,
) -> None:
    near, far = await ends()
    started_s = trio.current_time()
    await far.send_frame(encode_frame(Hello(wire=WIRE_VERSION + 1, run=bytes(32), addresses=())))
    with pytest.raises(WireVersionError):
        await shake_hands(near, signed(toy_manifest()), (), OURS)
    assert trio.current_time() - started_s <= HELLO_S


def manifest_of(wire: int) -> bytes:
    """A manifest of another wire version, as its founder's program would encode it."""
    plain = msgpack.unpackb(encode(signed(toy_manifest())))
    plain[0][0] = wire
    return bytes(msgpack.packb(plain))


@pytest.mark.usefixtures("our_wire")
@pytest.mark.parametrize(("theirs", "who"), OTHERS)
async def test_joiner_of_another_wire_version_is_told_in_one_line(theirs: int, who: str) -> None:
    network = MemoryNetwork()
    async with (
        network.open(signer_seed=OURS.seed) as near,
        network.open(signer_seed=THEIRS.seed) as far,
    ):

        async def serve(stream: Stream) -> None:
            await stream.send_frame(manifest_of(theirs))

        far.serve(MANIFEST_PROTOCOL, serve)
        told = [PeerAddress(THEIRS.peer_id, address) for address in far.addresses()]
        with pytest.raises(WireVersionError) as caught:
            await fetch_manifest(near, told, OURS, run=None)
    said = f"the other side speaks wire version {theirs}, this node {OUR_WIRE}: {who}"
    assert str(caught.value) == said
    assert exit_status(caught.value) == EXIT_REFUSED


@pytest.mark.usefixtures("our_wire")
def test_stored_manifest_of_another_wire_version_names_both(tmp_path: Path) -> None:
    path = tmp_path / "manifest.msgpack"
    path.write_bytes(manifest_of(4))
    with pytest.raises(
        ConfigError, match=r"wire version 4, this barnraise speaks 5: a run goes on"
    ):
        read_signed_manifest(path, OURS)
