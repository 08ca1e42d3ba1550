"""A node's decisions together: frames in and out, sleep, catching up, seats."""

from dataclasses import dataclass, field, replace

import pytest

from node.holdings.states import round_config
from protocol import events as ev
from protocol.catching_up.catchup import STUCK_S
from protocol.core.node_core import NodeCore
from protocol.frames import (
    Bulk,
    Heartbeat,
    Hello,
    Lacking,
    Messages,
    StatusAnswer,
    StatusAsk,
    Want,
    WantChain,
    wants,
)
from protocol.identity import KeyedHashSigner
from protocol.manifest import WIRE_VERSION
from protocol.messages import Kind, List
from tests.node.builders import CONFIG, ROOT, Voice, contributed, list_body, view_of
from tests.node.cores import (
    GENESIS,
    HEAD,
    MANIFEST,
    A,
    B,
    C,
    D,
    ahead,
    core_of,
    faults,
    hand,
    recorded,
    run_idle,
    sent,
)

# Messages ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountingSigner(KeyedHashSigner):
    """Counts the signatures that it is asked to check."""

    checked: list[bytes] = field(default_factory=list)

    def verify(self, peer, message, signature):
        self.checked.append(signature)
        return super().verify(peer, message, signature)


def test_message_of_the_next_round_is_checked_once_however_often_it_comes():
    signer = CountingSigner(C)
    core = NodeCore(MANIFEST, CONFIG, signer, HEAD, now_s=0.0)
    core.handle(ev.Linked(A), 0.0)
    later = replace(
        HEAD.value, round=HEAD.value.round + 1, before=HEAD.value.digest, basis=HEAD.value.digest
    )
    for _ in range(3):
        # A new object each time, as it comes off the wire.
        hand(core, A, Voice(A, later).commit())
    assert len(signer.checked) == 1


def test_own_message_goes_to_every_linked_peer_after_it_is_recorded():
    core = core_of(C, A, B)
    actions = core.handle(contributed(5), 0.0)
    assert [peer for peer, _ in sent(actions, Messages)] == sorted((A, B))
    position = [isinstance(action, ev.RecordSlot) for action in actions].index(True)
    assert not sent(actions[:position], Messages)


def test_message_is_filed_and_forwarded_once():
    core = core_of(C, A, B, D)
    commit = Voice(A, HEAD.value).commit()
    assert {peer for peer, _ in sent(hand(core, A, commit), Messages)} == {B, D}
    assert not sent(hand(core, B, commit), Messages)
    assert list(core.machine.view.ballots.commits) == [A]


def test_message_with_a_forged_signature_is_a_fault_of_whoever_brought_it():
    core = core_of(C, A, B)
    message = replace(Voice(A, HEAD.value).commit().message, signature=bytes(64))
    actions = core.handle(ev.FrameArrived(B, Messages(messages=(message,))), 0.0)
    assert [action.peer for action in actions if isinstance(action, ev.Fault)] == [B]
    assert not core.machine.view.ballots.commits


def test_rest_of_a_frame_behind_a_forged_signature_is_not_even_checked():
    core = core_of(C, A, B)
    good = Voice(B, HEAD.value).commit()
    forged = [
        ev.Heard(replace(Voice(B, HEAD.value).vote([], n).message, signature=bytes(64)), good.body)
        for n in range(5)
    ]
    assert len(faults(hand(core, A, *forged, good))) == 1
    assert core.views()[0].ballots.find(good.message.digest) is None
    assert not faults(hand(core, B, good))
    assert core.views()[0].ballots.find(good.message.digest) is not None


@pytest.mark.parametrize("change", [{"run": bytes(32)}, {"shard": 1}])
def test_message_of_another_run_or_shard_is_a_fault(change):
    core = core_of(C, A)
    message = Voice(A, HEAD.value).commit().message
    foreign = replace(message, slot=replace(message.slot, **change))
    assert faults(core.handle(ev.FrameArrived(A, Messages(messages=(foreign,))), 0.0))


