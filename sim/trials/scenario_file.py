"""Scenario files: from TOML to a Scenario, every key and bound checked."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from node.settings.toml_file import Section, did_you_mean, parse_sections, read_toml
from protocol import limits
from protocol.errors import ConfigError
from protocol.manifest import TimingSpec
from sim.attacks.alone import lies_named, lies_of_worlds
from sim.trials.faults import CHURN, KINDS, ROLES, Rule, WorldFault
from sim.trials.phases import IN_EVERY_RUN, PHASES
from sim.trials.scenario import (
    NOT_YET,
    PEERS_MAX,
    ROUNDS_MAX,
    DeviceProfile,
    Expect,
    Limits,
    Recorded,
    Scenario,
)
from sim.trials.scenario_values import (
    Amount,
    Counts,
    Pair,
    Positive,
    Second,
    Seconds,
    Share,
    Victims,
    as_float,
    as_key,
    counts,
    node_name,
    one_of,
    spans,
    victim,
)
from sim.world.disk import DiskSpec
from sim.world.links import Link
from training.aggregation import AGGREGATORS

SHIPPED = Path(__file__).parent.parent / "scenarios"

RULES_MAX, FAULTS_MAX, TIMES_MAX = 64, 2048, 200
CELLS_MAX, FRAGMENTS_MAX = 256, 64
INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I9")

_AS_WRITTEN = (
    *("trust", "aggregator", "topology", "attack", "audits", "learns", "peers", "seats", "rounds"),
    *("cells", "fragments", "lag", "rare", "real_signatures", "encoding", "lasting_share"),
    *("ends_after_s", "restart_s", "state_bytes_per_s"),
)
"""Keys that a Scenario has as they are."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class LinkSection(Section):
    """[[links]]: see Link."""

    latency_s: Seconds = (0.01, 0.06)
    spread: Literal["uniform", "lognormal"] = "uniform"
    bytes_per_s: Positive = 10e6
    loss: Share = 0.0
    duplication: Share = 0.0
    reordering: Share = 0.0
    clog: Share = 0.0
    clog_s: Second = 2.0
    break_s: Positive = 30.0

    @model_validator(mode="after")
    def _fits(self) -> "LinkSection":
        if self.spread == "lognormal" and not self.latency_s[0]:
            raise ValueError("latency_s: of a lognormal spread it must be above 0")
        return self


class DeviceSection(Section):
    """[[devices]]: see DeviceProfile."""

    train_s: Seconds = (0.8, 1.4)
    compute_s: Seconds = (0.005, 0.015)
    ready_s: Seconds = (0.1, 0.5)
    clock_rate: Annotated[Pair, spans(0.1, 10.0)] = (1.0, 1.0)
    wall_offset_s: Annotated[Pair, spans(-1e9, 1e9)] = (0.0, 0.0)
    nap: Share = 0.0
    nap_s: Seconds = (1.0, 6.0)


class DiskSection(Section):
    """[disk]: see DiskSpec."""

    lose: Share = 0.5
    tear: Share = 0.5
    reorder: Share = 0.5
    fail: Share = 0.0
    slow: Share = 0.25
    rotate_bytes: Annotated[int, Field(ge=1, le=2**40)] = 16 << 10


class TimingSection(Section):
    """[timing]: see TimingSpec."""

    deadline_floor_s: Positive = 1.0
    deadline_cap_s: Positive = 10.0
    heartbeat_s: Positive = 0.5
    suspect_s: Positive = 2.0


