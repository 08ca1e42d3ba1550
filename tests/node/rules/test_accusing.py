"""R10: a sum that more voters than may lie contradict convicts its reducer, on every node alone."""

from dataclasses import replace

from protocol import events as ev
from protocol import limits
from protocol.entry_kinds import Accusation
from protocol.evidence import decode_evidence
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Agg,
    Commit,
    Gram,
    Interval,
    Kind,
    SealCertificate,
    decode_body,
    slice_subject,
)
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.round_machine import RoundMachine
from tests.node.builders import (
    Voice,
    contributed,
    digest_of,
    head_of,
    list_body,
    machine_of,
    peers_named,
    signed,
)

A, B, C, D, E, F, G = peers_named(7)
HEAD = head_of((A, B, C, D, E, F, G))
RIGHT, WRONG = b"r" * 32, b"w" * 32


def everybody(head: SealCertificate = HEAD) -> list[ev.Heard]:
    """The COMMITs of a LIST of everybody."""
    return [Voice(peer, head.value).commit() for peer in head.value.roster.members]


def says(peer: PeerId, root: bytes, head: SealCertificate = HEAD, first: int = 0) -> ev.Heard:
    """An AGG for the first cells of that LIST."""
    digest = digest_of(head.value, everybody(head))
    body = Agg(list_digest=digest, first=first, stop=first + 1, root=root)
    subject = slice_subject(digest, first, first + 1)
    return Voice(peer, head.value).say(Kind.AGG, body, subject=subject)


def open_machine(me: PeerId = A, head: SealCertificate = HEAD, **changes) -> RoundMachine:
    """Its closer has proposed that LIST: sums of others are about nothing."""
    machine = machine_of(me, head, trust="open", **changes)
    propose(machine, head)
    return machine


def propose(machine: RoundMachine, head: SealCertificate = HEAD) -> None:
    heard = Voice(machine.view.closer(0), head.value).say(Kind.LIST, list_body(everybody(head)))
    assert machine.view.ballots.add(BallotEntry(heard.message, heard.body), is_own=True) == "new"


def accused(machine: RoundMachine, *heard: ev.Heard) -> list[PeerId]:
    """Whom that makes a node accuse, with evidence that convinces another."""
    found = []
    for event in heard:
        for action in machine.handle(event, 1.0):
            if isinstance(action, ev.Accuse):
                evidence = action.evidence
                decode_evidence(evidence.encoded, machine.head.run, KeyedHashSigner(G))
                assert evidence.accusation is Accusation.WRONG_SUM
                found.append(evidence.subject)
    return found


def test_three_of_seven_voters_convict_who_says_another_sum_whichever_comes_first():
    right = [says(peer, RIGHT) for peer in (B, C, D)]
    assert accused(open_machine(), *right, says(E, WRONG)) == [E]
    assert accused(open_machine(), says(E, WRONG), says(F, b"x" * 32), *right) == [E, F]
    assert accused(open_machine(), *right, says(E, RIGHT)) == []


def test_conviction_is_one_and_the_next_commit_names_it():
    machine = open_machine()
    right = [says(peer, RIGHT) for peer in (B, C, D, F)]
    assert accused(machine, says(E, WRONG), *right) == [E]
    (commit,) = signed(machine.handle(contributed(5), 2.0), Kind.COMMIT)
    body = decode_body(commit)
    assert isinstance(body, Commit)
    assert body.bans == (E,)


def test_as_many_liars_as_there_may_be_convict_nobody_however_they_agree():
    lies = [says(peer, WRONG) for peer in (F, G)]
    assert accused(open_machine(), *lies, says(B, RIGHT), says(C, RIGHT)) == []


def test_words_about_other_slices_say_nothing():
    elsewhere = [says(peer, RIGHT, first=1) for peer in (B, C, D)]
    assert accused(open_machine(), *elsewhere, says(E, WRONG)) == []


def test_nobody_accuses_itself():
    right = [says(peer, RIGHT) for peer in (B, C, D)]
    assert accused(open_machine(E), says(E, WRONG), *right) == []


