"""What became of the own contributions, for a trainer that is late (R6)."""

from dataclasses import replace

from protocol import events as ev
from protocol.rounds.fates import Fates
from tests.node.builders import head_of, peers_named

HEAD = head_of(peers_named(1))
BASIS = b"a seal"


def train(
    sealed: int, *, listed: bool = False, resync: bool = False, basis: bytes = BASIS
) -> ev.Train:
    certificate = replace(HEAD, value=replace(HEAD.value, round=sealed, basis=basis))
    return ev.Train(certificate, ((0, 1),), listed, resync)


def fates_of(*actions: ev.Train) -> Fates:
    fates = Fates()
    for action in actions:
        fates.hear(action)
    return fates


def test_rounds_that_pass_while_the_trainer_is_busy_are_remembered():
    fates = fates_of(train(3), train(4, listed=True), train(5), train(6))
    assert fates.was_listed(4)
    assert not any(fates.was_listed(index) for index in (3, 5, 6))
    assert not any(fates.is_behind(index) for index in (3, 4, 5, 6))
    assert (fates.since, fates.listed) == (3, (4,))


def test_behind_a_resync_nothing_counts_even_of_the_round_before():
    fates = fates_of(train(3, listed=True), train(4, listed=True), train(5, resync=True))
    assert fates.is_behind(5)
    assert not fates.was_listed(4)
    assert (fates.since, fates.listed) == (6, ())
    fates.hear(train(6, listed=True))
    assert not fates.is_behind(6)
    assert fates.was_listed(6)


def test_of_rounds_before_the_process_began_nothing_is_known_but_the_last():
    fates = fates_of(train(7, listed=True))
    assert fates.is_behind(6)
    assert not fates.is_behind(7)
    assert fates.was_listed(7)
    assert fates_of(train(0, resync=True)).since == 1


def test_what_the_trainer_has_taken_over_is_forgotten():
    fates = fates_of(train(3, listed=True), train(4, listed=True))
    fates.taken_over(4)
    assert fates.listed == (4,)


def test_resync_to_an_earlier_round_leaves_the_one_in_hand_behind():
    fates = fates_of(train(3, listed=True), train(8, listed=True))
    fates.taken_over(9)
    fates.hear(train(6, resync=True))
    fates.hear(train(7, listed=True))
    assert fates.is_behind(9)
    fates.taken_over(8)
    assert not fates.is_behind(8)


def test_resync_to_the_same_round_leaves_the_one_in_hand_behind():
    fates = fates_of(train(3, listed=True))
    fates.taken_over(4)
    fates.hear(train(3, resync=True))
    assert fates.is_behind(4)


def test_contribution_that_is_taken_on_a_branch_that_came_back_is_told_its_fate():
    fates = fates_of(train(3), train(7))
    fates.taken_over(8)
    fates.hear(train(6, resync=True))
    fates.hear(train(7))
    fates.contributed(BASIS)
    assert fates.is_pending(BASIS)
    assert not fates.is_pending(b"another seal")
    fates.hear(train(8, listed=True))
    assert not fates.is_behind(8)
    assert fates.was_listed(8)
    fates.taken_over(9)
    assert not fates.is_pending(BASIS)


def test_rounds_that_are_over_are_told_by_their_names_until_a_resync_or_the_trainer_has_begun():
    fates = fates_of(train(3, basis=b"3"), train(4, basis=b"4"))
    told = [fates.names]
    fates.hear(train(9, resync=True, basis=b"9"))
    fates.hear(train(10, basis=b"10"))
    told.append(fates.names)
    fates.taken_over(11)
    told.append(fates.names)
    assert told == [(b"3", b"4"), (b"10",), ()]
