"""R2: who leads a round to later attempts, and how far."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.frames import Heartbeat
from protocol.identity import KeyedHashSigner
from protocol.rounds.admission import ATTEMPTS_AHEAD_MAX
from tests.node.builders import CLOCK_RULES, CONFIG, Voice, head_of, peers_named
from tests.node.cores import MANIFEST, hand

ME, OTHER, VOTER, MEMBER = peers_named(4)
HEAD = head_of((ME, OTHER, VOTER), (MEMBER,))


def core_of(trust: str, survive: str = "quorum") -> NodeCore:
    clock = replace(CLOCK_RULES, trust=trust)
    config = replace(CONFIG, trust=trust, clock=clock, survive=survive)
    core = NodeCore(MANIFEST, config, KeyedHashSigner(ME), HEAD, now_s=0.0)
    core.start(0.0)
    for peer in (OTHER, VOTER, MEMBER):
        core.handle(ev.Linked(peer), 0.0)
    return core


@pytest.mark.parametrize("trust", ["friends", "open"])
def test_member_without_a_vote_leads_nobody_to_a_later_attempt(trust):
    core = core_of(trust)
    hand(core, MEMBER, Voice(MEMBER, HEAD.value).report(64))
    assert core.machine.view.attempt == 0
    hand(core, VOTER, Voice(VOTER, HEAD.value).report(64))
    assert core.machine.view.attempt == 64


def test_attempt_that_nobody_honest_can_be_in_yet_is_entered_by_nobody():
    core, voter = core_of("friends"), Voice(VOTER, HEAD.value)
    hand(core, VOTER, voter.report(ATTEMPTS_AHEAD_MAX + 1))
    assert core.machine.view.attempt == 0
    hand(core, VOTER, voter.report(ATTEMPTS_AHEAD_MAX))
    assert core.machine.view.attempt == ATTEMPTS_AHEAD_MAX


@pytest.mark.quick(1)
@pytest.mark.parametrize(("trust", "survive"), [("open", "quorum"), ("friends", "any")])
def test_voter_that_leads_to_the_last_attempt_ends_nobody(trust, survive):
    core, liar = core_of(trust, survive), Voice(VOTER, HEAD.value)
    for attempt in range(64, limits.ATTEMPTS_MAX + 1, 64):
        hand(core, VOTER, liar.report(attempt), now_s=0.1)
    assert core.machine.view.attempt == limits.ATTEMPTS_MAX
    beat = Heartbeat(round=5, head=HEAD.value.digest, held=(), links=(ME, OTHER))
    for step in range(1, 40):
        core.handle(ev.Tick(), float(step))
        for peer in (OTHER, VOTER):
            core.handle(ev.FrameArrived(peer, beat), float(step))
    assert core.machine.view.attempt == limits.ATTEMPTS_MAX