class RuleSection(Section):
    """[[faults]]: see Rule."""

    kind: str
    times: Annotated[Counts, counts(0, TIMES_MAX)] = (1, 1)
    rounds: Annotated[Counts, counts(0, ROUNDS_MAX)] = (2, ROUNDS_MAX)
    phases: Annotated[list[str], Field(max_length=len(PHASES))] = Field(default_factory=list)
    count: Annotated[Counts, counts(1, PEERS_MAX)] = (1, 1)
    share: Annotated[Pair, spans(0.0, 1.0)] = (0.0, 0.0)
    who: Victims = Field(default_factory=list)
    against: Victims = Field(default_factory=list)
    ways: Annotated[int, Field(ge=2, le=3)] = 2
    after_s: Seconds | None = None
    duration_s: Seconds | None = None
    period_s: Seconds = (0.0, 0.0)
    amount: Annotated[Pair, spans(-1e6, 1e6)] | None = None

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        return one_of([*KINDS, CHURN])(kind)

    @field_validator("phases")
    @classmethod
    def _known_phases(cls, phases: list[str]) -> list[str]:
        if phases == ["every"]:
            return list(IN_EVERY_RUN)
        return [one_of([*PHASES, "every"])(name) for name in phases]

    @field_validator("who")
    @classmethod
    def _known_victims(cls, names: list[str]) -> list[str]:
        return [victim(name) for name in names]

    @field_validator("against")
    @classmethod
    def _known_nodes(cls, names: list[str]) -> list[str]:
        return [node_name(name) for name in names]

    @model_validator(mode="after")
    def _fits(self) -> "RuleSection":
        if not self.phases and any(name in ROLES for name in self.who):
            raise ValueError("who: a role needs phases, or its moment would never come")
        if self.kind == CHURN and self.amount is not None and self.amount[0] <= 0.0:
            raise ValueError("amount: a mean stay in rounds must be above 0")
        return self

    def rule(self) -> Rule:
        """The rule."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values |= {name: tuple(values[name]) for name in ("phases", "who", "against")}
        return Rule(**values)


class FaultSection(Section):
    """An entry of the timetable: see Fault."""

    kind: str
    round: Annotated[int, Field(ge=0, le=ROUNDS_MAX)] = 1
    phase: str = ""
    after_s: Second = 0.0
    victims: Annotated[list[str], Field(min_length=1, max_length=PEERS_MAX)]
    against: Victims = Field(default_factory=list)
    duration_s: Second = 0.0
    period_s: Second = 0.0
    amount: Amount = 0.0

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, kind: str) -> str:
        return one_of(list(KINDS))(kind)

    @field_validator("phase")
    @classmethod
    def _known_phase(cls, phase: str) -> str:
        return one_of(list(PHASES))(phase) if phase else phase

    @field_validator("victims")
    @classmethod
    def _known_victims(cls, names: list[str]) -> list[str]:
        return [victim(name) for name in names]

    @field_validator("against")
    @classmethod
    def _known_nodes(cls, names: list[str]) -> list[str]:
        return [node_name(name) for name in names]

    @model_validator(mode="after")
    def _fits(self) -> "FaultSection":
        if not self.phase and any(name in ROLES for name in self.victims):
            raise ValueError("victims: a role needs a phase, or its moment would never come")
        return self

    def fault(self) -> WorldFault:
        """The fault."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return WorldFault(**values | {name: tuple(values[name]) for name in ("victims", "against")})


class ExpectSection(Section):
    """[expect]: see Expect."""

    invariants: list[str] = Field(default_factory=list)
    finishes: bool = True
    seals_after_max: Annotated[int, Field(ge=0, le=ROUNDS_MAX)] = 1
    sealed_share: Share = 1.0
    recovery_s: Second = 0.0
    back_rounds: Annotated[int, Field(ge=0, le=ROUNDS_MAX)] = 0
    back_share: Share = 1.0
    pace_max: Second = 0.0
    may_stop: bool = False
    provisional_s: Second = 0.0
    confirms: bool = False

    @field_validator("invariants")
    @classmethod
    def _known_invariants(cls, names: list[str]) -> list[str]:
        return [one_of(INVARIANTS)(name) for name in names]


class LimitsSection(Section):
    """[limits]: see Limits."""

    virtual_s: Annotated[float, BeforeValidator(as_float), Field(gt=0.0, le=1e6)] = 600.0
    stall_s: Annotated[float, BeforeValidator(as_float), Field(gt=0.0, le=1e6)] = 120.0
    events: Annotated[int, Field(ge=1, le=10**12)] = 20_000_000


