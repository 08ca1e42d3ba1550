"""R8: signed messages are forwarded once, and heartbeats fill the gaps."""

from protocol import limits
from protocol.core.relay import FRAME_BYTES, Relay, message_ids, pack
from protocol.events import Send
from protocol.frames import Heartbeat, Messages, encode_frame
from protocol.identity import PeerId
from protocol.limits import CONTROL_FRAME_BYTES_MAX
from protocol.messages import Kind
from protocol.rounds.ballots import BallotEntry
from tests.node.builders import Voice, head_of, peers_named, view_of

A, B, C, D = peers_named(4)
E = PeerId(bytes(32))
HEAD = head_of((A, B, C, D))
a, b = Voice(A, HEAD.value), Voice(B, HEAD.value)
ONE, TWO = a.commit(), b.commit()


def beat(*held, round_index=5, head=HEAD.value.digest, links=()) -> Heartbeat:
    ids = tuple(event.message.digest[:8] for event in held)
    return Heartbeat(round=round_index, head=head, held=ids, links=links)


BEAT_S = 0.5


def filled(relay: Relay, heartbeat: Heartbeat, now_s: float = 99.0):
    found = relay.fill(B, heartbeat, (view_of(C, HEAD, [ONE, TWO]),), now_s)
    return [message for send in found for message in messages_of(send)]


def messages_of(send: Send):
    assert isinstance(send.frame, Messages)
    return list(send.frame.messages)


def linked_to(*peers: PeerId, links: tuple[PeerId, ...]) -> Relay:
    """Of node C, whose peers have said for a while that these are their links."""
    relay = Relay(C, settle_s=0.25)
    for peer in (*peers, *peers):
        list(relay.fill(peer, beat(links=links), (), 0.0))
    return relay


def test_message_goes_to_those_whom_its_origin_does_not_reach_and_to_nobody_twice():
    relay = linked_to(A, links=(B, C))
    found = list(relay.forward(ONE.message, A, (A, B, D)))
    assert [send.peers for send in found] == [(D,)]


def test_message_of_an_origin_whose_links_are_unknown_goes_to_all_but_origin_and_source():
    relay = Relay(C, settle_s=0.25)
    assert [send.peers for send in relay.forward(ONE.message, B, (A, B, D))] == [(D,)]


def test_message_does_not_go_to_whoever_says_that_it_is_linked_to_its_origin():
    relay = linked_to(A, links=(C,))
    list(relay.fill(D, beat(links=(A, C)), (), 0.0))
    assert [send.peers for send in relay.forward(ONE.message, A, (A, B, D))] == [(B,)]
    list(relay.fill(D, beat(links=(C,)), (), 0.0))
    assert [send.peers for send in relay.forward(ONE.message, A, (A, B, D))] == [(B, D)]


def test_message_does_not_go_to_those_whom_its_forwarder_is_linked_to():
    relay = linked_to(B, links=(C, D))
    found = relay.forward(ONE.message, B, (A, B, D, E))
    assert [send.peers for send in found] == [(E,)], "A signed it, B has told D"


def test_nothing_is_forwarded_of_a_peer_that_has_just_come_until_it_names_its_links_again():
    relay = Relay(C, settle_s=0.25)
    list(relay.fill(A, beat(links=(C,)), (), 0.0))
    assert not relay.forward(ONE.message, A, (A, B, D))
    list(relay.fill(A, beat(links=(B, C)), (), 0.5))
    assert [send.peers for send in relay.forward(ONE.message, A, (A, B, D))] == [(D,)]
    relay.drop_link(A)
    list(relay.fill(A, beat(links=(C,)), (), 1.0))
    assert not relay.forward(ONE.message, A, (A, B, D))


def test_links_of_a_peer_that_is_no_longer_linked_are_forgotten():
    relay = linked_to(A, links=(D,))
    assert not list(relay.forward(ONE.message, A, (A, D)))
    relay.drop_link(A)
    assert [send.peers for send in relay.forward(ONE.message, A, (A, D))] == [(D,)]


