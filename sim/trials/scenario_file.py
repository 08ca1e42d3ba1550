"""Scenario files: from TOML to a Scenario, every key and bound checked, and back to text."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, replace
from functools import partial
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, Optional, cast

from blake3 import blake3
from pydantic import AfterValidator, BeforeValidator, Field, create_model, model_validator

from node.settings.toml_file import Section, did_you_mean, parse_sections, read_toml
from protocol import limits
from protocol.errors import ConfigError
from protocol.manifest import TimingSpec
from sim.attacks.alone import lies_named, lies_of_worlds
from sim.checks.invariants import TITLES
from sim.trials.chaos import IN_EVERY_RUN, PHASES
from sim.trials.faults import CHURN, KINDS, ROLES, Rule, WorldFault
from sim.trials.scenario import (
    NOT_YET,
    PEERS_MAX,
    ROUNDS_MAX,
    TIMING,
    DeviceProfile,
    Expect,
    Limits,
    Recorded,
    Scenario,
)
from sim.world.disk import DiskSpec
from sim.world.links import Link
from training.aggregation import AGGREGATORS

SHIPPED = Path(__file__).parent.parent / "scenarios"

SECONDS_MAX = 86_400.0
RULES_MAX, FAULTS_MAX, TIMES_MAX = 64, 2048, 200
CELLS_MAX, FRAGMENTS_MAX = 256, 64

_NAME = re.compile(r"[njc]\d{2,4}")


def _span(value: object, *, low: float, high: float, is_whole: bool = False) -> tuple[float, float]:
    """A number, or [least, most]."""
    what = "a whole number" if is_whole else "a number"
    pair: list[Any] = value if isinstance(value, list) else [value, value]
    allowed = (int,) if is_whole else (int, float)
    if len(pair) != 2 or any(type(one) not in allowed for one in pair):
        raise ValueError(f"must be {what} or [least, most]")
    least, most = pair
    # A comparison with NaN is false, so NaN does not pass.
    if not low <= least <= most <= high:
        raise ValueError(f"must be {what} or [least, most] from {low:g} to {high:g}")
    return (least, most) if is_whole else (float(least), float(most))


def spans(low: float, high: float) -> BeforeValidator:
    """A pair of numbers within these."""
    return BeforeValidator(partial(_span, low=low, high=high))


def counts(low: int, high: int) -> BeforeValidator:
    """A pair of whole numbers within these."""
    return BeforeValidator(partial(_span, low=low, high=high, is_whole=True))


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    """Checks that a name is known; any other is told the closest."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"is unknown; {did_you_mean(name, list(known))}")
        return name

    return check


def node_name(name: str) -> str:
    """A node's name. What has another side is there at once, so a role cannot be it."""
    if not _NAME.fullmatch(name):
        raise ValueError('must be a node such as "n03"')
    return name


def each(check: Callable[[str], str]) -> AfterValidator:
    """Checks every name of a list."""
    return AfterValidator(lambda names: tuple(check(name) for name in names))


def victim(name: str) -> str:
    """A node's name, or a role."""
    if name not in ROLES and not _NAME.fullmatch(name):
        raise ValueError(f'must be a node such as "n03" or one of {", ".join(ROLES)}')
    return name


def as_key(error: ConfigError) -> str:
    """What is wrong with an attack, in the words of a file instead of an option."""
    return str(error).removeprefix("--attack").removeprefix(":").strip().replace("--", "")


def as_float(value: object) -> object:
    """Whole numbers as floats."""
    # In TOML 3 is a whole number, and whoever writes it as a duration means 3.0.
    return float(value) if type(value) is int and abs(value) < 2**53 else value


Pair = tuple[float, float]
Counts = tuple[int, int]
Seconds = Annotated[Pair, spans(0.0, SECONDS_MAX)]
Second = Annotated[float, BeforeValidator(as_float), Field(ge=0.0, le=SECONDS_MAX)]
Share = Annotated[float, BeforeValidator(as_float), Field(ge=0.0, le=1.0)]
Amount = Annotated[float, BeforeValidator(as_float), Field(ge=-1e6, le=1e6)]
Positive = Annotated[float, BeforeValidator(as_float), Field(gt=0.0, le=1e12)]
Limit = Annotated[float, BeforeValidator(as_float), Field(gt=0.0, le=1e6)]
Round = Annotated[int, Field(ge=0, le=ROUNDS_MAX)]
Text = Annotated[str, Field(max_length=100)]
Victims = Annotated[list[str], Field(max_length=PEERS_MAX), each(victim)]
Nodes = Annotated[list[str], Field(max_length=PEERS_MAX), each(node_name)]


