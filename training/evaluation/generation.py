"""Text out of a model: one byte after the other, drawn from what the model expects next.

V vocabulary
"""

import math
from collections.abc import Generator

import torch
from torch import Tensor, nn

from protocol.errors import StateError
from protocol.manifest import RunManifest
from training.evaluation.sampling import Sampling

_START = b"\n"
"""What an empty prompt stands for: the text goes on at the beginning of a line."""


def generate(
    model: nn.Module, prompt: bytes, num_bytes: int, sampling: Sampling
) -> Generator[int, None, None]:
    """`num_bytes` sampled bytes that continue `prompt`, each as soon as it is drawn.

    The model sees the last `model.context` bytes. Equal arguments give equal bytes on one machine
    and device. The model's mode is put back at the end. Raises StateError for weights that predict
    nothing.
    """
    context = model.context
    assert isinstance(context, int)
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(sampling.seed)
    window = list((prompt or _START)[-context:])
    was_training = model.training
    model.eval()
    try:
        for _ in range(num_bytes):
            # Not around the loop: between two bytes our caller runs, whose gradients are its own.
            with torch.no_grad():
                logits_V = model(torch.tensor([window], device=device))[0, -1]
                byte = _draw(logits_V.to("cpu", torch.float64), sampling, generator)
            window = [*window, byte][-context:]
            yield byte
    finally:
        model.train(was_training)


def sample_text(manifest: RunManifest, model: nn.Module, prompt: bytes, num_bytes: int) -> str:
    """The prompt and what the model writes behind it; the same for the same weights."""
    sampling = Sampling(seed=manifest.model.seed)
    text = prompt + bytes(generate(model, prompt, num_bytes, sampling))
    return text.decode("utf-8", "replace")


def _draw(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    if not math.isfinite(float(logits_V.sum())):
        raise StateError("these weights predict nothing: the model's output is not finite")
    if sampling.temperature == 0.0:
        return int(logits_V.argmax())
    if sampling.top_k:
        kept = logits_V.topk(min(sampling.top_k, len(logits_V)))
        drawn = _multinomial(kept.values, sampling.temperature, generator)
        return int(kept.indices[drawn])
    return _multinomial(logits_V, sampling.temperature, generator)


def _multinomial(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    # Before the division: a tiny temperature would make infinities of large logits, whose
    # differences are no numbers.
    logits_V = (logits_V - logits_V.max()) / temperature
    return int(torch.multinomial(torch.softmax(logits_V, dim=0), 1, generator=generator))
