"""What the book takes, what it refuses, and whose fault that is."""

import itertools
from dataclasses import replace

import pytest

from protocol.entries import decode_entry, ends_s
from protocol.entry_kinds import RULES, EntryKind, HasData, Invitation, Note
from protocol.errors import LimitError, StateError
from protocol.evidence import decode_evidence
from protocol.gossiping.gossiped import EMPTY_BUCKET, Gossiped, OfferRefusal, OfferVerdict
from protocol.hybrid_clock import stamp_at
from protocol.invitations import Role
from protocol.wire import encode
from tests.node.shared_state.scene import (
    RUN,
    WALL_S,
    Node,
    all_ids,
    digest,
    exchange,
    key_of,
    make_entry,
    signer,
)
from tests.protocol.entry_vectors import BODIES

A, B, C = signer(1), signer(2), signer(3)


def token_of(*, is_revoked: bool) -> Invitation:
    return Invitation(
        is_revoked=is_revoked, role=Role.MEMBER, uses=1, delegations=0, not_after_unix_s=2**40
    )


@pytest.fixture
def node() -> Node:
    return Node(9)


def test_book_is_what_gossip_asks_for(node):
    gossiped: Gossiped = node.book
    assert gossiped.bucket_digests() == (EMPTY_BUCKET,) * 256
    entry = make_entry(A)
    assert node.offer(entry).is_new
    bucket = entry.entry_id[0]
    assert gossiped.ids_in(bucket) == (entry.entry_id,)
    assert gossiped.get(entry.entry_id) == encode(entry)
    digests = gossiped.bucket_digests()
    assert [number for number in range(256) if digests[number] != EMPTY_BUCKET] == [bucket]


@pytest.mark.parametrize("kind", EntryKind)
def test_entry_of_every_kind_is_taken_once_and_ends(node, kind):
    entry = make_entry(A, kind)
    first, second = node.offer(entry), node.offer(entry)
    assert (first.verdict, first.entry_id) == (OfferVerdict.NEW, entry.entry_id)
    assert (second.verdict, second.fault) == (OfferVerdict.KNOWN, "")
    assert node.book.entry(A.peer_id, kind, entry.key) == entry
    assert node.book.num_bytes == len(encode(entry))
    node.book.expire(WALL_S + RULES[kind].ttl_s - 1)
    assert len(node.book) == 1
    node.book.expire(WALL_S + RULES[kind].ttl_s)
    assert (len(node.book), node.book.num_bytes, all_ids(node.book)) == (0, 0, [])
    assert node.book.bucket_digests() == (EMPTY_BUCKET,) * 256


def forged(entry):
    return encode(replace(entry, era=1))


@pytest.mark.parametrize(
    ("encoded", "fault"),
    [
        pytest.param(b"", "decode", id="nothing"),
        pytest.param(b"\x9c" + bytes(50), "decode", id="noise"),
        pytest.param(b"\x96" + bytes(50), "decode", id="noise like evidence"),
        pytest.param(encode(make_entry(A)) + b"\x00", "decode", id="bytes behind the end"),
        pytest.param(encode(make_entry(A, run=digest(5))), "decode", id="another run"),
        pytest.param(forged(make_entry(A)), "signature", id="forged"),
        pytest.param(encode(replace(make_entry(A), writer=B.peer_id)), "signature", id="wrong key"),
        pytest.param(
            encode(replace(make_entry(A), body=encode(BODIES[EntryKind.LEAVE]))),
            "decode",
            id="body of another kind",
        ),
        pytest.param(encode(replace(make_entry(A), body=bytes(9000))), "limit", id="too long"),
    ],
)
def test_bytes_that_nobody_honest_passes_on_are_a_fault(node, encoded, fault):
    offered = node.offer(encoded)
    assert (offered.verdict, offered.fault) == (OfferVerdict.REFUSED, fault)
    assert offered.reason
    assert len(node.book) == 0
    assert not node.book.take_changes().stored


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"wall_s": WALL_S + 301}, OfferRefusal.AHEAD),
        ({"wall_s": WALL_S - 40 * 3600}, OfferRefusal.ENDED),
        ({"expires_unix_s": int(WALL_S)}, OfferRefusal.ENDED),
        ({"era": 6}, OfferRefusal.ERA),
    ],
)
def test_untimely_entry_is_refused_without_fault(node, changes, refusal):
    node.book.enter_era(9)
    offered = node.offer(make_entry(A, **({"era": 9} | changes)))
    assert (offered.verdict, offered.fault) == (OfferVerdict.REFUSED, "")
    assert offered.refusal is refusal