# What a file may say ------------------------------------------------------------------------------


Said = dict[str, Any]
Fits = Callable[[Said], None]
"""Raises ValueError for keys that do not fit each other."""


def _keys(of: type[Any], fits: Fits | None = None, /, **keys: object) -> type[Section]:
    """A section with these keys of an `of`; where none is said with it a default is the `of`'s."""
    defaults: dict[str, Any] = {}
    for one in fields(of):
        if one.default_factory is MISSING:
            defaults[one.name] = ... if one.default is MISSING else one.default
        else:
            defaults[one.name] = Field(default_factory=one.default_factory)
    found: dict[str, Any] = {
        name: kind if isinstance(kind, tuple) else (kind, defaults[name])
        for name, kind in keys.items()
    }

    def check(said: Section) -> Section:
        if fits is not None:
            fits(dict(said))
        return said

    checks: dict[str, Any] = {"check": model_validator(mode="after")(check)}
    model: type[Section] = create_model(
        of.__name__, __base__=Section, __validators__=checks, **found
    )
    return model


def _section(of: type[Any], fits: Fits | None = None, /, **keys: object) -> object:
    """As `_keys`, and what a file says there is given as an `of`."""
    return Annotated[_keys(of, fits, **keys), AfterValidator(lambda said: of(**dict(said)))]


def _many(kind: object, least: int, most: int) -> object:
    """A list of sections."""
    sections = GenericAlias(list, (kind,))
    return Annotated[sections, Field(min_length=least, max_length=most), AfterValidator(tuple)]


def _fits_link(said: Said) -> None:
    if said["spread"] == "lognormal" and not said["latency_s"][0]:
        raise ValueError("latency_s: of a lognormal spread it must be above 0")


def _fits_rule(said: Said) -> None:
    if not said["phases"] and any(name in ROLES for name in said["who"]):
        raise ValueError("who: a role needs phases, or its moment would never come")
    if said["kind"] == CHURN and said["amount"] is not None and said["amount"][0] <= 0.0:
        raise ValueError("amount: a mean stay in rounds must be above 0")


def _fits_fault(said: Said) -> None:
    if not said["phase"] and any(name in ROLES for name in said["victims"]):
        raise ValueError("victims: a role needs a phase, or its moment would never come")


def _fits_scenario(said: Said) -> None:
    if said["faults"] and said["timetable"] is not None:
        raise ValueError("has faults and a timetable: rules are drawn from, or listed, not both")
    for fault in said["timetable"] or ():
        if fault.round > said["rounds"]:
            raise ValueError(f"has a fault in round {fault.round} of {said['rounds']}")
    if sum(rule.kind == CHURN for rule in said["faults"]) > 1:
        raise ValueError("has churn twice: one rule says who comes and goes")
    if said["audits"] and (said["trust"] != "open" or said["lag"] > 1):
        raise ValueError("has audits, which are for open runs of lag 1")
    if said["attack"]:
        try:
            lies_of_worlds(said["attack"], said["peers"][0], said["audits"])
        except ConfigError as error:
            raise ValueError(f"has an attack that does not fit: {as_key(error)}") from error


def _known_phases(names: list[str]) -> tuple[str, ...]:
    if names == ["every"]:
        return IN_EVERY_RUN
    return tuple(map(one_of([*PHASES, "every"]), names))


def _known_attack(text: str) -> str:
    try:
        if text:
            lies_named(text, PEERS_MAX)
    except ConfigError as error:
        raise ValueError(as_key(error)) from error
    return text


