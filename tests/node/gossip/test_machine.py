"""The composed machine: entries pass through, and hostile peers cost little and break nothing."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.events import Fault, Send
from protocol.frames import encode_frame
from protocol.gossip import (
    GOSSIP_FRAMES,
    Compare,
    Digests,
    Entries,
    Farewell,
    Introduction,
    Neighbour,
    NeighbourKind,
    OfferIds,
    Ping,
    PingFor,
    Shuffle,
    Shuffled,
    WantEntries,
)
from protocol.gossiping.gossiped import Offered, OfferVerdict
from protocol.gossiping.machine import Gone, Gossip
from protocol.gossiping.settings import PEERS_MAX, Quota, Rate
from protocol.gossiping.spreading import UNSERVED_MAX
from protocol.identity import PeerId
from sim.crowds.gossiping import MARK, SimBook
from tests.node.builders import peers_named
from tests.protocol.strategies import values

PEERS = peers_named(40)
ME, A, B, LIAR = PEERS[:4]
NEIGHBOURS = PEERS[4:10]


class Script:
    """One machine with six neighbours, and what it says."""

    def __init__(self, book: SimBook | None = None) -> None:
        self.book = SimBook() if book is None else book
        self.machine = Gossip(ME, self.book, random.Random(5), now_s=0.0)
        self.now_s = 0.0
        for peer in NEIGHBOURS:
            self.machine.meet(peer, (), now_s=0.0)
        while len(self.machine.views.neighbours) < len(NEIGHBOURS):
            for peer, _ in self.machine.views.wanted(self.now_s):
                self.hear(peer, Neighbour(kind=NeighbourKind.YES))

    def hear(self, peer, frame):
        return self.machine.handle(peer, frame, wall_s=0.0, now_s=self.now_s)

    def pass_time(self, seconds: float):
        actions = []
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            actions += self.machine.tick(now_s=self.now_s)
        return actions


def entry(text: str, size: int = 100) -> bytes:
    return (MARK + text.encode() + b" ").ljust(size, b".")


def push(*entries: bytes) -> Entries:
    return Entries(is_push=True, entries=entries)


def sent(actions, kind):
    return [(a.peer, a.frame) for a in actions if isinstance(a, Send) and isinstance(a.frame, kind)]


def faults(actions):
    return [(action.peer, action.reason) for action in actions if isinstance(action, Fault)]


def test_own_entry_goes_whole_to_some_neighbours_and_by_id_to_the_others():
    script = Script()
    offered, actions = script.machine.publish(entry("news"), wall_s=0.0, now_s=0.0)
    assert offered.is_new
    whole = [peer for peer, frame in sent(actions, Entries)]
    assert len(whole) == 3
    told = sent(script.pass_time(0.3), OfferIds)
    assert {peer for peer, _ in told} >= set(NEIGHBOURS) - set(whole)
    assert all(frame.ids == (offered.entry_id,) for _, frame in told)


def test_pushed_entry_goes_on_once_and_never_back():
    script = Script()
    source = NEIGHBOURS[0]
    first = script.hear(source, push(entry("news")))
    assert len(sent(first, Entries)) == 3
    assert source not in [peer for peer, _ in sent(first, Entries)]
    assert script.hear(NEIGHBOURS[1], push(entry("news"))) == []
    assert script.machine.spreading.duplicates == 1
    offers = sent(script.pass_time(0.3), OfferIds)
    assert {source, NEIGHBOURS[1]}.isdisjoint(peer for peer, _ in offers)


def test_entry_that_was_asked_for_is_not_pushed_on_but_offered():
    script = Script()
    script.hear(NEIGHBOURS[0], Entries(is_push=False, entries=(entry("old"),)))
    actions = script.pass_time(5.0)
    assert sent(actions, Entries) == []
    assert 0 < len([1 for _, f in sent(actions, OfferIds)]) <= 2 * len(NEIGHBOURS)


def test_offered_id_is_asked_for_once_and_then_of_others():
    script = Script()
    digest = bytes([9]) * 32
    (ask,) = sent(script.hear(A, OfferIds(ids=(digest,))), WantEntries)
    assert ask == (A, WantEntries(ids=(digest,)))
    assert sent(script.hear(B, OfferIds(ids=(digest,))), WantEntries) == []
    again = [peer for peer, _ in sent(script.pass_time(1.0), WantEntries)]
    assert again == [B]


def test_liar_that_offers_what_it_does_not_send_is_asked_no_more():
    script = Script()
    asked = 0
    for number in range(60):
        ids = (number.to_bytes(32, "big"),)
        asked += len(sent(script.hear(LIAR, OfferIds(ids=ids)), WantEntries))
        asked += len(sent(script.pass_time(2.0), WantEntries))
    assert asked <= 3 * UNSERVED_MAX
    assert len(script.machine.spreading._wants) == 0
    # Others are asked as before.
    assert sent(script.hear(A, OfferIds(ids=(b"\x01" * 32,))), WantEntries)


def test_bytes_that_are_no_entry_are_a_fault_of_whoever_brought_them():
    script = Script()
    actions = script.hear(LIAR, push(b"rubbish", entry("behind it")))
    assert faults(actions) == [(LIAR, "entry: no entry")]
    assert len(script.book) == 0
    assert sent(actions, Entries) == []


def test_flood_of_entries_is_cut_off_and_said_once_a_second():
    script = Script()
    found, taken = [], 0
    for number in range(250):
        frame = push(*(entry(f"{number}/{part}", 15_000) for part in range(3)))
        found += faults(script.hear(LIAR, frame))
        taken += 45_000
    assert taken > 8 * limits.MIB
    assert len(script.book) * 15_000 <= 1.25 * limits.MIB
    assert found == [(LIAR, "a flood of entries")]
    # Nothing of ours is lost by it, and others get through.
    assert script.hear(A, push(entry("honest"))) != []
    assert len(script.book) > 0


def test_flood_of_frames_is_a_fault_and_costs_nothing_more():
    script = Script()
    answers, found = 0, []
    for number in range(6000):
        actions = script.hear(LIAR, Ping(nonce=number, is_neighbour=False, rumours=()))
        answers += len(sent(actions, object))
        found += faults(actions)
    assert answers <= 2048
    assert found == [(LIAR, "a flood of gossip")]


def test_flood_of_ids_is_bounded():
    script = Script()
    for number in range(100):
        ids = tuple((1024 * number + i).to_bytes(32, "big") for i in range(1024))
        script.hear(LIAR, OfferIds(ids=ids))
    assert len(script.machine.spreading._wants) <= 1024


def test_asking_for_everything_again_and_again_is_served_within_a_quota():
    script = Script()
    ids = []
    for number in range(60):
        offered, _ = script.machine.publish(entry(f"{number}", 15_000), wall_s=0.0, now_s=0.0)
        ids.append(offered.entry_id)
    served = 0
    for _ in range(20):
        for _, frame in sent(script.hear(LIAR, WantEntries(ids=tuple(ids))), Entries):
            served += len(encode_frame(frame))
        script.pass_time(0.1)
    assert 0 < served < 1.3 * limits.MIB
    # Questions that cost fifty bytes and bring five thousand are counted too.
    for number in range(200):
        frame = Compare(nonce=number, root=bytes(32))
        served += sum(len(encode_frame(f)) for _, f in sent(script.hear(LIAR, frame), Digests))
    assert served < 1.3 * limits.MIB


def test_errands_for_one_peer_are_few():
    script = Script()
    pinged = 0
    for number in range(200):
        frame = PingFor(nonce=number, target=PEERS[10 + number % 30], addresses=(), rumours=())
        pinged += len(sent(script.hear(LIAR, frame), Ping))
    assert pinged <= 16


def test_introductions_that_nobody_asked_for_are_not_taken():
    script = Script()
    known = (Introduction(peer=PEERS[30], age_s=0, addresses=()),)
    script.hear(LIAR, Shuffled(nonce=1, known=known))
    assert PEERS[30] not in script.machine.views
    script.hear(LIAR, Shuffle(nonce=1, known=known))
    assert PEERS[30] in script.machine.views


def test_ping_of_whom_we_do_not_count_as_neighbour_is_answered_by_an_end():
    script = Script()
    ping = Ping(nonce=3, is_neighbour=True, rumours=())
    actions = script.hear(A, ping)
    assert sent(actions, Neighbour) == [(A, Neighbour(kind=NeighbourKind.END))]
    assert sent(script.hear(NEIGHBOURS[0], ping), Neighbour) == []
    assert sent(script.hear(A, Ping(nonce=4, is_neighbour=False, rumours=())), Neighbour) == []


def test_neighbour_that_says_goodbye_is_replaced_and_not_called_gone():
    script = Script()
    leaver = NEIGHBOURS[0]
    script.machine.meet(A, (), now_s=0.0)
    script.hear(leaver, Farewell(incarnation=0))
    assert leaver not in script.machine.views
    asked = [peer for peer, _ in sent(script.pass_time(2.0), Neighbour)]
    assert A in asked
    assert not [a for a in script.pass_time(30.0) if a == Gone(leaver)]


def test_leaving_node_tells_its_neighbours():
    script = Script()
    told = sent(script.machine.leave(now_s=0.0), Farewell)
    assert {peer for peer, _ in told} == set(NEIGHBOURS)


def test_silent_neighbours_are_gone_and_tried_again_later():
    script = Script()
    actions = script.pass_time(120.0)
    assert {a.peer for a in actions if isinstance(a, Gone)} == set(NEIGHBOURS)
    assert set(script.machine.views.lost) == set(NEIGHBOURS)
    tried = {peer for peer, _ in sent(script.pass_time(120.0), Compare)}
    assert len(tried & set(NEIGHBOURS)) >= 3


def test_evidence_that_an_offer_proved_is_spread():
    class Strict(SimBook):
        """Holds what two entries prove together, as the store of the state does."""

        def offer(self, encoded: bytes, *, wall_s: float, now_s: float) -> Offered:
            if b"twice" not in encoded:
                return super().offer(encoded, wall_s=wall_s, now_s=now_s)
            proof = super().offer(entry("evidence"), wall_s=wall_s, now_s=now_s)
            return Offered(verdict=OfferVerdict.CONTRADICTION, evidence=proof.entry_id)

    script = Script(Strict())
    actions = script.hear(NEIGHBOURS[0], push(entry("twice")))
    assert {frame.entries for _, frame in sent(actions, Entries)} == {(entry("evidence"),)}
    assert faults(actions) == []


def test_quota_forgets_the_peers_that_came_first_and_refills():
    quota = Quota(Rate(per_s=1.0, burst=2.0))
    assert [quota.allows(A, 1.0, 0.0) for _ in range(3)] == [True, True, False]
    assert not quota.allows(A, 1.0, 0.9)
    assert quota.allows(A, 1.0, 1.0)
    for number in range(3 * PEERS_MAX):
        quota.allows(PeerId(number.to_bytes(32, "big")), 1.0, 2.0)
    assert len(quota._levels) == PEERS_MAX


FRAMES = st.one_of(*(values(kind) for kind in GOSSIP_FRAMES.values()))


@settings(deadline=None, max_examples=40)
@given(said=st.lists(st.tuples(st.sampled_from(PEERS[1:12]), FRAMES), max_size=40))
def test_no_frame_breaks_the_machine_or_its_bounds(said):
    script = Script()
    mine = entry("mine")
    script.machine.publish(mine, wall_s=0.0, now_s=0.0)
    for peer, frame in said:
        for action in [*script.hear(peer, frame), *script.pass_time(0.3)]:
            if isinstance(action, Send):
                assert action.peer != ME
                encode_frame(action.frame)
        assert script.machine.views.size <= limits.PARTIAL_VIEW_MAX
        assert script.machine.wakeup_s() > script.now_s - 0.2
    assert any(
        script.book.get(i) == mine for bucket in range(256) for i in script.book.ids_in(bucket)
    )


@pytest.mark.parametrize("kind", [NeighbourKind.ASK, NeighbourKind.URGENT])
def test_sybils_that_ask_to_be_neighbours_never_surround_the_node(kind):
    script = Script()
    chosen = set(script.machine.views.neighbours)
    for peer in PEERS[10:]:
        script.hear(peer, Neighbour(kind=kind))
    assert len(chosen & set(script.machine.views.neighbours)) == len(NEIGHBOURS)
