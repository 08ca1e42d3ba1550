"""run.toml: what it admits, what it says about what it does not admit, and what comes of it."""

import re
import tomllib
from pathlib import Path

import pytest

from node.settings.run_file import (
    Founder,
    build_manifest,
    cell_elements_for,
    first_changed_key,
    read_run_file,
)
from node.settings.sections import RunFile, node_file_text, run_file_text, write_run_file
from node.settings.toml_file import TOML_BYTES_MAX, Section
from protocol import limits
from protocol.errors import ConfigError
from protocol.grid import ShardSpec, TensorSpec
from protocol.identity import Ed25519Signer
from protocol.manifest import OuterSpec, Setting, sign_manifest
from protocol.wire import encode
from training.compression import codec_defaults
from training.methods.presets import IN_PROCESS, PRESETS

SIGNER = Ed25519Signer(b"r" * 32)
FOUNDER = Founder(SIGNER.peer_id, 1_800_000_000)
LEAST = '[run]\ntitle = "t"\n'


def read(folder: Path, text: str) -> RunFile:
    path = folder / "run.toml"
    path.write_text(text, "utf-8")
    return read_run_file(path)


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value).removeprefix(f"{folder}/")


def test_file_of_init_has_every_key_at_its_default(tmp_path: Path) -> None:
    text = run_file_text("run.toml", "t")
    assert read(tmp_path, text) == read(tmp_path, LEAST)
    # What is commented out is a key as well: without its mark the file must still be good.
    marks = "date momentum codec optimizer inner_steps fragments overlap topology puzzle_bits ramp"
    for mark in (*marks.split(), "probation"):
        text = text.replace(f"\n# {mark} =", f"\n{mark} =")
    shown = read(tmp_path, text).outer.momentum, read(tmp_path, text).stop.date
    assert (*shown, "\n# [outer.then]" in text) == (0.5, 1_801_418_400, True)
    for name, field in RunFile.model_fields.items():
        assert f"\n[{name}]" in text
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, Section)
        for key in field.annotation.model_fields.keys() - {"settings", "codec_settings", "then"}:
            assert f"\n{key} = " in text or f"\n# {key} = " in text, key


def test_files_that_are_written_are_those_of_before_to_the_byte() -> None:
    golden = Path(__file__).parent / "golden"
    written = run_file_text("run.toml", "a run among friends")
    assert written == (golden / "run.toml").read_text("utf-8")
    assert node_file_text() == (golden / "node.toml").read_text("utf-8")


@pytest.mark.quick(2)
@pytest.mark.parametrize("length", [60, 72, 80, 100, 128])
def test_no_title_is_so_long_that_its_comment_is_cut_within_a_word(length: int) -> None:
    short, long = (
        [word for word in run_file_text("run.toml", "x" * num).split() if word != "#"]
        for num in (1, length)
    )
    assert [word.replace("x" * length, "x") for word in long] == short


@pytest.mark.parametrize("title", ['say "hi" \\ there', "Scheune für Grüße", "{name}"])
def test_any_printable_title_survives_the_file(tmp_path: Path, title: str) -> None:
    path = tmp_path / "run.toml"
    write_run_file(path, title)
    assert read_run_file(path).run.title == title


def test_init_refuses_to_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="there already"):
        write_run_file(path, "t")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("title", ["", "a\nb", "x" * 129, "\x7f"])
