"""Which run of a state folder is meant, what a user is told who names none or a wrong one, where a
command may write, and the weights as a file.
"""

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from node.holdings.journal import CHAIN_FILE
from node.holdings.record_log import pack_record
from node.state.folder import MANIFEST_FILE
from node.using.child import WeightsChoice, find_source
from node.using.run_on_disk import (
    age_text,
    export_run,
    find_run,
    newest_sealed,
    open_export,
    open_signed,
    refuse_taken,
)
from protocol.errors import CheckpointError, ConfigError
from protocol.identity import peer_id_text
from protocol.manifest import ModelSpec
from protocol.messages import SealCertificate
from protocol.wire import encode
from tests.node.builders import head_of, peers_named
from tests.node.state_run import FOUNDER, StateRun, write_state
from tests.training.files.test_exported import rewrite
from tests.training.full_disk import files_of_at_most
from training.files.exported import read_provenance, read_tensors


def test_only_run_is_found_with_its_manifest_and_checkpoints(tmp_path):
    run = write_state(tmp_path)
    found = find_run(tmp_path)
    assert found.manifest == run.manifest
    assert found.signed == run.signed
    assert found.checkpoints == run.checkpoints
    assert found.manifest_path == run.folder / MANIFEST_FILE


@pytest.mark.parametrize("digits", [1, 12, 64])
def test_first_digits_name_a_run(tmp_path, digits):
    write_state(tmp_path, title="another")
    run = write_state(tmp_path)
    digest = run.manifest.digest.hex()
    assert find_run(tmp_path, run=digest[:digits].upper()).manifest == run.manifest


def test_several_runs_are_listed_with_what_to_do(tmp_path):
    runs = [write_state(tmp_path, title=title) for title in ("one barn", "two \x1b[2J barns")]
    with pytest.raises(ConfigError, match="name one with --run") as caught:
        find_run(tmp_path)
    message = str(caught.value)
    for run in runs:
        assert run.folder.name in message
    assert "one barn" in message
    # A title is a stranger's text: it moves no cursor.
    assert "\x1b" not in message


def test_founding_that_was_interrupted_is_no_run_and_a_run_without_its_manifest_is_one(tmp_path):
    run = write_state(tmp_path)
    other = run.folder.with_name("0" * 12)
    other.mkdir()
    (other / "founded.json").write_text("{}")
    assert find_run(tmp_path).manifest == run.manifest
    (other / "slots.log").write_bytes(b"some")
    with pytest.raises(ConfigError, match=f"name one with --run:\n  {other.name}"):
        find_run(tmp_path)


def test_run_that_is_not_here_is_told_with_those_that_are(tmp_path):
    run = write_state(tmp_path)
    with pytest.raises(ConfigError, match=rf"no run zz, but:\n  {run.folder.name}"):
        find_run(tmp_path, run="zz")


@pytest.mark.parametrize("run", [None, "ab"])
def test_folder_without_a_run_says_what_to_name(tmp_path, run):
    with pytest.raises(ConfigError, match=r"name a node's folder with --state$"):
        find_run(tmp_path / "nothing", run=run)
    with pytest.raises(ConfigError, match=r"--state, or a file$"):
        find_run(tmp_path / "nothing", run=run, instead=", or a file")


def test_folder_that_lacks_its_manifest_takes_one_that_is_named(tmp_path):
    run = write_state(tmp_path)
    elsewhere = tmp_path / "elsewhere.msgpack"
    (run.folder / MANIFEST_FILE).rename(elsewhere)
    with pytest.raises(ConfigError, match="name the file with --manifest"):
        find_run(tmp_path)
    found = find_run(tmp_path, manifest=elsewhere)
    assert (found.manifest, found.manifest_path) == (run.manifest, elsewhere)
    assert found.checkpoints == run.checkpoints


def test_manifest_names_the_run_where_there_are_several(tmp_path):
    other, run = write_state(tmp_path, title="another"), write_state(tmp_path)
    path = run.folder / MANIFEST_FILE
    assert find_run(tmp_path, manifest=path).manifest == run.manifest
    with pytest.raises(ConfigError, match=f"is of run {run.folder.name}, not of"):
        find_run(tmp_path, manifest=path, run=other.folder.name)


