"""run.toml: what a founder writes, and the RunManifest that comes of it.

Keys and defaults are here, bounds in `protocol.manifest`: a run.toml admits what a manifest does.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal, cast, get_type_hints

from pydantic import BeforeValidator, Field

from node.reporting.shown import shown
from node.settings.toml_file import Section, did_you_mean, key_text, parse_sections, read_toml
from node.trainers.model_file import founders_model
from protocol import limits
from protocol.errors import ConfigError, ManifestError
from protocol.grid import ShardSpec
from protocol.identity import PeerId
from protocol.manifest import (
    ARITHMETIC_VERSION,
    WIRE_VERSION,
    CorpusSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    Setting,
    StopSpec,
    TimingSpec,
)
from protocol.wire import INT_MAX, OneOf, Range, Scalar, Size
from training.aggregation import AGGREGATORS
from training.compression import CODECS, FEEDBACK_BITS, bits_per_element
from training.data import CORPORA, pin_corpus
from training.genesis import MODEL_FILE, SCHEMAS, shard_spec
from training.outer import OUTER_OPTIMIZERS, make_outer

GPT_SETTINGS: Mapping[str, int] = {"context": 64, "heads": 4, "layers": 2, "width": 64}
"""Some 120 000 parameters: any laptop ends a round within seconds."""

SHORT_RUN_ROUNDS = 100
MOMENTUM_SHORT, MOMENTUM_LONG = 0.5, 0.9
"""Measured: in short runs an outer momentum of 0.9 is no better than one node alone."""

CELLS_WANTED = 8
"""Few cells would leave nodes without a slice to sum; small ones cost more proof than content."""

PRESETS = ("diloco",)
"""The names of `training.diloco`, which cannot be asked here: it loads torch."""

_CELL_ELEMENTS_LEAST = 4096


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


class ModelSection(Section):
    """[model]: a built-in model by name, or one in a `file` beside this one; its settings, and the
    seed of its genesis weights."""

    name: str = "gpt"
    file: str | None = None
    seed: int = 0
    cell_elements: int | None = None
    settings: dict[str, object] = Field(default_factory=dict)


class CorpusSection(Section):
    """[corpus]: the text, and the key of the order in which samples are leased."""

    name: str = "stdlib"
    permutation_seed: int = 0


class InnerSection(Section):
    """[inner]: see InnerSpec. The numbers are those of the demo, with a longer round."""

    inner_steps: int = 50
    batch: int = 16
    learning_rate: float = 0.008
    learning_rate_floor: float = 0.1
    warmup_steps: int = 120
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    drift_max: int = 2


class OuterSection(Section):
    """[outer]: see OuterSpec. The default of `momentum` depends on the length of the run, that of
    `aggregator` on whom it trusts."""

    preset: str = "diloco"
    codec: str = "fp16"
    feedback: float = 1.0
    aggregator: str | None = None
    optimizer: str = "nesterov"
    learning_rate: float = 0.7
    momentum: float | None = None


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
    model: ModelSection = ModelSection()
    corpus: CorpusSection = CorpusSection()
    inner: InnerSection = InnerSection()
    outer: OuterSection = OuterSection()
    timing: TimingSection = TimingSection()


_KINDS = {
    "run": RunManifest,
    "stop": StopSpec,
    "model": ModelSpec,
    "corpus": CorpusSpec,
    "inner": InnerSpec,
    "outer": OuterSpec,
    "timing": TimingSpec,
}
"""Which part of the manifest has the bounds of a section's keys."""

_BOUNDS_OF_OUR_OWN = {
    "cell_elements": Annotated[int, Range(limits.CELL_ELEMENTS_MIN, limits.CELL_ELEMENTS_MAX)],
    "date": Annotated[int, Range(0, 2**53)],
}
"""Keys that have another name or another place in the manifest."""


@dataclass(frozen=True, slots=True)
class Founder:
    """Who founds a run, and when."""

    peer: PeerId
    unix_s: int


