"""Logs: one event one line, whoever wrote the text in it, and libraries kept quiet."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from libp2p.utils.logging import cleanup_logging, setup_logging

from node.reporting.logs import (
    LIBRARIES_MAX,
    LINE_CHARACTERS_MAX,
    LINES_MAX,
    VALUE_CHARACTERS_MAX,
    WINDOW_S,
    LibraryLines,
    start_logging,
)
from tests.node.log_lines import lines, told

HOSTILE = (
    "x\n2026-11-20 12:40:18.123 INFO node.daemon.driver round sealed round=41\r\x1b[2J\x00"
    "\u2028\u202e\ud800 round=41"
)

logger = logging.getLogger("node.on_trial")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where this process logs to, as text and with nothing on the console."""
    with start_logging(tmp_path, log_json=False, console=False):
        yield tmp_path


@pytest.fixture
def json_folder(tmp_path: Path) -> Iterator[Path]:
    with start_logging(tmp_path, log_json=True, console=False):
        yield tmp_path


def fail() -> None:
    raise ValueError(HOSTILE)


def bodies(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines(folder)]


def test_event_is_one_line_of_name_and_fields(folder: Path) -> None:
    logger.info("round sealed round=%d listed=%d wall_s=%.2f", 41, 14, 3.14159)
    assert told(folder) == ["INFO node.on_trial round sealed round=41 listed=14 wall_s=3.14"]
    assert lines(folder)[0][:2] == "20"


def test_event_in_json_has_typed_fields(json_folder: Path) -> None:
    logger.info(
        "round sealed round=%d wall_s=%.2f ok=%s why=%s lost=%s",
        *(41, 3.14159, True, None, float("nan")),
    )
    (body,) = bodies(json_folder)
    assert set(body) == {"time", "level", "logger", "event", "fields"}
    assert (body["level"], body["logger"]) == ("info", "node.on_trial")
    assert body["event"] == "round sealed"
    expected = {"round": 41, "wall_s": 3.14159, "ok": True, "why": None, "lost": "nan"}
    assert body["fields"] == expected


def test_text_of_a_peer_stays_within_its_field(folder: Path) -> None:
    logger.warning("fault peer=%s reason=%s", "ab", HOSTILE)
    (line,) = told(folder)
    assert line.isprintable()
    assert line.startswith('WARNING node.on_trial fault peer=ab reason="x\\n2026')
    assert line.endswith('round=41"')
    assert line.count('"') == 2


def test_text_of_a_peer_cannot_leave_its_quotes(folder: Path) -> None:
    logger.info("refused reason=%s", 'no" round=41 x="')
    assert told(folder) == ["INFO node.on_trial refused reason=\"no' round=41 x='\""]


def test_text_of_a_peer_in_json_is_escaped_in_its_field(json_folder: Path) -> None:
    logger.warning("fault peer=%s reason=%s", "ab", HOSTILE)
    (body,) = bodies(json_folder)
    assert body["event"] == "fault"
    fields = body["fields"]
    assert isinstance(fields, dict)
    assert fields["peer"] == "ab"
    assert fields["reason"].isprintable()


@pytest.mark.parametrize(
    ("message", "values"),
    [
        ("%s", (HOSTILE,)),
        ("trainer pid=%d %s", (7, HOSTILE)),
        ("%s peer=%s", ("linked", HOSTILE)),
        (HOSTILE.replace("%", ""), ()),
        ("dropped %(why)s", ({"why": HOSTILE},)),
    ],
)
def test_message_of_any_form_is_one_line(
    tmp_path: Path, message: str, values: tuple[object, ...]
) -> None:
    for is_json in (False, True):
        with start_logging(tmp_path, log_json=is_json, console=False):
            logger.warning(message, *values)
    text, as_json = lines(tmp_path)
    assert text.isprintable()
    assert json.loads(as_json)["event"].isprintable()


def test_name_of_an_event_may_have_places(json_folder: Path) -> None:
    logger.info("%s peer=%s", "linked", "ab")
    (body,) = bodies(json_folder)
    assert (body["event"], body["fields"]) == ("linked", {"peer": "ab"})


def test_long_text_is_cut(folder: Path) -> None:
    logger.warning("fault peer=%s reason=%s", "ab", "x" * 100_000)
    logger.warning("x" * 100_000)
    first, second = lines(folder)
    assert len(first) < VALUE_CHARACTERS_MAX + 200
    assert len(second) <= LINE_CHARACTERS_MAX


def test_traceback_follows_indented_and_forges_no_line(folder: Path) -> None:
    try:
        fail()
    except ValueError:
        logger.exception("gave up peer=%s", "ab")
    first, *rest = lines(folder)
    assert first.endswith("ERROR node.on_trial gave up peer=ab")
    assert "    Traceback (most recent call last):" in rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_traceback_in_json_stays_on_the_line(json_folder: Path) -> None:
    try:
        fail()
    except ValueError:
        logger.exception("gave up")
    (body,) = bodies(json_folder)
    assert isinstance(body["traceback"], list)
    assert body["traceback"][0] == "Traceback (most recent call last):"