def test_members_without_a_vote_convict_nobody_and_are_convicted():
    head = head_of((A, B, C, D), (E, F, G))
    lies = [says(peer, WRONG, head) for peer in (E, F, G)]
    assert accused(open_machine(head=head), *lies, says(B, RIGHT, head)) == []
    found = accused(open_machine(head=head), *lies, says(B, RIGHT, head), says(C, RIGHT, head))
    assert found == [E, F, G]


def test_voters_of_a_run_of_three_are_judged_by_nobody():
    head = head_of((A, B, C), (D,))
    words = [says(A, RIGHT, head), says(B, RIGHT, head), says(C, WRONG, head)]
    assert accused(open_machine(head=head), *words) == []
    assert accused(open_machine(head=head), *words[:2], says(D, WRONG, head)) == [D]


def test_among_friends_and_with_the_defence_switched_off_nobody_is_convicted():
    words = [*(says(peer, RIGHT) for peer in (B, C, D)), says(E, WRONG)]
    friends = machine_of(A, HEAD)
    propose(friends)
    assert accused(friends, *words) == []
    machine = open_machine(without=frozenset({"bans"}))
    actions = [action for event in words for action in machine.handle(event, 1.0)]
    assert not [a for a in actions if isinstance(a, ev.Accuse)]
    assert [a.peer for a in actions if isinstance(a, ev.Fault)] == [E]


def test_own_sum_may_be_the_word_that_convicts():
    machine = open_machine(A)
    view, members = machine.view, HEAD.value.roster.members
    machine.handle(contributed(5), 0.1)
    for peer in members[1:]:
        machine.handle(Voice(peer, HEAD.value).commit(), 0.1)
    assert not machine.is_muted
    assert view.own.commit
    piece = view.slices[0]
    digest = digest_of(HEAD.value, everybody())
    subject = slice_subject(digest, piece.first, piece.stop)

    def agg(peer: PeerId, root: bytes) -> ev.Heard:
        body = Agg(list_digest=digest, first=piece.first, stop=piece.stop, root=root)
        return Voice(peer, HEAD.value).say(Kind.AGG, body, subject=subject)

    assert accused(machine, agg(E, WRONG), agg(B, RIGHT), agg(C, RIGHT)) == []
    own = agg(A, RIGHT)
    published = list(machine._publish(view, own.message, own.body))
    assert [a.evidence.subject for a in published if isinstance(a, ev.Accuse)] == [E]


def test_gram_matrices_convict_as_sums_do():
    machine = open_machine(uses_gram=True)
    digest = digest_of(HEAD.value, everybody())
    piece = machine.view.slices[0]
    subject = slice_subject(digest, piece.first, piece.stop)

    def gram(peer: PeerId, stats: bytes) -> ev.Heard:
        body = Gram(list_digest=digest, first=piece.first, stop=piece.stop, stats=stats)
        return Voice(peer, HEAD.value).say(Kind.GRAM, body, subject=subject)

    zeros = bytes(8 * 6)  # Of three rows.
    words = [gram(peer, zeros) for peer in (B, C, D)]
    assert accused(machine, *words, gram(E, bytes([0] * 7 + [64]) + zeros[8:])) == [E]


def test_finding_that_is_too_large_to_travel_is_a_fault_and_no_more():
    crowd = peers_named(limits.SEATS_MAX)
    head = head_of(crowd)
    value = head.value
    gaps = tuple(Interval(first=2**61 + 2 * n, stop=2**61 + 2 * n + 1) for n in range(256))
    digests = (bytes(32),) * limits.SEATS_MAX
    roster = replace(value.roster, banned=crowd)
    clock = replace(value.clock, unused=gaps, cursor=2**62)
    large = replace(value, commits=digests, drifts=digests, roster=roster, clock=clock)
    head = SealCertificate(value=large, seals=())
    machine = open_machine(crowd[0], head)
    judges, liar = crowd[1:23], crowd[-1]
    words = [*(says(peer, RIGHT, head) for peer in judges), says(liar, WRONG, head)]
    actions = [action for event in words for action in machine.handle(event, 1.0)]
    assert not [a for a in actions if isinstance(a, ev.Accuse)]
    assert [a.peer for a in actions if isinstance(a, ev.Fault)] == [liar]
