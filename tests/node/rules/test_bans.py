"""R1: who convicted itself loses its seat, and whose word that takes."""

import pytest

from protocol import events as ev
from protocol import limits
from protocol.entry_kinds import Accusation
from protocol.evidence import decode_evidence
from protocol.identity import KeyedHashSigner
from protocol.messages import Commit, Kind, Roster, Vote, decode_body
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.proposal import complete_senders
from protocol.rounds.roster import ListedContribution, next_roster
from tests.node.builders import (
    Voice,
    commit_body,
    contributed,
    head_of,
    machine_of,
    peers_named,
    roster_of,
    signed,
    view_of,
)

A, B, C, D, E, F, G = peers_named(7)
HEAD = head_of((A, B, C, D, E)).value
SIGNER = KeyedHashSigner(A)


def says(peer, **changes) -> ListedContribution:
    return ListedContribution(peer, commit_body(HEAD, **changes), True)


def after(roster: Roster, *listed: ListedContribution, trust: str = "open") -> Roster:
    return next_roster(roster, 5, listed, trust=trust)


def of_seven(*namers) -> Roster:
    """Seven voters, of whom two may lie; all contribute, and these name G."""
    roster = roster_of((A, B, C, D, E, F, G))
    return after(roster, *(says(p, bans=(G,) if p in namers else ()) for p in roster.members))


def test_banned_peer_loses_its_seat_once_more_voters_name_it_than_may_lie():
    assert G in of_seven(A, B).members
    assert of_seven(A, B).banned == ()
    assert G not in of_seven(A, B, C).members
    assert of_seven(A, B, C).banned == (G,)


def test_one_friend_is_enough_to_ban_and_a_name_said_twice_counts_once():
    assert after(roster_of((A, B)), says(A, bans=(B,)), trust="friends").members == (A,)
    roster = roster_of((A, B, C, D))
    assert after(roster, says(A, bans=(D, D)), says(B), says(C), says(D)).banned == ()


def test_members_without_a_vote_ban_nobody_however_many_they_are():
    roster = roster_of((A, B, C, D), (E, F, G))
    named = [says(p, bans=(D,)) for p in (E, F, G)]
    assert after(roster, *map(says, (A, B, C, D)), *named).banned == ()


def test_banned_peer_is_seated_by_no_number_of_joins_and_remembered():
    banned = of_seven(A, B, C)
    again = after(banned, *(says(p, joins=(G,)) for p in banned.members))
    assert G not in again.members
    assert again.banned == (G,)


def test_last_ones_are_remembered_as_many_as_there_are_seats():
    old = tuple(peers_named(200)[100 : 100 + limits.SEATS_MAX])
    roster = Roster(seats=roster_of((A, B, C, D, E)).seats, window=(4,), banned=old)
    found = after(roster, *(says(p, bans=(E,)) for p in (A, B, C, D)))
    assert found.banned == (*old[1:], E)


def test_run_whose_members_are_all_banned_goes_on_with_them():
    roster = roster_of((A,))
    assert after(roster, says(A, bans=(A,)), trust="friends").members == (A,)


def convict(machine, first: ev.Heard, second: ev.Heard) -> list[ev.RoundAction]:
    return [*machine.handle(first, 1.0), *machine.handle(second, 1.1)]


@pytest.mark.parametrize("kind", ["COMMIT", "VOTE"])
def test_second_message_in_a_slot_is_evidence_once_and_the_next_commit_names_its_sender(kind):
    head = head_of((A, B, C, D))
    machine, liar = machine_of(A, head), Voice(D, head.value)
    if kind == "COMMIT":
        first, second, third = (liar.commit(mark) for mark in ("one", "two", "three"))
    else:
        bodies = (Vote(list_digest=bytes([n]) * 32) for n in range(3))
        first, second, third = (liar.say(Kind.VOTE, body) for body in bodies)
    actions = convict(machine, first, second)
    (accused,) = (a for a in actions if isinstance(a, ev.Accuse))
    found = decode_evidence(accused.evidence.encoded, head.value.run, SIGNER)
    assert (found.subject, found.accusation) == (D, Accusation.TWO_MESSAGES)
    assert not [a for a in machine.handle(third, 1.2) if isinstance(a, ev.Accuse)]
    assert machine.view.ballots.find(second.message.digest)
    assert not machine.view.ballots.find(third.message.digest)
    (commit,) = signed(machine.handle(contributed(5), 2.0), Kind.COMMIT)
    body = decode_body(commit)
    assert isinstance(body, Commit)
    assert body.bans == (D,)
    assert body.suspects == ()


def test_evidence_from_others_bans_as_the_own_does():
    head = head_of((A, B, C, D))
    other, liar = machine_of(B, head), Voice(D, head.value)
    actions = convict(other, liar.commit("one"), liar.commit("two"))
    (accused,) = (a for a in actions if isinstance(a, ev.Accuse))
    machine = machine_of(A, head)
    machine.handle(ev.EvidenceHeld((accused.evidence,)), 1.0)
    (commit,) = signed(machine.handle(contributed(5), 2.0), Kind.COMMIT)
    body = decode_body(commit)
    assert isinstance(body, Commit)
    assert body.bans == (D,)


def test_without_the_defence_a_contradiction_is_a_fault_and_no_more():
    head = head_of((A, B, C, D))
    machine, liar = machine_of(A, head, without=frozenset({"bans"})), Voice(D, head.value)
    actions = convict(machine, liar.commit("one"), liar.commit("two"))
    assert not [a for a in actions if isinstance(a, ev.Accuse)]
    assert [a.peer for a in actions if isinstance(a, ev.Fault)] == [D]


def test_list_may_name_either_commit_of_a_convicted_sender_and_a_closer_names_neither():
    head = head_of((A, B, C, D))
    view, liar = view_of(A, head), Voice(D, head.value)
    commits = [liar.commit(mark) for mark in ("one", "two")]
    filed = [view.ballots.add(BallotEntry(c.message, c.body)) for c in commits]
    assert filed == ["new", "conflict"]
    assert [view.ballots.commit_of(c.message.digest) for c in commits] == [
        (D, c.body) for c in commits
    ]
    all_held = bytes([0b1111])
    for peer in (A, B, C):
        voice = Voice(peer, head.value)
        for said in (voice.commit(), voice.have(all_held)):
            view.ballots.add(BallotEntry(said.message, said.body))
    assert D in complete_senders(view)
    view.suspect(frozenset(), frozenset({D}))
    assert D not in complete_senders(view)
