"""Presets: a method of low communication by name, as the components that it combines.

A founder's run.toml names one; what it stands for is written out into the manifest, where every
other key of [outer] may differ from it. Trainers read of the name the schedule and the merge alone.
Numbers are the methods' papers' where `DECISIONS.md`, "methods", names no measurement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from training.merge import MERGES, Merge
from training.registry import Registry
from training.schedule import SCHEDULES, Schedule

SHORT_RUN_ROUNDS = 500
MOMENTUM_SHORT, MOMENTUM_LONG = 0.5, 0.9
"""Measured: in short runs an outer momentum of 0.9 is no better than one node alone; in 200
rounds of 5 steps it comes to 2.35 nats per byte where 0.5 comes to 1.58."""

SPARSE_LONG_ROUNDS = 600
"""A coordinate waits 1 / density rounds on average: that many times ten, before 1/64 pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One method. `aggregator` None is the rule of the run's trust level."""

    summary: str
    schedule: str = "every_h"
    merge: str = "replace"
    codec: str = "fp16"
    codec_settings: Mapping[str, int | float] = field(default_factory=dict)
    feedback: float = 1.0
    aggregator: str | None = None
    optimizer: str = "nesterov"
    learning_rate: float = 0.7
    momentum: float = 0.0
    inner_steps: int = 50
    fragments: int = 1


@dataclass(frozen=True, slots=True)
class Method:
    """What a trainer does: when fragments travel, and how anchors come home."""

    schedule: Schedule
    merge: Merge


PRESETS: Registry[Preset] = Registry("preset")
"""Factories `(rounds)`: short runs want other numbers than long ones."""


def make_method(name: str, inner_steps: int, num_fragments: int) -> Method:
    """The schedule and merge of a preset. Raises ConfigError for an unknown one."""
    preset = PRESETS[name](SHORT_RUN_ROUNDS)
    schedule = SCHEDULES[preset.schedule](inner_steps, num_fragments)
    return Method(schedule, MERGES[preset.merge]())


def momentum_for(rounds: int) -> float:
    """The outer momentum that a run of so many rounds has time for."""
    return MOMENTUM_SHORT if rounds < SHORT_RUN_ROUNDS else MOMENTUM_LONG


def _diloco(rounds: int, *, codec: str = "fp16", feedback: float = 1.0) -> Preset:
    return Preset(
        summary=f"DiLoCo, pseudo-gradients as {codec}",
        codec=codec,
        feedback=feedback,
        momentum=momentum_for(rounds),
    )


PRESETS.register("diloco", _diloco)
PRESETS.register("diloco_fp32", partial(_diloco, codec="none", feedback=0.0))
PRESETS.register("diloco_int8", partial(_diloco, codec="int8"))
PRESETS.register("diloco_int4", partial(_diloco, codec="int4"))
PRESETS.register("diloco_e3m0", partial(_diloco, codec="e3m0"))
PRESETS.register("diloco_2bit", partial(_diloco, codec="dense2bit"))
PRESETS.register("diloco_ternary", partial(_diloco, codec="ternary"))
PRESETS.register("diloco_lowrank", partial(_diloco, codec="lowrank"))


def _sparseloco(rounds: int) -> Preset:
    """Sarfi et al. 2025; the residual that decays stands in for the outer momentum."""
    is_long = rounds >= SPARSE_LONG_ROUNDS
    return Preset(
        summary="SparseLoCo, the largest of each chunk in 2 bits, feedback for momentum",
        codec="sparse2bit_gaps",
        codec_settings={"chunk": 4096, "density": 1 / 64 if is_long else 1 / 16},
        feedback=0.95,
        optimizer="sgd",
        # What decays of the residual is lost; of the mean over all peers a short run wants twice.
        learning_rate=1.0 if is_long else 2.0,
    )


PRESETS.register("sparseloco", _sparseloco)


def _averaging(rounds: int, *, name: str, inner_steps: int) -> Preset:
    del rounds
    return Preset(
        summary=f"{name}, the anchor becomes the mean of the peers",
        optimizer="sgd",
        learning_rate=1.0,
        inner_steps=inner_steps,
    )


PRESETS.register("fedavg", partial(_averaging, name="FedAvg", inner_steps=50))
PRESETS.register("local_sgd", partial(_averaging, name="local SGD", inner_steps=10))


def _fedavgm(rounds: int) -> Preset:
    return Preset(
        summary="FedAvgM, averaging with heavy-ball momentum",
        optimizer="heavy_ball",
        learning_rate=0.7,
        momentum=momentum_for(rounds),
    )


PRESETS.register("fedavgm", _fedavgm)


def _streaming(rounds: int) -> Preset:
    """Douillard et al. 2025, with nothing in flight while it trains: a quarter of the bytes of
    DiLoCo's rounds at a time, four times as often."""
    return Preset(
        summary="Streaming DiLoCo without overlap, a quarter of the model in each round",
        codec="e3m0",
        momentum=momentum_for(rounds),
        inner_steps=25,
        fragments=4,
    )


PRESETS.register("streaming_sync", _streaming)

_OVERLAP = "two rounds in flight (R5), and the round machine carries one"
_OWN_WEIGHTS = "replicas without a common anchor, and every seal has one"
NOT_YET: Mapping[str, str] = {
    "streaming_diloco": f"{_OVERLAP}; streaming_sync is it without overlap",
    "one_step_delay": f"{_OVERLAP}: the samples of a round are leased by the seal before it",
    "eager": f"{_OVERLAP}; its {_OWN_WEIGHTS}",
    "co2": _OVERLAP,
    "dilocox": f"{_OVERLAP}; its codec alone is diloco_lowrank",
    "edit": "an aggregator whose weights fall with the norm, without an exponential",
    "a_edit": "rounds by time, with another H on each peer",
    "scaffold": "a control variate beside the pseudo-gradient",
    "modest": "sampled peers beyond the seats",
    "demo": "an exchange after every step, of momentum",
    "sparta": _OWN_WEIGHTS,
    "noloco": _OWN_WEIGHTS,
    "fedbuff": "contributions to older anchors",
    "auto": "choices that peers make for themselves",
}
"""Presets that are no preset yet, and what each of them still needs."""
