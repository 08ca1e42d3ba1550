"""Frames of a peer that means harm: two honest processes train, a third says what it wants.

The hostile peer knows the run's manifest, completes the hello, and then breaks the rules over the
real transport. Each time the honest node names it, or ends its stream; it raises nothing, seals
rounds with its honest peer as before, and gives back what the attack made it hold.

| attack | test |
|---|---|
| truncated | `..._cut_short_...` |
| oversized | `..._claims_too_much_...` |
| random | `..._random_bytes_...`, `..._hello_of_garbage_...`, `..._garbage_to_whoever_serves_...` |
| replayed | `..._replayed_...` |
| bulk streams | `..._bulk_streams_...` |
| again and again | `..._again_and_again_...`, `..._comes_and_goes_...`, `..._lose_their_...` |
"""

import os
import random
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
import trio

from node.peers.links import BRIEF_S, CONTROL_PROTOCOL
from node.peers.manifest_fetch import MANIFEST_PROTOCOL
from node.plane.bulk_streams import BULK_PROTOCOL
from node.reporting.narrator import FAULTS_SHOWN_MAX
from node.state.config import PeerAddress, parse_peer_address
from node.state.stored_manifest import read_signed_manifest
from protocol import limits
from protocol.core.budgets import PAUSE_S, STRIKES_MAX
from protocol.errors import BarnraiseError
from protocol.frames import (
    Bulk,
    BulkHeader,
    BulkItem,
    BulkItems,
    Messages,
    decode_frame,
    encode_frame,
)
from protocol.identity import Ed25519Signer
from protocol.manifest import SignedManifest
from protocol.messages import SignedMessage
from protocol.transport import Stream
from protocol.wire import encode
from tests.e2e.swarm import MANIFEST_FILE, NodeUnderTest, Swarm, swarm_of
from tests.node.hostile import Footprint, Hostile, framed, hostile, until, wait

pytestmark = [
    pytest.mark.slow,
    pytest.mark.net,
    pytest.mark.skipif(
        sys.platform != "linux", reason="counts descriptors in /proc, which only Linux has"
    ),
]

RSS_MIB_MORE_MAX = 48.0
"""What an attack may leave behind: allocators keep some of what they were given."""

DESCRIPTORS_MORE_MAX = 8


@dataclass
class Honest:
    """Two nodes that train together; `node` is the one that is attacked."""

    swarm: Swarm
    signed: SignedManifest

    @property
    def node(self) -> NodeUnderTest:
        return self.swarm.nodes[0]

    @property
    def address(self) -> PeerAddress:
        (listening, *_) = (e for e in self.node.events if e["event"] == "listening")
        return parse_peer_address(listening["addresses"][0])

    def faults(self, who: Hostile) -> list[str]:
        """Reasons of the faults by which the node has named a peer."""
        faults = [e for e in list(self.node.events) if e["event"] == "fault"]
        return [e["reason"] for e in faults if e["peer"] == who.name]

    def both_sealed(self) -> int:
        """The last round that lists both nodes' contributions."""
        sealed = [e for e in list(self.node.events) if e["event"] == "sealed"]
        return max((e["round"] for e in sealed if len(e["listed"]) == 2), default=0)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Honest]:
    folder = tmp_path_factory.mktemp("honest")
    with swarm_of(folder, 2) as swarm:
        signed = read_signed_manifest(folder / MANIFEST_FILE, Ed25519Signer(bytes(32)))
        found = Honest(swarm, signed)
        swarm.wait("a round of two", lambda: found.both_sealed() > 0, timeout_s=120.0)
        yield found
        for node in swarm.nodes:
            assert node.leave() == 0, node.log()[-3000:]
            assert "Traceback" not in node.log()
        one, other = (node.seals() for node in swarm.nodes)
        common = one.keys() & other.keys()
        assert len(common) > 10
        assert all(one[index] == other[index] and len(one[index]) == 1 for index in common)


@asynccontextmanager
async def attack(honest: Honest):
    """A hostile peer; behind the block, all must be as it was before."""
    before = Footprint.of(honest.node)
    with trio.fail_after(120.0):
        async with hostile(honest.address, honest.signed) as liar:
            yield liar
            during = honest.both_sealed()
            await until("two rounds more", lambda: honest.both_sealed() >= during + 2)
        during = honest.both_sealed()
        await until("a round more", lambda: honest.both_sealed() > during)
        await until(
            "the hostile peer's descriptors are closed",
            lambda: (
                Footprint.of(honest.node).descriptors <= before.descriptors + DESCRIPTORS_MORE_MAX
            ),
        )
    after = Footprint.of(honest.node)
    assert after.rss_mib - before.rss_mib < RSS_MIB_MORE_MAX
    assert all(node.is_running for node in honest.swarm.nodes)
    assert "Traceback" not in honest.node.log()
    others = [e for e in honest.node.events if e["event"] == "fault" and e["peer"] != liar.name]
    assert not [e for e in others if e["peer"] in honest_names(honest)]


