"""R2, R3, R8 where everybody sums: who holds what, what is listed, what is asked for of whom."""

import pytest

from protocol.events import Apply, Measure, Measured, Pull, Push, Reduce
from protocol.frames import Bulk
from protocol.messages import Agg, Gram, Have, Held, Kind, Seal, slice_subject
from protocol.rounds import supply
from protocol.rounds.agreement import learn
from protocol.rounds.lapses import LearnedDeadline
from protocol.rounds.proposal import awaited_haves, complete_senders, propose
from protocol.rounds.reducers import Slice
from tests.node.builders import (
    CONFIG,
    Voice,
    digest_of,
    head_of,
    machine_of,
    peers_named,
    signed,
    view_of,
)

PEERS = peers_named(4)
A, B, C, D = PEERS
HEAD = head_of(PEERS)
a, b, c, d = (Voice(peer, HEAD.value) for peer in PEERS)
COMMITS = [voice.commit() for voice in (a, b, c, d)]
ID = {heard.message.sender: heard.message.digest for heard in COMMITS}
NUM_CELLS = CONFIG.num_cells(1)
CELLS = tuple(range(NUM_CELLS))
DIGEST = digest_of(HEAD.value, COMMITS)
CERTIFIED = [*COMMITS, a.propose(COMMITS), *(voice.vote(COMMITS) for voice in (a, b, c))]
JOINER = peers_named(9)[-1]
ALL, NOT_D, ONLY_D = b"\x0f", b"\x07", b"\x08"


def view(me=A, heard=COMMITS, **fields):
    return view_of(me, HEAD, heard, **{"opened_s": 0.0, "everybody_sums": True, **fields})


def sealed_by(*voices):
    body = Seal(value=bytes(32), list_digest=DIGEST, root=bytes(32))
    return [voice.say(Kind.SEAL, body, subject=HEAD.value.digest) for voice in voices]


def holding(mine, *senders):
    for sender in senders:
        mine.cells.parts[ID[sender]] = set(CELLS)
    return mine


def pulls(mine, now_s, bulk=Bulk.PART):
    ask = supply.pull_parts if bulk is Bulk.PART else supply.pull_results
    asked = list(ask(mine, now_s=now_s, deadline_s=1.0))
    found = [one for one in asked if isinstance(one, Pull) and one.bulk is bulk]
    assert len(found) == len(asked)
    return {(one.source, one.subject, one.cells) for one in found}


# Parts --------------------------------------------------------------------------------------------


def test_there_is_one_slice_which_all_members_sum_and_nobody_else():
    mine = view()
    assert mine.slices == (Slice(0, NUM_CELLS, PEERS),)
    assert mine.own_slices() == mine.kept_slices() == list(mine.slices)
    assert not view(JOINER).own_slices()
    assert awaited_haves(mine) == set(PEERS)


def test_own_contribution_goes_whole_to_every_member_that_is_not_suspected_and_once():
    mine = holding(view(commit=ID[A], suspects=frozenset({C})), A)
    expected = [Push(peer, Bulk.PART, ID[A], CELLS) for peer in (B, D)]
    assert list(supply.push_parts(mine)) == expected
    assert not list(supply.push_parts(mine))
    mine.suspect(frozenset())
    assert list(supply.push_parts(mine)) == [Push(C, Bulk.PART, ID[A], CELLS)]


def test_member_waits_half_a_deadline_for_parts_though_others_have_certified_a_list():
    mine = holding(view(heard=CERTIFIED), A)
    assert not pulls(mine, 0.4)
    mine.note_movement(ID[C], C, 0.4)
    assert pulls(mine, 0.5) == {(B, ID[B], CELLS), (D, ID[D], CELLS)}
    assert pulls(mine, 0.9) == {(C, ID[C], CELLS)}


