"""Whether a founder's module can be trained together, and which tensors it has."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from protocol.errors import ConfigError
from protocol.grid import TensorSpec


def model_tensors(model: nn.Module) -> tuple[TensorSpec, ...]:
    """The tensors of a module as a founder fixes them, sorted by name.

    Raises ConfigError naming a parameter or buffer that cannot be trained together.
    """
    for name in _persistent_buffers(model):
        raise ConfigError(
            f"the model has the buffer {name!r}, which peers do not synchronise: use a layer "
            "without running statistics (GroupNorm, LayerNorm), or register a constant with "
            "persistent=False"
        )
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ConfigError("the model has no parameters")
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(f"the parameter {name!r} has no shape before the first forward")
        if parameter.dtype != torch.float32:
            raise ConfigError(f"the parameter {name!r} is {parameter.dtype}, it must be float32")
        if parameter.numel() == 0:
            raise ConfigError(f"the parameter {name!r} has no elements: {list(parameter.shape)}")
        # Of an expanded tensor many elements are one place in memory.
        places = zip(parameter.shape, parameter.stride(), strict=True)
        if any(size > 1 and stride == 0 for size, stride in places):
            raise ConfigError(f"the parameter {name!r} is expanded, make it of a clone()")
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(f"no parameter is trained: {name!r} and all others lack requires_grad")
    return tuple(TensorSpec(name, tuple(parameters[name].shape)) for name in sorted(parameters))


def _persistent_buffers(model: nn.Module) -> Iterator[str]:
    """Names of the buffers that are part of the module's state."""
    state = model.state_dict(keep_vars=True)
    return (name for name, _ in model.named_buffers() if name in state)