def read_run_file(path: Path) -> RunFile:
    """The run.toml at `path`, every key and bound of it checked.

    Raises ConfigError, a line for each key that is wrong: file, section, key, what is expected.
    """
    parsed = parse_sections(RunFile, read_toml(path), path)
    wrong = [*_out_of_bounds(parsed), *_unknown_names(parsed), *_impossible(parsed)]
    if wrong:
        raise ManifestError("\n".join(f"{path}: {line}" for line in wrong))
    return _with_defaults(parsed)


def build_manifest(parsed: RunFile, founder: Founder, path: Path) -> RunManifest:
    """The manifest of a new run. `path` is the file that errors name.

    Reads the corpus. Raises ConfigError for what no peer would take.
    """
    if 0 < parsed.stop.date <= founder.unix_s:
        raise ManifestError(
            f"{path}: [stop] date has passed: the run would end with its first round"
        )
    corpus = pin_corpus(parsed.corpus.name, permutation_seed=parsed.corpus.permutation_seed)
    try:
        model, shard = _model(parsed.model, path)
        _check_context(model, corpus)
        outer = OuterSpec(**parsed.outer.model_dump(), overlap=1)
        make_outer(outer)
        return RunManifest(
            wire=WIRE_VERSION,
            arithmetic=ARITHMETIC_VERSION,
            title=parsed.run.title,
            founder=founder.peer,
            created_unix_s=founder.unix_s,
            trust=parsed.run.trust,
            survive=parsed.run.survive,
            rounds=parsed.run.rounds,
            model=model,
            shards=(shard,),
            cell_elements=parsed.model.cell_elements or cell_elements_for(shard),
            corpus=corpus,
            inner=InnerSpec(**parsed.inner.model_dump()),
            outer=outer,
            timing=TimingSpec(**parsed.timing.model_dump()),
            stop=StopSpec(tokens=parsed.stop.tokens, unix_s=parsed.stop.date),
        )
    except (ValueError, ConfigError) as error:
        raise ManifestError(f"{path}: {error}") from error