def test_part_of_a_vanished_sender_is_pulled_at_once_from_whoever_has_summed_or_said_so():
    heard = [*CERTIFIED, b.have(ALL)]
    mine = holding(view(heard=heard, suspects=frozenset({D})), A)
    assert pulls(mine, 0.0) == {(B, ID[D], CELLS)}
    body = Agg(list_digest=DIGEST, first=0, stop=NUM_CELLS, root=bytes(32))
    summed = c.say(Kind.AGG, body, subject=slice_subject(DIGEST, 0, NUM_CELLS))
    mine = holding(view(heard=[*CERTIFIED, summed], suspects=frozenset({D})), A)
    assert pulls(mine, 0.0) == {(C, ID[D], CELLS)}
    mine = holding(view(heard=[*CERTIFIED, *sealed_by(b)], suspects=frozenset({D})), A)
    assert pulls(mine, 0.0) == {(B, ID[D], CELLS)}


def test_who_has_no_seat_takes_the_result_of_what_is_sealed_and_sums_nothing():
    watching = view(JOINER, CERTIFIED)
    assert not pulls(watching, 9.0)
    assert not pulls(watching, 9.0, Bulk.RESULT)
    watching = view(JOINER, [*CERTIFIED, *sealed_by(a, b, c)])
    ((_, subject, cells),) = pulls(watching, 0.0, Bulk.RESULT)
    assert (subject, cells) == (DIGEST, CELLS)
    assert not pulls(watching, 9.0)
    assert not list(supply.reduce_slices(holding(watching, *PEERS)))


def test_straggler_sums_a_sealed_list_whose_votes_it_never_heard():
    heard = [*COMMITS, a.propose(COMMITS), *sealed_by(b, c, d)]
    mine = holding(view(heard=heard), *PEERS)
    assert [type(action) for action in supply.reduce_slices(mine)] == [Reduce]
    mine.cells.results[DIGEST] = set(CELLS)
    assert list(supply.apply_results(mine)) == [Apply(DIGEST, is_empty=False)]
    assert not list(supply.reduce_slices(mine))


# Results ------------------------------------------------------------------------------------------


def test_nobody_pushes_a_result_and_nobody_waits_for_one():
    mine = holding(view(heard=CERTIFIED), *PEERS)
    list(supply.reduce_slices(mine))
    mine.cells.results[DIGEST] = set(CELLS)
    assert not list(supply.push_results(mine, DIGEST, mine.slices[0]))
    assert not list(supply.reduce_slices(mine))


def test_result_is_asked_for_only_where_the_parts_do_not_come_for_a_deadline():
    heard = [*CERTIFIED, *sealed_by(b)]
    mine = holding(view(heard=heard, certified_s={DIGEST: 0.0}), A)
    assert not pulls(mine, 0.9, Bulk.RESULT)
    mine.note_movement(ID[C], C, 0.8)
    assert not pulls(mine, 1.2, Bulk.RESULT)
    ((source, subject, cells),) = pulls(mine, 1.4, Bulk.RESULT)
    assert (source, subject, cells) == (B, DIGEST, CELLS)


def test_result_of_a_list_that_others_went_on_from_is_asked_for_at_once():
    mine = view(heard=CERTIFIED, followed=DIGEST, certified_s={DIGEST: 5.0})
    ((_, subject, cells),) = pulls(mine, 5.0, Bulk.RESULT)
    assert (subject, cells) == (DIGEST, CELLS)


# LISTs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("haves", "suspects", "complete"),
    [
        ((), (), ()),
        ((a.have(ALL),), (), (B, C, D)),  # Of A it is the only copy.
        ((a.have(ALL), b.have(ALL)), (), PEERS),
        ((a.have(ALL), b.have(NOT_D)), (D,), (A, B, C)),  # Of D's one holder may die.
        ((a.have(ALL), b.have(ALL)), (D,), PEERS),
        ((a.have(ALL), b.have(ALL)), (B, D), (C,)),  # What B held is out of reach.
        ((a.have(ALL),), (B, C, D), PEERS),
    ],
)
def test_friends_list_whose_parts_two_in_reach_hold(haves, suspects, complete):
    mine = view(heard=[*COMMITS, *haves], suspects=frozenset(suspects))
    assert complete_senders(mine) == set(complete)


