"""Valid inputs bent in the ways that find bugs: strategies of hypothesis."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.target import Target

INPUT_BYTES_MAX = 96 * 1024
"""A mutant does not grow beyond: all bounds of the wire are below."""

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**62)
_LENGTHS = (1, 2, 4, 8)

Step = tuple[str, int, int, bytes]

_STEPS = st.tuples(
    st.sampled_from(("flip", "put", "cut", "drop", "insert", "repeat", "length", "splice", "grow")),
    st.integers(0, 2**16),
    st.integers(0, 2**16),
    st.binary(max_size=9),
)


def bend(data: bytes, step: Step, other: bytes) -> bytes:
    """`data` after one step. `other` is another example, for splicing."""
    kind, place, number, extra = step
    at = place % (len(data) + 1)
    head, tail = data[:at], data[at:]
    match kind:
        case "flip" if tail:
            return head + bytes([tail[0] ^ 1 << number % 8]) + tail[1:]
        case "put" if tail:
            return head + bytes([number % 256]) + tail[1:]
        case "cut":
            return head
        case "drop":
            return head + tail[1 + number % 40 :]
        case "insert":
            return head + extra + tail
        case "repeat":
            return head + tail[: number % 64] * (number % 9) + tail
        case "length":
            size = _LENGTHS[number % 4]
            value = _NUMBERS[number % len(_NUMBERS)] % (1 << 8 * size)
            number_bytes = value.to_bytes(size, "big" if number & 64 else "little")
            return head + number_bytes + tail[size:]
        case "splice":
            return head + other[number % (len(other) + 1) :]
        case "grow":
            return head + bytes(number % 5000) + tail
    return data


def mutants(examples: tuple[bytes, ...]) -> SearchStrategy[bytes]:
    """Examples after one to six steps."""

    def bent(drawn: tuple[bytes, bytes, list[Step]]) -> bytes:
        data, other, steps = drawn
        for step in steps:
            data = bend(data, step, other)[:INPUT_BYTES_MAX]
        return data

    one = st.sampled_from(examples)
    return st.tuples(one, one, st.lists(_STEPS, min_size=1, max_size=6)).map(bent)


def _deep() -> list[Any]:
    nest: list[Any] = []
    for _ in range(60):
        nest = [nest]
    return nest


_LEAVES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, -(2**70), 0.5, -0.0, 1e308),
    *(math.nan, math.inf, -math.inf, "", "x", "\x00", "\ud800", "é" * 300, "1", "ff", "/", "-"),
    *([], {}, [[]], [1, "a"], {"a": 1}, {"version": 1}, _deep()),
)
Place = tuple[str | int, ...]


def places(tree: object, here: Place = ()) -> Iterator[Place]:
    """Every node of a JSON value."""
    yield here
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*here, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from places(value, (*here, index))


def replaced(tree: object, place: Place, change: Callable[[Any], None], value: object) -> object:
    """A copy of `tree` with `value` at `place`, or without it where `change` takes it out."""
    if not place:
        return value
    root: Any = copy.deepcopy(tree)
    node = root
    for step in place[:-1]:
        node = node[step]
    change((node, place[-1]))
    return root


def tree_mutants(trees: tuple[object, ...]) -> SearchStrategy[object]:
    """JSON values with up to three nodes replaced, taken out, or given a neighbour."""

    def bent(drawn: tuple[object, list[tuple[str, int, object]]]) -> object:
        tree, steps = drawn
        for kind, number, value in steps:
            found = list(places(tree))
            place = found[number % len(found)]

            def change(
                where: tuple[Any, str | int], kind: str = kind, value: object = value
            ) -> None:
                node, key = where
                if kind == "remove":
                    del node[key]
                elif kind == "add" and isinstance(node, dict):
                    node[f"{key}x"] = value
                else:
                    node[key] = value

            tree = replaced(tree, place, change, value)
        return tree

    values = st.sampled_from(_LEAVES) | st.integers() | st.floats() | st.text(max_size=20)
    step = st.tuples(st.sampled_from(("put", "remove", "add")), st.integers(0, 2**16), values)
    return st.tuples(st.sampled_from(trees), st.lists(step, min_size=1, max_size=3)).map(bent)


TREE_BOMBS = (
    b"[" * 50_000,
    b'{"a":' * 20_000,
    b"[" * 50_000 + b"]" * 50_000,
    b"9" * 5000,
    b"[[]]" * 9,
)
"""Nested until the parser's stack is full; a number that takes long to read."""


def inputs(target: Target) -> SearchStrategy[bytes]:
    """Bytes from nowhere, bent examples, bent bodies within a sound envelope, bent trees."""
    strategies: list[SearchStrategy[bytes]] = [st.binary(max_size=200)]
    examples, trees = target.examples(), target.trees()
    if examples:
        strategies.append(mutants(examples).map(target.wrap))
        strategies.append(mutants(tuple(map(target.wrap, examples))))
        strategies.append(st.binary(max_size=200).map(target.wrap))
    if trees and target.dump is not None:
        strategies.append(tree_mutants(trees).map(target.dump))
        strategies.append(mutants(tuple(map(target.dump, trees))))
        strategies.append(st.sampled_from(TREE_BOMBS))
    return st.one_of(strategies)


def json_bytes(tree: object) -> bytes:
    """A mutated tree as JSON; what JSON has no word for as Python's readers spell it."""
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def toml_bytes(tree: object) -> bytes:
    """A mutated tree as TOML; what TOML has no word for is written as JSON writes it."""
    lines: list[str] = []
    sections: list[tuple[str, object]] = [("", tree)]
    while sections:
        name, section = sections.pop(0)
        if not isinstance(section, dict):
            lines.append(f"{name or 'root'} = {_toml_value(section)}")
            continue
        if name:
            lines.append(f"[{name}]")
        for key, value in section.items():
            if isinstance(value, dict):
                sections.append((f"{name}.{key}" if name else key, value))
            else:
                lines.append(f"{key} = {_toml_value(value)}")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_value(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}[json.dumps(value)]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value)
