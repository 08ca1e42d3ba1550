"""How many sequences go through the model at once: as many as the device's memory holds.

W window (context + 1 bytes), B sequences

The batch of an inner step is the manifest's on every machine. Where it does not fit it is cut into
micro-batches whose gradients add up to it: slower, and to rounding the same.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.errors import ConfigError
from training.device.device import Device
from training.device.inner import accumulate_gradient

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RESERVE = 3
"""Copies of the weights that the optimizer's first step adds: two moments and intermediates."""

_COMPLAINTS = ("out of memory", "DefaultCPUAllocator", "CUBLAS_STATUS_ALLOC_FAILED")
"""How allocators say so where torch has no class for it: MPS, the CPU, CUDA's own libraries."""


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory was refused, on whatever device."""
    # Under this name since torch 2.0; torch.OutOfMemoryError is the same class.
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    return any(complaint in str(error) for complaint in _COMPLAINTS)


class MicroBatch:
    """The size, found by trial and halved whenever memory is refused; it never grows again."""

    def __init__(self, device: Device, batch: int, *, sam_radius: float = 0.0) -> None:
        self._device = device
        self._sam_radius = sam_radius
        self._batch = batch
        self._size = batch

    @property
    def size(self) -> int:
        """Sequences at once, 1..batch."""
        return self._size

    def try_out(self, model: nn.Module, optimizer: torch.optim.Optimizer, window: int) -> None:
        """Find the size before training: halve it until one pass forward and back fits.

        Windows have `window` bytes. Nothing is tried on the CPU, where memory seldom is refused and
        a pass may take long. Leaves no gradients. Raises ConfigError if one sequence does not fit.
        """
        if self._device.is_cpu:
            return

        def attempt(size: int) -> None:
            # The moments come with the first optimizer step, when it is too late to halve.
            copies = range(_RESERVE + (self._sam_radius > 0.0))
            held = [torch.empty_like(p) for p in model.parameters() for _ in copies]
            windows_BW = np.zeros((size, window), dtype=np.uint8)
            accumulate_gradient(model, optimizer, windows_BW, autocast=self._device.autocast)
            del held

        self._fit(optimizer, attempt)
        optimizer.zero_grad()

    def gradient(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, windows_BW: NDArray[np.uint8]
    ) -> float:
        """`accumulate_gradient` of the whole batch; again with half the size if memory is refused.

        Raises ConfigError if one sequence does not fit.
        """

        def attempt(size: int) -> float:
            return accumulate_gradient(
                model,
                optimizer,
                windows_BW,
                sam_radius=self._sam_radius,
                micro_batch=size,
                autocast=self._device.autocast,
            )

        return self._fit(optimizer, attempt)

    def at_once(self, most: int) -> int:
        """How many of `most` windows a pass without gradients takes: what surely fits."""
        # On the CPU all, until it was short of memory: curves of all such nodes then compare.
        is_ample = self._device.is_cpu and self._size == self._batch
        return most if is_ample else min(most, self._size)

    def _fit(self, optimizer: torch.optim.Optimizer, attempt: Callable[[int], T]) -> T:
        while True:
            try:
                return attempt(self._size)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self._size == 1:
                    raise memory_error(self._device) from error
                reason = str(error).partition("\n")[0][:200]
            # Out here the error is gone, and with it its frames, which held the activations.
            optimizer.zero_grad()
            self._device.free_cache()
            self._size //= 2
            logger.warning("out of memory micro_batch=%d reason=%s", self._size, reason)


def memory_error(device: Device) -> ConfigError:
    """What to tell a user whose device is too small, or taken by others."""
    return ConfigError(
        f"{device.name} has too little free memory to train this model, even one sequence at a "
        "time: end other programs that use it, choose another device with --device, or join a run "
        "of a smaller model or context"
    )
