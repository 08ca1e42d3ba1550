"""R2: certificates that LISTs and NEWATTEMPTs quote: who is blamed for a bad one."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.frames import Heartbeat, Messages
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Kind, List, NewAttempt, SignedMessage, Vote
from protocol.rounds.proposal import propose
from tests.node.builders import CLOCK_RULES, CONFIG, Voice, head_of, list_body, peers_named, view_of
from tests.node.cores import MANIFEST, faults, hand, sent

A, B, C, LIAR = PEERS = peers_named(4)
HEAD = head_of(PEERS)
VOICES = {peer: Voice(peer, HEAD.value) for peer in PEERS}
COMMITS = [VOICES[peer].commit() for peer in PEERS]
OPEN = replace(CONFIG, trust="open", clock=replace(CLOCK_RULES, trust="open"))


def core_of(me: PeerId, *linked: PeerId) -> NodeCore:
    core = NodeCore(MANIFEST, OPEN, KeyedHashSigner(me), HEAD, now_s=0.0)
    core.start(0.0)
    for peer in linked:
        core.handle(ev.Linked(peer), 0.0)
    return core


def report_of(voice: Voice, *certificate: bytes, attempt: int = 1) -> ev.Heard:
    listed = list_body(COMMITS).commits
    body = NewAttempt(
        lock_attempt=0, commits=listed, drifts=(), certificate=certificate, missing=()
    )
    return voice.say(Kind.NEWATTEMPT, body, attempt)


def unsigned(message: SignedMessage) -> bytes:
    return replace(message, signature=bytes(64)).encoded


VOTE = VOICES[LIAR].vote(COMMITS, 0).message
FOREIGN = Voice(LIAR, replace(HEAD.value, run=bytes(32)))
LATER = Voice(LIAR, replace(HEAD.value, round=7))
BAD = {
    "garbage": b"\xff",
    "of another run": FOREIGN.sign(Kind.VOTE, Vote(list_digest=bytes(32))).encoded,
    "of another round": LATER.sign(Kind.VOTE, Vote(list_digest=bytes(32))).encoded,
    "no vote": VOICES[LIAR].commit().message.encoded,
    "of a branch": VOICES[LIAR].sign(Kind.PVOTE, Vote(list_digest=bytes(32))).encoded,
    "unsigned": unsigned(VOTE),
}


@pytest.mark.parametrize("why", BAD)
def test_bad_certificate_is_blamed_on_who_brought_it_and_nobody_brings_it_on(why):
    relay = core_of(A, B, C, LIAR)
    beat = Heartbeat(round=5, head=HEAD.value.digest, held=(), links=(A,))
    for _ in range(2):
        relay.handle(ev.FrameArrived(LIAR, beat), 0.1)
    bad = report_of(VOICES[LIAR], VOTE.encoded, BAD[why])
    actions = hand(relay, LIAR, bad, now_s=1.0)
    assert len(faults(actions)) == 1
    assert not sent(actions, Messages)
    assert relay.machine.view.ballots.find(bad.message.digest) is None
    good = report_of(VOICES[LIAR], VOTE.encoded)
    actions = hand(relay, LIAR, good, now_s=1.0)
    assert not faults(actions)
    assert {peer for peer, _ in sent(actions, Messages)} == {B, C}
    assert relay.machine.view.ballots.find(VOTE.digest) is not None


def test_closer_shows_the_votes_that_it_has_itself():
    attempt = next(a for a in range(1, 9) if view_of(B, HEAD, trust="open").closer(a) == B)
    votes = [VOICES[peer].vote(COMMITS, 0) for peer in (A, B, C)]
    few = report_of(VOICES[min(PEERS)], VOTE.encoded, attempt=attempt)
    encoded = tuple(vote.message.encoded for vote in votes)
    reports = [
        few if peer == min(PEERS) else report_of(VOICES[peer], *encoded, attempt=attempt)
        for peer in PEERS
    ]
    view = view_of(B, HEAD, [*COMMITS, *votes, *reports], trust="open", attempt=attempt)
    body = propose(view, now_s=0.0, deadline_s=1.0)
    assert isinstance(body, List)
    ordered = sorted(votes, key=lambda vote: vote.message.sender)
    assert body.certificate == tuple(vote.message.encoded for vote in ordered)
