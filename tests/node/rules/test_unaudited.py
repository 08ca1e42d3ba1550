"""What those weigh whose training nobody can run again: a share, on every peer the same."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.evidence import words_needed
from protocol.identity import PeerId
from protocol.manifest import NO_ADMISSION, AdmissionSpec, AuditSpec
from protocol.messages import Roster, Work
from protocol.rounds.seating import answerable, capped, unaudited, weighed
from sim.checks.seating import capped_weights, num_parts
from tests.node.builders import commit_body, head_of, peers_named, roster_of

PEERS = peers_named(12)
LAW = AuditSpec(rate=0.25, unaudited=0.25)
HEAD = head_of(PEERS).value


def work_of(device: str) -> Work:
    empty = bytes(32)
    return Work(onion=empty, device=device, trace=(empty,) * 9, before=empty, after=empty)


def rows_of(classes: str, tokens: list[int] | None = None):
    """A listed COMMIT of each peer; its class is the letter in its place."""
    given_ = tokens or [1000] * len(classes)
    return [
        (peer, peer, replace(commit_body(HEAD, tokens=n), work=(work_of(device),)))
        for peer, device, n in zip(PEERS, classes, given_, strict=False)
    ]


def roster_with(num_voters: int, num_members: int = len(PEERS)) -> Roster:
    return roster_of(PEERS[:num_voters], PEERS[num_voters:num_members])


def shares(classes: str, law: AuditSpec = LAW, **changes) -> dict[PeerId, Fraction]:
    roster = changes.pop("roster", roster_with(len(classes), len(classes)))
    found = weighed(roster, NO_ADMISSION, rows_of(classes, **changes), law)
    total = sum(weight for _, _, weight in found)
    return {peer: Fraction(weight, total) for peer, _, weight in found}


def test_class_of_fewer_voters_than_convict_is_capped_and_the_others_are_not():
    found = shares("aaaaaabbcc")  # Ten voters: four words convict, so five of a class are needed.
    assert sum(found[peer] for peer in PEERS[6:10]) <= Fraction(1, 4)
    assert sum(found[peer] for peer in PEERS[6:10]) > Fraction(24, 100)
    assert len({found[peer] for peer in PEERS[:6]}) == 1
    assert shares("aaaaaabbcc", replace(LAW, unaudited=1.0))[PEERS[0]] == Fraction(1, 10)
    assert shares("aaaaaabbcc", replace(LAW, rate=0.0))[PEERS[0]] == Fraction(1, 10)


def test_cap_that_does_not_bind_changes_no_weight():
    plain = weighed(roster_with(8, 8), NO_ADMISSION, rows_of("aaaaaaab"))
    assert weighed(roster_with(8, 8), NO_ADMISSION, rows_of("aaaaaaab"), LAW) == plain


def test_share_of_nothing_leaves_the_unaudited_out():
    found = shares("aaaaaabb", replace(LAW, unaudited=0.0))
    assert found.keys() == set(PEERS[:6])


def test_where_nobody_can_be_convicted_of_training_nobody_is_capped():
    assert unaudited(roster_with(8, 8), list(zip(PEERS, "abcdefgh", strict=False))) == frozenset()
    assert set(shares("abcdefgh").values()) == {Fraction(1, 8)}


@pytest.mark.parametrize(("num_voters", "is_founder_capped"), [(1, False), (3, False), (4, True)])
def test_voters_of_whom_nobody_may_lie_are_not_capped(num_voters, is_founder_capped):
    roster = roster_with(num_voters, 8)
    classes = list(zip(PEERS, "b" + "a" * 7, strict=False))
    found = unaudited(roster, classes)
    assert (PEERS[0] in found) == (is_founder_capped and PEERS[1] in answerable(roster, classes))


def test_one_more_voter_than_may_lie_is_needed_beside_whoever_is_judged():
    for num_voters in range(4, 12):
        needed, roster = words_needed(num_voters), roster_with(num_voters, num_voters)
        for same in range(1, num_voters + 1):
            classes = [(p, "a" if i < same else f"b{i}") for i, p in enumerate(PEERS[:num_voters])]
            assert (PEERS[0] in answerable(roster, classes)) == (same - 1 >= needed)


def test_a_class_counts_its_listed_voters_alone():
    """Whoever is listed without a vote, or votes and is not listed, signs no VERDICT."""
    roster = roster_with(4)
    classes = [(peer, "a") for peer in PEERS[2:]]  # Two voters are listed, and many members.
    assert answerable(roster, classes) == frozenset(PEERS[4:])


@given(
    classes=st.text("abc", min_size=1, max_size=12),
    num_voters=st.integers(1, 12),
    tokens=st.lists(st.integers(1, 1 << 34), min_size=12, max_size=12),
    share=st.floats(0.0, 1.0),
)
def test_reference_says_the_same_to_the_bit_and_the_cap_is_kept(classes, num_voters, tokens, share):
    law = replace(LAW, unaudited=share)
    roster = roster_with(min(num_voters, len(classes)))
    head = replace(HEAD, roster=roster)
    rows = rows_of(classes, tokens)
    found = {peer: weight for peer, _, weight in weighed(roster, NO_ADMISSION, rows, law)}
    plain = {p: c.tokens * num_parts(head, p, AdmissionSpec()) for p, _, c in rows}
    named = {peer: commit.work[0].device for peer, _, commit in rows}
    expected = capped_weights(head, plain, named, share)
    assert found == {peer: weight for peer, weight in expected.items() if weight}
    those = unaudited(roster, list(named.items()))
    total, lone = sum(found.values()), sum(w for p, w in found.items() if p in those)
    if total > lone:
        assert lone <= Fraction(share) * total
    assert all(found.get(peer, 0) <= plain[peer] for peer in plain)


def test_the_cap_is_shared_in_proportion():
    rows = [(PEERS[0], b"0", 600), (PEERS[1], b"1", 300), (PEERS[2], b"2", 900)]
    found = capped(rows, PEERS[:2], LAW)
    assert [weight for _, _, weight in found] == [200, 100, 900]
