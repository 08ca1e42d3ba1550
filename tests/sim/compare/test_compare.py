"""`barnraise compare`: the runs it makes, the process that trains them, and what it draws."""

import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from node.holdings.shard_store import ShardStore
from node.processes.children import child_environment
from node.settings.check import costs_of
from protocol.errors import ConfigError
from protocol.events import ListEntry
from protocol.identity import PeerId
from protocol.manifest import OuterSpec
from sim.compare.main import (
    LINE,
    PRESETS_DEFAULT,
    Compared,
    CompareOptions,
    Point,
    compare_json,
    runs_of,
    step_s_of,
    table_of,
)
from sim.compare.plot import draw_plot, scale_bytes
from tests.training.disk_run import MANIFEST_FILE, write_run
from tests.training.replicas import OUTER, small_manifest
from training.aggregation import AGGREGATORS
from training.channel.exchange import Contribution
from training.compression import ErrorFeedback, make_codec
from training.loop.replicas import Swarm
from training.methods.presets import PRESETS


def options(folder: Path, *presets: str, **changes: object) -> CompareOptions:
    given = CompareOptions(
        presets=presets,
        steps=100,
        peers=4,
        inner_steps=5,
        seed=3,
        file=None,
        folder=folder,
    )
    return replace(given, **changes)  # type: ignore[arg-type]


@pytest.mark.extended
def test_runs_differ_in_nothing_but_the_method(tmp_path: Path) -> None:
    runs = runs_of(options(tmp_path, *PRESETS))
    assert {run.preset: run.manifest.outer.preset for run in runs} == {p: p for p in PRESETS}
    first = runs[0].manifest
    same = {
        replace(
            run.manifest,
            outer=first.outer,
            inner=replace(run.manifest.inner, optimizer="adamw", sam_radius=0.0),
            shards=first.shards,
            cell_elements=first.cell_elements,
        )
        for run in runs
    }
    assert len(same) == 1
    assert {run.preset for run in runs if run.manifest.inner.optimizer != "adamw"} == {"demo"}
    uphill = {run.preset for run in runs if run.manifest.inner.sam_radius}
    assert uphill == {"fedsam", "dfedsam"}
    (manifest,) = same
    assert (manifest.rounds, manifest.inner.inner_steps, manifest.model.seed) == (20, 5, 3)
    assert set(PRESETS_DEFAULT) <= set(PRESETS)


def test_each_preset_has_its_own_h_unless_one_is_given(tmp_path: Path) -> None:
    presets = ("local_sgd", "fedavg")
    shape = [
        (run.manifest.inner.inner_steps, run.manifest.rounds)
        for run in runs_of(options(tmp_path, *presets, inner_steps=None))
    ]
    assert shape == [(10, 10), (50, 2)]


def test_file_gives_all_but_the_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        "[run]\ntitle = 'x'\n[model.settings]\nwidth = 32\n"
        "[outer]\npreset = 'fedavg'\ncodec = 'none'\nlearning_rate = 0.3\n"
    )
    (run,) = runs_of(options(tmp_path, "diloco", file=path))
    assert run.manifest.model.setting("width") == 32
    assert (run.manifest.outer.codec, run.manifest.outer.learning_rate) == ("fp16", 0.7)


