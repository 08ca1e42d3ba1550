"""The inner loop in segments whose ends are kept, and segments of others run again (R10).

N elements of the shard, B sequences, W window (context + 1 bytes)

Moments, and the weights of the fragments that a round does not sync, follow the contribution as
residuals do (R6): what no seal lists leaves them as they were before the round, or the hash chain
would have a gap. A second model runs what others trained, so that the own one never has to be put
back.
"""

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from torch import nn
from typing_extensions import override

from protocol.grid import ShardSpec
from protocol.leases import Lease
from protocol.manifest import RunManifest
from protocol.segments import (
    ALONE,
    SegmentPlace,
    SegmentState,
    Vector,
    luck_of,
    nothing_left,
    steps_of_segment,
)
from training.audits.traces import TraceFolder, TraceWriter
from training.channel.exchange import Outcome, RunClock, RunStart, TraceRoots
from training.compression import Codec, Encodes
from training.device.device import Device
from training.device.inner import accumulate_gradient, apply_gradient, load_optimizer_tensors
from training.loop.diloco import RoundWatcher
from training.loop.inner_state import Recalled
from training.models.building import read_fragments, write_fragment
from training.numeric import Tokens
from training.numeric.arithmetic import joined

MOMENT_NAMES = ("exp_avg", "exp_avg_sq")
_STEP = "step"
_CLASS_BYTES = 6

KERNELS_BY = (
    *("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"),
    *("MKL_CBWR", "MKL_DEBUG_CPU_TYPE", "MKL_ENABLE_INSTRUCTIONS"),
    *("NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"),
    *("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"),
)
"""Variables by which a user has libraries take other kernels than the processor's: of two equal
machines one trains to other bits where it alone has MKL_CBWR=COMPATIBLE."""

Batches = Callable[[Lease, int], Tokens]
"""The windows (B, W) of a local step of somebody's lease."""