class RecordedSection(Section):
    """[recorded]: see Recorded."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    trace_hash: str
    violation: Annotated[str, Field(max_length=100)] = ""
    event: Annotated[int, Field(ge=0, le=10**12)] = 0
    version: Annotated[str, Field(max_length=100)] = ""

    @field_validator("trace_hash")
    @classmethod
    def _is_digest(cls, text: str) -> str:
        if not _DIGEST.fullmatch(text):
            raise ValueError("must be 64 digits of hexadecimal")
        return text


class ScenarioFile(Section):
    """A whole scenario file."""

    title: Annotated[str, Field(min_length=1, max_length=100)]
    shows: Annotated[str, Field(max_length=1000)] = ""
    trust: Literal["friends", "open"] = "friends"
    aggregator: str = "mean"
    topology: Literal["butterfly", "gather"] = "butterfly"
    attack: Annotated[str, Field(max_length=100)] = ""
    audits: Share = 0.0
    learns: bool = False
    peers: Annotated[Counts, counts(1, PEERS_MAX)] = (8, 32)
    seats: Annotated[int, Field(ge=2, le=limits.SEATS_MAX)] = limits.SEATS_MAX
    rounds: Annotated[int, Field(ge=1, le=ROUNDS_MAX)] = 12
    cells: Annotated[int, Field(ge=1, le=CELLS_MAX)] = 6
    fragments: Annotated[int, Field(ge=1, le=FRAGMENTS_MAX)] = 1
    lag: Annotated[int, Field(ge=1, le=2)] = 1
    rare: Share = 0.0
    real_signatures: Share = 0.0
    encoding: Share = 0.0
    lasting_share: Share = 1.0
    ends_after_s: Second = 0.0
    restart_s: Second = 0.0
    state_bytes_per_s: Annotated[float, Field(ge=0.0, le=1e12)] = 0.0
    links: Annotated[list[LinkSection], Field(min_length=1, max_length=16)] = Field(
        default_factory=lambda: [LinkSection()]
    )
    devices: Annotated[list[DeviceSection], Field(min_length=1, max_length=16)] = Field(
        default_factory=lambda: [DeviceSection()]
    )
    disk: DiskSection = DiskSection()
    timing: TimingSection = TimingSection()
    faults: Annotated[list[RuleSection], Field(max_length=RULES_MAX)] = Field(default_factory=list)
    timetable: Annotated[list[FaultSection], Field(max_length=FAULTS_MAX)] | None = None
    expect: ExpectSection = ExpectSection()
    limits: LimitsSection = LimitsSection()
    recorded: RecordedSection | None = None

    @field_validator("aggregator")
    @classmethod
    def _known_rule(cls, name: str) -> str:
        return one_of(list(AGGREGATORS))(name)

    @field_validator("attack")
    @classmethod
    def _known_attack(cls, text: str) -> str:
        try:
            if text:
                lies_named(text, PEERS_MAX)
        except ConfigError as error:
            raise ValueError(as_key(error)) from error
        return text

    @model_validator(mode="after")
    def _fits(self) -> "ScenarioFile":
        if self.faults and self.timetable is not None:
            raise ValueError(
                "has faults and a timetable: rules are drawn from, or listed, not both"
            )
        for fault in self.timetable or ():
            if fault.round > self.rounds:
                raise ValueError(f"has a fault in round {fault.round} of {self.rounds}")
        if sum(rule.kind == CHURN for rule in self.faults) > 1:
            raise ValueError("has churn twice: one rule says who comes and goes")
        if self.audits and (self.trust != "open" or self.fragments > 1 or self.lag > 1):
            raise ValueError("has audits, which are for open runs of one fragment and lag 1")
        if self.attack:
            try:
                lies_of_worlds(self.attack, self.peers[0], self.audits)
            except ConfigError as error:
                raise ValueError(f"has an attack that does not fit: {as_key(error)}") from error
        return self


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
    found = parse_sections(ScenarioFile, content, path)
    try:
        timing = TimingSpec(**found.timing.model_dump())
    except ValueError as error:
        raise ConfigError(f"{path}: [timing] {error}") from error
    expect = found.expect.model_dump()
    table = found.timetable
    return Scenario(
        name=path.stem,
        title=found.title,
        shows=" ".join(found.shows.split()),
        links=tuple(Link(**one.model_dump()) for one in found.links),
        devices=tuple(DeviceProfile(**one.model_dump()) for one in found.devices),
        disk=DiskSpec(**found.disk.model_dump()),
        timing=timing,
        rules=tuple(one.rule() for one in found.faults),
        timetable=None if table is None else tuple(one.fault() for one in table),
        expect=Expect(**expect | {"invariants": tuple(expect["invariants"])}),
        limits=Limits(**found.limits.model_dump()),
        recorded=None if found.recorded is None else Recorded(**found.recorded.model_dump()),
        **{name: getattr(found, name) for name in _AS_WRITTEN},
    )
