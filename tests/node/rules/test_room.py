"""Who says very much takes nobody's room, and no memory without bound."""

from dataclasses import replace

import pytest
from blake3 import blake3

from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.frames import Messages
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Agg,
    Body,
    Have,
    Held,
    Kind,
    Seal,
    Seat,
    SignedMessage,
    Vote,
    slice_subject,
)
from protocol.rounds.admission import ATTEMPTS_AHEAD_MAX, SHUT_ROUNDS, may_sit_next
from protocol.rounds.ballots import BallotEntry, Early
from protocol.rounds.reducers import Slice
from protocol.rounds.seating import MessageQuota, in_turn
from tests.node.builders import (
    CLOCK_RULES,
    CONFIG,
    Voice,
    contributed,
    digest_of,
    head_of,
    list_body,
    machine_of,
    peers_named,
    view_of,
)
from tests.node.cores import MANIFEST, faults, hand, recorded

ME, *OTHERS, LIAR, STRANGER = peers_named(7)
VOTERS = (ME, *OTHERS, LIAR)
HEAD = head_of(VOTERS)
OPEN = replace(CONFIG, trust="open", clock=replace(CLOCK_RULES, trust="open"))


def open_core() -> NodeCore:
    core = NodeCore(MANIFEST, OPEN, KeyedHashSigner(ME), HEAD, now_s=0.0)
    core.start(0.0)
    # A seat is for who is linked itself: some of the made-up keys are.
    for peer in (*OTHERS, LIAR, STRANGER, *(made_up(number).peer for number in range(8))):
        core.handle(ev.Linked(peer), 0.0)
    return core


def made_up(number: int) -> Voice:
    return Voice(PeerId(blake3(b"%d" % number).digest()), HEAD.value)


def seat_of(voice: Voice, mark: int = 0) -> ev.Heard:
    return voice.say(Kind.SEAT, Seat(proof=bytes([mark]) * 32, device=""))


def opens(core: NodeCore) -> bool:
    """Whether the round opens with what the honest members commit."""
    for peer in OTHERS:
        hand(core, peer, Voice(peer, HEAD.value).commit(), now_s=0.1)
    core.handle(contributed(5), 0.2)
    return core.machine.view.times.opened_s is not None


def checks(actions) -> list[ev.CheckSeat]:
    return [action for action in actions if isinstance(action, ev.CheckSeat)]


def test_seats_of_made_up_keys_are_filed_up_to_their_room_and_no_round_waits():
    core = open_core()
    for number in range(limits.SEATS_ASKED_MAX + 100):
        assert not faults(hand(core, STRANGER, seat_of(made_up(number))))
    assert len(core.machine.view.ballots) == limits.SEATS_ASKED_MAX
    assert opens(core)


def test_of_more_seats_than_there_is_room_for_the_first_of_the_round_are_kept_however_they_came():
    asked = [made_up(number) for number in range(limits.SEATS_ASKED_MAX + 100)]
    first = set(in_turn(HEAD.value.round + 1, [v.peer for v in asked])[: limits.SEATS_ASKED_MAX])
    for order in (asked, asked[::-1]):
        core = open_core()
        ballots = core.machine.view.ballots
        for voice in order:
            hand(core, STRANGER, seat_of(voice))
        assert ballots.of(Kind.SEAT).keys() == first
        assert {one.sender for one in ballots.messages()} == first
        assert len(ballots.ids) == len(first)
        assert not ballots.unknown_to(frozenset(ballots.told_ids))


def test_words_of_a_member_beyond_its_own_room_leave_that_of_seats():
    core, liar = open_core(), Voice(LIAR, HEAD.value)
    piece = core.machine.view.slices[0]
    for number in range(limits.MESSAGES_PER_ROUND_MAX):
        digest = blake3(b"%d" % number).digest()
        body = Agg(list_digest=digest, first=piece.first, stop=piece.stop, root=digest)
        subject = slice_subject(digest, piece.first, piece.stop)
        hand(core, LIAR, liar.say(Kind.AGG, body, subject=subject))
    assert checks(hand(core, STRANGER, seat_of(made_up(0))))


def test_proofs_are_checked_one_after_the_other_in_the_order_of_the_round_and_each_once():
    core, asked = open_core(), [made_up(number) for number in range(8)]
    due = [c for voice in asked for c in checks(hand(core, STRANGER, seat_of(voice)))]
    looked_at = []
    while due:
        (check,) = due
        looked_at.append(check.peer)
        known = None if len(looked_at) == 3 else len(looked_at) % 2 == 0
        due = checks(core.handle(ev.SeatChecked(check.peer, check.basis, known), 0.0))
    assert looked_at[0] == asked[0].peer
    others = [voice.peer for voice in asked[1:]]
    assert looked_at[1:] == in_turn(HEAD.value.round + 1, others)
    assert core.machine.view.seats.proven == set(looked_at[1::2])


