"""The door of a run for the invited: what members let in, and how often."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from node.peers.access import Access
from node.state.invitations import IssuedTokens, Terms
from protocol.entry_kinds import EntryKind
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer, PeerId
from protocol.invitations import Role
from protocol.manifest import AccessSpec, RunManifest
from protocol.shared_state.book import SharedState
from protocol.wire import encode
from tests.node.edge import FOUNDER_SEED, toy_manifest

WALL_S = 1_800_000_000.0
FOUNDER = Ed25519Signer(FOUNDER_SEED)
ANNA, BERT, CARL, DORA = (Ed25519Signer(bytes([n]) * 32) for n in range(1, 5))
RUN = toy_manifest(access=AccessSpec(mode="invited"))
SEATED = (FOUNDER, ANNA)


@dataclass
class Door:
    """One member of the run, with what it knows."""

    signer: Ed25519Signer
    folder: Path
    wall_s: float = WALL_S
    members: set[PeerId] = field(default_factory=lambda: {one.peer_id for one in SEATED})

    def __post_init__(self) -> None:
        self.book = SharedState(RUN.digest, self.signer, floor=0, must_ask=False)
        self.issued = IssuedTokens(self.folder)
        self.access = Access(
            manifest=RUN,
            signer=self.signer,
            book=self.book,
            members=lambda: frozenset(self.members),
            wall_clock=lambda: self.wall_s,
            issued=self.issued,
        )

    def invite(self, *, uses=1, role=Role.MEMBER, delegations=0, valid_s=3600.0):
        terms = Terms(role=role, uses=uses, delegations=delegations, valid_s=valid_s)
        return self.issued.issue(RUN, self.signer, terms, unix_s=WALL_S)

    def write(self):
        """Own entries, as the edge writes them once a second."""
        for kind, key, body in self.access.due():
            self.book.release(
                self.book.write(kind, key, body, wall_s=self.wall_s), wall_s=self.wall_s
            )

    def refusal(self, peer, made):
        return self.access.refusal(peer.peer_id, encode(made.taken_by(peer.peer_id)))


def gossip(*doors):
    """Each writes what it has to say, and all hear it."""
    for door in doors:
        door.write()
    for door in doors:
        for kind in (EntryKind.INVITATION, EntryKind.ADMISSION):
            for entry in tuple(door.book.entries(kind)):
                for other in doors:
                    other.book.offer(encode(entry), wall_s=other.wall_s, now_s=0.0)


@pytest.fixture
def doors(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    return Door(FOUNDER, tmp_path / "a"), Door(ANNA, tmp_path / "b")


def test_whoever_needs_no_invitation_is_let_in(doors):
    founder, anna = doors
    assert anna.access.refusal(FOUNDER.peer_id, b"") == ""
    assert founder.access.refusal(ANNA.peer_id, b"") == ""  # It has a seat.
    assert "for the invited" in founder.access.refusal(BERT.peer_id, b"")
    assert founder.access.refusal(BERT.peer_id, b"\xff") != ""


def test_invitation_is_good_as_often_as_it_says_at_every_member(doors):
    founder, anna = doors
    made = founder.invite(uses=2)
    gossip(founder, anna)
    assert founder.refusal(BERT, made) == ""
    gossip(founder, anna)
    assert anna.refusal(CARL, made) == ""
    gossip(founder, anna)
    for door in doors:
        assert door.refusal(DORA, made) == "the invitation is used up: it was for 2"
        assert door.refusal(BERT, made) == door.refusal(CARL, made) == ""


def test_use_counts_at_once_where_it_was_made(doors):
    founder, _ = doors
    made = founder.invite()
    assert founder.refusal(BERT, made) == ""
    assert "used up" in founder.refusal(CARL, made)
    assert founder.refusal(BERT, made) == ""


def test_two_members_that_let_in_at_once_both_stand_and_no_third_comes(doors):
    founder, anna = doors
    made = founder.invite()
    gossip(founder, anna)
    assert founder.refusal(BERT, made) == anna.refusal(CARL, made) == ""
    gossip(founder, anna)
    for door in doors:
        assert door.refusal(BERT, made) == door.refusal(CARL, made) == ""
        assert "used up" in door.refusal(DORA, made)


def test_revoked_invitation_lets_nobody_in_also_none_that_it_had(doors):
    founder, anna = doors
    made = founder.invite(uses=5)
    gossip(founder, anna)
    assert anna.refusal(BERT, made) == ""
    founder.issued.revoke(made.token.key.hex()[:8])
    assert founder.refusal(CARL, made) == "the invitation was revoked"  # Before any gossip.
    gossip(founder, anna)
    for door in doors:
        assert door.refusal(BERT, made) == door.refusal(CARL, made) == "the invitation was revoked"
        assert not door.access.may_sit(BERT.peer_id)
    anna.members.add(BERT.peer_id)
    assert anna.refusal(BERT, made) == ""  # A seat is the rounds' to take.


def test_nobody_revokes_the_invitation_of_another(doors):
    founder, anna = doors
    made = founder.invite()
    gossip(founder, anna)
    one = next(founder.book.entries(EntryKind.INVITATION))
    body = replace(one.content, is_revoked=True)
    written = anna.book.write(EntryKind.INVITATION, made.token.key, body, wall_s=WALL_S)
    anna.book.release(written, wall_s=WALL_S)
    gossip(founder, anna)
    assert founder.refusal(BERT, made) == ""


def test_expired_invitation_lets_in_whom_it_had_and_nobody_new(doors):
    founder, _ = doors
    made = founder.invite(uses=5, valid_s=60.0)
    assert founder.refusal(BERT, made) == ""
    founder.wall_s += 61.0
    assert founder.refusal(BERT, made) == ""
    assert founder.refusal(CARL, made) == "the invitation has expired"


def test_invitation_that_nobody_told_of_is_refused(doors):
    founder, anna = doors
    assert "not known here" in anna.refusal(BERT, founder.invite())


def test_admissions_of_somebody_without_a_seat_let_nobody_in_but_use_up(doors):
    founder, anna = doors
    made = founder.invite()
    gossip(founder, anna)
    founder.refusal(BERT, made)
    founder.write()
    anna.members.discard(FOUNDER.peer_id)  # As if the writer had no seat.
    gossip(founder, anna)
    assert not anna.access.may_sit(BERT.peer_id)
    assert "used up" in anna.refusal(CARL, made)
    assert not anna.access.may_sit(CARL.peer_id)


def test_only_members_bearers_ask_for_seats(doors):
    founder, anna = doors
    member, observer = founder.invite(), founder.invite(role=Role.OBSERVER)
    gossip(founder, anna)
    assert founder.refusal(BERT, member) == founder.refusal(CARL, observer) == ""
    gossip(founder, anna)
    for door in doors:
        assert door.access.may_sit(BERT.peer_id)
        assert not door.access.may_sit(CARL.peer_id)
        assert not door.access.may_sit(DORA.peer_id)


def test_newcomer_believes_signatures_alone(doors, tmp_path):
    founder, _ = doors
    made = founder.invite()
    newcomer = Door(BERT, tmp_path)
    assert newcomer.refusal(CARL, made) == ""
    assert "another peer" in newcomer.access.refusal(
        DORA.peer_id, encode(made.taken_by(CARL.peer_id))
    )


def test_uninvited_may_not_invite(doors):
    _, anna = doors
    with pytest.raises(ConfigError, match="was not invited"):
        anna.invite()


def test_run_for_all_asks_nobody(tmp_path):
    open_run: RunManifest = toy_manifest()
    access = replace_manifest(Door(FOUNDER, tmp_path).access, open_run)
    assert access.refusal(DORA.peer_id, b"") == ""
    assert access.may_sit(DORA.peer_id)
    assert tuple(access.due()) == ()


def replace_manifest(access, manifest):
    access.manifest = manifest
    return access
