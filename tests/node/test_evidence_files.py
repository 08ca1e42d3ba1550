"""`barnraise evidence`: what a ninth node needs to be convinced."""

import json

import pytest
from typer.testing import CliRunner

from node.commands import evidence as commands  # noqa: F401 - it registers
from node.commands.app import app
from node.state.evidence_files import place_of, read_evidence, save_evidence, saved_evidence
from node.using.checkpoint_find import ANY_SIGNER
from protocol.entry_kinds import Accusation
from protocol.errors import ConfigError, StateError
from protocol.identity import peer_id_text
from tests.protocol.entry_vectors import EVIDENCE, SIGNER

TWICE = EVIDENCE[Accusation.TWO_MESSAGES]


def test_evidence_is_saved_once_and_verified_from_the_file_alone(tmp_path):
    for _ in range(2):
        save_evidence(tmp_path, TWICE)
    (path,) = saved_evidence(tmp_path)
    assert read_evidence(path, ANY_SIGNER) == TWICE
    result = CliRunner().invoke(app, ["evidence", "verify", str(path), "--json"])
    found = json.loads(result.stdout)
    assert found["verified"] is True
    assert found["peer"] == peer_id_text(SIGNER.peer_id)
    assert found["place"] == place_of(TWICE) == "VOTE of round 41, attempt 1"


def test_fork_has_no_place_in_a_round():
    assert place_of(EVIDENCE[Accusation.FORK]) == ""


def test_bytes_that_prove_nothing_are_refused(tmp_path, seed):
    path = tmp_path / "x.evidence"
    with pytest.raises(ConfigError, match="cannot read"):
        read_evidence(path, ANY_SIGNER)
    data = bytearray(TWICE.encoded)
    data[seed % len(data)] ^= 1 << seed % 8
    for content in (b"", TWICE.encoded[:-1], TWICE.encoded + b"\x00", bytes(data)):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match="proves nothing"):
            read_evidence(path, ANY_SIGNER)


def test_folder_that_takes_no_file_is_an_error_of_the_disk(tmp_path):
    (tmp_path / "evidence").write_text("in the way")
    with pytest.raises(StateError, match="cannot keep evidence"):
        save_evidence(tmp_path, TWICE)
