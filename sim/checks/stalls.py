"""I4: while a quorum can work, rounds are sealed; and how long that may take (R2, R3).

Records alone do not tell whether two nodes reach each other. So this is the coarse form, for traces
of real processes: their driver tells when it did something to them. In worlds `sim.checks.progress`
knows the circumstances, and is exact.
"""

from collections.abc import Iterator
from typing import get_args

from node.reporting.tracing import Adopted, Advanced, Began, Ended, Record, Signed
from protocol.catching_up.catchup import STALL_S, STUCK_S
from protocol.identity import PeerId
from protocol.manifest import RunManifest
from protocol.messages import Kind
from protocol.rounds.agreement import TIME_OUT_AFTER
from protocol.rounds.lapses import GROWTH, GROWTH_STEPS_MAX
from sim.checks.history import History

ROUNDS_ALLOWED = 3
"""I4 gives a round so many times what one without a failed attempt takes."""

HEARTBEATS_ALLOWED = 5

SILENT_S = 6.0
"""A traced node tells every two seconds what it uses: after three times that it does not run."""

LOOK_S = 1.0


def seal_within_s(
    manifest: RunManifest, *, train_s: float, deadline_s: float, time_outs: int = 0
) -> float:
    """How long a quorum that can work may be without a new seal.

    Five heartbeats until all see each other again, the time in which the dead are suspected, what
    a node that is a round behind waits before it fetches the state, and then three times a round's
    training and an attempt, each attempt longer than the one before. `deadline_s` is the learned
    deadline and `time_outs` how many attempts of the round have failed before.
    """
    timing = manifest.timing
    within_s = HEARTBEATS_ALLOWED * timing.heartbeat_s + timing.suspect_s + STUCK_S + STALL_S
    for attempt in range(ROUNDS_ALLOWED):
        growth = GROWTH ** min(time_outs + attempt, GROWTH_STEPS_MAX)
        within_s += train_s + TIME_OUT_AFTER * deadline_s * growth
    return within_s


class Stalls:
    """I4 over records, coarse: processes that run count as processes that can work.

    `stall_s` is how long they may be without a seal; by default as long as the manifest's longest
    deadline may make it. Training is as long as it was seen to be.
    """

    name = "I4"
    kinds = get_args(Record)

    def __init__(
        self, history: History, manifest: RunManifest, *, stall_s: float | None = None
    ) -> None:
        self._history = history
        self._manifest = manifest
        self._stall_s = stall_s
        self._heard_s: dict[PeerId, float] = {}
        self._trains_s: dict[PeerId, float] = {}
        self._train_s = 0.0
        self._final = b""
        self._since_s = 0.0
        self._look_s = float("-inf")

    def disturbed(self, at_s: float) -> None:
        """Something was done to the nodes: what is allowed counts from here."""
        self._since_s = max(self._since_s, at_s)

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        now_s = record.at_s
        self._heard(record.peer, float("-inf") if isinstance(record, Ended) else now_s)
        if isinstance(record, Began):
            self.disturbed(now_s)
        self._learn(record)
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_S
        final = self._history.final
        if final is None or final.clock.ends_run:
            return
        if final.digest != self._final or not self._can_work(now_s):
            self._final, self._since_s = final.digest, max(self._since_s, now_s)
        timing = self._manifest.timing
        within_s = self._stall_s or seal_within_s(
            self._manifest, train_s=self._train_s, deadline_s=timing.deadline_cap_s
        )
        if now_s - self._since_s > within_s:
            yield (
                f"a quorum runs, and for {now_s - self._since_s:.0f} s nothing was sealed"
                f" after round {final.round}; {within_s:.0f} s are allowed"
            )

    def finish(self) -> Iterator[str]:
        """See Check."""
        return iter(())

    def _heard(self, peer: PeerId, at_s: float) -> None:
        self._heard_s[peer] = at_s

    def _learn(self, record: Record) -> None:
        """How long training takes: from a seal to the COMMIT behind it."""
        if isinstance(record, Adopted | Advanced):
            self._trains_s[record.peer] = record.at_s
        elif isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            began_s = self._trains_s.pop(record.peer, record.at_s)
            self._train_s = max(self._train_s, record.at_s - began_s)

    def _can_work(self, now_s: float) -> bool:
        assert self._history.final is not None
        electorate = self._history.behind(self._history.final)
        running = {p for p, heard_s in self._heard_s.items() if now_s - heard_s < SILENT_S}
        return electorate is not None and electorate.is_quorum(running)
