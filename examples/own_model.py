"""A model of one's own: a causal convolution that predicts the next byte.

A run.toml names this file, and `build` gets everything under [model.settings] as keywords:

    [model]
    file = "own_model.py"
    [model.settings]
    context = 64
    width = 48

B sequences, T positions, C channels
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class ByteConvolution(nn.Module):
    """Two causal convolutions over the bytes of a text."""

    def __init__(self, width: int, taps: int = 5) -> None:
        super().__init__()
        self.taps = taps
        self.embedding = nn.Embedding(256, width)
        self.first = nn.Conv1d(width, width, taps)
        self.second = nn.Conv1d(width, width, taps)
        self.head = nn.Linear(width, 256)

    def forward(self, bytes_BT: Tensor) -> Tensor:
        """Logits (B, T, 256) of the byte after each position."""
        x_BCT = self.embedding(bytes_BT).transpose(1, 2)
        for layer in (self.first, self.second):
            # Padding on the left alone: no position sees the bytes that it has to predict.
            x_BCT = x_BCT + torch.tanh(layer(functional.pad(x_BCT, (self.taps - 1, 0))))
        logits_BTV: Tensor = self.head(x_BCT.transpose(1, 2))
        return logits_BTV


def build(context: int, width: int) -> ByteConvolution:
    """The model of a run. Every run has the setting `context`, which this model does not need."""
    del context
    return ByteConvolution(width)
