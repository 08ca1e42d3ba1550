"""Where the trainer computes: the device that it is told, or the best there is."""

import logging
import re
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from protocol.errors import ConfigError

logger = logging.getLogger(__name__)

AUTO = "auto"

_WISH = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
_NAME_CHARACTERS_MAX = 64
_BF16_CAPABILITY = (8, 0)
"""Compute capability from which on NVIDIA's devices have bfloat16; torch emulates it on older ones,
which is slower than float32."""


@dataclass(frozen=True, slots=True)
class Found:
    """What torch sees on this machine."""

    cuda: int
    """Number of CUDA (or ROCm) devices."""
    mps: bool

    def __str__(self) -> str:
        """The names that `--device` may have here."""
        names = [f"cuda:{index}" for index in range(self.cuda)] + ["mps"] * self.mps
        return ", ".join([*names, "cpu"])


@dataclass(frozen=True, slots=True)
class Device:
    """A device and how models compute on it.

    `autocast_dtype` is what matrices are multiplied in; None is float32. Weights, moments, losses
    and all that leaves the trainer are float32 whatever it is.
    """

    torch_device: torch.device
    autocast_dtype: torch.dtype | None = None

    @property
    def is_cpu(self) -> bool:
        """Whether memory is the machine's own, which swaps long before it is refused."""
        return self.torch_device.type == "cpu"

    @property
    def name(self) -> str:
        """What people are shown, such as `cuda:0 NVIDIA H200`."""
        name = str(self.torch_device)
        if self.torch_device.type == "cuda":
            name += f" {torch.cuda.get_device_name(self.torch_device)}"
        return name[:_NAME_CHARACTERS_MAX]

    @property
    def precision(self) -> str:
        """What matrices are multiplied in: `bfloat16` or `float32`."""
        return str(self.autocast_dtype or torch.float32).removeprefix("torch.")

    def autocast(self) -> AbstractContextManager[object]:
        """The context of one forward pass."""
        if self.autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.torch_device.type, dtype=self.autocast_dtype)

    def free_cache(self) -> None:
        """Give memory that torch keeps for later back to the device."""
        if self.torch_device.type == "cuda":
            torch.cuda.empty_cache()
        elif self.torch_device.type == "mps":
            torch.mps.empty_cache()


def open_device(wish: str) -> Device:
    """The device of that name, or for `auto` the first that works: CUDA, then MPS, then the CPU.

    bfloat16 is used on CUDA devices that have it and where MPS takes it. Not on the CPU: most of
    them emulate it, at a multiple of the time, and the few that do not would train with other
    numbers than the rest. Raises ConfigError that names what is there.
    """
    found = Found(torch.cuda.device_count(), torch.backends.mps.is_available())
    for name in candidates(wish, found):
        device = torch.device(name)
        try:
            _try_out(device)
        except RuntimeError as error:
            if wish != AUTO:
                raise ConfigError(
                    f"--device {wish}: torch cannot compute there ({error}); "
                    "use --device auto or cpu"
                ) from error
            logger.warning("device passed over name=%s reason=%s", name, error)
            continue
        return Device(device, torch.bfloat16 if _has_bfloat16(device) else None)
    raise AssertionError("the CPU always works")


def candidates(wish: str, found: Found) -> tuple[str, ...]:
    """The devices to try for `wish`, best first. Raises ConfigError that says what is there."""
    if _WISH.fullmatch(wish) is None:
        raise ConfigError(f"--device {wish!r} is none of auto, cpu, cuda, cuda:N, mps")
    if wish == AUTO:
        return ("cuda:0",) * (found.cuda > 0) + ("mps",) * found.mps + ("cpu",)
    if wish == "cpu":
        return ("cpu",)
    if wish == "mps":
        if found.mps:
            return ("mps",)
        raise ConfigError(
            "--device mps: this machine's torch sees no MPS device; use --device auto or cpu "
            f"(there is: {found})"
        )
    index = int(wish.removeprefix("cuda").removeprefix(":") or "0")
    if index < found.cuda:
        return (f"cuda:{index}",)
    if found.cuda:
        raise ConfigError(f"--device {wish}: there is no such CUDA device, only: {found}")
    raise ConfigError(
        f"--device {wish}: this machine's torch sees no CUDA device; use --device auto or cpu, "
        f"or install a torch with CUDA and its driver (there is: {found})"
    )


def _try_out(device: torch.device) -> None:
    # A driver that is too old, a device that this torch has no code for, or one whose memory others
    # have taken: it is listed and yet computes nothing.
    if device.type == "cuda":
        # So that no library puts its context on the first device as well.
        torch.cuda.set_device(device)
    ones = torch.ones(8, 8, device=device)
    if float((ones @ ones).sum()) != 512.0:
        raise RuntimeError("it computes wrong numbers")


def _has_bfloat16(device: torch.device) -> bool:
    if device.type == "cpu":
        return False
    if device.type == "cuda" and torch.version.hip is None:
        return torch.cuda.get_device_capability(device) >= _BF16_CAPABILITY
    return autocasts_to_bfloat16(device)


def autocasts_to_bfloat16(device: torch.device) -> bool:
    """Whether this torch really multiplies in bfloat16 on the device: asked by doing it."""
    try:
        with warnings.catch_warnings():
            # An MPS that does not take bfloat16 only warns, and goes on in float32.
            warnings.simplefilter("ignore")
            with torch.autocast(device.type, dtype=torch.bfloat16):
                ones = torch.ones(8, 8, device=device)
                product = ones @ ones
        return product.dtype == torch.bfloat16 and float(product.float().sum()) == 512.0
    except (RuntimeError, TypeError):
        return False