def _digest(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("must be 64 digits of hexadecimal")
    return text


_or_none = cast("Callable[[object], object]", Optional.__getitem__)

LINK = _section(
    Link,
    _fits_link,
    latency_s=Seconds,
    spread=Literal["uniform", "lognormal"],
    bytes_per_s=Positive,
    **dict.fromkeys(("loss", "duplication", "reordering", "clog"), Share),
    clog_s=Second,
    break_s=Positive,
)
DEVICE = _section(
    DeviceProfile,
    **dict.fromkeys(("train_s", "compute_s", "ready_s"), Seconds),
    clock_rate=Annotated[Pair, spans(0.1, 10.0)],
    wall_offset_s=Annotated[Pair, spans(-1e9, 1e9)],
    nap=Share,
    nap_s=Seconds,
)
DISK = _section(
    DiskSpec,
    **dict.fromkeys(("lose", "tear", "reorder", "fail", "slow"), Share),
    rotate_bytes=Annotated[int, Field(ge=1, le=2**40)],
)
TIMING_KEYS = _keys(
    TimingSpec, **{name: (Positive, value) for name, value in asdict(TIMING).items()}
)
RULE = _section(
    Rule,
    _fits_rule,
    kind=Annotated[str, AfterValidator(one_of([*KINDS, CHURN]))],
    times=Annotated[Counts, counts(0, TIMES_MAX)],
    rounds=Annotated[Counts, counts(0, ROUNDS_MAX)],
    phases=Annotated[list[str], Field(max_length=len(PHASES)), AfterValidator(_known_phases)],
    count=Annotated[Counts, counts(1, PEERS_MAX)],
    share=Annotated[Pair, spans(0.0, 1.0)],
    who=Victims,
    against=Nodes,
    ways=Annotated[int, Field(ge=2, le=3)],
    after_s=Seconds | None,
    duration_s=Seconds | None,
    period_s=Seconds,
    amount=Annotated[Pair, spans(-1e6, 1e6)] | None,
)
FAULT = _section(
    WorldFault,
    _fits_fault,
    kind=Annotated[str, AfterValidator(one_of(list(KINDS)))],
    round=Round,
    phase=Annotated[str, AfterValidator(lambda name: name and one_of(list(PHASES))(name))],
    after_s=Second,
    victims=Annotated[list[str], Field(min_length=1, max_length=PEERS_MAX), each(victim)],
    against=Nodes,
    duration_s=Second,
    period_s=Second,
    amount=Amount,
)
EXPECT = _section(
    Expect,
    invariants=Annotated[list[str], each(one_of(list(TITLES)))],
    finishes=bool,
    seals_after_max=Round,
    sealed_share=Share,
    recovery_s=Second,
    back_rounds=Round,
    back_share=Share,
    pace_max=Second,
    may_stop=bool,
    provisional_s=Second,
    confirms=bool,
    listed_share=Share,
    computing_share=Share,
)
LIMITS = _section(
    Limits, virtual_s=Limit, stall_s=Limit, events=Annotated[int, Field(ge=1, le=10**12)]
)
RECORDED = _section(
    Recorded,
    seed=Annotated[int, Field(ge=0, lt=2**63)],
    trace_hash=Annotated[str, AfterValidator(_digest)],
    violation=Text,
    event=Annotated[int, Field(ge=0, le=10**12)],
    version=Text,
)
FILE = _keys(
    Scenario,
    _fits_scenario,
    title=Annotated[str, Field(min_length=1, max_length=100)],
    shows=(Annotated[str, Field(max_length=1000)], ""),
    trust=Literal["friends", "open"],
    aggregator=Annotated[str, AfterValidator(one_of(list(AGGREGATORS)))],
    topology=Literal["butterfly", "gather"],
    attack=Annotated[Text, AfterValidator(_known_attack)],
    audits=Share,
    learns=bool,
    peers=Annotated[Counts, counts(1, PEERS_MAX)],
    seats=Annotated[int, Field(ge=2, le=limits.SEATS_MAX)],
    rounds=Annotated[int, Field(ge=1, le=ROUNDS_MAX)],
    cells=Annotated[int, Field(ge=1, le=CELLS_MAX)],
    fragments=Annotated[int, Field(ge=1, le=FRAGMENTS_MAX)],
    lag=Annotated[int, Field(ge=1, le=2)],
    fits_steps=bool,
    **dict.fromkeys(("rare", "real_signatures", "encoding", "lasting_share"), Share),
    **dict.fromkeys(("ends_after_s", "restart_s"), Second),
    state_bytes_per_s=Annotated[float, Field(ge=0.0, le=1e12)],
    links=_many(LINK, 1, 16),
    devices=_many(DEVICE, 1, 16),
    disk=DISK,
    timing=(TIMING_KEYS, TIMING_KEYS()),
    faults=(_many(RULE, 0, RULES_MAX), ()),
    timetable=_or_none(_many(FAULT, 0, FAULTS_MAX)),
    expect=EXPECT,
    limits=LIMITS,
    recorded=_or_none(RECORDED),
)
"""All keys of a file, in the order in which they are told; `faults` are the rules."""


# Reading ------------------------------------------------------------------------------------------


def read_scenario(text: str) -> Scenario:
    """A shipped scenario by its name, or one in a file by its path.

    Raises ConfigError naming file and key, or the scenarios that there are.
    """
    shipped = {path.stem: path for path in SHIPPED.glob("*.toml")}
    if text in NOT_YET:
        raise ConfigError(f"the scenario {text} cannot be run yet: {NOT_YET[text]}")
    if text in shipped:
        return read_scenario_file(shipped[text])
    if not text.endswith(".toml"):
        guess = did_you_mean(text, sorted(shipped))
        raise ConfigError(f"there is no scenario {text}; {guess}. A file's name ends in .toml.")
    return read_scenario_file(Path(text))


def shipped_scenarios() -> list[Scenario]:
    """All of them, by name."""
    return [read_scenario_file(path) for path in sorted(SHIPPED.glob("*.toml"))]


def read_scenario_file(path: Path) -> Scenario:
    """The scenario in a file. Raises ConfigError, a line for each key that is wrong."""
    return scenario_of(read_toml(path), path)


def scenario_of(content: Mapping[str, object], path: Path) -> Scenario:
    """The scenario of a parsed file. `path` is what errors name."""
    said: dict[str, Any] = dict(parse_sections(FILE, content, path))
    try:
        timing = TimingSpec(**dict(said.pop("timing")))
    except ValueError as error:
        raise ConfigError(f"{path}: [timing] {error}") from error
    shows, rules = " ".join(said.pop("shows").split()), said.pop("faults")
    return Scenario(name=path.stem, shows=shows, timing=timing, rules=rules, **said)


# Writing ------------------------------------------------------------------------------------------

_CAME_LATER: Mapping[str, object] = {
    "topology": "butterfly",
    "seats": limits.SEATS_MAX,
    "fits_steps": False,
}
"""Keys that are said only where they differ from this: digests of scenarios from before stay."""

_EXPECT_CAME_LATER: Mapping[str, float] = {
    "back_share": 1.0,
    "listed_share": 0.0,
    "computing_share": 0.0,
}
"""Likewise of [expect]."""

_NOT_IN_FILES = ("name", "rules", "timetable", "recorded", "without")


def scenario_text(scenario: Scenario) -> str:
    """The scenario as TOML; reading it gives an equal one, but for its name."""
    plain = asdict(scenario)
    top = {key: value for key, value in plain.items() if _is_value(value)}
    for key, value in _CAME_LATER.items():
        if top[key] == value:
            del top[key]
    for key, value in _EXPECT_CAME_LATER.items():
        if plain["expect"][key] == value:
            del plain["expect"][key]
    lines = [_pair(key, value) for key, value in top.items() if key not in _NOT_IN_FILES]
    if scenario.timetable is not None:
        rows = [f"    {_value(fault.table())}," for fault in scenario.timetable]
        lines += ["timetable = [", *rows, "]"]
    for section in ("disk", "timing", "expect", "limits", "recorded"):
        if plain[section] is not None:
            lines += _section_text(f"[{section}]", plain[section])
    for name in ("links", "devices"):
        for one in plain[name]:
            lines += _section_text(f"[[{name}]]", one)
    for rule in scenario.rules:
        lines += _section_text("[[faults]]", _rule_table(rule))
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


def _section_text(head: str, content: Mapping[str, object]) -> list[str]:
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
