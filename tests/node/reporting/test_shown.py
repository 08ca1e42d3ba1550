"""Text of others is harmless once it is shown."""

import shlex
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.text.shown import as_word, shown


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
