"""One run with one fault in it, or with none: real nodes from their start to their end."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import trio

from node.processes.first_error import first_error_nursery
from node.reporting.tracing import Adopted, Record, Signed
from protocol.errors import StateError
from protocol.identity import PeerId
from protocol.messages import Kind, SealValue
from sim.bench.moments import FaultPlan, Stages, stage, victim_of
from sim.bench.outcome import BenchFault, adopted_round, is_together, next_round_s
from sim.bench.staging import START_S, STUCK_S, BenchStage, Tell

CALM_ROUNDS = 2
"""With everybody in them, before a fault: deadlines and rates are learned from rounds."""


@dataclass(slots=True, kw_only=True)
class Played:
    """What was done in a run. `dealt` is None in a calm one."""

    dealt: BenchFault | None = None
    round: int = 0
    """In which the fault was dealt."""


class FaultRun:
    """Plays one run. `play` it once."""

    def __init__(
        self, run: BenchStage, fault: str, plan: FaultPlan, tell: Tell, *, calm_rounds: int = 0
    ) -> None:
        """Without a fault it goes on until everybody has `calm_rounds` rounds."""
        self._run = run
        self._fault = fault
        self._plan = plan
        self._tell = tell
        self._calm_rounds = calm_rounds
        self._stages = Stages()
        self.played = Played()

    async def play(self) -> None:
        """Until the survivors have sealed; no process is left, however it ends.

        Raises StateError when the swarm does not start or seals nothing for long.
        """
        swarm = self._run.swarm
        try:
            async with first_error_nursery() as nursery:
                await swarm.begin(nursery, within_s=START_S)
                self._tell("all nodes have sealed")
                if self._fault == "none":
                    await self._until_all_have(self._calm_rounds)
                else:
                    await self._deal_in(await self._calm_round())
                nursery.cancel_scope.cancel()
        finally:
            await swarm.end_all()
            self._run.watch.look()

    # Before -------------------------------------------------------------------------------------

    async def _calm_round(self) -> int:
        """The last of so many rounds in a row in which everybody took part."""
        first = 0

        def last_calm() -> int:
            nonlocal first
            together = is_together(self._run.watch.records, len(self._run.nodes))
            first = first or together
            newest = min(self._adopted().values(), default=0)
            return newest if first and newest >= first + CALM_ROUNDS - 1 else 0

        await self._watch_until(lambda _: last_calm() > 0, "the swarm did not come together")
        return last_calm()

    def _adopted(self) -> dict[PeerId, int]:
        found = adopted_round(self._run.watch.records)
        return {peer: found.get(peer, 0) for peer in self._run.peers}

    async def _until_all_have(self, rounds: int) -> None:
        told = 0

        def is_over(_: list[Record]) -> bool:
            nonlocal told
            least = min(self._adopted().values())
            if least > told:
                told = least
                self._tell(f"round {least} of {rounds}")
            return least >= rounds

        await self._watch_until(is_over, "the calm swarm got stuck")

    async def _watch_until(self, is_over: Callable[[list[Record]], bool], why: str) -> None:
        """Look until that holds. Raises StateError when nothing was sealed for long."""
        sealed_s = trio.current_time()
        while True:
            fresh = await self._run.watch.next()
            for record in fresh:
                self._stages.saw(record)
            if any(isinstance(record, Adopted) for record in fresh):
                sealed_s = trio.current_time()
            if fresh and is_over(fresh):
                return
            self._run.check_nobody_died()
            if trio.current_time() > sealed_s + STUCK_S:
                raise StateError(f"{why}: no seal for {STUCK_S:.0f} s")

    # The fault ----------------------------------------------------------------------------------

    async def _deal_in(self, calm: int) -> None:
        """In the round behind the next seal."""
        heads: list[SealValue] = []

        def has_head(fresh: list[Record]) -> bool:
            heads.extend(
                record.certificate.value
                for record in fresh
                if isinstance(record, Adopted) and record.certificate.value.round > calm
            )
            return bool(heads)

        await self._watch_until(has_head, "no seal before the fault")
        head, plan, run = heads[0], self._plan, self._run
        num_cells = run.manifest.layout(head.shard).num_cells(0)
        victim = victim_of(plan, run.peers, head, num_cells)
        if plan.moment != "training":
            await self._watch_until(
                lambda fresh: any(self._begins(record, head.round + 1, victim) for record in fresh),
                f"the moment {plan.moment!r} did not come",
            )
        await trio.sleep(plan.delay * self._stages.usual_s(plan.moment))
        dealt = self._strike(victim)
        self.played.round = head.round + 1
        survivors = [peer for peer in run.peers if peer != victim]
        # Not so many rounds behind the last that was read: the trace may be behind the nodes.
        await self._watch_until(
            lambda _: next_round_s(run.watch.records, dealt, survivors) is not None,
            f"the survivors got stuck after the {self._fault} of {run.node_of(victim).name}",
        )
        run.node_of(victim).signal_both(signal.SIGKILL)

    def _begins(self, record: Record, index: int, victim: PeerId) -> bool:
        """Whether that record begins the moment, or is behind it."""
        found = stage(record)
        if found is None or found[0] < index:
            return False
        if isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            return self._plan.moment == "parts" and record.peer == victim
        return found[1] == self._plan.moment or found[0] > index

    def _strike(self, victim: PeerId) -> BenchFault:
        node = self._run.node_of(victim)
        node.is_meant_to_end = True
        node.status = "down" if self._fault == "kill" else "frozen"
        at_s = time.time()
        node.signal_both(signal.SIGKILL if self._fault == "kill" else signal.SIGSTOP)
        self.played.dealt = dealt = BenchFault(victim=victim, at_s=at_s)
        self._tell(f"{self._fault} {node.name}, {self._plan.role}, at {self._plan.moment!r}")
        return dealt