def device_class(device: Device, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What two machines have in common that compute equal bits: processor, kernels, libraries and
    number of threads. Of devices other than the CPU nobody promises that: each is alone. So is a
    CPU whose model the system does not tell, as macOS."""
    processor = _processor(cpuinfo)
    if not (device.is_cpu and processor):
        return ALONE
    told = (
        torch.__version__,
        torch.__config__.show(),
        torch.backends.cpu.get_cpu_capability(),
        np.__version__,
        platform.machine(),
        processor,
        *(f"{name}={os.environ.get(name, '')}" for name in KERNELS_BY),
    )
    digest = blake3("\n".join(told).encode()).hexdigest(length=_CLASS_BYTES)
    return f"cpu, {torch.get_num_threads()} threads, {digest}"


def _processor(cpuinfo: Path) -> str:
    """Model and instructions, as far as the system says; libraries choose their kernels by them.
    Nothing where it says less than the model."""
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.processor() if sys.platform == "win32" else ""
    wanted = (
        *("vendor_id", "cpu family", "model", "model name", "flags"),
        *("CPU implementer", "CPU variant", "CPU part", "Features"),
    )
    found = {line.partition(":")[0].strip(): line for line in lines if ":" in line}
    return "\n".join(found[name] for name in wanted if name in found)


def fix_order() -> None:
    """Have torch compute equal bits from equal bits, or say that an operation cannot."""
    torch.use_deterministic_algorithms(True)


def state_of_model(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    shard: ShardSpec,
    left: tuple[bytes, ...] = (),
) -> SegmentState:
    """Weights, moments and steps as they are, copied."""
    parameters = dict(model.named_parameters())
    moments: list[Vector] = []
    steps = 0
    for name in MOMENT_NAMES:
        flat = []
        for index in _tensors_of(shard):
            parameter = parameters[shard.tensors[index].name]
            kept = optimizer.state.get(parameter, {})
            value = kept.get(name)
            flat.append(torch.zeros_like(parameter) if value is None else value)
            steps = int(kept.get(_STEP, 0))
        whole = torch.cat([part.detach().to("cpu", torch.float32).flatten() for part in flat])
        moments.append(whole.numpy())
    weights_N = joined(read_fragments(model, shard))
    return SegmentState(weights_N, tuple(moments), steps, left)


def _tensors_of(shard: ShardSpec) -> list[int]:
    """The tensors of the vector of a shard, in its order."""
    return [index for fragment in shard.fragments for index in fragment]


def put_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, shard: ShardSpec, state: SegmentState
) -> None:
    """Inverse of `state_of_model`."""
    start = 0
    for fragment, tensors in enumerate(shard.fragments):
        stop = start + sum(shard.tensors[index].numel for index in tensors)
        write_fragment(model, shard, fragment, state.weights_N[start:stop])
        start = stop
    put_moments(model, optimizer, shard, state)


def put_moments(
    model: nn.Module, optimizer: torch.optim.Optimizer, shard: ShardSpec, state: SegmentState | None
) -> None:
    """Moments and steps alone; None are those of whoever begins."""
    if state is None or (state.steps == 0 and not any(one_N.any() for one_N in state.moments)):
        load_optimizer_tensors(model, optimizer, {})
        return
    tensors: dict[str, torch.Tensor] = {}
    for name, moment_N in zip(MOMENT_NAMES, state.moments, strict=True):
        start = 0
        for index in _tensors_of(shard):
            spec = shard.tensors[index]
            part = torch.from_numpy(moment_N[start : start + spec.numel].copy())
            tensors[f"{name}/{spec.name}"] = part.reshape(spec.shape)
            tensors[f"{_STEP}/{spec.name}"] = torch.tensor(float(state.steps))
            start += spec.numel
    load_optimizer_tensors(model, optimizer, tensors)


class RoundTracer(RoundWatcher):
    """Keeps the states of one's own rounds. For runs with one round in flight."""

    keeps_states = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        manifest: RunManifest,
        folder: TraceFolder,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._manifest, self._shard = manifest, manifest.shards[0]
        self._folder, self._layout = folder, folder.layout
        segments = range(manifest.audits.segments)
        self._ends = {steps_of_segment(manifest, segment).stop for segment in segments}
        self._begins = {steps_of_segment(manifest, segment).start: segment for segment in segments}
        self._writer: TraceWriter | None = None
        self._round = -1
        """The round in hand. What it began with is on the disk, and nowhere else."""
        self._left = nothing_left(self._layout)
        """Of the state that the round in hand begins with."""
        self._leaves: tuple[bytes, ...] | None = None
        """Of the one that the next round begins with, if it is listed; None where nobody knows."""

    @override
    def encoder(self, device: torch.device, codec: Codec) -> Encodes | None:
        """Audits run a round again in numpy, and compare bytes."""
        return None

    @override
    def before_gradient(
        self, clock: RunClock, lease: Lease, local_step: int, anchors: Sequence[Vector]
    ) -> None:
        round_index = clock.round
        segment = self._begins.get(local_step)
        if segment is not None:
            torch.manual_seed(luck_of(self._manifest, round_index, lease, segment))
        if local_step == 0:
            place = SegmentPlace(round=round_index, step=clock.step, segment=0, lease=lease)
            self._writer = self._folder.writer(place, joined(anchors))
            self._round = round_index
            self._add()

    @override
    def after_step(self, local_step: int) -> None:
        if local_step in self._ends:
            self._add()

    @override
    def encoded(self, residual_N: Vector | None) -> TraceRoots:
        assert self._writer is not None, "before_gradient was not called"
        writer, self._writer = self._writer, None
        self._leaves = writer.left
        return writer.close(residual_N)

    @override
    def settled(self, outcome: Outcome) -> bool:
        """What became of the round: of what no seal lists nothing stays. False where nobody knows
        what it began or ended with: all is then as of whoever begins."""
        if outcome.is_resync:
            return self._begin_anew()
        if outcome.listed:
            if self._leaves is None:
                return self._begin_anew()
            self._left = self._leaves
            return True
        before = self._folder.first(self._round)
        if before is None:
            return self._begin_anew()
        self._left = before.left
        put_state(self._model, self._optimizer, self._shard, before)
        return True

    @override
    def goes_on(self, recalled: Recalled, start: RunStart) -> bool:
        """Whether a process that begins anew goes on from what the own last listed round left: it
        has the residual and the states of the newest round that is kept. Else it begins with
        nothing but the anchors: audits know the hash chain, or nothing at all."""
        newest = recalled.newest.round
        if recalled.residuals is None or max(start.listed, default=-1) > newest:
            return self._begin_anew()
        self._round = newest
        is_listed, is_open = newest in start.listed, newest in recalled.under_way
        find = self._folder.last if is_listed or is_open else self._folder.first
        known = find(newest)
        if known is None:
            # What was said of a round that is open is said again; what it left nobody knows then.
            return is_open or self._begin_anew()
        self._leaves = known.handed_on(self._layout).left
        self._left = self._leaves if is_listed else known.left
        put_moments(self._model, self._optimizer, self._shard, known)
        fragments = range(self._layout.num_fragments)
        moved = {self._layout.fragment_of(index) for index in range(newest, start.clock.round)}
        for fragment in set(fragments) - moved:
            weights_N = known.weights_N[self._layout.fragment_span(fragment)]
            write_fragment(self._model, self._shard, fragment, weights_N)
        return True

    def _begin_anew(self) -> bool:
        self._left = nothing_left(self._layout)
        put_moments(self._model, self._optimizer, self._shard, None)
        return False

    def _add(self) -> None:
        assert self._writer is not None
        self._writer.add(state_of_model(self._model, self._optimizer, self._shard, self._left))


class TorchSegments:
    """RunsSegments with a model of its own, made when it is first needed."""

    def __init__(
        self,
        manifest: RunManifest,
        make: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
        batches: Batches,
    ) -> None:
        self._manifest, self._make, self._batches = manifest, make, batches
        self._made: tuple[nn.Module, torch.optim.Optimizer] | None = None

    def run(self, state: SegmentState, place: SegmentPlace) -> SegmentState:
        """See RunsSegments."""
        if self._made is None:
            self._made = self._make()
        model, optimizer = self._made
        shard = self._manifest.shards[0]
        put_state(model, optimizer, shard, state)
        luck = torch.get_rng_state()
        torch.manual_seed(luck_of(self._manifest, place.round, place.lease, place.segment))
        try:
            for step in steps_of_segment(self._manifest, place.segment):
                windows_BW = self._batches(place.lease, step)
                sam_radius = self._manifest.inner.sam_radius
                accumulate_gradient(model, optimizer, windows_BW, sam_radius=sam_radius)
                apply_gradient(model, optimizer, self._manifest, place.step + step)
            return state_of_model(model, optimizer, shard, state.left)
        finally:
            torch.set_rng_state(luck)
