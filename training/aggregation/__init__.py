"""Every rule by which contributions become one vector, by name; and the steps before a rule."""

from training.aggregation.coordinates import MeaMed, Median, Phocas, TrimmedMean
from training.aggregation.gram_rules import (
    Arc,
    Bucketing,
    Bulyan,
    Caf,
    CenteredClip,
    Flag,
    GeometricMedian,
    Krum,
    Mean,
    MultiKrum,
    Nnm,
    NormClip,
    NormGuard,
    TwoLevelCaf,
    nnm_trimmed_mean,
)
from training.aggregation.seam import (
    AGGREGATORS,
    PRE_STEPS,
    Aggregate,
    Aggregator,
    Floats,
    PreStep,
    coefficients_of,
    tolerated,
)

__all__ = [
    "AGGREGATORS",
    "PRE_STEPS",
    "Aggregate",
    "Aggregator",
    "Floats",
    "PreStep",
    "coefficients_of",
    "tolerated",
]

AGGREGATORS.register("mean", Mean)
AGGREGATORS.register("median", Median)
AGGREGATORS.register("trimmed_mean", TrimmedMean)
AGGREGATORS.register("mea_med", MeaMed)
AGGREGATORS.register("phocas", Phocas)
AGGREGATORS.register("krum", Krum)
AGGREGATORS.register("multi_krum", MultiKrum)
AGGREGATORS.register("bulyan", Bulyan)
AGGREGATORS.register("geometric_median", GeometricMedian)
AGGREGATORS.register("centered_clip", CenteredClip)
AGGREGATORS.register("norm_clip", NormClip)
AGGREGATORS.register("norm_guard", NormGuard)
AGGREGATORS.register("caf", Caf)
AGGREGATORS.register("nnm_trimmed_mean", nnm_trimmed_mean)
AGGREGATORS.register("flag", Flag)
AGGREGATORS.register("default", TwoLevelCaf)

PRE_STEPS.register("arc", Arc)
PRE_STEPS.register("bucketing", Bucketing)
PRE_STEPS.register("nnm", Nnm)
