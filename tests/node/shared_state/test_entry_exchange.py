"""Gossip and the replicated state at the edge: real links and disks over a memory transport."""

import random
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio

from node.peers.links import Links
from protocol import events as ev
from protocol.entry_kinds import Departure, EntryKind
from protocol.errors import DecodeError, LimitError, StateError
from protocol.frames import StatusAsk, decode_frame, encode_frame
from protocol.gossip import GOSSIP_FRAMES, Entries, Farewell, OfferIds
from protocol.identity import Ed25519Signer, PeerId
from protocol.shared_state.entry_gossip import ANSWERS, SILENCE_S
from protocol.shared_state.store import DATABASE, Store
from tests.node.entry_net import FOUNDER, MANIFEST, WALL_S, Party, net_in, until


def lacks(one: Party, peer: PeerId) -> bool:
    return peer not in one.entries.told


async def test_entries_of_all_reach_all_also_where_no_link_is(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with net_in(tmp_path) as net:
        hub = await net.start("a", is_alone=True)
        founder = await net.start(FOUNDER, "a", is_alone=True)
        other = await net.start("b", "a", is_alone=True)
        everybody = (hub, founder, other)
        await until(autojump_clock, lambda: all(len(one.entries.told) == 2 for one in everybody))
        assert other.links.linked() == founder.links.linked() == (hub.peer,)
        said = other.entries.told[founder.peer]
        assert said.device.startswith("abacus ")
        assert said.software.startswith("barnraise ")
        assert said.addresses == founder.transport.addresses()
        assert abs(said.at_unix_s - WALL_S) < 300.0
        await until(autojump_clock, lambda: other.entries.told[founder.peer].round == 0)
        # Only the seated tell that they are here; links and hellos are the driver's news as ever.
        assert founder.entries.told[other.peer].round is None
        assert ev.Linked(hub.peer) in other.told
        assert not [e for e in other.told if isinstance(e, ev.FrameArrived)]
        assert [one.faults for one in everybody] == [[], [], []]


async def test_member_without_a_link_is_dialled_where_its_entry_says(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with net_in(tmp_path) as net:
        hub = await net.start("a")
        founder = await net.start(FOUNDER, "a")
        member_seeker, other = await net.start("b", "a"), await net.start("c", "a")
        await until(autojump_clock, lambda: founder.peer in member_seeker.links.linked())
        await until(autojump_clock, lambda: len(other.entries.told) == 3)
        # Who has no seat is not worth a link.
        assert member_seeker.peer not in other.links.linked()
        assert hub.peer in other.links.linked()


async def test_leave_is_known_to_all(tmp_path: Path, autojump_clock: trio.abc.Clock) -> None:
    async with net_in(tmp_path) as net:
        hub = await net.start("a", is_alone=True)
        founder = await net.start(FOUNDER, "a", is_alone=True)
        other = await net.start("b", "a", is_alone=True)
        await until(autojump_clock, lambda: founder.peer in other.entries.told)
        await founder.entries.leave("done here")
        await trio.sleep(0.2)
        await net.stop(FOUNDER)
        for one in (hub, other):
            await until(autojump_clock, partial(lacks, one, founder.peer), within_s=60.0)
            left = one.entries.book.entry(founder.peer, EntryKind.LEAVE)
            assert left is not None
            assert left.content == Departure(reason="done here")
        again = await net.start(FOUNDER, "a", is_alone=True)
        await until(autojump_clock, lambda: again.peer in other.entries.told)


async def test_killed_node_goes_on_from_its_disk_and_contradicts_nothing(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with net_in(tmp_path) as net:
        hub = await net.start("a")
        founder = await net.start(FOUNDER, "a")
        await until(autojump_clock, lambda: hub.peer in founder.entries.told)
        await until(autojump_clock, lambda: founder.peer in hub.entries.told)
        await until(autojump_clock, lambda: founder.sequence(EntryKind.PRESENCE) > 0)
        before = {kind: founder.sequence(kind) for kind in EntryKind}
        # What a kill leaves: the files as they are under a process that still has them open.
        shutil.copytree(tmp_path / FOUNDER, tmp_path / "killed")
        await net.stop(FOUNDER)
        again = await net.start(FOUNDER, "a", folder="killed")
        assert again.sequence() == before[EntryKind.IDENTITY]
        assert not again.entries.book.must_ask
        presence = EntryKind.PRESENCE
        await until(autojump_clock, lambda: again.sequence(presence) > before[presence])
        await until(autojump_clock, lambda: hub.sequence(presence, again.peer) > before[presence])
        assert hub.entries.book.evidence == again.entries.book.evidence == ()
        assert hub.faults == again.faults == []


async def test_damaged_database_is_set_aside_and_others_are_asked_before_it_writes(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    async with net_in(tmp_path) as net:
        hub = await net.start("a")
        founder = await net.start(FOUNDER, "a")
        await until(autojump_clock, lambda: hub.sequence(of=founder.peer) > 0)
        before = founder.sequence()
        await net.stop(FOUNDER)
        (tmp_path / FOUNDER / DATABASE).write_bytes(b"not a database" * 1000)
        again = await net.start(FOUNDER, "a")
        assert any("set aside" in text for text in again.heard.warnings)
        assert again.entries.book.must_ask
        await until(autojump_clock, lambda: not again.entries.book.must_ask, within_s=600.0)
        counts = again.entries.machine.gossip.comparing.counts
        assert counts.equal + counts.unequal >= ANSWERS
        # It heard its own entry from the other before it wrote the next.
        await until(autojump_clock, lambda: again.sequence() >= before, within_s=60.0)
        await until(autojump_clock, lambda: again.sequence(EntryKind.PRESENCE) > 0)
        assert hub.entries.book.evidence == ()
        await net.stop(FOUNDER)
        assert not Store(tmp_path / FOUNDER, MANIFEST.digest).must_ask


async def test_node_with_a_damaged_database_and_nobody_to_ask_writes_in_the_end(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    (tmp_path / FOUNDER).mkdir()
    (tmp_path / FOUNDER / DATABASE).write_bytes(b"not a database")
    async with net_in(tmp_path) as net:
        founder = await net.start(FOUNDER)
        began_s = trio.current_time()
        await until(autojump_clock, lambda: founder.sequence() > 0, within_s=2 * SILENCE_S + 300.0)
        assert trio.current_time() - began_s >= SILENCE_S


async def test_entry_that_the_disk_does_not_take_is_told_to_nobody(
    tmp_path: Path, autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: Store, what: object) -> None:
        raise StateError("the disk is full")

    async with net_in(tmp_path) as net:
        hub = await net.start("a")
        with monkeypatch.context() as patched:
            patched.setattr(Store, "write_own", full)
            patched.setattr(Store, "apply", full)
            founder = await net.start(FOUNDER, "a")
            await trio.sleep(60.0)
            assert hub.peer in founder.links.linked()
            assert founder.sequence() == 0
            assert hub.entries.told == {}
            # One warning, however often it is tried.
            assert len(founder.heard.warnings) == 1
            assert "the disk is full" in founder.heard.warnings[0]
        await until(autojump_clock, lambda: founder.peer in hub.entries.told)
        assert founder.heard.warnings[1:] == [""]


@pytest.mark.parametrize("number", sorted(GOSSIP_FRAMES))
async def test_garbage_on_a_link_is_one_fault_and_the_link_comes_again(
    tmp_path: Path, autojump_clock: trio.abc.Clock, number: int
) -> None:
    async with net_in(tmp_path) as net:
        victim = await net.start("a")
        liar = await net.start("b", "a")
        await until(autojump_clock, lambda: liar.peer in victim.links.linked(), within_s=60.0)
        liar.links._queues[victim.peer].send_nowait(bytes([number]) + b"\xc1garbage")
        await until(autojump_clock, lambda: victim.faults != [], within_s=60.0)
        assert {fault.peer for fault in victim.faults} == {liar.peer}
        assert len(victim.faults) == 1
        await until(
            autojump_clock, lambda: victim.told.count(ev.Linked(liar.peer)) == 2, within_s=120.0
        )


async def test_sound_frames_that_say_anything_break_nothing(
    tmp_path: Path, autojump_clock: trio.abc.Clock, seed: int
) -> None:
    """Frames of a peer, bent a little: each decodes to nothing, is a fault, or is taken."""
    luck, num_taken = random.Random(f"{seed}/bent frames"), 0
    async with net_in(tmp_path) as net:
        victim = await net.start("a")
        liar = await net.start("b", "a")
        await until(autojump_clock, lambda: victim.peer in liar.entries.told)
        said: list[bytes] = []
        true_send = liar.links.send

        def heard(peer: PeerId, frame: object) -> None:
            said.append(encode_frame(frame))  # type: ignore[arg-type]  # whatever is sent
            true_send(peer, frame)  # type: ignore[arg-type]

        liar.links = Overheard(liar.links, heard)  # type: ignore[assignment]
        liar.entries.connect(liar.links)
        await trio.sleep(60.0)
        held = [liar.entries.book.get(i) for b in range(256) for i in liar.entries.book.ids_in(b)]
        entries = [encode_frame(Entries(is_push=True, entries=(e,))) for e in held if e]
        frames = [*said, *entries]
        assert len({frame[0] for frame in frames} & set(GOSSIP_FRAMES)) >= 5
        for _ in range(1500):
            bent = bytearray(luck.choice(frames))
            for _ in range(luck.choice((0, 1, 1, 2, 8))):
                bent[luck.randrange(len(bent))] = luck.randrange(256)
            try:
                frame = decode_frame(bytes(bent))
            except (DecodeError, LimitError):
                continue
            num_taken += 1
            await victim.entries.tell(ev.FrameArrived(liar.peer, frame))
        assert num_taken > 100
        assert any(fault.reason.startswith("entry: ") for fault in victim.faults)
        assert {fault.peer for fault in victim.faults} <= {liar.peer}
        # It works as before.
        await victim.entries.tell(ev.FrameArrived(liar.peer, Farewell(incarnation=0)))
        third = await net.start("c", "a")
        await until(autojump_clock, lambda: third.peer in victim.entries.told)


@dataclass
class Overheard:
    """Links of which one hears what is sent."""

    links: Links
    heard: object

    def send(self, peer: PeerId, frame: object) -> None:
        assert callable(self.heard)
        self.heard(peer, frame)

    def __getattr__(self, name: str) -> object:
        return getattr(self.links, name)


async def test_other_frames_pass_and_gossip_to_strangers_is_counted(
    tmp_path: Path, autojump_clock: trio.abc.Clock
) -> None:
    stranger = Ed25519Signer(b"s" * 32).peer_id
    async with net_in(tmp_path) as net:
        party = await net.start("a")
        frame = ev.FrameArrived(stranger, StatusAsk(nonce=1))
        await party.entries.tell(frame)
        assert party.told == [frame]
        await party.entries.tell(ev.FrameArrived(stranger, OfferIds(ids=(b"i" * 32,))))
        await until(autojump_clock, lambda: party.entries.num_unsent > 0, within_s=60.0)
        assert party.told == [frame]
