"""R2, R3, R8: which bytes move, who sums, and when the outer step is taken."""

from dataclasses import replace

from node import supply
from node.ballots import Entry
from node.events import Apply, Pull, Push, Reduce
from protocol.frames import Bulk
from protocol.messages import Kind, List
from sim.world import peer_named
from tests.node.builders import CONFIG, Voice, digest_of, head_of, list_body, peers_named, view_of

PEERS = peers_named(3)
HEAD = head_of(PEERS)
SLICES = view_of(PEERS[0], HEAD).slices
R0, R1, R2 = SLICES[
    0
].reducers  # The reducers of the slices 0, 1 and 2; each one's substitute next.
zero, one, two = (Voice(peer, HEAD.value) for peer in (R0, R1, R2))
COMMITS = [voice.commit() for voice in (zero, one, two)]
IDS = {heard.message.sender: heard.message.digest for heard in COMMITS}
CELLS = set(range(CONFIG.num_cells))
X = COMMITS[:2]
DIGEST_X = digest_of(HEAD.value, X)
CERTIFIED = [*COMMITS, zero.propose(X), zero.vote(X), one.vote(X)]


def view(me, heard=COMMITS, **fields):
    return view_of(me, HEAD, heard, **{"opened_s": 0.0, **fields})


def pulls(found):
    return {(action.source, action.subject, action.cells) for action in found}


def test_each_slice_has_another_first_reducer():
    assert [piece.reducers[0] for piece in SLICES] == [R0, R1, R2]
    assert [piece.reducers[1] for piece in SLICES] == [R1, R2, R0]


def test_own_parts_are_pushed_to_the_first_reducers_and_once():
    mine = view(R0, own_commit=IDS[R0], parts={IDS[R0]: {0, 1, 2}})
    assert list(supply.push_parts(mine)) == [
        Push(R1, Bulk.PART, IDS[R0], (1,)),
        Push(R2, Bulk.PART, IDS[R0], (2,)),
    ]
    assert not list(supply.push_parts(mine))
    assert not list(supply.push_parts(view(R0)))


def test_commit_from_before_a_restart_is_not_pushed_while_its_parts_are_not_here():
    mine = view(R0, own_commit=IDS[R0])
    assert not list(supply.push_parts(mine))
    mine.parts[IDS[R0]] = {0, 1, 2}
    assert len(list(supply.push_parts(mine))) == 2


def test_slice_of_a_suspect_is_pushed_to_its_substitute_too():
    mine = view(R0, own_commit=IDS[R0], parts={IDS[R0]: {0, 1, 2}})
    list(supply.push_parts(mine))
    mine.suspect(frozenset({R1}))
    assert list(supply.push_parts(mine)) == [Push(R2, Bulk.PART, IDS[R0], (1,))]
    mine.suspect(frozenset())
    assert not list(supply.push_parts(mine))


def test_first_reducer_trusts_the_senders_for_half_a_deadline_then_pulls_from_them():
    mine = view(R0)
    mine.parts[IDS[R0]] = CELLS
    assert not list(supply.pull_parts(mine, now_s=0.4, deadline_s=1.0))
    found = pulls(supply.pull_parts(mine, now_s=0.5, deadline_s=1.0))
    assert found == {(R1, IDS[R1], (0,)), (R2, IDS[R2], (0,))}
    assert not list(supply.pull_parts(mine, now_s=0.9, deadline_s=1.0))
    assert pulls(supply.pull_parts(mine, now_s=1.0, deadline_s=1.0)) == found


def test_substitute_pulls_at_once_when_the_reducer_is_suspected():
    mine = view(R1, suspects=frozenset({R0}))
    found = pulls(supply.pull_parts(mine, now_s=0.0, deadline_s=1.0))
    assert (R2, IDS[R2], (0,)) in found
    assert not any(source == R0 for source, _, _ in found)


def test_substitute_takes_its_turn_in_the_attempt_after_a_failed_one():
    mine = view(R1, attempt=1)
    assert [piece.first for piece in mine.own_slices()] == [0, 1]
    assert (R2, IDS[R2], (0,)) in pulls(supply.pull_parts(mine, now_s=0.0, deadline_s=1.0))


