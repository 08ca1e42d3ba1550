"""Which of some models activates unlike models that are known to be good (after FedCLEAN).

    python -m sim.robustness.activation_score --known mine-*.safetensors \\
        --judged anchor-minus-*.safetensors --text held-out.txt

An offline tool for whoever suspects somebody: no node runs it, it bans nobody. The files are
exports (`training.files.exported`) of one run: `known`, say, replicas that the reader trained from
the sealed weights, `judged` the same weights minus what each peer contributed.

M models, W windows of the trigger text, F features: what the model's last layer before its logits
says at each position of a window

A conditional VAE learns how the known models differ from their mean, given the mean of a window. A
model's score is the median over windows of the error with which that is made again. Trust begins at
known models that the VAE has not seen and spreads to whose score is near a trusted one's, whatever
is left is flagged.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from node.using.run_on_disk import open_signed
from protocol.errors import BarnraiseError, ConfigError
from training.files.exported import read_provenance, read_tensors
from training.models.building import build_model, tokens_per_sample, write_fragment

KNOWN_LEAST = 4
WINDOWS_MOST = 128
REACH = 1.2
"""How many times a trusted score is near it."""

_HIDDEN, _LATENT, _STEPS, _RATE = 64, 8, 400, 3e-3
_LENGTH_WEIGHT = 0.05
"""Of the distance from the prior: features are many, and of unit variance."""

Maps = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ScoreVerdict:
    """Of one judged model: its score as a multiple of that of known ones, and whether it is left
    outside."""

    name: str
    score: float
    is_flagged: bool


def activation_maps(model: nn.Module, windows_WT: Tensor) -> Maps:
    """(W, F): the input of the last module that the model calls, which is what makes logits."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        del module, made
        if given and given[0].is_floating_point():
            seen.append(given[0].detach())

    handles = [module.register_forward_hook(keep) for module in model.modules() if module != model]
    try:
        with torch.no_grad():
            model(windows_WT)
    finally:
        for handle in handles:
            handle.remove()
    if not seen:
        raise ConfigError("this model calls no module on numbers: it has no activations to look at")
    maps_WF: Maps = seen[-1].flatten(1).float().numpy()
    return maps_WF


class ConditionalVae(nn.Module):
    """Makes deviations again from a few numbers, given the mean map of the window."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(2 * features, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, 2 * _LATENT)
        )
        self.decoder = nn.Sequential(
            nn.Linear(_LATENT + features, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, features)
        )

    def encoded(self, deviations_BF: Tensor, means_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance of the code."""
        found = self.encoder(torch.cat([deviations_BF, means_BF], dim=1))
        return found[:, :_LATENT], found[:, _LATENT:].clamp(-8.0, 8.0)

    def decoded(self, code_BL: Tensor, means_BF: Tensor) -> Tensor:
        """The deviations made again."""
        made_BF: Tensor = self.decoder(torch.cat([code_BL, means_BF], dim=1))
        return made_BF

    def loss(self, deviations_BF: Tensor, means_BF: Tensor, luck: torch.Generator) -> Tensor:
        """What training makes small."""
        middle_BL, log_variance_BL = self.encoded(deviations_BF, means_BF)
        noise_BL = torch.randn(middle_BL.shape, generator=luck)
        code_BL = middle_BL + noise_BL * (0.5 * log_variance_BL).exp()
        wrong = (self.decoded(code_BL, means_BF) - deviations_BF).square().mean()
        spread_BL = middle_BL.square() + log_variance_BL.exp() - 1.0 - log_variance_BL
        return wrong + _LENGTH_WEIGHT * spread_BL.mean()

    def errors(self, deviations_BF: Tensor, means_BF: Tensor) -> Tensor:
        """(B,): mean square of what is missed, from the mean of the code."""
        middle_BL, _ = self.encoded(deviations_BF, means_BF)
        return (self.decoded(middle_BL, means_BF) - deviations_BF).square().mean(dim=1)


