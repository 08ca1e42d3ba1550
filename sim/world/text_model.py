"""A small real model that simulated nodes train: who follows whom in a text made from the seed.

    K symbols   C contexts   B samples of a step

The whole shard is one table of K logits for each context; a context is the last two symbols, or
the last one where the shard is small. Softmax over a row, cross-entropy, plain gradient descent:
the gradient is exact, and a round is H steps on the leased samples. numpy alone; `exp` and `log`
are numpy's, so that losses and traces are equal where numpy's build is.
"""

import random

import numpy as np
from numpy.typing import NDArray

from protocol.leases import Lease
from protocol.manifest import RunManifest
from sim.world.learning import Learned, Vector

NUM_SYMBOLS = 8
NUM_SAMPLES = 1 << 15
LEARNING_RATE = 4.0
"""Of the inner steps: a row of logits gets its own share of a batch only, some sixtieth."""

BRANCHES = 3
"""So many symbols follow a context often; entropy is then well below that of any symbol."""


class TextModel:
    """A Learner: trains the table of logits on the samples of its lease."""

    def __init__(self, manifest: RunManifest, seed: int) -> None:
        """All nodes of a world share one: it holds the text and nothing that is learned."""
        numel = manifest.layout(0).numel
        self._order = 2 if numel >= NUM_SYMBOLS**3 else 1
        self._num_contexts = NUM_SYMBOLS**self._order
        if numel < self._num_contexts * NUM_SYMBOLS:
            raise ValueError(f"a model of {numel} elements is too small for a model of text")
        self._steps = manifest.inner.inner_steps
        self._batch = manifest.inner.batch
        self.context_B, self.next_B = _text(random.Random(f"{seed}/text"), self._order)

    @property
    def entropy(self) -> float:
        """What no model of this order gets below on this text, nats per symbol."""
        counts_CK = np.zeros((self._num_contexts, NUM_SYMBOLS))
        np.add.at(counts_CK, (self.context_B, self.next_B), 1.0)
        shares_CK = counts_CK / np.maximum(counts_CK.sum(axis=1, keepdims=True), 1.0)
        logs_CK = np.log(np.maximum(shares_CK, 1e-300))
        return float(-(counts_CK * logs_CK).sum() / counts_CK.sum())

    def loss(self, anchor_N: Vector) -> float:
        """Mean cross-entropy of the whole text, nats per symbol."""
        rows_BK = self._table(anchor_N)[self.context_B]
        return float(_losses(rows_BK, self.next_B).mean())

    def __call__(self, anchor_N: Vector, lease: Lease, stream: random.Random) -> Learned:
        """See Learner: H steps of gradient descent; the mean loss over them."""
        del stream
        samples = np.concatenate([np.arange(first, stop) for first, stop in lease])
        table_CK = self._table(anchor_N).astype(np.float64)
        losses = []
        for step in range(self._steps):
            chosen_B = samples[step * self._batch : (step + 1) * self._batch] % NUM_SAMPLES
            if not len(chosen_B):
                break  # The lease of the last round may be short.
            context_B, next_B = self.context_B[chosen_B], self.next_B[chosen_B]
            rows_BK = table_CK[context_B]
            losses.append(_losses(rows_BK, next_B).mean())
            gradient_BK = _softmax(rows_BK)
            gradient_BK[np.arange(len(next_B)), next_B] -= 1.0
            np.subtract.at(table_CK, context_B, LEARNING_RATE / len(next_B) * gradient_BK)
        drift_N = np.zeros_like(anchor_N)
        used_N = table_CK.reshape(-1).astype(np.float32)
        drift_N[: len(used_N)] = anchor_N[: len(used_N)] - used_N
        return Learned(drift_N, float(np.mean(losses)))

    def _table(self, anchor_N: Vector) -> Vector:
        size = self._num_contexts * NUM_SYMBOLS
        return anchor_N[:size].reshape(self._num_contexts, NUM_SYMBOLS)


def _softmax(rows_BK: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted_BK = np.exp(rows_BK - rows_BK.max(axis=1, keepdims=True))
    shares_BK: NDArray[np.float64] = shifted_BK / shifted_BK.sum(axis=1, keepdims=True)
    return shares_BK


def _losses(rows_BK: NDArray[np.floating], next_B: NDArray[np.int64]) -> NDArray[np.float64]:
    shares_BK = _softmax(rows_BK.astype(np.float64))
    losses_B: NDArray[np.float64] = -np.log(shares_BK[np.arange(len(next_B)), next_B])
    return losses_B


def _text(stream: random.Random, order: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Contexts and what follows them, in the order of the text."""
    likely = [stream.choices(range(NUM_SYMBOLS), k=BRANCHES) for _ in range(NUM_SYMBOLS**order)]
    context, contexts, following = 0, [], []
    for _ in range(NUM_SAMPLES):
        is_likely = stream.random() < 0.9
        symbol = stream.choice(likely[context]) if is_likely else stream.randrange(NUM_SYMBOLS)
        contexts.append(context)
        following.append(symbol)
        context = (context * NUM_SYMBOLS + symbol) % NUM_SYMBOLS**order
    return np.array(contexts, dtype=np.int64), np.array(following, dtype=np.int64)
