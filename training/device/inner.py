"""The inner loop: steps of AdamW, or of SGD, between two rounds; where the run says so with
gradients that are taken a little uphill (SAM, Foret et al. 2021).

B sequences, W window (context + 1 bytes), T context, V vocabulary

The learning rate is a function of the manifest, the sealed clock and the local step only (R9), so
that a peer that joined late trains with the rate of everybody else. Moments stay on this machine:
they are neither averaged nor reset at a round.
"""

import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from protocol.errors import CheckpointError, ConfigError, StateError
from protocol.manifest import InnerSpec, RunManifest
from training.device.device import Device
from training.numeric import Tokens

_ELEMENT_WISE = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
"""Moments of torch's optimizers that have the shape of their parameter."""

_LEAST_NORM = 1e-12


def learning_rate(manifest: RunManifest, step: int) -> float:
    """The rate of global inner step `step` (0 is the first of the run).

    Linear warm-up, then a cosine down to `learning_rate_floor` (a share of the peak) at the end of
    the run, and the floor from there on.
    """
    inner = manifest.inner
    if step < inner.warmup_steps:
        return inner.learning_rate * (step + 1) / inner.warmup_steps
    span = max(1, manifest.total_inner_steps - inner.warmup_steps)
    progress = min(1.0, (step - inner.warmup_steps) / span)
    cosine = 0.5 * (1.0 + math.cos(math.pi * progress))
    floor = inner.learning_rate_floor
    return inner.learning_rate * (floor + (1.0 - floor) * cosine)