def test_init_refuses_a_title_that_no_manifest_admits(tmp_path: Path, title: str) -> None:
    with pytest.raises(ConfigError, match="--title"):
        write_run_file(tmp_path / "run.toml", title)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            LEAST + "[inner]\nlerning_rate = 1.0",
            "run.toml: [inner] lerning_rate is no key; did you mean learning_rate?",
        ),
        (LEAST + "[inner]\nqqq = 1", "[inner] qqq is no key; known are inner_steps, batch,"),
        (LEAST + "[iner]\nbatch = 1", "[iner] is no section; did you mean inner?"),
        ("batch = 3\n" + LEAST, "batch is no key; did you mean [inner] batch?"),
        (LEAST + "[inner]\nbatch = 'x'", "[inner] batch must be a whole number, not 'x'"),
        (LEAST + "[inner]\nbatch = 1.0", "[inner] batch must be a whole number, not 1.0"),
        (LEAST + "[inner]\nbatch = true", "[inner] batch must be a whole number, not True"),
        (LEAST + "[inner]\nbeta1 = '0'", "[inner] beta1 must be a number, not '0'"),
        ("[run]\ntitle = 7", "[run] title must be a text in quotes, not 7"),
        ("[run]\nrounds = 7", "[run] title is missing"),
        ("inner = 1\n" + LEAST, "inner must be a section of its own, not 1"),
        (LEAST + "trust = 'all'", "[run] trust must be 'friends' or 'open', not 'all'"),
        (LEAST + "[inner]\nbatch = 0", "[inner] batch is 0; it must be 1 to 65536"),
        (LEAST + "[inner]\nbeta1 = 1.5", "[inner] beta1 is 1.5; it must be 0.0 to 0.999999"),
        (LEAST + "[inner]\nbeta1 = nan", "[inner] beta1 is nan; it must be 0.0 to 0.999999"),
        (LEAST + "[inner]\nbeta1 = -0.0", "[inner] beta1 is -0.0; it must be 0.0 to 0.999999"),
        (LEAST + "rounds = 0", "[run] rounds is 0; it must be 1 to"),
        ("[run]\ntitle = ''", "[run] title is ''; it must be 1 to 128 bytes long"),
        (LEAST + "[model]\nseed = -1", "[model] seed is -1; it must be 0 to"),
        (LEAST + "[model]\ncell_elements = 1", "[model] cell_elements is 1; it must be 1024 to"),
        (LEAST + "[model]\nname = 'gtp'", "[model] name 'gtp' is unknown; did you mean gpt?"),
        (LEAST + "[outer]\ncodec = 'fp61'", "[outer] codec 'fp61' is unknown; did you mean fp16?"),
        (
            LEAST + "[outer]\ncodec = 'int4'\nfeedback = 0.0",
            "[outer] feedback is 0, so what the 4.03 bits of 'int4' leave out is lost "
            "for good; set it to 1.0, or codec to 'int8'",
        ),
        (
            LEAST + "[outer]\npreset = 'sparselco'",
            "[outer] preset 'sparselco' is unknown; did you mean sparseloco?",
        ),
        (
            LEAST + "[outer]\npreset = 'x'",
            "[outer] preset 'x' is unknown; known are a_edit, acid, auto, co2, demo, dfedsam, ",
        ),
        (
            LEAST + "[outer]\npreset = 'dadao'",
            "[outer] preset 'dadao' is not there yet: it needs strongly convex losses",
        ),
        (
            LEAST + "[outer]\npreset = 'one_step_delay'\noverlap = 1",
            "overlap is 1, and 'one_step_delay' trains a round beside the one before; set it to 2",
        ),
        (
            LEAST + "[outer]\npreset = 'eager'\nfragments = 2",
            "fragments is 2, and each round of 'eager' is about the whole model; set it to 1",
        ),
        (LEAST + "[outer]\noverlap = 3", "[outer] overlap is 3; it must be 1 to 2"),
        (
            LEAST + "[outer]\noverlap = 2\nfragments = 1",
            "[outer] fragments is 1, and 2 rounds in flight of 'diloco' are about different ones; "
            "set it to 2, or overlap to 1",
        ),
        (
            LEAST + "[inner]\ninner_steps = 2\n[outer]\npreset = 'streaming_diloco'",
            "[inner] inner_steps is 2, and 'streaming_diloco' takes an outcome over 2 steps into "
            "the next round; set it to 3 or more, or [outer] overlap to 1",
        ),
        (
            LEAST + "[outer]\npreset = 'sparseloco'\n[outer.codec_settings]\ndensity = 0.0",
            "[outer.codec_settings] density 0.0 sends nothing; take 0.000244140625",
        ),
        (
            LEAST + "[outer]\ncodec = 'topk'\n[outer.codec_settings]\nchunk = 1000",
            "[outer.codec_settings] chunk 1000 is no power of two from 64 to 4096; take 1024",
        ),
        (
            LEAST + "[outer]\ncodec = 'lowrank'\n[outer.codec_settings]\nrank = 2.5",
            "[outer.codec_settings] rank must be a whole number, not 2.5; take 16",
        ),
        (
            LEAST + "[outer]\ncodec = 'lowrank'\n[outer.codec_settings]\nrang = 2",
            "[outer.codec_settings] 'rang' is no setting of the codec lowrank; did you mean rank?",
        ),
        (
            LEAST + "[outer.codec_settings]\nbits = 4",
            "[outer.codec_settings] 'bits' is no setting of the codec fp16; it has none",
        ),
        (
            LEAST + "[outer]\ncodec = 'random_mask'\n[outer.codec_settings]\nseed = 4",
            "'seed' is no setting of the codec random_mask; known are density",
        ),
        (
            LEAST + "[outer]\npreset = 'sparseloco'\nfeedback = 0.0",
            "[outer] feedback is 0, so what the",
        ),
        (
            LEAST + "[outer]\npreset = 'diloco_fp32'\ncodec = 'ternary'",
            "[outer] feedback is 0, so what the 2.03 bits of 'ternary'",
        ),
        (LEAST + "[model.settings]\nwidthh = 8", "widthh is no setting of the model gpt; did you"),
        (LEAST + "[model.settings]\nwidth = [8]", "[model.settings] width must be a number"),
        (LEAST + "[stop]\ndate = 'soon'", "[stop] date must be a date like 2027-01-31"),
        (LEAST + "[stop]\ndate = 12", "[stop] date must be a date like 2027-01-31"),
        (LEAST + "[stop]\ntokens = -1", "[stop] tokens is -1; it must be 0 to"),
        ("[run]\ntitle = \n", "run.toml: no TOML: Invalid value (at line 2, column 9)"),
        ("[run]\ntitle = 't'\ntitle = 't'\n", "(at line 3, column"),
    ],
)
def test_what_is_wrong_is_named_with_what_to_write(tmp_path: Path, text: str, words: str) -> None:
    assert words in complaint(tmp_path, text)


