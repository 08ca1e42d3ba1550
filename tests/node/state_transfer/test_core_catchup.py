"""R11: a node that is behind, or that diverged, goes on from a state that others sealed."""

from dataclasses import replace

from protocol import events as ev
from protocol import limits
from protocol.catching_up.catchup import BACK_WITHIN_S
from protocol.core.node_core import NodeCore
from protocol.frames import Bulk, Chain, Lacking, Want, WantChain
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Kind, List, SealCertificate
from protocol.rounds.chain import certify, seal_value
from tests.node.builders import CONFIG, Voice, contributed, view_of
from tests.node.cores import GENESIS, HEAD, A, B, C, ahead, core_of, faults, hand, recorded, sent


def chain_on(head: SealCertificate, length: int) -> tuple[SealCertificate, ...]:
    chain, last = [], head.value
    for _ in range(length):
        commits = (bytes([last.round]) * 32,)  # Something to step with, were it fewer rounds.
        value = replace(
            last, round=last.round + 1, before=last.digest, basis=last.digest, commits=commits
        )
        seals = tuple(Voice(peer, last).seal(value).message for peer in (A, B))
        chain.append(certify(value, seals))
        last = value
    return tuple(chain)


CHAIN = chain_on(HEAD, 5)


def chain_frames(core: NodeCore, peer: PeerId, chain=CHAIN, now_s: float = 0.0):
    actions = []
    for certificate in chain:
        actions += core.handle(ev.FrameArrived(peer, Chain(seals=(certificate,))), now_s)
    return actions


def test_node_two_rounds_behind_fetches_the_chain_then_the_state_and_goes_on_from_it():
    core = core_of(C, A, B)
    assert sent(ahead(core, A, 10), WantChain) == [(A, WantChain(first=5))]
    assert ev.FetchState(CHAIN[-1]) in chain_frames(core, A)
    assert core.awaits_state(CHAIN[-1])
    actions = core.handle(ev.StateReady(CHAIN[-1]), 0.0)
    (train,) = [action for action in actions if isinstance(action, ev.Train)]
    assert (train.certificate, train.is_resync, train.was_listed) == (CHAIN[-1], True, False)
    assert train.lease
    assert core.machine.head == CHAIN[-1].value
    assert core.chain[1:] == list(CHAIN)


def test_node_that_waits_for_a_state_signs_nothing_until_it_is_there_or_given_up():
    core = core_of(C, A, B)
    ahead(core, A, 10)
    chain_frames(core, A)
    assert not recorded(core.handle(contributed(5), 0.0))
    failed = core.handle(ev.StateFailed(bytes(32)), 0.0)
    assert not recorded(failed), "the failure of another fetch is no failure of this one"
    core.handle(ev.Unlinked(A), 0.1)
    for tenth in range(2, int(10 * BACK_WITHIN_S), 2):
        assert not recorded(core.handle(ev.Tick(), tenth / 10)), "it may be back in a moment"
    core.handle(ev.Tick(), 0.2 + BACK_WITHIN_S)
    assert recorded(core.handle(ev.Tick(), 0.3 + BACK_WITHIN_S), Kind.COMMIT)


def test_state_that_is_no_longer_wanted_changes_nothing():
    core = core_of(C, A, B)
    ahead(core, A, 10)
    chain_frames(core, A)
    core.handle(ev.StateFailed(CHAIN[-1].value.digest), 0.0)
    assert not core.awaits_state(CHAIN[-1])
    core.handle(ev.StateReady(CHAIN[-1]), 0.0)
    assert core.machine.head == HEAD.value
    assert core.chain == [HEAD]


