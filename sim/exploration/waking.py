"""R3 with real NodeCores: peers freeze and wake, ask for STATUS, and are answered or not.

Questions and answers may take any order. From every state, once all are awake and every frame
arrives, nobody may go on asking: who asks signs nothing.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from node.holdings.states import cell_sizes
from protocol import events as ev
from protocol.core.liveness import Liveness
from protocol.core.node_core import NodeCore
from protocol.frames import StatusAnswer, StatusAsk
from protocol.identity import KeyedHashSigner
from protocol.manifest import TimingSpec
from sim.exploration import peers
from sim.exploration import table as toys
from sim.exploration.explorer import Model
from sim.exploration.peers import fork, key_of
from sim.exploration.table import LETTERS, head_of
from sim.world.nodes import peer_named
from sim.world.toy_run import toy_run

HEARTBEAT_S = 0.5
SUSPECT_S = 2.0
SLEEP_S = 100.0
GOOD_BEATS = 8

IGNORED = {
    **peers.IGNORED,
    NodeCore: ("manifest", "liveness", "_relay", "_passed_on", "catchup", "_rounds", "chain"),
    Liveness: (),
}
"""Of a core only the machine and the number of its last question make a difference here."""


class Question(NamedTuple):
    """A STATUS frame under way."""

    source: int
    target: int
    frame: StatusAsk | StatusAnswer


class WakingState(NamedTuple):
    """The cores, by number; what is under way; how often somebody may still freeze; the clock."""

    cores: tuple[int, ...]
    under_way: frozenset[Question]
    sleeps: int


class Waking(Model[WakingState]):
    """Voters A, B, C, ..., all linked; the first `sleepers` of them may freeze, each once."""

    def __init__(self, *, voters: int, sleepers: int) -> None:
        self._peers = sorted(peer_named(f"waking {index}") for index in range(voters))
        self._seats = {peer: seat for seat, peer in enumerate(self._peers)}
        self._sleepers = sleepers
        self._cores: list[tuple[NodeCore, float]] = []
        self._numbers: dict[bytes, int] = {}

    def start(self) -> WakingState:
        """All are awake and know nothing of each other but that they are linked."""
        timing = TimingSpec(
            deadline_floor_s=10.0, deadline_cap_s=10.0, heartbeat_s=HEARTBEAT_S, suspect_s=SUSPECT_S
        )
        manifest = toy_run(self._peers[0], rounds=1000, cells=1, timing=timing)
        head = head_of(self._peers)
        config = replace(toys.toy_config(1), cell_sizes=cell_sizes(manifest))
        numbers = []
        for peer in self._peers:
            core = NodeCore(manifest, config, KeyedHashSigner(peer), head, now_s=0.0)
            for other in self._peers:
                if other != peer:
                    core.handle(ev.Linked(other), 0.0)
            numbers.append(self._number(core, 0.0))
        return WakingState(tuple(numbers), frozenset(), (1 << self._sleepers) - 1)

    def moves(self, state: WakingState) -> Iterator[tuple[str, WakingState]]:
        """Somebody freezes and wakes, or a frame arrives, or never does."""
        for seat, number in enumerate(state.cores):
            if state.sleeps >> seat & 1:
                core, now_s = self._fork(number)
                frames = list(self._sent(seat, core.handle(ev.Tick(), now_s + SLEEP_S)))
                label = f"{LETTERS[seat]} freezes and wakes"
                after = self._after(state, seat, (core, now_s + SLEEP_S), frames)
                yield label, after._replace(sleeps=state.sleeps & ~(1 << seat))
        for question in sorted(state.under_way, key=repr):
            core, now_s = self._fork(state.cores[question.target])
            frames = list(self._deliver(question, core, now_s))
            name, other = LETTERS[question.target], LETTERS[question.source]
            is_answer = isinstance(question.frame, StatusAnswer)
            what = f"the STATUS of {other}" if is_answer else f"{other} asking for STATUS"
            rest = state._replace(under_way=state.under_way - {question})
            yield f"{name} hears {what}", self._after(rest, question.target, (core, now_s), frames)

    def check(self, state: WakingState) -> str:
        """L1: once every frame arrives, nobody goes on asking."""
        cores = [self._fork(number) for number in state.cores]
        frames = sorted(state.under_way, key=repr)
        for _ in range(GOOD_BEATS):
            while frames:
                question = frames.pop(0)
                core, now_s = cores[question.target]
                frames += self._deliver(question, core, now_s)
            if not any(core.machine.is_asking for core, _ in cores):
                return ""
            for seat, (core, now_s) in enumerate(cores):
                cores[seat] = (core, now_s + HEARTBEAT_S)
                frames += self._sent(seat, core.handle(ev.Tick(), now_s + HEARTBEAT_S))
        asking = [LETTERS[seat] for seat, (core, _) in enumerate(cores) if core.machine.is_asking]
        return f"L1: {', '.join(asking)} wait for each other and sign nothing"

    def _number(self, core: NodeCore, now_s: float) -> int:
        key = key_of(core, IGNORED)
        known = self._numbers.setdefault(key, len(self._cores))
        if known == len(self._cores):
            self._cores.append((core, now_s))
        return known

    def _fork(self, number: int) -> tuple[NodeCore, float]:
        core, now_s = self._cores[number]
        return fork(core), now_s

    def _after(
        self, state: WakingState, seat: int, core: tuple[NodeCore, float], frames: list[Question]
    ) -> WakingState:
        numbers = (*state.cores[:seat], self._number(*core), *state.cores[seat + 1 :])
        return state._replace(cores=numbers, under_way=state.under_way | set(frames))

    def _deliver(self, question: Question, core: NodeCore, now_s: float) -> Iterator[Question]:
        source = self._peers[question.source]
        yield from self._sent(
            question.target, core.handle(ev.FrameArrived(source, question.frame), now_s)
        )

    def _sent(self, seat: int, actions: list[ev.CoreAction]) -> Iterator[Question]:
        for action in actions:
            if not isinstance(action, ev.Send | ev.SendAll):
                continue
            if isinstance(action.frame, StatusAsk | StatusAnswer):
                peers = action.peers if isinstance(action, ev.SendAll) else (action.peer,)
                for peer in peers:
                    yield Question(seat, self._seats[peer], action.frame)
