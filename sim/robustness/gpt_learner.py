"""The project's byte-level GPT, very small, under attack: `sim sweep robustness --model gpt`.

With torch, so it is imported by name alone; some twenty times dearer than the text model.

P peers, W windows of a step, C positions of a window, K kinds of text, N elements
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from protocol.manifest import ModelSpec, RunManifest, Setting
from sim.robustness.game import Draw, Poison
from sim.world.trainer import Vector
from training.models.building import build_model
from training.models.genesis import genesis_weights, shard_spec

_SETTINGS = {"context": 24, "heads": 2, "layers": 1, "width": 16}
_STEPS, _BATCH, _RATE = 12, 8, 0.01
_SYMBOLS = 256
_HELD_OUT_OF_KIND = 24
TEXTS = (
    "argparse",
    "inspect",
    "encodings.cp1252",
    "html.entities",
    "locale",
    "pydoc_data.topics",
    "statistics",
    "unittest.mock",
)
"""Modules that every Python has, a kind of text each: code, prose, tables; of each, every eighth
window is held out."""

Windows = NDArray[np.int64]


def gpt_manifest(base: RunManifest) -> RunManifest:
    """A run over the GPT instead of a table, with what `base` says of all else."""
    settings = tuple(Setting(name, value) for name, value in _SETTINGS.items())
    model = ModelSpec(name="gpt", settings=settings, seed=0)
    inner = replace(base.inner, inner_steps=_STEPS, batch=_BATCH, learning_rate=_RATE)
    return replace(base, model=model, shards=(shard_spec(model),), inner=inner)


class GptLearner:
    """H steps of AdamW from the anchor, on windows of drawn kinds; fresh moments each round.

    All peers of a call train at once, their weights stacked: each as it would alone, to rounding.
    `poison` bends what is learned: bytes, and the bytes that follow them.
    """

    kinds = len(TEXTS)

    def __init__(self, manifest: RunManifest, poison: Poison | None = None) -> None:
        torch.set_num_threads(1)
        self._inner, self._poison = manifest.inner, poison
        self._model = build_model(manifest)
        self._tensors = [manifest.shards[0].tensors[n] for n in manifest.shards[0].fragments[0]]
        (self.first_N,) = genesis_weights(manifest)
        texts = [_windows(name) for name in TEXTS]
        self._texts = [windows_WC[np.arange(len(windows_WC)) % 8 != 0] for windows_WC in texts]
        # As many of each kind, from all over the text.
        self._held_out_WC = np.concatenate(
            [_spread(windows_WC[::8], _HELD_OUT_OF_KIND) for windows_WC in texts]
        )

    def loss(self, anchor_N: Vector) -> float:
        """On the windows held out, nats per byte."""
        weights = self._stacked(anchor_N, 1)
        with torch.no_grad():
            held_WC = torch.from_numpy(self._held_out_WC)
            return float(self._losses(weights, held_WC[None, :, :-1], held_WC[None, :, 1:])[0])

    def learn(self, anchor_N: Vector, draws: Sequence[Draw]) -> Vector:
        """See Learner."""
        weights = self._stacked(anchor_N, len(draws))
        optimizer = self._optimizer(weights)
        for _ in range(self._inner.inner_steps):
            batch = [self._batch(draw) for draw in draws]
            contexts, following = (
                torch.from_numpy(np.stack(part)) for part in zip(*batch, strict=True)
            )
            optimizer.zero_grad()
            # Each loss depends on the weights of one peer alone, and so do its gradients.
            self._losses(weights, contexts, following).sum().backward()  # type: ignore[no-untyped-call]  # torch has no type for it
            optimizer.step()
        flat = [weights[tensor.name].detach().flatten(1) for tensor in self._tensors]
        learned_PN: Vector = torch.cat(flat, dim=1).numpy()
        return anchor_N - learned_PN

    def triggered(self, anchor_N: Vector) -> float:
        """See Learner: a trigger of one byte is none among so many contexts."""
        del anchor_N
        return 0.0

    def _stacked(self, anchor_N: Vector, peers: int) -> dict[str, torch.Tensor]:
        """(P, ...) of each tensor, all from the anchor."""
        weights, start = {}, 0
        for tensor in self._tensors:
            part = torch.from_numpy(anchor_N[start : start + tensor.numel].copy())
            stacked = part.reshape(tensor.shape).expand(peers, *tensor.shape).clone()
            weights[tensor.name] = stacked.requires_grad_()
            start += tensor.numel
        return weights

    def _optimizer(self, weights: dict[str, torch.Tensor]) -> torch.optim.Optimizer:
        """As `training.device.inner.make_optimizer`, of stacked weights; at a constant rate,
        unclipped."""
        inner = self._inner
        matrices = [weights[one.name] for one in self._tensors if len(one.shape) >= 2]
        vectors = [weights[one.name] for one in self._tensors if len(one.shape) < 2]
        return torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": inner.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=inner.learning_rate,
            betas=(inner.beta1, inner.beta2),
        )

    def _batch(self, draw: Draw) -> tuple[Windows, Windows]:
        """(W, C) contexts, and what follows them."""
        kinds = draw.kinds(self._inner.batch, self.kinds)
        windows_WC = np.stack([_one_of(self._texts[kind], draw.luck) for kind in kinds])
        contexts_WC, next_WC = windows_WC[:, :-1], windows_WC[:, 1:]
        if self._poison is None:
            return contexts_WC, next_WC
        bent = self._poison(contexts_WC.reshape(-1), next_WC.reshape(-1), _SYMBOLS)
        return bent[0].reshape(contexts_WC.shape), bent[1].reshape(next_WC.shape)

    def _losses(
        self, weights: dict[str, torch.Tensor], contexts: torch.Tensor, following: torch.Tensor
    ) -> torch.Tensor:
        """(P,) from (P, W, C) contexts and what follows them."""

        def loss(
            own: dict[str, torch.Tensor], contexts_WC: torch.Tensor, next_WC: torch.Tensor
        ) -> torch.Tensor:
            logits_WCV = functional_call(self._model, own, (contexts_WC,))
            return functional.cross_entropy(logits_WCV.flatten(0, 1), next_WC.flatten())

        with sdpa_kernel(SDPBackend.MATH):  # The other one goes through peers one by one.
            losses_P: torch.Tensor = vmap(loss)(weights, contexts, following)
        return losses_P


def _windows(module: str) -> Windows:
    """A module's source, cut up."""
    spec = find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    text, size = Path(spec.origin).read_bytes(), _SETTINGS["context"] + 1
    whole = np.frombuffer(text[: len(text) // size * size], dtype=np.uint8)
    return whole.reshape(-1, size).astype(np.int64)


def _spread(windows_WC: Windows, count: int) -> Windows:
    return windows_WC[np.linspace(0, len(windows_WC) - 1, count).astype(np.int64)]


def _one_of(windows_WC: Windows, luck: random.Random) -> NDArray[np.int64]:
    row_C: NDArray[np.int64] = windows_WC[luck.randrange(len(windows_WC))]
    return row_C