@pytest.mark.parametrize(("is_proved", "is_heard"), [(True, True), (False, False), (None, True)])
def test_key_whose_proof_was_wrong_is_not_heard_in_the_rounds_behind(is_proved, is_heard):
    core, voice = open_core(), made_up(0)
    (check,) = checks(hand(core, STRANGER, seat_of(voice)))
    core.handle(ev.SeatChecked(check.peer, check.basis, is_proved), 0.0)
    behind = seat_of(Voice(voice.peer, NEXT))
    hand(core, STRANGER, behind)
    assert (behind.message.digest in core.machine.view.early) is is_heard
    late = seat_of(Voice(voice.peer, replace(NEXT, round=NEXT.round + SHUT_ROUNDS)))
    assert not core.machine.proofs.is_shut(voice.peer, late.message.slot.round)


def test_check_of_a_round_that_is_over_holds_up_no_other():
    core = open_core()
    assert checks(hand(core, STRANGER, seat_of(made_up(0))))
    assert not checks(hand(core, STRANGER, seat_of(made_up(1))))
    (check,) = checks(core.handle(ev.SeatChecked(made_up(0).peer, bytes(32), False), 0.0))
    assert check.peer == made_up(1).peer
    assert not core.machine.proofs.is_shut(made_up(0).peer, HEAD.value.round + 1)


def test_own_seat_is_asked_for_however_many_made_up_keys_ask():
    """Else a node would take its own words for a slot that it filled twice."""
    machine = machine_of(STRANGER, HEAD)
    for number in range(limits.SEATS_ASKED_MAX + 1):
        machine.handle(seat_of(made_up(number)), 0.0)
    actions = list(machine.take_seat(HEAD.value.digest, bytes(32)))
    assert [message.sender for message in recorded(actions, Kind.SEAT)] == [STRANGER]


def test_words_about_lists_that_a_member_makes_up_stop_no_round():
    core, liar = open_core(), Voice(LIAR, HEAD.value)
    piece = core.machine.view.slices[0]
    cells = (piece.first, piece.stop)
    for number in range(limits.MESSAGES_PER_ROUND_MAX + 100):
        digest = blake3(b"%d" % number).digest()
        body = Agg(list_digest=digest, first=cells[0], stop=cells[1], root=digest)
        hand(core, LIAR, liar.say(Kind.AGG, body, subject=slice_subject(digest, *cells)))
    assert len(core.machine.view.ballots) == 0
    assert 0 < len(core.machine.view.unlisted) <= limits.EARLY_BYTES_MAX / 280
    assert opens(core)


def test_words_for_all_attempts_stop_no_round_and_take_a_bounded_room():
    """Short ones by their number, long ones by their bytes."""
    bodies: list[tuple[Kind, Body]] = [(Kind.VOTE, Vote(list_digest=bytes(32))), (Kind.HAVE, LONG)]
    for kind, body in bodies:
        core, liar = open_core(), Voice(LIAR, HEAD.value)
        said = [liar.say(kind, body, attempt) for attempt in range(ATTEMPTS_AHEAD_MAX + 9)]
        for one in said:
            assert not faults(hand(core, LIAR, one))
        ballots = core.machine.view.ballots
        taken = sum(len(message.encoded) for message in ballots.messages())
        assert taken <= limits.MEMBER_BYTES_PER_ROUND_MAX
        size = len(said[-1].message.encoded)
        assert taken > limits.MEMBER_BYTES_PER_ROUND_MAX - size or kind is Kind.VOTE
        assert len(ballots) == ATTEMPTS_AHEAD_MAX + 1 or kind is Kind.HAVE
        assert opens(core)