def test_far_expiry_is_no_advantage(node):
    entry = make_entry(A, EntryKind.PRESENCE, expires_unix_s=2**40)
    assert node.offer(entry).is_new
    node.book.expire(WALL_S + 899)
    assert len(node.book) == 1
    node.book.expire(WALL_S + 900)
    assert len(node.book) == 0
    # Nor does it live on by being passed on in circles.
    node.wall_s += 900
    assert node.offer(entry).verdict is OfferVerdict.REFUSED
    assert ends_s(EntryKind.PRESENCE, entry.stamp, 2**40) == pytest.approx(WALL_S + 900)


def test_last_entry_under_a_key_counts_in_any_order():
    first = make_entry(A)
    second = make_entry(A, after=first, body=Note(text="later", removes=()))
    other = make_entry(A, after=second, key=key_of(EntryKind.NOTE, 2))
    ids = []
    for order in ([first, second, other], [other, second, first], [second, other, first]):
        node = Node(9)
        for entry in order:
            node.offer(entry)
        assert node.book.entry(A.peer_id, EntryKind.NOTE, first.key) == second
        assert node.offer(first).verdict is OfferVerdict.KNOWN
        ids.append(all_ids(node.book))
    assert ids[0] == ids[1] == ids[2] == sorted([second.entry_id, other.entry_id])


def test_writer_has_so_many_entries_of_a_kind_and_the_latest_stay(node):
    most = RULES[EntryKind.NOTE].per_writer
    chain = [make_entry(A)]
    while len(chain) < most + 3:
        key = key_of(EntryKind.NOTE, 100 + len(chain))
        chain.append(make_entry(A, after=chain[-1], key=key))
    for entry in reversed(chain):
        offered = node.offer(entry)
        assert offered.is_new == (entry in chain[3:])
        assert (offered.fault, offered.refusal in (None, OfferRefusal.CROWDED)) == ("", True)
    forward = Node(8)
    for entry in chain:
        assert forward.offer(entry).is_new
    assert all_ids(forward.book) == all_ids(node.book)
    assert len(node.book) == most


def test_own_writer_is_told_before_it_crowds_out_its_own(node):
    for number in range(RULES[EntryKind.NOTE].per_writer):
        node.write(number=number)
    with pytest.raises(LimitError, match="no room"):
        node.write(number=500)
    node.write(number=3)
    node.wall_s += 25 * 3600
    node.write(number=500)


def test_full_kind_keeps_members_then_the_latest(monkeypatch, node):
    monkeypatch.setitem(RULES, EntryKind.NOTE, replace(RULES[EntryKind.NOTE], total=3))
    node = Node(9)
    node.book.set_members(frozenset({B.peer_id}))
    old_member = make_entry(B, wall_s=WALL_S - 100)
    strangers = [make_entry(signer(20 + n), wall_s=WALL_S - 50 + n) for n in range(4)]
    assert node.offer(old_member).is_new
    for entry in strangers:
        assert node.offer(entry).is_new
    assert all_ids(node.book) == sorted(e.entry_id for e in [old_member, *strangers[2:]])
    refused = node.offer(strangers[0])
    assert (refused.refusal, refused.fault) == (OfferRefusal.FULL, "")
    node.book.set_members(frozenset({strangers[2].writer}))
    assert node.offer(make_entry(C)).is_new
    assert old_member.entry_id not in all_ids(node.book)
    node.book.expire(WALL_S + 25 * 3600)
    assert len(node.book) == 0


def test_full_kind_is_the_same_whatever_came_first(monkeypatch):
    monkeypatch.setitem(RULES, EntryKind.NOTE, replace(RULES[EntryKind.NOTE], total=4))
    entries = [make_entry(signer(20 + n), wall_s=WALL_S - 50 + n) for n in range(12)]
    forward, backward = Node(8), Node(9)
    for entry in entries:
        forward.offer(entry)
    for entry in reversed(entries):
        backward.offer(entry)
    assert (
        all_ids(forward.book)
        == all_ids(backward.book)
        == sorted(entry.entry_id for entry in entries[-4:])
    )


def test_two_entries_of_one_number_convict_and_the_proof_stands_alone(node):
    before = make_entry(A, EntryKind.PRESENCE, wall_s=WALL_S - 10)
    first = make_entry(A)
    fork = make_entry(A, body=Note(text="another", removes=()))
    later = make_entry(A, after=first, key=key_of(EntryKind.NOTE, 2))
    for entry in (before, first, later):
        assert node.offer(entry).is_new
    offered = node.offer(fork)
    assert (offered.verdict, offered.fault) == (OfferVerdict.CONTRADICTION, "")
    (evidence,) = node.book.evidence
    assert offered.evidence == evidence.entry_id
    # What it said before is not in doubt; the rest is gone, and stays away.
    assert all_ids(node.book) == sorted([before.entry_id, evidence.entry_id])
    assert node.offer(later).refusal is OfferRefusal.CONVICTED
    stranger = Node(10)
    assert stranger.offer(node.book.get(evidence.entry_id)).is_new
    assert decode_evidence(evidence.encoded, RUN, stranger.signer).subject == A.peer_id
    assert stranger.offer(first).verdict is OfferVerdict.REFUSED
    assert stranger.offer(before).is_new


