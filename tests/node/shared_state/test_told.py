"""Who is known by entries."""

import random
from dataclasses import replace

from node.peers.entry_exchange import all_told
from node.status.records import PeerReport
from protocol.entry_kinds import EntryKind, Presence
from protocol.shared_state.book import SharedState
from protocol.shared_state.entry_gossip import TELLERS_MAX
from protocol.wire import encode
from tests.node.shared_state.scene import RUN, WALL_S, make_entry, signer
from tests.node.shared_state.test_announcing import SEATED, Scene

OTHERS = [signer(number) for number in range(20, 30)]


def book_of(*kinds: EntryKind, writers: int = len(OTHERS)) -> SharedState:
    book = SharedState(RUN, signer(9))
    for kind in kinds:
        for writer in OTHERS[:writers]:
            entry = make_entry(writer, kind)
            assert book.offer(encode(entry), wall_s=WALL_S, now_s=0.0).is_new
    return book


def test_members_come_first_and_others_as_far_as_there_is_room():
    book = book_of(EntryKind.IDENTITY, EntryKind.PRESENCE)
    last = OTHERS[-1].peer_id
    told = all_told(book, (last,), most=3)
    assert len(told) == 3
    assert next(iter(told)) == last
    assert len(all_told(book, (), most=100)) == len(OTHERS)
    assert isinstance(told[last], PeerReport)
    assert told[last].round is not None
    assert all_told(book_of(EntryKind.IDENTITY), (), most=1).popitem()[1].round is None


def test_presence_alone_and_the_own_entries_are_nobody():
    assert all_told(book_of(EntryKind.PRESENCE), (), most=10) == {}
    scene = Scene()
    scene.due(SEATED, 0.0)
    assert all_told(scene.book, (scene.book.me,), most=10) == {}


def test_those_who_left_are_not_all_looked_at():
    book = book_of(EntryKind.IDENTITY, EntryKind.LEAVE, writers=8)
    late = OTHERS[9]
    assert book.offer(encode(make_entry(late, EntryKind.IDENTITY)), wall_s=WALL_S, now_s=0.0).is_new
    assert list(all_told(book, (), most=10)) == [late.peer_id]
    assert all_told(book, [one.peer_id for one in OTHERS[:8]], most=3) == {}


def test_unseated_node_of_a_large_swarm_says_nothing(monkeypatch):
    unseated = replace(SEATED, is_seated=False)
    for num, expected in ((9, [EntryKind.IDENTITY]), (10, [])):
        scene = Scene()
        for writer in OTHERS[:num]:
            scene.book.offer(
                encode(make_entry(writer, EntryKind.IDENTITY)), wall_s=WALL_S, now_s=0.0
            )
        monkeypatch.setattr("protocol.shared_state.entry_gossip.TELLERS_MAX", 10)
        assert scene.due(unseated, 1.0) == expected
        assert EntryKind.IDENTITY in scene.due(SEATED, 20.0) or expected
    assert TELLERS_MAX >= 4 * 64


def test_presence_is_the_last_word_and_leaving_wins_over_what_was_before():
    a, b, c = OTHERS[:3]
    first = make_entry(a, EntryKind.PRESENCE)
    later = Presence(incarnation=4, round=42, head=bytes(32))
    entries = [
        first,
        make_entry(a, EntryKind.PRESENCE, after=first, wall_s=WALL_S + 1, body=later),
        make_entry(a, EntryKind.IDENTITY),
        make_entry(b, EntryKind.LEAVE, wall_s=WALL_S + 5),
        make_entry(b, EntryKind.PRESENCE, wall_s=WALL_S + 4),
        make_entry(b, EntryKind.IDENTITY),
        make_entry(c, EntryKind.LEAVE),
        make_entry(c, EntryKind.PRESENCE, wall_s=WALL_S + 9),
        make_entry(c, EntryKind.IDENTITY, wall_s=WALL_S + 8),
    ]
    for seed in range(5):
        random.Random(seed).shuffle(entries)
        book = SharedState(RUN, signer(9))
        for entry in entries:
            assert not book.offer(encode(entry), wall_s=WALL_S + 9, now_s=0.0).fault
        told = all_told(book, (), most=9)
        assert told.keys() == {a.peer_id, c.peer_id}
        assert told[a.peer_id].round == 42