def cell_elements_for(shard: ShardSpec) -> int:
    """The largest cell that leaves at least eight of them, within what a chunk holds."""
    numel = sum(tensor.numel for tensor in shard.tensors)
    wanted = max(_CELL_ELEMENTS_LEAST, numel // CELLS_WANTED)
    return min(limits.CELL_ELEMENTS_MAX, 1 << (wanted.bit_length() - 1))


def first_changed_key(before: RunFile, after: RunFile) -> str | None:
    """Where two files differ first and how, in words; None if they found the same run."""
    return _first_changed((), before.model_dump(), after.model_dump())


def _first_changed(location: tuple[str, ...], before: object, after: object) -> str | None:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            found = _first_changed((*location, key), before.get(key), after.get(key))
            if found is not None:
                return found
        return None
    # To Python 1, 1.0 and True are equal; in a manifest they are not.
    if type(before) is type(after) and before == after:
        return None
    return f"{key_text(location)} was {shown(repr(before), 60)} and is {shown(repr(after), 60)}"


def _out_of_bounds(parsed: RunFile) -> Iterator[str]:
    """A line for each value that no manifest admits."""
    for section, kind in _KINDS.items():
        bounds = get_type_hints(kind, include_extras=True) | _BOUNDS_OF_OUR_OWN
        for key, value in getattr(parsed, section):
            why = _outside(bounds.get(key), value)
            if why is not None:
                yield f"{key_text((section, key))} is {shown(repr(value), 60)}; it must be {why}"
    for key, value in parsed.model.settings.items():
        if type(value) not in (bool, int, float, str):
            yield f"[model.settings] {key} must be a number, a text, true or false"


def _outside(hint: object, value: object) -> str | None:
    """What a value should have been; None for one within its bounds, or without any."""
    bounds = list(getattr(hint, "__metadata__", ()))
    if type(value) is int and not bounds:
        bounds = [Range(0, INT_MAX)]
    for bound in bounds:
        if isinstance(bound, Range) and isinstance(value, int | float):
            # A manifest has one zero: equal values have equal bytes.
            is_negative_zero = value == 0 and math.copysign(1.0, value) < 0
            if is_negative_zero or not bound.low <= value <= bound.high:
                return f"{bound.low} to {bound.high}"
        if isinstance(bound, Size) and isinstance(value, str):
            size = len(value.encode())
            if not bound.low <= size <= bound.high:
                return f"{bound.low} to {bound.high} bytes long"
        if isinstance(bound, OneOf) and value not in bound.values:
            return " or ".join(repr(one) for one in bound.values)
    return None


def _unknown_names(parsed: RunFile) -> Iterator[str]:
    """A line for each name that no component of ours has."""
    named: list[tuple[str, str, str, Collection[str]]] = [
        ("model", "name", parsed.model.name, SCHEMAS),
        ("corpus", "name", parsed.corpus.name, CORPORA),
        ("outer", "preset", parsed.outer.preset, PRESETS),
        ("outer", "codec", parsed.outer.codec, CODECS),
        ("outer", "aggregator", parsed.outer.aggregator or "mean", AGGREGATORS),
        ("outer", "optimizer", parsed.outer.optimizer, OUTER_OPTIMIZERS),
    ]
    if parsed.model.file is not None:
        del named[0]
        if parsed.model.name not in ("gpt", MODEL_FILE):
            yield "[model] name and file are both given; leave one of them out"
    for section, key, name, known in named:
        if name not in known:
            guess = did_you_mean(name, list(known))
            yield f"{key_text((section, key))} {shown(repr(name), 60)} is unknown; {guess}"
    if parsed.model.name == "gpt" and parsed.model.file is None:
        for key in parsed.model.settings.keys() - GPT_SETTINGS.keys():
            guess = did_you_mean(key, list(GPT_SETTINGS))
            yield f"[model.settings] {key} is no setting of the model gpt; {guess}"


def _impossible(parsed: RunFile) -> Iterator[str]:
    """A line for each pair of values that a manifest admits and no run should have."""
    outer = parsed.outer
    if outer.codec in CODECS and outer.feedback == 0:
        codec = CODECS[outer.codec]()
        bits = bits_per_element(codec)
        if codec.is_biased and bits < FEEDBACK_BITS:
            yield (
                f"[outer] feedback is 0, so what the {bits:.2f} bits of {outer.codec!r} leave "
                "out is lost for good; set it to 1.0, or codec to 'int8'"
            )


def _with_defaults(parsed: RunFile) -> RunFile:
    """The file with the defaults that depend on other keys written into it."""
    outer, model = parsed.outer, parsed.model
    if outer.momentum is None:
        is_short = parsed.run.rounds < SHORT_RUN_ROUNDS
        momentum = MOMENTUM_SHORT if is_short else MOMENTUM_LONG
        outer = outer.model_copy(update={"momentum": 0.0 if outer.optimizer == "sgd" else momentum})
    if outer.aggregator is None:
        rule = "mean" if parsed.run.trust == "friends" else "default"
        outer = outer.model_copy(update={"aggregator": rule})
    if model.file is not None:
        model = model.model_copy(update={"name": MODEL_FILE})
    elif model.name == "gpt":
        model = model.model_copy(update={"settings": {**GPT_SETTINGS, **model.settings}})
    return parsed.model_copy(update={"outer": outer, "model": model})


def _model(section: ModelSection, path: Path) -> tuple[ModelSpec, ShardSpec]:
    given = cast("Mapping[str, Scalar]", section.settings)
    if section.file is not None:
        return founders_model(path.parent / section.file, given, seed=section.seed)
    settings = tuple(Setting(name, given[name]) for name in sorted(given))
    model = ModelSpec(name=section.name, settings=settings, seed=section.seed)
    return model, shard_spec(model)


def _check_context(model: ModelSpec, corpus: CorpusSpec) -> None:
    """A window of the model must fit a block of the text twice, or there is nothing to cut."""
    context = next((one.value for one in model.settings if one.name == "context"), None)
    most = corpus.block_bytes // 2
    if isinstance(context, int) and context > most:
        raise ManifestError(f"[model.settings] context is {context}; the text admits 1 to {most}")
