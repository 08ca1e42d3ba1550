"""JSON lines that every reader takes."""

import json
import math

import pytest

from node.text.shown import json_text


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
