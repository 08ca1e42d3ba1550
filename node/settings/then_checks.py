"""What is wrong with [outer.then] of a run.toml: a line each, with what to write instead."""

from collections.abc import Collection, Iterator
from typing import get_type_hints

from node.reporting.shown import shown
from node.settings.run_sections import RunFile
from node.settings.toml_file import did_you_mean
from protocol.errors import ConfigError
from protocol.manifest import ThenSpec
from training.methods.presets import PRESETS, wrong_then
from training.outer.optimizers import OUTER_OPTIMIZERS

_WHERE = "[outer.then]"

HINTS = get_type_hints(ThenSpec, include_extras=True)
"""The bounds of its keys."""

_KEPT = ("codec", "feedback", "aggregator", "fragments")
"""Of a preset; a run has one of each throughout."""

_INNER = (
    ("inner_steps", "inner_steps"),
    ("optimizer", "inner_optimizer"),
    ("sam_radius", "sam_radius"),
)
"""Likewise, keys of [inner] and what a preset calls them."""


def unknown_in_then(parsed: RunFile) -> Iterator[str]:
    """Names that no component has, a round that the run does not have, and what each of the two
    presets has of its own where the run has one throughout."""
    then, rounds = parsed.outer.then, parsed.run.rounds
    if then is None:
        return
    named: list[tuple[str, str | None, Collection[str]]] = [
        ("preset", then.preset, PRESETS),
        ("optimizer", then.optimizer, OUTER_OPTIMIZERS),
    ]
    for key, name, known in named:
        if name is not None and name not in known:
            guess = did_you_mean(name, list(known))
            yield f"{_WHERE} {key} {shown(repr(name), 60)} is unknown; {guess}"
            return
    if then.from_round > rounds:
        yield (
            f"{_WHERE} from_round is {then.from_round}, and there are {rounds} rounds; take "
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


def impossible_then(expanded: RunFile) -> Iterator[str]:
    """What does not follow the preset of the run, written out."""
    outer = expanded.outer
    if outer.then is None:
        return
    assert outer.fragments is not None, "written out"
    assert outer.overlap is not None, "written out"
    flight = {"fragments": outer.fragments, "overlap": outer.overlap}
    try:
        for why in wrong_then(outer.preset, outer.then.preset, **flight):
            yield f"{_WHERE} {why}" if not why.startswith("[") else why
    except ConfigError as error:
        yield f"{_WHERE} {error}"
