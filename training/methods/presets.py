"""Presets: a method of low communication by name, as the components that it combines.

A founder's run.toml names one; what it stands for is written out into the manifest, where every
other key of [outer] may differ from it. Trainers read of the name the schedule and the merge alone.
Numbers are those of the methods' papers where neither the constants below nor
`tests/bench/RESULTS.md` names a measurement.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from training.methods.in_process import IN_PROCESS, SAM_RADIUS, InProcess
from training.numeric.registry import Registry

SHORT_RUN_ROUNDS = 500
MOMENTUM_SHORT, MOMENTUM_LONG = 0.5, 0.9
"""Measured: in short runs an outer momentum of 0.9 is no better than one node alone; in 200
rounds of 5 steps it comes to 2.35 nats per byte where 0.5 comes to 1.58."""

SPARSE_LONG_ROUNDS = 600
"""A coordinate waits 1 / density rounds on average: that many times ten, before 1/64 pays."""

SPARSE_SHORT_RATES = {16: 1.5, 64: 2.0}
"""By what share travels. Measured in 200 rounds of 5 steps, nats per byte: 1/16 at the rate 1.5
comes to 1.582 and at 2 to 1.602, 1/64 at 1.5 to 1.646 and at 2 to 1.626."""


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
    inner_optimizer: str = "adamw"
    sam_radius: float = 0.0
    fragments: int = 1
    overlap: int = 1
    """Rounds in flight, L of R1."""

    tau: int = 0
    """Where two are in flight: inner steps from handing over to taking over at the earliest."""

    is_paced: bool = False
    """Whether each peer takes as many steps of a round as it sees fit, `inner_steps` at most."""

    is_assigned: bool = False
    """Whether peers are told how many, each another number: its lease is for so many."""

    has_variates: bool = False
    """Whether steps are corrected by control variates (`training.loop.scaffold`)."""

    has_own_weights: bool = False
    """Whether replicas keep their weights, but for what a round draws
    (`training.loop.own_weights`)."""

    lacks: str = ""
    """What a node would need to run it; until then `barnraise compare` does, and nothing else."""

    common_anchor: bool = True
    """Whether all have the same weights behind a round; if not, there is no bit promise."""

    @property
    def is_delayed(self) -> bool:
        """Whether a round is trained beside the exchange of the one before, which is about the same
        whole model: two in flight on one fragment (R5)."""
        return self.schedule == "delayed"


PRESETS: Registry[Preset] = Registry("preset")
"""Factories `(rounds)`: short runs want other numbers than long ones."""


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


def _sparseloco(rounds: int, *, one_in: int | None = None) -> Preset:
    """Sarfi et al. 2025; the residual that decays stands in for the outer momentum."""
    is_long = rounds >= SPARSE_LONG_ROUNDS
    one_in = one_in or (64 if is_long else 16)
    return Preset(
        summary=f"SparseLoCo, the largest of each {one_in} in 2 bits, feedback for momentum",
        codec="sparse2bit_gaps",
        codec_settings={"chunk": 4096, "density": 1 / one_in},
        feedback=0.95,
        optimizer="sgd",
        # What decays of the residual is lost; a short run wants more of the mean over all peers.
        learning_rate=1.0 if is_long else SPARSE_SHORT_RATES[one_in],
    )


PRESETS.register("sparseloco", _sparseloco)
PRESETS.register("sparseloco_64", partial(_sparseloco, one_in=64))


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


def _fedsam(rounds: int) -> Preset:
    """Qu et al. 2022: FedAvg of flat minima. A step takes the time of two."""
    averaging = _averaging(rounds, name="FedSAM", inner_steps=50)
    summary = "FedSAM, averaging of steps whose gradients are taken a little uphill"
    return replace(averaging, summary=summary, sam_radius=SAM_RADIUS)


PRESETS.register("fedsam", _fedsam)


def _fedavgm(rounds: int) -> Preset:
    return Preset(
        summary="FedAvgM, averaging with heavy-ball momentum",
        optimizer="heavy_ball",
        learning_rate=0.7,
        momentum=momentum_for(rounds),
    )


PRESETS.register("fedavgm", _fedavgm)


def _scaffold(rounds: int) -> Preset:
    """Karimireddy et al. 2020, option II. What the codec leaves out must not pass for a variate."""
    averaging = _averaging(rounds, name="SCAFFOLD", inner_steps=50)
    summary = "SCAFFOLD, averaging with steps corrected for the drift of unequal data"
    return replace(averaging, summary=summary, has_variates=True)


PRESETS.register("scaffold", _scaffold)


def _sparta(rounds: int) -> Preset:
    return replace(
        _averaging(rounds, name="", inner_steps=5),
        summary="SPARTA, replicas keep weights of their own, and average one in 20 in each round",
        codec="random_mask",
        codec_settings={"density": 0.05},
        feedback=0.0,
        has_own_weights=True,
    )


PRESETS.register("sparta", _sparta)


def _demo(rounds: int) -> Preset:
    """Peng et al. 2024. The decoupled momentum is the residual: what a tile's largest waves leave.
    Ours is the mean over all peers, theirs over those that sent a wave. Its rate lies between the
    best two of six that were measured with a small model in 600 steps, 0.004 and 0.008; a large one
    wants less (theirs: 0.0004 for 300 M).
    """
    del rounds
    return Preset(
        summary="DeMo, an exchange after each step, of the momentum's largest waves",
        codec="cosine",
        codec_settings={"density": 32 / 4096},
        feedback=0.999,
        optimizer="sign",
        learning_rate=0.006,
        inner_steps=1,
        inner_optimizer="sgd",
    )


PRESETS.register("demo", _demo)


def _streaming(rounds: int, *, overlap: int, how: str) -> Preset:
    """Douillard et al. 2025: a quarter of the bytes of DiLoCo's rounds at a time, four times as
    often. Its tau of 5 is an exchange of known length, where ours is the least that an outcome
    waits; its blend of 0.5 cost 0.061 nats per byte of a small model where `carry` costs 0.016."""
    return Preset(
        summary=f"Streaming DiLoCo {how}, a quarter of the model in each round",
        codec="e3m0",
        momentum=momentum_for(rounds),
        inner_steps=25,
        fragments=4,
        overlap=overlap,
        tau=2 if overlap > 1 else 0,
        merge="carry" if overlap > 1 else "replace",
    )


_IN_FLIGHT = "that steps on while a fragment is in flight"
PRESETS.register("streaming_sync", partial(_streaming, overlap=1, how="without overlap"))
PRESETS.register("streaming_diloco", partial(_streaming, overlap=2, how=_IN_FLIGHT))

UPLINK_MBIT = 20.0
"""Of a home whose founder says nothing."""

_SPARSE_BELOW_MBIT = 10.0
"""4 bits of each of 10^9 parameters take 400 s at this rate; below it the codec sends few."""

GRADE_FROM_MBIT = {8: 100.0, 4: 40.0, 2: 0.0}
"""From where on a line sends so many bits per element."""


def _auto(rounds: int, *, uplink_mbit: float = UPLINK_MBIT) -> Preset:
    """Where the founder says that lines are very slow, the codec is sparse for all, as it wants
    another optimizer. Else each peer takes the grade that its line sends; until it knows, that of
    the founder's word."""
    if uplink_mbit < _SPARSE_BELOW_MBIT:
        base = replace(
            PRESETS["sparseloco"](rounds),
            summary="a sparse codec, as lines are slow; steps by what each peer measures",
        )
    else:
        usual = max(bits for bits, mbit in GRADE_FROM_MBIT.items() if uplink_mbit >= mbit)
        base = replace(
            _diloco(rounds, codec="graded"),
            summary="bits per element and steps by what each peer measures of its line",
            codec_settings={"coarsest": 2, "finest": 8, "usual": usual},
        )
    return replace(base, inner_steps=100, is_paced=True)