def honest_names(honest: Honest) -> set[str]:
    listening = [e for node in honest.swarm.nodes for e in node.events if e["event"] == "listening"]
    return {event["peer"] for event in listening}


async def test_frame_cut_short_ends_its_stream_and_is_nobodys_fault(honest: Honest) -> None:
    async with attack(honest) as liar:
        for data in (b"", b"\x00\x00", framed(b"half of it", claimed=100)):
            stream = await liar.link()
            await stream.send_all(data)
            await stream.aclose()
        await until("its links ended", lambda: unlinked(honest, liar) == 3)
    # What a bad line does as well is no breach of the rules.
    assert honest.faults(liar) == []


def unlinked(honest: Honest, liar: Hostile) -> int:
    events = [e for e in list(honest.node.events) if e["event"] == "unlinked"]
    return sum(e["peer"] == liar.name for e in events)


async def test_frame_that_claims_too_much_is_a_fault_and_nothing_is_read(honest: Honest) -> None:
    async with attack(honest) as liar:
        too_much = limits.CONTROL_FRAME_BYTES_MAX + 1
        for claimed in (too_much, 2**32 - 1):
            stream = await liar.link()
            await stream.send_all(framed(b"", claimed=claimed))
            await until("the link ends", lambda: any_reason(honest, liar, "bytes where"))
        await until("both are told", lambda: len(honest.faults(liar)) == 2)
    assert honest.faults(liar)[0] == (
        f"control stream: a frame of {too_much} bytes where {limits.CONTROL_FRAME_BYTES_MAX} "
        "are allowed"
    )


def any_reason(honest: Honest, liar: Hostile, words: str) -> bool:
    return any(words in reason for reason in honest.faults(liar))


async def test_frame_of_random_bytes_is_a_fault(honest: Honest, seed: int) -> None:
    rng = random.Random(f"{seed}/random frames")
    async with attack(honest) as liar:
        kinds = [*rng.sample(range(1, 10), 4), rng.randrange(10, 256)]
        for kind in kinds:
            stream = await liar.link()
            await stream.send_frame(bytes([kind]) + rng.randbytes(rng.randrange(1, 2000)))
            await stream.aclose()
        await until("all are told", lambda: len(honest.faults(liar)) == len(kinds))
    assert all(reason.startswith("control stream: ") for reason in honest.faults(liar))


async def test_replayed_frames_of_earlier_rounds_change_nothing(honest: Honest) -> None:
    sent = 0

    async def replay(stream: Stream, recorded: list[bytes]) -> None:
        nonlocal sent
        while True:
            for frame in recorded:
                await stream.send_frame(frame)
                sent += 1

    async with attack(honest) as liar, liar.linked() as stream:
        heard = honest.both_sealed()
        await until("some rounds to record", lambda: honest.both_sealed() >= heard + 3)
        recorded = list(liar.frames)
        assert len(recorded) > 20
        before = honest.both_sealed()
        with trio.move_on_after(5.0):
            await replay(stream, recorded)
        # While they come, too.
        assert honest.both_sealed() > before
        assert sent > 10 * len(recorded)
    # They are whole and signed: whoever passes on what is old does no wrong.
    assert honest.faults(liar) == []


def said(*items: BulkItem) -> bytes:
    return encode(BulkItems(items=items, piece=limits.PIECE_BYTES_MAX))


async def test_bulk_streams_that_break_the_rules_are_faults(honest: Honest, seed: int) -> None:
    rng = random.Random(f"{seed}/bulk")
    header = encode(BulkHeader(bulk=Bulk.PART, subject=rng.randbytes(32), round=1, items=2))
    huge = said(BulkItem(index=0, length=limits.CHUNK_BYTES, proof=b""))
    far = said(BulkItem(index=2**31, length=8, proof=b""))
    many = said(*(BulkItem(index=n, length=0, proof=b"") for n in range(3)))
    wrong = {
        "a frame of": framed(b"", claimed=limits.BULK_HEADER_BYTES_MAX + 1),
        "BulkHeader": framed(rng.randbytes(40)),
        "instead of": framed(header) + framed(huge) + bytes(1000),
        "cell 2147483648 of": framed(header) + framed(far),
        "BulkItems": framed(header) + framed(rng.randbytes(100)),
        "more cells than the 2": framed(header) + framed(many),
    }
    async with attack(honest) as liar:
        async with liar.linked():
            # Cut short, or the state of a source that was given up: no fault, and nothing stays.
            late = encode(BulkHeader(bulk=Bulk.STATE, subject=rng.randbytes(32), round=1, items=1))
            short = framed(header) + framed(huge)[:-1]
            for data in (b"\x00", framed(header), short, framed(late)):
                await liar.send_raw(BULK_PROTOCOL, data)
            for words, data in wrong.items():
                await liar.send_raw(BULK_PROTOCOL, data)
                await until(words, lambda: any_reason(honest, liar, words))  # noqa: B023
        # Without a link, nobody looks at them.
        await until("the link ends", lambda: unlinked(honest, liar) == 1)
        await liar.send_raw(BULK_PROTOCOL, framed(rng.randbytes(40)))
    assert len(honest.faults(liar)) == len(wrong)


