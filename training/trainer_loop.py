"""What the trainer does between two frames: rounds of DiLoCo on leased samples.

N elements of a fragment, B sequences, W window (context + 1 bytes)
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from protocol.errors import TrainerError
from protocol.grid import ShardSpec
from protocol.manifest import RunManifest
from training.channel import ChannelExchange
from training.data import Dataset, lease_samples, open_corpus
from training.diloco import DiLoCo, RunStart, tokens_per_sample
from training.evaluation import validation_loss
from training.exchange import Contribution, Ticket
from training.frames import Progress, Ready, Validation
from training.inner import accumulate_gradient, make_optimizer
from training.leases import lease_size, part_of_lease
from training.models import build_model, read_fragment, write_fragment

logger = logging.getLogger(__name__)

VALIDATION_WINDOWS = 128
"""Held-out windows per validation: fixed, so that curves of all nodes and rounds compare."""

_REPORTS_PER_ROUND_MAX = 50


class ChannelSession:
    """The Session of `training.diloco` over a channel."""

    def __init__(self, manifest: RunManifest, exchange: ChannelExchange, start: RunStart) -> None:
        self.manifest = manifest
        self.start = start
        self._exchange = exchange

    def begin(self, fragment: int, contribution: Contribution) -> Ticket:
        """See Exchange."""
        return self._exchange.begin(fragment, contribution)


def train(manifest: RunManifest, exchange: ChannelExchange, *, shard: int) -> None:
    """Train until an outcome brings no lease.

    Raises TrainerError when the channel breaks, CorpusError if this machine lacks the run's text,
    StateError when training diverges.
    """
    dataset = open_corpus(manifest.corpus)
    held_out_BW = dataset.held_out_windows(VALIDATION_WINDOWS, tokens_per_sample(manifest))
    model = build_model(manifest, shard)
    optimizer = make_optimizer(model, manifest.inner)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    exchange.send(Ready(threads=torch.get_num_threads(), parameters=parameters))
    opening = exchange.opening()
    start = RunStart(anchors=exchange.anchors, clock=opening.clock, lease=opening.lease)
    session = ChannelSession(manifest, exchange, start)
    diloco = DiLoCo(model, optimizer, exchange=session, shard=shard)
    report_every = max(1, manifest.inner.inner_steps // _REPORTS_PER_ROUND_MAX)

    def validate_if_asked() -> None:
        asked = exchange.take_validation()
        if asked is not None:
            loss = anchor_loss(model, manifest.shards[shard], exchange.anchors, held_out_BW)
            exchange.send(Validation(round=asked, loss=loss))

    validate_if_asked()
    while not diloco.finished:
        windows_BW = _next_batch(manifest, dataset, diloco)
        loss = accumulate_gradient(model, optimizer, windows_BW)
        if diloco.local_step % report_every == 0:
            exchange.send(Progress(step=diloco.clock.step + diloco.local_step, loss=loss))
        if diloco.step(loss) is not None:
            validate_if_asked()
    logger.info("run finished round=%d", diloco.clock.round)


def anchor_loss(
    model: nn.Module,
    shard: ShardSpec,
    anchors: Sequence[NDArray[np.float32]],
    held_out_BW: NDArray[np.uint8],
) -> float:
    """Validation loss of the anchors, nats per byte; the working weights are put back."""
    fragments = range(len(shard.fragments))
    working = [read_fragment(model, shard, fragment) for fragment in fragments]
    for fragment in fragments:
        write_fragment(model, shard, fragment, anchors[fragment])
    loss = validation_loss(model, held_out_BW)
    for fragment in fragments:
        write_fragment(model, shard, fragment, working[fragment])
    return loss


def _next_batch(manifest: RunManifest, dataset: Dataset, diloco: DiLoCo) -> NDArray[np.uint8]:
    batch = manifest.inner.batch
    part = part_of_lease(diloco.lease, diloco.local_step * batch, batch)
    if lease_size(part) < batch:
        needed = batch * manifest.inner.inner_steps
        raise TrainerError(f"a lease of {lease_size(diloco.lease)} samples, {needed} are needed")
    return dataset.windows(lease_samples(part), tokens_per_sample(manifest))
