"""The snapshot as metrics for Prometheus. A registry per scrape: nothing global, nothing stale."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from node.status.records import STATES, NodeStatus, Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(snapshot: Snapshot, *, age_s: float) -> bytes:
    """The text that a scrape gets; `age_s` is how old the snapshot is."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_SnapshotCollector(snapshot, age_s))
    return generate_latest(registry)


class _SnapshotCollector(Collector):
    def __init__(self, snapshot: Snapshot, age_s: float) -> None:
        self._snapshot = snapshot
        self._age_s = age_s

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are only checked for clashes with other collectors, and there are none."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Every metric; one whose value is not known yet is left out."""
        status = self._snapshot.status
        yield InfoMetricFamily(
            "barnraise_node",
            "Run and peer id of this node.",
            {"run": status.run, "peer": status.peer, "title": status.title},
        )
        state = GaugeMetricFamily(
            "barnraise_state", "1 for what the node is at, 0 for the others.", labels=["state"]
        )
        for each in STATES:
            state.add_metric([each], float(each == status.state))
        yield state
        for name, text, value in self._gauges(status):
            if value is not None:
                yield GaugeMetricFamily(f"barnraise_{name}", text, float(value))
        for name, text, count in _counters(status):
            yield CounterMetricFamily(f"barnraise_{name}", text, float(count))

    def _gauges(self, status: NodeStatus) -> Iterator[tuple[str, str, float | None]]:
        last, peers = status.last_round, self._snapshot.peers.peers
        yield (
            "snapshot_age_seconds",
            "Age of these numbers; it grows if the node hangs.",
            self._age_s,
        )
        yield "uptime_seconds", "Since the node's start.", status.uptime_s
        yield "resident_memory_bytes", "Memory of the network process.", status.rss_bytes
        yield "tasks", "Running tasks of the network process.", status.tasks
        yield "open_descriptors", "Open files and sockets.", status.descriptors
        yield "round", "The round under way.", status.round
        yield "attempt", "The attempt of the round under way.", status.attempt
        yield "members", "Members of the round under way.", status.members
        yield "voters", "Voters of the round under way.", status.voters
        yield "is_member", "Whether this node has a seat.", status.is_member
        yield "is_voter", "Whether this node votes.", status.is_voter
        yield "linked_peers", "Peers with an open control stream.", status.linked
        suspected = sum(peer.is_suspected for peer in peers)
        yield "suspected_peers", "Members that this node suspects.", suspected
        yield "warnings", "Things that need eyes; see barnraise status.", len(status.warnings)
        yield (
            "checkpoint_round",
            "The round that starts from the newest checkpoint.",
            (status.checkpoint_round),
        )
        if last is not None:
            yield "sealed_round", "The last sealed round.", last.round
            yield "sealed_round_duration_seconds", "Wall time of the last round.", last.wall_s
            yield "sealed_round_contributions", "Contributions in the last seal.", len(last.listed)
            yield (
                "train_loss_nats_per_byte",
                "Own training loss of the last round.",
                (last.train_loss),
            )
        yield (
            "validation_loss_nats_per_byte",
            "Last held-out loss that this node measured.",
            (status.validation_loss),
        )
        yield "validation_round", "The round whose anchor was measured.", status.validation_round
        trainer = status.trainer
        yield "trainer_step", "Global inner step of the trainer.", trainer.step
        yield "trainer_loss_nats_per_byte", "Training loss at that step.", trainer.loss
        yield "trainer_micro_batch_sequences", "Sequences per forward pass.", trainer.micro_batch


def _counters(status: NodeStatus) -> Iterator[tuple[str, str, int]]:
    yield "sent_bytes", "Payload bytes sent over all streams.", status.bytes_up
    yield "received_bytes", "Payload bytes received over all streams.", status.bytes_down
    yield "rounds_sealed", "Rounds sealed since the node's start.", status.num_sealed
    yield "faults", "Faults of peers since the node's start.", status.num_faults
