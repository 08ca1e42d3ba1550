"""`barnraise evidence`: what a ninth node needs to be convinced."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from node.commands import credit as commands
from node.commands.app import app
from node.state import evidence_files
from node.state.evidence_files import place_of, read_evidence, save_evidence, saved_evidence
from node.state.stored_manifest import ANY_SIGNER
from protocol.entry_kinds import Accusation
from protocol.errors import ConfigError, StateError
from protocol.evidence import WorkFinding, two_messages_evidence
from protocol.identity import PeerId, peer_id_text
from protocol.messages import Kind, Leave
from protocol.wire import decode, encode
from tests.node.builders import Voice, head_of, peers_named, roster_of
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


def test_peer_that_contradicts_itself_again_and_again_has_one_file(tmp_path):
    voice = Voice(peers_named(1)[0], head_of(peers_named(1)).value)
    first = voice.sign(Kind.LEAVE, Leave(reason=""))
    found = [
        two_messages_evidence(first, voice.sign(Kind.LEAVE, Leave(reason=str(number))))
        for number in range(1, 9)
    ]
    for one in found:
        save_evidence(tmp_path, one)
    (path,) = saved_evidence(tmp_path)
    assert path.read_bytes() == found[-1].encoded


def test_no_more_files_are_kept_than_evidence(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_files, "FILES_MAX", 3)
    for number in range(5):
        save_evidence(tmp_path, replace(TWICE, subject=PeerId(bytes([number]) * 32)))
    assert len(saved_evidence(tmp_path)) == 3


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


@pytest.mark.parametrize(
    ("num_voters", "said"),
    [(1, "as good as the founder's word"), (3, "founder's word"), (4, "not all liars, differ")],
)
def test_words_of_fewer_voters_than_may_lie_are_called_what_they_are(num_voters, said):
    found = EVIDENCE[Accusation.WRONG_WORK]
    finding = decode(WorkFinding, found.first)
    roster = roster_of(peers_named(num_voters))
    few = replace(finding, basis=replace(finding.basis, roster=roster))
    assert said in commands._proof(replace(found, first=encode(few)))
