"""R2, R3, R8: which bytes move, who sums, and when the outer step is taken."""

from dataclasses import replace
from itertools import pairwise

import pytest

from protocol.events import Apply, Pull, Push, Reduce
from protocol.frames import Bulk
from protocol.messages import Agg, Kind, List, slice_subject
from protocol.rounds import supply
from protocol.rounds.admission import is_for_us
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.reducers import pack_senders
from sim.world.world import peer_named
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
CELLS = set(range(CONFIG.num_cells(1)))
X = COMMITS[:2]
DIGEST_X = digest_of(HEAD.value, X)
CERTIFIED = [*COMMITS, zero.propose(X), zero.vote(X), one.vote(X)]


def view(me, heard=COMMITS, **fields):
    return view_of(me, HEAD, heard, **{"opened_s": 0.0, **fields})


def pulls(found):
    return {(action.source, action.subject, action.cells) for action in found}


def summed(voice, piece):
    """The AGG of a slice of X."""
    body = Agg(list_digest=DIGEST_X, first=piece.first, stop=piece.stop, root=bytes(32))
    return voice.say(Kind.AGG, body, subject=slice_subject(DIGEST_X, piece.first, piece.stop))


def test_each_slice_has_another_first_reducer():
    assert [piece.reducers[0] for piece in SLICES] == [R0, R1, R2]
    assert [piece.reducers[1] for piece in SLICES] == [R1, R2, R0]


def test_own_parts_are_pushed_to_the_first_reducers_and_once():
    mine = view(R0, commit=IDS[R0], parts={IDS[R0]: {0, 1, 2}})
    assert list(supply.push_parts(mine)) == [
        Push(R1, Bulk.PART, IDS[R0], (1,)),
        Push(R2, Bulk.PART, IDS[R0], (2,)),
    ]
    assert not list(supply.push_parts(mine))
    assert not list(supply.push_parts(view(R0)))


def test_commit_from_before_a_restart_is_not_pushed_while_its_parts_are_not_here():
    mine = view(R0, commit=IDS[R0])
    assert not list(supply.push_parts(mine))
    mine.cells.parts[IDS[R0]] = {0, 1, 2}
    assert len(list(supply.push_parts(mine))) == 2


def test_slice_of_a_suspect_is_pushed_to_its_substitute_too():
    mine = view(R0, commit=IDS[R0], parts={IDS[R0]: {0, 1, 2}})
    list(supply.push_parts(mine))
    mine.suspect(frozenset({R1}))
    assert list(supply.push_parts(mine)) == [Push(R2, Bulk.PART, IDS[R0], (1,))]
    mine.suspect(frozenset())
    assert not list(supply.push_parts(mine))


def test_first_reducer_trusts_the_senders_for_half_a_deadline_then_pulls_from_them():
    mine = view(R0)
    mine.cells.parts[IDS[R0]] = CELLS
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
    mine.cells.parts[IDS[R1]] = CELLS
    found = pulls(supply.pull_parts(mine, now_s=0.0, deadline_s=1.0))
    assert found == {(R2, IDS[R0], (0,)), (R2, IDS[R0], (1,))}


def test_once_a_list_is_certified_only_its_parts_are_pulled():
    mine = view(R0, CERTIFIED)
    found = pulls(supply.pull_parts(mine, now_s=0.0, deadline_s=1.0))
    assert found == {(R1, IDS[R1], (0,))}


def test_nothing_is_summed_before_its_list_is_certified_and_every_listed_part_is_here():
    mine = view(R0, [*COMMITS, zero.propose(X), zero.vote(X)])
    mine.cells.parts.update({digest: {0} for digest in IDS.values()})
    assert not list(supply.reduce_slices(mine))
    mine = view(R0, CERTIFIED)
    mine.cells.parts[IDS[R0]] = {0}
    assert not list(supply.reduce_slices(mine))
    mine.cells.parts[IDS[R1]] = {0}
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


def test_substitute_pushes_its_result_only_once_who_comes_before_it_is_suspected():
    mine = view(R1, CERTIFIED)
    assert not list(supply.push_results(mine, DIGEST_X, SLICES[0]))
    mine.suspect(frozenset({R0}))
    assert list(supply.push_results(mine, DIGEST_X, SLICES[0])) == [
        Push(R2, Bulk.RESULT, DIGEST_X, (0,))
    ]
    assert not list(supply.push_results(mine, DIGEST_X, SLICES[0])), "once"


