"""Models that activate unlike known good ones: real exports, and whom trust reaches."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from protocol.manifest import TimingSpec, sign_manifest
from protocol.wire import encode
from sim.attacks import ATTACKS
from sim.robustness import activation_score
from sim.robustness.activation_score import trusted
from sim.robustness.game import Draw
from sim.robustness.gpt_learner import GptLearner, gpt_manifest
from sim.world.toy_run import toy_run
from sim.world.trainer import Vector
from tests.node.state_run import FOUNDER
from training.channel.exchange import RunClock
from training.files.exported import Provenance, tensors_digest, write_export
from training.files.state import named_tensors

TIMING = TimingSpec(deadline_floor_s=1.0, deadline_cap_s=10.0, heartbeat_s=0.5, suspect_s=2.0)
MANIFEST = gpt_manifest(toy_run(FOUNDER.peer_id, rounds=1, cells=4, timing=TIMING))
TEXT = Path(random.__file__)
"""What no model here was trained on."""


def draws(name: str, count: int) -> list[Draw]:
    return [Draw(random.Random(f"{name}/{number}")) for number in range(count)]


def trained(seed: int) -> tuple[GptLearner, Vector]:
    model = GptLearner(MANIFEST)
    anchor_N = model.first_N
    for index in range(8):
        anchor_N = anchor_N - 0.7 * model.learn(anchor_N, draws(f"{seed}/{index}", 4)).mean(axis=0)
    return model, anchor_N


def exported(folder: Path, name: str, rows_PN: Iterable[Vector]) -> list[str]:
    found = []
    for number, weights_N in enumerate(rows_PN):
        tensors = named_tensors(MANIFEST.shards[0], (weights_N,))
        provenance = Provenance(
            manifest=MANIFEST,
            signed=encode(sign_manifest(MANIFEST, FOUNDER)),
            clock=RunClock(round=9, step=96, tokens=9000),
            seal=bytes(32),
            tensors=tensors_digest(tensors),
            about={},
        )
        path = folder / f"{name}-{number}.safetensors"
        write_export(path, provenance, tensors)
        found.append(str(path))
    return found


@pytest.mark.slow
def test_peer_who_learned_poisoned_text_stands_out_and_no_honest_one_does(tmp_path, capfd, seed):
    model, anchor_N = trained(seed)
    known = exported(tmp_path, "known", anchor_N - model.learn(anchor_N, draws("known", 8)))
    honest = exported(tmp_path, "honest", anchor_N - model.learn(anchor_N, draws("honest", 6)))
    words = ["--known", *known, "--text", str(TEXT), "--judged"]
    assert activation_score.main([*words, *honest]) == 0
    assert "FLAGGED" not in capfd.readouterr().out
    bent = GptLearner(MANIFEST, ATTACKS["label_flip"]().poison)
    poisoned = exported(tmp_path, "poisoned", anchor_N - bent.learn(anchor_N, draws("honest", 1)))
    assert activation_score.main([*words, *honest, *poisoned]) == 1
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [name for _, verdict, name in lines if verdict == "FLAGGED"] == poisoned
    scores = [float(score) for score, _, _ in lines]
    assert scores[-1] > 2.0 * max(scores[:-1])


@pytest.mark.slow
def test_files_that_do_not_do_are_told_of(tmp_path, capfd):
    known = exported(tmp_path, "known", [GptLearner(MANIFEST).first_N] * 3)
    words = ["--text", str(TEXT), "--judged", known[0], "--known"]
    assert activation_score.main([*words, *known]) == 2
    assert "it takes 4" in capfd.readouterr().err
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(Path(known[0]).read_bytes()[:-4] + bytes(4))
    assert activation_score.main([*words, *known, str(damaged)]) == 2
    assert "damaged" in capfd.readouterr().err


def test_trust_goes_from_score_to_score_and_not_over_a_gap():
    assert trusted([1.0], [0.2, 1.1, 1.3, 1.5, 2.0, 2.1]) == [True, True, True, True, False, False]
    assert trusted([0.9, 1.0], [1.21, float("inf")]) == [False, False]
    assert not any(trusted([1.0], [float("nan")]))