@pytest.mark.parametrize(
    ("preset", "changes", "words"),
    [
        ("dilco", {}, "preset 'dilco' is unknown; did you mean diloco"),
        ("dadao", {}, "is not there yet"),
        ("streaming_diloco", {"inner_steps": 2}, "set it to 3 or more"),
        ("dilco", {"inner_steps": None}, "did you mean diloco"),
        ("fedavg", {"inner_steps": None, "steps": 49}, "fedavg has rounds of 50 steps"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, preset: str, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        runs_of(options(tmp_path, preset, **changes))


CODECS_OF_ROUNDS = (
    replace(OUTER, codec="fp16"),
    replace(OUTER, codec="int4"),
    replace(OUTER, codec="sparse2bit_gaps", optimizer="sgd", momentum=0.0, learning_rate=2.0),
    replace(OUTER, codec="ternary", aggregator="median", optimizer="heavy_ball"),
    replace(OUTER, codec="int8", aggregator="default"),
)


@pytest.mark.parametrize("outer", CODECS_OF_ROUNDS, ids=lambda outer: outer.codec)
def test_rounds_in_memory_end_with_the_bits_of_a_node_s_store(outer: OuterSpec, seed: int) -> None:
    """What is compared is what a swarm would have computed."""
    manifest = small_manifest(outer=outer)
    swarm = Swarm(manifest, replicas=3)
    store = ShardStore(manifest, 0, swarm.anchor.copy())
    generator = np.random.default_rng(seed)
    feedback = [
        ErrorFeedback(make_codec(outer), outer.feedback, cell_elements=manifest.cell_elements)
        for _ in range(3)
    ]
    for index in range(2):
        entries = []
        for replica, one in enumerate(feedback):
            drift_N = generator.normal(size=len(swarm.anchor)).astype(np.float32)
            payloads = one.encode(drift_N).payloads
            one.commit()
            tokens = 320 * (1 + replica)
            swarm.contributions[index, replica] = Contribution(
                fragment=0,
                payloads=payloads,
                tokens=tokens,
                samples=tokens // 8,
                steps=10,
                residual_before=b"",
                residual_after=b"",
                loss=0.0,
            )
            root, _ = store.contribute(payloads)
            entries.append((ListEntry(PeerId(bytes([replica]) * 32), b"", tokens), root))
        swarm._seal()
        digest = bytes([index]) * 32
        whole = {"first": 0, "stop": store.layout.num_cells(0)}
        judges = AGGREGATORS[outer.aggregator]().uses_stats
        grams = [store.measure(entries, **whole)] if judges else []
        store.reduce(digest, entries, **whole, grams=grams)
        store.apply(digest, is_empty=False, round_index=index + 1)
        store.adopt(digest)
        assert store.state.anchor_N.tobytes() == swarm.anchor.tobytes()
        for name, slot_N in store.state.slots.items():
            assert slot_N.tobytes() == swarm.slots[0][name].tobytes()
    assert swarm.payload_bytes == 6 * costs_of(manifest, 3).payload_bytes
    assert swarm.result_bytes == 2 * costs_of(manifest, 3).result_bytes


@pytest.mark.extended
def test_process_trains_and_counts_what_the_formula_says(tmp_path: Path) -> None:
    manifest = write_run(tmp_path)
    words = ["--manifest", str(tmp_path / MANIFEST_FILE), "--run", manifest.digest.hex()]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "sim.methods.compare_main", *words, "--peers", "2"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    *points, result = [json.loads(line) for line in done.stdout.splitlines()]
    assert [point["step"] for point in points] == [0, 10, 20, 30, 40, 50]
    assert points[-1]["loss"] < points[0]["loss"] - 1
    assert points[-1]["payload_bytes"] == result["payload_bytes"]
    assert result["payload_bytes"] == 5 * costs_of(manifest, 2).payload_bytes
    assert (result["rounds"], result["steps"]) == (5, 50)
    assert result["loss"] == pytest.approx(points[-1]["loss"], abs=0.2)


def made_up(folder: Path) -> list[Compared]:
    runs = runs_of(options(folder, "diloco_fp32", "sparseloco"))
    for number, run in enumerate(runs):
        run.points = [Point(step, 5.0 - step / 50 - number / 9) for step in range(0, 101, 5)]
        run.loss, run.wall_s = run.points[-1].loss, 10.0 + number
        run.payload_bytes = run.manifest.rounds * run.costs.payload_bytes
    return runs


def test_bytes_and_seconds_of_a_curve_follow_from_rounds(tmp_path: Path) -> None:
    dense, sparse = runs = made_up(tmp_path)
    assert step_s_of(runs) == 0.1
    assert dense.wire_bytes_at(4) == 0
    assert dense.wire_bytes_at(100) == dense.wire_bytes > 4 * sparse.wire_bytes
    assert dense.line_s_at(5, 0.1) == 0.5 + dense.costs.exchange_s(LINE)
    told = compare_json(runs, options(tmp_path))
    assert told["parameters"] == 119_104
    assert [one["preset"] for one in told["presets"]] == ["diloco_fp32", "sparseloco"]  # type: ignore[attr-defined]


def test_picture_is_drawn_of_what_was_measured(tmp_path: Path) -> None:
    runs = made_up(tmp_path)
    draw_plot(runs, tmp_path / "one.png")
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    for run in runs:
        run.points = []
    draw_plot(runs, tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


@pytest.mark.quick(8)
@pytest.mark.parametrize("span", [1.05, 1.3, 2, 6, 9, 40, 900, 1e5, 1e9])
@pytest.mark.parametrize("low", [0.3, 1, 7])
def test_labels_of_bytes_are_some_and_never_overlap_however_long_the_axis(low, span) -> None:
    figure = Figure(figsize=(4.8, 5.0), dpi=130)
    axes = figure.subplots()
    axes.plot([low, low * span], [0, 1])
    scale_bytes(axes)
    figure.draw_without_rendering()
    first, last = axes.get_xlim()
    ticks = [*axes.xaxis.get_major_ticks(), *axes.xaxis.get_minor_ticks()]
    labels = [t.label1 for t in ticks if first <= t.get_loc() <= last and t.label1.get_text()]
    spans = sorted((box.x0, box.x1) for box in (one.get_window_extent() for one in labels))
    assert len(spans) >= 2, "one label is no scale"
    assert all(one[1] + 4 < other[0] for one, other in pairwise(spans)), labels


@pytest.mark.filterwarnings("error")
def test_of_one_peer_alone_nothing_leaves(tmp_path: Path) -> None:
    (run,) = runs_of(options(tmp_path, "local_sgd", peers=1))
    run.points = [Point(step, 5.0 - step / 100) for step in range(0, 101, 4)]
    run.loss, run.wall_s = 4.0, 1.0
    assert run.wire_bytes == 0
    Console(file=(told := io.StringIO()), width=200).print(table_of([run]))
    assert "4.0000" in told.getvalue()
    draw_plot([run], tmp_path / "one.png")
    assert (tmp_path / "one.png").exists()


SMALL = """[run]
title = 'x'
[inner]
batch = 2
[model.settings]
width = 16
heads = 2
layers = 1
context = 16
"""


def compare_words(folder: Path, steps: int) -> list[str]:
    path = folder / "run.toml"
    path.write_text(SMALL)
    words = ["diloco", "sparseloco", "--steps", str(steps), "--inner-steps", "5", "--peers", "2"]
    words += ["--file", str(path), "--out", str(folder / "out"), "--json"]
    return [sys.executable, "-P", "-m", "node.cli", "compare", *words]


OWN_MODEL = """
from torch import nn

def build(*, width, context):
    return nn.Sequential(nn.Embedding(256, width), nn.Linear(width, 256))
"""


@pytest.mark.slow
def test_command_compares_with_a_model_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN_MODEL)
    own = ["[run]", 'title = "t"', "[model]", 'file = "model.py"']
    own += ["[model.settings]", "width = 8", "context = 16"]
    (tmp_path / "run.toml").write_text("\n".join(own))
    words = ["diloco", "sparta", "fedbuff", "--file", str(tmp_path / "run.toml")]
    words += ["--steps", "10", "--inner-steps", "5", "--peers", "2", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "node.cli", "compare", *words, "--json"],
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(0 < one["loss"] < 6 for one in json.loads(done.stdout.splitlines()[-1])["presets"])


@pytest.mark.slow
def test_command_compares_two_presets(tmp_path: Path) -> None:
    done = subprocess.run(
        compare_words(tmp_path, 20),
        env=child_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    dense, sparse = told["presets"]
    assert dense["payload_bytes"] > 20 * sparse["payload_bytes"]
    assert 0 < dense["loss"] < 6
    assert len(dense["curve"]) == 5
    assert (tmp_path / "out" / "compare.png").exists()
    assert "2 of 2  sparseloco: loss " in done.stderr
    assert json.loads((tmp_path / "out" / "compare.json").read_text()) == told


@pytest.mark.slow
def test_interrupted_command_keeps_the_presets_that_are_done(tmp_path: Path) -> None:
    process = subprocess.Popen(
        compare_words(tmp_path, 500),
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    while "1 of 2  diloco: loss " not in (line := process.stderr.readline()):
        assert line, "it ended before a preset was done"
    process.send_signal(signal.SIGINT)
    told, said = process.communicate(timeout=60.0)
    assert process.returncode == 130, said
    assert "interrupted: these were done" in said
    assert [one["preset"] for one in json.loads(told)["presets"]] == ["diloco"]
    assert (tmp_path / "out" / "compare.png").exists()
