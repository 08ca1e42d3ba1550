"""What each peer may cost a second, and who is charged for what."""

import pytest

from protocol import events as ev
from protocol import limits
from protocol.core import budgets
from protocol.core.budgets import (
    FRAME_S,
    OVER,
    OVERDRAWN_S,
    SHARE,
    Budgets,
    about_bytes,
    cost_s,
    message_cost_s,
)
from protocol.frames import Messages, StatusAsk, encode_frame
from protocol.gossiping.settings import PEERS_MAX
from protocol.identity import PeerId
from protocol.messages import Have, Held, Kind, Seat
from tests.node.builders import Voice, head_of, peers_named
from tests.node.cores import A, B, C, core_of, hand
from tests.protocol.vectors import FRAMES

ME, PEER, OTHER = peers_named(3)
HEAD = head_of((ME, PEER, OTHER))
LONG = Have(held=tuple(Held(first=i, stop=i + 1, senders=b"\x01") for i in range(3000)))


def flooded(shares: Budgets, peer: PeerId, seconds: float, cost: float = 0.004) -> tuple[int, int]:
    """So many frames were read, and told of, from who sends as fast as it is read."""
    now_s, read, told = 0.0, 0, 0
    while now_s < seconds:
        charge = shares.charge(peer, cost, now_s)
        now_s += max(charge.wait_s, 1e-4)
        read, told = read + 1, told + charge.is_over
    return read, told


def test_flooder_gets_its_share_and_is_told_of_again_and_again():
    shares = Budgets()
    read, told = flooded(shares, PEER, 30.0)
    assert read * 0.004 == pytest.approx(SHARE.burst + 30.0 * SHARE.per_s, rel=0.02)
    assert 30 <= told <= 60
    assert shares.charge(OTHER, 0.1, 30.0) == (0.0, False), "another pays nothing for it"


def test_who_comes_back_does_not_begin_anew():
    shares = Budgets()
    flooded(shares, PEER, 5.0)
    assert shares.charge(PEER, 0.05, 5.5).wait_s > 0.0
    assert shares.charge(PEER, 0.05, 60.0).wait_s == 0.0


def test_burst_of_an_honest_peer_waits_for_nothing_and_is_not_told_of():
    """What a whole round of the largest run takes, each minute."""
    shares = Budgets()
    for minute in range(10):
        for _ in range(20):
            assert shares.charge(PEER, 0.99 * SHARE.burst / 20, 60.0 * minute) == (0.0, False)


def test_a_little_too_much_now_and_then_is_not_told_of():
    shares = Budgets()
    for number in range(200):
        now_s = 20.0 * number
        assert not shares.charge(PEER, SHARE.burst + 0.02, now_s).is_over


def test_peers_that_are_remembered_are_bounded():
    shares = Budgets()
    for number in range(PEERS_MAX + 50):
        shares.charge(PeerId(number.to_bytes(32, "big")), 0.1, 0.0)
    assert len(shares._accounts) == PEERS_MAX


def test_words_of_others_cost_whoever_passes_them_on_the_reading_alone():
    word = Voice(OTHER, HEAD.value).say(Kind.HAVE, LONG).message
    frame = Messages(messages=(word,))
    size = len(encode_frame(frame))
    assert cost_s(OTHER, frame, size) >= FRAME_S + message_cost_s(word) > 0.02
    assert cost_s(PEER, frame, size) < 0.006


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_length_of_a_frame_is_known_nearly_without_its_bytes(frame):
    assert 0.25 * len(encode_frame(frame)) - 40 <= about_bytes(frame)
    assert about_bytes(frame) <= 2 * len(encode_frame(frame)) + 64


# In a node ----------------------------------------------------------------------------------------


def test_nobody_waits_for_who_is_beyond_its_share_until_a_moment_after():
    core = core_of(C, A, B)
    actions = core.handle(ev.Overdrawn(A), 1.0)
    assert ev.Fault(A, OVER, is_strike=False) in actions
    assert core.machine.view.peers.suspects == {A}
    core.handle(ev.Tick(), 1.0 + 0.9 * OVERDRAWN_S)
    assert core.machine.view.peers.suspects == {A}
    core.handle(ev.Tick(), 1.0 + 1.1 * OVERDRAWN_S)
    assert core.machine.view.peers.suspects == frozenset()


def test_words_that_others_pass_on_are_checked_up_to_the_share_of_who_signed_them(monkeypatch):
    checked = []

    def is_signed(message, signer):
        checked.append(message)
        return True

    monkeypatch.setattr("protocol.core.node_core.is_signed", is_signed)
    core = core_of(C, A, B)
    said = [Voice(A, core.machine.head).vote([], attempt) for attempt in range(60)]
    monkeypatch.setattr(budgets, "MESSAGE_S", 0.05)
    for one in said:
        assert not hand(core, B, one, now_s=1.0) or core.machine.view.ballots
    assert 10 <= len(checked) <= 21
    count = len(checked)
    hand(core, A, said[-1], now_s=1.0)
    assert len(checked) == count + 1, "of itself it is heard"
    own = Voice(B, core.machine.head).commit()
    hand(core, B, own, now_s=1.0)
    assert checked[-1] == own.message, "and who passed it on is, too"


def test_seats_of_made_up_keys_are_checked_up_to_a_share_that_they_have_together(monkeypatch):
    checked = []

    def is_signed(message, signer):
        checked.append(message)
        return True

    monkeypatch.setattr("protocol.core.node_core.is_signed", is_signed)
    monkeypatch.setattr(budgets, "MESSAGE_S", 0.05)
    core = core_of(C, A, B)
    head = core.machine.head
    for number in range(60):
        voice = Voice(PeerId(bytes([number]) * 32), head)
        hand(core, A, voice.say(Kind.SEAT, Seat(proof=bytes(32), device="")), now_s=1.0)
    assert 10 <= len(checked) <= 21
    mine = Voice(PeerId(b"\xee" * 32), head).say(Kind.SEAT, Seat(proof=bytes(32), device=""))
    core.handle(ev.Linked(mine.message.sender), 1.0)
    hand(core, mine.message.sender, mine, now_s=1.0)
    assert checked[-1] == mine.message, "who asks itself is heard"


def test_questions_cost_more_than_they_are_long():
    assert cost_s(PEER, StatusAsk(nonce=1), 3) > 50 * FRAME_S
    assert limits.CONTROL_FRAME_BYTES_MAX * budgets.BYTE_S < 0.01
