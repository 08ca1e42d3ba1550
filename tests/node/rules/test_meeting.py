"""R4: branches meet: who is asked, what is believed, and where all should stand."""

from dataclasses import replace

import pytest

from protocol.errors import ProofError
from protocol.frames import Branch, WantBranch
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Roster, Seal, SealCertificate, SealValue
from protocol.rounds import standing as meeting
from protocol.rounds.standing import Meeting, Standing
from tests.node.builders import Voice, head_of, peers_named, roster_of, view_of

A, B, C, D = peers_named(4)
HEAD = head_of((A, B, C))
FINAL = HEAD.value


def link(before: SealValue, tokens: int, *by, roster: Roster | None = None) -> SealCertificate:
    """A provisional seal on `before` with so many more tokens; `roster` is of another one."""
    clock = replace(before.clock, tokens=before.clock.tokens + tokens)
    value = replace(
        before,
        round=before.round + 1,
        before=before.digest,
        basis=before.digest,
        roster=roster or before.roster,
        clock=clock,
    )
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    said = [
        Voice(peer, before).say(Kind.PSEAL, body, subject=before.digest).message.encoded
        for peer in by or (B,)
    ]
    return SealCertificate(value=value, seals=tuple(said))


def standing_on(*links: SealCertificate) -> Standing:
    standing = Standing(HEAD, [view_of(A, HEAD)])
    for one in links:
        standing.advance(one, lambda it: view_of(A, it, final=FINAL))
    return standing


def met(standing: Standing, **branches: tuple[SealCertificate, ...]) -> Meeting:
    """Everybody has told where it stands, was asked, and has answered."""
    found = Meeting(KeyedHashSigner(A))
    for name, branch in branches.items():
        peer = {"B": B, "C": C}[name]
        head = branch[-1].value.digest if branch else FINAL.digest
        found.heard(peer, FINAL.round, head, now_s=0.0)
    for send in found.ask(standing, now_s=9.0):
        assert send.frame == WantBranch(final=FINAL.digest)
        name = {B: "B", C: "C"}[send.peer]
        for one in branches[name]:
            found.arrived(send.peer, Branch(final=FINAL.digest, seals=(one,), lock=b""), standing)
        found.arrived(send.peer, Branch(final=FINAL.digest, seals=(), lock=b""), standing)
    return found


def test_nobody_is_asked_while_nobody_is_on_a_branch():
    found = Meeting(KeyedHashSigner(A))
    for peer in (B, C):
        found.heard(peer, FINAL.round, FINAL.digest, now_s=0.0)
    assert list(found.ask(standing_on(), now_s=9.0)) == []
    assert found.choose(standing_on()) is None
    assert not found.is_behind(FINAL)


def test_later_final_round_of_a_peer_puts_everything_else_off():
    found = Meeting(KeyedHashSigner(A))
    found.heard(B, FINAL.round + 1, bytes(32), now_s=0.0)
    assert found.is_behind(FINAL)
    assert list(found.ask(standing_on(), now_s=9.0)) == []
    found.left(B)
    assert not found.is_behind(FINAL)


def test_branch_with_more_tokens_is_the_one_to_stand_on_whoever_met_first():
    small, large = link(FINAL, 5), link(FINAL, 9)
    for branches in ({"B": (small,), "C": (large,)}, {"C": (large,), "B": (small,)}):
        assert met(standing_on(), **branches).choose(standing_on()) == (large,)
    own = standing_on(large)
    assert met(own, B=(small,)).choose(own) is None
    own = standing_on(small)
    assert met(own, B=(large,)).choose(own) == (large,)


def test_seal_that_lists_nobody_is_no_reason_to_go_back_to_the_one_before():
    first = link(FINAL, 5)
    second = link(first.value, 0)
    own = standing_on(first, second)
    assert met(own, B=(first,)).choose(own) is None
    own = standing_on(first)
    assert met(own, B=(first, second)).choose(own) == (first, second)


def test_highest_lock_comes_before_tokens():
    locked, larger = link(FINAL, 5), link(FINAL, 9)
    body = Seal(
        value=locked.value.digest, list_digest=locked.value.list_digest, root=locked.value.root
    )
    lock = Voice(C, FINAL).say(Kind.SEAL, body, subject=FINAL.digest).message.encoded
    own = standing_on(larger)
    # Lists of the two are equal in these made-up seals, so another one is locked.
    other = replace(body, list_digest=bytes(32))
    lock = Voice(C, FINAL).say(Kind.SEAL, other, subject=FINAL.digest).message.encoded
    found = met(own, B=(locked,))
    found.heard(C, FINAL.round, FINAL.digest, now_s=0.0)
    assert [send.peer for send in found.ask(own, now_s=9.0)] == [C]
    found.arrived(C, Branch(final=FINAL.digest, seals=(), lock=lock), own)
    assert found.choose(own) == ()


