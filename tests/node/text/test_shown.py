"""Text of others, and of models, is harmless once it is shown; JSON is what every reader takes."""

import io
import json
import math
import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.text.shown import TextOut, as_word, json_text, shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain [text] 'of' ü peers", "plain [text] 'of' ü peers"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x00\x1b[2J\x7f\x9b", "\\x00\\x1b[2J\\x7f\\x9b"),
        ("\u2028\u2029\u202e\u200b\ufeff", "\\u2028\\u2029\\u202e\\u200b\\ufeff"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_printed_is_escaped(text: str, expected: str) -> None:
    assert shown(text) == expected


def test_what_is_too_long_is_cut_with_a_mark() -> None:
    assert shown("x" * 10, 10) == "x" * 10
    assert shown("x" * 11, 10) == "x" * 9 + "…"


@given(st.text(st.characters(), max_size=400), st.integers(1, 100))
def test_any_text_becomes_one_printable_line_of_bounded_length(text: str, most: int) -> None:
    line = shown(text, most)
    assert line.isprintable()
    assert len(line.encode("utf-8")) <= 10 * most
    assert shown(line, 10 * most) == line


@pytest.mark.skipif(sys.platform == "win32", reason="quotes as a POSIX shell does")
@pytest.mark.parametrize("path", ["/s", "/a b", "/it's", "/a\nb", "/$HOME", "-x"])
def test_path_in_a_command_is_one_word_of_it(path: str) -> None:
    assert shlex.split(f"barnraise status --state {as_word(path)}")[3:] == [path]
    assert as_word("/home/ann/.local/share/barnraise") == "/home/ann/.local/share/barnraise"


def test_what_is_no_number_is_null_and_all_else_as_it_is() -> None:
    body = {
        "a": [1.5, math.nan, (math.inf, -math.inf)],
        "b": {"c": 2**70, "d": "\u2028"},
        "e": None,
    }
    text = json_text(body)
    assert "\n" not in text

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert json.loads(text, parse_constant=refuse) == {
        "a": [1.5, None, [None, None]],
        "b": {"c": 2**70, "d": "\u2028"},
        "e": None,
    }


def test_what_json_has_no_form_of_is_an_error() -> None:
    with pytest.raises(TypeError):
        json_text({"a": b"bytes"})


def written(*pieces: bytes) -> str:
    out = io.BytesIO()
    text = TextOut(out)
    for piece in pieces:
        text.write(piece)
    text.end()
    return out.getvalue().decode("utf-8")


def test_characters_come_when_their_last_byte_does():
    out = io.BytesIO()
    text = TextOut(out)
    seen = []
    for byte in "aß€😀".encode():
        text.write(bytes([byte]))
        seen.append(out.getvalue().decode("utf-8"))
    assert seen == ["a", "a", "aß", "aß", "aß", "aß€", "aß€", "aß€", "aß€", "aß€😀"]


def test_bytes_that_are_no_text_are_replaced():
    assert written(b"a\xff", b"b\xc3", b"c") == "a\ufffdb\ufffdc\n"


def test_character_that_was_only_begun_is_replaced():
    assert written(b"a\xe2\x82") == "a\ufffd\n"


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J", "\x1b]0;title\x07", "\r", "\x08", "\x7f", "\x00", "\x9b2J", "\u202e", "\u2066"],
)
def test_nothing_is_obeyed_by_a_terminal(text):
    out = written(b"a" + text.encode() + b"b")
    assert text[0] not in out
    assert out.startswith("a\ufffd")
    assert out.endswith("b\n")


def test_line_ends_tabs_and_all_scripts_stay():
    text = "def f():\n\tpass\n日本 ‍ é"
    assert written(text.encode()) == text + "\n"