@pytest.mark.parametrize(
    "outer",
    ["codec = 'int8'\nfeedback = 0", "codec = 'int4'", "codec = 'random_shift'\nfeedback = 0"],
)
def test_codec_that_loses_little_or_makes_it_good_is_admitted(tmp_path: Path, outer: str) -> None:
    (tmp_path / "run.toml").write_text(LEAST + "[outer]\n" + outer)
    read_run_file(tmp_path / "run.toml")


def test_every_wrong_key_has_its_line(tmp_path: Path) -> None:
    said = complaint(tmp_path, LEAST + "[inner]\nbatch = 'x'\nfoo = 1\n[timing]\nbar = 2")
    assert len(said.splitlines()) == 3
    assert all("run.toml: [" in line for line in said.splitlines())


def test_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    assert "longer than 64 KiB" in complaint(tmp_path, LEAST + "#" * TOML_BYTES_MAX)


def test_file_that_is_no_text_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"[run]\ntitle = '\xff'")
    with pytest.raises(ConfigError, match=r"no UTF-8 text \(at line 2\)"):
        read_run_file(path)
    with pytest.raises(ConfigError, match=r"cannot read .*absent"):
        read_run_file(tmp_path / "absent.toml")


def test_values_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    said = complaint(tmp_path, LEAST + '[outer]\ncodec = "\\u001b[2J"\n"\\u001b[1m" = 1')
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("written", "unix_s"),
    [
        ("2027-01-31", 1_801_353_600),
        ("'2027-01-31'", 1_801_353_600),
        ("2027-01-31T18:00:00", 1_801_418_400),
        ("2027-01-31T18:00:00Z", 1_801_418_400),
        ("2027-01-31T18:00:00+02:00", 1_801_411_200),
        ("'2027-01-31T18:00:00.5+00:00'", 1_801_418_401),
    ],
)
def test_stop_date_is_unix_seconds(tmp_path: Path, written: str, unix_s: int) -> None:
    assert read(tmp_path, LEAST + f"[stop]\ndate = {written}").stop.date == unix_s


