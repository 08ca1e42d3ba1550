"""Text out of a model."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from protocol.errors import ConfigError, StateError
from tests.training.replicas import INNER, small_manifest
from training.device.inner import (
    accumulate_gradient,
    apply_gradient,
    finite_loss,
    make_optimizer,
    validation_loss,
)
from training.evaluation import Sampling
from training.evaluation.yardstick import generate, sample_text
from training.models.building import build_model


class Echo(nn.Module):
    """Always expects the same; remembers what it was shown."""

    context = 4

    def __init__(self, logits: dict[int, float]) -> None:
        super().__init__()
        values = torch.full((256,), -30.0)
        for byte, logit in logits.items():
            values[byte] = logit
        self.logits = nn.Parameter(values)
        self.shown: list[list[int]] = []
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, bytes_BT: Tensor) -> Tensor:
        self.shown.append(bytes_BT[0].tolist())
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.logits.expand(*bytes_BT.shape, 256)


def written(model: nn.Module, prompt: bytes, num_bytes: int, **numbers) -> bytes:
    return bytes(generate(model, prompt, num_bytes, Sampling(**({"seed": 0} | numbers))))


def test_equal_seeds_give_equal_bytes_and_others_do_not(seed):
    model = build_model(small_manifest())
    text = written(model, b"import ", 30, seed=seed)
    assert len(text) == 30
    assert written(model, b"import ", 30, seed=seed) == text
    assert written(model, b"import ", 30, seed=seed + 1) != text


def test_drawing_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    written(build_model(small_manifest()), b"a", 5)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_text_is_what_the_model_was_trained_on():
    manifest = small_manifest(inner=dataclasses.replace(INNER, learning_rate=0.02))
    model = build_model(manifest)
    optimizer = make_optimizer(model, manifest.inner)
    windows_BW = np.frombuffer(b"abcdefgh" * 9, dtype=np.uint8).reshape(8, 9)
    for _ in range(80):
        accumulate_gradient(model, optimizer, windows_BW)
        apply_gradient(model, optimizer, manifest, 5)
    assert written(model, b"abcd", 12).startswith(b"efgh")
    assert written(model, b"abcd", 12, temperature=0.0) == b"efghabcdefgh"


def test_model_is_shown_the_prompts_end_and_then_what_was_drawn():
    model = Echo({65: 0.0})
    assert written(model, b"prompt", 6) == b"AAAAAA"
    assert [bytes(shown) for shown in model.shown] == [
        *(b"ompt", b"mptA", b"ptAA", b"tAAA", b"AAAA", b"AAAA")
    ]


def test_short_prompt_is_not_padded_and_no_prompt_is_the_beginning_of_a_line():
    model = Echo({65: 0.0})
    written(model, b"x", 3)
    written(model, b"", 1)
    assert [bytes(shown) for shown in model.shown] == [b"x", b"xA", b"xAA", b"\n"]


def test_bytes_come_as_they_are_drawn():
    model = Echo({65: 0.0})
    bytes_drawn = generate(model, b"x", 1000, Sampling(seed=0))
    assert next(bytes_drawn) == 65
    assert len(model.shown) == 1


def test_mode_is_put_back_also_where_nobody_waits_for_the_end():
    model = Echo({65: 0.0}).train()
    bytes_drawn = generate(model, b"x", 10, Sampling(seed=0))
    next(bytes_drawn)
    # Between two bytes the caller runs: what it computes has gradients as before.
    assert torch.is_grad_enabled()
    bytes_drawn.close()
    assert model.modes == [(False, False)]
    assert model.training


def test_frequencies_are_those_that_the_model_expects():
    drawn = Counter(written(Echo({65: math.log(3), 66: 0.0}), b"x", 600))
    # Three standard deviations of 600 draws at 0.75.
    assert drawn.keys() == {65, 66}
    assert abs(drawn[65] / 600 - 0.75) < 3 * math.sqrt(0.75 * 0.25 / 600)


def test_temperature_divides_the_logits():
    drawn = Counter(written(Echo({65: math.log(3), 66: 0.0}), b"x", 600, temperature=0.5))
    assert abs(drawn[65] / 600 - 0.9) < 3 * math.sqrt(0.9 * 0.1 / 600)


@pytest.mark.parametrize("temperature", [0.0, 1e-308, 5e-324])
def test_no_temperature_takes_the_likeliest(temperature):
    model = Echo({65: 30.0, 66: 30.001, 67: -1e30})
    assert written(model, b"x", 20, temperature=temperature) == b"B" * 20


def test_top_k_leaves_the_likeliest_with_their_odds():
    model = Echo({65: math.log(3), 66: 0.0, 67: -0.1, 68: -0.1})
    drawn = Counter(written(model, b"x", 600, top_k=2))
    assert drawn.keys() == {65, 66}
    assert abs(drawn[65] / 600 - 0.75) < 3 * math.sqrt(0.75 * 0.25 / 600)
    assert written(model, b"x", 20, top_k=1) == b"A" * 20


@pytest.mark.parametrize("logit", [math.nan, math.inf, -math.inf])
def test_weights_that_predict_nothing_are_named(logit):
    with pytest.raises(StateError, match="predict nothing"):
        written(Echo({65: logit}), b"x", 1)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"top_k": -1}, "top-k -1"),
        ({"top_k": (1 << 20) + 1}, "top-k 1048577"),
        ({"seed": -1}, "seed -1"),
        ({"seed": 2**63}, "seed 9223372036854775808"),
    ],
)
def test_number_out_of_range_is_named(numbers, named):
    with pytest.raises(ConfigError, match=named):
        Sampling(**({"seed": 0} | numbers))


def test_sample_shows_bytes_that_are_no_text():
    model = Echo({0xFF: 0.0})
    assert sample_text(small_manifest(), model, b"x", 2) == "x\ufffd\ufffd"


def test_progress_of_a_loss_is_told_batch_by_batch():
    model = build_model(small_manifest())
    windows_BW = np.zeros((10, 9), dtype=np.uint8)
    told: list[int] = []
    loss = validation_loss(model, windows_BW, 4, tell=told.append)
    assert told == [4, 8, 10]
    # All windows count alike, also those of the last, smaller batch.
    assert loss == pytest.approx(validation_loss(model, windows_BW, 10), abs=1e-6)


def test_loss_that_is_no_number_is_not_reported():
    with pytest.raises(StateError, match="predict nothing"):
        finite_loss(Echo({65: math.nan}), np.zeros((2, 5), dtype=np.uint8), 2)
