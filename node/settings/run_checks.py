"""What is wrong with a run.toml: a line for each key, with what to write instead."""

import math
from collections.abc import Collection, Iterable, Iterator
from typing import get_args, get_type_hints

from node.settings.sections import BUTTERFLY, GATHER, GPT_SETTINGS, RunFile
from node.settings.toml_file import Section, did_you_mean, key_text
from node.text.shown import shown
from protocol.errors import ConfigError
from protocol.manifest import Name
from protocol.wire import INT_MAX, OneOf, Range, Size, Spelled
from training.aggregation import AGGREGATORS
from training.compression import (
    CODECS,
    FEEDBACK_BITS,
    bits_per_element,
    coarsest_of,
    codec_named,
    with_grades,
)
from training.data.corpus import CORPORA
from training.methods.presets import (
    AUTO,
    IN_PROCESS,
    NOT_YET,
    PRESETS,
    is_paced,
    wrong_flight,
    wrong_then,
)
from training.models.genesis import MODEL_FILE, SCHEMAS
from training.outer.optimizers import OUTER_OPTIMIZERS

RESULT_BITS = 8
"""R7: of an element of a result, at least."""

_NAME = next(one for one in get_args(Name) if isinstance(one, Spelled)).pattern


def out_of_bounds(parsed: RunFile) -> Iterator[str]:
    """A line for each value that no manifest admits."""
    sections: dict[tuple[str, ...], Section | None] = {(name,): part for name, part in parsed}
    sections["outer", "then"] = parsed.outer.then
    for where, section in sections.items():
        if section is None:
            continue
        # A key's bounds are its own, or those of the part of the manifest that its section becomes.
        hints = get_type_hints(getattr(section, "law", object), include_extras=True)
        for key, value in section:
            own = type(section).model_fields[key].metadata
            of_law: Iterable[object] = getattr(hints.get(key), "__metadata__", ())
            yield from _bounded((*where, key), own or of_law, value)
    for key, value in parsed.model.settings.items():
        if _NAME.fullmatch(key) is None:
            yield (
                f"[model.settings] {shown(repr(key), 60)} is no name of a setting: "
                "a to z, 0 to 9 and _ make one, of at most 64 characters"
            )
        if type(value) not in (bool, int, float, str):
            yield f"[model.settings] {key} must be a number, a text, true or false"


def _bounded(where: tuple[str, ...], bounds: Iterable[object], value: object) -> Iterator[str]:
    why = _outside(list(bounds), value)
    if why is not None:
        yield f"{key_text(where)} is {shown(repr(value), 60)}; it must be {why}"


def _outside(bounds: list[object], value: object) -> str | None:
    """What a value should have been; None for one within its bounds, or without any."""
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
        if isinstance(bound, OneOf) and value is not None and value not in bound.values:
            return " or ".join(repr(one) for one in bound.values)
    return None


def unknown_names(parsed: RunFile) -> Iterator[str]:
    """A line for each name that no component of ours has."""
    named: list[tuple[str, str, str | None, Collection[str]]] = [
        ("model", "name", parsed.model.name, SCHEMAS),
        ("corpus", "name", parsed.corpus.name, CORPORA),
        ("outer", "preset", parsed.outer.preset, PRESETS),
        ("outer", "codec", parsed.outer.codec, CODECS),
        ("outer", "aggregator", parsed.outer.aggregator, AGGREGATORS),
        ("outer", "optimizer", parsed.outer.optimizer, OUTER_OPTIMIZERS),
    ]
    if parsed.corpus.path is not None:
        del named[1]
        if parsed.corpus.name != "stdlib":
            yield "[corpus] name and path are both given; leave one of them out"
    if parsed.model.file is not None:
        del named[0]
        if parsed.model.name not in ("gpt", MODEL_FILE):
            yield "[model] name and file are both given; leave one of them out"
    elif parsed.model.first_values is not None:
        yield "[model] first_values is for a model in a file; leave it out"
    for section, key, name, known in named:
        if name is None or name in known:
            continue
        if key == "preset" and name in NOT_YET:
            yield f"[outer] preset {name!r} is not there yet: it needs {NOT_YET[name]}"
        else:
            yield _unknown((section, key), name, known)
    yield from _unknown_in_then(parsed)
    if parsed.model.name == "gpt" and parsed.model.file is None:
        for key in parsed.model.settings.keys() - GPT_SETTINGS.keys():
            guess = did_you_mean(key, list(GPT_SETTINGS))
            yield f"[model.settings] {key} is no setting of the model gpt; {guess}"


