"""The sections of a run.toml: their keys and defaults. Bounds are in `protocol.manifest`."""

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from node.settings.toml_file import Section
from protocol import limits

GPT_SETTINGS: Mapping[str, int] = {"context": 64, "heads": 4, "layers": 2, "width": 64}
"""Some 120 000 parameters: any laptop ends a round within seconds."""


class RunSection(Section):
    """[run]: what everybody sees, whom it trusts, how long it goes on."""

    title: str
    trust: Literal["friends", "open"] = "friends"
    survive: Literal["any", "quorum"] = "any"
    rounds: int = 200


def _unix_s(value: object) -> object:
    """Seconds of a TOML date, or of the text of one; without a zone it is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError("must be a date like 2027-01-31 or 2027-01-31T18:00:00Z") from error
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return math.ceil(moment.timestamp())
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp())
    raise ValueError("must be a date like 2027-01-31 or 2027-01-31T18:00:00Z")


class StopSection(Section):
    """[stop]: what else ends the run; `date` is kept as unix seconds, 0 stands for never."""

    tokens: int = 0
    date: Annotated[int, BeforeValidator(_unix_s)] = 0


class AccessSection(Section):
    """[access]: who gets in; `allow` has peer ids as text."""

    mode: Literal["link", "invited"] = "link"
    allow: list[str] = Field(default_factory=list)


class AdmissionSection(Section):
    """[admission]: see AdmissionSpec. What is left out is nothing among friends; in an open run
    whom nobody invited pays for its seat, and newcomers come to their weight slowly."""

    puzzle_bits: int | None = None
    probation: int | None = None
    ramp: int | None = None
    seats: int = limits.SEATS_MAX


class AuditsSection(Section):
    """[audits]: see AuditSpec."""

    rate: float = 0.0
    segments: int = 8
    unaudited: float = 0.25


class ModelSection(Section):
    """[model]: a built-in model by name, or one in a `file` beside this one; its settings, and the
    seed of its genesis weights. `first_values` says that those of the file are not meant."""

    name: str = "gpt"
    file: str | None = None
    first_values: str | None = None
    seed: int = 0
    cell_elements: int | None = None
    settings: dict[str, object] = Field(default_factory=dict)


class CorpusSection(Section):
    """[corpus]: the text, and the key of the order in which samples are leased."""

    name: str = "stdlib"
    permutation_seed: int = 0


class InnerSection(Section):
    """[inner]: see InnerSpec. The numbers are those of the demo; `inner_steps`, `optimizer` and
    `sam_radius` are the preset's."""

    inner_steps: int | None = None
    batch: int = 16
    learning_rate: float = 0.008
    learning_rate_floor: float = 0.1
    warmup_steps: int = 120
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    drift_max: int = 2
    optimizer: str | None = None
    sam_radius: float | None = None


class ThenSection(Section):
    """[outer.then]: see ThenSpec. What is left out is the preset's."""

    preset: str
    from_round: int
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None


class OuterSection(Section):
    """[outer]: see OuterSpec. What is left out is the preset's; `aggregator` follows from whom the
    run trusts where the preset names none. In so many `fragments` the model is cut, of which each
    round syncs the next; `overlap` rounds are in flight at a time. The `topology` follows from what
    the codec sends. The preset auto begins in the bits that suit `uplink_mbit`, what lines send.
    `then` is the method that follows, if one does."""

    preset: str = "diloco"
    codec: str | None = None
    codec_settings: dict[str, object] = Field(default_factory=dict)
    feedback: float | None = None
    aggregator: str | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    fragments: int | None = None
    overlap: int | None = None
    topology: Literal["butterfly", "gather"] | None = None
    uplink_mbit: float | None = None
    then: ThenSection | None = None


class TimingSection(Section):
    """[timing]: see TimingSpec; for homes, where the demo's are for one machine."""

    deadline_floor_s: float = 5.0
    deadline_cap_s: float = 60.0
    heartbeat_s: float = 1.0
    suspect_s: float = 8.0


class RunFile(Section):
    """A whole run.toml. Two that parse to equal values found the same run, whatever they say."""

    run: RunSection
    stop: StopSection = StopSection()
    access: AccessSection = AccessSection()
    admission: AdmissionSection = AdmissionSection()
    audits: AuditsSection = AuditsSection()
    model: ModelSection = ModelSection()
    corpus: CorpusSection = CorpusSection()
    inner: InnerSection = InnerSection()
    outer: OuterSection = OuterSection()
    timing: TimingSection = TimingSection()