def test_neighbour_that_names_another_predecessor_convicts(node):
    first = make_entry(A)
    hidden = make_entry(A, body=Note(text="for others", removes=()))
    later = make_entry(A, after=hidden, key=key_of(EntryKind.NOTE, 2))
    assert node.offer(later).is_new
    assert node.offer(first).verdict is OfferVerdict.CONTRADICTION
    other = Node(10)
    assert other.offer(first).is_new
    assert other.offer(later).verdict is OfferVerdict.CONTRADICTION
    assert all_ids(other.book) == all_ids(node.book)


def test_unsigned_contradiction_convicts_nobody(node):
    assert node.offer(make_entry(A)).is_new
    offered = node.offer(encode(replace(make_entry(A), era=1)))
    assert (offered.verdict, offered.fault) == (OfferVerdict.REFUSED, "signature")
    assert node.book.evidence == ()


def test_evidence_with_an_earlier_cut_takes_the_place_of_a_later(node):
    early = [make_entry(A, EntryKind.DATA, key=digest(n), wall_s=WALL_S - 60) for n in (1, 2)]
    late = [make_entry(A, EntryKind.NOTE, key=digest(n)[:16]) for n in (1, 2)]
    for entry in (late[0], late[1], early[0], early[1]):
        node.offer(entry)
    (evidence,) = node.book.evidence
    assert evidence.cut == early[0].stamp
    other = Node(10)
    for entry in (*early, *late):
        other.offer(entry)
    exchange(node, other)
    assert all_ids(other.book) == all_ids(node.book) == [evidence.entry_id]


@pytest.mark.parametrize("back_s", [0.0, 200.0, 3600.0])
def test_restart_and_lost_disk_are_no_fork(back_s):
    node, other = Node(9), Node(10)
    for number in range(3):
        other.offer(node.write(number=number).encoded)
    # The disk is gone, and the wall clock has gone back. It believes its own stamps all the same.
    again = Node(9, wall_s=node.wall_s - back_s)
    exchange(again, other)
    assert len(again.book) == 3
    # Stamped after what it said before: others take it, and nothing contradicts.
    written = again.write(number=1)
    assert other.offer(written.encoded).is_new
    assert other.book.evidence == again.book.evidence == ()
    assert decode_entry(written.encoded, RUN).previous == b""


def test_node_that_must_ask_is_silent_until_it_has(node):
    node.book._own.must_ask = True
    with pytest.raises(StateError, match="until others"):
        node.write()
    node.offer(make_entry(node.signer, EntryKind.DATA, wall_s=WALL_S - 3000))
    assert node.book.renewals(WALL_S) == ()
    assert node.book.must_ask
    node.book.asked()
    assert len(node.book.renewals(WALL_S)) == 1
    node.write()


def test_convicted_node_writes_no_more(node):
    node.write()
    fork = make_entry(node.signer, key=key_of(EntryKind.NOTE, 2), wall_s=WALL_S - 5)
    double = make_entry(node.signer, key=key_of(EntryKind.NOTE, 3), wall_s=WALL_S - 5)
    node.offer(fork)
    node.offer(double)
    assert node.book.evidence
    with pytest.raises(StateError, match="contradicts"):
        node.write()


def test_clock_jumps_leave_the_chain_ascending(node):
    written = []
    for jump_s in (0, 3600, -3600, 0, -7200, 3600, 3600):
        node.wall_s += jump_s
        written.append(
            node.book.write(
                EntryKind.NOTE, key_of(EntryKind.NOTE), BODIES[EntryKind.NOTE], wall_s=node.wall_s
            )
        )
    entries = [decode_entry(one.encoded, RUN) for one in written]
    for before, after in itertools.pairwise(entries):
        assert after.stamp > before.stamp
        assert (after.sequence, after.previous) == (before.sequence + 1, before.entry_id)


def test_thousands_of_entries_in_one_millisecond_count_on(node):
    entries = []
    for _ in range(50):
        written = node.book.write(
            EntryKind.NOTE, key_of(EntryKind.NOTE), BODIES[EntryKind.NOTE], wall_s=WALL_S
        )
        entries.append(decode_entry(written.encoded, RUN))
    assert [one.sequence for one in entries] == list(
        range(entries[0].sequence, entries[0].sequence + 50)
    )


def test_what_is_not_released_is_not_told(node):
    written = node.book.write(
        EntryKind.NOTE, key_of(EntryKind.NOTE), BODIES[EntryKind.NOTE], wall_s=WALL_S
    )
    assert all_ids(node.book) == []
    assert node.book.get(written.entry_id) is None
    assert node.book.release(written, wall_s=WALL_S).is_new
    assert node.book.get(written.entry_id) == written.encoded


