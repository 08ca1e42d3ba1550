"""Scenarios as text: what a file of one says, so that a failure can be kept, and its digest."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace

from blake3 import blake3

from protocol import limits
from sim.trials.faults import Rule
from sim.trials.scenario import Scenario

_CAME_LATER: Mapping[str, object] = {"topology": "butterfly", "seats": limits.SEATS_MAX}
"""Keys that are said only where they differ from this: digests of scenarios from before stay."""

_NOT_IN_FILES = ("name", "rules", "timetable", "recorded", "without")


def scenario_text(scenario: Scenario) -> str:
    """The scenario as TOML; reading it gives an equal one, but for its name."""
    plain = asdict(scenario)
    top = {key: value for key, value in plain.items() if _is_value(value)}
    for key, value in _CAME_LATER.items():
        if top[key] == value:
            del top[key]
    if scenario.expect.back_share == 1.0:
        del plain["expect"]["back_share"]
    lines = [_pair(key, value) for key, value in top.items() if key not in _NOT_IN_FILES]
    if scenario.timetable is not None:
        rows = [f"    {_value(fault.table())}," for fault in scenario.timetable]
        lines += ["timetable = [", *rows, "]"]
    for section in ("disk", "timing", "expect", "limits", "recorded"):
        if plain[section] is not None:
            lines += _section(f"[{section}]", plain[section])
    for name in ("links", "devices"):
        for one in plain[name]:
            lines += _section(f"[[{name}]]", one)
    for rule in scenario.rules:
        lines += _section("[[faults]]", _rule_table(rule))
    return "\n".join(lines) + "\n"


def scenario_digest(scenario: Scenario) -> str:
    """Names what was run, whatever it is called and whatever came of it; 16 digits."""
    text = scenario_text(replace(scenario, name="", recorded=None))
    return blake3(text.encode()).hexdigest()[:16]


def _rule_table(rule: Rule) -> dict[str, object]:
    plain = asdict(rule)
    defaults = asdict(Rule(kind=rule.kind))
    return {key: value for key, value in plain.items() if key == "kind" or value != defaults[key]}


def _is_value(value: object) -> bool:
    """Whether it is a value of a key, not a section or a list of sections."""
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(one, int | float) for one in value)
    return isinstance(value, str | int | float)


def _section(head: str, content: Mapping[str, object]) -> list[str]:
    return ["", head, *(_pair(key, value) for key, value in content.items())]


def _pair(key: str, value: object) -> str:
    return f"{key} = {_value(value)}"


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(_pair(key, one) for key, one in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
        case str():
            # TOML's basic strings are JSON's, but for one character more that must be escaped.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int():
            return str(value)
        case float():
            assert math.isfinite(value), value
            return repr(value)
        case _:
            raise AssertionError(f"no value of a scenario: {value!r}")
