"""What a trainer that begins anew takes up of what the one before it kept (R6). Pure but for reads.

N elements of a fragment

A round that is not over yet gets the same bytes again, where its fragment is still the version that
they are relative to; with two in flight (R5) there may be two such rounds. Of a round that is over
the seal tells which of the two residuals is the right one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from training.channel.exchange import RunStart, Turn
from training.loop.inner_state import InnerState, InnerStore, anchor_digest
from training.loop.own_weights import OwnWeights

Residuals = tuple[NDArray[np.float32] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What counts of it.

    `newest` has the moments. `residuals` are those of all fragments, None where they belong to
    weights long gone. `under_way` are rounds that were contributed to and are not over. `drifting`
    are working weights that go on.
    """

    newest: InnerState
    residuals: Residuals | None
    under_way: dict[int, InnerState] = field(default_factory=dict)
    drifting: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)


def recall(
    store: InnerStore,
    start: RunStart,
    *,
    overlap: int,
    is_delayed: bool = False,
    own: OwnWeights | None = None,
) -> Recalled | None:
    """What of the store is good for this start; None if nothing is there.

    Where a round `is_delayed` by the one before, which is about the same fragment, what lies there
    of the round in hand is what it began with: weights of an anchor that is not the newest. What
    was contributed to it is to that version, whatever is the newest. What was contributed to a
    round of a branch that was left (R4) counts for none that is under way, nor does its residual,
    though a round of that number be sealed by now. Own weights go on behind the round that they
    were handed over in, whatever came of it.
    """
    next_round = start.clock.round
    # Who waited for the outcome of the round before has handed over no later one without it.
    newest = store.newest(next_round + (0 if is_delayed else overlap - 1))
    if newest is None:
        return None
    if newest.round < start.since:
        # From before a resync, or from another branch: it belongs to weights long gone.
        return Recalled(newest=newest, residuals=None)
    kept = {index: _kept(store, index) for index in newest.pending} | {newest.round: newest}
    over = [index for index in kept if index < next_round]
    settled = {state.contribution.fragment for i in over if (state := kept[i]) is not None}
    drifting = {
        fragment: local_N
        for fragment, (digest, local_N) in newest.drifting.items()
        if (is_delayed and newest.round == next_round - 1)
        or (fragment not in settled and digest == anchor_digest(start.anchors[fragment]))
    }
    if own is not None and newest.round == next_round - 1:
        drifting = {
            fragment: own.taken(newest.round, fragment, local_N, start.anchors[fragment])
            for fragment, (_, local_N) in newest.drifting.items()
        }
    is_live = newest.round < next_round or _is_live(newest, start, is_delayed=is_delayed)
    if not (is_live and _is_of_this_chain(newest, start)):
        return Recalled(newest=newest, residuals=None, drifting=drifting)
    residuals = list(newest.residuals)
    for index in over:
        state = kept[index]
        fragment = index % len(residuals)
        if state is None or index < start.since:
            residuals[fragment] = None  # Nobody tells what became of it.
        elif index in start.listed:
            residuals[fragment] = state.residual_after_N
    under_way = {
        index: state
        for index, state in kept.items()
        if index >= next_round
        and state is not None
        and _is_live(state, start, is_delayed=is_delayed)
    }
    return Recalled(
        newest=newest, residuals=tuple(residuals), under_way=under_way, drifting=drifting
    )


def over(left: Collection[int], turn: Turn, *, overlap: int) -> list[int]:
    """Of the rounds under way that were not handed over again yet, those that are over: what others
    had of them was enough."""
    return [i for i in sorted(left) if i in turn.listed or i <= turn.clock.round - overlap]


def _kept(store: InnerStore, index: int) -> InnerState | None:
    state = store.newest(index)
    return state if state is not None and state.round == index else None


def _is_live(state: InnerState, start: RunStart, *, is_delayed: bool) -> bool:
    """Whether its contribution is to the same version of its fragment, and there is a round."""
    anchor_N = start.anchors[state.contribution.fragment]
    is_same = is_delayed or state.anchor == anchor_digest(anchor_N)
    return bool(start.lease) and is_same and _is_of_this_chain(state, start)


def _is_of_this_chain(state: InnerState, start: RunStart) -> bool:
    """Whether its round is one that is or was under way here, not on a branch that was left."""
    return state.basis in start.bases
