"""Every rule of I1 to I8 over records can fail: one record of a clean run is changed at a time."""

from dataclasses import replace

import pytest

from node.reporting.tracing import Accused, Adopted, Began, Diverged, Signed, Synced, Used
from protocol.identity import PeerId
from protocol.messages import (
    Kind,
    List,
    NewAttempt,
    Seal,
    SealCertificate,
    Vote,
)
from sim.checks.invariants import Circumstances
from sim.checks.traces import Usage
from tests.sim.recorded import (
    ROUNDS,
    body_of,
    clean_records,
    index_of,
    index_of_adopted,
    index_of_signed,
    signed_anew,
    signed_by,
    verdict,
    with_changed,
    with_inserted,
    without,
)

OTHER = PeerId(b"o" * 32)
REPORT = NewAttempt(lock_attempt=-1, commits=(), drifts=(), certificate=(), missing=())


def only(name):
    return frozenset({name})


def found(records, name):
    error = verdict(records, only(name))
    return None if error is None else error.text


def test_clean_run_breaks_nothing():
    records = clean_records()
    assert verdict(records) is None
    assert {type(record) for record in records} >= {Began, Signed, Adopted}
    sealed = {r.certificate.value.round for r in records if isinstance(r, Adopted)}
    assert sealed == set(range(1, ROUNDS + 1))


# I1 ---------------------------------------------------------------------------------------------


def test_round_that_a_node_had_told_of_is_gone_after_its_restart():
    index = index_of(Began, last=True)
    began = clean_records()[index]
    older = clean_records()[index_of_adopted(2)].certificate
    changed = with_changed(index, head=older, round=3)
    assert "comes back at round 2" in found(changed, "I1")
    lost = with_changed(index, head=older, round=3, is_lost=True)
    assert found(lost[: index + 1], "I1") is None
    assert began.head.value.round >= 4


def test_adopted_round_that_does_not_follow():
    index = index_of_adopted(3)
    peer = clean_records()[index].peer
    gap = without(
        lambda r: isinstance(r, Adopted) and r.peer == peer and r.certificate.value.round == 2
    )
    assert "does not" in found(gap, "I1") or "signs" in found(gap, "I1")


def test_state_fetched_backwards():
    adopted = clean_records()[index_of_adopted(2)]
    back = Synced(at_s=1e3, peer=adopted.peer, certificate=adopted.certificate, root=adopted.root)
    assert "went back" in found(with_inserted(len(clean_records()) - 1, back), "I1")


def test_signature_on_a_seal_that_is_not_durable_yet():
    index = index_of_signed(Kind.COMMIT, 4)
    commit = clean_records()[index]
    # The first to adopt makes the seal known; this node has not adopted it.
    records = [
        r
        for r in clean_records()
        if not (isinstance(r, Adopted) and r.peer == commit.peer and r.certificate.value.round == 3)
    ]
    assert "durable on it the last is of round 2" in found(records, "I1")


def test_seal_that_counts_and_was_never_told():
    certificate = clean_records()[index_of_adopted(3)].certificate
    told = without(lambda r: isinstance(r, Signed) and r.message.encoded == certificate.seals[0])
    assert "left before it was recorded" in found(told, "I1")


def test_signature_of_somebody_else():
    signed = clean_records()[index_of_signed(Kind.COMMIT, 3)]
    stolen = signed_by(OTHER, signed.message, body_of(signed.message))
    record = replace(signed, message=stolen)
    assert "records as its own" in found(
        with_inserted(index_of_signed(Kind.COMMIT, 3), record), "I1"
    )


# I2 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Adopted, Synced])
def test_state_of_another_root(kind):
    adopted = clean_records()[index_of_adopted(3)]
    record = replace(adopted, root=OTHER)
    if kind is Synced:
        record = Synced(
            at_s=adopted.at_s, peer=adopted.peer, certificate=adopted.certificate, root=OTHER
        )
    assert "not sealed" in found(with_inserted(index_of_adopted(3), record), "I2")


@pytest.mark.parametrize("field", ["root", "value"])
def test_two_seals_of_one_list_that_differ(field):
    index = index_of_signed(Kind.SEAL, 4)
    message = clean_records()[index].message
    other = signed_anew(message, replace(body_of(message), **{field: OTHER}))
    records = with_inserted(index, replace(clean_records()[index], message=other))
    assert "another" in found(records, "I2")


