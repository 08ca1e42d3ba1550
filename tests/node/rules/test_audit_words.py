"""What words on audited work come to: a ban of whoever is wrong, a seat, or nothing at all."""

from dataclasses import replace

import pytest

from protocol import events as ev
from protocol import limits
from protocol.auditing.audit_rounds import NOTHING, AuditedRound
from protocol.auditing.audits_machine import REFUTED_MAX, REFUTED_ROUNDS, SHUT_ROUNDS, Judge, Key
from protocol.entry_kinds import Accusation
from protocol.evidence import decode_evidence
from protocol.identity import Ed25519Signer, PeerId
from protocol.messages import Commit, Interval, Outcome, Verdict, decode_body, sign_message
from tests.node.builders import seat
from tests.protocol.entry_vectors import (
    BASIS,
    JUDGES,
    RIGHT,
    RUN,
    SIGNER,
    WORK,
    WRONG,
    retract_of,
    verdict_of,
)

READER = Ed25519Signer(bytes(32))
UNOPENED = replace(WRONG, outcome=Outcome.UNOPENED, found=b"")
OTHER_END = replace(WRONG, found=bytes([1]) * 32)
KEY = (WORK.digest, WRONG.segment)


def scene(*said: tuple[Ed25519Signer, Verdict], round_index: int = 41) -> AuditedRound:
    """A round of four voters, of whom one may lie, with the contribution of the first; and what the
    others say of it."""
    commit = decode_body(WORK)
    assert isinstance(commit, Commit)
    words = {signer.peer_id: (verdict_of(signer, verdict), verdict) for signer, verdict in said}
    return AuditedRound(
        round=round_index,
        named=BASIS,
        beacon=bytes(32),
        commits={WORK.digest: (WORK, commit)},
        inherited={SIGNER.peer_id: (NOTHING,)},
        words={KEY: words},
    )


def judge_of(me: PeerId = READER.peer_id, *without: str) -> Judge:
    return Judge(me, without=frozenset(without))


def evidence_of(actions: list[ev.RoundAction]) -> dict[PeerId, Accusation]:
    found = [action.evidence for action in actions if isinstance(action, ev.Accuse)]
    checked = [decode_evidence(one.encoded, RUN, READER) for one in found]
    return {one.subject: one.accusation for one in checked}


ONE, TWO, THREE = JUDGES


def test_two_who_found_the_same_end_convict_once():
    judge = judge_of()
    on = scene((ONE, WRONG), (TWO, WRONG))
    assert evidence_of(list(judge.judge(on, KEY))) == {SIGNER.peer_id: Accusation.WRONG_WORK}
    assert list(judge.judge(on, KEY)) == []


@pytest.mark.parametrize(
    "said",
    [
        [(ONE, WRONG)],
        [(ONE, WRONG), (TWO, OTHER_END)],
        [(ONE, WRONG), (TWO, OTHER_END), (THREE, UNOPENED)],
        [(ONE, WRONG), (TWO, RIGHT)],
    ],
)
def test_less_than_that_convicts_nobody(said):
    judge = judge_of()
    assert list(judge.judge(scene(*said), KEY)) == []
    assert not judge.shunned


def test_whoever_calls_right_work_wrong_is_convicted_by_those_who_found_it_right():
    judge = judge_of()
    actions = list(judge.judge(scene((ONE, WRONG), (TWO, RIGHT), (THREE, RIGHT)), KEY))
    assert evidence_of(actions) == {ONE.peer_id: Accusation.WRONG_VERDICT}


def test_work_that_two_could_not_open_costs_the_seat_and_no_ban():
    judge = judge_of()
    assert list(judge.judge(scene((ONE, UNOPENED), (TWO, UNOPENED)), KEY)) == []
    assert judge.shunned == {SIGNER.peer_id}
    seats = tuple(seat for seat in BASIS.roster.seats if seat.peer != SIGNER.peer_id)
    assert not judge.is_shut(SIGNER.peer_id)
    later = replace(BASIS, round=42, roster=replace(BASIS.roster, seats=seats))
    judge.sealed(later, frozenset(), frozenset())
    assert judge.is_shut(SIGNER.peer_id)
    assert not judge.shunned
    accused = judge_of(SIGNER.peer_id)
    assert list(accused.judge(scene((ONE, UNOPENED), (TWO, UNOPENED)), KEY)) == []
    assert not accused.shunned, "nobody shuns itself"
    judge.sealed(replace(later, round=42 + SHUT_ROUNDS), frozenset(), frozenset())
    assert not judge.is_shut(SIGNER.peer_id)


