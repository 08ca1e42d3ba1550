"""From what a trainer tells of its time, and what its network process sees meanwhile, to where the
time of a round went."""

from dataclasses import dataclass

from node.status.records import PhaseTimes
from training.channel.exchange import TrainerTimes


@dataclass(slots=True)
class PhaseTimer:
    """The one writer of PhaseTimes, for one trainer. All times are of the network process's
    monotonic clock, seconds.

    What the trainer did it tells with each contribution. While it did nothing it waited for us, up
    to the moment at which it was told how to go on; what for, our own marks say.
    """

    _handed_s: float | None = None
    """When the last contribution came, or the trainer was told where to begin."""
    _told_s: float = 0.0
    _committed_s: float | None = None
    """When the last contribution was ready for its COMMIT."""
    _others_s: float | None = None
    """When the last COMMIT of another peer came."""
    _results_s: float | None = None
    """When the whole result was here."""
    _num_members: int = 1
    """With a seat in the round that the trainer was told of last."""

    def begun(self, now_s: float) -> None:
        """The trainer was told where to begin."""
        self._handed_s = self._told_s = now_s

    def committed(self, now_s: float) -> None:
        """The last contribution is ready for its COMMIT."""
        self._committed_s = now_s

    def results_here(self, now_s: float) -> None:
        """A round's whole result is here."""
        self._results_s = now_s

    def told(self, now_s: float, *, others_s: float | None, num_members: int) -> None:
        """The trainer was told how to go on; the last COMMIT of another peer came at `others_s`,
        of so many that have a seat."""
        self._told_s, self._others_s, self._num_members = now_s, others_s, num_members

    def handed(self, now_s: float, steps: int, times: TrainerTimes) -> PhaseTimes | None:
        """A contribution is here: where the time since the one before went; None of a trainer that
        was never told to begin."""
        before_s, self._handed_s = self._handed_s, now_s
        if before_s is None:
            return None
        began_s = self._told_s - times.wait_s
        # An edge that was not seen is where the one before is; without a result there was no seal,
        # and where no other member came there was nothing to exchange.
        results_s, others_s = self._results_s or self._told_s, self._others_s
        if others_s is None and self._num_members > 1:
            others_s = results_s
        ends_s = (self._committed_s, others_s, results_s)
        edges = [began_s]
        for edge_s in ends_s:
            edges.append(min(max(edges[-1], edge_s or began_s), self._told_s))
        ready_s, met_s, whole_s = edges[1:]
        return PhaseTimes(
            steps=steps,
            round_s=now_s - before_s,
            train_s=times.train_s,
            validate_s=times.validate_s,
            encode_s=times.encode_s + ready_s - began_s,
            save_s=times.save_s,
            audit_s=times.audit_s,
            wait_s=met_s - ready_s,
            exchange_s=whole_s - met_s,
            seal_s=times.take_s + self._told_s - whole_s,
        )
