"""A whole demo over fakes of the node and the yardstick: real processes, no training."""

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from protocol.errors import ConfigError
from sim.demo import story
from sim.demo.main import DemoEnd, Surroundings, run_demo
from sim.demo.story import DemoOptions, DemoPatience

HERE = Path(__file__).parent
ROUNDS = 12

pytestmark = pytest.mark.slow


class Rehearsal:
    """One demo in a folder of its own, and what it printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.text = io.StringIO()

    def run(self, *, peers: int = 4, node: str = "", yardstick: str = "", **options) -> DemoEnd:
        began_s = time.monotonic()
        around = Surroundings(
            console=Console(file=self.text, width=100),
            now_s=lambda: time.monotonic() - began_s,
            node_command=(sys.executable, "-P", str(HERE / "fake_node.py"), "--behave", node),
            yardstick_command=(
                *(sys.executable, "-P", str(HERE / "fake_yardstick.py"), "--behave", yardstick),
            ),
            patience=DemoPatience(start_s=8.0, stall_s=6.0, latecomer_s=3.0, last_words_s=2.0),
        )
        given = DemoOptions(peers=peers, rounds=ROUNDS, seed=1, folder=self.folder, **options)
        return run_demo(given, around)

    @property
    def printed(self) -> str:
        return self.text.getvalue()


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path / "demo")


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A trainer whose node is gone may wait as a zombie for the init process.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_demo_kills_adds_measures_and_reports(rehearsal):
    end = rehearsal.run()
    assert end.status == 0, rehearsal.printed
    result = end.result
    assert result is not None
    assert (result.killed, story.num_joined_late(result.view), result.anchors_equal) == (
        "A",
        1,
        True,
    )
    killed_round = story.killed_round(result.view)
    assert killed_round is not None
    assert killed_round.outcome == "not listed"
    assert killed_round.round >= 5
    assert len(set(result.view.pids)) == 10
    assert not any(is_running(pid) for pid in result.view.pids)
    measured = result.measured
    assert (measured.loss_first, measured.loss_last, measured.loss_alone) == (5.5, 1.6, 1.8)
    assert result.alone == ((0, 3.0), (1, 2.5), (2, 2.0))
    assert {file.name for file in rehearsal.folder.iterdir()} == {
        *("index.html", "loss.png", "result.json", "manifest.msgpack", "logs"),
    }
    body = json.loads((rehearsal.folder / "result.json").read_text("utf-8"))
    assert body["swarm_curve"][-1] == [ROUNDS, 2.0 + 1.0 / ROUNDS]


def test_demo_of_two_kills_nobody(rehearsal):
    end = rehearsal.run(peers=2)
    assert end.status == 0, rehearsal.printed
    assert end.result is not None
    assert (end.result.killed, story.num_joined_late(end.result.view)) == (None, 1)
    assert len(set(end.result.view.pids)) == 6


def test_keep_leaves_keys_and_checkpoints(rehearsal):
    assert rehearsal.run(peers=2, keep_state=True).status == 0
    assert (rehearsal.folder / "nodes" / "A" / "identity.key").stat().st_size == 32


def test_node_that_dies_is_told_with_the_end_of_its_log(rehearsal):
    end = rehearsal.run(node="die-B")
    assert end.status == 1
    assert end.result is not None
    assert "node B died: it ended with status 7" in rehearsal.printed
    assert "something broke in here" in rehearsal.printed
    assert not any(is_running(pid) for pid in end.result.view.pids)
    # They are kept for whoever wants to know why.
    assert (rehearsal.folder / "nodes" / "B").is_dir()


def test_stuck_swarm_ends_with_the_place_of_its_logs(rehearsal):
    end = rehearsal.run(peers=2, node="stuck")
    assert end.status == 1
    assert "read from their checkpoints: not compared." in " ".join(rehearsal.printed.split())
    assert "the swarm is stuck: no seal for 6 s after 0 rounds" in rehearsal.printed
    assert str(rehearsal.folder / "logs") in rehearsal.printed


def test_node_that_never_listens_ends_the_demo(rehearsal):
    end = rehearsal.run(peers=3, node="mute-C")
    assert end.status == 1
    assert "node C did not listen within 8 s" in rehearsal.printed


def test_differing_weights_fail_the_demo(rehearsal):
    end = rehearsal.run(peers=2, node="differ-B")
    assert end.status == 1
    assert end.result is not None
    assert end.result.anchors_equal is False
    assert end.result.measured.loss_last == 1.6
    assert "the survivors' final weights are not equal" in rehearsal.printed


def test_failing_yardstick_is_told_with_its_last_words(rehearsal):
    end = rehearsal.run(peers=2, yardstick="fail")
    assert end.status == 1
    assert "CorpusError: no text here" in rehearsal.printed
    assert end.result is not None
    assert end.result.anchors_equal is True


def test_node_that_hears_nothing_is_ended_all_the_same(rehearsal):
    end = rehearsal.run(peers=2, node="deaf")
    assert end.status == 0
    assert end.result is not None
    assert not any(is_running(pid) for pid in end.result.view.pids)


class Meddler(io.StringIO):
    """Takes the place of the page as soon as the demo has something to say."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self._page = page

    def write(self, text: str, /) -> int:
        self._page.mkdir(exist_ok=True)
        return super().write(text)


def test_report_that_cannot_be_written_is_told_with_what_was_found_out(rehearsal):
    rehearsal.text = Meddler(rehearsal.folder / "index.html")
    end = rehearsal.run(peers=2)
    assert end.status == 1
    assert "cannot write" in rehearsal.printed
    assert "index.html: Is a directory" in rehearsal.printed
    assert end.result is not None
    assert (end.result.anchors_equal, end.result.view.num_sealed) == (True, ROUNDS)


def test_folder_in_use_is_refused(rehearsal):
    rehearsal.folder.mkdir()
    (rehearsal.folder / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty"):
        rehearsal.run()
    assert [file.name for file in rehearsal.folder.iterdir()] == ["thesis.txt"]


def test_folder_that_cannot_be_made_is_refused(rehearsal):
    rehearsal.folder.write_text("a file")
    with pytest.raises(ConfigError, match="cannot be used"):
        rehearsal.run()
