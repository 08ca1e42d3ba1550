"""What this machine has free, and that nothing is founded, fetched or written where it is short."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from node.commands.founding import NodeOptions, TellingOptions, _start, init
from node.processes.children import child_environment
from node.processes.machine import (
    Machine,
    Wants,
    allowed_bytes,
    check_machine,
    held_bytes,
    read_machine,
    shortages,
)
from node.settings.check import check_run_file, check_size_here
from node.settings.footprint import check_room, wants_of
from node.settings.sections import TITLE_DEFAULT, run_file_text, size_named
from protocol.errors import ConfigError
from tests.node.test_check import file, people
from tests.training.replicas import small_manifest
from training.models.genesis import GPT_SIZES

GIB = 1 << 30
AMPLE = Machine(memory_bytes=1 << 50, disk_bytes=1 << 50)
LITTLE_MEMORY = replace(AMPLE, memory_bytes=100 << 20)
LITTLE_DISK = replace(AMPLE, disk_bytes=1000)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_is_short_is_named_with_both_numbers_and_what_to_do() -> None:
    wants = Wants(memory_bytes=3 * GIB, disk_bytes=5 * GIB)
    has = Machine(memory_bytes=2 * GIB, disk_bytes=4 * GIB)
    with pytest.raises(ConfigError) as caught:
        check_machine(wants, has, advice="buy another")
    assert str(caught.value).endswith(
        "(memory: 3.0 GiB are needed and 2.0 GiB are free; disk: 5.0 GiB are needed and 4.0 GiB are"
        " free): buy another"
    )
    exactly = Machine(memory_bytes=3 * GIB, disk_bytes=5 * GIB)
    check_machine(wants, exactly, advice="")
    assert shortages(wants, replace(exactly, disk_bytes=1))[0].startswith("disk")


def test_machine_is_read_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    found = read_machine(tmp_path / "a" / "b")
    assert found.disk_bytes > 0
    assert 1 << 20 < found.memory_bytes < 1 << 50
    assert not (tmp_path / "a").exists()


def test_container_has_what_the_tightest_group_around_it_leaves(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    write(own, "0::/user/job\n")
    write(root / "user/job/memory.max", "max\n")
    write(root / "user/job/memory.current", "5\n")
    write(root / "user/job/memory.stat", "anon 4\ninactive_file 1\n")
    write(root / "user/memory.max", f"{4 * GIB}\n")
    write(root / "user/memory.current", f"{3 * GIB}\n")
    write(root / "user/memory.stat", f"anon 1\ninactive_file {GIB // 2}\n")
    # Files in the cache are given up for whoever asks; a group without a limit allows all.
    assert list(allowed_bytes(root, own)) == [GIB + GIB // 2]


def test_container_of_the_first_version_is_asked_as_well(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    write(own, "7:cpu,cpuacct:/a\n6:memory:/a\n")
    write(root / "memory/a/memory.limit_in_bytes", "1000\n")
    write(root / "memory/a/memory.usage_in_bytes", "1400\n")
    write(root / "memory/a/memory.stat", "total_inactive_file 100\n")
    assert list(allowed_bytes(root, own)) == [0]
    assert list(allowed_bytes(root, tmp_path / "nothing")) == []


def test_trainer_on_a_device_takes_less_of_the_host_and_an_observer_least() -> None:
    manifest = small_manifest()
    host, card = wants_of(manifest, 4), wants_of(manifest, 4, is_on_card=True)
    observer = wants_of(manifest, 4, is_observer=True)
    assert host.memory_bytes > card.memory_bytes > observer.memory_bytes
    assert host.disk_bytes == card.disk_bytes > observer.disk_bytes
    has_card = replace(AMPLE, has_card=True)
    assert [has_card.is_on_card(one) for one in ("auto", "cpu", "cuda:1", "mps")] == [
        *(True, False, True, False)
    ]
    assert not AMPLE.is_on_card("auto")


def test_what_a_resumed_run_holds_already_needs_no_room(tmp_path: Path) -> None:
    manifest = small_manifest()
    wanted = wants_of(manifest, 8).disk_bytes
    held = tmp_path / "checkpoints" / "held"
    write(held, "x" * wanted)
    check_room(manifest, tmp_path, LITTLE_DISK, device="cpu")
    held.write_text("")
    with pytest.raises(ConfigError, match="disk: "):
        check_room(manifest, tmp_path, LITTLE_DISK, device="cpu")


START = """
import sys
from pathlib import Path
from node.daemon.foreground import Start, run_file_in_foreground
from node.processes.machine import Machine
from protocol.errors import ConfigError

