"""A trainer of a large model that is killed: little was written, and none of it is wrong (R6).

What its contributions were encoded from stands for payload and residual; moments are as old as the
last time that they were written.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.grid import EMPTY_ROOT
from protocol.manifest import RunManifest
from tests.training.full_disk import files_of_at_most
from tests.training.replicas import INNER, OUTER, small_manifest
from tests.training.solo import MOMENTS_TO_DIE, Killed, Solo, Trained
from training.compression import residual_root
from training.device.inner import make_optimizer, optimizer_tensors
from training.files.tensor_file import read_metadata, read_tensors
from training.loop.diloco import DiLoCo
from training.loop.inner_state import InnerFolder
from training.loop.moments import MomentsFile
from training.loop.sums import INNER_STATES_KEPT, MOMENTS_FILE
from training.methods.method import Method, Vector
from training.models.building import build_model

ROUNDS, STEPS = 6, 2
CODECS = ["fp16", "int8", "sparse2bit_gaps", "none"]


def manifest_of(codec: str, *, rounds: int = ROUNDS) -> RunManifest:
    inner = replace(INNER, inner_steps=STEPS, learning_rate=0.02)
    manifest = small_manifest(inner=inner, outer=replace(OUTER, codec=codec))
    return replace(manifest, rounds=rounds)


@dataclass
class LargeSolo(Solo):
    """Its model is small, and taken for a large one."""

    apart_s: float = 0.0

    def open_store(self) -> InnerFolder:
        return InnerFolder(self.folder, self.manifest, large=True, apart_s=self.apart_s)


def check_chain(solo: Solo) -> None:
    """Each contribution was encoded with what the last one that a seal lists had left over: what
    was applied is what was sealed, nothing of it twice and nothing never."""
    root, chained = EMPTY_ROOT, 0
    for index in range(solo.manifest.rounds):
        for sent in solo.sent.get(index, []):
            assert sent.residual_before == root, index
            assert sent == solo.sent[index][0], "the same bytes again"
        if index in solo.listed_rounds:
            root = solo.sent[index][0].residual_after
            chained += 1
    assert chained


@pytest.fixture
def drifts(monkeypatch: pytest.MonkeyPatch) -> list[Vector]:
    """What every round drifted that was trained to its end, in order."""
    found: list[Vector] = []
    monkeypatch.setattr(Method, "record_drift", lambda _, drift_N: found.append(drift_N.copy()))
    return found


def check_sums(solo: Solo, drifts: Sequence[Vector], trained: Trained) -> None:
    """What listed rounds drifted is what their contributions stand for, and what is left over."""
    assert len(drifts) == solo.manifest.rounds
    (residual,) = trained.residuals
    left_N = np.zeros(len(drifts[0])) if residual is None else np.frombuffer(residual, np.float32)
    total_N = -left_N.astype(np.float64)
    for index in solo.listed_rounds:
        total_N += drifts[index]
        total_N -= solo.decoded(solo.sent[index][0])
    assert np.abs(total_N).max() < 2e-7, "what float32 rounds off; what fp16 loses is more"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
def test_killed_at_any_moment_it_goes_on_from_the_residual_that_the_seals_say(
    tmp_path: Path, seed: int, codec: str, listed: bool, moment: str, drifts: list[Vector]
) -> None:
    unlisted = frozenset() if listed and moment != "forgotten" else frozenset({2})
    solo = LargeSolo(manifest_of(codec), tmp_path, seed, unlisted, deaths={2: moment})
    trained = solo.train()

    check_chain(solo)
    check_sums(solo, drifts, trained)
    assert solo.starts == 2
    assert len(solo.sent.get(2, [])) == {"announced": 2, "forgotten": 0}.get(moment, 1)
    assert solo.steps == ROUNDS * STEPS + (STEPS // 2 if moment == "training" else 0)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_residual_that_many_rounds_leave_alone_stays_on_the_disk(
    tmp_path: Path, seed: int, codec: str
) -> None:
    """Rounds that do not list it name the file of the last one that did, however old."""
    rounds = 3 + 2 * INNER_STATES_KEPT
    unlisted = frozenset(range(2, rounds - 1))
    deaths = {rounds - 2: "training", rounds - 1: "announced"}
    solo = LargeSolo(manifest_of(codec, rounds=rounds), tmp_path, seed, unlisted, deaths)
    solo.train()

    check_chain(solo)
    assert solo.starts == 3
    kept = sorted(int(path.stem[6:]) for path in tmp_path.glob("round-*.safetensors"))
    assert kept == [1, *range(rounds - INNER_STATES_KEPT, rounds)]
    assert {path.stem for path in tmp_path.glob("*.sums")} == {f"round-{n:06d}" for n in kept}


def test_moments_are_written_beside_the_rounds_and_taken_up_however_old(
    tmp_path: Path, seed: int
) -> None:
    """The crash is between a contribution that left and the moments behind it."""
    solo = LargeSolo(manifest_of("fp16"), tmp_path, seed, deaths={4: "announced"}, apart_s=1e9)
    with pytest.raises(Killed):
        solo.live()
    solo.store.moments.wait()
    written = read_tensors(tmp_path / MOMENTS_FILE, tensors_max=999)
    steps = {int(t) for name, t in written.tensors.items() if name.endswith("/step")}
    # Begun behind the first round, as there were none; a thread that gets no time is behind.
    assert STEPS <= min(steps) <= max(steps) < 4 * STEPS, "older than the round of the crash"
    model = build_model(solo.manifest)
    optimizer = make_optimizer(model, solo.manifest.inner)
    store = solo.open_store()
    diloco = DiLoCo(model, optimizer, exchange=solo, inner_store=store)
    taken = optimizer_tensors(model, optimizer)
    assert taken.keys() == {
        f"{name.rpartition('/')[2]}/{name.rpartition('/')[0]}" for name in written.tensors
    }
    for name, tensor in taken.items():
        moment, _, parameter = name.partition("/")
        assert torch.equal(tensor, written.tensors[f"{parameter}/{moment}"])
    # The contribution that left is as new as its COMMIT.
    assert diloco.resume() is not None
    assert solo.sent[4] == [solo.sent[4][0]] * 2


def test_nothing_but_the_sums_is_written_for_each_round(tmp_path: Path, seed: int) -> None:
    solo = LargeSolo(manifest_of("fp16"), tmp_path, seed, apart_s=1e9)
    solo.train()

    (numel,) = solo.manifest.layout(0).fragment_numels
    for index in range(ROUNDS - INNER_STATES_KEPT, ROUNDS):
        path = tmp_path / f"round-{index:06d}.safetensors"
        content = read_tensors(path, tensors_max=99)
        assert set(content.tensors) == {"lengths"}
        assert path.with_suffix(".sums").stat().st_size == 4 * numel


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "of another round"])
def test_sums_that_are_not_what_was_written_are_not_gone_on_from(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    solo = LargeSolo(manifest_of("fp16"), tmp_path, seed, deaths={4: "training"})
    with pytest.raises(Killed):
        solo.live()
    path = tmp_path / "round-000003.sums"
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-4])
    elif damage == "flipped":
        path.write_bytes(data[:8] + bytes([data[8] ^ 1]) + data[9:])
    elif damage == "of another round":
        path.write_bytes(path.with_name("round-000002.sums").read_bytes())
    found = solo.open_store().newest(3)

    assert found is not None
    assert found.round == 2, "an older one, of which the start knows that it is too old"
    assert "inner state skipped" in caplog.text
    solo.train()
    assert solo.sent[4][0].residual_before == EMPTY_ROOT


def test_file_that_names_a_residual_of_another_fragment_is_not_taken(
    tmp_path: Path, seed: int
) -> None:
    solo = LargeSolo(manifest_of("fp16"), tmp_path, seed, deaths={3: "training"})
    with pytest.raises(Killed):
        solo.live()
    assert read_metadata(tmp_path / "round-000002.safetensors")["before"] == "1"
    (tmp_path / "round-000001.safetensors").write_bytes(
        (tmp_path / "round-000000.safetensors").read_bytes()
    )
    found = solo.open_store().newest(2)
    assert found is not None
    assert found.round == 0


def test_state_that_cannot_be_kept_keeps_its_contribution_from_leaving(
    tmp_path: Path, seed: int
) -> None:
    solo = LargeSolo(manifest_of("fp16"), tmp_path / "inner", seed)
    with files_of_at_most(4096), pytest.raises(OSError, match="free space there"):
        solo.live()
    assert solo.sent == {}
    assert list((tmp_path / "inner").iterdir()) == []
    solo.train()
    check_chain(solo)


def test_residuals_come_back_to_the_bit(tmp_path: Path, seed: int) -> None:
    solo = LargeSolo(manifest_of("fp16"), tmp_path, seed)
    trained = solo.train()
    (residual,) = trained.residuals
    found = solo.open_store().newest(ROUNDS)

    assert found is not None
    assert found.residual_after_N is not None
    assert found.residual_after_N.tobytes() == residual
    assert found.contribution == solo.sent[ROUNDS - 1][0]
    (before_N,) = found.residuals
    width = solo.manifest.cell_elements
    assert residual_root(before_N, width) == found.contribution.residual_before


class Slow:
    """A tensor's moments, changed by steps while they are written."""

    def __init__(self, folder: Path) -> None:
        self.moments = {
            f"{moment}/w{number}": torch.zeros(1000)
            for number in range(50)
            for moment in ("exp_avg", "exp_avg_sq", "step")
        }
        self.file = MomentsFile(folder, {"run": "r"}, apart_s=0.0)

    def step(self, number: int) -> None:
        with self.file.updating():
            for tensor in self.moments.values():
                tensor[:500] = number
                threading.Event().wait(0.0001)
                tensor[500:] = number