def test_manifest_of_a_run_that_is_not_here_is_told(tmp_path):
    elsewhere = write_state(tmp_path / "a", title="away")
    write_state(tmp_path / "b")
    with pytest.raises(ConfigError, match=f"holds nothing of run {elsewhere.folder.name}, away"):
        find_run(tmp_path / "b", manifest=elsewhere.folder / MANIFEST_FILE)


def test_manifest_in_a_foreign_folder_is_refused(tmp_path):
    run, other = write_state(tmp_path, title="one"), write_state(tmp_path, title="two")
    (run.folder / MANIFEST_FILE).write_bytes(other.signed)
    with pytest.raises(ConfigError, match="is of another run, two"):
        find_run(tmp_path, run=run.folder.name)


@pytest.mark.parametrize("content", [b"", b"\x92nonsense", bytes(300_000)])
def test_manifest_that_is_none_is_named(tmp_path, content):
    run = write_state(tmp_path)
    (run.folder / MANIFEST_FILE).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{MANIFEST_FILE} is no manifest of a run"):
        find_run(tmp_path)


def test_manifest_that_the_founder_did_not_sign_is_refused(tmp_path):
    run = write_state(tmp_path)
    signed = bytearray(run.signed)
    signed[-1] ^= 1
    (run.folder / MANIFEST_FILE).write_bytes(signed)
    with pytest.raises(ConfigError, match="not signed by the founder"):
        find_run(tmp_path)


def test_other_things_in_the_folder_are_no_runs(tmp_path):
    run = write_state(tmp_path)
    (tmp_path / "runs" / "notes.txt").touch()
    (tmp_path / "runs" / ".trash").mkdir()
    assert find_run(tmp_path).manifest == run.manifest


def test_file_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "out"
    refuse_taken(out, force=False)
    out.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="--force"):
        refuse_taken(out, force=False)
    refuse_taken(out, force=True)


def test_folder_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        refuse_taken(tmp_path, force=True)


@pytest.mark.skipif(sys.platform == "win32", reason="no such files there")
def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for out in (pipe, Path("/dev/null")):
        with pytest.raises(ConfigError, match="a device or a pipe"):
            refuse_taken(out, force=True)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.fixture
def run(tmp_path) -> StateRun:
    return write_state(tmp_path / "state", 6, 7)


def export(run: StateRun, out, told=None, **options):
    told = [] if told is None else told
    return export_run(find_run(run.state), out, told.append, **options)


def test_file_says_where_its_weights_are_from(run, tmp_path):
    written = export(run, tmp_path / "out.safetensors")
    found = open_export(written.path)
    assert found == written.provenance
    assert found.manifest == run.manifest
    assert (found.sealed_round, found.seal) == (7, bytes([7]) * 32)
    assert (found.clock.step, found.clock.tokens) == (70, 700)
    about = dict(found.about)
    del about["barnraise"]
    assert about == {
        "title": run.manifest.title,
        "model": "gpt",
        "settings": '{"context": 8, "heads": 2, "layers": 1, "width": 16}',
        "founder": peer_id_text(FOUNDER.peer_id),
        "created": "1970-01-01T00:00:00+00:00",
    }
    (anchor_N,) = read_tensors(written.path, found)
    assert anchor_N.tobytes() == run.anchor(7).tobytes()
    assert written.parameters == anchor_N.size
    assert written.num_bytes == written.path.stat().st_size


def test_asked_for_round_is_written(run, tmp_path):
    assert export(run, tmp_path / "out", round_index=6).provenance.sealed_round == 6


def seal_up_to(run: StateRun, last: int) -> Path:
    """The chain of a run whose node knows so many final rounds."""
    link = head_of(peers_named(1)).value
    chain = run.folder / CHAIN_FILE
    values = (replace(link, round=index) for index in range(1, last + 1))
    seals = (SealCertificate(value=value, seals=()) for value in values)
    chain.write_bytes(b"".join(pack_record(encode(seal)) for seal in seals))
    return chain


