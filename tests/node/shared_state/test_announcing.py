"""What a node says of itself, and when."""

from dataclasses import replace

from node.peers.entry_exchange import all_told
from protocol.entries import decode_entry
from protocol.entry_kinds import RULES, EntryKind, HasCheckpoint, Identity, Presence, Reading
from protocol.identity import PeerId
from protocol.serving_text.text_shape import announcement, mask_of
from protocol.shared_state.book import SharedState
from protocol.shared_state.entry_gossip import (
    AGAIN_S,
    CHECKPOINT_S,
    Announcing,
    KeptCheckpoint,
    KeptText,
    NodeReading,
    texts_told,
)
from tests.node.shared_state.scene import RUN, WALL_S, all_ids, signer

ME = signer(9)
HERE = Identity(
    name="",
    device="cpu",
    software="barnraise 1",
    upload_mbit=0,
    download_mbit=0,
    is_relay=False,
    addresses=("/ip4/192.0.2.1/tcp/1",),
)
SEATED = NodeReading(
    identity=HERE,
    incarnation=0,
    round=7,
    head=bytes(32),
    is_seated=True,
    readings=(Reading(name="loss", value=1.0),),
)


def known_elsewhere(book: SharedState) -> list[PeerId]:
    """Whom another node knows that has heard all of `book`."""
    other = SharedState(RUN, signer(1))
    for entry_id in all_ids(book):
        assert other.offer(book.get(entry_id) or b"", wall_s=WALL_S + 5.0, now_s=0.0).is_new
    return list(all_told(other, [ME.peer_id], most=9))


class Scene:
    """A book and its announcing; what is due is released at once."""

    def __init__(self, *, must_ask: bool = False) -> None:
        self.book = SharedState(RUN, ME, must_ask=must_ask)
        self.announcing = Announcing(self.book)

    def due(self, standing: NodeReading, at_s: float) -> list[EntryKind]:
        wall_s = WALL_S + at_s
        self.book.expire(wall_s)
        written = self.announcing.due(standing, wall_s=wall_s, now_s=at_s)
        for one in written:
            assert self.book.release(one, wall_s=wall_s).is_new
        return [one.kind for one in written]

    def hours(self, standing: NodeReading, num: float, *, from_s: float = 0.0) -> list[EntryKind]:
        """Looked at each second."""
        seconds = range(int(from_s), int(from_s + 3600 * num))
        return [kind for at_s in seconds for kind in self.due(standing, float(at_s))]


def kept(number: int) -> KeptCheckpoint:
    body = HasCheckpoint(
        shard=0, round=number, seal=bytes([number]) * 32, num_bytes=1, is_withdrawn=False
    )
    return KeptCheckpoint(root=bytes([number]) * 32, body=body)


def test_who_comes_says_what_it_is_and_the_seated_that_it_is_here():
    kinds = [EntryKind.IDENTITY, EntryKind.PRESENCE, EntryKind.METRICS]
    assert Scene().due(SEATED, 0.0) == kinds
    scene = Scene()
    assert scene.due(replace(SEATED, is_seated=False), 0.0) == [EntryKind.IDENTITY]
    assert scene.due(replace(SEATED, is_seated=False), 1000.0) == []
    assert scene.due(SEATED, 1001.0) == kinds[1:]


def test_nothing_is_said_before_the_node_is_up():
    scene = Scene()
    assert scene.due(replace(SEATED, identity=None, checkpoint=kept(1)), 0.0) == []
    assert len(scene.due(replace(SEATED, checkpoint=kept(1)), 1.0)) == 4


def test_entries_of_hours_are_few():
    scene = Scene()
    kinds = scene.hours(SEATED, 2.0)
    assert kinds.count(EntryKind.PRESENCE) == 30
    assert kinds.count(EntryKind.METRICS) == 60
    assert 4 <= kinds.count(EntryKind.IDENTITY) <= 6


def test_presence_never_lapses_between_two_writings():
    scene = Scene()
    for at_s in range(3600):
        scene.due(SEATED, float(at_s))
        assert scene.book.entry(ME.peer_id, EntryKind.PRESENCE) is not None
        assert scene.book.entry(ME.peer_id, EntryKind.IDENTITY) is not None


def test_what_changes_is_said_soon_but_not_each_second():
    scene = Scene()
    scene.due(SEATED, 0.0)
    moved = [
        replace(SEATED, identity=replace(HERE, addresses=(f"/ip4/192.0.2.1/tcp/{port}",)))
        for port in range(1, 61)
    ]
    kinds = [kind for at_s, now in enumerate(moved) for kind in scene.due(now, float(at_s))]
    assert kinds.count(EntryKind.IDENTITY) == 60 // int(AGAIN_S) - 1
    assert EntryKind.PRESENCE in scene.due(replace(SEATED, incarnation=1), 100.0)


def test_new_era_is_answered_at_once():
    scene = Scene()
    scene.hours(SEATED, 0.01)
    scene.book.enter_era(1)
    kinds = scene.due(replace(SEATED, round=256), 40.0)
    assert sorted(kinds) == [EntryKind.IDENTITY, EntryKind.PRESENCE]
    assert {entry.era for entry in scene.book.entries(EntryKind.PRESENCE)} == {1}


