"""Outer optimizers by name; see `training.outer.optimizers`."""

from training.outer.optimizers import OUTER_OPTIMIZERS as OUTER_OPTIMIZERS
from training.outer.optimizers import make_outer as make_outer
