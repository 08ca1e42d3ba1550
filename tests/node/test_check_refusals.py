"""What `barnraise check` refuses, and that it says which key, why, and what to write."""

from pathlib import Path

import pytest

from node.settings.check import check_run_file
from protocol.errors import ConfigError
from tests.node.test_check import file


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[audits]\nrate = 0.1", r"\[audits\] rate is 0.1, .* set it to 0, or \[run\] trust"),
        ("[admission]\nramp = 5", r"\[admission\] ramp is 5, .* set it to 0, or \[run\] trust"),
        ("[outer]\noptimizer = 'sign'\nmomentum = 0.5", r"\[outer\] momentum is 0.5, .* to 0.0"),
        ("[stop]\ndate = 2020-01-01", r"\[stop\] date has passed"),
        ("[inner]\nbeta1 = 1.0", r"\[inner\] beta1 is 1.0; it must be 0.0 to 0.99"),
        ("[inner]\nbeta2 = 1", r"\[inner\] beta2 is 1.0; it must be 0.0 to 0.99"),
        (
            "[outer]\npreset = 'eager'\ncodec = 'sparse2bit_gaps'\ntopology = 'gather'",
            r"set it to 'butterfly'$",
        ),
        (
            "[outer]\npreset = 'scaffold'\n[inner]\nlearning_rate = 0.0",
            r"\[inner\] learning_rate is 0, .* set it to 0.001",
        ),
        (
            "[outer]\npreset = 'sparta'\n[outer.codec_settings]\ndensity = 0.3",
            r"density 0.3 is not one in so many; take 0.333333",
        ),
        (
            "[outer]\ncodec = 'topk'\n[outer.codec_settings]\nchunk = 99999999999999999999999",
            r"chunk 9+ is no power of two from 64 to 4096; take 4096",
        ),
        (
            "[outer]\ncodec = 'graded'\nfeedback = 0.0",
            r"feedback is 0, so what the 2\.\d+ bits of 'graded' leave .* codec to 'int8'",
        ),
        (
            "[outer]\ncodec = 'graded'\n[outer.codec_settings]\nusual = 3",
            r"usual 3 is none of 8, 4 and 2; take 4",
        ),
        (
            "trust = 'open'\n[outer]\ncodec = 'graded'\n[audits]\nrate = 0.1",
            r"codec 'graded' lets each node .* set \[audits\] rate to 0, or codec to 'int8'",
        ),
    ],
)
def test_key_and_what_to_write_are_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_run_file(file(tmp_path, text), 8)


def test_preset_that_cannot_be_run_as_it_is_can_be_with_another_key(tmp_path: Path) -> None:
    """Its outcome comes over more steps than a round has; the file takes it at once."""
    text = "[inner]\ninner_steps = 2\n[outer]\npreset = 'streaming_diloco'\noverlap = 1"
    assert check_run_file(file(tmp_path, text), 4).changed == ("overlap",)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[audits]\nrate = 0.2", "friends trust each other"),
        ("trust = 'open'\n[audits]\nrate = 2.0", "it must be 0.0 to 1.0"),
        (
            "trust = 'open'\n[outer]\nfragments = 3\noverlap = 2\n[audits]\nrate = 0.1",
            "one round in flight",
        ),
        (
            "trust = 'open'\n[outer]\npreset = 'streaming_diloco'\noverlap = 1\n"
            "[audits]\nrate = 0.1",
            "mix of anchor and own weights",
        ),
        ("trust = 'open'\n[inner]\ninner_steps = 4\n[audits]\nrate = 0.1", "4 inner steps"),
        ("trust = 'open'\n[outer]\npreset = 'auto'\n[audits]\nrate = 0.1", "equal steps"),
    ],
)
def test_audits_of_runs_that_cannot_have_them_are_refused(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        check_run_file(file(tmp_path, text), 8)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("optimizer = 'nesterov'", r"optimizer is 'nesterov', .* set it to 'sgd'"),
        ("learning_rate = 0.0", r"learning_rate is 0, .* set it to 1.0"),
        ("overlap = 2", r"overlap is 2, and the variates of 'scaffold' .* set it to 1"),
        ("fragments = 2", r"fragments is 2, and the variates of 'scaffold' .* set it to 1"),
        ("[audits]\nrate = 0.5", r"rate to 0, or preset to 'fedavg'"),
    ],
)
def test_what_variates_do_not_go_with_is_refused(tmp_path: Path, text: str, why: str) -> None:
    trust = "trust = 'open'\n" if "audits" in text else ""
    with pytest.raises(ConfigError, match=why):
        check_run_file(file(tmp_path, f"{trust}[outer]\npreset = 'scaffold'\n{text}"), 4)