def test_era_that_comes_right_behind_a_writing_is_not_forgotten():
    scene = Scene()
    scene.due(SEATED, 0.0)
    scene.book.enter_era(1)
    assert EntryKind.PRESENCE not in scene.due(SEATED, 1.0)
    assert EntryKind.PRESENCE in scene.hours(SEATED, 0.01, from_s=2.0)


def test_nothing_is_written_before_others_are_asked():
    scene = Scene(must_ask=True)
    assert scene.due(SEATED, 0.0) == []
    assert scene.announcing.leave("bye", wall_s=WALL_S) == ()
    scene = Scene(must_ask=True)
    scene.book.asked()
    assert EntryKind.IDENTITY in scene.due(SEATED, 1.0)


def test_checkpoints_of_short_rounds_never_fill_the_room_of_a_writer():
    scene = Scene()
    for at_s in range(0, 4 * 3600, 10):
        scene.due(replace(SEATED, checkpoint=kept(at_s // 10 % 250)), float(at_s))
        live = list(scene.book.entries(EntryKind.CHECKPOINT))
        assert len(live) <= RULES[EntryKind.CHECKPOINT].per_writer
    assert at_s > 12 * CHECKPOINT_S
    # Only the newest that was told of counts, and others are told so.
    said = [e.key for e in live if e.content == kept(e.key[0]).body]
    assert len(said) == 1
    (key,) = said
    assert scene.book.entry(ME.peer_id, EntryKind.CHECKPOINT, key) is not None


def test_checkpoint_that_stays_is_told_of_once():
    scene = Scene()
    still = replace(SEATED, checkpoint=kept(3))
    kinds = scene.hours(still, 0.3)
    assert kinds.count(EntryKind.CHECKPOINT) == 1


def text(*blocks: int) -> KeptText:
    return KeptText(root=bytes([9]) * 32, body=announcement(mask_of(blocks, 20), room=5))


def test_text_is_told_of_when_it_changes_and_again_before_its_end():
    scene = Scene()
    assert scene.hours(replace(SEATED, text=text(1)), 0.1).count(EntryKind.TEXT) == 1
    assert EntryKind.TEXT in scene.due(replace(SEATED, text=text(1, 2)), 400.0)
    assert EntryKind.TEXT not in scene.due(replace(SEATED, text=text(1, 2, 3)), 401.0)
    assert EntryKind.TEXT in scene.due(replace(SEATED, text=text(1, 2, 3)), 406.0)
    kinds = scene.hours(replace(SEATED, text=text(1, 2, 3)), 2.0, from_s=410.0)
    assert 3 <= kinds.count(EntryKind.TEXT) <= 6
    (live,) = scene.book.entries(EntryKind.TEXT)
    assert live.content == text(1, 2, 3).body


def test_others_read_what_is_told_of_a_text_and_of_no_other():
    scene = Scene()
    scene.due(replace(SEATED, text=text(1)), 0.0)
    root = text().root
    assert texts_told(scene.book, root, [], most=9) == {}, "its own is no news to it"
    other = SharedState(RUN, signer(1))
    for entry_id in all_ids(scene.book):
        other.offer(scene.book.get(entry_id) or b"", wall_s=WALL_S, now_s=0.0)
    assert texts_told(other, root, [], most=9) == {ME.peer_id: text(1).body}
    assert texts_told(other, root, [ME.peer_id], most=1) == {ME.peer_id: text(1).body}
    assert texts_told(other, root, [], most=0) == texts_told(other, bytes(32), [], most=9) == {}


def test_who_leaves_is_gone_until_it_comes_again():
    scene = Scene()
    assert scene.announcing.leave("nobody knew", wall_s=WALL_S) == ()
    scene = Scene()
    scene.due(SEATED, 0.0)
    (left,) = scene.announcing.leave("bye " * 40, wall_s=WALL_S + 1.0)
    scene.book.release(left, wall_s=WALL_S + 1.0)
    assert decode_entry(left.encoded, RUN).kind is EntryKind.LEAVE
    assert known_elsewhere(scene.book) == []
    assert scene.hours(SEATED, 0.5, from_s=2.0) == []
    assert scene.announcing.leave("again", wall_s=WALL_S + 2.0) == ()
    scene.announcing = Announcing(scene.book)
    assert EntryKind.IDENTITY in scene.due(SEATED, 3.0)
    assert known_elsewhere(scene.book) == [ME.peer_id]


def test_restart_says_again_only_what_a_life_is():
    scene = Scene()
    scene.due(SEATED, 0.0)
    scene.announcing = Announcing(scene.book)
    kinds = scene.due(SEATED, 20.0)
    assert EntryKind.IDENTITY not in kinds
    assert EntryKind.PRESENCE in kinds
    mine = scene.book.entry(ME.peer_id, EntryKind.PRESENCE)
    assert mine is not None
    assert isinstance(mine.content, Presence)