def test_round_that_is_sealed_during_a_catch_up_starts_it_anew_from_there():
    core = core_of(C, A, B)
    ahead(core, A, 10)
    commits = [Voice(peer, HEAD.value).commit() for peer in (A, B)]
    closer = Voice(view_of(C, HEAD).closer(0), HEAD.value)
    if closer.peer == C:
        closer = Voice(view_of(C, HEAD).closer(1), HEAD.value)
    empty = List(commits=(), drifts=(), certificate=())
    attempt = 0 if view_of(C, HEAD).closer(0) != C else 1
    votes = [Voice(peer, HEAD.value).vote([], attempt) for peer in (A, B)]
    hand(core, B, *commits, closer.say(Kind.LIST, empty, attempt), *votes)
    digest = core.machine.view.ballots.list_digest(empty)
    core.handle(ev.Applied(digest, HEAD.value.root), 0.0)
    view = core.machine.view
    value = seal_value(view, digest, KeyedHashSigner(C), CONFIG.clock)
    assert value is not None
    actions = hand(core, B, *(Voice(peer, HEAD.value).seal(value, attempt) for peer in (A, B)))
    assert core.machine.head == value
    assert (A, WantChain(first=6)) in sent(actions, WantChain)
    chain_frames(core, A, chain_on(certify(value, ()), 4))
    assert [c.value.round for c in core.chain] == [4, 5]
    core.handle(ev.StateReady(core.catchup.wanted), 0.0)  # type: ignore[arg-type]
    assert [c.value.round for c in core.chain] == [4, 5, 6, 7, 8, 9]


def test_forged_chain_is_a_fault_of_its_source():
    core = core_of(C, A, B)
    ahead(core, A, 10)
    forged = SealCertificate(value=CHAIN[0].value, seals=CHAIN[0].seals[:1])
    assert "bad chain" in faults(chain_frames(core, A, (forged,)))[0]


def test_chain_is_sent_from_where_it_is_asked_for_and_never_with_genesis():
    core = core_of(A, B, head=GENESIS)
    core.chain += CHAIN
    for first, rounds in ((0, 5), (1, 5), (3, 3), (99, 0)):
        actions = core.handle(ev.FrameArrived(B, WantChain(first=first)), 0.0)
        frames = [frame for _, frame in sent(actions, Chain)]
        seals = [seal for frame in frames if isinstance(frame, Chain) for seal in frame.seals]
        assert len(seals) == rounds
        assert GENESIS not in seals
        assert all(
            len(f.seals) <= limits.CHAIN_SEALS_PER_FRAME_MAX for f in frames if isinstance(f, Chain)
        )


def test_diverged_node_fetches_the_state_as_soon_as_somebody_has_sealed_the_round():
    core = core_of(C, A, B)
    list(core._expand([ev.Resync("test")], 0.0))
    assert not sent(ahead(core, A, 5), WantChain)
    assert sent(ahead(core, A, 6), WantChain) == [(A, WantChain(first=5))]


def test_source_that_sends_everything_but_the_state_loses_its_cells_to_another():
    core = core_of(C, A, B)
    ahead(core, A, 10)
    chain_frames(core, A)
    subject = CHAIN[-1].value.digest
    (first,) = wanted_cells(core.handle(ev.FetchBegun(subject, {}), 0.0), A)
    due = wanted_cells(ahead(core, B, 10, now_s=0.5), B)
    of_b: set[int] = set()
    for step in range(2, 16):
        due += wanted_cells(core.handle(ev.BytesArrived(A), 0.5 * step), B)
        while due:
            cells = due.pop(0)
            of_b |= set(cells)
            due += wanted_cells(core.handle(ev.CellsFetched(B, subject, cells), 0.5 * step), B)
    assert of_b >= set(first)
    assert not any(core.catchup.is_asked(A, subject, cell) for cell in first)


def test_whoever_asks_for_a_state_that_is_not_here_is_told_so_and_goes_on_at_once():
    core = core_of(C, A, B)
    subject = CHAIN[-1].value.digest
    told = sent(core.handle(ev.NotServed(B, Bulk.STATE, subject), 0.0), Lacking)
    assert told == [(B, Lacking(bulk=Bulk.STATE, subject=subject))]
    ahead(core, A, 10)
    chain_frames(core, A)
    core.handle(ev.FetchBegun(subject, {}), 0.0)
    assert core.awaits_state(CHAIN[-1])
    core.handle(ev.FrameArrived(A, told[0][1]), 0.1)
    assert not core.awaits_state(CHAIN[-1])


def wanted_cells(actions, peer: PeerId) -> list[tuple[int, ...]]:
    """What of states and steps a peer is asked for."""
    wants = (frame for to, frame in sent(actions, Want) if to == peer)
    return [want.cells for want in wants if isinstance(want, Want)]