def _uncompiled(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """That optimizer, under its own name, without torch's compiler: what its methods are wrapped in
    loads that, 70 MiB and a second of the processor, to say that it is to keep out."""
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    # The wrapping of `step` switches gradients off, too.
    bare["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), bare)


_AdamW, _SGD = map(_uncompiled, (torch.optim.AdamW, torch.optim.SGD))


def make_optimizer(model: nn.Module, inner: InnerSpec) -> torch.optim.Optimizer:
    """AdamW as the manifest says; matrices decay, norms (one axis) do not. Or SGD without moments:
    the drift of one step is then the gradient, times the rate."""
    if inner.optimizer == "sgd":
        return _SGD(model.parameters(), lr=inner.learning_rate)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return _AdamW(
        [
            {"params": matrices, "weight_decay": inner.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=inner.learning_rate,
        betas=(inner.beta1, inner.beta2),
    )


def batch_loss(model: nn.Module, windows_BW: Tokens | torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy, nats per byte, of predicting each byte of the windows but the first."""
    if isinstance(windows_BW, np.ndarray):
        # int64 is what embeddings want, and a copy: windows may lie in a read-only mapping.
        windows_BW = torch.from_numpy(windows_BW.astype(np.int64))
    windows = windows_BW.to(next(model.parameters()).device, torch.int64)
    # Under autocast logits are bfloat16: too coarse for a loss, whatever the device.
    logits_BTV = model(windows[:, :-1]).float()
    return functional.cross_entropy(logits_BTV.flatten(0, 1), windows[:, 1:].flatten())


def accumulate_gradient(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    windows_BW: Tokens | torch.Tensor,
    *,
    sam_radius: float = 0.0,
    micro_batch: int | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> float:
    """Fresh gradients of one batch into the parameters; returns its loss, nats per byte.

    With a `sam_radius` they are those of the same batch at the weights so far up the gradient, and
    the loss is that of the weights. At most `micro_batch` sequences (None: all) pass through the
    model at once; the gradient is that of the whole batch, to rounding. Forward passes run within
    `autocast()`.
    """
    loss = _accumulate(model, optimizer, windows_BW, micro_batch, autocast)
    if sam_radius > 0.0:
        with _uphill(model, sam_radius):
            _accumulate(model, optimizer, windows_BW, micro_batch, autocast)
    return loss


@contextmanager
def _uphill(model: nn.Module, radius: float) -> Iterator[None]:
    """The weights, `radius` along the gradient at hand; behind it they are what they were, to the
    bit."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    before = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        slopes = [p.grad for p in parameters if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in slopes]))
        # Where there is no slope there is no uphill.
        scale = radius / norm.clamp_min(_LEAST_NORM)
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.addcmul_(slope, scale)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)


def _accumulate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    windows_BW: Tokens | torch.Tensor,
    micro_batch: int | None,
    autocast: Callable[[], AbstractContextManager[object]],
) -> float:
    optimizer.zero_grad()
    batch = len(windows_BW)
    total = 0.0
    for start in range(0, batch, micro_batch or batch):
        part_BW = windows_BW[start : start + (micro_batch or batch)]
        with autocast():
            loss = batch_loss(model, part_BW)
        if len(part_BW) < batch:
            # All windows are of one length, so a part counts by its number of sequences.
            loss = loss * (len(part_BW) / batch)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        total += float(loss.detach())
    return total


def apply_gradient(
    model: nn.Module, optimizer: torch.optim.Optimizer, manifest: RunManifest, step: int
) -> None:
    """One inner step with the gradients at hand: clip, set the rate of global `step`, update."""
    if manifest.inner.clip_norm > 0.0:
        nn.utils.clip_grad_norm_(model.parameters(), manifest.inner.clip_norm)
    rate = learning_rate(manifest, step)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """The moments, named `<moment>/<parameter>`, for a checkpoint; not copies.

    Empty before the first step, and for an optimizer that keeps other things than tensors.
    """
    states = {name: optimizer.state.get(p, {}) for name, p in model.named_parameters()}
    tensors: dict[str, torch.Tensor] = {}
    for name, state in states.items():
        for moment, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{moment}/{name}"] = value
            elif value is not None:
                return {}  # Half of a state is worse than none.
    return tensors


def load_optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Put back what `optimizer_tensors` gave, on the devices of the parameters; {} starts afresh.

    The tensors are copied. Raises CheckpointError where a name or shape does not fit the model; the
    optimizer is then unchanged.
    """
    if not tensors:
        optimizer.state.clear()
        return
    states = _states_by_parameter(model, tensors)
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    # torch knows which moments follow their parameter to its device, and which stay on the CPU.
    optimizer.load_state_dict(
        {
            **optimizer.state_dict(),
            "state": {
                index: states[named[id(parameter)]]
                for index, parameter in enumerate(parameters)
                if named.get(id(parameter)) in states
            },
        }
    )


def _states_by_parameter(
    model: nn.Module, tensors: Mapping[str, torch.Tensor]
) -> dict[str, dict[str, torch.Tensor]]:
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    states: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        moment, _, name = key.partition("/")
        if name not in shapes:
            raise CheckpointError(f"the inner state is of another model: it has a {name}")
        if moment in _ELEMENT_WISE and tensor.shape != shapes[name]:
            raise CheckpointError(f"the inner state of {name} has another shape")
        states.setdefault(name, {})[moment] = tensor.clone()
    # An optimizer may treat matrices in another way than vectors, but all of a kind alike.
    for is_vector in (True, False):
        kinds = {frozenset(states[n]) for n in states if (len(shapes[n]) < 2) == is_vector}
        if len(kinds) > 1:
            raise CheckpointError("the inner state lacks moments of some parameters")
    return states


logger = logging.getLogger(__name__)

# How many sequences pass through the model at once -----------------------------------------------

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
        self, model: nn.Module, optimizer: torch.optim.Optimizer, windows_BW: Tokens
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


# The loss on held-out text -----------------------------------------------------------------------


def _tell_nobody(done: int) -> None:
    del done


def validation_loss(
    model: nn.Module,
    windows_BW: Tokens,
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
    windows_BW: Tokens,
    batch_windows: int,
    *,
    tell: Callable[[int], None] = _tell_nobody,
) -> float:
    """`validation_loss` for whoever reports it. Raises StateError for weights that give none."""
    loss = validation_loss(model, windows_BW, batch_windows, tell=tell)
    if not math.isfinite(loss):
        raise StateError(f"these weights predict nothing: their loss is {loss}")
    return loss