def test_node_that_finds_itself_diverged():
    record = Diverged(at_s=9.0, peer=clean_records()[0].peer, reason="other bits")
    assert "other bits" in found(with_inserted(5, record), "I2")


# I3 ---------------------------------------------------------------------------------------------


def test_two_messages_in_one_slot():
    index = index_of_signed(Kind.VOTE, 4)
    message = clean_records()[index].message
    other = replace(clean_records()[index], message=signed_anew(message, Vote(list_digest=OTHER)))
    assert "two different VOTE" in found(with_inserted(index, other), "I3")


def test_vote_for_an_attempt_that_was_left():
    index = index_of_signed(Kind.VOTE, 4)
    vote = clean_records()[index]
    left = replace(vote, message=signed_anew(vote.message, REPORT, kind=Kind.NEWATTEMPT, attempt=2))
    assert "which it has left" in found(with_inserted(index - 1, left), "I3")


def test_vote_against_the_own_lock():
    index = index_of_signed(Kind.SEAL, 4)
    seal = clean_records()[index]
    against = signed_anew(
        seal.message, Vote(list_digest=OTHER), kind=Kind.VOTE, attempt=1, subject=b""
    )
    records = with_inserted(index, replace(seal, message=against))
    assert "against its lock" in found(records, "I3")


def test_seal_of_a_list_that_nobody_certified():
    first = index_of_signed(Kind.VOTE, 8)
    slot = clean_records()[first].message.slot
    votes = [
        r
        for r in clean_records()
        if isinstance(r, Signed) and r.message.slot == slot and r.message.slot.kind is Kind.VOTE
    ]
    assert len(votes) >= 3
    kept = votes[0]
    records = without(lambda r: r in votes and r is not kept)
    assert "not certified" in found(records, "I3")


def test_provisional_votes_and_seals_count_for_nothing():
    index = index_of_signed(Kind.VOTE, 8)
    slot = clean_records()[index].message.slot

    def as_provisional(record):
        message = record.message if isinstance(record, Signed) else None
        if message is None or message.slot != slot:
            return record
        return replace(record, message=signed_anew(message, body_of(message), kind=Kind.PVOTE))

    assert "not certified" in found([as_provisional(r) for r in clean_records()], "I3")
    # Whoever is locked may seal provisionally and vote for what it likes, in slots of their own.
    index = index_of_signed(Kind.SEAL, 8)
    seal = clean_records()[index]
    body = body_of(seal.message)
    provisional = signed_anew(seal.message, body, kind=Kind.PSEAL, attempt=1)
    against = signed_anew(
        seal.message, Vote(list_digest=OTHER), kind=Kind.PVOTE, attempt=1, subject=b""
    )
    more = [replace(seal, message=message) for message in (provisional, against)]
    assert verdict(with_inserted(index, *more)) is None


def test_two_values_with_a_quorum_each():
    records = list(clean_records())
    seals = [
        r
        for r in records
        if isinstance(r, Signed) and (r.message.slot.kind, r.message.slot.round) == (Kind.SEAL, 4)
    ]
    last = max(records.index(seal) for seal in seals)
    more: list[Signed] = []
    body: Seal | Vote
    for kind in (Kind.VOTE, Kind.SEAL):
        for seal in seals:
            body = Seal(value=OTHER, list_digest=OTHER, root=OTHER)
            if kind is Kind.VOTE:
                body = Vote(list_digest=OTHER)
            subject = b"" if kind is Kind.VOTE else seal.message.slot.subject
            message = signed_anew(seal.message, body, kind=kind, attempt=3, subject=subject)
            more.append(replace(seal, message=message))
    # They are locked on the first list: that, too, is found; both rules are needed for a fork.
    text = found(with_inserted(last, *more), "I3")
    assert "against its lock" in text


def test_certificate_without_a_quorum_proves_nothing():
    index = index_of_adopted(8)
    certificate = clean_records()[index].certificate
    thin = SealCertificate(value=certificate.value, seals=certificate.seals[:1])
    assert "proves nothing" in found(with_changed(index, certificate=thin), "I3")


def test_another_value_of_a_round_that_is_final():
    index = index_of_adopted(4)
    certificate = clean_records()[index].certificate
    value = replace(certificate.value, root=OTHER)
    other = SealCertificate(value=value, seals=certificate.seals)
    assert found(with_changed(index, certificate=other, root=OTHER), "I3")