memory_bytes, disk_bytes = map(int, sys.argv[3:])
machine = Machine(memory_bytes=memory_bytes, disk_bytes=disk_bytes)
start = Start(state=Path(sys.argv[2]), options={}, is_json=True, look_at=lambda folder: machine)
try:
    run_file_in_foreground(start, Path(sys.argv[1]), is_new=False)
except ConfigError as error:
    print(f"refused: {error}")
"""


@pytest.mark.parametrize(
    ("machine", "what"), [(LITTLE_MEMORY, "memory: "), (LITTLE_DISK, "disk: ")]
)
def test_run_refuses_before_anything_is_founded(
    tmp_path: Path, machine: Machine, what: str
) -> None:
    """In a process of its own: one that did not refuse would go on for ever."""
    path, state = file(tmp_path, ""), tmp_path / "state"
    numbers = (str(machine.memory_bytes), str(machine.disk_bytes))
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, str(path), str(state), *numbers],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    told = rf"refused: .* too small for that \({what}.* --skip-machine-check"
    assert re.search(told, done.stdout), done.stderr
    assert not list(state.glob("runs/*"))


def test_option_starts_whatever_the_machine_has() -> None:
    for skips in (False, True):
        start = _start(NodeOptions(skip_machine_check=skips), TellingOptions())
        assert (start.look_at is None) == skips
        assert "skip_machine_check" not in start.options


def test_init_writes_the_size_that_is_named(tmp_path: Path) -> None:
    init(tmp_path / "run.toml", model_size="350m", skip_machine_check=True, json=True)
    text = (tmp_path / "run.toml").read_text()
    assert text == run_file_text("run.toml", TITLE_DEFAULT, GPT_SIZES["350m"])
    with pytest.raises(ConfigError, match="none of 120k"):
        init(tmp_path / "other.toml", model_size="350")
    assert not (tmp_path / "other.toml").exists()


def test_hole_in_a_file_takes_no_room(tmp_path: Path) -> None:
    with (tmp_path / "mapped").open("wb") as mapped:
        mapped.truncate(1 << 30)
    write(tmp_path / "a" / "full", "x" * 100_000)
    assert 100_000 <= held_bytes(tmp_path) < 1_000_000
    assert held_bytes(tmp_path / "nothing") == 0


def test_size_is_refused_before_the_file_is_written_and_passes_where_there_is_room(
    tmp_path: Path,
) -> None:
    small = Machine(memory_bytes=8 * GIB, disk_bytes=1 << 50)

    def check(name: str, machine: Machine) -> None:
        size = size_named(name)
        assert size is not None
        check_size_here(size, tmp_path / "run.toml", tmp_path, lambda folder: machine)

    check("10m", small)
    with pytest.raises(ConfigError, match="memory: "):
        check("1b", small)
    check("1b", AMPLE)
    with pytest.raises(ConfigError, match="--model-size '2b' is none of 120k, 10m, 50m"):
        size_named("2b")


@pytest.mark.parametrize("name", GPT_SIZES)
def test_file_of_a_size_has_a_model_of_that_size(tmp_path: Path, name: str) -> None:
    size, path = GPT_SIZES[name], tmp_path / "run.toml"
    path.write_text(run_file_text("run.toml", "t", size))
    manifest = check_run_file(path, 4).manifest
    number = float(name[:-1]) * {"k": 1e3, "m": 1e6, "b": 1e9}[name[-1]]
    assert manifest.layout(0).numel == pytest.approx(number, rel=0.09)
    assert manifest.inner.learning_rate == size.learning_rate
    assert manifest.outer.learning_rate == 0.7
    # The file of no size is that of the smallest.
    if name == "120k":
        assert path.read_text() == run_file_text("run.toml", "t")


def test_check_says_whether_this_machine_can(tmp_path: Path) -> None:
    path = file(tmp_path, "")
    assert "not looked at" in people(check_run_file(path, 8))
    assert "GiB of memory and" in people(check_run_file(path, 8, AMPLE))
    assert "TOO SMALL for a node: memory" in people(check_run_file(path, 8, LITTLE_MEMORY))