def test_step_never_changes_what_is_being_read_and_second_moments_are_never_older(
    tmp_path: Path,
) -> None:
    trial = Slow(tmp_path)
    for number in range(1, 40):
        trial.step(number)
        trial.file.round_ended(trial.moments, {"optimizer": "AdamW"})
    trial.file.wait()
    found = trial.file.read(tensors_max=999)

    assert found is not None
    assert found.tensors.keys() == trial.moments.keys()
    for number in range(50):
        values = []
        for moment in ("exp_avg", "exp_avg_sq"):
            (value,) = set(found.tensors[f"{moment}/w{number}"].tolist())
            values.append(value)
        assert values == sorted(values)


def test_moments_are_written_again_once_they_are_old(tmp_path: Path) -> None:
    now_s = 0.0
    file = MomentsFile(tmp_path, {"run": "r"}, apart_s=300.0, clock=lambda: now_s)
    moments = {"exp_avg/w": torch.zeros(3)}
    written = []
    for number in range(1, 30):
        moments["exp_avg/w"][:] = number
        file.round_ended(moments, {"optimizer": "AdamW"})
        with file.updating():
            pass
        file.wait()
        found = file.read(tensors_max=9)
        assert found is not None
        written.append(int(found.tensors["exp_avg/w"][0]))
        now_s += 110.0
    assert written[:9] == [1, 1, 1, 4, 4, 4, 7, 7, 7]


def test_moments_that_the_disk_does_not_take_cost_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = MomentsFile(tmp_path, {"run": "r"}, apart_s=1e9)
    moments = {"exp_avg/w": torch.from_numpy(np.zeros(5000, np.float32))}
    for limit, is_there in ((4096, False), (1 << 20, True)):
        with files_of_at_most(limit):
            file.round_ended(moments, {"optimizer": "AdamW"})
            with file.updating():
                pass
            file.wait()
        assert (file.read(tensors_max=9) is not None) == is_there
    assert "moments not written" in caplog.text
    assert MomentsFile(tmp_path, {"run": "other"}).read(tensors_max=9) is None
