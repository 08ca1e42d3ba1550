"""Validation loss and sampling.

B sequences, W window (context + 1 bytes)
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from training.inner import batch_loss


def validation_loss(
    model: nn.Module, windows_BW: NDArray[np.uint8], batch_windows: int = 64
) -> float:
    """Mean nats per byte over windows of context + 1 held-out bytes; the mode is put back."""
    was_training = model.training
    model.eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(windows_BW), batch_windows):
            part = windows_BW[start : start + batch_windows]
            total += float(batch_loss(model, part)) * len(part)
    model.train(was_training)
    return total / len(windows_BW)


def generate(model: nn.Module, prompt: bytes, num_bytes: int, seed: int) -> bytes:
    """`num_bytes` sampled bytes that continue a non-empty `prompt`, at temperature 1.

    Equal arguments give equal bytes on one machine. The model must have an attribute `context`.
    """
    context = model.context
    assert isinstance(context, int)
    generator = torch.Generator().manual_seed(seed)
    text = list(prompt)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for _ in range(num_bytes):
            logits_V = model(torch.tensor([text[-context:]]))[0, -1].cpu()
            probabilities_V = torch.softmax(logits_V.double(), dim=0)
            text.append(int(torch.multinomial(probabilities_V, 1, generator=generator)))
    model.train(was_training)
    return bytes(text[len(prompt) :])