AUTO = "auto"
PRESETS.register(AUTO, _auto)


def _delayed(rounds: int, *, merge: str = "replace", summary: str) -> Preset:
    """PCCL's example of asynchronous DiLoCo; with `eager` that of Kale et al. 2025.

    Without momentum, for it and staleness do not mix. Measured, nats per byte: 2.19 and 2.13, with
    a momentum of 0.5 2.65 and 2.28, where DiLoCo comes to 1.96.
    """
    del rounds
    return Preset(
        summary=summary,
        schedule="delayed",
        merge=merge,
        codec="int8",
        optimizer="sgd",
        overlap=2,
    )


_BESIDE = "a round is trained beside the exchange of the one before"
PRESETS.register("one_step_delay", partial(_delayed, summary=f"one-step delay: {_BESIDE}"))
_EAGER = f"eager updates: {_BESIDE}, the own share of it applied at once"
PRESETS.register("eager", partial(_delayed, merge="eager", summary=_EAGER))


def _co2(rounds: int) -> Preset:
    """Sun et al. 2024. Its gap penalty is off, as in its authors' code: a norm over the whole
    anchor is nothing that peers compute cell by cell. Its momentum at the rate that comes to the
    same step in the long run; at 0.7 it comes to 2.60 nats per byte, so to 2.24."""
    return replace(
        _delayed(rounds, summary=f"CO2 without its penalty: {_BESIDE}, slow momentum"),
        optimizer="heavy_ball",
        learning_rate=0.35,
        momentum=0.5,
    )


PRESETS.register("co2", _co2)


RANK_ENERGY = 0.9
"""What the columns that a cell sends keep of what sixteen would; the residual has the rest."""


def _dilocox(rounds: int) -> Preset:
    """Qi et al. 2025. Its rank follows the common drift's spectrum, and H follows the rank; here
    each cell of a peer has the rank that it needs, and H is what hides the exchange as measured."""
    return replace(
        _delayed(
            rounds, summary=f"DiLoCoX: {_BESIDE}, as factors of the rank that each cell needs"
        ),
        codec="lowrank",
        codec_settings={"energy": RANK_ENERGY},
        inner_steps=100,
        is_paced=True,
    )


PRESETS.register("dilocox", _dilocox)


def _edit(rounds: int, *, is_paced: bool = False) -> Preset:
    """EDiT (Cheng et al. 2024) with its guard across peers; A-EDiT is the same with rounds by time.

    Its rounds are of whole models: units that follow one another within a step would be overlap.
    """
    by_time = ", rounds by time" if is_paced else ""
    return Preset(
        summary=f"EDiT, DiLoCo that leaves out who drifts too far{by_time}",
        aggregator="norm_guard",
        momentum=momentum_for(rounds),
        inner_steps=100,
        is_paced=is_paced,
    )


PRESETS.register("edit", _edit)
PRESETS.register("a_edit", partial(_edit, is_paced=True))


def _in_process(rounds: int, *, method: InProcess) -> Preset:
    """Weights travel whole and in float32: who gets them knows no anchor of theirs."""
    return replace(
        _averaging(rounds, name="", inner_steps=method.inner_steps),
        summary=method.summary,
        codec="none",
        feedback=0.0,
        sam_radius=method.sam_radius,
        is_assigned=method.is_assigned,
        lacks=method.lacks,
        common_anchor=method.common_anchor,
    )


for _name, _method in IN_PROCESS.items():
    PRESETS.register(_name, partial(_in_process, method=_method))
