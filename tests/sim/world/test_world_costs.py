"""What `barnraise check` says that a round costs, against worlds that count it."""

from collections import Counter
from dataclasses import replace
from functools import partial
from statistics import median
from unittest.mock import patch

import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Record, Signed
from node.settings.check import Line, costs_of
from protocol.manifest import RunManifest, Setting
from protocol.messages import Kind
from sim.world.links import Direction, Link
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

CELLS, SETTLED, ROUNDS = 48, 4, 7
LATENCY_S, BYTES_PER_S = 0.02, 200e3


class Measured(World):
    """A world that counts bulk bytes, and when the COMMITs and SEALs of its rounds are signed."""

    def __init__(self, manifest: RunManifest, num_peers: int, seed: int) -> None:
        link = Link(latency_s=(LATENCY_S, LATENCY_S * 1.001), bytes_per_s=BYTES_PER_S)
        super().__init__(manifest, seed=seed, link=link, settings=WorldSettings(linger_s=60.0))
        self.sent: Counter[int] = Counter()
        self.signed_s: dict[tuple[int, Kind], list[float]] = {}
        self.tracers.append(self._note)
        peers = peers_named(num_peers)
        config = replace(round_config(manifest), wait_seats=num_peers - 1)
        self.join(peers[0], config=config)
        for peer in peers[1:]:
            self.join(peer)
        times = Direction.bulk_times

        def counted(
            direction: Direction, num_bytes: int, now_s: float
        ) -> tuple[tuple[float, float], ...]:
            self.sent[min(node.round for node in self.nodes.values())] += num_bytes
            return times(direction, num_bytes, now_s)

        with patch.object(Direction, "bulk_times", counted):
            self.run(partial(self._are_past, ROUNDS), 2000.0)

    def _are_past(self, index: int) -> bool:
        return all(node.round >= index for node in self.nodes.values())

    def _note(self, record: Record) -> None:
        if isinstance(record, Signed):
            slot = record.message.slot
            self.signed_s.setdefault((slot.round, slot.kind), []).append(record.at_s)

    @property
    def bytes_per_peer(self) -> float:
        """Of a round among all."""
        return sum(self.sent[index] for index in range(SETTLED, ROUNDS)) / (
            (ROUNDS - SETTLED) * len(self.nodes)
        )

    @property
    def exchange_s(self) -> float:
        """From the last COMMIT of a round to its last SEAL; of the middle one."""
        spans = [
            max(self.signed_s[index, Kind.SEAL]) - max(self.signed_s[index, Kind.COMMIT])
            for index in range(SETTLED + 1, ROUNDS)
        ]
        return median(spans)


def manifest_of(codec: str, topology: str = "butterfly", **settings: float) -> RunManifest:
    manifest = toy_manifest(peers_named(1)[0], rounds=ROUNDS + 1, cells=CELLS)
    timing = replace(manifest.timing, deadline_floor_s=5.0, deadline_cap_s=60.0, suspect_s=5.0)
    given = tuple(Setting(name, settings[name]) for name in sorted(settings))
    outer = replace(manifest.outer, codec=codec, codec_settings=given, topology=topology)
    return replace(manifest, timing=timing, outer=outer)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("peers", "manifest"),
    [
        (4, manifest_of("fp16")),
        (6, manifest_of("int4")),
        (3, manifest_of("topk", density=0.125, chunk=1024)),
        (4, manifest_of("int4", "gather")),
        (5, manifest_of("topk", "gather", density=0.125, chunk=1024)),
    ],
)
def test_bytes_and_seconds_of_a_round_are_those_that_check_tells(
    peers: int, manifest: RunManifest, seed: int
) -> None:
    world, costs = Measured(manifest, peers, seed), costs_of(manifest, peers)
    assert world.bytes_per_peer == pytest.approx(costs.parts_bytes + costs.results_bytes, rel=0.05)
    # A world has a line for each pair: of a home's uplink each peer has its part.
    mbit = 8 * BYTES_PER_S * (peers - 1) / 1e6
    line = Line("the world's", mbit, mbit, 2000 * LATENCY_S)
    control_s = 8 * costs.control_bytes / (1e6 * mbit)
    expected_s = costs.exchange_s(line) - control_s
    assert 0.8 * expected_s < world.exchange_s < 1.15 * expected_s