def test_part_of_a_vanished_sender_is_pulled_from_a_reducer_that_says_it_has_it():
    heard = [*CERTIFIED, two.have(b"\x07")]
    mine = view(R1, heard, suspects=frozenset({R0}))
    mine.parts[IDS[R1]] = CELLS
    found = pulls(supply.pull_parts(mine, now_s=0.0, deadline_s=1.0))
    assert found == {(R2, IDS[R0], (0,)), (R2, IDS[R0], (1,))}


def test_once_a_list_is_certified_only_its_parts_are_pulled():
    mine = view(R0, CERTIFIED)
    found = pulls(supply.pull_parts(mine, now_s=0.0, deadline_s=1.0))
    assert found == {(R1, IDS[R1], (0,))}


def test_nothing_is_summed_before_its_list_is_certified_and_every_listed_part_is_here():
    mine = view(R0, [*COMMITS, zero.propose(X), zero.vote(X)])
    mine.parts.update({digest: {0} for digest in IDS.values()})
    assert not list(supply.reduce_slices(mine))
    mine = view(R0, CERTIFIED)
    mine.parts[IDS[R0]] = {0}
    assert not list(supply.reduce_slices(mine))
    mine.parts[IDS[R1]] = {0}
    (reduce,) = supply.reduce_slices(mine)
    assert isinstance(reduce, Reduce)
    assert (reduce.list_digest, reduce.first, reduce.stop) == (DIGEST_X, 0, 1)
    assert [entry.sender for entry in reduce.entries] == sorted((R0, R1))
    assert not list(supply.reduce_slices(mine))


def test_results_are_pushed_to_everybody_expected_but_oneself():
    mine = view(R0, CERTIFIED, suspects=frozenset({R2}))
    assert list(supply.push_results(mine, DIGEST_X, SLICES[0])) == [
        Push(R1, Bulk.RESULT, DIGEST_X, (0,))
    ]


def test_member_pulls_a_late_result_from_whoever_announced_it_and_again_elsewhere():
    mine = view(R0, CERTIFIED, certified_s={DIGEST_X: 0.0})
    mine.results[DIGEST_X] = {0, 2}
    assert not list(supply.pull_results(mine, now_s=0.4, deadline_s=1.0))
    sources = []
    for step in range(2, 6):
        found = list(supply.pull_results(mine, now_s=0.25 * step, deadline_s=1.0))
        assert all(isinstance(p, Pull) and p.cells == (1,) for p in found)
        sources += [pull.source for pull in found if isinstance(pull, Pull)]
    assert set(sources) == {R1, R2}
    assert len(sources) == 4


def test_observer_pulls_no_result_before_the_round_is_final():
    stranger = peer_named("stranger")
    watching = view(stranger, CERTIFIED, certified_s={DIGEST_X: 0.0})
    assert not list(supply.pull_results(watching, now_s=99.0, deadline_s=1.0))
    value = final_value()
    for voice in (zero, one):
        heard = voice.seal(value)
        watching.ballots.add(Entry(heard.message, heard.body))
    assert list(supply.pull_results(watching, now_s=99.0, deadline_s=1.0))


def final_value():
    return replace(
        HEAD.value, round=5, before=HEAD.value.digest, commits=list_body(X).commits, drifts=()
    )


def test_outer_step_waits_for_every_cell_and_is_taken_once():
    mine = view(R0, CERTIFIED)
    mine.results[DIGEST_X] = {0, 1}
    assert not list(supply.apply_results(mine))
    mine.results[DIGEST_X].add(2)
    assert list(supply.apply_results(mine)) == [Apply(DIGEST_X, False)]
    assert not list(supply.apply_results(mine))


def test_results_of_a_list_that_is_not_certified_are_not_applied():
    mine = view(R0, [*COMMITS, zero.propose(X), zero.vote(X)])
    mine.results[DIGEST_X] = set(CELLS)
    assert not list(supply.apply_results(mine))
    final = view(R0, [*COMMITS, zero.seal(final_value()), one.seal(final_value())])
    final.results[DIGEST_X] = set(CELLS)
    assert list(supply.apply_results(final)) == [Apply(DIGEST_X, False)]


def test_certified_empty_list_needs_no_result():
    empty = List(commits=(), drifts=(), certificate=())
    mine = view(R0, [*COMMITS, zero.say(Kind.LIST, empty), zero.vote([]), one.vote([])])
    assert list(supply.apply_results(mine)) == [Apply(digest_of(HEAD.value, []), True)]
    assert not list(supply.reduce_slices(mine))