# I5 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["tokens", "step", "cursor"])
def test_clock_that_does_not_follow_from_the_commits(field):
    index = index_of_adopted(4)
    certificate = clean_records()[index].certificate
    clock = certificate.value.clock
    wrong = replace(clock, **{field: getattr(clock, field) + 1})
    value = replace(certificate.value, clock=wrong)
    changed = with_changed(index, certificate=replace(certificate, value=value))
    assert "seals" in found(changed, "I5")


def test_run_that_ends_before_its_time():
    index = index_of_adopted(4)
    certificate = clean_records()[index].certificate
    clock = replace(certificate.value.clock, ends_run=True)
    value = replace(certificate.value, clock=clock)
    changed = with_changed(index, certificate=replace(certificate, value=value))
    assert "last one" in found(changed, "I5")


def test_contribution_that_is_listed_twice():
    index = index_of_adopted(4)
    certificate = clean_records()[index].certificate
    commits = certificate.value.commits
    value = replace(certificate.value, commits=(commits[0], *commits))
    changed = with_changed(index, certificate=replace(certificate, value=value))
    assert "twice" in found(changed, "I5")


def test_listed_flag_that_is_not_true():
    index = index_of_adopted(4)
    flag = clean_records()[index].was_listed
    assert "listed" in found(with_changed(index, was_listed=not flag), "I5")


def test_residual_that_does_not_go_on_from_the_last_one():
    index = index_of_signed(Kind.COMMIT, 5)
    message = clean_records()[index].message
    other = signed_anew(message, replace(body_of(message), residual_before=OTHER))
    assert "residual" in found(with_changed(index, message=other), "I5")


# I6 to I8 ---------------------------------------------------------------------------------------


def test_accused_peer_is_honest_unless_it_is_known_to_be_bent():
    accuser, accused = sorted({record.peer for record in clean_records()})[:2]
    record = Accused(at_s=9.0, peer=accuser, of=accused, reason="late")
    records = with_inserted(60, record)
    assert "which is honest: late" in found(records, "I6")
    bent = Circumstances(bent=frozenset({accused}))
    assert verdict(records, circumstances=bent) is None
    stranger = replace(record, of=OTHER)
    assert verdict(with_inserted(60, stranger)) is None


@pytest.mark.parametrize(
    "leak",
    [{"memory_bytes": 1 << 30}, {"files": 500}, {"tasks": 5000}, {"messages": 10_000}],
    ids=lambda leak: next(iter(leak)),
)
def test_process_that_grows_after_its_warm_up(leak):
    peer = clean_records()[0].peer
    used = Used(at_s=20.0, peer=peer, memory_bytes=200 << 20, files=30, tasks=40, messages=50)
    steady = [replace(used, at_s=at_s) for at_s in (20.0, 40.0, 60.0)]
    # It is warm when it has sealed some rounds, too.
    sealed = [r for r in clean_records() if isinstance(r, Adopted) and r.peer == peer]
    start = [clean_records()[0], *(replace(r, at_s=19.0) for r in sealed)]
    assert verdict([*start, *steady], only("I7")) is None
    grown = replace(used, at_s=80.0, **leak)
    assert verdict([*start, *steady, grown], only("I7")) is not None
    assert verdict([start[0], *steady, grown], only("I7")) is None or "messages" in leak


def test_memory_of_a_second_attempt_is_two_vectors_and_no_more():
    peer, vector_bytes = clean_records()[0].peer, 100 << 20
    usage = Usage(vector_bytes)
    sealed = [r for r in clean_records() if isinstance(r, Adopted) and r.peer == peer]
    for record in (clean_records()[0], *sealed):
        assert not list(usage.saw(record))
    used = Used(at_s=20.0, peer=peer, memory_bytes=200 << 20, files=30, tasks=40, messages=50)
    allowed = (200 * 5 // 4 + 64 << 20) + 2 * vector_bytes
    assert not list(usage.saw(used))
    assert not list(usage.saw(replace(used, at_s=80.0, memory_bytes=allowed)))
    assert list(usage.saw(replace(used, at_s=80.0, memory_bytes=allowed + 1)))


def test_list_bodies_are_not_needed():
    # A trace without LISTs says as much: what is certified is in the VOTEs.
    assert verdict(without(lambda r: isinstance(r, Signed) and _is_list(r))) is None


def _is_list(record):
    return isinstance(body_of(record.message), List)