def test_export_says_how_old_its_weights_are(run, tmp_path):
    assert export(run, tmp_path / "never sealed").newest_round is None
    chain = seal_up_to(run, 12)
    written = export(run, tmp_path / "out")
    assert (written.provenance.sealed_round, written.newest_round) == (7, 12)
    assert export(run, tmp_path / "older", round_index=6).newest_round is None, "it was asked for"
    assert "weights of round 7, and the run is at round 12" in age_text(7, 12)
    chain.write_bytes(chain.read_bytes()[:-3])
    assert newest_sealed(find_run(run.state)) == 11, "the last record is torn"


@pytest.mark.parametrize("newest", [None, 6, 7])
def test_nothing_is_said_of_weights_that_are_the_newest(newest):
    assert age_text(7, newest) == ""


def test_chain_that_is_none_tells_of_no_round(run):
    (run.folder / CHAIN_FILE).write_bytes(pack_record(b"nonsense"))
    assert newest_sealed(find_run(run.state)) is None


def test_text_and_losses_know_the_newest_round_unless_another_is_asked_for(run):
    seal_up_to(run, 12)
    assert find_source(WeightsChoice(state=run.state)).newest_round == 12
    assert find_source(WeightsChoice(state=run.state, round_index=6)).newest_round is None


def test_torn_newest_checkpoint_is_passed_over_and_that_is_said(run, tmp_path):
    (run.path(7) / "anchor.safetensors").write_bytes(b"")
    told: list[str] = []
    assert export(run, tmp_path / "out", told).provenance.sealed_round == 6
    assert len(told) == 1


def test_file_that_is_there_is_kept(run, tmp_path):
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(ConfigError, match=r"exists: .*--force"):
        export(run, out)
    assert out.read_text() == "mine"
    export(run, out, force=True)
    assert open_export(out).sealed_round == 7


def test_failed_replacement_keeps_the_old_file(run, tmp_path):
    out = tmp_path / "out"
    export(run, out)
    before = out.read_bytes()
    for index in (6, 7):
        (run.path(index) / "meta.json").unlink()
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        export(run, out, force=True)
    assert out.read_bytes() == before


def test_folder_is_not_written_over(run, tmp_path):
    with pytest.raises(ConfigError, match="is a folder: name a file"):
        export(run, tmp_path, force=True)


def test_place_that_cannot_be_written_is_named(run, tmp_path):
    with pytest.raises(ConfigError, match=r"cannot write .*No such file or directory"):
        export(run, tmp_path / "absent" / "out")


def test_full_disk_leaves_nothing_and_is_told(run, tmp_path):
    found = find_run(run.state)
    with files_of_at_most(4096), pytest.raises(ConfigError, match="cannot write"):
        export_run(found, tmp_path / "out", list[str]().append)
    assert [entry.name for entry in tmp_path.iterdir()] == ["state"]


def test_two_exports_of_one_checkpoint_are_equal(run, tmp_path):
    first, second = (export(run, tmp_path / name).path.read_bytes() for name in "ab")
    assert first == second


def test_unknown_model_is_named_before_anything_is_read(tmp_path):
    run = write_state(tmp_path, model=ModelSpec(name="oracle", settings=(), seed=0))
    with pytest.raises(ConfigError, match="unknown model 'oracle'; known: gpt"):
        export(run, tmp_path / "out")


@pytest.mark.parametrize("key", ["title", "model", "settings", "founder", "created"])
def test_what_people_read_is_what_the_founder_signed(run, tmp_path, key):
    path = export(run, tmp_path / "out").path
    rewrite(path, lambda header: header["__metadata__"].update({key: "somebody else's"}))
    # The format alone lets it pass; whoever trusts the text must not.
    assert read_provenance(path, open_signed).about[key] == "somebody else's"
    with pytest.raises(CheckpointError, match=f"its {key} is not the run's"):
        open_export(path)


def test_founder_with_an_impossible_clock_can_still_be_exported(tmp_path):
    run = write_state(tmp_path, 1, created_unix_s=2**62)
    assert export(run, tmp_path / "out").provenance.about["created"] == f"{2**62} s after 1970"


def test_settings_are_json(run, tmp_path):
    about = export(run, tmp_path / "out").provenance.about
    assert json.loads(about["settings"])["context"] == 8
