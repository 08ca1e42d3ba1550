"""The run that real nodes take part in: what of its manifest the options decide."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from protocol import limits
from protocol.errors import ConfigError
from protocol.identity import PeerId
from protocol.manifest import AuditSpec, OuterSpec, RunManifest, Setting
from sim.local.options import LocalOptions
from sim.processes.recipe import outer_spec, sign_run, small_manifest, with_then
from training.methods.presets import PRESETS
from training.models.genesis import shard_spec

SEGMENTS = 8
"""Of a round, in runs with audits; a made-up round has as many steps."""

ROUNDS_WITHOUT_END = 1_000_000
PATIENT = {"deadline_floor_s": 10.0, "deadline_cap_s": 30.0}
"""Of runs with liars: nodes of one machine are slow to start, and no rule bears a round of whose
contributions only those of the liars are there in time."""

CELLS = 24
"""At least about so many, so that there are some for every reducer."""

_CONTEXT_MIN, _CONTEXT_MAX = 16, 1 << 20


def model_settings(elements: int) -> tuple[Setting, ...]:
    """Settings of a GPT of `elements` parameters, or up to 63 fewer.

    Nobody runs it: a long table of positions makes up what is missing.
    """
    for width in (64, 16, 4, 1):
        fixed = 256 * width + width + 2 * width + 12 * width * width
        context = (elements - fixed) // width
        if context >= _CONTEXT_MIN:
            break
    else:
        context = _CONTEXT_MIN
    layers = 1
    while context > _CONTEXT_MAX:
        # Of layers there may be many; of positions there is a most.
        layers += 1
        context = (elements - 257 * width - layers * (2 * width + 12 * width * width)) // width
    return (
        Setting("context", context),
        Setting("heads", 1),
        Setting("layers", layers),
        Setting("width", width),
    )


def local_manifest(options: LocalOptions, founder: PeerId) -> RunManifest:
    """The manifest. Raises CorpusError where this Python lacks its library sources."""
    rounds = ROUNDS_WITHOUT_END if options.rounds is None else options.rounds
    base = small_manifest("barnraise local", founder, rounds=rounds, seed=options.seed)
    # As a founder's run.toml that names no rule.
    outer, fragments = base.outer, options.fragments
    preset = None if options.preset is None else PRESETS[options.preset](rounds)
    if preset is not None:
        assert options.preset is not None
        outer = outer_spec(options.preset, preset)
        fragments = max(fragments, preset.fragments)
    if options.then is not None:
        name, from_round = options.then
        outer = with_then(outer, name, from_round, rounds)
    rule = "default" if options.trust == "open" else outer.aggregator
    timing = replace(base.timing, **PATIENT) if options.attack else base.timing
    lag = options.lag or outer.overlap
    if not any(PRESETS[one](rounds).is_delayed for one in methods_of(outer)):
        # Two rounds in flight are about different fragments (R5).
        fragments = max(fragments, lag)
    manifest = replace(
        base,
        trust=options.trust,
        timing=timing,
        outer=replace(outer, aggregator=rule, overlap=lag),
        admission=replace(base.admission, seats=options.seats),
    )
    steps = options.steps or (preset.inner_steps if preset else base.inner.inner_steps)
    audits = base.audits
    if options.audits:
        _check_audited(manifest.outer, fragments, steps if options.trainer == "real" else SEGMENTS)
        audits = AuditSpec(rate=options.audits, segments=SEGMENTS)
    if options.trainer == "real":
        shard = shard_spec(manifest.model, fragments=fragments)
        inner = replace(manifest.inner, inner_steps=steps)
        if preset is not None:
            radius = preset.sam_radius
            inner = replace(inner, optimizer=preset.inner_optimizer, sam_radius=radius)
        return replace(manifest, shards=(shard,), inner=inner, audits=audits)
    model = replace(manifest.model, settings=model_settings(options.elements))
    shard = shard_spec(model, fragments=fragments)
    numel = sum(tensor.numel for tensor in shard.tensors) // fragments
    cell = 1 << max(0, (numel // CELLS).bit_length() - 1)
    cell = min(max(cell, limits.CELL_ELEMENTS_MIN), limits.CELL_ELEMENTS_MAX)
    inner = replace(manifest.inner, inner_steps=SEGMENTS if options.audits else 1, batch=1)
    return replace(
        manifest, model=model, shards=(shard,), cell_elements=cell, inner=inner, audits=audits
    )


def _check_audited(outer: OuterSpec, fragments: int, steps: int) -> None:
    """Raises ConfigError for what a run with audits cannot be."""
    if fragments > 1 or outer.overlap > 1:
        raise ConfigError(
            f"--audits: are for runs of one fragment with one round in flight, not {fragments} and"
            f" {outer.overlap}; --audits 0 goes without"
        )
    if steps < SEGMENTS:
        raise ConfigError(
            f"--audits: a round has {SEGMENTS} segments, and {steps} steps are fewer; take more"
            " --steps, or --audits 0"
        )


def methods_of(outer: OuterSpec) -> tuple[str, ...]:
    """The presets of a run, in order."""
    return outer.preset, *(one.preset for one in outer.then)


def found_run(
    options: LocalOptions,
    *,
    state: Path,
    manifest_path: Path,
    amend: Callable[[RunManifest], RunManifest] = lambda manifest: manifest,
) -> RunManifest:
    """Make the founder's key in its state folder, and the signed manifest as a file for all.

    `amend` makes another manifest of the usual one.
    """
    return sign_run(lambda founder: amend(local_manifest(options, founder)), state, manifest_path)
