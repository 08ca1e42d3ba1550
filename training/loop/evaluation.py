"""Validation loss on held-out text.

B sequences, W window (context + 1 bytes)
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.errors import StateError
from training.device.inner import batch_loss


def _tell_nobody(done: int) -> None:
    del done


def validation_loss(
    model: nn.Module,
    windows_BW: NDArray[np.uint8],
    batch_windows: int = 64,
    *,
    tell: Callable[[int], None] = _tell_nobody,
) -> float:
    """Mean nats per byte over windows of context + 1 held-out bytes; the mode is put back.

    `tell` gets the number of windows done, after each batch of them.
    """
    was_training = model.training
    model.eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(windows_BW), batch_windows):
            part = windows_BW[start : start + batch_windows]
            total += float(batch_loss(model, part)) * len(part)
            tell(start + len(part))
    model.train(was_training)
    return total / len(windows_BW)


def finite_loss(
    model: nn.Module,
    windows_BW: NDArray[np.uint8],
    batch_windows: int,
    *,
    tell: Callable[[int], None] = _tell_nobody,
) -> float:
    """`validation_loss` for whoever reports it. Raises StateError for weights that give none."""
    loss = validation_loss(model, windows_BW, batch_windows, tell=tell)
    if not math.isfinite(loss):
        raise StateError(f"these weights predict nothing: their loss is {loss}")
    return loss
