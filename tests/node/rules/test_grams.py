"""Partial Gram matrices of slices: whose is believed, who is late, and when sums may begin."""

from dataclasses import replace

import numpy as np

from protocol.events import Fault, Measure, Reduce
from protocol.identity import KeyedHashSigner, PeerId
from protocol.manifest import AdmissionSpec
from protocol.messages import Gram, Kind, slice_subject
from protocol.rounds import supply
from protocol.rounds.agreed import (
    agreed_gram,
    call_substitutes,
    note_grams,
    unmeasured,
    whole_gram,
)
from protocol.rounds.reducers import Slice
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView
from tests.node.builders import CLOCK_RULES, CONFIG
from tests.node.rules.test_agreed import (
    CERTIFIED,
    COMMITS,
    DIGEST,
    FIRST,
    FOURTH,
    HEAD,
    OPEN,
    PEERS,
    PIECE,
    REST,
    SECOND,
    THIRD,
    VOICES,
    hear,
    view_of,
)

ROWS = len(COMMITS)
ONE = bytes(4 * ROWS * (ROWS + 1))
OTHER = np.eye(ROWS)[np.triu_indices(ROWS)].astype("<f8").tobytes()

NO_NUMBER = "a Gram matrix with a number out of range"


def gram(peer: PeerId, stats: bytes = ONE, piece=PIECE):
    body = Gram(list_digest=DIGEST, first=piece.first, stop=piece.stop, stats=stats)
    subject = slice_subject(DIGEST, piece.first, piece.stop)
    return VOICES[peer].say(Kind.GRAM, body, subject=subject)


def grams_of(*pieces):
    """Both reducers of those slices say the same."""
    return [gram(peer, ONE, piece) for piece in pieces for peer in piece.reducers[:2]]


def test_gram_matrix_is_believed_once_two_reducers_say_the_same():
    view = view_of(FOURTH, [*CERTIFIED, gram(FIRST)], uses_gram=True)
    assert agreed_gram(view, DIGEST, PIECE) is None
    hear(view, gram(SECOND, OTHER))
    assert agreed_gram(view, DIGEST, PIECE) is None
    hear(view, gram(THIRD, OTHER))
    assert agreed_gram(view, DIGEST, PIECE) == OTHER
    hear(view, *(gram(peer) for peer in REST))
    assert agreed_gram(view, DIGEST, PIECE) == OTHER, "once believed, no other is"
    friends = view_of(FOURTH, [*CERTIFIED, gram(FIRST)], uses_gram=True, trust="friends")
    assert agreed_gram(friends, DIGEST, PIECE) == ONE


def test_gram_matrix_of_other_rows_than_the_list_has_counts_for_nothing():
    short = bytes(4 * 2 * 3)
    view = view_of(FOURTH, [*CERTIFIED, gram(FIRST, short), gram(SECOND, short)], uses_gram=True)
    assert agreed_gram(view, DIGEST, PIECE) is None


def test_gram_matrix_has_no_row_of_a_newcomer_that_weighs_nothing_yet():
    fewer = bytes(4 * (ROWS - 1) * ROWS)
    for stats, is_believed in ((ONE, False), (fewer, True)):
        said = [gram(FIRST, stats), gram(SECOND, stats)]
        law = AdmissionSpec(probation=3, ramp=10)
        view = view_of(
            FOURTH, [*CERTIFIED, *said], uses_gram=True, clock=replace(CLOCK_RULES, admission=law)
        )
        newcomer, *others = view.roster.seats
        view.roster = replace(view.roster, seats=(replace(newcomer, seated=2), *others))
        assert (agreed_gram(view, DIGEST, PIECE) == stats) is is_believed


def test_whoever_measures_believes_itself():
    heard = [*CERTIFIED, gram(FIRST), gram(SECOND, OTHER), gram(THIRD, OTHER)]
    assert agreed_gram(view_of(FIRST, heard, uses_gram=True), DIGEST, PIECE) == ONE