def _unknown(where: tuple[str, ...], name: str, known: Collection[str]) -> str:
    guess = did_you_mean(name, list(known))
    return f"{key_text(where)} {shown(repr(name), 60)} is unknown; {guess}"


def not_in_nodes(expanded: RunFile) -> Iterator[str]:
    """A line for a method that trains in one process alone, of a file whose names are known."""
    name = expanded.outer.preset
    preset = PRESETS[name](expanded.run.rounds)
    if preset.lacks:
        promise = "" if preset.common_anchor else ": no bit promise, and for friends alone"
        yield (
            f"[outer] preset {name!r} needs {preset.lacks}{promise}; no node runs it yet, only "
            f"'barnraise compare {name}' in one process: set it to {IN_PROCESS[name].instead!r}"
        )


def impossible(expanded: RunFile) -> Iterator[str]:
    """A line for each combination that a manifest admits and no run should have; of a file whose
    names are known, its preset written out."""
    outer = expanded.outer
    assert outer.codec is not None, "written out"
    if outer.uplink_mbit is not None and outer.preset != AUTO:
        yield f"[outer] uplink_mbit is for the preset {AUTO!r} alone; leave it out"
    if expanded.audits.rate and is_paced(outer.preset):
        yield (
            f"[outer] preset {outer.preset!r} lets each node take as many steps as it likes, and "
            "audits run segments of equal steps; set [audits] rate to 0, or another preset"
        )
    yield from _with_numbers(expanded)
    yield from _audited(expanded)
    if expanded.run.trust == "friends" and expanded.admission.ramp:
        yield (
            f"[admission] ramp is {expanded.admission.ramp}, and friends weigh what they did at "
            "once; set it to 0, or [run] trust to 'open'"
        )
    yield from _with_signs(expanded)
    yield from _with_variates(expanded)
    yield from _with_own_weights(expanded)
    yield from _in_flight(expanded)
    yield from _impossible_then(expanded)
    try:
        codec = codec_named(outer.codec, outer.codec_settings)
    except ConfigError as error:
        yield f"[outer.codec_settings] {error}"
        return
    bits, least = bits_per_element(codec), bits_per_element(coarsest_of(codec))
    is_own = PRESETS[outer.preset](expanded.run.rounds).has_own_weights
    if outer.feedback == 0 and codec.is_biased and least < FEEDBACK_BITS and not is_own:
        yield (
            f"[outer] feedback is 0, so what the {least:.2f} bits of {outer.codec!r} leave "
            "out is lost for good; set it to 1.0, or codec to 'int8'"
        )
    if with_grades(codec) is not None and expanded.audits.rate:
        yield (
            f"[outer] codec {outer.codec!r} lets each node take the bits that suit its line, and "
            "audits encode again what it encoded; set [audits] rate to 0, or codec to 'int8'"
        )
    if outer.topology == GATHER and outer.overlap != 1:
        other = ", or overlap to 1" if _can_wait(expanded) else ""
        yield (
            f"[outer] topology is {GATHER!r}, which is for one round in flight; set it to "
            f"{BUTTERFLY!r}{other}"
        )
    if outer.topology == GATHER and bits >= RESULT_BITS:
        yield (
            f"[outer] topology is {GATHER!r}, and a contribution in the {bits:.3g} bits of "
            f"{outer.codec!r} is as large as a result; set it to {BUTTERFLY!r}, or codec to "
            "'sparse2bit_gaps'"
        )


