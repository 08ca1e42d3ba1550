"""What the trainer does between two frames: rounds of DiLoCo on leased samples.

N elements of a fragment, B sequences, W window (context + 1 bytes)
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.errors import ConfigError, TrainerError
from protocol.leases import Lease, lease_size, part_of_lease
from protocol.manifest import RunManifest
from protocol.segments import batch_lease
from training.audits.traces import TRACES_FOLDER, TraceFolder, run_audit
from training.channel.exchange import Contribution, RunStart, Stopwatch, Ticket, Turn
from training.channel.frames import Audit, Progress, Ready, Reopen
from training.channel.trainer_end import ChannelExchange, RunsAudits
from training.data.corpus import open_corpus
from training.data.sampling import Dataset, lease_samples
from training.device.device import AUTO, Device, open_device
from training.device.inner import (
    MicroBatch,
    is_out_of_memory,
    make_optimizer,
    memory_error,
)
from training.loop.diloco import DiLoCo
from training.loop.idle_validation import (
    VALIDATION_WINDOWS,
    HeldOut,
    IdleValidator,
)
from training.loop.inner_state import InnerFolder
from training.loop.traced_inner import RoundTracer, TorchSegments, device_class, fix_order
from training.models.building import build_model, tokens_per_sample
from training.numeric import Tokens

logger = logging.getLogger(__name__)

_REPORTS_PER_ROUND_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerOptions:
    """What one trainer is told beside the run."""

    shard: int = 0
    device: str = AUTO
    """See `training.device.device.open_device`."""

    model_file: Path | None = None
    """Where the file lies that the manifest names, where it names one in place of a model."""

    corpus: Path | None = None
    """The folder of the run's token store; None where this machine has its text by itself."""

    inner_folder: Path | None = None
    """Where the transaction of each round is kept, of this shard alone; None keeps none, and a
    restart then loses moments and residual."""

    validation_share: float = 0.0
    """Of its time, what it may spend on measuring anchors while the run goes on."""


class ChannelSession:
    """The Session of `training.loop.diloco` over a channel."""

    def __init__(self, manifest: RunManifest, exchange: ChannelExchange, start: RunStart) -> None:
        self.manifest = manifest
        self.start = start
        self._exchange = exchange

    @property
    def grade(self) -> int:
        """See KnowsLine."""
        return self._exchange.grade

    def draft(self) -> NDArray[np.uint8]:
        """See HasDraft."""
        return self._exchange.draft()

    def begin(self, fragment: int, contribution: Contribution) -> Ticket:
        """See Exchange."""
        return self._exchange.begin(fragment, contribution)

    def proceed(self) -> Turn:
        """See Exchange."""
        return self._exchange.proceed()