def test_heartbeat_is_answered_with_what_it_lacks():
    relay = Relay(C, settle_s=0.25)
    assert filled(relay, beat(ONE), 1.0) == [TWO.message]
    assert filled(relay, beat(), 1.0 + BEAT_S) == [ONE.message, TWO.message]
    assert filled(relay, beat(ONE, TWO), 1.0 + 2 * BEAT_S) == []


def test_what_a_peer_refuses_is_sent_again_later_each_time_and_to_others_as_before():
    relay, sent_s = Relay(C, settle_s=BEAT_S / 2), []
    for number in range(1, 601):
        now_s = number * BEAT_S
        # It says to hold all, and nothing, in turn: that is no way to be told all again.
        assert not filled(relay, beat(ONE, TWO), now_s - BEAT_S / 2)
        if filled(relay, beat(TWO), now_s):
            sent_s.append(now_s)
    assert len(sent_s) <= 11, "in five minutes of two heartbeats a second"
    assert sent_s[1] <= sent_s[0] + BEAT_S, "one that was lost, or said too early, comes soon"
    found = relay.fill(D, beat(TWO), (view_of(C, HEAD, [ONE, TWO]),), 301.0)
    assert [message for send in found for message in messages_of(send)] == [ONE.message]
    relay.drop_link(B)
    assert filled(relay, beat(TWO), 301.0) == [ONE.message], "it may have been restarted"


def test_memory_of_what_was_refused_ends_with_the_round():
    relay = Relay(C, settle_s=BEAT_S / 2)
    for message in (ONE.message, TWO.message):
        relay.note(message, 0.0)
    filled(relay, beat(), 1.0)
    assert set(relay._sent[B]) == {ONE.message.message_id, TWO.message.message_id}
    relay.forget((view_of(C, HEAD, [TWO]),))
    assert set(relay._sent[B]) == {TWO.message.message_id}


def test_only_so_much_goes_with_one_heartbeat_and_the_rest_with_the_next(monkeypatch):
    monkeypatch.setattr("protocol.core.relay.FILL_BYTES_MAX", len(ONE.message.encoded) + 1)
    relay = Relay(C, settle_s=BEAT_S / 2)
    assert filled(relay, beat(), 1.0) == [ONE.message]
    assert filled(relay, beat(ONE), 1.0 + BEAT_S) == [TWO.message]


def test_heartbeat_of_another_round_or_another_chain_gets_nothing():
    relay = Relay(C, settle_s=0.25)
    assert filled(relay, beat(round_index=6)) == []
    assert filled(relay, beat(head=bytes(32))) == []


def test_message_that_came_a_moment_ago_is_left_out_once():
    relay = Relay(C, settle_s=0.25)
    relay.note(ONE.message, 10.0)
    assert filled(relay, beat(TWO), now_s=10.2) == []
    assert filled(relay, beat(TWO), now_s=10.3) == [ONE.message]
    relay.note(ONE.message, 12.0)
    relay.forget((view_of(C, HEAD, [TWO]),))
    assert filled(relay, beat(TWO), now_s=12.0) == [ONE.message]


def test_packed_frames_keep_the_order_and_fit_a_control_frame():
    messages = [a.vote([], attempt).message for attempt in range(2000)]
    frames = list(pack(B, messages))
    assert [m for send in frames for m in messages_of(send)] == messages
    assert len(frames) < 20
    for send in frames:
        assert len(messages_of(send)) <= 256
        assert sum(len(m.encoded) for m in messages_of(send)) <= FRAME_BYTES
        assert len(encode_frame(send.frame)) <= CONTROL_FRAME_BYTES_MAX
    assert not list(pack(B, []))


def test_heartbeat_names_every_message_of_the_round():
    view = view_of(C, HEAD, [ONE, TWO])
    assert message_ids(view) == tuple(e.message.digest[:8] for e in (ONE, TWO))
    assert ONE.message.slot.kind is Kind.COMMIT


def test_heartbeat_of_a_full_round_still_fits_its_frame(monkeypatch):
    monkeypatch.setattr(limits, "MESSAGES_PER_ROUND_MAX", 2)
    view = view_of(C, HEAD, [ONE, TWO])
    own = Voice(C, HEAD.value).commit()
    assert view.ballots.add(BallotEntry(own.message, own.body), is_own=True) == "new"
    assert len(message_ids(view)) == 2
