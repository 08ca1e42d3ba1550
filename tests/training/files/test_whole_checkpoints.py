"""Which checkpoint is used, also where some are torn or a node is writing."""

import shutil

import pytest

from protocol.errors import CheckpointError, ConfigError
from tests.node.state_run import StateRun, write_state
from training.files import state as whole_checkpoints
from training.files.state import every_whole, load_checkpoint, newest_whole, sealed_round


@pytest.fixture
def run(tmp_path) -> StateRun:
    return write_state(tmp_path, 3, 4, 5)


def newest(run: StateRun, told: list[str], round_index: int | None = None) -> int:
    found = newest_whole(run.checkpoints, run.manifest, told.append, round_index=round_index)
    assert found.state.anchors[0][0] == sealed_round(found)
    return sealed_round(found)


def tear(run: StateRun, index: int, name: str = "anchor.safetensors") -> None:
    path = run.path(index) / name
    path.write_bytes(path.read_bytes()[:-1])


def test_newest_is_taken_and_nothing_said(run):
    told: list[str] = []
    assert newest(run, told) == 5
    assert told == []


def test_round_is_the_one_that_was_sealed(run):
    assert newest(run, [], 4) == 4


@pytest.mark.parametrize("name", ["anchor.safetensors", "outer.safetensors", "meta.json"])
def test_torn_newest_is_passed_over_and_said_once(run, name):
    tear(run, 5, name)
    told: list[str] = []
    assert newest(run, told) == 4
    (reason,) = told
    assert "not whole" in reason
    assert run.path(5).name in reason


def test_torn_round_that_was_asked_for_is_an_error_and_no_other_round(run):
    tear(run, 4)
    with pytest.raises(CheckpointError, match="round-000005"):
        newest(run, [], 4)


def test_round_that_is_not_kept_is_told_with_those_that_are(run):
    with pytest.raises(ConfigError, match="does not keep round 9; it keeps: 3, 4, 5"):
        newest(run, [], 9)


def test_no_checkpoint_and_none_whole_are_two_errors(run):
    for index in (3, 4, 5):
        tear(run, index)
    with pytest.raises(CheckpointError, match="no whole checkpoint: start the node again"):
        newest(run, [])
    shutil.rmtree(run.checkpoints)
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        newest(run, [])


def test_checkpoint_that_a_running_node_prunes_meanwhile_gives_way_to_its_newer_one(
    run, monkeypatch
):
    """The node seals rounds 6 to 8 between our look at the folder and our reading of round 5."""
    overtaken: list[int] = []

    def slow(path, *arguments, **names):
        if not overtaken:
            overtaken.extend((6, 7, 8))
            for index in overtaken:
                run.save(index)
        return load_checkpoint(path, *arguments, **names)

    monkeypatch.setattr(whole_checkpoints, "load_checkpoint", slow)
    told: list[str] = []
    assert newest(run, told) == 8
    assert told == []


def test_folder_that_changes_for_ever_ends_in_an_error(run, monkeypatch):
    numbers = iter(range(6, 1000))

    def slower(path, *arguments, **names):
        for _ in range(3):
            run.save(next(numbers))
        return load_checkpoint(path, *arguments, **names)

    monkeypatch.setattr(whole_checkpoints, "load_checkpoint", slower)
    with pytest.raises(CheckpointError, match="try again"):
        newest(run, [])


def test_a_checkpoint_that_is_being_written_is_not_seen(run):
    (run.checkpoints / ".writing-round-000007").mkdir()
    assert newest(run, []) == 5


def test_every_whole_one_comes_oldest_first_and_the_others_are_told(run):
    tear(run, 4)
    told: list[str] = []
    found = every_whole(run.checkpoints, run.manifest, told.append)
    assert [sealed_round(checkpoint) for checkpoint in found] == [3, 5]
    assert len(told) == 1


def test_every_of_none_is_an_error(run):
    for index in (3, 4, 5):
        tear(run, index)
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        list(every_whole(run.checkpoints, run.manifest, list[str]().append))