def train(manifest: RunManifest, exchange: ChannelExchange, options: TrainerOptions) -> None:
    """Train until an outcome brings no lease.

    Raises TrainerError when the channel breaks, CorpusError if this machine lacks the run's text,
    ConfigError if it lacks the device or the memory, StateError when training diverges, and OSError
    when the inner state cannot be kept.
    """
    device = open_device(options.device)
    if manifest.audits.rate:
        fix_order()
    dataset = open_corpus(manifest.corpus, options.corpus)
    held_out_BW = dataset.held_out_windows(VALIDATION_WINDOWS, tokens_per_sample(manifest))
    model, micro_batch, optimizer = _set_up(manifest, options, device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    exchange.send(
        Ready(
            threads=torch.get_num_threads(),
            parameters=parameters,
            device=device.name,
            precision=device.precision,
            micro_batch=micro_batch.size,
            device_class=device_class(device) if manifest.audits.rate else "",
        )
    )
    session = ChannelSession(manifest, exchange, _run_start(exchange))

    folder = options.inner_folder
    store = None if folder is None else InnerFolder(folder, manifest, options.shard)
    traces = tracer = None
    if manifest.audits.rate:
        traces = traces_of(manifest, options)
        tracer = RoundTracer(model, optimizer, manifest, traces)
    diloco = DiLoCo(
        model,
        optimizer,
        exchange=session,
        shard=options.shard,
        inner_store=store,
        watcher=tracer,
    )
    validator = IdleValidator(
        exchange,
        HeldOut(model, manifest.shards[options.shard], micro_batch, held_out_BW),
        diloco.watch,
        share=options.validation_share,
        goes_on=lambda: diloco.going_on,
    )
    exchange.spare = validator
    if traces is not None:
        auditor = Auditor(manifest, options, device, dataset, traces)
        exchange.audits = watched(auditor.run, diloco.watch)
    diloco.resume()
    report_every = max(1, manifest.inner.inner_steps // _REPORTS_PER_ROUND_MAX)
    while not diloco.finished:
        windows_BW = _next_batch(manifest, dataset, diloco)
        diloco.begin_step()
        loss = micro_batch.gradient(model, optimizer, windows_BW)
        if tracer is not None and device.is_cpu and micro_batch.size < manifest.inner.batch:
            raise memory_error(device)  # In parts it has other bits, and would seem made up.
        if diloco.local_step % report_every == 0:
            exchange.send(Progress(step=diloco.clock.step + diloco.local_step, loss=loss))
        _step(diloco, loss, device)
    validator.measure_last()
    logger.info("run finished round=%d", diloco.clock.round)


def watched(audits: RunsAudits, watch: Stopwatch) -> RunsAudits:
    """The same, and what it takes counts as auditing."""

    def run(frame: Audit | Reopen) -> bytes:
        with watch.within("audit"):
            return audits(frame)

    return run


def traces_of(manifest: RunManifest, options: TrainerOptions) -> TraceFolder:
    """Where the states of a run with audits are. Raises ConfigError where there is no place."""
    if options.inner_folder is None:
        raise ConfigError("a run with audits needs a folder for its states")
    return TraceFolder(options.inner_folder / TRACES_FOLDER, manifest)


class Auditor:
    """Runs segments of others again, as the network process asks for it."""

    def __init__(
        self,
        manifest: RunManifest,
        options: TrainerOptions,
        device: Device,
        dataset: Dataset,
        traces: TraceFolder,
    ) -> None:
        self._manifest, self._traces, self._dataset = manifest, traces, dataset
        self._segments = TorchSegments(
            manifest, lambda: _set_up(manifest, options, device)[::2], self._batch
        )

    def run(self, frame: Audit | Reopen) -> bytes:
        """What names the end that the segment came to; empty where it cannot tell."""
        return run_audit(self._manifest, frame, self._traces, self._segments)

    def _batch(self, lease: Lease, step: int) -> Tokens:
        samples_B = lease_samples(batch_lease(self._manifest, lease, step))
        return self._dataset.windows(samples_B, tokens_per_sample(self._manifest))


def _set_up(
    manifest: RunManifest, options: TrainerOptions, device: Device
) -> tuple[nn.Module, MicroBatch, torch.optim.Optimizer]:
    inner = manifest.inner
    micro_batch = MicroBatch(device, inner.batch, sam_radius=inner.sam_radius)
    try:
        # Before the optimizer is made: moments lie where their parameters are.
        model = build_model(manifest, options.shard, model_file=options.model_file)
        model = model.to(device.torch_device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise memory_error(device) from error
        raise
    optimizer = make_optimizer(model, inner)
    micro_batch.try_out(model, optimizer, tokens_per_sample(manifest) + 1)
    return model, micro_batch, optimizer


def _run_start(exchange: ChannelExchange) -> RunStart:
    opening = exchange.opening()
    return RunStart(
        anchors=exchange.anchors,
        clock=opening.clock,
        lease=opening.lease,
        since=opening.since,
        listed=opening.listed,
        members=opening.members,
        bases=opening.bases,
    )


def _step(diloco: DiLoCo, loss: float, device: Device) -> None:
    try:
        diloco.step(loss)
    except RuntimeError as error:
        if is_out_of_memory(error):
            # In the midst of an update there is no step to repeat, and no batch to cut: the
            # weights and moments themselves do not fit. What was kept of the round before is whole.
            raise memory_error(device) from error
        raise


def _next_batch(manifest: RunManifest, dataset: Dataset, diloco: DiLoCo) -> Tokens:
    batch = manifest.inner.batch
    part = part_of_lease(diloco.lease, diloco.local_step * batch, batch)
    if lease_size(part) < batch:
        needed = batch * diloco.steps
        raise TrainerError(f"a lease of {lease_size(diloco.lease)} samples, {needed} are needed")
    return dataset.windows(lease_samples(part), tokens_per_sample(manifest))
