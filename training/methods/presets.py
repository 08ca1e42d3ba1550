"""Presets: a method of low communication by name, as the components that it combines.

A founder's run.toml names one; what it stands for is written out into the manifest, where every
other key of [outer] may differ from it. Trainers read of the name the method and the pace alone.
Numbers are those of the methods' papers where neither the constants below nor
`tests/bench/RESULTS.md` names a measurement.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from training.numeric import Registry

# Methods that no node runs yet, and `barnraise compare` does, in one process ---------------------
#
# A node seals rounds of one anchor (R7). Where replicas have weights of their own, or an anchor
# moves under those who train, there is nothing to seal: no bit promise. `sim.methods` runs them.

SAM_RADIUS = 0.05
"""Of sharpness-aware minimization, within the 0.01 to 0.1 of DFedSAM's authors."""


def _both_ways(peers: int) -> float:
    """A contribution goes out, an anchor comes back from another peer that must send it."""
    del peers
    return 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess:
    """One such method. `instead` is the nearest preset that nodes run."""

    summary: str
    lacks: str
    """What a node would need."""
    common_anchor: bool = False
    instead: str = "local_sgd"
    copies: Callable[[int], float] = _both_ways
    """How often the weights leave a peer in a round, on average over so many peers."""

    inner_steps: int = 50
    sam_radius: float = 0.0
    is_assigned: bool = False
    """See `Preset` below, all three."""


_OWN_WEIGHTS = "replicas with weights of their own"
_OLD_ANCHORS = "contributions to older anchors"


def _ring(steps: int) -> Callable[[int], float]:
    return lambda peers: steps * (2.0 if peers > 2 else float(peers - 1))


