"""R11: who says that it is far ahead, and proves nothing, holds nobody up."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol.catching_up.catchup import PAGE_S, CatchUp
from protocol.catching_up.chain_sources import DOUBT_AFTER, REST_S, REST_S_MAX, ChainSources
from protocol.core.node_core import NodeCore
from protocol.frames import Chain, Frame, Heartbeat, StatusAnswer, StatusAsk, WantChain
from protocol.identity import KeyedHashSigner, PeerId
from protocol.rounds.restart import Restart
from tests.node.builders import CONFIG, contributed, peers_named
from tests.node.cores import GENESIS, HEAD, MANIFEST, A, B, C, D, ahead, core_of, sent
from tests.node.state_transfer.test_catchup import SIZES
from tests.node.state_transfer.test_core_catchup import CHAIN, chain_on

LIAR, FAR = D, 1 << 22


def joiner(*linked) -> NodeCore:
    me = peers_named(5)[4]
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(me), HEAD, now_s=0.0)
    core.wants_seat = False
    core.start(0.0)
    for peer in linked:
        core.handle(ev.Linked(peer), 0.0)
    return core


@pytest.mark.parametrize("repeats", [False, True], ids=["silent", "repeats a seal"])
def test_joiner_in_step_asks_for_a_seat_whatever_a_stranger_says_of_its_round(repeats):
    core = joiner(A, B, LIAR)
    beat = Heartbeat(round=5, head=HEAD.value.digest, held=(), links=())
    ahead(core, LIAR, FAR)
    actions = list(core.handle(ev.TrainerReady(device="cpu"), 0.1))
    for step in range(1, 61):
        now_s = float(step)
        actions += core.handle(ev.Tick(), now_s)
        for peer in (A, B):
            actions += core.handle(ev.FrameArrived(peer, beat), now_s)
        actions += ahead(core, LIAR, FAR, now_s)
        if repeats:
            actions += core.handle(ev.FrameArrived(LIAR, Chain(seals=(GENESIS,))), now_s)
    assert any(isinstance(action, ev.ProveSeat) for action in actions)
    assert len(sent(actions, WantChain)) < 8


def quarter(core: NodeCore, now_s: float, honest: int) -> list[ev.CoreAction]:
    """A tick, and heartbeats of the liar and of A and B, who work on round `honest`."""
    actions = list(core.handle(ev.Tick(), now_s))
    for peer, working_on in ((LIAR, FAR), (A, honest), (B, honest)):
        actions += ahead(core, peer, working_on, now_s)
    return actions


@pytest.mark.parametrize("repeats", [False, True], ids=["silent", "repeats a seal"])
def test_node_that_is_behind_gets_the_chain_of_the_honest_beside_a_liar(repeats):
    core = core_of(C, A, B, LIAR)
    asked: list[tuple[PeerId, Frame]] = []
    for step in range(80):
        now_s = 0.25 * step
        actions = quarter(core, now_s, 10)
        if repeats:
            actions += core.handle(ev.FrameArrived(LIAR, Chain(seals=(HEAD,))), now_s)
        asked += sent(actions, WantChain)
        if any(peer != LIAR for peer, _ in asked):
            break
    for certificate in CHAIN:
        actions += core.handle(ev.FrameArrived(asked[-1][0], Chain(seals=(certificate,))), now_s)
    assert core.awaits_state(CHAIN[-1])


def test_source_that_gives_a_true_seal_now_and_then_is_asked_for_a_page_and_no_more():
    core, chain = core_of(C, A, B, LIAR), chain_on(HEAD, 30)
    asked: list[tuple[float, PeerId]] = []
    for step in range(4 * 90):
        now_s = 0.25 * step
        actions = quarter(core, now_s, 35)
        if step % 16 == 15:  # Sooner than it would count as silent.
            link = Chain(seals=(chain[step // 16],))
            actions += core.handle(ev.FrameArrived(LIAR, link), now_s)
        asked += [(now_s, peer) for peer, _ in sent(actions, WantChain)]
    assert asked[0] == (0.0, LIAR)
    assert asked[1][1] != LIAR
    assert PAGE_S <= asked[1][0] < PAGE_S + 1.0


def test_friends_go_on_without_their_quorum_whatever_a_stranger_says_of_its_final_round():
    config = replace(CONFIG, trust="friends", survive="any", grace_s=1.0)
    core = NodeCore(MANIFEST, config, KeyedHashSigner(A), HEAD, now_s=0.0)
    core.start(0.0)
    core.handle(ev.Linked(LIAR), 0.0)
    core.handle(contributed(5), 0.0)
    for step in range(1, 400):
        ahead(core, LIAR, FAR, 0.25 * step)
        core.handle(ev.Tick(), 0.25 * step)
        if core.machine.view.is_provisional:
            break
    assert core.machine.view.is_provisional


def test_source_that_gives_nothing_rests_longer_each_time_until_it_proves_something():
    sources, now_s = ChainSources(), 0.0
    for _ in range(DOUBT_AFTER):
        assert sources.choose({A: 9}, now_s) == A
        assert A not in sources.doubted
        sources.gave_nothing(A, now_s)
    rests = []
    for _ in range(9):
        assert A in sources.doubted
        began_s = now_s
        while sources.choose({A: 9}, now_s) is None:
            now_s += 1.0
        rests.append(now_s - began_s)
        sources.gave_nothing(A, now_s)
    assert rests[:3] == [REST_S, 2 * REST_S, 4 * REST_S]
    assert rests[-1] == REST_S_MAX
    assert sources.choose({A: 9, B: 8}, now_s) == B
    sources.proved(A)
    assert A not in sources.doubted
    sources.pass_over(B)
    assert sources.choose({A: 9, B: 8}, now_s) == A


def test_furthest_is_asked_first_and_others_before_it_is_asked_again():
    sources = ChainSources()
    assert sources.choose({A: 8, B: 9}, 0.0) == B
    assert sources.has_other({A: 8, B: 9}, B, 0.0)
    sources.pass_over(B)
    assert sources.choose({A: 8, B: 9}, 0.0) == A
    sources.pass_over(A)
    assert sources.choose({A: 8, B: 9}, 0.0) == B
    assert sources.choose({}, 0.0) is None


@pytest.mark.parametrize("beats", [5, FAR], ids=["beats as all", "beats as it says"])
def test_node_that_lost_its_disk_speaks_again_whatever_round_a_stranger_says_is_open(beats):
    core = NodeCore(MANIFEST, CONFIG, KeyedHashSigner(C), HEAD, now_s=0.0)
    core.start(0.0, Restart(chain=(HEAD,), is_lost=True))
    for peer in (A, B, LIAR):
        core.handle(ev.Linked(peer), 0.0)
    beat = Heartbeat(round=5, head=HEAD.value.digest, held=(), links=())
    for step in range(1, 61):
        now_s = float(step)
        asks = sent(core.handle(ev.Tick(), now_s), StatusAsk)
        nonce = core._nonce
        assert all(frame == StatusAsk(nonce=nonce) for _, frame in asks)
        for peer, working_on, is_open in ((A, 5, 5), (B, 5, 5), (LIAR, beats, FAR)):
            said = replace(beat, round=working_on)
            core.handle(ev.FrameArrived(peer, said), now_s)
            answer = StatusAnswer(nonce=nonce, round=is_open, head=HEAD.value.digest)
            core.handle(ev.FrameArrived(peer, answer), now_s)
        if not core.machine.is_asking:
            break
    assert not core.machine.is_asking
    assert core.machine.is_muted, "it may have signed in this round"
    following = chain_on(HEAD, 1)[0]
    core.machine.reset(following, now_s=70.0)
    assert not core.machine.is_muted


def test_source_that_gave_less_than_it_was_asked_for_is_asked_behind_those_who_gave_more():
    sources = ChainSources()
    sources.fell_short(A, 12, 60.0)
    sources.fell_short(B, 200, 60.0)
    for due in (C, B, A):
        assert sources.choose({A: FAR, B: 8, C: 7}, 0.0) == due
        sources.pass_over(due)
    sources.arrived()
    sources.gave_all(A)
    assert sources.choose({A: FAR, B: 8, C: 7}, 0.0) == A


def test_node_that_falls_behind_again_does_not_wait_again_for_whoever_gave_one_link_at_a_time():
    machine = CatchUp(KeyedHashSigner(C), CONFIG.trust, SIZES)
    chain, head, now_s, waited_s = chain_on(HEAD, 60), HEAD.value, 0.0, []
    given = 0
    for newest in (20, 40, 60):
        rounds, began_s = {A: 5 + newest, LIAR: FAR}, now_s
        while machine.wanted is None:
            machine.consider(head, rounds, moved_s=now_s, now_s=now_s)
            now_s += 4.0
            if machine.source == A:
                machine.extend(A, tuple(chain[given:newest]), now_s=now_s)
                given = newest
            elif machine.source == LIAR:
                machine.extend(LIAR, (chain[given],), now_s=now_s)
                given += 1
        waited_s.append(now_s - began_s)
        head = machine.wanted.value
        machine.finish()
    assert waited_s[0] > PAGE_S
    assert waited_s[1:] == [4.0, 4.0]