async def test_hello_of_garbage_is_a_fault(honest: Honest, seed: int) -> None:
    rng = random.Random(f"{seed}/hello")
    async with attack(honest) as liar:
        for data in (b"\xff" * 4, framed(rng.randbytes(100)), framed(b"\x01" + rng.randbytes(50))):
            await liar.send_raw(CONTROL_PROTOCOL, data)
        await until("all are told", lambda: len(honest.faults(liar)) == 3)
    assert all(reason.startswith("hello: ") for reason in honest.faults(liar))


async def test_garbage_to_whoever_serves_the_manifest_changes_nothing(honest: Honest) -> None:
    async with attack(honest) as liar:
        for _ in range(40):
            await liar.send_raw(MANIFEST_PROTOCOL, os.urandom(1000))
        stream = await liar.open(MANIFEST_PROTOCOL)
        assert await stream.receive_frame(limits.MANIFEST_BYTES_MAX) == encode(honest.signed)
        await stream.aclose()


async def test_peer_that_faults_again_and_again_is_paused_and_floods_no_log(
    honest: Honest,
) -> None:
    lines = len(honest.node.log().splitlines())

    async def keep_on(liar: Hostile) -> None:
        while True:
            try:
                await liar.send_raw(CONTROL_PROTOCOL, framed(b"\xffgarbage"))
            except BarnraiseError:
                await wait(0.01)

    async with attack(honest) as liar:
        with trio.move_on_after(PAUSE_S - 1.0):
            await keep_on(liar)
        assert len(honest.faults(liar)) <= STRIKES_MAX < FAULTS_SHOWN_MAX
        with pytest.raises(BarnraiseError):
            await liar.link()
        await wait(PAUSE_S)
        # A pause is no ban.
        await (await liar.link()).aclose()
    said = honest.node.log().splitlines()[lines:]
    about = [line for line in said if liar.name[-8:] in line]
    assert len(about) < 5 * STRIKES_MAX
    assert any(f"peer paused peer={liar.name[-8:]} pause_s={PAUSE_S:.0f}" in line for line in about)


async def test_messages_of_another_run_lose_their_sender_its_link(honest: Honest) -> None:
    def messages(frames: list[bytes]) -> list[SignedMessage]:
        return [
            message
            for frame in map(decode_frame, frames)
            if isinstance(frame, Messages)
            for message in frame.messages
        ]

    async with attack(honest) as liar:
        async with liar.linked() as stream:
            await until("a message to change", lambda: bool(messages(liar.frames)))
            # So long that its end is no sign of one that comes and goes.
            await wait(2 * BRIEF_S)
            message = messages(liar.frames)[0]
            foreign = replace(message, slot=replace(message.slot, run=bytes(32)))
            for _ in range(STRIKES_MAX):
                await stream.send_frame(encode_frame(Messages(messages=(foreign,))))
            await until("the link ends", lambda: unlinked(honest, liar) == 1)
        with pytest.raises(BarnraiseError):
            await liar.link()
    assert honest.faults(liar) == ["a message of another run or shard"] * STRIKES_MAX


async def test_peer_that_comes_and_goes_without_end_is_paused(honest: Honest) -> None:
    links = 0

    async def keep_on(liar: Hostile) -> None:
        nonlocal links
        while True:
            try:
                await (await liar.link()).aclose()
                links += 1
            except BarnraiseError:
                await wait(0.01)

    async with attack(honest) as liar:
        with trio.move_on_after(PAUSE_S - 1.0):
            await keep_on(liar)
        assert STRIKES_MAX <= links <= 2 * STRIKES_MAX
        assert f"peer paused peer={liar.name[-8:]}" in honest.node.log()
    assert honest.faults(liar) == []