def test_nothing_is_summed_before_every_slice_is_measured():
    view = view_of(FIRST, CERTIFIED, uses_gram=True)
    for _, digest, _ in view.commits():
        view.cells.parts[digest] = set(range(CONFIG.num_cells(1)))
    measured = [a for a in supply.measure_slices(view) if isinstance(a, Measure)]
    assert {(a.first, a.stop) for a in measured} == {(p.first, p.stop) for p in view.own_slices()}
    *most, last = view.slices
    hear(view, *grams_of(*most))
    assert unmeasured(view, DIGEST) == [last]
    assert not list(supply.reduce_slices(view))
    hear(view, *grams_of(last))
    reduces = [a for a in supply.reduce_slices(view) if isinstance(a, Reduce)]
    assert len(reduces) == len(view.own_slices())
    assert all(a.grams == (ONE,) * len(view.slices) for a in reduces)


def test_rule_that_needs_no_gram_matrix_measures_nothing():
    view = view_of(FIRST, CERTIFIED)
    for _, digest, _ in view.commits():
        view.cells.parts[digest] = set(range(CONFIG.num_cells(1)))
    assert not list(supply.measure_slices(view))
    assert whole_gram(view, DIGEST) == ()
    assert all(a.grams == () for a in supply.reduce_slices(view) if isinstance(a, Reduce))


def test_only_whose_gram_matrix_is_awaited_is_late_and_sums_are_late_from_the_last_one_on():
    *most, last = view_of(PEERS[0]).slices
    third = last.reducers[2]
    heard = [*CERTIFIED, *grams_of(*most)]
    view = view_of(third, heard, uses_gram=True, certified_s={DIGEST: 5.0})
    note_grams(view, 5.5)
    assert view.times.progress_s == 5.5
    before = view.own_slices()
    call_substitutes(view, now_s=6.0, deadline_s=1.0)
    assert view.own_slices() == [p for p in view.slices if p == last or p in before]
    hear(view, *grams_of(last))
    note_grams(view, 6.5)
    fourth = replace_gathering(view, most[0])
    call_substitutes(fourth, now_s=7.4, deadline_s=1.0)
    assert most[0] not in fourth.own_slices()
    call_substitutes(fourth, now_s=7.5, deadline_s=1.0)
    assert most[0] in fourth.own_slices()


def replace_gathering(view: RoundView, piece) -> RoundView:
    """What the third in rank of another slice sees."""
    third = piece.reducers[2]
    heard = [*CERTIFIED, *grams_of(*view.slices)]
    other = view_of(third, heard, uses_gram=True, certified_s={DIGEST: 5.0})
    note_grams(other, 6.5)
    return other


def test_gram_matrix_that_nobody_believes_is_no_progress():
    view = view_of(FOURTH, [*CERTIFIED, gram(FIRST)], uses_gram=True)
    note_grams(view, 3.0)
    assert view.times.progress_s == 0.0


def machine_with_gram(*, uses_gram: bool = True) -> RoundMachine:
    config = replace(OPEN, uses_gram=uses_gram)
    machine = RoundMachine(config, KeyedHashSigner(FOURTH), HEAD, now_s=0.0)
    for event in [e for e in CERTIFIED if e.message.sender != FOURTH]:
        machine.handle(event, 0.1)
    return machine


def faults_of(machine: RoundMachine, event) -> list[str]:
    return [a.reason for a in machine.handle(event, 0.2) if isinstance(a, Fault)]


def test_gram_matrix_that_no_rows_can_have_is_a_fault_and_one_of_no_slice_is_passed_over():
    machine, nan = machine_with_gram(), np.full(len(ONE) // 8, np.nan).astype("<f8").tobytes()
    assert faults_of(machine, gram(FIRST, nan)) == [
        "GRAM: a Gram matrix with a number out of range"
    ]
    assert not machine.view.gram_of(DIGEST, PIECE)
    beside = Slice(PIECE.first, PIECE.stop + 1, PIECE.reducers)
    assert not faults_of(machine, gram(FIRST, ONE, beside))
    assert not machine.view.gram_of(DIGEST, beside)
    assert not faults_of(machine, gram(FIRST))
    assert list(machine.view.gram_of(DIGEST, PIECE)) == [FIRST]
    without = machine_with_gram(uses_gram=False)
    assert not faults_of(without, gram(FIRST, nan))
    assert not without.view.gram_of(DIGEST, PIECE)


def test_two_gram_matrices_for_one_slice_convict_their_sender():
    machine = machine_with_gram()
    assert not faults_of(machine, gram(FIRST))
    assert faults_of(machine, gram(FIRST, OTHER)) == ["two different GRAM in one slot"]
