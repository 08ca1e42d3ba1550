"""The devices of this machine, for tests that hold on each."""

import torch

from training.device import Device, Found, candidates


def available() -> list[str]:
    """Names of all devices, the CPU last."""
    found = Found(torch.cuda.device_count(), torch.backends.mps.is_available())
    return [*candidates("auto", found)]


BFLOAT16_ON_CPU = Device(torch.device("cpu"), torch.bfloat16)
"""What no user gets: the path of an accelerator where there is none."""

SCARCE = Device(torch.device("cuda"))
"""A device whose memory is tried out, for models that stay on the CPU."""