def test_result_that_a_substitute_kept_is_pushed_when_the_first_goes():
    mine = view(R1, [*CERTIFIED, summed(one, SLICES[0])], attempt=1)
    mine.cells.requested.add(("reduce", DIGEST_X, 0, R1))
    assert not any(isinstance(a, Push) for a in supply.reduce_slices(mine))
    mine.suspect(frozenset({R0}))
    assert not any(isinstance(a, Push) for a in supply.reduce_slices(mine)), "lost with a restart"
    mine.cells.results[DIGEST_X] = {0}
    assert Push(R2, Bulk.RESULT, DIGEST_X, (0,)) in list(supply.reduce_slices(mine))
    assert not any(isinstance(a, Push) for a in supply.reduce_slices(mine))


def test_member_pulls_a_late_result_from_whoever_announced_it_and_again_elsewhere():
    mine = view(R0, CERTIFIED, certified_s={DIGEST_X: 0.0})
    mine.cells.results[DIGEST_X] = {0, 2}
    assert not list(supply.pull_results(mine, now_s=0.4, deadline_s=1.0))
    sources = []
    for step in range(2, 6):
        found = list(supply.pull_results(mine, now_s=0.25 * step, deadline_s=1.0))
        assert all(isinstance(p, Pull) and p.cells == (1,) for p in found)
        sources += [pull.source for pull in found if isinstance(pull, Pull)]
    low, high = sorted((R1, R2))
    assert sources == [low, high, low], "each time a little later"


def test_results_are_not_asked_for_while_they_come_and_elsewhere_once_they_do_not():
    heard = [*CERTIFIED, summed(one, SLICES[1])]
    mine = view(R0, heard, certified_s={DIGEST_X: 0.0})
    mine.cells.results[DIGEST_X] = {0, 2}
    mine.note_movement(DIGEST_X, R1, 0.4)
    assert not list(supply.pull_results(mine, now_s=0.6, deadline_s=1.0)), "it comes unasked"
    (pull,) = pulls(supply.pull_results(mine, now_s=0.7, deadline_s=1.0))
    assert pull == (R1, DIGEST_X, (1,))
    for step in range(10):
        mine.note_movement(DIGEST_X, R1, 0.8 + 0.2 * step)
        assert not list(supply.pull_results(mine, now_s=0.9 + 0.2 * step, deadline_s=1.0))
    mine.note_movement(DIGEST_X, R2, 2.7)  # Of the same list, but not of whom it was asked.
    assert pulls(supply.pull_results(mine, now_s=2.9, deadline_s=1.0)) == {(R2, DIGEST_X, (1,))}


def test_cells_of_a_source_that_is_suspected_are_asked_for_elsewhere_at_once():
    mine = view(R0, [*CERTIFIED, summed(two, SLICES[1])], certified_s={DIGEST_X: 0.0})
    mine.cells.results[DIGEST_X] = {0, 2}
    assert pulls(supply.pull_results(mine, now_s=0.5, deadline_s=1.0)) == {(R2, DIGEST_X, (1,))}
    mine.note_movement(DIGEST_X, R2, 0.6)
    mine.suspect(frozenset({R2}))
    assert pulls(supply.pull_results(mine, now_s=0.61, deadline_s=1.0)) == {(R1, DIGEST_X, (1,))}
    assert not list(supply.pull_results(mine, now_s=0.62, deadline_s=1.0))


def test_result_that_died_with_its_reducer_is_asked_for_at_once_of_whoever_sealed():
    mine = view(R0, [*CERTIFIED, summed(one, SLICES[1])], certified_s={DIGEST_X: 0.0})
    mine.cells.results[DIGEST_X] = {0, 2}
    assert not list(supply.pull_results(mine, now_s=0.1, deadline_s=1.0)), "it will be pushed"
    mine.suspect(frozenset({R1}))
    assert not list(supply.pull_results(mine, now_s=0.1, deadline_s=1.0)), "nobody has it yet"
    sealed = two.seal(final_value())
    mine.ballots.add(BallotEntry(sealed.message, sealed.body))
    assert is_for_us(mine, BallotEntry(sealed.message, sealed.body))
    assert pulls(supply.pull_results(mine, now_s=0.1, deadline_s=1.0)) == {(R2, DIGEST_X, (1,))}
    assert not list(supply.pull_results(mine, now_s=0.2, deadline_s=1.0)), "and once"