IN_PROCESS: Mapping[str, InProcess] = {
    "gossip": InProcess(
        summary="pairwise gossip, everybody averages with one other",
        lacks=_OWN_WEIGHTS,
        copies=lambda peers: 2 * (peers // 2) / peers,
    ),
    "gossip_corrected": InProcess(
        summary="pairwise gossip, means keep the variance of their matrices",
        lacks=_OWN_WEIGHTS,
        copies=lambda peers: 2 * (peers // 2) / peers,
    ),
    "gossip_ring": InProcess(
        summary="gossip with both neighbours of a ring", lacks=_OWN_WEIGHTS, copies=_ring(1)
    ),
    "gossip_multi_step": InProcess(
        summary="gossip on a ring, four steps of it in a round", lacks=_OWN_WEIGHTS, copies=_ring(4)
    ),
    "gossip_accelerated": InProcess(
        summary="gossip on a ring, four steps with a shift register",
        lacks=_OWN_WEIGHTS,
        copies=_ring(4),
    ),
    "noloco": InProcess(
        summary="NoLoCo, DiLoCo's outer step with one other, drawn anew for each round",
        lacks=_OWN_WEIGHTS,
        instead="diloco",
        copies=lambda peers: 4 * (peers // 2) / peers,
    ),
    "dfedsam": InProcess(
        summary="DFedSAM, gradients from a little uphill, four steps of gossip on a ring",
        lacks=_OWN_WEIGHTS,
        instead="fedsam",
        copies=_ring(4),
        sam_radius=SAM_RADIUS,
    ),
    "acid": InProcess(
        summary="A2CiD2, two copies of the weights that meet between steps, on a ring",
        lacks=_OWN_WEIGHTS,
        copies=lambda peers: float(peers > 1),
        inner_steps=1,
    ),
    "fedcompass": InProcess(
        summary="FedCompass, more steps for faster peers, so that they come together",
        lacks="steps that are told it by others",
        instead="a_edit",
        # The more unequal they are, the fewer steps has a round: of `sim.methods` half.
        copies=lambda peers: 2 * _both_ways(peers),
        is_assigned=True,
    ),
    "fedbuff": InProcess(
        summary="FedBuff, a step for each half of all contributions, whoever they are from",
        lacks=_OLD_ANCHORS,
    ),
    "fedfix": InProcess(
        summary="FedFix, a step in fixed intervals of whatever came", lacks=_OLD_ANCHORS
    ),
    "modest": InProcess(
        summary="MoDeST, FedAvg of half of all peers, drawn anew for each round",
        lacks="a draw in each round (in nodes peers beyond [admission] seats take turns)",
        common_anchor=True,
        instead="fedavg",
        copies=lambda peers: 2.0 * max(1, peers // 2) / peers,
    ),
}

NOT_YET: Mapping[str, str] = {
    "dadao": "strongly convex losses, which no network has; 'acid' is the gossip for these",
}
"""Presets that are no preset yet, and what each of them still needs."""


# Presets -----------------------------------------------------------------------------------------

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
    method: str = "diloco"
    """What its rounds are like, by a name in `training.methods.method.METHODS`."""

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

    lacks: str = ""
    """What a node would need to run it; until then `barnraise compare` does, and nothing else."""

    common_anchor: bool = True
    """Whether all have the same weights behind a round; if not, there is no bit promise."""

    @property
    def is_delayed(self) -> bool:
        """Whether a round is trained beside the exchange of the one before, which is about the same
        whole model: two in flight on one fragment (R5)."""
        return self.method in ("delayed", "eager")

    @property
    def has_variates(self) -> bool:
        """Whether steps are corrected by control variates."""
        return self.method == "scaffold"

    @property
    def has_own_weights(self) -> bool:
        """Whether replicas keep their weights, but for what a round draws."""
        return self.method == "sparta"


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
    return replace(averaging, summary=summary, method="scaffold")


PRESETS.register("scaffold", _scaffold)


def _sparta(rounds: int) -> Preset:
    return replace(
        _averaging(rounds, name="", inner_steps=5),
        summary="SPARTA, replicas keep weights of their own, and average one in 20 in each round",
        codec="random_mask",
        codec_settings={"density": 0.05},
        feedback=0.0,
        method="sparta",
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
    waits; its blend of 0.5 cost 0.061 nats per byte of a small model where `Streaming`, which
    carries all over, costs 0.016."""
    return Preset(
        summary=f"Streaming DiLoCo {how}, a quarter of the model in each round",
        codec="e3m0",
        momentum=momentum_for(rounds),
        inner_steps=25,
        fragments=4,
        overlap=overlap,
        tau=2 if overlap > 1 else 0,
        method="streaming" if overlap > 1 else "diloco",
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


def _delayed(rounds: int, *, method: str = "delayed", summary: str) -> Preset:
    """PCCL's example of asynchronous DiLoCo; with `eager` that of Kale et al. 2025.

    Without momentum, for it and staleness do not mix. Measured, nats per byte: 2.19 and 2.13, with
    a momentum of 0.5 2.65 and 2.28, where DiLoCo comes to 1.96.
    """
    del rounds
    return Preset(
        summary=summary,
        method=method,
        codec="int8",
        optimizer="sgd",
        overlap=2,
    )


_BESIDE = "a round is trained beside the exchange of the one before"
PRESETS.register("one_step_delay", partial(_delayed, summary=f"one-step delay: {_BESIDE}"))
_EAGER = f"eager updates: {_BESIDE}, the own share of it applied at once"
PRESETS.register("eager", partial(_delayed, method="eager", summary=_EAGER))


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


# What a run may combine -----------------------------------------------------------------------


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


def wrong_then(name: str, later: str, *, fragments: int, overlap: int) -> Iterator[str]:
    """Why one preset cannot be followed by another in such a run, with what to write instead.

    Raises ConfigError for an unknown name.
    """
    both = {one: PRESETS[one](SHORT_RUN_ROUNDS) for one in (name, later)}
    first, then = both[name], both[later]
    for one, preset in both.items():
        if preset.lacks:
            yield f"no node runs {one!r}, it needs {preset.lacks}; take another preset"
            return
        if preset.has_own_weights and name != later:
            yield (
                f"replicas of {one!r} have weights of their own, and those of other presets begin "
                "each round with the anchor; take a preset of that kind for both"
            )
            return
        if preset.has_variates and name != later:
            yield (
                f"the variates of {one!r} are of all rounds, and a trainer has them throughout "
                "or not at all; take a preset without"
            )
            return
    paced = [one for one, preset in both.items() if preset.is_paced]
    if paced:
        yield (
            f"the rounds of {paced[0]!r} are as long as each peer likes, and a run has them of one "
            "kind throughout; take presets whose rounds have H steps"
        )
        return
    if first.overlap > then.overlap:
        yield (
            f"{name!r} trains beside an exchange and {later!r} waits for it; a run goes from "
            f"waiting to training on: begin with {later!r}"
        )
        return
    if overlap != then.overlap:
        yield f"{later!r} has {then.overlap} rounds in flight; set [outer] overlap to that"
        return
    wrong = wrong_flight(later, fragments=fragments, overlap=overlap)
    if wrong is not None:
        key, value, why, instead = wrong
        yield f"[outer] {key} is {value}, and {why}; set it to {instead}"
