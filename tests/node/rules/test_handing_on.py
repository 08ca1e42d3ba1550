"""R1: a run that is young does not end with its founder: founding members vote at once, and a voter
that leaves by itself makes successors first."""

from dataclasses import replace

import pytest

from protocol.identity import PeerId
from protocol.messages import Roster
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import pack_senders
from protocol.rounds.roster import ListedContribution, may_go, next_roster, voters
from tests.node.builders import commit_body, head_of, peers_named, roster_of

A, B, C, D, E, F = peers_named(6)
HEAD = head_of((A, B, C)).value
TRUSTS = pytest.mark.parametrize("trust", ["open", "friends"])


def listed(peer: PeerId, *, proved: bool = True, **changes) -> ListedContribution:
    return ListedContribution(peer, commit_body(HEAD, **changes), proved)


def young(trust: str, *joins: PeerId, rounds: int = 1) -> Roster:
    """Of a run that A founded, with these seated by the seal of its first round, in so many."""
    roster = next_roster(rosters.genesis_roster(A), 1, [listed(A, joins=joins)], trust=trust)
    for index in range(2, rounds + 1):
        entries = [listed(peer, proved=index > 2 or peer == A) for peer in roster.members]
        roster = next_roster(roster, index, entries, trust=trust)
    return roster


def late(trust: str, *joins: PeerId) -> Roster:
    """A alone voted for long when these came; they are listed and proved in round 8."""
    roster = replace(roster_of((A,), joins), window=(5, 6, 7, 8))
    seats = tuple(replace(s, seated=6, proved=8) if s.peer != A else s for s in roster.seats)
    first = tuple(replace(s, proved=8) if s.peer == A else s for s in seats)
    return replace(roster, seats=first)


@TRUSTS
def test_those_seated_with_the_first_seal_vote_as_soon_as_they_are_proved(trust: str) -> None:
    members = tuple(sorted((A, B, C, D, E)))
    assert voters(young(trust, B, C, D, E, rounds=2)) == (A,)
    assert voters(young(trust, B, C, D, E, rounds=3)) == members


@TRUSTS
def test_a_founding_member_that_did_not_prove_itself_does_not_vote(trust: str) -> None:
    roster = young(trust, B, C, D, rounds=2)
    entries = [listed(A), listed(B), listed(C), listed(D, proved=False)]
    assert voters(next_roster(roster, 3, entries, trust=trust)) == tuple(sorted((A, B, C)))


def test_whoever_comes_to_an_open_run_in_its_second_round_waits_for_the_sixteenth() -> None:
    roster = next_roster(young("open", B), 2, [listed(A, joins=(E,)), listed(B)], trust="open")
    for index in range(3, 16):
        roster = next_roster(roster, index, [listed(p) for p in roster.members], trust="open")
        assert E not in voters(roster)
    entries = [listed(p) for p in roster.members]
    assert E in voters(next_roster(roster, 16, entries, trust="open"))


@TRUSTS
def test_the_only_voter_goes_with_the_seal_that_has_its_successors(trust: str) -> None:
    roster = late(trust, B, C, D, E, F)
    entries = [listed(A, gone=(A,)), *(listed(p) for p in (B, C, D, E, F))]
    following = next_roster(roster, 9, sorted(entries, key=lambda e: e.sender), trust=trust)
    assert A not in following.members
    assert voters(following) == tuple(sorted((B, C, D, E, F))[:4])


def test_successors_are_who_sits_longest_and_not_who_came_for_it() -> None:
    trust = "open"
    roster = late(trust, B, C, D, E, F)
    lowest = min((B, C, D, E, F))
    seats = tuple(replace(s, seated=8) if s.peer == lowest else s for s in roster.seats)
    entries = [listed(A, gone=(A,)), *(listed(p) for p in (B, C, D, E, F))]
    following = next_roster(replace(roster, seats=seats), 9, entries, trust=trust)
    assert voters(following) == tuple(sorted({B, C, D, E, F} - {lowest}))


@TRUSTS
def test_the_only_voter_stays_until_somebody_has_proved_itself(trust: str) -> None:
    roster = young(trust, B, C, D)
    for index in range(2, 5):
        entries = [listed(A, gone=(A,)), *(listed(p, proved=False) for p in (B, C, D))]
        roster = next_roster(roster, index, entries, trust=trust)
        assert voters(roster) == (A,)
        assert roster.window[-1] == index
    entries = [listed(A, gone=(A,)), *(listed(p) for p in (B, C, D))]
    roster = next_roster(roster, 5, entries, trust=trust)
    assert voters(roster) == tuple(sorted((B, C, D)))


@TRUSTS
def test_a_leaver_stays_while_the_others_who_vote_may_be_dead(trust: str) -> None:
    """B proved itself in a round before, and is late or dead now: its vote alone is no quorum."""
    roster = replace(roster_of((A, B), (C,)), window=(1, 2, 3, 4))
    saw = pack_senders({A, C}, roster.members)
    entries = [listed(A, gone=(A,), committed=saw), listed(C, proved=False, committed=saw)]
    following = next_roster(roster, 5, entries, trust=trust)
    assert A in voters(following)
    entries = [listed(A, gone=(A,), committed=saw), listed(C, committed=saw)]
    following = next_roster(following, 6, entries, trust=trust)
    assert A not in following.members
    assert voters(following) == (C,)


@TRUSTS
def test_a_leaver_that_is_not_listed_any_more_is_dropped_at_once(trust: str) -> None:
    roster = roster_of((A, B, C, D))
    entries = [listed(p, gone=(A,), proved=False) for p in (B, C, D)]
    assert A not in next_roster(roster, 5, entries, trust=trust).members


def test_nobody_succeeds_where_four_voters_are_left() -> None:
    """Else honest voters that leave one by one would make room for identities by the dozen."""
    roster = roster_of((A, B, C, D, E), (F,))
    entries = [*(listed(p, gone=(A,)) for p in (B, C, D)), listed(E), listed(F)]
    following = next_roster(roster, 5, entries, trust="open")
    assert voters(following) == tuple(sorted((B, C, D, E)))


def test_one_voter_of_four_does_not_send_another_away() -> None:
    roster = roster_of((A, B, C, D), (E, F))
    entries = [listed(B, gone=(A,)), *(listed(p) for p in (A, C, D, E, F))]
    following = next_roster(roster, 5, entries, trust="open")
    assert voters(following) == tuple(sorted((A, B, C, D)))


@pytest.mark.parametrize(
    ("electorate", "others", "goes"),
    [
        ((A,), (B, C), False),
        ((A, B), (B,), False),
        ((A, B, C), (B, C), True),
        ((A, B, C), (B,), False),
        ((B, C), (), True),
    ],
)
def test_a_voter_may_go_where_the_others_are_a_quorum(electorate, others, goes) -> None:
    assert may_go(roster_of(electorate, (D,)), A, others, trust="friends") is goes
