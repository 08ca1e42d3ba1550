"""Whether a module and an optimizer can be trained together, for founder and joiner alike.

A run knows a model by names and shapes of float32 tensors, and overwrites their values. Whatever
else a program has, and would lose or keep for itself unsaid, is refused here with what to do.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from protocol.errors import ConfigError, ManifestMismatch
from protocol.grid import TensorSpec
from protocol.manifest import RunManifest

logger = logging.getLogger(__name__)

_WRAPPERS = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""What torch.compile and its kin put into the names of what they wrap."""

_SAME_MODEL = "build the model that the run's founder built, with the same settings"
_NAMED_MAX = 4


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside torch.compile, DataParallel or DistributedDataParallel: the same parameters
    under the names that their author gave them."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside: object = model.module
        else:
            inside = getattr(model, "_orig_mod", None)
        if not isinstance(inside, nn.Module):
            return model
        model = inside


def model_tensors(model: nn.Module) -> tuple[TensorSpec, ...]:
    """The tensors of a module as a founder fixes them, sorted by name.

    Raises ConfigError naming a parameter or buffer that cannot be trained together.
    """
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ConfigError("the model has no parameters")
    for name in parameters:
        if "_orig_mod" in name.split("."):
            raise ConfigError(
                f"the parameter {name!r} has its name from torch.compile(...), which wraps it: "
                "compile in place, model.compile(), and names stay as they are"
            )
    check_module(model, parameters)
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(f"no parameter is trained: {name!r} and all others lack requires_grad")
    return tuple(TensorSpec(name, tuple(parameters[name].shape)) for name in sorted(parameters))


def check_module(model: nn.Module, trained: Collection[str]) -> None:
    """Raise ConfigError naming what of a module cannot be trained together.

    `trained` are the parameters that are the run's. Frozen ones beside them are the program's own.
    """
    for name in _persistent_buffers(model):
        raise ConfigError(
            f"the model has the buffer {name!r}, which peers do not synchronise: use a layer "
            "without running statistics (GroupNorm, LayerNorm), or register a constant with "
            "persistent=False"
        )
    parameters = {name: p for name, p in model.named_parameters() if name in trained}
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ConfigError(f"the parameter {name!r} has no shape before the first forward")
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"the parameter {name!r} is {parameter.dtype}: weights stay torch.float32, use "
                "torch.autocast to compute in less"
            )
        if parameter.numel() == 0:
            raise ConfigError(f"the parameter {name!r} has no elements: {list(parameter.shape)}")
        # Of an expanded tensor many elements are one place in memory.
        places = zip(parameter.shape, parameter.stride(), strict=True)
        if any(size > 1 and stride == 0 for size, stride in places):
            raise ConfigError(f"the parameter {name!r} is expanded, make it of a clone()")
        if parameter.is_inference():
            raise ConfigError(
                f"the parameter {name!r} was made in inference mode and cannot be trained: build "
                "the model outside of torch.inference_mode()"
            )
    _check_memory(model)
    if any(parameter.requires_grad for parameter in parameters.values()):
        _check_frozen(parameters)


def _check_frozen(parameters: Mapping[str, nn.Parameter]) -> None:
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if frozen:
        raise ConfigError(
            f"the parameters {_some(frozen)} are frozen (requires_grad=False), and a run trains "
            "each parameter that it has, from first values of its own: what was pretrained would "
            "be lost. Unfreeze them with requires_grad_(True), or keep what is to stay as it is in "
            "buffers (register_buffer with persistent=False), which build() must fill with the "
            "same values on every peer"
        )


def _check_memory(model: nn.Module) -> None:
    """Raise ConfigError for two parameters over one memory: weights that are written for one of
    them would change the other, and the loop's weights would not be those that were agreed on."""
    places = [
        (str(p.device), p.data_ptr(), name, p)
        for name, p in model.named_parameters()
        if not isinstance(p, UninitializedParameter) and p.numel() and p.data_ptr()
    ]
    stretches: list[list[tuple[int, str, nn.Parameter]]] = []
    before, end = "", 0
    for device, start, name, parameter in sorted(places, key=lambda place: place[:2]):
        if device != before or start >= end:
            stretches.append([])
            before, end = device, start
        stretches[-1].append((start, name, parameter))
        end = max(end, start + parameter.element_size() * _extent(parameter))
    for stretch in stretches:
        if len(stretch) > 1:
            _check_apart(stretch)


def _extent(parameter: nn.Parameter) -> int:
    """Elements from the first to behind the last in memory."""
    places = zip(parameter.shape, parameter.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in places)


