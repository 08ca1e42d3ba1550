"""A trainer that is killed and starts anew ends where one ends that never was (R6)."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from protocol.errors import CheckpointError
from protocol.manifest import RunManifest
from tests.training.full_disk import files_of_at_most
from tests.training.replicas import INNER, OUTER, random_windows, small_manifest
from tests.training.solo import MOMENTS_TO_DIE, Killed, OneInFlight, Solo, Trained, bits_of
from training.channel.exchange import Contribution, RunStart, Ticket
from training.device.inner import (
    accumulate_gradient,
    load_optimizer_tensors,
    make_optimizer,
    optimizer_tensors,
)
from training.loop.diloco import DiLoCo
from training.loop.inner_state import InnerFolder, InnerState
from training.models.building import build_model, read_fragment
from training.models.genesis import shard_spec

ROUNDS, STEPS = 3, 2


def manifest_of(codec: str) -> RunManifest:
    inner = replace(INNER, inner_steps=STEPS, learning_rate=0.02)
    manifest = small_manifest(inner=inner, outer=replace(OUTER, codec=codec))
    return replace(manifest, rounds=ROUNDS)


def in_fragments(codec: str) -> RunManifest:
    manifest = manifest_of(codec)
    shards = (shard_spec(manifest.model, fragments=2),)
    return replace(manifest, shards=shards, rounds=2 * ROUNDS)


@pytest.mark.quick(2)
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
def test_a_restart_between_fragments_changes_no_bit(tmp_path, seed, moment) -> None:
    """What drifts against the anchors of other rounds is kept as well."""
    manifest, unlisted = in_fragments("fp16"), frozenset({1, 3 if moment == "forgotten" else 2})
    whole = Solo(manifest, tmp_path / "never", seed, unlisted)
    expected = whole.train()
    solo = Solo(manifest, tmp_path / "killed", seed, unlisted, deaths={3: moment})
    assert solo.train() == expected
    assert solo.starts == 2
    assert {index % 2 for index in solo.sent} == {0, 1}


def test_drift_of_other_fragments_ends_where_their_anchor_went_on(tmp_path, seed) -> None:
    manifest = in_fragments("fp16")
    solo = Solo(manifest, tmp_path, seed, deaths={3: "announced"})
    with pytest.raises(Killed):
        solo.live()
    kept_weights = kept(solo).drifting
    assert set(kept_weights) == {0}
    solo.seal(None)
    solo.seal(None)
    model, _, diloco = loop_of(solo)
    assert solo.clock.round == 5
    for fragment in range(2):
        found_N = read_fragment(model, manifest.shards[0], fragment)
        assert np.array_equal(found_N, solo.anchors[fragment]), "nothing drifted is left"
    assert not np.array_equal(kept_weights[0][1], solo.anchors[0])
    assert diloco.resume() is None


def never_killed(codec: str, folder, seed: int, unlisted=frozenset()) -> tuple[Solo, Trained]:
    solo = Solo(manifest_of(codec), folder / "never", seed, unlisted)
    trained = solo.train()
    assert (solo.starts, solo.steps) == (1, ROUNDS * STEPS)
    return solo, trained


@pytest.mark.quick(5)
@pytest.mark.parametrize("codec", ["none", "fp16"])
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("moment", MOMENTS_TO_DIE)
def test_a_restart_at_any_moment_changes_no_bit(tmp_path, seed, codec, listed, moment) -> None:
    unlisted = frozenset() if listed and moment != "forgotten" else frozenset({1})
    whole, expected = never_killed(codec, tmp_path, seed, unlisted)
    solo = Solo(manifest_of(codec), tmp_path / "killed", seed, unlisted, deaths={1: moment})
    trained = solo.train()

    assert trained == expected
    assert solo.starts == 2
    # What a process before has contributed is not trained for again.
    assert solo.steps == ROUNDS * STEPS + (STEPS // 2 if moment == "training" else 0)
    for index in range(ROUNDS):
        ours, theirs = solo.sent.get(index, []), whole.sent[index]
        assert ours == theirs * len(ours)
        assert len(ours) == {"announced": 2, "forgotten": 0}.get(moment, 1) or index != 1


@pytest.mark.parametrize("codec", ["none", "fp16"])
def test_restarts_in_every_round_change_no_bit(tmp_path, seed, codec) -> None:
    generator = random.Random(seed)
    for number in range(3):
        deaths = {index: generator.choice(MOMENTS_TO_DIE) for index in range(ROUNDS)}
        without = {index for index, moment in deaths.items() if moment == "forgotten"}
        unlisted = frozenset(without | {generator.randrange(ROUNDS)})
        folder = tmp_path / str(number)
        _, expected = never_killed(codec, folder, seed, unlisted)
        solo = Solo(manifest_of(codec), folder / "killed", seed, unlisted, deaths)

        assert solo.train() == expected, deaths
        assert solo.starts == 1 + ROUNDS


def test_without_what_was_kept_a_restart_does_change_the_run(tmp_path, seed) -> None:
    """The tests above would notice."""
    _, expected = never_killed("fp16", tmp_path, seed)
    solo = killed("fp16", tmp_path / "killed", seed, {1: "training"})
    for path in solo.folder.iterdir():
        path.unlink()
    trained = solo.live()

    assert trained.moments != expected.moments
    assert trained.residuals != expected.residuals
    assert trained.anchor != expected.anchor


def killed(codec: str, folder, seed: int, deaths: dict[int, str]) -> Solo:
    solo = Solo(manifest_of(codec), folder, seed, deaths=deaths)
    with pytest.raises(Killed):
        solo.live()
    return solo


def kept(solo: Solo) -> InnerState:
    state = InnerFolder(solo.folder, solo.manifest).newest(ROUNDS)
    assert state is not None
    return state


def loop_of(solo: Solo) -> tuple[nn.Module, torch.optim.Optimizer, DiLoCo]:
    model = build_model(solo.manifest)
    optimizer = make_optimizer(model, solo.manifest.inner)
    store = InnerFolder(solo.folder, solo.manifest)
    return model, optimizer, DiLoCo(model, optimizer, exchange=solo, inner_store=store)


def test_after_a_gap_of_rounds_only_the_moments_are_taken_up(tmp_path, seed) -> None:
    solo = killed("fp16", tmp_path, seed, {1: "training"})
    solo.seal(None)
    solo.was_listed = True
    model, optimizer, diloco = loop_of(solo)

    assert (kept(solo).round, solo.clock.round) == (0, 2)
    assert diloco.residuals() == (None,)
    assert diloco.resume() is None
    moments = optimizer_tensors(model, optimizer)
    assert {name: bits_of(tensor) for name, tensor in moments.items()} == {
        name: bits_of(tensor) for name, tensor in kept(solo).moments.items()
    }


def test_on_another_branch_of_the_round_nothing_is_sent_again(tmp_path, seed) -> None:
    solo = killed("fp16", tmp_path, seed, {1: "announced"})
    solo.anchors[0] = solo.anchors[0] + np.float32(0.5)
    model, optimizer, diloco = loop_of(solo)

    assert kept(solo).round == solo.clock.round == 1
    assert diloco.resume() is None
    assert diloco.residuals() == (None,)
    assert optimizer_tensors(model, optimizer) != {}
    assert len(solo.sent[1]) == 1


def test_when_the_run_is_over_nothing_is_sent_again(tmp_path, seed) -> None:
    solo = killed("fp16", tmp_path, seed, {1: "announced"})
    start = replace(solo.start, lease=())
    model = build_model(solo.manifest)
    optimizer = make_optimizer(model, solo.manifest.inner)
    store = InnerFolder(solo.folder, solo.manifest)
    diloco = DiLoCo(model, optimizer, exchange=Ended(solo, start), inner_store=store)

    assert diloco.finished
    assert diloco.resume() is None


class Ended(OneInFlight):
    """A Session of a run that has ended."""

    def __init__(self, solo: Solo, start: RunStart) -> None:
        self.manifest, self.start = solo.manifest, start

    def begin(self, fragment: int, contribution: Contribution) -> Ticket:
        raise AssertionError("nobody takes contributions any more")


def test_a_loop_that_never_asks_to_resume_is_resumed_by_its_first_step(tmp_path, seed) -> None:
    """A plain loop of a user: the batch at hand is left out, the contribution is what it was."""
    _, expected = never_killed("fp16", tmp_path, seed)
    solo = killed("fp16", tmp_path / "killed", seed, {1: "announced"})
    model, optimizer, diloco = loop_of(solo)
    windows = random_windows(seed, ROUNDS * STEPS)
    outcome = diloco.step(accumulate_gradient(model, optimizer, windows[0]))

    assert outcome is not None
    assert (diloco.clock.round, diloco.local_step) == (2, 0)
    assert solo.sent[1] == [solo.sent[1][0]] * 2
    for batch_BW in windows[2 * STEPS :]:
        diloco.step(accumulate_gradient(model, optimizer, batch_BW))
    assert diloco.finished
    assert read_fragment(model, solo.manifest.shards[0], 0).tobytes() == expected.weights


def test_moments_of_another_optimizer_start_afresh_and_the_rest_is_kept(
    tmp_path, seed, caplog
) -> None:
    solo = killed("fp16", tmp_path, seed, {1: "training"})
    model = build_model(solo.manifest)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    store = InnerFolder(solo.folder, solo.manifest)
    diloco = DiLoCo(model, optimizer, exchange=solo, inner_store=store)

    assert optimizer_tensors(model, optimizer) == {}
    assert "moments start afresh reason=they are of AdamW" in caplog.text
    (residual_N,), after_N = diloco.residuals(), kept(solo).residual_after_N
    assert residual_N is not None
    assert after_N is not None
    assert residual_N.tobytes() == after_N.tobytes()


def test_a_state_that_cannot_be_kept_keeps_its_contribution_from_leaving(tmp_path, seed) -> None:
    solo = Solo(manifest_of("fp16"), tmp_path / "inner", seed)
    with files_of_at_most(4096), pytest.raises(OSError, match="free space there"):
        solo.live()
    assert solo.sent == {}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"amsgrad": True}),
        ("NAdam", {}),
        ("RMSprop", {"momentum": 0.9}),
        ("Adafactor", {}),
    ],
)
def test_moments_of_torchs_optimizers_go_on_to_the_bit(kind, options) -> None:
    make = partial(getattr(torch.optim, kind), lr=0.1, **options)

    def weights(resumed: bool) -> bytes:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.fill_(0.1 + number)
        optimizer = make(model.parameters())
        for step in range(4):
            if resumed and step == 2:
                moments = {n: t.clone() for n, t in optimizer_tensors(model, optimizer).items()}
                optimizer = make(model.parameters())
                load_optimizer_tensors(model, optimizer, moments)
            optimizer.zero_grad()
            model(torch.full((2, 3), 0.5 + step)).square().sum().backward()
            optimizer.step()
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters())

    assert weights(resumed=True) == weights(resumed=False)


def test_moments_that_lack_a_parameter_s_part_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    moments = optimizer_tensors(model, optimizer)
    lacking = {name: tensor for name, tensor in moments.items() if name != "step/1.bias"}
    with pytest.raises(CheckpointError, match="lacks moments"):
        load_optimizer_tensors(model, optimizer, lacking)
    with pytest.raises(CheckpointError, match="another model"):
        load_optimizer_tensors(model, optimizer, {"step/other": torch.tensor(1.0)})
