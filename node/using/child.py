"""What was trained, put to use: text and losses from a process of its own, which loads torch.

Its lines are in `training.use_main`. It is ours and on this machine, so they are believed.
"""

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from node.processes.children import JsonLine, number, run_json_child, trainer_threads
from node.settings.corpus_store import kept_store
from node.state.folder import default_state
from node.trainers.model_file import KEPT_FILE, refuse_needless
from node.using.run_on_disk import find_run, newest_sealed, open_export
from protocol.errors import BarnraiseError, ConfigError, StateError
from protocol.manifest import RunManifest
from training.channel.frames import Failed, error_of
from training.evaluation import Sampling
from training.models.genesis import MODEL_FILE

THREADS_MAX = 8
"""What is trained between homes is small: beyond it threads wait for each other."""

BYTES_MAX = 1_000_000
LOSS_SHOWN_MAX = 700.0
"""Nats per byte. A float holds its exponential; from 710 on it would overflow."""

WINDOWS_MAX = 1_000_000
PROMPT_BYTES_MAX = 8192
"""It travels on a command line, of which Windows takes 32 767 characters."""

USE_COMMAND = (sys.executable, "-P", "-m", "training.use_main")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsChoice:
    """Which weights: a run of a state folder, or an exported file. What is None was not said."""

    state: Path | None = None
    run: str | None = None
    manifest: Path | None = None
    round_index: int | None = None
    model: Path | None = None
    model_file: Path | None = None
    corpus: Path | None = None
    """Where the run's own model lies, for runs that name one by its digest."""

    device: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSource:
    """Weights that were found: their run, and how the process is told of them."""

    manifest: RunManifest
    arguments: tuple[str, ...]
    newest_round: int | None = None
    """The last round that is sealed here, unless other weights were asked for than the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsUsed:
    """Which weights a result belongs to: what the run had done when `round` was sealed."""

    round: int
    step: int
    tokens: int
    seal: str
    parameters: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A loss, nats per token, over `num_tokens` held-out tokens.

    `bits_per_byte` is what an ideal compressor with this model would need, and compares between
    tokenizers: it counts the bytes of text that the tokens stand for, on the average of all
    held-out text.
    """

    weights: WeightsUsed
    loss: float
    bits_per_byte: float
    windows: int
    num_tokens: int

    @property
    def perplexity(self) -> float:
        """Per token: among how many equally likely tokens the model is as unsure."""
        # Worse than the vocabulary is worse than knowing nothing; no float could hold it far
        # beyond.
        return math.exp(min(self.loss, LOSS_SHOWN_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Whom to tell, as it comes: the weights that are used from now on, and the reason why a newer
    checkpoint is passed over.
    """

    weights: Callable[[WeightsUsed], None]
    passed_over: Callable[[str], None]


def find_source(choice: WeightsChoice) -> WeightsSource:
    """Where the weights are. Raises ConfigError and CheckpointError saying what to do."""
    if choice.model is None:
        state = default_state() if choice.state is None else choice.state
        found = find_run(
            state,
            run=choice.run,
            manifest=choice.manifest,
            instead=", or a file that `barnraise export` wrote with --model",
        )
        arguments = [
            "--manifest",
            str(found.manifest_path),
            "--checkpoints",
            str(found.checkpoints),
        ]
        if choice.round_index is not None:
            arguments += ["--round", str(choice.round_index)]
        kept = found.checkpoints.parent / KEPT_FILE
        if found.manifest.model.name == MODEL_FILE and choice.model_file is None and kept.exists():
            # What the user once named; its digest is compared before anything of it runs.
            choice = replace(choice, model_file=kept)
        if choice.corpus is None:
            folder = found.checkpoints.parent
            choice = replace(choice, corpus=kept_store(found.manifest, None, folder))
        newest = newest_sealed(found) if choice.round_index is None else None
        return replace(_source(choice, found.manifest, arguments), newest_round=newest)
    others = (choice.state, choice.run, choice.manifest, choice.round_index)
    if any(other is not None for other in others):
        raise ConfigError(
            "--model names the weights: leave out --state, --run, --manifest and --round"
        )
    return _source(choice, open_export(choice.model).manifest, ["--model", str(choice.model)])


def _source(choice: WeightsChoice, manifest: RunManifest, arguments: list[str]) -> WeightsSource:
    if choice.model_file is not None:
        refuse_needless(choice.model_file, manifest)
        arguments = [*arguments, "--model-file", str(choice.model_file)]
    if choice.corpus is not None:
        arguments = [*arguments, "--corpus", str(choice.corpus)]
    common = ("--run", manifest.digest.hex(), "--device", choice.device)
    return WeightsSource(manifest=manifest, arguments=(*common, *arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class TextWanted:
    """What text to make. Raises ConfigError for a number out of range."""

    prompt: bytes
    num_bytes: int
    sampling: Sampling

    def __post_init__(self) -> None:
        if not 1 <= self.num_bytes <= BYTES_MAX:
            raise ConfigError(f"--bytes {self.num_bytes} is not within 1..{BYTES_MAX}")
        if len(self.prompt) > PROMPT_BYTES_MAX:
            raise ConfigError(f"--prompt has {len(self.prompt)} bytes of {PROMPT_BYTES_MAX}")


async def make_text(
    source: WeightsSource, wanted: TextWanted, listener: Listener, write: Callable[[int], None]
) -> None:
    """Continue the prompt; `write` gets each byte as soon as it is drawn.

    Raises what the process raises for weights that it cannot use.
    """
    sampling = wanted.sampling

    def hear(line: JsonLine) -> None:
        if line["kind"] == "byte":
            write(int(number(line["value"])))

    await _use(
        source,
        [
            *("generate", "--prompt-hex", wanted.prompt.hex(), "--bytes", str(wanted.num_bytes)),
            *("--temperature", repr(sampling.temperature), "--top-k", str(sampling.top_k)),
            *("--seed", str(sampling.seed)),
        ],
        listener,
        hear,
    )


async def evaluate(
    source: WeightsSource,
    windows: int,
    listener: Listener,
    tell: Callable[[int, int], None],
    *,
    every: bool = False,
) -> list[Evaluated]:
    """Losses on the held-out text that the manifest fixes; of `every` checkpoint, oldest first.

    `tell` gets the windows done and all windows of the weights in hand. Raises ConfigError for a
    number out of range, and what the process raises.
    """
    if not 1 <= windows <= WINDOWS_MAX:
        raise ConfigError(f"--windows {windows} is not within 1..{WINDOWS_MAX}")
    results: list[Evaluated] = []
    used: list[WeightsUsed] = []

    def hear(line: JsonLine) -> None:
        if line["kind"] == "weights":
            used.append(_weights(line))
        elif line["kind"] == "progress":
            tell(int(number(line["done"])), int(number(line["total"])))
        elif line["kind"] == "loss":
            results.append(
                Evaluated(
                    weights=used[-1],
                    loss=(loss := number(line["loss"])),
                    bits_per_byte=source.manifest.corpus.bits_per_byte(loss),
                    windows=int(number(line["windows"])),
                    num_tokens=int(number(line["tokens"])),
                )
            )

    command = ["eval", "--windows", str(windows)]
    await _use(source, [*(["--all"] if every else []), *command], listener, hear)
    return results


async def _use(
    source: WeightsSource, task: list[str], listener: Listener, hear: Callable[[JsonLine], None]
) -> None:
    failures: list[BarnraiseError] = []

    def hear_all(line: JsonLine) -> None:
        if line["kind"] == "weights":
            listener.weights(_weights(line))
        elif line["kind"] == "passed over":
            listener.passed_over(str(line["reason"]))
        elif line["kind"] == "error":
            failures.append(_failure(line))
        hear(line)

    threads = min(THREADS_MAX, trainer_threads(1))
    arguments = [*USE_COMMAND, "--threads", str(threads), *source.arguments, *task]
    status = await run_json_child(arguments, hear_all)
    if failures:
        raise failures[0]
    if status != 0:
        killed = (
            " (killed, perhaps for want of memory)" if status == -9 and os.name == "posix" else ""
        )
        raise StateError(f"the process that computes ended with status {status}{killed}")


def _weights(line: JsonLine) -> WeightsUsed:
    counts = {key: int(number(line[key])) for key in ("round", "step", "tokens", "parameters")}
    return WeightsUsed(**counts, seal=str(line["seal"]), device=str(line["device"]))


def _failure(line: JsonLine) -> BarnraiseError:
    kind, message, field = (str(line[key]) for key in ("error", "message", "field"))
    return error_of(Failed(kind=kind, message=message, field=field))