def test_malformed_body_is_a_fault():
    core = core_of(C, A)
    message = replace(Voice(A, HEAD.value).commit().message, body=b"\x93garbage")
    assert (
        "malformed"
        in faults(core.handle(ev.FrameArrived(A, Messages(messages=(message,))), 0.0))[0]
    )


def test_votes_that_a_list_quotes_are_filed_before_it():
    voices = {peer: Voice(peer, HEAD.value) for peer in (A, B, C)}
    commits = [voice.commit() for voice in voices.values()]
    votes = [voices[peer].vote(commits, 0) for peer in (A, B)]
    closer = view_of(C, HEAD).closer(1)
    quoted = tuple(vote.message.encoded for vote in votes)
    body = replace(list_body(commits), certificate=quoted)
    core = core_of(D, A)
    assert not faults(hand(core, A, *commits, voices[closer].say(Kind.LIST, body, 1)))
    assert core.machine.view.ballots.certified() == (
        (0, core.machine.view.ballots.list_digest(body)),
    )


def test_certificate_that_quotes_garbage_or_a_forged_vote_certifies_nothing():
    voices = {peer: Voice(peer, HEAD.value) for peer in (A, B, C)}
    commits = [voice.commit() for voice in voices.values()]
    closer = view_of(C, HEAD).closer(1)
    good = voices[A].vote(commits, 0).message
    forged = replace(voices[B].vote(commits, 0).message, signature=bytes(64))
    for bad in (b"\x93garbage", forged.encoded):
        body = List(commits=list_body(commits).commits, drifts=(), certificate=(good.encoded, bad))
        core = core_of(D, A)
        assert faults(hand(core, A, *commits, voices[closer].say(Kind.LIST, body, 1)))
        assert core.machine.view.ballots.certified() == ()


def test_list_inside_a_certificate_is_not_followed():
    voices = {peer: Voice(peer, HEAD.value) for peer in (A, B, C)}
    inner = voices[view_of(C, HEAD).closer(0)].propose([], 0)
    body = List(commits=(), drifts=(), certificate=(inner.message.encoded,))
    core = core_of(D, A)
    hand(core, A, voices[view_of(C, HEAD).closer(1)].say(Kind.LIST, body, 1))
    assert not core.machine.view.ballots.of(Kind.LIST, 0)


def test_heartbeat_with_a_gap_is_answered_with_the_missing_messages():
    core = core_of(C, A)
    core.handle(contributed(5), 0.0)
    beat = Heartbeat(round=5, head=HEAD.value.digest, held=(), links=())
    actions = core.handle(ev.FrameArrived(A, beat), 1.0)
    ((peer, frame),) = sent(actions, Messages)
    assert isinstance(frame, Messages)
    assert (peer, len(frame.messages)) == (A, 1)


def test_want_of_what_is_here_becomes_a_push_and_pull_a_want_only_of_a_linked_peer():
    core = core_of(C, A)
    commit = hand(core, A, Voice(A, HEAD.value).commit())
    assert not faults(commit)
    digest = core.machine.view.ballots.commits[A][0]
    (want,) = wants(Bulk.PART, digest, (1, 3))
    actions = core.handle(ev.FrameArrived(A, want), 0.0)
    assert ev.Push(A, Bulk.PART, digest, (1, 3)) in actions
    pulls = [ev.Pull(peer, Bulk.PART, digest, (1, 3)) for peer in (A, B)]
    assert list(core._expand(pulls, 0.0)) == [ev.Send(A, want)]


