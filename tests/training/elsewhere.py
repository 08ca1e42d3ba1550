"""A device that no machine has: tensors that claim to lie on it, and compute on the CPU.

What works there uses the tensor's own device throughout, as an accelerator demands: an operation
that mixes it with a tensor of the host raises, as CUDA does; what goes to the host is counted.
It says nothing about operations that an accelerator lacks, nor about its rounding.
"""

from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
"""Its name: the one device besides the CPU that every build of torch knows."""

_HOST = torch.device("cpu")


class _Far(Tensor):
    """Memory of the host under the other device's name."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Self:
        """Wrap a tensor of the host."""
        far: Self = Tensor._make_wrapper_subclass(
            cls, near.size(), near.stride(), near.storage_offset(), dtype=near.dtype, device=DEVICE
        )
        far.near = near
        return far

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Outside of `Elsewhere` nothing may be done with it."""
        raise AssertionError(f"{func} of a device that is not there")


class Elsewhere(TorchDispatchMode):
    """While it is entered there is such a device. `moved_bytes` came back from it."""

    def __init__(self) -> None:
        super().__init__()
        self.moved_bytes = 0

    def put(self, near: Tensor) -> Tensor:
        """A tensor of the host, there."""
        return _Far(near.clone())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute where the tensors are; RuntimeError where that is in two places."""
        kwargs = dict(kwargs or {})
        tensors = [t for t in tree_flatten((args, kwargs))[0] if isinstance(t, Tensor)]
        is_far = any(isinstance(t, _Far) for t in tensors)
        is_copy = func is torch.ops.aten.copy_.default
        # A number of the host, without dimensions, is welcome everywhere.
        if is_far and not is_copy and any(not isinstance(t, _Far) and t.dim() for t in tensors):
            raise RuntimeError(f"{func}: tensors of two devices")
        wanted = kwargs.get("device")
        if wanted is not None:
            kwargs["device"] = _HOST
        near_args, near_kwargs = tree_map(_near, (args, kwargs))
        found = func(*near_args, **near_kwargs)
        stays = is_far if wanted is None else torch.device(wanted).type == DEVICE.type
        if is_copy:
            stays = isinstance(args[0], _Far)
        if is_far and not stays:
            self.moved_bytes += sum(t.numel() * t.element_size() for t in tree_flatten(found)[0])
        if not stays:
            return found
        if func._schema.is_mutable and isinstance(found, Tensor):
            return args[0]
        return tree_map(lambda one: _Far(one) if isinstance(one, Tensor) else one, found)


def _near(one: Any) -> Any:
    return one.near if isinstance(one, _Far) else one