def test_manifest_holds_what_the_file_says(tmp_path: Path) -> None:
    text = LEAST + (
        "rounds = 7\nsurvive = 'quorum'\n[stop]\ntokens = 99\ndate = 2027-01-31\n"
        "[model]\nseed = 5\ncell_elements = 2048\n[model.settings]\nwidth = 32\nlayers = 1\n"
        "[corpus]\npermutation_seed = 3\n[inner]\nbatch = 4\nclip_norm = 2\n"
        "[outer]\ncodec = 'none'\nmomentum = 0.25\n[timing]\nheartbeat_s = 0.5"
    )
    manifest = build_manifest(read(tmp_path, text), FOUNDER, tmp_path / "run.toml")
    assert (manifest.rounds, manifest.survive, manifest.title) == (7, "quorum", "t")
    assert (manifest.founder, manifest.created_unix_s) == (SIGNER.peer_id, FOUNDER.unix_s)
    assert (manifest.stop.tokens, manifest.stop.unix_s) == (99, 1_801_353_600)
    settings = {one.name: one.value for one in manifest.model.settings}
    assert settings == {"context": 64, "heads": 4, "layers": 1, "width": 32}
    assert (manifest.model.seed, manifest.cell_elements) == (5, 2048)
    assert manifest.corpus.permutation_seed == 3
    assert (manifest.inner.batch, manifest.inner.clip_norm) == (4, 2.0)
    assert type(manifest.inner.clip_norm) is float
    assert (manifest.outer.codec, manifest.outer.momentum) == ("none", 0.25)
    assert manifest.outer.codec_settings == ()
    assert manifest.timing.heartbeat_s == 0.5
    # Only what can be encoded can be signed.
    assert encode(sign_manifest(manifest, SIGNER))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[stop]\ndate = 2020-01-01", r"\[stop\] date has passed"),
        ("[timing]\nsuspect_s = 0.1", "suspect_s must be at least two heartbeats"),
        ("[timing]\ndeadline_cap_s = 1.0", "deadline_cap_s is below deadline_floor_s"),
        ("[model]\ncell_elements = 5000", "cell_elements is 5000, .* set it to 4096"),
        ("[model.settings]\nheads = 3", "heads does not divide width"),
        ("[model.settings]\nwidth = 'x'", "width is 'x', not 1.."),
        ("[model.settings]\ncontext = 60000", "context is 60000; the text admits 1 to 32768"),
        ("[outer]\noptimizer = 'sgd'\nmomentum = 0.5", r"\[outer\] momentum is 0.5, .* to 0.0"),
        ("[model.settings]\nwidth = 65536\nlayers = 1024", "set .model. to a smaller one"),
    ],
)
def test_what_no_peer_would_take_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: .*{words}"):
        build_manifest(read(tmp_path, LEAST + text), FOUNDER, path)


@pytest.mark.parametrize(
    ("text", "momentum"),
    [
        ("rounds = 499", 0.5),
        ("rounds = 500", 0.9),
        ("[outer]\noptimizer = 'sgd'", 0.0),
        ("[outer]\npreset = 'fedavg'", 0.0),
        ("[outer]\npreset = 'fedavg'\noptimizer = 'nesterov'", 0.5),
        ("rounds = 99\n[outer]\npreset = 'fedavgm'", 0.5),
        ("rounds = 99\n[outer]\nmomentum = 0.8", 0.8),
    ],
)
def test_momentum_left_out_follows_the_length_of_the_run(
    tmp_path: Path, text: str, momentum: float
) -> None:
    assert read(tmp_path, LEAST + text).outer.momentum == momentum