@pytest.mark.parametrize("bulk", list(Bulk))
def test_want_of_what_is_not_here_is_answered_before_its_cells_are_looked_at(bulk, monkeypatch):
    def look(_: Want) -> tuple[int, ...]:
        raise AssertionError("the cells of nothing were looked at")

    monkeypatch.setattr(Want, "cells", property(look))
    core = core_of(C, A)
    (want,) = wants(bulk, ROOT, (1, 3))
    actions = core.handle(ev.FrameArrived(A, want), 0.0)
    is_said = bulk in (Bulk.STATE, Bulk.STEP)  # Of the rest whoever asks learns from the messages.
    lacking = [ev.Send(A, Lacking(bulk=bulk, subject=ROOT))] if is_said else []
    assert [a for a in actions if isinstance(a, ev.Push)] == []
    assert [a for a in actions if isinstance(a, ev.Send)] == lacking


@pytest.mark.parametrize("frame", [Hello(wire=WIRE_VERSION, run=ROOT, addresses=())])
def test_handshake_in_the_middle_of_a_conversation_is_a_fault(frame):
    assert faults(core_of(C, A).handle(ev.FrameArrived(A, frame), 0.0))


# Time -------------------------------------------------------------------------------------------


def test_deadlines_are_kept_while_nothing_but_bytes_arrives():
    core = core_of(C, A, B)
    core.handle(contributed(5), 0.0)
    actions = hand(core, A, Voice(A, HEAD.value).commit())
    for step in range(1, 12):
        assert not recorded(actions, Kind.HAVE)
        actions = core.handle(ev.BytesArrived(A), 0.1 * step)
        if 0.1 * step >= 1.0:
            break
    assert recorded(actions, Kind.HAVE)


@pytest.mark.parametrize("moves", [True, False])
def test_bytes_of_a_cell_that_takes_long_keep_who_is_one_round_behind_from_catching_up(moves):
    core = core_of(C, A)
    hand(core, A, Voice(A, HEAD.value).commit())
    digest = core.machine.view.ballots.commits[A][0]
    beat = Heartbeat(round=6, head=HEAD.value.digest, held=(), links=())
    asked = []
    for second in range(1, 3 * int(STUCK_S)):
        actions = core.handle(ev.FrameArrived(A, beat), float(second))
        if moves:
            actions += core.handle(ev.BytesArrived(A, subject=digest), float(second))
        asked += sent(actions, WantChain)
    assert bool(asked) == (not moves)


def test_suspicion_reaches_the_rounds_and_the_next_commit():
    core = core_of(C, A, B)
    run_idle(core, 0.0, 3.0, hears=(A,))
    actions = core.handle(contributed(5), 3.0)
    assert recorded(actions, Kind.COMMIT)
    assert core.machine.view.ballots.commits[C][1].suspects == (B,)


def test_node_that_slept_asks_where_the_others_are_before_anything_else_happens():
    core = core_of(C, A, B)
    commit = Voice(A, HEAD.value).commit()
    actions = hand(core, A, commit, now_s=50.0)
    assert {peer for peer, _ in sent(actions, StatusAsk)} == {A, B}
    assert not recorded(core.handle(contributed(5), 50.0))
    nonce = next(f.nonce for _, f in sent(actions, StatusAsk) if isinstance(f, StatusAsk))
    answer = StatusAnswer(nonce=nonce, round=5, head=HEAD.value.digest)
    stale = replace(answer, nonce=nonce + 1)
    assert not recorded(core.handle(ev.FrameArrived(A, stale), 50.1))
    assert recorded(core.handle(ev.FrameArrived(A, answer), 50.1), Kind.COMMIT)


def test_node_that_slept_asks_again_with_every_beat_also_over_new_links():
    core = core_of(C, A, B)
    core.handle(ev.Tick(), 50.0)
    core.handle(ev.Unlinked(A), 50.1)
    core.handle(ev.Unlinked(B), 50.1)
    core.handle(ev.Linked(A), 50.2)
    actions = run_idle(core, 50.2, 51.2)
    assert {peer for peer, _ in sent(actions, StatusAsk)} == {A}


