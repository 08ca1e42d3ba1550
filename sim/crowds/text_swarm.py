"""Swarms that keep a text among themselves, and lose members: what is lost, and what comes of it.

    python -m sim.crowds.text_swarm --swarms 10000 --seed 0 --json

Each swarm is another one: five to sixteen members with lines of their own, two dozen to a hundred
blocks, three copies of each, no founder. Some requests are never answered. Every swarm is struck
again and again, each time from its settled state. *Apart*: two members vanish at once, unheard, and
a third one repair time later: when the median swarm, or 99 of 100 swarms, have made their copies.
*Together*: three vanish at once; then those who are left take leases on what is lost, before they
know, and there is a mirror, or the founder is back.

The machines are the shipped `BlockKeeper` and `place_blocks`; network and edge are made up here.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated

import numpy as np
import typer

from node.text.shown import json_text
from protocol.entry_kinds import HoldsText
from protocol.identity import PeerId
from protocol.serving_text import block_events as ev
from protocol.serving_text.block_keeper import TICK_S, BlockKeeper, KeeperSettings
from protocol.serving_text.placement import Placement, place_blocks
from protocol.serving_text.text_shape import MIRROR, TextShape
from sim.world.quiet import hush
from sim.world.timeline import Timeline

ONE_WAY_S = (0.01, 0.15)
UPLINK_BYTES_PER_S = (250e3, 12e6)
"""A block takes a quarter of a second at most."""

GOSSIP_S = (0.1, 2.0)
NOTICED_S = (3.0, 12.0)
"""How long it takes a member to take another one for gone."""

UNANSWERED = 0.03
"""The share of requests on which nothing follows."""

STRIKE_S = 10.0
WATCHED_S = 60.0
"""How long a swarm is looked at behind the last blow."""

LEASE_BLOCKS = 8
GAPS = {"third p50": 0.5, "third p99": 0.99}
"""How long a third waits, as a quantile of repair times."""

CALIBRATED = 200
"""Swarms of which the repair time is measured."""


@dataclass(slots=True, eq=False)
class TextMember:
    """One member; `stopped` counts, for each giver, how often it gave that one up."""

    keeper: BlockKeeper
    bytes_per_s: float
    is_alive: bool = True
    is_ticking: bool = False
    uplink_free_s: float = 0.0
    answers: list[ev.GiveBlocks] = field(default_factory=list)
    stopped: dict[PeerId, int] = field(default_factory=dict)
    leased_s: dict[int, float] = field(default_factory=dict)
    named_s: dict[int, float] = field(default_factory=dict)
    arrived_s: dict[int, float] = field(default_factory=dict)


class TextSwarm:
    """One swarm and its time. Two of one seed are the same."""

    def __init__(self, seed: int, *, with_mirror: bool = False, with_founder: bool = False) -> None:
        self.time = Timeline(seed)
        self._luck = luck = random.Random(f"text swarm {seed}")
        count = luck.randint(5, 16)
        self.shape = TextShape(luck.randbytes(32), luck.randint(24, 96), 1 << 16)
        size = self.shape.num_blocks
        peers = [PeerId(luck.randbytes(32)) for _ in range(count)]
        self.founder = PeerId(luck.randbytes(32)) if with_founder else None
        self._has_mirrors = with_mirror
        self._placements: dict[tuple[tuple[PeerId, int], ...], Placement] = {}
        placement = self._place(dict.fromkeys(peers, size))
        self.members: dict[PeerId, TextMember] = {}
        for peer in peers:
            self._join(peer, placement.kept_by(peer).tolist(), quota=2 * size, lease_blocks=size)
        if self.founder is not None:
            self._join(self.founder, list(range(size)), quota=size, lease_blocks=size)
        self.repaired_s: float | None = None
        self.copies = np.zeros(size, np.int64)
        for member in self.members.values():
            if member.keeper.me != self.founder:
                self.copies += member.keeper.held
        for peer in self.members:
            self.tell(peer, ev.PlacementMade(placement))

    def _join(self, peer: PeerId, held: Sequence[int], *, quota: int, lease_blocks: int) -> None:
        settings = KeeperSettings(
            quota_blocks=quota,
            lease_blocks=lease_blocks,
            origin=self.founder,
            has_mirrors=self._has_mirrors,
        )
        keeper = BlockKeeper(peer, self.shape, settings, held)
        rate = math.exp(self._luck.uniform(*map(math.log, UPLINK_BYTES_PER_S)))
        self.members[peer] = TextMember(keeper, rate)

    def _place(self, rooms: dict[PeerId, int]) -> Placement:
        key = tuple(sorted(rooms.items()))
        if key not in self._placements:
            self._placements[key] = place_blocks(self.shape.root, self.shape.num_blocks, rooms)
        return self._placements[key]

    @property
    def alive(self) -> list[PeerId]:
        """Those who are left, without the founder."""
        return [p for p, m in self.members.items() if m.is_alive and p != self.founder]

    @property
    def lost(self) -> list[int]:
        """Blocks that no member holds."""
        return np.flatnonzero(self.copies == 0).tolist()

    def vanish(self, peers: Sequence[PeerId]) -> None:
        """They are gone at once; each of the others notices it by and by."""
        for peer in peers:
            member = self.members[peer]
            member.is_alive = False
            self.copies -= member.keeper.held
        for other in self.alive:
            for peer in peers:
                self.time.later(
                    self._luck.uniform(*NOTICED_S), self.tell, other, ev.MemberGone(peer)
                )

    def is_repaired(self) -> bool:
        """Whether there are again as many copies of each block as there can be."""
        return int(self.copies.min()) >= min(3, len(self.alive))

    def take_lease(self, peer: PeerId, blocks: Sequence[int]) -> None:
        """A member needs these blocks from now on."""
        member = self.members[peer]
        member.leased_s = dict.fromkeys(blocks, self.time.now_s)
        self.tell(peer, ev.LeaseTaken(tuple(blocks)))

    # The edge ------------------------------------------------------------------------------------

    def tell(self, peer: PeerId, event: ev.TextEvent) -> None:
        """An event for a member; what it wants is done."""
        member = self.members[peer]
        if not member.is_alive:
            return
        was_held = member.keeper.num_held
        for action in member.keeper.handle(event, self.time.now_s):
            self._do(peer, member, action)
        if isinstance(event, ev.BlockCame) and member.keeper.num_held > was_held:
            self.copies[event.block] += peer != self.founder
        if member.keeper.is_waiting and not member.is_ticking:
            member.is_ticking = True
            self.time.later(TICK_S, self._tick, peer)

    def _tick(self, peer: PeerId) -> None:
        self.members[peer].is_ticking = False
        self.tell(peer, ev.TextTick())

    def _do(self, peer: PeerId, member: TextMember, action: ev.TextAction) -> None:
        now_s = self.time.now_s
        match action:
            case ev.AskForBlocks(giver, blocks):
                if self._luck.random() >= UNANSWERED:
                    number = member.stopped.get(giver, 0)
                    delay_s = self._luck.uniform(*ONE_WAY_S)
                    self.time.later(delay_s, self._reach, giver, peer, blocks, number)
            case ev.StopAsking(giver):
                member.stopped[giver] = member.stopped.get(giver, 0) + 1
            case ev.PlaceBlocks(rooms):
                self.time.later(0.0, self.tell, peer, ev.PlacementMade(self._place(dict(rooms))))
            case ev.AnnounceText(said):
                self._announce(peer, said)
            case ev.BlockNamed(block, _):
                member.named_s[block] = now_s - member.leased_s[block]
            case ev.BlockArrived(block):
                member.arrived_s[block] = now_s - member.leased_s.get(block, now_s)
            case ev.GiveBlocks():
                member.answers.append(action)
            case ev.GiverSetBack() | ev.DropBlock():
                raise AssertionError(f"nobody lies here, and there is room: {action}")

    def _announce(self, peer: PeerId, said: HoldsText) -> None:
        for other in self.members:
            if other != peer:
                delay_s = self._luck.uniform(*GOSSIP_S) if self.time.now_s else 0.0
                self.time.later(delay_s, self._spread, other, peer, said)

    def _spread(self, other: PeerId, peer: PeerId, said: HoldsText) -> None:
        if self.members[peer].is_alive:
            self.tell(other, ev.MemberSeen(peer, said))

    def _reach(self, giver: PeerId, asker: PeerId, blocks: tuple[int, ...], number: int) -> None:
        """A request is at its giver, which sends one block after the other."""
        wait_s, given, lacking = 0.0, blocks, tuple[int, ...]()
        if giver == MIRROR:
            rate, free_s = max(UPLINK_BYTES_PER_S), self.time.now_s
        else:
            member = self.members[giver]
            if not member.is_alive:
                return
            self.tell(giver, ev.BlocksWanted(asker, blocks))
            answer = member.answers.pop()
            given, lacking, wait_s = answer.blocks, answer.lacking, answer.wait_s
            rate, free_s = member.bytes_per_s, max(self.time.now_s, member.uplink_free_s)
        began_s = free_s + wait_s
        for at, block in enumerate(given, 1):
            end_s = began_s + at * self.shape.block_bytes / rate + self._luck.uniform(*ONE_WAY_S)
            came = ev.BlockCame(giver, block)
            self.time.later(end_s - self.time.now_s, self._hear, giver, asker, number, came)
        if giver != MIRROR:
            end_s = began_s + len(given) * self.shape.block_bytes / rate
            self.members[giver].uplink_free_s = end_s
        if lacking:
            lacks = ev.BlocksNotGiven(giver, lacking, is_lacking=True)
            self.time.later(max(ONE_WAY_S), self._hear, giver, asker, number, lacks)

    def _hear(self, giver: PeerId, asker: PeerId, number: int, event: ev.TextEvent) -> None:
        is_there = giver == MIRROR or self.members[giver].is_alive
        if is_there and self.members[asker].stopped.get(giver, 0) == number:
            self.tell(asker, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOutcome:
    """The figures. *Lost* counts swarms, `named` and what follows the lost blocks in leases."""

    swarms: int
    seed: int
    repair_p50_s: float
    repair_p99_s: float
    two_at_once_lost: int
    third_apart_lost: int
    third_at_p50_lost: int
    three_at_once_lost: int
    lost_blocks_leased: int
    named_max_s: float
    named_late: int
    lost_came_p50_s: float
    lost_came_max_s: float
    others_came_p99_s: float
    others_came_max_s: float
    never_came: int
    cpu_s: float

    @property
    def is_as_promised(self) -> bool:
        """Two at once lose nothing, a third apart in one of a thousand; the rest is named, and all
        comes."""
        return (
            self.two_at_once_lost == 0
            and self.third_apart_lost <= self.swarms / 1000
            and self.named_late == self.never_came == 0
        )


class TextTrial:
    """Many swarms, one after the other."""

    def __init__(self, swarms: int, seed: int) -> None:
        self._seeds = [seed + number for number in range(swarms)]
        self._repairs_s: list[float] = []
        self._lost = {"two": 0, "third p99": 0, "third p50": 0, "three": 0}
        self._named_s: list[float] = []
        self._lost_came_s: list[float] = []
        self._others_came_s: list[float] = []
        self._num_late = self._num_never = 0

    def run(self) -> TextOutcome:
        """Play all of them."""
        began_s = time.process_time()
        for seed in self._seeds[:CALIBRATED]:
            self._repairs_s.append(self._repair(seed))
        gaps_s = {name: _share(self._repairs_s, share) for name, share in GAPS.items()}
        for seed in self._seeds:
            self._strike_apart(seed, gaps_s)
            self._strike_together(seed)
        return TextOutcome(
            swarms=len(self._seeds),
            seed=self._seeds[0],
            repair_p50_s=gaps_s["third p50"],
            repair_p99_s=gaps_s["third p99"],
            two_at_once_lost=self._lost["two"],
            third_apart_lost=self._lost["third p99"],
            third_at_p50_lost=self._lost["third p50"],
            three_at_once_lost=self._lost["three"],
            lost_blocks_leased=len(self._lost_came_s),
            named_max_s=_share(self._named_s, 1.0),
            named_late=self._num_late,
            lost_came_p50_s=_share(self._lost_came_s, 0.5),
            lost_came_max_s=_share(self._lost_came_s, 1.0),
            others_came_p99_s=_share(self._others_came_s, 0.99),
            others_came_max_s=_share(self._others_came_s, 1.0),
            never_came=self._num_never,
            cpu_s=round(time.process_time() - began_s, 1),
        )

    def _repair(self, seed: int) -> float:
        """How long it takes until all copies are there again after two went at once."""
        swarm, luck = TextSwarm(seed), random.Random(f"strike {seed}")
        swarm.time.run_until(STRIKE_S)
        swarm.vanish(luck.sample(swarm.alive, 2))
        assert swarm.time.run_until(STRIKE_S + 600.0, swarm.is_repaired), "not repaired"
        return swarm.time.now_s - STRIKE_S

    def _strike_apart(self, seed: int, gaps_s: Mapping[str, float]) -> None:
        swarm, luck = TextSwarm(seed), random.Random(f"strike {seed}")
        swarm.time.run_until(STRIKE_S)
        swarm.vanish(luck.sample(swarm.alive, 2))
        self._lost["two"] += bool(swarm.lost)
        third = swarm.members[luck.choice(swarm.alive)]
        for name, gap_s in gaps_s.items():
            swarm.time.run_until(STRIKE_S + gap_s)
            self._lost[name] += bool((swarm.copies == third.keeper.held).any())

    def _strike_together(self, seed: int) -> None:
        has_mirror = seed % 2 == 0
        swarm = TextSwarm(seed, with_mirror=has_mirror, with_founder=not has_mirror)
        luck = random.Random(f"strike {seed}")
        swarm.time.run_until(STRIKE_S)
        swarm.vanish(luck.sample(swarm.alive, 3))
        lost = swarm.lost
        self._lost["three"] += bool(lost)
        if not lost:
            return
        for peer in swarm.alive:
            wanted = luck.sample(lost, min(2, len(lost)))
            wanted += luck.sample(range(swarm.shape.num_blocks), LEASE_BLOCKS - len(wanted))
            luck.shuffle(wanted)
            blocks = list(dict.fromkeys(wanted))
            swarm.time.later(luck.uniform(0.0, 5.0), swarm.take_lease, peer, blocks)
        swarm.time.run_until(STRIKE_S + 5.0 + WATCHED_S)
        for peer in swarm.alive:
            self._count(swarm.members[peer], set(lost))

    def _count(self, member: TextMember, lost: set[int]) -> None:
        for block in member.leased_s:
            came_s = member.arrived_s.get(block, math.inf)
            named_s = member.named_s.get(block, math.inf)
            self._num_never += came_s == math.inf
            self._num_late += min(came_s, named_s) > 10.0
            if named_s < math.inf:
                self._named_s.append(named_s)
            (self._lost_came_s if block in lost else self._others_came_s).append(came_s)


def _share(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


def main(
    swarms: Annotated[int, typer.Option(min=1, help="Number of swarms.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first swarm.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Strike swarms that keep a text, and print what was lost and what came of it."""
    hush()
    outcome = TextTrial(swarms, seed).run()
    told = asdict(outcome)
    lines = "\n".join(f"{key}: {value}" for key, value in told.items())
    typer.echo(json_text(told) if as_json else lines)
    raise typer.Exit(0 if outcome.is_as_promised else 1)


if __name__ == "__main__":
    typer.run(main)