def _with_numbers(expanded: RunFile) -> Iterator[str]:
    """What an outer optimizer does not take, as it says it itself."""
    for section, one in (("[outer]", expanded.outer), ("[outer.then]", expanded.outer.then)):
        if one is None:
            continue
        assert one.optimizer is not None, "written out"
        try:
            OUTER_OPTIMIZERS[one.optimizer](one.learning_rate, one.momentum)
        except ConfigError as error:
            yield f"{section} {error}"


def _audited(expanded: RunFile) -> Iterator[str]:
    audits, outer, steps = expanded.audits, expanded.outer, expanded.inner.inner_steps
    assert steps is not None, "written out"
    if not audits.rate:
        return
    if expanded.run.trust == "friends":
        yield (
            f"[audits] rate is {audits.rate:g}, and friends trust each other; set it to 0, or "
            "[run] trust to 'open'"
        )
    if audits.segments > steps:
        yield (
            f"[audits] segments is {audits.segments}, and a round has {steps} inner steps; set it "
            f"to {steps} or less"
        )
    if outer.overlap != 1:
        yield (
            f"[outer] overlap is {outer.overlap}, and audits are for runs with one round in "
            "flight; set it to 1, or [audits] rate to 0"
        )
    if PRESETS[outer.preset](expanded.run.rounds).method == "streaming":
        yield (
            f"[outer] preset {outer.preset!r} begins a round with a mix of anchor and own weights, "
            "and audits begin with the anchor; set it to 'streaming_sync', or [audits] rate to 0"
        )


def _with_signs(expanded: RunFile) -> Iterator[str]:
    """`eager` takes the own share of a step before the step is known."""
    outer = expanded.outer
    named = [(outer.preset, outer.optimizer, "[outer]")]
    if outer.then is not None:
        named.append((outer.then.preset, outer.then.optimizer, "[outer.then]"))
    for name, optimizer, section in named:
        if optimizer == "sign" and PRESETS[name](expanded.run.rounds).method == "eager":
            yield (
                f"{section} optimizer is 'sign', of whose steps nobody has a share, and {name!r} "
                "applies the own share at once; set it to 'sgd'"
            )


def _with_variates(expanded: RunFile) -> Iterator[str]:
    """Trainers take the aggregate from two anchors, and correct their steps by it."""
    outer = expanded.outer
    if not PRESETS[outer.preset](expanded.run.rounds).has_variates:
        return
    if outer.optimizer != "sgd":
        yield (
            f"[outer] optimizer is {outer.optimizer!r}, and {outer.preset!r} takes the mean of all "
            "steps from the way of the anchor, which has momentum in it then; set it to 'sgd'"
        )
    if outer.learning_rate == 0:
        yield f"[outer] learning_rate is 0, and {outer.preset!r} divides by it; set it to 1.0"
    if expanded.inner.learning_rate == 0:
        yield f"[inner] learning_rate is 0, and {outer.preset!r} divides by it; set it to 0.001"
    if expanded.audits.rate:
        yield (
            f"[outer] preset {outer.preset!r} corrects steps by what only their trainer has, and "
            "audits run segments of others; set [audits] rate to 0, or preset to 'fedavg'"
        )


def _with_own_weights(expanded: RunFile) -> Iterator[str]:
    """What a round does not choose stays in the weights, and nothing else may move it."""
    outer = expanded.outer
    if not PRESETS[outer.preset](expanded.run.rounds).has_own_weights:
        return
    if outer.codec != "random_mask":
        yield (
            f"[outer] codec is {outer.codec!r}, and in {outer.preset!r} all draw the same elements "
            "of each round; set it to 'random_mask'"
        )
    if outer.feedback:
        yield (
            f"[outer] feedback is {outer.feedback:g}, and what {outer.preset!r} does not send "
            "stays in the weights, so it would count twice; set it to 0"
        )
    if outer.optimizer != "sgd":
        yield (
            f"[outer] optimizer is {outer.optimizer!r}, and its momentum moves what nobody sent in "
            f"a round of {outer.preset!r}; set it to 'sgd'"
        )
    if expanded.audits.rate:
        yield (
            f"[outer] preset {outer.preset!r} begins a round with weights that only their trainer "
            "has, and audits run segments of others; set [audits] rate to 0, or preset to "
            "'local_sgd'"
        )