def test_half_a_contribution_is_none():
    half = Have(held=(Held(first=0, stop=NUM_CELLS - 1, senders=ALL),))
    gap = Have(held=(Held(first=1, stop=NUM_CELLS, senders=ALL),))
    mine = view(heard=[*COMMITS, a.say(Kind.HAVE, half), b.say(Kind.HAVE, gap)])
    assert not complete_senders(mine)
    runs = (Held(first=0, stop=1, senders=ALL), Held(first=1, stop=NUM_CELLS, senders=NOT_D))
    mine = view(heard=[*COMMITS, *(v.say(Kind.HAVE, Have(held=runs)) for v in (b, c))])
    assert complete_senders(mine) == {A, B, C}


@pytest.mark.parametrize(
    ("haves", "suspects", "is_complete"),
    [
        ((a, c), (), False),  # Of four voters one may lie, and the sender's own word is none.
        ((a, b), (), True),
        ((a, b), (B,), False),
        ((a, b), (B, D), True),  # Nobody else is in reach.
    ],
)
def test_open_run_lists_whom_more_voters_hold_than_may_lie(haves, suspects, is_complete):
    only_c = [voice.have(b"\x04") for voice in haves]
    mine = view(heard=[*COMMITS, *only_c], trust="open", suspects=frozenset(suspects))
    assert complete_senders(mine) == ({C} if is_complete else set())


def test_closer_goes_on_once_a_quorum_can_sum_and_waits_for_nobody_else():
    def proposed(*haves, now_s=0.0):
        mine = view(closer, [*COMMITS, *haves])
        return propose(mine, now_s=now_s, deadline_s=1.0)

    closer = view().closer(0)
    two = [voice.have(ALL) for voice in (a, b, c, d) if voice.peer != view().roster.seats[0].peer][
        :2
    ]
    assert proposed(*two) is None  # Half of the voters, and not the eldest.
    body = proposed(a.have(ALL), b.have(ALL), c.have(ALL))
    assert body is not None
    assert set(body.commits) == set(ID.values())
    assert proposed(*two, now_s=2.0) == body


# Whole vectors, deadlines -------------------------------------------------------------------------


def test_whole_vectors_are_measured_by_everybody_and_nobody_tells():
    mine = holding(view(heard=CERTIFIED, uses_gram=True), *PEERS)
    assert [type(action) for action in supply.measure_slices(mine)] == [Measure]
    assert not list(supply.reduce_slices(mine))
    mine.sums.grams[DIGEST, 0] = b"stats"
    (reduce,) = supply.reduce_slices(mine)
    assert isinstance(reduce, Reduce)
    assert reduce.grams == (b"stats",)


def test_machine_keeps_its_gram_matrix_to_itself_and_says_its_sum():
    machine = machine_of(A, HEAD, everybody_sums=True, uses_gram=True)
    closer = Voice(machine.view.closer(0), HEAD.value)
    votes = [voice.vote(COMMITS) for voice in (a, b, c)]
    for event in [*COMMITS, closer.propose(COMMITS), *votes]:
        machine.handle(event, 0.0)
    holding(machine.view, *PEERS)
    machine.view.cells.requested.add(("measure", DIGEST, 0, A))
    actions = machine.handle(Measured(DIGEST, 0, NUM_CELLS, b"stats"), 0.0)
    assert not signed(actions, Kind.GRAM)
    assert [one.grams for one in actions if isinstance(one, Reduce)] == [(b"stats",)]


def test_gram_matrix_of_another_is_not_filed():
    machine = machine_of(A, HEAD, everybody_sums=True, uses_gram=True)
    body = Gram(list_digest=DIGEST, first=0, stop=NUM_CELLS, stats=bytes(24))
    machine.handle(b.say(Kind.GRAM, body, subject=slice_subject(DIGEST, 0, NUM_CELLS)), 0.0)
    assert not machine.view.ballots.of(Kind.GRAM, 0, slice_subject(DIGEST, 0, NUM_CELLS))


def test_every_member_learns_how_long_parts_take():
    deadline = LearnedDeadline(floor_s=0.1, cap_s=10.0)
    for me in PEERS:
        mine = holding(view(me), *PEERS)
        assert learn(mine, deadline, 2.0)
    assert not learn(holding(view(JOINER), *PEERS), deadline, 2.0)
