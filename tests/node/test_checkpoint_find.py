"""Which run of a state folder is meant, and what a user is told who names none or a wrong one."""

import pytest

from node.state.folder import MANIFEST_FILE
from node.using.run_on_disk import find_run
from protocol.errors import ConfigError
from tests.node.state_run import write_state


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