def test_what_stands_is_renewed_and_what_is_void_is_not(node):
    node.write(EntryKind.DATA, 1)
    node.write(EntryKind.DATA, 2, HasData(num_bytes=5, is_withdrawn=True))
    node.write(EntryKind.NOTE)
    until = int(WALL_S) + 3 * 24 * 3600
    token = Invitation(
        is_revoked=True, role=Role.MEMBER, uses=1, delegations=0, not_after_unix_s=until
    )
    node.write(EntryKind.INVITATION, 1, token)
    assert node.book.renewals(WALL_S) == ()
    node.book.enter_era(1)
    renewed = node.book.renewals(WALL_S + 1)
    assert {one.kind for one in renewed} == {EntryKind.DATA, EntryKind.INVITATION}
    assert len(renewed) == 2
    for one in renewed:
        assert node.book.release(one, wall_s=WALL_S + 1).is_new
    assert node.book.renewals(WALL_S + 1) == ()
    (again,) = node.book.renewals(WALL_S + 0.5 * 3600)
    assert again.kind is EntryKind.DATA
    # A revocation outlives its token: whom that let in before is not to come back by it.
    late = {one.kind for one in node.book.renewals(until + 1.0)}
    assert late == {EntryKind.DATA, EntryKind.INVITATION}


def test_old_eras_are_dropped_and_stay_away(node):
    old, young = make_entry(A, era=3), make_entry(B, era=4)
    assert node.offer(old).is_new
    assert node.offer(young).is_new
    node.book.enter_era(6)
    assert all_ids(node.book) == [young.entry_id]
    assert node.offer(old).verdict is OfferVerdict.REFUSED
    node.book.enter_era(2)
    assert node.book.era == 6


def test_changes_are_told_once_and_lead_to_the_same_state(node):
    node.write()
    node.offer(make_entry(A))
    gone = make_entry(B, EntryKind.PRESENCE)
    node.offer(gone)
    first = node.book.take_changes()
    node.offer(make_entry(B, EntryKind.PRESENCE, after=gone))
    second = node.book.take_changes()
    assert second.dropped == (gone.entry_id,)
    assert node.book.take_changes() == replace(second, stored=(), dropped=())
    rows = dict(first.stored) | dict(second.stored)
    for entry_id in second.dropped:
        del rows[entry_id]
    again = Node(9)
    again.book.restore(rows.items(), wall_s=WALL_S)
    assert all_ids(again.book) == all_ids(node.book)
    assert again.book.take_changes().stored == ()


def test_restored_rows_that_have_ended_leave_the_disk():
    node, entry = Node(9), make_entry(A, EntryKind.PRESENCE)
    rows = [(entry.entry_id, encode(entry)), (digest(3), b"of a version to come")]
    node.book.restore(rows, wall_s=WALL_S + 3600)
    changes = node.book.take_changes()
    assert (changes.stored, sorted(changes.dropped)) == ((), sorted(row[0] for row in rows))


def test_others_move_the_own_clock_but_not_to_the_edge_of_what_is_taken(node):
    assert node.offer(make_entry(A, wall_s=WALL_S + 50)).is_new
    assert node.write().stamp > stamp_at(WALL_S + 50)
    assert node.offer(make_entry(B, wall_s=WALL_S + 299)).is_new
    assert node.write().stamp < stamp_at(WALL_S + 51)


def test_revocation_is_for_good_and_of_the_own_token_only():
    issue = make_entry(A, EntryKind.INVITATION, body=token_of(is_revoked=False))
    revoke = make_entry(A, EntryKind.INVITATION, after=issue, body=token_of(is_revoked=True))
    again = make_entry(A, EntryKind.INVITATION, after=revoke, body=token_of(is_revoked=False))
    of_other = make_entry(B, EntryKind.INVITATION, body=token_of(is_revoked=False))
    for order in itertools.permutations([issue, revoke, again, of_other]):
        node = Node(9)
        for entry in order:
            assert not node.offer(entry).fault
        held = {one.entry_id for one in node.book.entries(EntryKind.INVITATION)}
        assert held == {revoke.entry_id, of_other.entry_id}


def test_issue_is_renewed_until_its_token_ends():
    node = Node(9)
    until = int(WALL_S) + 24 * 3600
    token = Invitation(
        is_revoked=False, role=Role.MEMBER, uses=1, delegations=0, not_after_unix_s=until
    )
    node.write(EntryKind.INVITATION, 1, token)
    assert [one.kind for one in node.book.renewals(until - 1.0)] == [EntryKind.INVITATION]
    assert node.book.renewals(until + 1.0) == ()