def _can_wait(expanded: RunFile) -> bool:
    """Whether one round in flight is an answer for this preset, with nothing else changed."""
    outer = expanded.outer
    wrong = wrong_flight(outer.preset, fragments=outer.fragments or 1, overlap=1)
    return wrong is None and outer.then is None


def _in_flight(expanded: RunFile) -> Iterator[str]:
    """R5: rounds in flight are about different fragments, but for methods with a delay; an outcome
    comes home within a round."""
    outer, steps = expanded.outer, expanded.inner.inner_steps
    assert outer.overlap is not None, "written out"
    assert outer.fragments is not None, "written out"
    assert steps is not None, "written out"
    # Of two methods the later one has rounds in flight, or both have.
    name = outer.preset if outer.then is None else outer.then.preset
    wrong = wrong_flight(name, fragments=outer.fragments, overlap=outer.overlap)
    if wrong is not None and outer.then is None:
        key, value, why, instead = wrong
        other = ", or overlap to 1" if key == "fragments" and _can_wait(expanded) else ""
        yield f"[outer] {key} is {value}, and {why}; set it to {instead}{other}"
    preset = PRESETS[name](expanded.run.rounds)
    if outer.overlap == 1 or preset.is_delayed:
        return
    tau = preset.tau
    if tau >= steps:
        yield (
            f"[inner] inner_steps is {steps}, and {name!r} takes an outcome over {tau} "
            f"steps into the next round; set it to {tau + 1} or more, or [outer] overlap to 1"
        )


# [outer.then], the method that follows ----------------------------------------------------------

_KEPT = ("codec", "feedback", "aggregator", "fragments")
"""Of a preset; a run has one of each throughout."""

_INNER = (
    ("inner_steps", "inner_steps"),
    ("optimizer", "inner_optimizer"),
    ("sam_radius", "sam_radius"),
)
"""Likewise, keys of [inner] and what a preset calls them."""


def _unknown_in_then(parsed: RunFile) -> Iterator[str]:
    """Names that no component has, a round that the run does not have, and what each of the two
    presets has of its own where the run has one throughout."""
    then, rounds = parsed.outer.then, parsed.run.rounds
    if then is None:
        return
    for key, name, known in (
        ("preset", then.preset, PRESETS),
        ("optimizer", then.optimizer, OUTER_OPTIMIZERS),
    ):
        if name is not None and name not in known:
            yield _unknown(("outer", "then", key), name, known)
            return
    if then.from_round > rounds:
        yield (
            f"[outer.then] from_round is {then.from_round}, and there are {rounds} rounds; take "
            f"{max(1, rounds // 2)}, or leave the section out"
        )
    if parsed.outer.preset not in PRESETS:
        return
    first, later = (PRESETS[one](rounds) for one in (parsed.outer.preset, then.preset))
    for key in _KEPT:
        ours, theirs = getattr(first, key), getattr(later, key)
        if ours != theirs and getattr(parsed.outer, key) is None:
            yield (
                f"[outer] {key} is {ours!r} by {parsed.outer.preset!r} and {theirs!r} by "
                f"{then.preset!r}, and a run has one throughout; name the one that you want"
            )
    for key, of_preset in _INNER:
        ours, theirs = getattr(first, of_preset), getattr(later, of_preset)
        if ours != theirs and getattr(parsed.inner, key) is None:
            yield (
                f"[inner] {key} is {ours!r} by {parsed.outer.preset!r} and {theirs!r} by "
                f"{then.preset!r}; name the one that you want"
            )


def _impossible_then(expanded: RunFile) -> Iterator[str]:
    """What does not follow the preset of the run, written out."""
    outer = expanded.outer
    if outer.then is None:
        return
    assert outer.fragments is not None, "written out"
    assert outer.overlap is not None, "written out"
    flight = {"fragments": outer.fragments, "overlap": outer.overlap}
    try:
        for why in wrong_then(outer.preset, outer.then.preset, **flight):
            yield f"[outer.then] {why}" if not why.startswith("[") else why
    except ConfigError as error:
        yield f"[outer.then] {error}"
