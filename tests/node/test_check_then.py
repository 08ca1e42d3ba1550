"""`barnraise check` of a run that changes its method half-way: what it tells, what it refuses."""

import dataclasses
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from node.settings.check import check_json, check_run_file, print_check
from protocol.errors import ConfigError
from tests.node.test_check import file

THEN = "[outer]\npreset = 'diloco'\ncodec = 'int8'\n[outer.then]\n"


def test_method_that_follows_is_written_out_and_told(tmp_path: Path) -> None:
    found = check_run_file(file(tmp_path, THEN + "preset = 'eager'\nfrom_round = 25"), 4)
    (then,) = found.manifest.outer.then
    assert (then.preset, then.from_round, then.optimizer) == ("eager", 25, "sgd")
    assert (then.learning_rate, then.momentum) == (0.7, 0.0)
    assert found.manifest.outer.overlap == 2
    assert found.changed == ("codec", "overlap", "then")
    assert check_json(found, None)["then"] == [dataclasses.asdict(then)]
    shown = StringIO()
    print_check(Console(file=shown, width=120), found, None)
    assert "from round 25  " in shown.getvalue()
    only_this = check_run_file(file(tmp_path, "[outer]\npreset = 'diloco'"), 4)
    assert check_json(only_this, None)["then"] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("preset = 'eagre'\nfrom_round = 25", "did you mean eager?"),
        ("preset = 'eager'\nfrom_round = 0", "from_round is 0; it must be 1 to"),
        ("preset = 'eager'\nfrom_round = 201", "there are 200 rounds; take 100"),
        ("preset = 'eager'\nfrom_round = 25\nmomentum = 2.0", "momentum is 2.0; it must be 0.0 to"),
        (
            "preset = 'eager'\nfrom_round = 25\nmomentum = 0.5",
            "[outer.then] momentum is 0.5",
        ),
        ("preset = 'auto'\nfrom_round = 25", "inner_steps is 50 by 'diloco' and 100 by 'auto'"),
        ("preset = 'streaming_diloco'\nfrom_round = 25", r"[outer] fragments is 1 by 'diloco'"),
        ("preset = 'sparseloco'\nfrom_round = 25", r"[outer] feedback is 1.0 by 'diloco'"),
        ("preset = 'eager'", "[outer.then] from_round is missing"),
    ],
)
def test_method_that_cannot_follow_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        check_run_file(file(tmp_path, THEN + text), 4)


def test_codec_of_two_methods_must_be_named(tmp_path: Path) -> None:
    text = (THEN + "preset = 'eager'\nfrom_round = 25").replace("codec = 'int8'\n", "")
    with pytest.raises(ConfigError, match=r"codec is 'fp16' by 'diloco' and 'int8' by 'eager'"):
        check_run_file(file(tmp_path, text), 4)


def test_rounds_as_long_as_peers_like_do_not_follow_rounds_of_h_steps(tmp_path: Path) -> None:
    text = "[inner]\ninner_steps = 20\n" + THEN + "preset = 'auto'\nfrom_round = 25\n"
    text = text.replace("codec = 'int8'", "codec = 'int8'\nfragments = 1")
    with pytest.raises(ConfigError, match="as long as each peer likes"):
        check_run_file(file(tmp_path, text), 4)


@pytest.mark.parametrize("text", ["preset = 'fedavg'", "preset = 'scaffold'"])
def test_variates_of_a_part_of_the_rounds_are_refused(tmp_path: Path, text: str) -> None:
    first = "scaffold" if "fedavg" in text else "fedavg"
    outer = f"[outer]\npreset = '{first}'\n[outer.then]\n{text}\nfrom_round = 25"
    with pytest.raises(ConfigError, match="the variates of 'scaffold' are of all rounds"):
        check_run_file(file(tmp_path, outer), 4)


def test_inner_optimizer_that_only_one_of_two_presets_wants_has_to_be_named(tmp_path: Path) -> None:
    outer = "[outer]\npreset = 'fedavg'\n[outer.then]\npreset = 'demo'\nfrom_round = 25"
    with pytest.raises(ConfigError, match="optimizer is 'adamw' by 'fedavg' and 'sgd' by 'demo'"):
        check_run_file(file(tmp_path, outer), 4)
    outer = outer.replace("demo", "fedsam")
    with pytest.raises(ConfigError, match=r"sam_radius is 0\.0 by 'fedavg' and 0\.05 "):
        check_run_file(file(tmp_path, outer), 4)
    found = check_run_file(file(tmp_path, f"[inner]\nsam_radius = 0.1\n{outer}"), 4)
    assert found.manifest.inner.sam_radius == 0.1
