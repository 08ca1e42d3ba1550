"""`barnraise check`: what it tells of a run.toml, and what it refuses."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from node.settings.check import (
    HOME_LINES,
    STEP_S_MAX,
    STEP_S_MIN,
    Checked,
    Line,
    check_json,
    check_run_file,
    check_step,
    costs_of,
    line_named,
    print_check,
)
from node.settings.footprint import (
    NETWORK_BASE_BYTES,
    TRAINER_BASE_BYTES,
    saved_bytes,
    trace_bytes,
)
from node.settings.sections import run_file_text
from node.trainers.choosing import COVER
from protocol.errors import ConfigError
from protocol.manifest import OuterSpec
from tests.training.in_flight_run import InFlightRun
from tests.training.replicas import OUTER, small_manifest
from tests.training.solo import Solo
from training.loop.sums import INNER_STATES_KEPT
from training.methods.presets import IN_PROCESS, NOT_YET, PRESETS
from training.models.genesis import GPT_SIZES, shard_spec

LEAST = '[run]\ntitle = "t"\nrounds = 200\n'


def file(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(LEAST + text, "utf-8")
    return path


@pytest.mark.quick(3)
@pytest.mark.parametrize("preset", sorted(set(PRESETS) - set(IN_PROCESS)))
def test_every_preset_is_told_with_its_costs(tmp_path: Path, preset: str) -> None:
    found = check_run_file(file(tmp_path, f"[outer]\npreset = '{preset}'"), 8)
    told = check_json(found, 0.25)
    assert told["preset"] == preset
    assert told["changed"] == []
    assert told["parameters"] == 119_104
    text = StringIO()
    print_check(Console(file=text, width=120), found, None)
    assert preset in text.getvalue()
    assert str(told["codec"]) in text.getvalue()


@pytest.mark.parametrize(
    ("preset", "topology"),
    [
        ("sparseloco", "gather"),
        ("sparseloco_64", "gather"),
        ("diloco", "butterfly"),
        ("diloco_int4", "butterfly"),
        ("diloco_ternary", "butterfly"),
    ],
)
def test_who_sums_follows_from_what_the_codec_sends(
    tmp_path: Path, preset: str, topology: str
) -> None:
    found = check_run_file(file(tmp_path, f"[outer]\npreset = '{preset}'"), 8)
    told = check_json(found, None)
    assert (told["topology"], told["changed"]) == (topology, [])
    assert found.costs.up_bytes < found.other.up_bytes == told["other_up_bytes"]
    text = StringIO()
    print_check(Console(file=text, width=200), found, None)
    assert f"{topology}: " in text.getvalue()
    assert "cheaper" not in text.getvalue()


def test_other_topology_is_told_where_it_is_cheaper_and_can_be_set(tmp_path: Path) -> None:
    sparse = "[outer]\npreset = 'sparseloco'\n"
    found = check_run_file(file(tmp_path, sparse), 32)
    text = StringIO()
    print_check(Console(file=text, width=200), found, None)
    assert "cheaper, set topology to 'butterfly'" in text.getvalue()
    other = check_run_file(file(tmp_path, sparse + "topology = 'butterfly'\n"), 32)
    assert other.changed == ("topology",)
    assert other.costs == found.other
    assert other.other == found.costs


def test_gather_costs_a_contribution_to_each_other_peer_and_no_result(tmp_path: Path) -> None:
    costs = check_run_file(file(tmp_path, "[outer]\npreset = 'sparseloco'"), 4).costs
    assert (costs.parts_bytes, costs.results_bytes) == (3 * costs.payload_bytes, 0)
    # Two delays less, for nobody waits for an AGG or a result.
    assert costs.exchange_s(Line("", 1e9, 1e9, 100.0)) == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize("codec", ["none", "fp16", "int8"])
def test_contribution_as_large_as_a_result_is_not_gathered(tmp_path: Path, codec: str) -> None:
    text = f"[outer]\npreset = 'diloco'\ncodec = '{codec}'\ntopology = 'gather'"
    with pytest.raises(ConfigError, match=r"topology is 'gather'.* set it to 'butterfly'"):
        check_run_file(file(tmp_path, text), 8)


def test_two_rounds_in_flight_are_not_gathered(tmp_path: Path) -> None:
    text = "[outer]\npreset = 'sparseloco'\noverlap = 2\n"
    assert check_run_file(file(tmp_path, text), 4).manifest.outer.topology == "butterfly"
    with pytest.raises(ConfigError, match="for one round in flight; set it to 'butterfly'"):
        check_run_file(file(tmp_path, text + "topology = 'gather'"), 4)


def test_seconds_follow_from_bytes_delays_and_steps(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, ""), 8)
    told = check_json(found, 0.25)
    exchange_s = found.costs.exchange_s(HOME_LINES[0])
    assert told["lines"][0]["exchange_s"] == round(exchange_s, 3)  # type: ignore[index]
    costs = found.costs
    beside_s = costs.encode_s + costs.save_s + costs.seal_s
    round_s = exchange_s + 50 * 0.25 + beside_s
    assert 0 < beside_s < 0.02
    assert told["lines"][0]["round_s"] == round(round_s, 3)  # type: ignore[index]
    slow, fast = (found.costs.exchange_s(Line("", 100.0, up, 0.0)) for up in (1.0, 10.0))
    assert slow == pytest.approx(10 * fast)
    assert found.costs.exchange_s(Line("", 1e9, 1e9, 100.0)) == pytest.approx(0.4, rel=1e-3)


def test_key_in_place_of_the_preset_s_is_named(tmp_path: Path) -> None:
    text = "[outer]\npreset = 'sparseloco'\nfeedback = 0.5\n[outer.codec_settings]\ndensity = 0.25"
    found = check_run_file(file(tmp_path, text), 4)
    assert found.changed == ("codec_settings", "feedback")
    assert check_json(found, None)["codec_settings"] == {"chunk": 4096, "density": 0.25}


@pytest.mark.parametrize("name", NOT_YET)
def test_preset_that_is_not_there_yet_says_what_it_needs(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_run_file(file(tmp_path, f"[outer]\npreset = '{name}'"), 8)
    assert f"preset '{name}' is not there yet: it needs {NOT_YET[name]}" in str(caught.value)


def test_fragments_cut_what_a_round_moves_and_not_what_is_kept(tmp_path: Path) -> None:
    whole = check_run_file(file(tmp_path, "[outer]\npreset = 'diloco_e3m0'"), 8)
    parts = check_run_file(file(tmp_path, "[outer]\npreset = 'streaming_sync'"), 8)
    shard = parts.manifest.shards[0]
    assert len(shard.fragments) == 4
    assert len(whole.manifest.shards[0].fragments) == 1
    assert parts.costs.parameters == whole.costs.parameters
    largest = max(parts.manifest.layout(0).fragment_numels) / parts.costs.parameters
    assert parts.costs.payload_bytes == pytest.approx(largest * whole.costs.payload_bytes, rel=0.02)
    assert largest < 0.5
    # Four rounds of them move what one of the whole does.
    assert parts.costs.parts_bytes == pytest.approx(whole.costs.parts_bytes / 4, rel=0.02)
    assert parts.costs.results_bytes == pytest.approx(whole.costs.results_bytes / 4, rel=0.02)
    assert check_json(parts, None)["fragments"] == 4
    with pytest.raises(ConfigError, match=r"fragments is 9, .* set it to 5 or less"):
        check_run_file(file(tmp_path, "[outer]\nfragments = 9"), 8)
    with pytest.raises(ConfigError, match="fragments is 0; it must be 1 to"):
        check_run_file(file(tmp_path, "[outer]\nfragments = 0"), 8)


def test_open_run_pays_a_second_reducer_and_a_residual_pays_memory() -> None:
    friends = small_manifest(outer=OUTER)
    costs = costs_of(friends, 4)
    assert (costs.payload_bytes, costs.result_bytes) == (4 * costs.parameters,) * 2
    assert costs.parts_bytes == costs.results_bytes == costs.payload_bytes * 3 // 4
    plain = costs_of(small_manifest(outer=replaced(feedback=0.0)), 4)
    saved = costs.trainer_memory_bytes - plain.trainer_memory_bytes
    assert saved == 4 * costs.parameters  # The drift becomes what is left of it.
    momentum = costs_of(small_manifest(outer=replaced(optimizer="sgd", momentum=0.0)), 4)
    assert momentum.network_memory_bytes < costs.network_memory_bytes
    assert momentum.disk_bytes < costs.disk_bytes


def replaced(**changes: object) -> OuterSpec:
    return replace(OUTER, **changes)  # type: ignore[arg-type]


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "node.cli", "check", *words],
        cwd=folder,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.extended
def test_command_prints_json_last_and_refuses_with_status_two(tmp_path: Path) -> None:
    path = file(tmp_path, "[outer]\npreset = 'diloco_int4'")
    done = command(tmp_path, str(path), "--peers", "4", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["codec"], told["peers"], len(told["lines"])) == ("int4", 4, 3)
    file(tmp_path, "[outer]\ncodec = 'ternary'\nfeedback = 0.0")
    done = command(tmp_path)
    assert done.returncode == 2
    assert "[outer] feedback is 0" in done.stderr
    assert "set it to 1.0" in done.stderr
    done = command(tmp_path, str(file(tmp_path, "")), "--device", "gpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert "device: 'gpu' is none of auto, cpu" in done.stderr


@pytest.mark.extended
@pytest.mark.parametrize("feedback", [0.0, 1.0])
@pytest.mark.parametrize("fragments", [1, 3])
def test_inner_state_told_is_what_a_trainer_writes(
    tmp_path: Path, fragments: int, feedback: float, seed: int
) -> None:
    manifest = small_manifest(outer=replaced(feedback=feedback))
    shards = (shard_spec(manifest.model, fragments=fragments),)
    manifest = replace(manifest, shards=shards, rounds=5)
    Solo(manifest, tmp_path, seed).train()
    written = max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    layout = manifest.layout(0)
    told = saved_bytes(manifest, 2)
    # Names, digests and a page of header come on top; of fragments the largest is told.
    spread = 4 * 4 * (max(layout.fragment_numels) - min(layout.fragment_numels))
    assert written - 16_384 <= told <= written + spread


def test_what_a_trainer_keeps_with_two_rounds_in_flight_is_told_as_it_is_written(
    tmp_path: Path, seed: int
) -> None:
    outer = replace(OUTER, preset="streaming_diloco", codec="fp16", overlap=2)
    manifest = small_manifest(outer=outer)
    shards = (shard_spec(manifest.model, fragments=2),)
    inner = replace(manifest.inner, inner_steps=3)
    manifest = replace(manifest, shards=shards, rounds=5, inner=inner)
    InFlightRun(manifest, tmp_path, seed).train()
    written = max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    layout = manifest.layout(0)
    told = saved_bytes(manifest, 2)
    spread = 4 * 4 * (max(layout.fragment_numels) - min(layout.fragment_numels))
    assert written - 16_384 <= told <= written + spread


@pytest.mark.parametrize(
    "step_s", [math.inf, math.nan, 0.0, -1.0, 1e308, 5e-324, STEP_S_MIN / 2, 2 * STEP_S_MAX]
)
def test_step_that_takes_no_time_or_for_ever_is_refused(step_s: float) -> None:
    with pytest.raises(ConfigError, match=r"--step-s .* is not within 1e-06\.\.86400"):
        check_step(step_s)


def test_shortest_step_leaves_the_most_steps(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, "[outer]\npreset = 'auto'"), 8)
    check_step(STEP_S_MIN)
    lines: Any = check_json(found, STEP_S_MIN)["lines"]
    assert {line["steps"] for line in lines} == {found.manifest.inner.inner_steps}


def test_exchange_beside_the_steps_takes_no_time_of_its_own(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, "[outer]\noverlap = 2"), 8)
    assert check_json(found, None)["fragments"] == 2
    exchange_s = found.costs.exchange_s(HOME_LINES[0])
    for step_s in (exchange_s / 10, exchange_s / 100):
        lines: Any = check_json(found, step_s)["lines"]
        own_s = 50 * step_s + found.costs.encode_s + found.costs.save_s
        assert lines[0]["round_s"] == round(max(exchange_s + found.costs.seal_s, own_s), 3)
    text = StringIO()
    print_check(Console(file=text, width=120), found, None)
    assert "2 rounds: training goes on" in text.getvalue()
    paced = check_run_file(file(tmp_path, "[outer]\npreset = 'auto'\noverlap = 2"), 8)
    steps: Any = check_json(paced, 0.01)["lines"]
    assert steps[0]["steps"] == math.ceil(COVER * paced.costs.exchange_s(HOME_LINES[0]) / 0.01)


def test_uplink_decides_on_auto_s_codec_and_belongs_to_no_other_preset(tmp_path: Path) -> None:
    payloads = []
    for uplink, codec in ((200.0, "graded"), (20.0, "graded"), (5.0, "sparse2bit_gaps")):
        text = f"[outer]\npreset = 'auto'\nuplink_mbit = {uplink}"
        found = check_run_file(file(tmp_path, text), 4)
        told = check_json(found, None)
        assert (told["preset"], told["codec"], told["changed"]) == ("auto", codec, [])
        payloads.append(found.costs.payload_bytes)
    # int8 as the founder's lines are fast, ternary as they are not; and that is no law.
    assert payloads[0] > 3.9 * payloads[1] > 10 * payloads[2]
    assert "bits per element, of each node what its line sends" in people(
        check_run_file(file(tmp_path, "[outer]\npreset = 'auto'"), 4)
    )
    with pytest.raises(ConfigError, match=r"uplink_mbit is for the preset 'auto' alone"):
        check_run_file(file(tmp_path, "[outer]\npreset = 'diloco'\nuplink_mbit = 5.0"), 4)
    with pytest.raises(ConfigError, match=r"uplink_mbit is 0.0; it must be 0.01 to"):
        check_run_file(file(tmp_path, "[outer]\npreset = 'auto'\nuplink_mbit = 0.0"), 4)


def test_rounds_that_peers_choose_are_told_by_line(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, "[outer]\npreset = 'auto'"), 8)
    lines: Any = check_json(found, 0.2)["lines"]
    steps = [line["steps"] for line in lines]
    assert 100 > steps[0] > steps[1] > steps[2] >= 1
    for line in lines:
        training_s = line["steps"] * 0.2
        assert 0.95 <= training_s / line["round_s"] <= 0.97
    assert {line["steps"] for line in check_json(found, 0.01)["lines"]} == {100}  # type: ignore[attr-defined]
    plain = check_run_file(file(tmp_path, "[outer]\npreset = 'diloco'"), 8)
    assert {line["steps"] for line in check_json(plain, 0.2)["lines"]} == {50}  # type: ignore[attr-defined]


def people(found: Checked) -> str:
    out = StringIO()
    print_check(Console(file=out, width=400), found, None)
    return out.getvalue()


def test_audits_cost_what_they_run_again_move_and_keep(tmp_path: Path) -> None:
    whole = "trust = 'open'\n[audits]\nrate = 0.2\nsegments = 4"
    found = check_run_file(file(tmp_path, whole), 8)
    said = check_json(found, None)
    parameters = found.costs.parameters
    assert said["audited_share"] == 0.05
    # A state of weights and two moments; the weights that were encoded, and a residual.
    assert said["audits_bytes"] == round(0.2 * 20 * parameters)
    # Eight anchors; of the two last rounds the last state and a residual, and the moments that the
    # first of them began with; of 1.18 of three before them moments, weights and a residual.
    vectors = 8 + 2 * (3 + 1) + 2 + 1.18 * (2 + 2)
    assert said["trace_bytes"] == pytest.approx(4 * vectors * parameters, rel=1e-3)
    assert "5.0% more training" in people(found)


def test_audits_of_several_fragments_take_less_of_the_disk_and_of_the_line(tmp_path: Path) -> None:
    text = "trust = 'open'\n[outer]\npreset = 'diloco'\nfragments = 4\n[audits]\nrate = 0.2"
    found = check_run_file(file(tmp_path, text), 8)
    said = check_json(found, None)
    parameters = found.costs.parameters
    assert said["audits_bytes"] == pytest.approx(0.2 * 14 * parameters, rel=1e-6)
    # Anchors of which each differs from the one before in a fourth, and so on.
    vectors = (1 + 7 / 4) + 2.75 + 2 * 3.25 + 1.18 * (2.75 + 0.5)
    assert said["trace_bytes"] == pytest.approx(4 * vectors * parameters, rel=1e-3)
    assert vectors * 4 < 0.5 * 138.5, "what it took before, with one fragment"


def test_run_without_audits_keeps_no_states(tmp_path: Path) -> None:
    plain = check_run_file(file(tmp_path, "trust = 'open'"), 8)
    assert check_json(plain, None)["trace_bytes"] == 0
    assert "audits" not in people(plain)


def test_what_variates_take_on_the_disk_is_told_as_it_is_written(tmp_path: Path, seed: int) -> None:
    outer = replace(OUTER, codec="fp16", optimizer="sgd", momentum=0.0)
    told, written = [], []
    for preset in ("fedavg", "scaffold"):
        manifest = small_manifest(outer=replace(outer, preset=preset))
        Solo(manifest, tmp_path / preset, seed).train()
        paths = [path for path in (tmp_path / preset).rglob("*") if path.is_file()]
        written.append(max(path.stat().st_size for path in paths))
        told.append(costs_of(manifest, 2).disk_bytes)
    # Of each state that is kept, and of one in the making.
    assert (told[1] - told[0]) / 4 == pytest.approx(written[1] - written[0], abs=2048)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", IN_PROCESS)
def test_method_of_one_process_is_refused_for_nodes_with_what_to_take(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_run_file(file(tmp_path, f"[outer]\npreset = '{name}'"), 8)
    told, method = str(caught.value), IN_PROCESS[name]
    assert f"needs {method.lacks}" in told
    assert f"'barnraise compare {name}'" in told
    assert told.endswith(f"set it to {method.instead!r}")
    assert ("no bit promise, and for friends alone" in told) != method.common_anchor
    check_run_file(file(tmp_path, f"[outer]\npreset = '{method.instead}'"), 8)


def test_own_share_of_a_sign_is_nothing_that_eager_could_apply(tmp_path):
    text = "[outer]\npreset = 'eager'\noptimizer = 'sign'\nlearning_rate = 0.001\n"
    with pytest.raises(ConfigError, match=r"\[outer\] optimizer is 'sign', .* set it to 'sgd'"):
        check_run_file(file(tmp_path, text), 4)


def test_demo_says_what_it_stands_for(tmp_path):
    found = check_run_file(file(tmp_path, "[outer]\npreset = 'demo'\n"), 4)
    assert (found.manifest.inner.optimizer, found.manifest.inner.inner_steps) == ("sgd", 1)
    assert (found.manifest.outer.codec, found.manifest.outer.optimizer) == ("cosine", "sign")


def test_gradients_from_uphill_are_said_and_cost_a_copy_of_the_weights(tmp_path):
    plain = check_run_file(file(tmp_path, "[outer]\npreset = 'fedavg'\n"), 4)
    sam = check_run_file(file(tmp_path, "[outer]\npreset = 'fedsam'\n"), 4)
    more = sam.costs.trainer_memory_bytes - plain.costs.trainer_memory_bytes
    assert more == 4 * sam.costs.parameters
    out = StringIO()
    print_check(Console(file=out, width=100), sam, None)
    assert "inner steps, gradients from 0.05 uphill in two passes" in out.getvalue()
    for wrong in ("-0.1", "11.0"):
        with pytest.raises(ConfigError, match="sam_radius"):
            check_run_file(file(tmp_path, f"[inner]\nsam_radius = {wrong}\n"), 4)


def test_whoever_waits_for_a_seat_costs_a_round_nothing(tmp_path):
    few = check_run_file(file(tmp_path, "[admission]\nseats = 4\n"), 32)
    assert few.costs.peers == 4
    assert few.costs == replace(check_run_file(file(tmp_path, ""), 4).costs)
    out = StringIO()
    print_check(Console(file=out, width=100), few, None)
    assert "4; more peers take turns, of 8 rounds or longer" in out.getvalue()


def test_line_is_named_by_three_numbers_and_anything_else_refused() -> None:
    assert line_named("250, 40,30") == Line("250, 40,30", 250.0, 40.0, 30.0)
    for wrong in ("", "250", "250,40", "250,40,30,1", "a,b,c", "0,40,30", "250,nan,30", "1,1,-1"):
        with pytest.raises(ConfigError, match="is no line such as 250,40,30"):
            line_named(wrong)


def test_round_is_told_by_its_parts_on_each_line(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, "[inner]\ninner_steps = 50"), 8)
    lines: Any = check_json(replace(found, lines=(Line("mine", 100.0, 2.0, 30.0),)), 0.5)["lines"]
    (line,) = lines
    parts = [line[name] for name in ("train_s", "encode_s", "save_s", "exchange_s", "seal_s")]
    assert line["round_s"] == pytest.approx(sum(parts), abs=0.01)
    assert (line["line"], parts[0]) == ("mine", 25.0)
    lines = check_json(found, None)["lines"]
    assert {(one["train_s"], one["round_s"]) for one in lines} == {(None, None)}


@pytest.mark.parametrize(
    ("text", "is_equal"),
    [
        ("", False),
        ("[outer]\npreset = 'auto'", False),
        ("[inner]\nequal_steps = true", True),
        ("trust = 'open'\n[audits]\nrate = 0.2", True),
        ("[outer]\npreset = 'streaming_diloco'", False),
        ("[outer]\npreset = 'one_step_delay'", True),
        ("[outer]\npreset = 'eager'", True),
    ],
)
def test_what_becomes_of_slow_machines_is_told(tmp_path: Path, text: str, is_equal: bool) -> None:
    found = check_run_file(file(tmp_path, text), 8)
    assert check_json(found, None)["equal_steps"] is is_equal
    assert ("others wait half of the time" in " ".join(people(found).split())) is is_equal


def test_what_audits_move_is_in_what_a_round_moves_and_not_in_the_exchange(tmp_path: Path) -> None:
    plain = check_run_file(file(tmp_path, "trust = 'open'"), 8).costs
    text = "trust = 'open'\n[audits]\nrate = 0.2"
    audited = check_run_file(file(tmp_path, text), 8).costs
    assert audited.up_bytes - plain.up_bytes == audited.audits_bytes > 0
    assert audited.exchange_s(HOME_LINES[0]) == plain.exchange_s(HOME_LINES[0])
    traces = trace_bytes(check_run_file(file(tmp_path, text), 8).manifest)
    # Traces have the moments that inner states then need not keep.
    moments = (INNER_STATES_KEPT + 1) * 2 * 4 * plain.parameters
    assert audited.disk_bytes - plain.disk_bytes == pytest.approx(traces - moments, abs=2)


def test_items_add_up_to_what_is_told(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, ""), 8)
    told: Any = check_json(found, None)

    def of(place: str) -> int:
        return sum(one["bytes"] for one in told["items"] if one["place"] == place)

    assert (of("disk"), of("written")) == (told["disk_bytes"], told["written_bytes"])
    assert of("seldom") == told["checkpoint_bytes"] + told["moments_bytes"]
    bases = NETWORK_BASE_BYTES + TRAINER_BASE_BYTES
    assert of("memory") + of("card") + bases == told["memory_bytes"]


@pytest.mark.parametrize(
    ("size", "seldom"),
    [
        ("120k", ""),
        (
            "10m",
            ", 82.5 MiB more every 8 rounds (a checkpoint)"
            ", 82.5 MiB more every 5 minutes (moments)",
        ),
    ],
)
def test_what_is_not_written_in_each_round_is_told_apart(
    size: str, seldom: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(run_file_text(path.name, "A run", GPT_SIZES[size]))
    (told,) = re.findall(r"written a round(.*?) *\n", people(check_run_file(path, 2)))
    assert told == seldom


def test_check_says_what_a_run_makes_of_its_text(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('[run]\ntitle = "a"\nrounds = 10\n[inner]\nbatch = 4\ninner_steps = 5\n')
    found = check_run_file(path, peers=3)
    told = check_json(found, None)["text"]
    assert isinstance(told, dict)

    corpus, each = found.manifest.corpus, 5 * 4 * 64
    assert told["tokens"] == corpus.training_blocks * corpus.block_bytes
    assert told["epochs"] == 10 * 3 * each / told["tokens"]
    assert told["round_bytes"] == each
    assert told["vocab_size"] == 256
