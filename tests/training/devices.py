"""The devices of this machine, for tests that hold on each."""

from collections.abc import Mapping

import torch

from training.device.device import Device, Found, candidates


def available() -> list[str]:
    """Names of all devices, the CPU last."""
    found = Found(torch.cuda.device_count(), torch.backends.mps.is_available())
    return [*candidates("auto", found)]


BFLOAT16_ON_CPU = Device(torch.device("cpu"), torch.bfloat16)
"""What no user gets: the path of an accelerator where there is none."""

SCARCE = Device(torch.device("cuda"))
"""A device whose memory is tried out, for models that stay on the CPU."""


def assert_same_moments(
    ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]
) -> None:
    """Tensors of two optimizers, by name: some, the same ones, each on the same device."""
    assert ours.keys() == theirs.keys() != set()
    for key, tensor in ours.items():
        assert theirs[key].device == tensor.device, key
        assert torch.equal(theirs[key], tensor), key
