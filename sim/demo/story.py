"""What a demo is asked, what it does when, and what came of it. Pure: a picture of the swarm in, a
decision out."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sim.demo.swarm_view import NodeView, SwarmView
from sim.processes.node_process import check_test_switch
from sim.processes.sitting import check_range

PEERS_MIN, PEERS_MAX = 2, 16
"""One node is no swarm; beyond sixteen, loopback and one set of cores show nothing new."""

ROUNDS_MAX = 10_000

PEERS_TO_KILL_ONE = 4
"""With three voters or fewer, a dead one leaves too small a majority to show anything."""

LATECOMER_SWITCH = "skip-outer-state"
"""The latecomer, and only it, is started with this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """One demo. `folder` is where everything that it writes goes; it must be new or empty."""

    peers: int
    rounds: int
    seed: int
    folder: Path
    keep_state: bool = False
    """Leave the nodes' keys and checkpoints there."""

    test_switch: str | None = None

    def __post_init__(self) -> None:
        check_range("--peers", self.peers, PEERS_MIN, PEERS_MAX)
        check_range("--rounds", self.rounds, 1, ROUNDS_MAX)
        check_test_switch(self.test_switch)

    @property
    def kills(self) -> bool:
        """Whether the founder is to be killed in mid-round."""
        return self.peers >= PEERS_TO_KILL_ONE

    def switches_for(self, *, is_late: bool) -> tuple[str, ...]:
        """The test switches that a node is started with."""
        if self.test_switch is None or (self.test_switch == LATECOMER_SWITCH and not is_late):
            return ()
        return (self.test_switch,)


KILL_FROM = 0.35
"""Share of the rounds before the kill: by then everybody votes, and there is a curve to bend."""

JOIN_FROM = 0.35
"""The same for the latecomer of a demo in which nobody is killed."""

JOIN_ANYWAY_FROM = 0.6
"""Where the kill does not come about the latecomer still gets its turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPatience:
    """How long the demo waits for what; a demo that goes well never waits so long."""

    start_s: float = 60.0
    """Until every node of the start listens: two seconds on an idle machine."""

    stall_s: float = 60.0
    """Without a seal. R3's longest wait for a dead peer is the manifest's 20 s."""

    latecomer_s: float = 15.0
    """For a latecomer that has no seat yet, when all others have finished."""

    last_words_s: float = 5.0
    """For the validation loss of the last round, when all have finished."""


PATIENCE = DemoPatience()

_ORDINALS = {0: "the first attempt", 1: "the second attempt", 2: "the third attempt"}

Outcome = Literal["listed", "not listed", "carried", "open"]


def should_kill_founder(options: DemoOptions, view: SwarmView) -> bool:
    """Whether this is the moment: parts of the founder are on their way, and everybody votes."""
    founder = view.founder
    last = view.last_sealed
    return (
        options.kills
        and view.killing is None
        and founder.phase == "pushing"
        and founder.trainer_pid is not None
        and founder.round >= math.ceil(KILL_FROM * options.rounds)
        and last is not None
        and founder.round > last.round
        and last.event.voters >= options.peers
    )


def should_start_latecomer(options: DemoOptions, view: SwarmView) -> bool:
    """After the killed round is settled, so that what follows it is not the newcomer's doing."""
    if view.latecomer is not None:
        return False
    verdict = killed_round(view)
    if verdict is not None:
        return verdict.outcome != "open"
    share = JOIN_ANYWAY_FROM if options.kills else JOIN_FROM
    return view.num_sealed >= math.ceil(share * options.rounds)


def is_over(view: SwarmView) -> bool:
    """Whether every survivor has finished the run."""
    return bool(view.survivors) and all(node.status == "finished" for node in view.survivors)


def is_over_but_for_latecomer(view: SwarmView) -> bool:
    """Whether all but a latecomer without a seat have finished: it came too late."""
    open_nodes = [node for node in view.survivors if node.status != "finished"]
    return len(open_nodes) < len(view.survivors) and all(
        node.role == "latecomer" and not view.rounds_listed(node.name) for node in open_nodes
    )


def has_last_losses(view: SwarmView) -> bool:
    """Whether every finisher has told the loss of the last round, or has ended without."""
    return all(view.num_rounds in node.validations or node.has_ended for node in finishers(view))