def refuted(owner: Ed25519Signer, round_index: int) -> tuple[AuditedRound, Key]:
    """The work of that peer, which ONE could not open, and all others could."""
    message = sign_message(owner, WORK.slot, decode_body(WORK))
    commit = decode_body(message)
    assert isinstance(commit, Commit)
    verdict = replace(RIGHT, commit=message.digest)
    said = {
        signer.peer_id: replace(verdict, outcome=Outcome.UNOPENED, found=b"")
        if signer is ONE
        else verdict
        for signer in (SIGNER, *JUDGES)
        if signer is not owner
    }
    on = scene(round_index=round_index)
    key = (message.digest, verdict.segment)
    on.commits = {message.digest: (message, commit)}
    on.words = {key: {peer: (message, word) for peer, word in said.items()}}
    return on, key


def test_who_cannot_open_what_others_can_of_many_peers_loses_its_seat():
    judge = judge_of()
    for number, owner in enumerate((SIGNER, TWO, THREE)):
        assert not judge.shunned
        assert list(judge.judge(*refuted(owner, 41 + number))) == []
    assert REFUTED_MAX == 3
    assert judge.shunned == {ONE.peer_id}


def test_liars_who_show_their_work_to_all_but_one_voter_cost_it_no_seat():
    judge = judge_of()
    for number in range(2 * REFUTED_MAX):
        # One of four may lie; and a second one that it had no line to.
        for owner in (SIGNER, TWO):
            assert list(judge.judge(*refuted(owner, 41 + number))) == []
    assert not judge.shunned


def test_work_that_cannot_be_opened_now_and_then_costs_nothing():
    """Counted across the seals in between, and forgotten after REFUTED_ROUNDS."""
    step_max = REFUTED_ROUNDS // (REFUTED_MAX - 1)
    for step, is_shunned in ((step_max, True), (step_max + 1, False)):
        judge = judge_of()
        for number, owner in enumerate((SIGNER, TWO, THREE)):
            index = 41 + step * number
            judge.sealed(replace(BASIS, round=index - 1), frozenset(), frozenset())
            assert list(judge.judge(*refuted(owner, index))) == []
        assert (judge.shunned == {ONE.peer_id}) is is_shunned


def test_whoever_peels_a_wrong_layer_loses_its_seat_and_nobody_shuns_itself():
    strayed = frozenset({ONE.peer_id})
    for me, shunned in ((READER.peer_id, strayed), (ONE.peer_id, frozenset())):
        judge = judge_of(me)
        judge.sealed(BASIS, strayed, frozenset())
        assert judge.shunned == shunned


def test_conviction_whose_evidence_is_too_large_to_travel_costs_the_seat():
    judges = [Ed25519Signer(bytes([n]) * 32) for n in range(1, limits.SEATS_MAX)]
    judge, on = judge_of(), scene(*((one, WRONG) for one in judges[:22]))
    everybody = sorted([SIGNER.peer_id, *(one.peer_id for one in judges)])
    seats = tuple(seat(peer) for peer in everybody)
    roster = replace(BASIS.roster, seats=seats, banned=tuple(everybody))
    gaps = tuple(Interval(first=2**61 + 2 * n, stop=2**61 + 2 * n + 1) for n in range(256))
    clock = replace(BASIS.clock, unused=gaps, cursor=2**62)
    digests = (bytes(32),) * limits.SEATS_MAX
    large = replace(BASIS, commits=digests, drifts=digests, roster=roster, clock=clock)
    actions = list(judge.judge(replace(on, named=large), KEY))
    assert actions == [ev.Fault(SIGNER.peer_id, "wrong work")]
    assert judge.shunned == {SIGNER.peer_id}


def test_nobody_convicts_itself_and_none_without_bans():
    on = scene((ONE, WRONG), (TWO, WRONG))
    assert list(judge_of(SIGNER.peer_id).judge(on, KEY)) == []
    assert list(judge_of(READER.peer_id, "bans").judge(on, KEY)) == []


@pytest.mark.parametrize("later", [1, limits.RETRACT_ROUNDS])
def test_work_that_is_taken_back_costs_the_seat_and_a_second_time_is_a_ban(later):
    judge = judge_of()
    on = scene((ONE, WRONG), (TWO, WRONG))
    on.retracted.add(WORK.digest)
    assert list(judge.retracted(retract_of(SIGNER, 41))) == []
    assert list(judge.judge(on, KEY)) == []
    assert judge.shunned == {SIGNER.peer_id}
    again = list(judge.retracted(retract_of(SIGNER, 41 + later)))
    assert evidence_of(again) == {SIGNER.peer_id: Accusation.TWO_RETRACTS}


def test_second_retract_much_later_is_no_ban():
    judge = judge_of()
    assert list(judge.retracted(retract_of(SIGNER, 41))) == []
    assert list(judge.retracted(retract_of(SIGNER, 42 + limits.RETRACT_ROUNDS))) == []
