"""The run of a bench: every number of its manifest that is not that of `barnraise local`."""

from dataclasses import replace

from node.settings.run_file import topology_for
from protocol.manifest import OuterSpec, RunManifest, TimingSpec

HEARTBEAT_S, SUSPECT_S = 0.4, 2.0
"""A dead peer is told by its sockets; a frozen one only by five beats that did not come. Four nodes
with 5 * 10^7 elements on two cores leave each other without a word for 1.2 s at the longest."""

DEADLINE_FLOOR_S, DEADLINE_CAP_S = 1.0, 120.0
SLOW_BYTES_PER_S = 20e6
"""What a peer gets rid of at least, before the deadlines are learned from rounds: else a swarm that
comes together with large vectors would begin one attempt after the other."""


def timing(elements: int) -> TimingSpec:
    """The deadlines of a run with vectors of so many elements."""
    floor_s = max(DEADLINE_FLOOR_S, 4.0 * elements / SLOW_BYTES_PER_S)
    return TimingSpec(
        deadline_floor_s=floor_s,
        deadline_cap_s=max(DEADLINE_CAP_S, 2.0 * floor_s),
        heartbeat_s=HEARTBEAT_S,
        suspect_s=SUSPECT_S,
    )


def bench_manifest(
    base: RunManifest, codec: str, aggregator: str, momentum: float = 0.0
) -> RunManifest:
    """The same run with plain averaging: the anchor moves by the aggregate, nothing is kept but
    the momentum, where there is one."""
    outer = OuterSpec(
        preset="diloco",
        codec=codec,
        feedback=0.0,
        aggregator=aggregator,
        optimizer="nesterov" if momentum else "sgd",
        learning_rate=1.0,
        momentum=momentum,
        overlap=1,
    )
    outer = replace(outer, topology=topology_for(outer, base.trust))
    numel = base.layout(0).fragment_numels[0]
    return replace(base, title="barnraise bench", outer=outer, timing=timing(numel))
