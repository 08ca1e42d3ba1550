"""Heartbeats name messages by eight bytes: two of one id, which take a liar minutes to find."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol import messages
from protocol.core.node_core import NodeCore
from protocol.core.relay import heartbeat
from protocol.frames import Messages
from protocol.identity import KeyedHashSigner, PeerId
from tests.node.builders import CLOCK_RULES, CONFIG, Voice, head_of, peers_named
from tests.node.cores import MANIFEST, hand, sent

A, B, C, LIAR = PEERS = peers_named(4)
HEAD = head_of(PEERS)
OPEN = replace(CONFIG, trust="open", clock=replace(CLOCK_RULES, trust="open"))
VOICES = {peer: Voice(peer, HEAD.value) for peer in PEERS}


def core_of(me: PeerId) -> NodeCore:
    core = NodeCore(MANIFEST, OPEN, KeyedHashSigner(me), HEAD, now_s=0.0)
    core.start(0.0)
    for peer in PEERS:
        if peer != me:
            core.handle(ev.Linked(peer), 0.0)
    return core


@pytest.fixture
def twins(monkeypatch) -> tuple[ev.Heard, ev.Heard]:
    """Two COMMITs of one sender with the same id, of two bytes that are soon found."""
    monkeypatch.setattr(messages, "MESSAGE_ID_BYTES", 2)
    found: dict[bytes, ev.Heard] = {}
    for number in range(10_000):
        commit = VOICES[LIAR].commit(str(number))
        if commit.message.digest[:2] in found:
            return found[commit.message.digest[:2]], commit
        found[commit.message.digest[:2]] = commit
    raise AssertionError("no two of 10,000 have the same two bytes")


def beat(source: NodeCore, target: NodeCore, now_s: float) -> None:
    """A heartbeat, and what its sender lacks by it."""
    frame = heartbeat(source.machine.view, source.liveness, (), now_s)
    answer = sent(target.handle(ev.FrameArrived(source._me, frame), now_s), Messages)
    for peer, back in answer:
        if peer == source._me:
            source.handle(ev.FrameArrived(target._me, back), now_s)


def test_liar_with_two_commits_of_one_id_is_found_out_by_whoever_has_to_read_the_other(twins):
    one, other = twins
    first, second = core_of(A), core_of(B)
    hand(first, LIAR, one)
    hand(second, LIAR, other)
    commits = [VOICES[peer].commit() for peer in (A, C)]
    for core in (first, second):
        hand(core, C, *commits)
    listed = [*commits, one]
    for step in range(1, 9):
        beat(first, second, 0.5 * step)
        beat(second, first, 0.5 * step)
    assert second.machine.view.ballots.commit_of(one.message.digest) is None
    for peer in (A, C):
        hand(second, peer, VOICES[peer].vote(listed), now_s=5.0)
    attempt_closer = second.machine.view.closer(0)
    hand(second, attempt_closer, VOICES[attempt_closer].propose(listed), now_s=5.0)
    for step in range(11, 20):
        beat(first, second, 0.5 * step)
        beat(second, first, 0.5 * step)
    assert second.machine.view.ballots.commit_of(one.message.digest) is not None
    assert LIAR in second.machine.convicted
    # Whoever lacks either of them is sent both now.
    third = core_of(C)
    for step in range(21, 30):
        beat(third, second, 0.5 * step)
    assert LIAR in third.machine.convicted
    for said in twins:
        assert third.machine.view.ballots.commit_of(said.message.digest) is not None


def test_commit_that_one_liar_says_is_listed_has_nothing_sent_again():
    core = core_of(A)
    commit = VOICES[C].commit()
    hand(core, C, commit)
    made_up = commit.message.digest[:8] + bytes(24)
    closer = core.machine.view.closer(0)
    body = messages.List(commits=(made_up,), drifts=(), certificate=())
    hand(core, closer, VOICES[closer].say(messages.Kind.LIST, body))
    ballots = core.machine.view.ballots
    digest = ballots.list_digest(body)
    vote = messages.Vote(list_digest=digest)
    hand(core, LIAR, VOICES[LIAR].say(messages.Kind.VOTE, vote))
    assert commit.message.message_id in ballots.told_ids
    hand(core, B, VOICES[B].say(messages.Kind.VOTE, vote))
    assert commit.message.message_id not in ballots.told_ids
    assert commit.message.message_id in ballots.ids
