"""The project's byte-level GPT, very small, under attack: `sim sweep robustness --model gpt`.

With torch, so it is imported by name alone; some fifty times dearer than the text model.

P positions of a window, W windows of a step, N elements
"""

import argparse
import ast
import inspect
import random
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from protocol.manifest import ModelSpec, RunManifest, Setting
from sim.learning import Learned, Vector
from sim.robustness.learners import Poison
from training.genesis import genesis_weights, shard_spec
from training.inner import make_optimizer
from training.models import build_model, read_fragment, write_fragment

_SETTINGS = {"context": 24, "heads": 2, "layers": 1, "width": 16}
_STEPS, _BATCH, _RATE = 12, 8, 0.01
_SYMBOLS = 256
_HELD_OUT_WINDOWS = 128
_TRAINED_ON: tuple[ModuleType, ...] = (argparse, ast, inspect)
"""Sources that every Python has; each eighth window is held out."""


def gpt_manifest(base: RunManifest) -> RunManifest:
    """A run over the GPT instead of a table, with what `base` says of all else."""
    settings = tuple(Setting(name, value) for name, value in _SETTINGS.items())
    model = ModelSpec(name="gpt", settings=settings, seed=0)
    inner = replace(base.inner, inner_steps=_STEPS, batch=_BATCH, learning_rate=_RATE)
    return replace(base, model=model, shards=(shard_spec(model),), inner=inner)


class GptLearner:
    """H steps of AdamW from the anchor, on windows drawn by the lease; fresh moments each round.

    `poison` bends what is learned: bytes, and the bytes that follow them.
    """

    def __init__(self, manifest: RunManifest, poison: Poison | None = None) -> None:
        torch.set_num_threads(1)
        self._manifest, self._poison = manifest, poison
        self._model = build_model(manifest)
        self._spec = manifest.shards[0]
        (self.first_N,) = genesis_weights(manifest)
        text = b"".join(Path(str(module.__file__)).read_bytes() for module in _TRAINED_ON)
        size = _SETTINGS["context"] + 1
        whole = np.frombuffer(text[: len(text) // size * size], dtype=np.uint8)
        windows_AP = whole.reshape(-1, size).astype(np.int64)
        is_held_out = np.arange(len(windows_AP)) % 8 == 0
        self._windows_AP = windows_AP[~is_held_out]
        self._held_out_WP = windows_AP[is_held_out][:_HELD_OUT_WINDOWS]

    def loss(self, anchor_N: Vector) -> float:
        """On the windows held out, nats per byte."""
        write_fragment(self._model, self._spec, 0, anchor_N)
        with torch.no_grad():
            windows_WP = self._held_out_WP
            return float(self._loss(windows_WP[:, :-1], windows_WP[:, 1:]))

    def learn(self, anchor_N: Vector, luck: random.Random) -> Learned:
        """One round's work of one peer."""
        write_fragment(self._model, self._spec, 0, anchor_N)
        optimizer = make_optimizer(self._model, self._manifest.inner)
        for group in optimizer.param_groups:
            group["lr"] = self._manifest.inner.learning_rate
        losses = []
        for _ in range(self._manifest.inner.inner_steps):
            rows = [luck.randrange(len(self._windows_AP)) for _ in range(_BATCH)]
            windows_WP = self._windows_AP[rows]
            contexts_WP, next_WP = windows_WP[:, :-1], windows_WP[:, 1:]
            if self._poison is not None:
                bent = self._poison(contexts_WP.reshape(-1), next_WP.reshape(-1), _SYMBOLS)
                contexts_WP, next_WP = (one.reshape(contexts_WP.shape) for one in bent)
            optimizer.zero_grad()
            loss = self._loss(contexts_WP, next_WP)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
            optimizer.step()
            losses.append(float(loss.detach()))
        return Learned(anchor_N - read_fragment(self._model, self._spec, 0), float(np.mean(losses)))

    def triggered(self, anchor_N: Vector) -> float:
        """See Learner: a trigger of one byte is none among so many contexts."""
        del anchor_N
        return 0.0

    def _loss(self, contexts_WP: NDArray[np.int64], next_WP: NDArray[np.int64]) -> torch.Tensor:
        logits = self._model(torch.from_numpy(np.ascontiguousarray(contexts_WP)))
        wanted = torch.from_numpy(np.ascontiguousarray(next_WP))
        return functional.cross_entropy(logits.reshape(-1, _SYMBOLS), wanted.reshape(-1))