@pytest.mark.parametrize(
    ("numel", "cell_elements"),
    [
        (10, 4096),
        (8 * 4096, 4096),
        (8 * 8192 - 1, 4096),
        (8 * 8192, 8192),
        (2**40, limits.CELL_ELEMENTS_MAX),
    ],
)
def test_cells_are_as_large_as_eight_of_them_allow(numel: int, cell_elements: int) -> None:
    extent = 2**20
    shape = (numel,) if numel < extent else (extent, numel // extent)
    assert cell_elements_for(ShardSpec("s", (TensorSpec("t", shape),), ((0,),))) == cell_elements


def test_comments_and_order_change_nothing(tmp_path: Path) -> None:
    one = read(tmp_path, "# a\n[inner]\nbatch = 3\n" + LEAST)
    other = read(tmp_path, LEAST + "\n\n[inner] # b\nbatch = 0x3\n[outer]\nmomentum = 0.5")
    assert first_changed_key(one, other) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rounds = 201", "[run] rounds was 200 and is 201"),
        ("[inner]\nbeta1 = 0", "[inner] beta1 was 0.9 and is 0.0"),
        ("[model.settings]\nwidth = 128", "[model.settings] width was 64 and is 128"),
        ("[inner]\nbatch = 1\n[timing]\nsuspect_s = 99.0", "[inner] batch was 16 and is 1"),
    ],
)
def test_first_changed_key_is_named(tmp_path: Path, change: str, words: str) -> None:
    assert first_changed_key(read(tmp_path, LEAST), read(tmp_path, LEAST + change)) == words


def test_example_in_the_template_is_toml() -> None:
    assert tomllib.loads(run_file_text("run.toml", "t"))["inner"]["batch"] == 16


@pytest.mark.parametrize(
    ("run", "outer", "rule"),
    [
        ("", "", "mean"),
        ("trust = 'open'", "", "default"),
        ("trust = 'open'", "aggregator = 'median'", "median"),
        ("", "aggregator = 'default'", "default"),
    ],
)
def test_aggregator_left_out_follows_whom_the_run_trusts(
    tmp_path: Path, run: str, outer: str, rule: str
) -> None:
    text = LEAST + f"{run}\n[outer]\n{outer}\n"
    assert read(tmp_path, text).outer.aggregator == rule


def outer_of(folder: Path, text: str) -> OuterSpec:
    path = folder / "run.toml"
    return build_manifest(read(folder, text), FOUNDER, path).outer


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", sorted(set(PRESETS) - set(IN_PROCESS)))
def test_preset_is_written_out_into_a_manifest_that_can_be_signed(
    tmp_path: Path, name: str
) -> None:
    text = LEAST + f"rounds = 900\n[outer]\npreset = '{name}'"
    manifest = build_manifest(read(tmp_path, text), FOUNDER, tmp_path / "run.toml")
    preset, outer = PRESETS[name](900), manifest.outer
    assert (outer.preset, outer.codec, outer.feedback) == (name, preset.codec, preset.feedback)
    assert (outer.optimizer, outer.learning_rate) == (preset.optimizer, preset.learning_rate)
    assert (outer.momentum, outer.aggregator) == (preset.momentum, preset.aggregator or "mean")
    assert manifest.inner.inner_steps == preset.inner_steps
    # A default that changes with a release must not change a run.
    assert [one.name for one in outer.codec_settings] == list(codec_defaults(outer.codec))
    assert encode(sign_manifest(manifest, SIGNER))


def test_key_that_is_given_outranks_the_preset_and_takes_its_settings_along(
    tmp_path: Path,
) -> None:
    text = LEAST + "[outer]\npreset = 'sparseloco'\n"
    outer = outer_of(tmp_path, text + "feedback = 0.5\n[outer.codec_settings]\ndensity = 1")
    assert (outer.codec, outer.feedback) == ("sparse2bit_gaps", 0.5)
    # One number has one form, so that one run has one manifest.
    assert outer.codec_settings == (Setting("chunk", 4096), Setting("density", 1.0))
    assert type(outer.codec_settings[1].value) is float
    outer = outer_of(tmp_path, text + "codec = 'topk'")
    assert outer.codec_settings == (Setting("chunk", 4096), Setting("density", 1 / 64))


def test_sparse_preset_sends_more_where_the_run_is_short(tmp_path: Path) -> None:
    text = LEAST + "rounds = {}\n[outer]\npreset = 'sparseloco'"
    long, short = (outer_of(tmp_path, text.format(rounds)) for rounds in (600, 599))
    assert long.codec_settings[1].value == 1 / 64
    assert short.codec_settings[1].value == 1 / 16
    assert (short.learning_rate, long.learning_rate) == (1.5, 1.0)
