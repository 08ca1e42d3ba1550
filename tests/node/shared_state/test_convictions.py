"""How much evidence is held, whose stays, and from when on a convicted peer's entries count no
more."""

import itertools
import random

import pytest

from protocol import limits
from protocol.entry_kinds import Accusation, EntryKind
from protocol.evidence import Evidence, fork_evidence
from protocol.identity import PeerId
from protocol.shared_state.book import Convictions
from tests.node.shared_state.scene import RUN, WALL_S, key_of, make_entry, signer

MOST = 6


def fork_of(number: int, *, wall_s: float = WALL_S) -> Evidence:
    keys = [key_of(EntryKind.NOTE, n) for n in (1, 2)]
    one, two = (make_entry(signer(number), key=key, wall_s=wall_s) for key in keys)
    return fork_evidence(one.signed_header, two.signed_header)


def sum_of(number: int, text: bytes = b"") -> Evidence:
    """What it says is checked where it is decoded, and does not matter here."""
    return Evidence(
        version=1,
        run=RUN,
        accusation=Accusation.WRONG_SUM,
        subject=signer(number).peer_id,
        first=b"a" + text,
        second=b"b",
    )


def held_after(pieces, members: frozenset[PeerId] = frozenset()) -> Convictions:
    convictions = Convictions(members.__contains__, MOST)
    for one in pieces:
        convictions.add(one)
    return convictions


@pytest.fixture(autouse=True)
def few_sums(monkeypatch):
    monkeypatch.setattr(limits, "WRONG_SUMS_MAX", 2)


def test_full_book_of_evidence_keeps_the_highest_ids_in_any_order(seed):
    pieces = [fork_of(number) for number in range(20, 32)]
    highest = sorted(pieces, key=lambda one: one.entry_id)[-MOST:]
    for number in range(3):
        random.Random(seed + number).shuffle(pieces)
        found = held_after(pieces)
        assert found.all == tuple(sorted(highest, key=lambda one: one.subject))


def test_what_goes_for_another_is_told_and_what_is_not_needed_is_not_taken():
    numbers = sorted(range(20, 21 + MOST), key=lambda number: fork_of(number).entry_id)
    pieces = [fork_of(number) for number in numbers]
    convictions = Convictions(lambda _: False, MOST)
    assert [convictions.add(one) for one in pieces[:-1]] == [()] * MOST
    assert convictions.add(pieces[-1]) == (pieces[0],)
    assert convictions.add(pieces[0]) is None, "it would be the first to go again"
    assert convictions.add(pieces[-1]) is None, "it is known"
    assert convictions.against(pieces[0].subject) == ()
    earlier = fork_of(numbers[-1], wall_s=WALL_S - 60)
    assert convictions.add(earlier) == (pieces[-1],)
    assert convictions.add(pieces[-1]) is None


def test_evidence_against_members_stays_whatever_comes():
    pieces = sorted((fork_of(number) for number in range(20, 32)), key=lambda e: e.entry_id)
    members = frozenset(one.subject for one in pieces[:2])
    found = held_after(pieces, members)
    assert {one.subject for one in found.all} == members | {e.subject for e in pieces[-4:]}


@pytest.mark.parametrize("forks", [0, 3, MOST, 2 * MOST])
def test_no_more_wrong_sums_are_held_than_their_limit_however_full_it_is(forks):
    """They are large, and whoever likes makes them against keys of its own."""
    for order in itertools.permutations((0, 1)):
        kinds = [[fork_of(n) for n in range(20, 20 + forks)], [sum_of(n) for n in range(40, 60)]]
        found = held_after(itertools.chain(*(kinds[number] for number in order)))
        sums = [one for one in found.all if one.accusation is Accusation.WRONG_SUM]
        assert len(sums) <= limits.WRONG_SUMS_MAX
        assert len(found.all) <= MOST
        assert len(found.all) >= min(MOST, forks)


def test_cut_is_the_earliest_of_all_that_convicts_a_peer():
    fork, wrong = fork_of(20), sum_of(20)
    assert held_after([]).cut(fork.subject) is None
    assert held_after([fork]).cut(fork.subject) == fork.cut > 0
    for order in ([fork, wrong], [wrong, fork]):
        found = held_after(order)
        assert found.cut(fork.subject) == 0
        assert found.all == found.against(fork.subject) == (fork, wrong)
