"""What a trainer does by its run's preset: when fragments travel, and how anchors come home."""

from dataclasses import dataclass

from protocol.errors import ConfigError
from protocol.leases import Lease, lease_size
from protocol.manifest import OuterSpec, RunManifest
from training.loop.merge import MERGES, Eager, Merge
from training.loop.schedule import SCHEDULES, Schedule
from training.methods.presets import PRESETS, SHORT_RUN_ROUNDS
from training.outer.optimizers import make_outer


@dataclass(frozen=True, slots=True)
class Method:
    """What a trainer does: when fragments travel, and how anchors come home.

    Where it `is_paced`, a round has the steps that its lease is long enough for; where it
    `is_delayed`, it begins from the anchor before last (`Preset.is_delayed`).
    """

    schedule: Schedule
    merge: Merge
    is_paced: bool = False
    is_delayed: bool = False
    has_variates: bool = False
    has_own_weights: bool = False


def make_method(spec: OuterSpec, inner_steps: int, num_fragments: int) -> Method:
    """The schedule and merge of the manifest's preset. Raises ConfigError for an unknown one, and
    for rounds in flight that it has no rule for."""
    preset = PRESETS[spec.preset](SHORT_RUN_ROUNDS)
    wrong = wrong_flight(spec.preset, fragments=num_fragments, overlap=spec.overlap)
    if wrong is not None:
        key, value, why, instead = wrong
        raise ConfigError(f"{key} is {value}, and {why}; it must be {instead}")
    if preset.is_delayed:
        schedule = SCHEDULES[preset.schedule](inner_steps, num_fragments)
        merge = Eager(make_outer(spec)) if preset.merge == "eager" else MERGES[preset.merge]()
        return Method(schedule, merge, preset.is_paced, is_delayed=True)
    if spec.overlap > 1:
        in_flight = SCHEDULES["in_flight"](inner_steps, num_fragments, preset.tau)
        merge = MERGES[preset.merge]() if preset.overlap > 1 else MERGES["replace"]()
        return Method(in_flight, merge, preset.is_paced)
    return Method(
        SCHEDULES[preset.schedule](inner_steps, num_fragments),
        MERGES[preset.merge](),
        preset.is_paced,
        has_variates=preset.has_variates,
        has_own_weights=preset.has_own_weights,
    )


def wrong_flight(name: str, *, fragments: int, overlap: int) -> tuple[str, int, str, str] | None:
    """What a preset cannot do with so many rounds in flight over so many fragments: the key, its
    value, why, and what it should be; None where all is well (R5). Raises ConfigError for an
    unknown name."""
    preset = PRESETS[name](SHORT_RUN_ROUNDS)
    if preset.has_variates or preset.has_own_weights:
        what = "variates" if preset.has_variates else "chosen elements"
        why = f"the {what} of {name!r} are of a whole round of the whole model"
        if overlap > 1:
            return "overlap", overlap, why, "1"
        if fragments > 1:
            return "fragments", fragments, why, "1"
    elif preset.is_delayed:
        if overlap == 1:
            return "overlap", overlap, f"{name!r} trains a round beside the one before", "2"
        if fragments > 1:
            return "fragments", fragments, f"each round of {name!r} is about the whole model", "1"
    elif fragments < overlap:
        why = f"{overlap} rounds in flight of {name!r} are about different ones"
        return "fragments", fragments, why, str(overlap)
    return None


def is_paced(name: str) -> bool:
    """Whether peers choose how many steps a round has. Raises ConfigError for an unknown name."""
    return PRESETS[name](SHORT_RUN_ROUNDS).is_paced


def has_variates(name: str) -> bool:
    """Whether its trainers keep control variates. Raises ConfigError for an unknown name."""
    return PRESETS[name](SHORT_RUN_ROUNDS).has_variates


def steps_of(manifest: RunManifest, lease: Lease) -> int:
    """Inner steps of a round: H, or where peers choose or are told as many as this lease is long
    enough for."""
    inner, preset = manifest.inner, PRESETS[manifest.outer.preset](SHORT_RUN_ROUNDS)
    if not (preset.is_paced or preset.is_assigned):
        return inner.inner_steps
    return max(1, min(inner.inner_steps, lease_size(lease) // inner.batch))