def scores_of(known_MWF: Maps, others_MWF: Maps, seed: int = 0) -> NDArray[np.float64]:
    """One score for each of the others, from a VAE that has seen the known ones."""
    windows, features = known_MWF.shape[1:]
    means_WF = known_MWF.mean(axis=0)
    scale_F = known_MWF.std(axis=0).mean(axis=0) + np.float32(1e-6)

    def deviations(maps_MWF: Maps) -> Tensor:
        return torch.from_numpy((maps_MWF - means_WF) / scale_F).flatten(0, 1)

    spread_F = means_WF.std(axis=0) + np.float32(1e-6)
    means = torch.from_numpy((means_WF - means_WF.mean(axis=0)) / spread_F)
    luck = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vae = ConditionalVae(features)
    known_BF, of_window_B = deviations(known_MWF), torch.arange(windows).repeat(len(known_MWF))
    optimizer = torch.optim.Adam(vae.parameters(), lr=_RATE)
    for _ in range(_STEPS):
        chosen_B = torch.randint(len(known_BF), (64,), generator=luck)
        optimizer.zero_grad()
        loss = vae.loss(known_BF[chosen_B], means[of_window_B[chosen_B]], luck)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
        optimizer.step()
    with torch.no_grad():
        errors_B = vae.errors(deviations(others_MWF), means.repeat(len(others_MWF), 1))
    errors_MW = errors_B.reshape(len(others_MWF), windows).numpy()
    scores_M: NDArray[np.float64] = np.median(errors_MW, axis=1).astype(np.float64)
    return scores_M


def trusted(reference: Sequence[float], scores: Sequence[float]) -> list[bool]:
    """Whom trust reaches that begins at the reference, from score to score that is near enough."""
    reached = max(reference)
    for score in sorted(scores):
        if score <= REACH * reached:
            reached = max(reached, score)
    return [score <= reached for score in scores]


def judge(known: Mapping[str, Maps], judged: Mapping[str, Maps]) -> list[ScoreVerdict]:
    """A verdict for each. A quarter of the known ones are kept from the VAE: what it has seen it
    makes better again than any other, however honest. Raises ConfigError for too few of them."""
    if len(known) < KNOWN_LEAST:
        raise ConfigError(f"{len(known)} known models: it takes {KNOWN_LEAST} to tell their spread")
    maps_MWF = np.stack(list(known.values()))
    kept = max(1, len(known) // 4)
    others_MWF = np.concatenate([maps_MWF[-kept:], np.stack(list(judged.values()))])
    scores = scores_of(maps_MWF[:-kept], others_MWF)
    unit = float(np.median(scores[:kept]))
    reference, found = (scores[:kept] / unit).tolist(), (scores[kept:] / unit).tolist()
    names = zip(judged, found, trusted(reference, found), strict=True)
    return [
        ScoreVerdict(name, score if math.isfinite(score) else math.inf, not is_trusted)
        for name, score, is_trusted in names
    ]


def maps_of(paths: Sequence[Path], text: bytes) -> dict[str, Maps]:
    """By name of the file the maps of its model. Raises ConfigError for files of several runs, for
    a text of less than a window, and what reading an export raises."""
    found: dict[str, Maps] = {}
    run = b""
    for path in paths:
        provenance = read_provenance(path, open_signed)
        manifest = provenance.manifest
        if run not in (b"", manifest.digest):
            raise ConfigError(f"{path} is of another run than {paths[0]}")
        run = manifest.digest
        model = build_model(manifest)
        for fragment, weights_N in enumerate(read_tensors(path, provenance)):
            write_fragment(model, manifest.shards[0], fragment, weights_N)
        found[str(path)] = activation_maps(
            model.eval(), _windows(text, tokens_per_sample(manifest))
        )
    return found


def _windows(text: bytes, length: int) -> Tensor:
    whole = np.frombuffer(text[: len(text) // length * length], dtype=np.uint8)
    if not len(whole):
        raise ConfigError(f"the text has {len(text)} bytes, and a window {length}")
    windows_WT = whole.reshape(-1, length)
    chosen = np.linspace(0, len(windows_WT) - 1, min(WINDOWS_MOST, len(windows_WT)))
    return torch.from_numpy(windows_WT[chosen.astype(np.int64)].astype(np.int64))


def main(words: Sequence[str] | None = None) -> int:
    """Entry point: a line for each judged file; 1 if any is flagged, 2 for files that do not do."""
    parser = argparse.ArgumentParser(
        prog="sim.robustness.activation_score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--known", type=Path, nargs="+", required=True)
    parser.add_argument("--judged", type=Path, nargs="+", required=True)
    parser.add_argument(
        "--text", type=Path, required=True, help="text that no model was trained on"
    )
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    try:
        maps = maps_of([*asked.known, *asked.judged], asked.text.read_bytes())
        known, judged = (
            {str(path): maps[str(path)] for path in paths} for paths in (asked.known, asked.judged)
        )
        found = judge(known, judged)
    except (BarnraiseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for one in found:
        sys.stdout.write(
            f"{one.score:8.2f}  {'FLAGGED' if one.is_flagged else 'trusted'}  {one.name}\n"
        )
    return 1 if any(one.is_flagged for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
