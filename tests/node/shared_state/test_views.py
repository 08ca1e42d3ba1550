"""What the views say, in any order in which their entries came."""

import random

from protocol.crdt import TwoPhaseSet
from protocol.entry_kinds import EntryKind, HasData, Invitation, Note, Presence
from protocol.invitations import Role
from protocol.or_set import Context, Dot, OrSet, Tag
from protocol.shared_state.views import BookViews, identities_of, metrics_of, presence_of
from protocol.wire import encode
from tests.node.shared_state.scene import WALL_S, Node, digest, key_of, make_entry, signer
from tests.protocol.entry_vectors import BODIES

A, B, C = signer(1), signer(2), signer(3)


def told(entries, seed=0):
    node = Node(9)
    shuffled = list(entries)
    random.Random(seed).shuffle(shuffled)
    for entry in shuffled:
        assert not node.offer(entry).fault
    return node, BookViews(node.book)


def invitation(*, is_revoked):
    return Invitation(
        is_revoked=is_revoked, role=Role.MEMBER, uses=1, delegations=0, not_after_unix_s=2**40
    )


def test_presence_is_the_last_word_and_leaving_wins_over_what_was_before():
    first = make_entry(A, EntryKind.PRESENCE)
    second = make_entry(
        A,
        EntryKind.PRESENCE,
        after=first,
        wall_s=WALL_S + 1,
        body=Presence(incarnation=4, round=42, head=digest(1)),
    )
    leave = make_entry(B, EntryKind.LEAVE, wall_s=WALL_S + 5)
    entries = [
        *(first, second, leave),
        make_entry(B, EntryKind.PRESENCE, wall_s=WALL_S + 4),
        make_entry(B, EntryKind.IDENTITY),
        make_entry(C, EntryKind.LEAVE),
        make_entry(C, EntryKind.PRESENCE, wall_s=WALL_S + 9),
    ]
    for seed in range(5):
        _, views = told(entries, seed)
        here = presence_of(views.presence())
        assert list(here) == [A.peer_id, C.peer_id]
        assert here[A.peer_id].incarnation == 4
        assert views.identities().values == {}


def test_identity_and_metrics_are_those_of_their_writers():
    _, views = told([make_entry(A, EntryKind.IDENTITY), make_entry(B, EntryKind.METRICS)])
    assert identities_of(views.identities()) == {A.peer_id: BODIES[EntryKind.IDENTITY]}
    assert metrics_of(views.metrics()) == {B.peer_id: BODIES[EntryKind.METRICS]}


def test_revocation_is_for_good_and_of_the_own_token_only():
    issue = make_entry(A, EntryKind.INVITATION, body=invitation(is_revoked=False))
    revoke = make_entry(A, EntryKind.INVITATION, after=issue, body=invitation(is_revoked=True))
    again = make_entry(A, EntryKind.INVITATION, after=revoke, body=invitation(is_revoked=False))
    of_other = make_entry(B, EntryKind.INVITATION, body=invitation(is_revoked=False))
    for seed in range(8):
        _, views = told([issue, revoke, again, of_other], seed)
        token = key_of(EntryKind.INVITATION)
        assert views.invitations() == TwoPhaseSet.of([B.peer_id + token], [A.peer_id + token])
    _, views = told([issue])
    assert views.invitations().members == (A.peer_id + key_of(EntryKind.INVITATION),)


def test_providers_are_those_who_say_so_and_have_not_withdrawn():
    content = digest(5)
    has = HasData(num_bytes=9, is_withdrawn=False)
    first = make_entry(B, EntryKind.DATA, key=content, body=has)
    entries = [
        make_entry(A, EntryKind.DATA, key=content, body=has),
        make_entry(A, EntryKind.CHECKPOINT, key=content),
        first,
        make_entry(
            B,
            EntryKind.DATA,
            after=first,
            key=content,
            body=HasData(num_bytes=9, is_withdrawn=True),
        ),
        make_entry(C, EntryKind.DATA, key=digest(6), body=has),
    ]
    for seed in range(5):
        _, views = told(entries, seed)
        assert views.providers(EntryKind.DATA, content) == (A.peer_id,)
        assert views.providers(EntryKind.CHECKPOINT, content) == (A.peer_id,)
        assert views.providers(EntryKind.DATA, digest(7)) == ()


def test_notes_are_the_join_of_their_deltas():
    first = make_entry(A, body=Note(text="one", removes=()))
    second = make_entry(B, body=Note(text="one", removes=()))
    dot = Dot(A.peer_id, first.sequence)
    removal = make_entry(C, body=Note(text="gone", removes=(dot,)))
    for seed in range(6):
        _, views = told([first, second, removal], seed)
        notes = views.notes()
        assert notes.members == (b"gone", b"one")
        assert [tag.dot.writer for tag in notes.tags if tag.value == b"one"] == [B.peer_id]
        deltas = [
            OrSet(
                tags=(Tag(text, Dot(entry.writer, entry.sequence)),),
                context=Context.of([Dot(entry.writer, entry.sequence), *removes]),
            )
            for entry, text, removes in (
                (first, b"one", ()),
                (second, b"one", ()),
                (removal, b"gone", (dot,)),
            )
        ]
        assert notes == OrSet().merge(*deltas)


def test_view_is_made_anew_only_when_its_kinds_change():
    node, views = told([make_entry(A, EntryKind.METRICS)])
    metrics, notes = views.metrics(), views.notes()
    assert node.offer(make_entry(A)).is_new
    assert views.metrics() is metrics
    assert views.notes() != notes
    node.book.expire(WALL_S + 3600)
    assert views.metrics().values == {}


def test_bans_are_the_evidence():
    node, views = told([make_entry(A), make_entry(A, era=1)])
    (evidence,) = node.book.evidence
    assert views.bans().members == (evidence.entry_id,)
    assert encode(views.bans())


def test_issue_is_renewed_until_its_token_ends():
    node = Node(9)
    until = int(WALL_S) + 24 * 3600
    token = Invitation(
        is_revoked=False, role=Role.MEMBER, uses=1, delegations=0, not_after_unix_s=until
    )
    node.write(EntryKind.INVITATION, 1, token)
    assert [one.kind for one in node.book.renewals(until - 1.0)] == [EntryKind.INVITATION]
    assert node.book.renewals(until + 1.0) == ()
