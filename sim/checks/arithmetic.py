"""The sum and the outer step written down once more, from what R7 asks for.

They share no code with `training.aggregation` and `training.outer`, so that a wrong one there does
not pass. Rules, codecs and optimizers that are unknown here are asked for what they give on cells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from node.rules.reducers import slices as slices_of
from protocol.identity import PeerId
from protocol.manifest import OuterSpec
from protocol.messages import SealValue
from training.aggregation import AGGREGATORS, coefficients_of
from training.compression import result_codec
from training.numeric.gram import wire_form
from training.outer.optimizers import OuterInfo, make_outer

Vector = NDArray[np.float32]

DTYPES = {"none": "<f4", "fp16": "<f2"}


def slices_after(
    before: SealValue, num_cells: int, trust: str, topology: str = "butterfly"
) -> list[tuple[int, int]]:
    """The cells of each slice of the round behind a seal."""
    if topology == "gather":
        return [(0, num_cells)]
    found = slices_of(before.roster, before.digest, num_cells, trust=trust)
    return [(piece.first, piece.stop) for piece in found]


@dataclass(frozen=True, slots=True)
class Expected:
    """Anchor and outer slots after a round."""

    anchor_N: Vector
    slots: Mapping[str, Vector]


def aggregate(
    outer: OuterSpec,
    listed: Sequence[tuple[PeerId, int, Vector]],
    cell_elements: int,
    slices: Sequence[tuple[int, int]] = (),
) -> Vector:
    """Of (sender, tokens, decoded wire): the mean by tokens, rows by ascending sender, and what its
    encoding makes of it. `slices` are the cells of each slice of that round."""
    rows = sorted(listed, key=lambda row: row[0])
    if outer.aggregator == "mean":
        total = float(sum(tokens for _, tokens, _ in rows))
        sum_N = np.zeros_like(rows[0][2])
        for index, (_, tokens, wire_N) in enumerate(rows):
            term_N = wire_N * np.float32(tokens / total)
            sum_N = term_N if index == 0 else sum_N + term_N
    else:
        weights_P = np.array([float(tokens) for _, tokens, _ in rows])
        rule = AGGREGATORS[outer.aggregator](cell_elements=cell_elements)
        rows_PN = np.stack([wire_N for _, _, wire_N in rows])
        # Whole vectors are judged, by numbers that were rounded once for each slice.
        pieces = [
            rows_PN[:, first * cell_elements : stop * cell_elements]
            for first, stop in slices or [(0, -(-rows_PN.shape[1] // cell_elements))]
        ]
        is_asked = rule.uses_stats
        grams = [wire_form(rule.stats(one), len(rows)) for one in pieces] if is_asked else []
        sum_N = rule.combine(rows_PN, coefficients_of(rule, grams, weights_P))
    # R7: results travel at eight bits or more.
    if outer.codec not in DTYPES:
        codec = result_codec(outer)
        cells = np.split(sum_N, range(cell_elements, len(sum_N), cell_elements))
        return np.concatenate([codec.decode(codec.encode(cell_N), len(cell_N)) for cell_N in cells])
    dtype = np.dtype(DTYPES[outer.codec])
    most = np.float32(np.finfo(dtype).max)
    return np.clip(sum_N, -most, most).astype(dtype).astype(np.float32)


def fragment_step(
    outer: OuterSpec, before: Expected, aggregate_N: Vector, span: slice, index: int
) -> Expected:
    """What follows upon `before` where the round is about the elements in `span` alone."""
    part = {name: slot_N[span] for name, slot_N in before.slots.items()}
    stepped = outer_step(outer, Expected(before.anchor_N[span], part), aggregate_N, index)
    slots = {name: _with(before.slots[name], span, stepped.slots[name]) for name in before.slots}
    return Expected(_with(before.anchor_N, span, stepped.anchor_N), slots)


def _with(whole_N: Vector, span: slice, part_N: Vector) -> Vector:
    return np.concatenate([whole_N[: span.start], part_N, whole_N[span.stop :]])


def outer_step(outer: OuterSpec, before: Expected, aggregate_N: Vector, index: int) -> Expected:
    """What follows upon `before` in round `index`."""
    for then in outer.then:
        rule = replace(outer, then=())
        if index >= then.from_round:
            rule = replace(
                rule,
                optimizer=then.optimizer,
                learning_rate=then.learning_rate,
                momentum=then.momentum,
            )
        found = outer_step(rule, before, aggregate_N, index)
        zeros = {name: np.zeros_like(momentum_N) for name, momentum_N in before.slots.items()}
        return Expected(found.anchor_N, {**zeros, **found.slots})
    rate, momentum = np.float32(outer.learning_rate), np.float32(outer.momentum)
    if outer.optimizer == "nesterov":
        momentum_N = momentum * before.slots["momentum"] + aggregate_N
        update_N = rate * (momentum * momentum_N + aggregate_N)
        return Expected(before.anchor_N - update_N, {"momentum": momentum_N})
    if outer.optimizer == "sgd":
        return Expected(before.anchor_N - rate * aggregate_N, {})
    info = OuterInfo(round=index, slots=before.slots)
    step = make_outer(outer).step(before.anchor_N, aggregate_N, info)
    return Expected(step.anchor_N, dict(step.slots))
