"""R4: the seals of all branches, and what a lost branch leaves."""

from dataclasses import replace

import pytest
from blake3 import blake3

from protocol.errors import StateError
from protocol.rounds.branches import (
    Drift,
    Tree,
    choose_drifts,
    drift_tokens,
    kept_drifts,
    lost_drift,
    may_list,
)
from tests.node.rules.test_branches import FINAL, seal_on, tree_of

#          /- P1 - P2 - P3
#   FINAL <
#          \- Q1 - Q2
P1 = seal_on(FINAL, "p1")
P2 = seal_on(P1, "p2")
P3 = seal_on(P2, "p3")
Q1 = seal_on(FINAL, "q1")
Q2 = seal_on(Q1, "q2")
OWN = (blake3(b"own").digest(),)


def drift_of(head, fork=FINAL) -> Drift:
    return Drift(fork=fork.digest, head=head.digest)


def grown(*drifts: Drift) -> Tree:
    tree = tree_of(P1, P2, P3, Q1, Q2)
    for drift in drifts:
        tree.add_drift(drift)
    return tree


def test_seal_without_the_one_before_it_is_refused():
    with pytest.raises(StateError):
        tree_of(P2)
    with pytest.raises(StateError):
        tree_of(replace(P1, round=P1.round + 1))


def test_heads_continue_what_they_stand_on_and_meet_at_the_fork():
    tree = grown()
    assert tree.continues(P3.digest, P1.digest)
    assert tree.continues(P3.digest, P3.digest)
    assert not tree.continues(P1.digest, P3.digest)
    assert not tree.continues(Q2.digest, P1.digest)
    assert tree.fork(P3.digest, Q2.digest) == tree.fork(Q1.digest, P1.digest) == FINAL.digest
    assert tree.fork(P3.digest, P1.digest) == P1.digest
    assert tree.branch(P3.digest, FINAL.digest) == [P1, P2, P3]


def test_unknown_seals_are_an_error_of_the_state():
    with pytest.raises(StateError):
        tree_of(P1).seal(Q1.digest)


def test_drift_is_equal_at_every_loser_and_of_nobody_who_loses_nothing():
    tree = grown()
    assert lost_drift(tree, P2, Q1) == lost_drift(tree, P2, Q2) == drift_of(P2)
    assert lost_drift(tree, P3, Q2) != drift_of(P2)
    assert lost_drift(tree, P1, P3) is None
    assert lost_drift(tree, P3, P1) == drift_of(P3, fork=P1)
    empty = replace(seal_on(FINAL, "empty"), commits=())
    tree.add(empty)
    assert lost_drift(tree, empty, Q1) is None


def test_drift_between_seals_of_two_branches_is_refused():
    with pytest.raises(StateError):
        grown(Drift(fork=Q1.digest, head=P2.digest))
    with pytest.raises(StateError):
        grown(Drift(fork=FINAL.digest, head=bytes(32)))


def test_contributions_of_listed_drifts_count_with_the_seal_that_lists_them():
    drift = drift_of(P2)
    tree = grown(drift)
    value = replace(seal_on(Q2, "q3"), drifts=(drift.digest,))
    tree.add(value)
    counted = list(tree.contributions(value.digest, Q1.digest))
    assert counted == [*Q2.commits, *value.commits, *P1.commits, *P2.commits]


def test_drift_may_be_listed_where_nothing_of_it_counts():
    drift = drift_of(P2)
    tree = grown(drift)
    assert may_list(tree, Q2.digest, OWN, (drift.digest,))
    assert may_list(tree, Q2.digest, OWN, ())


@pytest.mark.parametrize("basis", [P1, P2, P3])
def test_drift_of_which_a_part_is_on_the_chain_may_not_be_listed(basis):
    drift = drift_of(P2)
    assert not may_list(grown(drift), basis.digest, OWN, (drift.digest,))


def test_drift_of_which_a_part_is_in_the_same_list_may_not_be_listed():
    short, long = drift_of(P2), drift_of(P3)
    tree = grown(short, long)
    assert not may_list(tree, Q2.digest, (*OWN, *P1.commits), (short.digest,))
    assert not may_list(tree, Q2.digest, OWN, tuple(sorted((short.digest, long.digest))))


def test_drift_listed_before_may_not_be_listed_again_nor_may_one_that_shares_a_part():
    short, long = drift_of(P2), drift_of(P3)
    tree = grown(short, long)
    value = replace(seal_on(Q1, "q2"), drifts=(short.digest,))
    tree.add(value)
    for drift in (short, long):
        assert not may_list(tree, value.digest, OWN, (drift.digest,))


def test_drifts_of_a_list_are_known_ascending_and_each_once():
    one, other = drift_of(P2), drift_of(P3, fork=P2)
    tree = grown(one, other)
    names = sorted((one.digest, other.digest))
    assert may_list(tree, Q2.digest, OWN, names)
    assert not may_list(tree, Q2.digest, OWN, names[::-1])
    assert not may_list(tree, Q2.digest, OWN, (one.digest, one.digest))
    assert not may_list(tree, Q2.digest, OWN, (bytes(32),))


def test_drift_whose_fork_was_lost_too_is_measured_from_where_the_chains_part():
    drift = drift_of(P3, fork=P2)
    tree = grown(drift)
    assert may_list(tree, Q2.digest, OWN, (drift.digest,))
    assert not may_list(tree, P3.digest, OWN, (drift.digest,))


def test_closer_lists_the_drift_of_most_tokens_and_what_fits_beside_it():
    short, long, rest = drift_of(P2), drift_of(P3), drift_of(P3, fork=P2)
    tree = grown(short, long, rest)
    pending = [short.digest, long.digest, rest.digest, bytes(32)]
    assert choose_drifts(tree, Q2.digest, OWN, pending) == (long.digest,)
    both = choose_drifts(tree, Q2.digest, OWN, [rest.digest, short.digest])
    assert both == tuple(sorted((short.digest, rest.digest)))
    assert choose_drifts(tree, P3.digest, OWN, pending) == ()


def test_tokens_decide_which_drift_goes_first_not_the_names():
    tips = [seal_on(P1, f"tip {index}", tokens=index) for index in range(8)]
    drifts = {drift_of(tip).digest: tip for tip in tips}
    tree = tree_of(P1, Q1, *tips)
    for tip in tips:
        tree.add_drift(drift_of(tip))
    (chosen,) = choose_drifts(tree, Q1.digest, OWN, drifts)
    assert drifts[chosen] == tips[-1]


def test_drift_is_dropped_whole_by_who_stands_where_a_part_of_it_counts():
    short, long = drift_of(P1), drift_of(P3)
    tree = grown(short, long)
    names = {short.digest, long.digest, bytes(32)}
    assert kept_drifts(tree, Q2.digest, names) == {short.digest, long.digest}
    assert kept_drifts(tree, P1.digest, names) == frozenset()


def test_drift_adds_the_tokens_that_its_branch_had_sealed():
    assert drift_tokens(grown(), drift_of(P3, fork=P1)) == 20