def finishers(view: SwarmView) -> list[NodeView]:
    """The survivors whose final state counts: all but a latecomer that never took part."""
    return [
        node
        for node in view.survivors
        if node.role != "latecomer" or node.status == "finished" or view.rounds_listed(node.name)
    ]


def shortcoming(view: SwarmView, *, are_anchors_equal: bool) -> str | None:
    """What a demo that came to its end promised and did not show; None if nothing."""
    if not are_anchors_equal:
        return "the survivors' final weights are not equal"
    if view.disagreements():
        return f"nodes told different seals of round {view.disagreements()[0]}"
    lost = [n.name for n in view.nodes.values() if n.num_resyncs and not view.rounds_listed(n.name)]
    if lost:
        return f"the state of {lost[0]} was never what the swarm had sealed"
    return None


def num_joined_late(view: SwarmView) -> int:
    """Latecomers whose contributions other nodes' seals list."""
    late = view.latecomer
    return int(late is not None and bool(view.rounds_listed(late.name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class KilledRound:
    """What became of the round in which the founder was killed, by the survivors' seals.

    `outcome`: sealed with the dead node's contribution "listed" or "not listed", "carried" with
    nobody's, or still "open". `got_parts` are the survivors that had all of its parts for them.
    """

    round: int
    outcome: Outcome
    attempt: int | None
    first_s: float | None
    all_s: float | None
    listed: tuple[str, ...]
    got_parts: tuple[str, ...]


def killed_round(view: SwarmView) -> KilledRound | None:
    """The verdict on the killed round; None if nobody was killed."""
    killing = view.killing
    if killing is None:
        return None
    # Only what survivors tell counts: a seal that died with the founder bound nobody. A node that
    # came afterwards has the round from them.
    witnesses = [node for node in view.survivors if node.role != "latecomer"]
    seals = [node.sealed[killing.round] for node in witnesses if killing.round in node.sealed]
    times = [
        view.sealed_at_s[node.name, killing.round] - killing.at_s
        for node in witnesses
        if killing.round in node.sealed
    ]
    got_parts = [
        node.name
        for node in witnesses
        if killing.round in node.parts_rounds_from.get(killing.peer, ())
    ]
    listed = seals[0].listed if seals else ()
    outcome: Outcome = "open"
    if seals:
        outcome = "listed" if killing.peer in listed else "not listed" if listed else "carried"
    return KilledRound(
        round=killing.round,
        outcome=outcome,
        attempt=seals[0].attempt if seals else None,
        first_s=min(times, default=None),
        all_s=max(times) if len(times) == len(witnesses) else None,
        listed=tuple(view.names_of(listed)),
        got_parts=tuple(got_parts),
    )


def tell(options: DemoOptions, view: SwarmView) -> str:
    """What became of the killed node's round and of the latecomer, in a few sentences."""
    return " ".join([_tell_kill(options, view), _tell_latecomer(view)]).strip()


def _tell_kill(options: DemoOptions, view: SwarmView) -> str:
    killing, verdict = view.killing, killed_round(view)
    if killing is None or verdict is None:
        return "Nobody was killed: the moment did not come." if options.kills else ""
    told = (
        f"{killing.name}, which the others had started from, was killed in round {verdict.round}, "
        "both its processes, while its parts were on their way; "
        f"{_and(verdict.got_parts) or 'no survivor'} had received all of them."
    )
    if verdict.outcome == "open":
        return f"{told} The survivors have not sealed that round."
    what = {
        "listed": f"sealed the round with {killing.name}'s contribution",
        "not listed": f"sealed the round without {killing.name}'s contribution",
        "carried": "carried the round, with nobody's contribution",
    }[verdict.outcome]
    attempt = _ORDINALS.get(verdict.attempt or 0, f"attempt number {verdict.attempt}")
    return f"{told} The survivors {what}, in {attempt}, {verdict.first_s:.1f} s after the kill."


def _tell_latecomer(view: SwarmView) -> str:
    late = view.latecomer
    if late is None:
        return ""
    rounds = view.rounds_listed(late.name)
    if rounds:
        return (
            f"{late.name} came late, synchronised the state of round {late.synced_round}, and has "
            f"contributed since round {rounds[0]}."
        )
    if late.num_resyncs:
        return (
            f"{late.name} came late and could not take part: {late.num_resyncs} times its state "
            "was not what the swarm had sealed."
        )
    return f"{late.name} came too late: the run ended before a round listed its work."


def _and(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