def test_status_is_told_at_once_with_all_messages_even_by_a_node_that_slept():
    core = core_of(C, A, B)
    core.handle(contributed(5), 0.0)
    core.handle(ev.Tick(), 50.0)
    assert core.machine.is_muted
    actions = core.handle(ev.FrameArrived(A, StatusAsk(nonce=7)), 50.0)
    kinds = [type(a.frame) for a in actions if isinstance(a, ev.Send) and a.peer == A]
    assert kinds.index(Messages) < kinds.index(StatusAnswer)


def test_whoever_has_sealed_says_that_the_next_round_may_be_open():
    core = core_of(C, A, B)
    for lock, expected in ((None, 5), ((0, bytes(32)), 6)):
        core.machine.view.own.lock = lock
        actions = core.handle(ev.FrameArrived(A, StatusAsk(nonce=7)), 0.0)
        ((_, answer),) = sent(actions, StatusAnswer)
        assert isinstance(answer, StatusAnswer)
        assert answer.round == expected


def test_heartbeats_go_to_every_linked_peer_twice_a_second():
    core = core_of(C, A, B)
    actions = run_idle(core, 0.0, 5.0)
    assert len(sent(actions, Heartbeat)) == pytest.approx(20, abs=2)


# Seats ------------------------------------------------------------------------------------------


def test_stranger_proves_its_state_and_asks_for_a_seat_once_per_seal():
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(D), HEAD, now_s=0.0)
    digest = HEAD.value.digest
    assert ev.ProveSeat(digest) in core.start(0.0)
    assert ev.ProveSeat(digest) not in core.handle(ev.Tick(), 0.1)
    actions = core.handle(ev.SeatProven(digest, ROOT), 0.1)
    assert len(recorded(actions, Kind.SEAT)) == 1
    assert not recorded(core.handle(ev.SeatProven(digest, ROOT), 0.2))
    assert not recorded(core.handle(ev.SeatProven(bytes(32), ROOT), 0.2))


def test_member_asks_for_no_seat():
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(A), HEAD, now_s=0.0)
    assert ev.ProveSeat(HEAD.value.digest) not in core.start(0.0)
    assert not recorded(core.handle(ev.SeatProven(HEAD.value.digest, ROOT), 0.0))


def test_node_that_is_behind_asks_for_no_seat_before_it_has_caught_up():
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(D), GENESIS, now_s=0.0)
    core.wants_seat = False
    core.start(0.0)
    core.handle(ev.Linked(A), 0.0)
    ahead(core, A, 9)
    core.wants_seat = True
    assert not [a for a in core.handle(ev.Tick(), 0.1) if isinstance(a, ev.ProveSeat)]


def test_leaving_member_says_so_once():
    core = core_of(C, A)
    assert len(recorded(core.handle(ev.Leaving(), 0.0), Kind.LEAVE)) == 1
    assert not recorded(core.handle(ev.Leaving(), 0.0))


def test_member_trains_on_its_lease_and_a_stranger_on_none():
    leases = {}
    for peer in (A, B, C, D):
        core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(peer), HEAD, now_s=0.0)
        (train,) = [action for action in core.start(0.0) if isinstance(action, ev.Train)]
        leases[peer] = train.lease
    assert leases == {A: ((0, 10),), B: ((10, 20),), C: ((20, 30),), D: ()}


def test_finished_run_leases_nothing_more():
    value = replace(HEAD.value, clock=replace(HEAD.value.clock, ends_run=True))
    head = replace(HEAD, value=value)
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(A), head, now_s=0.0)
    (train,) = [action for action in core.start(0.0) if isinstance(action, ev.Train)]
    assert core.is_finished
    assert train.lease == ()


def test_config_of_a_round_comes_from_the_manifest():
    config = round_config(MANIFEST)
    assert (config.num_cells(1), config.clock.samples_each, config.trust) == (4, 320, "friends")
    assert (config.deadline_floor_s, config.deadline_cap_s) == (1.0, 10.0)
