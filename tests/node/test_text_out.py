"""What a model writes reaches a terminal as text, and as nothing else."""

import io

import pytest

from node.text.shown import TextOut


def shown(*pieces: bytes) -> str:
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
    assert shown(b"a\xff", b"b\xc3", b"c") == "a\ufffdb\ufffdc\n"


def test_character_that_was_only_begun_is_replaced():
    assert shown(b"a\xe2\x82") == "a\ufffd\n"


@pytest.mark.parametrize(
    "text",
    ["\x1b[2J", "\x1b]0;title\x07", "\r", "\x08", "\x7f", "\x00", "\x9b2J", "\u202e", "\u2066"],
)
def test_nothing_is_obeyed_by_a_terminal(text):
    out = shown(b"a" + text.encode() + b"b")
    assert text[0] not in out
    assert out.startswith("a\ufffd")
    assert out.endswith("b\n")


def test_line_ends_tabs_and_all_scripts_stay():
    text = "def f():\n\tpass\n日本 ‍ é"
    assert shown(text.encode()) == text + "\n"