def test_result_whose_reducer_is_there_is_waited_for_though_others_have_sealed():
    sealed = two.seal(final_value())
    mine = view(R0, [*CERTIFIED, summed(one, SLICES[1]), sealed], certified_s={DIGEST_X: 0.0})
    mine.cells.results[DIGEST_X] = {0, 2}
    assert not is_for_us(mine, BallotEntry(sealed.message, sealed.body)), "all are well"
    mine.suspect(frozenset({R2}))
    assert not list(supply.pull_results(mine, now_s=0.1, deadline_s=1.0))


def test_retries_of_the_same_cells_grow_and_are_foretold():
    without = frozenset({"second-call"})
    mine = view(R1, attempt=1, suspects=frozenset({R2}), without=without)
    mine.cells.parts[IDS[R1]] = mine.cells.parts[IDS[R2]] = CELLS
    asked_s, now_s = [], 0.0
    while now_s < 12.0:
        if list(supply.pull_parts(mine, now_s=now_s, deadline_s=1.0)):
            asked_s.append(now_s)
        now_s = min(t for t in supply.retry_times(mine, 1.0, now_s=now_s) if t > now_s)
    gaps = [after - before for before, after in pairwise(asked_s)]
    assert gaps == pytest.approx([0.5, 0.75, 1.125, 1.6875, 2.53125, 2.53125, 2.53125][: len(gaps)])
    assert len(gaps) >= 6


def test_part_that_is_coming_or_was_announced_just_now_is_not_asked_for():
    mine = view(R0)
    mine.cells.parts[IDS[R0]] = CELLS
    mine.note_movement(IDS[R1], R1, 0.4)
    mine.note_movement(IDS[R2], R1, 0.4)  # Not of whom it is expected.
    found = pulls(supply.pull_parts(mine, now_s=0.5, deadline_s=1.0))
    assert found == {(R2, IDS[R2], (0,))}
    found = pulls(supply.pull_parts(mine, now_s=0.9, deadline_s=1.0))
    assert found == {(R1, IDS[R1], (0,))}


def test_part_that_was_asked_for_in_vain_is_asked_of_a_substitute_once_it_says_hold():
    """The looser wording: who lacks it waits for its next turn, and is named for denying it."""
    mine = view(R0, second_call_s={0: 0.5})
    mine.cells.parts[IDS[R0]] = CELLS
    found = pulls(supply.pull_parts(mine, now_s=0.6, deadline_s=1.0))
    assert found == {(R1, IDS[R1], (0,)), (R2, IDS[R2], (0,))}
    held = one.hold(pack_senders(set(PEERS), mine.members))
    mine.ballots.add(BallotEntry(held.message, held.body))
    mine.lapses.said_s[0, R1] = 0.7
    found = pulls(supply.pull_parts(mine, now_s=0.7, deadline_s=1.0))
    assert found == {(R1, IDS[R2], (0,))}
    assert not pulls(supply.pull_parts(mine, now_s=0.8, deadline_s=1.0))


def test_part_of_a_sender_without_a_vote_is_asked_of_one_more_than_may_lie_besides():
    """It may keep it back, and as many voters as may lie claim what they do not give."""
    voters, sender = peers_named(4), peer_named("sender without a vote")
    head = head_of(voters, [sender])
    mine = view_of(voters[0], head, trust="open", opened_s=0.0)
    assert supply._sources_at_once(mine, voters[1]) == mine.roles.belief.words == 2
    assert supply._sources_at_once(mine, sender) == 3
    friends = view_of(voters[0], head, opened_s=0.0)
    assert supply._sources_at_once(friends, sender) == 1


def test_bytes_of_strangers_and_of_nothing_known_are_not_remembered():
    mine = view(R0)
    mine.note_movement(IDS[R1], peer_named("stranger"), 0.4)
    mine.note_movement(bytes(32), R1, 0.4)
    assert mine.cells.moved_s == {}