def test_bytes_of_a_member_take_nothing_from_others():
    room = MessageQuota(frozenset(VOTERS))
    long = [
        [Voice(peer, HEAD.value).say(Kind.HAVE, LONG, attempt).message for attempt in range(60)]
        for peer in (LIAR, STRANGER)
    ]
    most = [limits.MEMBER_BYTES_PER_ROUND_MAX // len(said[-1].encoded) for said in long]
    assert [sum(room.takes(message) for message in said) for said in long] == most
    assert room.takes(Voice(OTHERS[0], HEAD.value).say(Kind.HAVE, LONG).message)


def agg_of(voice: Voice, digest: bytes, piece: Slice) -> ev.Heard:
    body = Agg(list_digest=digest, first=piece.first, stop=piece.stop, root=bytes(32))
    return voice.say(Kind.AGG, body, subject=slice_subject(digest, piece.first, piece.stop))


@pytest.mark.parametrize("how", ["list", "votes", "seals"])
def test_sum_that_comes_before_its_list_counts_and_is_passed_on_once_the_list_is_named(how):
    """A link may be faster than another: what is said of it is not said again at once."""
    core = open_core()
    view = core.machine.view
    commits = [Voice(peer, HEAD.value).commit() for peer in VOTERS]
    digest = digest_of(HEAD.value, commits)
    early = agg_of(Voice(OTHERS[0], HEAD.value), digest, view.slices[0])
    assert not hand(core, OTHERS[0], early)
    assert view.ballots.find(early.message.digest) is None
    assert early.message.message_id not in view.ballots.told_ids
    others = [Voice(peer, HEAD.value) for peer in OTHERS]
    body = Seal(value=digest, list_digest=digest, root=digest)
    said = {
        "list": [Voice(view.closer(0), HEAD.value).say(Kind.LIST, list_body(commits))],
        "votes": [voice.say(Kind.VOTE, Vote(list_digest=digest)) for voice in others],
        "seals": [voice.say(Kind.SEAL, body, subject=view.seals.before) for voice in others],
    }[how]
    *before, last = said
    for one in before:
        assert early.message not in told(hand(core, one.message.sender, one))
    assert early.message in told(hand(core, last.message.sender, last))
    assert view.ballots.find(early.message.digest) is not None
    assert len(view.unlisted) == 0


def told(actions) -> list[SignedMessage]:
    """What is passed on."""
    frames = [action.frame for action in actions if isinstance(action, ev.SendAll)]
    return [one for frame in frames if isinstance(frame, Messages) for one in frame.messages]


def test_word_about_cells_that_are_no_slice_is_not_filed():
    core, liar = open_core(), Voice(LIAR, HEAD.value)
    stop = core.machine.view.cells.num_cells + 1
    digest = blake3(b"list").digest()
    body = Agg(list_digest=digest, first=0, stop=stop, root=digest)
    hand(core, LIAR, liar.say(Kind.AGG, body, subject=slice_subject(digest, 0, stop)))
    assert len(core.machine.view.ballots) == 0


def test_made_up_key_that_contradicts_itself_is_no_evidence_that_anybody_keeps():
    core = open_core()
    for number in range(3):
        for mark in (0, 1):
            actions = hand(core, STRANGER, seat_of(made_up(number), mark))
            assert not any(isinstance(action, ev.Accuse) for action in actions)
    assert not core.machine.convicted
    hand(core, OTHERS[0], Voice(OTHERS[0], HEAD.value).commit("one"))
    actions = hand(core, OTHERS[0], Voice(OTHERS[0], HEAD.value).commit("other"))
    assert any(isinstance(action, ev.Accuse) for action in actions)


LONG = Have(held=tuple(Held(first=i, stop=i + 1, senders=bytes([i % 256])) for i in range(3072)))
NEXT = replace(HEAD.value, round=HEAD.value.round + 1)


def test_messages_of_the_next_round_are_kept_early_of_whom_may_have_a_seat_in_it():
    core, early = open_core(), open_core().machine.view.early
    assert len(early) == 0
    hand(core, STRANGER, Voice(STRANGER, NEXT).say(Kind.HAVE, LONG))
    assert len(core.machine.view.early) == 0
    core.handle(ev.SeatChecked(STRANGER, HEAD.value.digest, is_proved=True), 0.0)
    hand(core, STRANGER, Voice(STRANGER, NEXT).say(Kind.HAVE, LONG))
    assert len(core.machine.view.early) == 1


def test_joiner_that_enough_voters_name_is_heard_early_whoever_checked_its_proof():
    core = open_core()
    for number, peer in enumerate(OTHERS[:2]):
        hand(core, peer, Voice(peer, HEAD.value).commit(joins=(STRANGER,)))
        said = Voice(STRANGER, NEXT).say(Kind.HAVE, Have(held=()), number)
        hand(core, STRANGER, said)
        assert (said.message.digest in core.machine.view.early) == (number == 1)


@pytest.mark.parametrize(("trust", "may"), [("open", False), ("friends", True)])
def test_members_without_a_vote_make_no_joiner_heard_early_in_an_open_run(trust, may):
    head = head_of(VOTERS[:4], VOTERS[4:])
    named = [Voice(peer, head.value).commit(joins=(STRANGER,)) for peer in VOTERS[4:]]
    assert may_sit_next(view_of(ME, head, named, trust=trust), STRANGER) is may


def test_member_keeps_no_more_early_than_its_bytes():
    core = open_core()
    for attempt in range(200):
        hand(core, LIAR, Voice(LIAR, NEXT).say(Kind.HAVE, LONG, attempt))
    taken = sum(len(entry.message.encoded) for entry in core.machine.view.early.values())
    assert 0 < taken <= limits.EARLY_BYTES_MAX
    hand(core, OTHERS[0], Voice(OTHERS[0], NEXT).say(Kind.HAVE, LONG))
    assert len({e.message.sender for e in core.machine.view.early.values()}) == 2


def test_seats_that_come_early_are_kept_up_to_their_room_and_taken_once():
    early = Early()
    for number in range(limits.SEATS_ASKED_MAX + 10):
        heard = seat_of(made_up(number))
        for _ in range(2):
            early.keep(BallotEntry(heard.message, heard.body), rounds=1)
        assert heard.message.digest in early or number >= limits.SEATS_ASKED_MAX
    assert len(list(early.take())) == limits.SEATS_ASKED_MAX
    assert len(early) == 0
    heard = seat_of(made_up(0))
    early.keep(BallotEntry(heard.message, heard.body), rounds=1)
    assert len(early) == 1
