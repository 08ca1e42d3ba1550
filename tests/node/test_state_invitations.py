"""Invitations on the disk: issued and revoked while the node runs, and what it shows of itself."""

from dataclasses import replace

import pytest

from node.state.invitations import (
    FOLDER,
    TOKENS_MAX,
    IssuedTokens,
    Terms,
    keep_credential,
    read_credential,
)
from protocol.errors import ConfigError
from protocol.identity import Ed25519Signer
from protocol.invitations import Role, check_credential
from protocol.manifest import AccessSpec
from protocol.wire import encode
from tests.node.edge import FOUNDER_SEED, toy_manifest

FOUNDER, FRIEND, GUEST = (
    Ed25519Signer(FOUNDER_SEED),
    Ed25519Signer(b"g" * 32),
    Ed25519Signer(b"h" * 32),
)
RUN = toy_manifest(access=AccessSpec(mode="invited"))
TERMS = Terms(role=Role.MEMBER, uses=2, delegations=1, valid_s=60.0)


def issue(folder, signer=FOUNDER, terms=TERMS):
    return IssuedTokens(folder).issue(RUN, signer, terms, unix_s=1e9)


def test_issued_token_is_seen_by_the_node_that_runs(tmp_path):
    seen = IssuedTokens(tmp_path)
    assert seen.tokens() == ()
    made = issue(tmp_path)
    assert seen.tokens() == ((made.token, False),)
    IssuedTokens(tmp_path).revoke(made.token.key.hex()[:6])
    assert seen.tokens() == ((made.token, True),)
    assert made.seed not in b"".join(one.read_bytes() for one in (tmp_path / FOLDER).iterdir())


def test_name_of_no_token_revokes_nothing(tmp_path):
    issue(tmp_path)
    for name in ("", "zz"):
        with pytest.raises(ConfigError, match="0 invitations of this node begin with"):
            IssuedTokens(tmp_path).revoke(name)


def test_damaged_token_is_left_out(tmp_path):
    made = issue(tmp_path)
    (tmp_path / FOLDER / "00.token").write_bytes(b"\x00torn")
    assert IssuedTokens(tmp_path).tokens() == ((made.token, False),)


def test_bearer_invites_within_its_own_terms(tmp_path):
    (tmp_path / "friend").mkdir()
    keep_credential(tmp_path / "friend", issue(tmp_path).taken_by(FRIEND.peer_id))
    made = issue(tmp_path / "friend", FRIEND, replace(TERMS, delegations=0))
    check_credential(made.taken_by(GUEST.peer_id), RUN, GUEST.peer_id, GUEST)
    with pytest.raises(ConfigError, match="nobody gives more"):
        issue(tmp_path / "friend", FRIEND, TERMS)


def test_bearer_without_the_right_invites_nobody(tmp_path):
    credential = issue(tmp_path, terms=replace(TERMS, delegations=0)).taken_by(FRIEND.peer_id)
    (tmp_path / "friend").mkdir()
    keep_credential(tmp_path / "friend", credential)
    with pytest.raises(ConfigError, match="does not let it invite"):
        issue(tmp_path / "friend", FRIEND, replace(TERMS, delegations=0))


def test_node_issues_no_more_than_its_entries_tell_of(tmp_path):
    for _ in range(TOKENS_MAX):
        issue(tmp_path)
    with pytest.raises(ConfigError, match="the most there are"):
        issue(tmp_path)


def test_credential_is_kept_and_a_torn_one_is_none(tmp_path):
    assert read_credential(tmp_path) == b""
    credential = issue(tmp_path).taken_by(FRIEND.peer_id)
    keep_credential(tmp_path, credential)
    assert read_credential(tmp_path) == encode(credential)
    (tmp_path / "credential").write_bytes(encode(credential)[:-1])
    assert read_credential(tmp_path) == b""