def test_level_is_that_of_our_loggers(tmp_path: Path) -> None:
    for level in (logging.INFO, logging.DEBUG, logging.WARNING):
        with start_logging(tmp_path, log_json=False, console=False, level=level):
            for ours in ("node.a", "dht.a", "training.a", "protocol.a"):
                logging.getLogger(ours).log(level, "heard")
                logging.getLogger(ours).log(level - 1, "not heard")
    assert [line.rpartition(" ")[2] for line in lines(tmp_path)] == ["heard"] * 12
    assert not any("not heard" in line for line in lines(tmp_path))


@pytest.fixture
def library() -> Iterator[None]:
    """As libp2p leaves logging when it is imported, and as it was before."""
    yield
    os.environ.pop("LIBP2P_DEBUG", None)
    cleanup_logging()
    setup_logging()


@pytest.mark.usefixtures("library")
def test_libp2p_still_cuts_its_loggers_off() -> None:
    setup_logging()
    # Were this to fail, `Logs` need not put anything right any more.
    assert not logging.getLogger("libp2p").propagate
    assert logging.getLogger("libp2p.network.auto_connector").level == logging.INFO


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("debug", "is_later"),
    [("", False), ("", True), ("DEBUG", False), ("network.auto_connector:DEBUG", False)],
)
def test_libp2p_is_heard_from_warning_on_whatever_it_sets(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    debug: str,
    is_later: bool,
) -> None:
    if debug:
        monkeypatch.setenv("LIBP2P_DEBUG", debug)
        monkeypatch.setenv("LIBP2P_DEBUG_FILE", str(tmp_path / "libp2p.log"))
    if not is_later:
        setup_logging()
    capsys.readouterr()
    with start_logging(tmp_path, log_json=False, console=True):
        if is_later:
            setup_logging()
        for name in ("libp2p", "libp2p.a.b", "libp2p.network.auto_connector", "multiaddr"):
            logging.getLogger(name).setLevel(logging.DEBUG)
            logging.getLogger(name).info("chatter")
            logging.getLogger(name).warning("look %s", "here\nthere")
    assert [line.partition(" ")[2] for line in told(tmp_path)] == [
        "libp2p look here\\nthere",
        "libp2p.a.b look here\\nthere",
        "libp2p.network.auto_connector look here\\nthere",
        "multiaddr look here\\nthere",
    ]
    console = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[2] for line in console] == ["WARNING look here\\nthere"] * 4


def test_logging_is_put_back_when_closed(tmp_path: Path) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.lastResort, sys.excepthook)
    other = logging.getLogger("some.library")
    other.propagate = False
    handler = logging.NullHandler()
    other.addHandler(handler)
    with start_logging(tmp_path, log_json=False, console=True):
        assert other.propagate
        assert sys.excepthook is not before[3]
    assert (root.handlers, root.level, logging.lastResort, sys.excepthook) == before
    assert (other.propagate, other.handlers) == (False, [handler])
    assert logger.level == logging.NOTSET
    other.propagate = True
    other.removeHandler(handler)


def test_console_is_short_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start_logging(None, log_json=False, console=True):
        logger.info("round sealed round=%d", 1)
        logger.warning("fault peer=%s", "ab")
    first, second = capsys.readouterr().err.splitlines()
    assert first[8:] == " round sealed round=1"
    assert second[8:] == " WARNING fault peer=ab"
    assert os.listdir(tmp_path) == []


def test_console_and_file_speak_json_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with start_logging(tmp_path, log_json=True, console=True):
        logger.info("round sealed round=%d", 1)
    assert capsys.readouterr().err.splitlines() == lines(tmp_path)


def test_nothing_to_log_to_is_no_error_and_nothing_is_heard(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with start_logging(None, log_json=False, console=False):
        logger.warning("unheard")
        cut = logging.getLogger("cut.off")
        cut.propagate = False
        cut.warning("unheard")
        cut.propagate = True
    assert capsys.readouterr().err == ""


def test_library_that_complains_without_end_gets_some_lines_and_then_a_count(
    tmp_path: Path,
) -> None:
    library, other = logging.getLogger("asyncio"), logging.getLogger("libp2p.host")
    with start_logging(tmp_path, log_json=False, console=False):
        for number in range(1000):
            library.error("Task exception was never retrieved", exc_info=AssertionError(number))
            logger.warning("fault number=%d", number)
        other.warning("of another")
    said = told(tmp_path)
    assert sum("asyncio" in line and "never retrieved" in line for line in said) == LINES_MAX
    assert sum("fault number=" in line for line in said) == 1000
    assert sum("of another" in line for line in said) == 1
    assert said[-1].endswith(
        f"library lines were left out library=asyncio count={1000 - LINES_MAX}"
    )


def test_lines_of_a_library_are_counted_anew_each_minute() -> None:
    some = LibraryLines()
    assert [some.take("a", 0.0)[0] for _ in range(LINES_MAX + 3)].count(True) == LINES_MAX
    assert some.take("b", 1.0) == (True, 0)
    assert some.take("a", WINDOW_S - 0.1) == (False, 0)
    assert some.take("a", WINDOW_S) == (True, 4)
    assert some.take("a", WINDOW_S) == (True, 0)
    assert some.left_out() == []


def test_names_of_libraries_that_somebody_makes_up_are_one_library() -> None:
    some = LibraryLines()
    written = sum(some.take(f"x{number}", 0.0)[0] for number in range(10_000))
    assert written <= LIBRARIES_MAX + LINES_MAX