def test_what_is_no_provisional_seal_is_the_senders_fault():
    good = link(FINAL, 5)
    standing = standing_on()
    stranger = link(FINAL, 5, D)
    elsewhere = replace(good.value, basis=bytes(32))
    said = Seal(value=elsewhere.digest, list_digest=elsewhere.list_digest, root=elsewhere.root)
    psealed = Voice(B, FINAL).say(Kind.PSEAL, said, subject=FINAL.digest).message.encoded
    sealed = Voice(B, FINAL).seal(good.value).message.encoded
    bad = [
        replace(good, seals=()),
        replace(good, seals=(b"\x93",)),
        replace(good, seals=(sealed,)),
        replace(good, seals=stranger.seals),
        replace(good, value=replace(good.value, round=9)),
        SealCertificate(value=elsewhere, seals=(psealed,)),
    ]
    for one in bad:
        found = Meeting(KeyedHashSigner(A))
        found.heard(B, FINAL.round, one.value.digest, now_s=0.0)
        assert list(found.ask(standing, now_s=9.0))
        with pytest.raises(ProofError):
            found.arrived(B, Branch(final=FINAL.digest, seals=(one,), lock=b""), standing)


def test_seat_of_the_last_final_seal_or_of_the_branch_is_enough_to_go_on():
    first = link(FINAL, 5, roster=roster_of((A, B), (D,)))
    for peer in (C, D):
        path = (first, link(first.value, 5, peer))
        assert met(standing_on(), B=path).choose(standing_on()) == path


def test_branch_that_was_not_asked_for_is_passed_over_unread():
    found, standing, bad = Meeting(KeyedHashSigner(A)), standing_on(), link(FINAL, 5, D)

    def tells(final: bytes) -> None:
        for seals in ((bad,), ()):
            found.arrived(B, Branch(final=final, seals=seals, lock=b""), standing)

    tells(FINAL.digest)
    found.heard(B, FINAL.round, bad.value.digest, now_s=0.0)
    tells(FINAL.digest)
    assert list(found.ask(standing, now_s=9.0))
    tells(bytes(32))
    assert found.choose(standing) is None
    with pytest.raises(ProofError):
        tells(FINAL.digest)


def test_answers_that_overtake_each_other_are_nobodys_fault():
    first = link(FINAL, 5)
    second = link(first.value, 5)
    standing = standing_on()
    found = Meeting(KeyedHashSigner(A))
    found.heard(B, FINAL.round, second.value.digest, now_s=0.0)
    assert list(found.ask(standing, now_s=9.0))
    for seals in ((second,), (), (first,), (second,), ()):
        found.arrived(B, Branch(final=FINAL.digest, seals=seals, lock=b""), standing)
    assert found.choose(standing) == (first, second)


def test_answer_is_the_branch_and_the_highest_lock():
    branch = link(FINAL, 5)
    standing = standing_on(branch)
    answer = [send.frame for send in Meeting.answer(standing, B, FINAL.digest)]
    assert answer == [
        Branch(final=FINAL.digest, seals=(branch,), lock=b""),
        Branch(final=FINAL.digest, seals=(), lock=b""),
    ]
    assert list(Meeting.answer(standing, B, bytes(32))) == []


def test_closer_waits_for_a_branch_that_was_heard_of_just_now_and_no_longer():
    found = Meeting(KeyedHashSigner(A))
    found.heard(B, FINAL.round, bytes(32), now_s=1.0)
    assert found.is_open(standing_on(), now_s=1.0 + meeting.WAIT_S / 2)
    assert not found.is_open(standing_on(), now_s=1.0 + meeting.WAIT_S)


def test_paths_go_on_from_the_seal_that_became_final():
    first = link(FINAL, 5)
    second = link(first.value, 5)
    standing = standing_on(first)
    found = met(standing, B=(first, second))
    standing.confirm(first)
    found.heard(B, first.value.round, second.value.digest, now_s=10.0)
    list(found.ask(standing, now_s=10.0))
    assert found.choose(standing) == (second,)


def test_peer_that_names_ever_new_branches_and_tells_of_none_is_waited_for_no_longer():
    found, standing, waits = Meeting(KeyedHashSigner(A)), standing_on(), []
    for number in range(60):
        now_s = 0.5 * number
        found.heard(B, FINAL.round, bytes([number + 1]) * 32, now_s=now_s)
        list(found.ask(standing, now_s=now_s))
        waits.append(found.is_open(standing, now_s=now_s))
    assert all(waits[: meeting.UNTOLD_MAX])
    assert not any(waits[-30:])


def test_closer_waits_for_no_stranger_that_comes_again_and_again_from_another_branch():
    found, standing = Meeting(KeyedHashSigner(A)), standing_on()
    for number in range(20):
        found.heard(D, FINAL.round, bytes([number + 1]) * 32, now_s=float(number))
        list(found.ask(standing, now_s=float(number)))
        assert not found.is_open(standing, now_s=number + 0.5)
        found.left(D)
    found.heard(B, FINAL.round, bytes(32), now_s=20.0)
    assert found.is_open(standing, now_s=20.5)