def _check_apart(stretch: list[tuple[int, str, nn.Parameter]]) -> None:
    """Of parameters whose stretches of memory overlap, no element may be another's: columns of one
    matrix, for instance, lie between each other."""
    first, bytes_each = stretch[0][0], stretch[0][2].element_size()
    begins = [(start - first) // bytes_each for start, _, _ in stretch]
    size = max(b + _extent(p) for b, (_, _, p) in zip(begins, stretch, strict=True))
    owner = torch.full((size,), -1)
    for number, (begin, (_, name, parameter)) in enumerate(zip(begins, stretch, strict=True)):
        own = owner.as_strided(parameter.shape, parameter.stride(), begin)
        other = int(own.max())
        if other >= 0:
            raise ConfigError(
                f"the parameters {stretch[other][1]} and {name} are two over one memory: tie the "
                "attribute itself (self.head.weight = self.embedding.weight), not its .data, so "
                "that they are one parameter, or give one of them a clone()"
            )
        own.fill_(number)


def check_parameters(model: nn.Module, manifest: RunManifest, shard: int = 0) -> None:
    """Raise ManifestMismatch naming the first tensor of the run that the model has not as it is.

    Raises ConfigError naming what `check_module` refuses, or what is trained beside the run.

    Weights are float32 on every device, so that an anchor comes through the model without losing a
    bit; `torch.autocast` makes a model compute in less.
    """
    parameters = dict(model.named_parameters())
    for tensor in manifest.shards[shard].tensors:
        parameter = parameters.get(tensor.name)
        shape = None if parameter is None else tuple(parameter.shape)
        if parameter is None:
            _refuse_wrapped(tensor.name, parameters)
        if shape != tensor.shape:
            ours = "not in the model" if shape is None else shape
            raise ManifestMismatch(
                f"the tensor {tensor.name}", ours, tensor.shape, advice=_SAME_MODEL
            )
    check_module(model, {tensor.name for tensor in manifest.shards[shard].tensors})
    known = {tensor.name for spec in manifest.shards for tensor in spec.tensors}
    beside = [name for name in parameters if name not in known]
    for name in beside:
        if parameters[name].requires_grad:
            raise ConfigError(
                f"the run does not train {name}, so each node would have its own: "
                "freeze it with requires_grad_(False)"
            )
    if beside:
        logger.warning(
            "the run has no %s: frozen here, they are this program's own, and nobody checks that "
            "other peers have the same",
            _some(beside),
        )


def _refuse_wrapped(wanted: str, names: Iterable[str]) -> None:
    """Raise ConfigError where the model has the tensor under the name that a wrapper gave it."""
    for name in names:
        parts = name.split(".")
        inside = [part for part in parts if part not in _WRAPPERS]
        if ".".join(inside) == wanted:
            wrapper = next(part for part in parts if part in _WRAPPERS)
            raise ConfigError(
                f"the run's tensor {wanted} is called {name} here, because something wraps the "
                f"model ({wrapper}): hand over the model inside; torch.compile keeps names where "
                "it compiles in place, layer.compile()"
            )


def check_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, manifest: RunManifest, shard: int = 0
) -> None:
    """Raise ConfigError where the optimizer trains something else than the run, or at own rates.

    The rate itself is the run's: a function of the sealed clock, equal on all peers.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if any(one not in names for one in given):
        raise ConfigError(
            "the optimizer has tensors that are no parameters of this model: make it of "
            "model.parameters(), when the model is complete and on its device"
        )
    has = {names[one] for one in given}
    missing = [one.name for one in manifest.shards[shard].tensors if one.name not in has]
    if missing:
        raise ConfigError(
            f"the optimizer lacks {_some(missing)}, which the run trains, so that this node would "
            "hold all others back there: make it of model.parameters()"
        )
    rates = {float(group["lr"]) for group in optimizer.param_groups if "lr" in group}
    if len(rates) > 1:
        raise ConfigError(
            f"the optimizer has groups with the learning rates {', '.join(map(str, sorted(rates)))}"
            ", and a run sets one for all of them: give all groups the same. Other settings of "
            "groups, such as weight_decay, are yours"
        )
    if any("initial_lr" in group for group in optimizer.param_groups):
        logger.warning(
            "the learning-rate scheduler of this optimizer has no effect: the run sets the rate, "
            "the same on every peer"
        )


def _persistent_buffers(model: nn.Module) -> Iterator[str]:
    """Names of the buffers that are part of the module's state."""
    state = model.state_dict(keep_vars=True)
    return (name for name, _ in model.named_buffers() if name in state)


def _some(names: Collection[str]) -> str:
    """The first of them, and how many more there are."""
    first = ", ".join(list(names)[:_NAMED_MAX])
    more = len(names) - _NAMED_MAX
    return f"{first} and {more} more" if more > 0 else first
