"""One outer step whose cells come from two threads: the loop's, and a worker's."""

import threading

import numpy as np
import pytest

from node.holdings.states import OuterStepping, StepRules
from protocol.grid import Layout, ShardSpec, TensorSpec, cell_root
from training.compression import CODECS
from training.numeric.memory import SpareVectors
from training.outer.optimizers import blank_step

CELL, CELLS = 64, 3
NUMEL = CELL * CELLS


class InTwoPasses:
    """anchor - aggregate, and in between the vector that is written to has something else."""

    slots: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.between = lambda: None

    def step(self, anchor_N, aggregate_N, info, out=None):
        out = out or blank_step(anchor_N, self.slots)
        out.anchor_N[...] = anchor_N
        self.between()
        out.anchor_N[...] -= aggregate_N
        return out


@pytest.fixture
def outer():
    return InTwoPasses()


@pytest.fixture
def stepping(outer, seed):
    layout = Layout(ShardSpec("model", (TensorSpec("w", (NUMEL,)),), ((0,),)), CELL)
    spare = SpareVectors(NUMEL, most=1)
    rules = StepRules(layout, outer, CODECS["none"](), anchors=spare, spare=spare)
    anchor_N = np.random.default_rng(seed).random(NUMEL, dtype=np.float32)
    return OuterStepping(rules, anchor_N, {}, round_index=1)


def result(seed: int) -> list[bytes]:
    x_N = np.random.default_rng(seed + 1).random(NUMEL, dtype=np.float32)
    return [x_N[start : start + CELL].tobytes() for start in range(0, NUMEL, CELL)]


def assert_is_whole(stepping: OuterStepping, found, cells: list[bytes]) -> None:
    anchor_N, _, roots = found
    aggregate_N = np.frombuffer(b"".join(cells), dtype=np.float32)
    assert anchor_N.tobytes() == (stepping._before_N - aggregate_N).tobytes()
    assert list(roots) == [cell_root(cell_N.tobytes()) for cell_N in anchor_N.reshape(CELLS, CELL)]


def test_cell_that_comes_twice_at_once_is_stepped_by_one_thread_after_the_other(
    outer, stepping, seed
):
    cells, found = result(seed), []
    is_in, may_go_on = threading.Event(), threading.Event()

    def pause_once() -> None:
        outer.between = lambda: None
        is_in.set()
        assert may_go_on.wait(60.0)

    outer.between = pause_once
    first = threading.Thread(target=stepping.take, args=(1, bytes(bytearray(cells[1]))))
    first.start()
    assert is_in.wait(60.0)
    second = threading.Thread(target=lambda: found.append(stepping.finish(cells)))
    second.start()
    second.join(0.2)  # With nobody to hold it back it is through by now.
    may_go_on.set()
    for thread in (first, second):
        thread.join(60.0)
    assert_is_whole(stepping, found[0], cells)


def test_cell_that_comes_when_the_state_is_given_away_leaves_it_alone(stepping, seed):
    cells = result(seed)
    stepping.take(2, cells[0])
    found = stepping.finish(cells)
    stepping.take(0, cells[1])
    assert_is_whole(stepping, found, cells)


def test_cell_that_another_thread_took_while_the_others_were_stepped_is_stepped_again(
    outer, stepping, seed
):
    cells = result(seed)
    steps = 0

    def intrude_at_the_last() -> None:
        nonlocal steps
        steps += 1
        if steps == CELLS:  # As a thread would that had the lock before this one.
            outer.between = lambda: None
            stepping._step(0, cells[1])

    outer.between = intrude_at_the_last
    assert_is_whole(stepping, stepping.finish(cells), cells)