def test_observer_pulls_no_result_before_the_round_is_final():
    stranger = peer_named("stranger")
    watching = view(stranger, CERTIFIED, certified_s={DIGEST_X: 0.0})
    assert not list(supply.pull_results(watching, now_s=99.0, deadline_s=1.0))
    value = final_value()
    for voice in (zero, one):
        heard = voice.seal(value)
        watching.ballots.add(BallotEntry(heard.message, heard.body))
    assert list(supply.pull_results(watching, now_s=99.0, deadline_s=1.0))


def final_value():
    return replace(
        HEAD.value,
        round=5,
        before=HEAD.value.digest,
        basis=HEAD.value.digest,
        commits=list_body(X).commits,
        drifts=(),
    )


def test_outer_step_waits_for_every_cell_and_is_taken_once():
    mine = view(R0, CERTIFIED)
    mine.cells.results[DIGEST_X] = {0, 1}
    assert not list(supply.apply_results(mine))
    mine.cells.results[DIGEST_X].add(2)
    assert list(supply.apply_results(mine)) == [Apply(DIGEST_X, False)]
    assert not list(supply.apply_results(mine))


def test_results_of_a_list_that_is_not_certified_are_not_applied():
    mine = view(R0, [*COMMITS, zero.propose(X), zero.vote(X)])
    mine.cells.results[DIGEST_X] = set(CELLS)
    assert not list(supply.apply_results(mine))
    final = view(R0, [*COMMITS, zero.seal(final_value()), one.seal(final_value())])
    final.cells.results[DIGEST_X] = set(CELLS)
    # Its cells overtook the LIST: the step would be of a round that nobody can tell.
    assert not list(supply.apply_results(final))
    assert final.ballots.add(zero.propose(X)) == "new"
    assert list(supply.apply_results(final)) == [Apply(DIGEST_X, False)]


def test_certified_empty_list_needs_no_result():
    empty = List(commits=(), drifts=(), certificate=())
    mine = view(R0, [*COMMITS, zero.say(Kind.LIST, empty), zero.vote([]), one.vote([])])
    assert list(supply.apply_results(mine)) == [Apply(digest_of(HEAD.value, []), True)]
    assert not list(supply.reduce_slices(mine))


def lost_view(me, heard, *, suspects=(R0,), **fields):
    """Who sums the slice of R0 when that is gone; R1 pushed its part, R0 had its own."""
    mine = view(me, heard, suspects=frozenset(suspects), **fields)
    mine.cells.parts[IDS[R1]] = CELLS
    return mine


def test_part_that_died_with_its_only_holders_is_lost_and_no_other():
    assert supply.has_lost_parts(lost_view(R1, CERTIFIED))
    assert not supply.has_lost_parts(lost_view(R1, CERTIFIED, suspects=())), "it can be asked"
    assert not supply.has_lost_parts(lost_view(R1, COMMITS)), "no LIST needs it"
    held = [*CERTIFIED, two.have(b"\x07")]
    assert not supply.has_lost_parts(lost_view(R1, held)), "another reducer has it"
    assert supply.has_lost_parts(lost_view(R2, CERTIFIED)), "also for who does not sum it"
    whole = lost_view(R1, [*CERTIFIED, summed(two, SLICES[2])])
    whole.cells.parts[IDS[R0]] = {0, 1}
    assert not supply.has_lost_parts(whole), "it is here"


def test_part_is_not_needed_where_its_sum_is_in_reach():
    sums = [summed(two, piece) for piece in SLICES]
    assert not supply.has_lost_parts(lost_view(R1, [*CERTIFIED, *sums]))
    gone = [summed(zero, piece) for piece in SLICES]
    assert supply.has_lost_parts(lost_view(R1, [*CERTIFIED, *gone])), "by who is gone"
    sealed = [*CERTIFIED, two.seal(final_value())]
    assert not supply.has_lost_parts(lost_view(R1, sealed)), "who sealed holds all results"


def test_list_of_an_earlier_attempt_that_comes_again_is_not_given_up_for_its_parts():
    again = [*CERTIFIED, one.propose(X, 1), zero.vote(X, 1), one.vote(X, 1)]
    assert not supply.has_lost_parts(lost_view(R1, again, attempt=1))
