"""`barnraise export`: the file, who it says it is, and what happens where it cannot be written."""

import json

import pytest

from node.using.run_on_disk import export_run, find_run, open_export, open_signed
from protocol.errors import CheckpointError, ConfigError
from protocol.identity import peer_id_text
from protocol.manifest import ModelSpec
from tests.node.state_run import FOUNDER, StateRun, write_state
from tests.training.files.test_exported import rewrite
from tests.training.full_disk import files_of_at_most
from training.files.exported import read_provenance, read_tensors


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
