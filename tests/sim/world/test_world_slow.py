"""Slow lines: every part and result goes over them about once, and nobody is left out for it."""

import itertools
from dataclasses import replace

import pytest

from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Record, Signed
from protocol.events import Working
from protocol.frames import Phase
from protocol.messages import Kind
from protocol.rounds.patience import CAP_ROUNDS, UNIT_LEAST
from sim.world.links import Direction, Link
from sim.world.nodes import Device
from sim.world.world import World, WorldSettings
from tests.node.builders import peers_named, toy_manifest

PEERS = peers_named(4)
LINE_BYTES_PER_S = 500e3 / 8
CELLS = 96
"""Of a contribution, 192 KiB: parts and results of a round take a line of 500 kbit/s five seconds.
"""

ROUNDS, FOUNDING = 12, 3
"""In the first rounds the founder alone is a quorum, and does not wait for who has not committed.
"""


@pytest.fixture
def carried(monkeypatch) -> list[int]:
    """The sizes of all transfers that were begun."""
    sizes: list[int] = []
    bulk_times = Direction.bulk_times

    def counted(direction, num_bytes, now_s):
        sizes.append(num_bytes)
        return bulk_times(direction, num_bytes, now_s)

    monkeypatch.setattr(Direction, "bulk_times", counted)
    return sizes


def slow_world(seed: int, *, floor_s: float) -> World:
    """Four whose lines each are shared by the ways to the three others."""
    manifest = toy_manifest(PEERS[0], rounds=ROUNDS, cells=CELLS)
    timing = replace(manifest.timing, deadline_floor_s=floor_s, deadline_cap_s=20.0, suspect_s=4.0)
    manifest = replace(manifest, timing=timing)
    link = Link(latency_s=(0.04, 0.05), bytes_per_s=LINE_BYTES_PER_S / 3)
    world = World(manifest, seed=seed, link=link, settings=WorldSettings(linger_s=60.0))
    config = replace(round_config(manifest), wait_seats=3)
    world.join(PEERS[0], config=config)
    for peer in PEERS[1:]:
        world.join(peer)
    return world


@pytest.mark.quick(1)
@pytest.mark.parametrize("floor_s", [1.0, 3.0])
def test_every_part_and_result_is_sent_about_once_and_all_are_listed(seed, carried, floor_s):
    world = slow_world(seed, floor_s=floor_s)
    nodes = world.nodes.values()
    world.run(lambda: all(node.round == FOUNDING for node in nodes), 100.0)
    carried.clear()
    world.run(lambda: all(node.round == ROUNDS for node in nodes), 300.0)
    store = world.nodes[PEERS[0]].store
    once = sum(store.part_bytes(cell) + store.result_bytes(cell) for cell in range(CELLS))
    needed = (ROUNDS - FOUNDING) * (len(PEERS) - 1) * once
    assert needed * 0.95 < sum(carried) < needed * 1.2
    chain = world.nodes[PEERS[0]].core.chain
    assert [len(link.value.commits) for link in chain[FOUNDING + 1 :]] == [4] * (ROUNDS - FOUNDING)
    assert world.faults == []


# A member that is a little later each round ------------------------------------------------------

CALM_UNTIL, DAWDLED_FIVE, DAWDLED_LAST = 10, 15, 34


def dawdled_rounds(trust: str, *, claims: bool) -> list[float]:
    """How long each round of six takes, one of whom is ever later from round 10 on; `claims`: and
    says all the while that its steps go on."""
    peers = peers_named(6)
    late = peers[2]
    manifest = toy_manifest(peers[0], rounds=DAWDLED_LAST + 1, cells=8)
    timing = replace(manifest.timing, deadline_floor_s=3.0, deadline_cap_s=20.0, suspect_s=4.0)
    manifest = replace(manifest, trust=trust, timing=timing)
    seated = peers if trust == "open" else ()
    link = Link(latency_s=(0.001, 0.002), bytes_per_s=1e7)
    world = World(manifest, seed=3, link=link, settings=WorldSettings(seated=seated))
    config = replace(round_config(manifest), wait_seats=0 if seated else 5)
    usual = Device(train_s=(0.4, 0.45))
    for peer in peers:
        world.join(peer, device=usual, config=config if peer == peers[0] else None)
    ends_s: dict[int, float] = {}

    def saw(record: Record) -> None:
        if not isinstance(record, Adopted):
            return
        number = record.certificate.value.round
        ends_s.setdefault(number, record.at_s)
        if record.peer == late and number >= CALM_UNTIL:
            by_s = min(17.0, 1.5 * 1.35 ** (number - CALM_UNTIL))
            world.nodes[late].device = replace(usual, train_s=(0.4 + by_s, 0.4 + by_s))

    world.tracers.append(saw)
    if claims:
        steps = itertools.count()
        core = world.nodes[late].core
        core.working = lambda: Working(
            core.machine.view.index, Phase.TRAIN, next(steps), 9**9, None
        )
    others = [world.nodes[peer] for peer in peers if peer != late]
    world.run(lambda: all(node.round >= DAWDLED_LAST for node in others), 400.0)
    return [ends_s[number] - ends_s[number - 1] for number in range(2, DAWDLED_LAST + 1)]


@pytest.mark.parametrize("claims", [False, True], ids=["is late", "says that it moves"])
@pytest.mark.parametrize("trust", ["friends", "open"])
def test_dawdler_costs_what_a_few_may_cost_and_then_a_third_of_a_round(trust, claims):
    took_s = dawdled_rounds(trust, claims=claims)
    calm_s = sorted(took_s[2 : CALM_UNTIL - 2])[3]
    dawdled_s = took_s[CALM_UNTIL - 1 : DAWDLED_FIVE - 1]
    assert max(dawdled_s) > 3 * calm_s, "it was waited for"
    assert sum(dawdled_s) < 5 * calm_s + 2 * CAP_ROUNDS * UNIT_LEAST * 3.0
    assert max(took_s[DAWDLED_FIVE - 1 :]) < 1.5 * calm_s


# From the founding on ----------------------------------------------------------------------------

FOUNDED_CELLS, FOUNDED_BYTES = 192, 589_524
"""Of a contribution 384 KiB; parts and results of a round over the three ways, among friends."""


MISSED = pytest.mark.xfail(
    strict=True,
    reason="in round 5 the founder alone is listed: known, and not mended; about one world in ten",
)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("exchange_s", "number"),
    [
        pytest.param(exchange_s, number, marks=MISSED if (exchange_s, number) == (350.0, 3) else ())
        for exchange_s in (90.0, 350.0)
        for number in range(5)
    ],
)
def test_open_run_founded_on_slow_lines_lists_everybody_from_its_second_round_on(
    exchange_s, number
):
    peers, rounds = peers_named(4), 8
    manifest = toy_manifest(peers[0], rounds=rounds, cells=FOUNDED_CELLS)
    timing = replace(
        manifest.timing, deadline_floor_s=5.0, deadline_cap_s=60.0, heartbeat_s=1.0, suspect_s=8.0
    )
    manifest = replace(manifest, trust="open", timing=timing)
    link = Link(latency_s=(0.02, 0.021), bytes_per_s=FOUNDED_BYTES / exchange_s / 3)
    settings = WorldSettings(linger_s=60.0, fits_steps=True)
    world = World(manifest, seed=number, link=link, settings=settings)
    for peer in peers:
        config = replace(round_config(manifest), wait_seats=3) if peer == peers[0] else None
        world.join(peer, device=Device(train_s=(60.0, 63.0)), config=config)
    nodes = world.nodes.values()
    world.run(lambda: all(node.round == rounds for node in nodes), 40.0 * exchange_s)
    chain = world.nodes[peers[0]].core.chain
    assert [len(link.value.commits) for link in chain[1:]] == [1, *[4] * (rounds - 1)]
    assert [len(link.value.roster.voters) for link in chain[3:]] == [4] * (rounds - 2)
    assert world.faults == []


# One line that is much slower than the others ----------------------------------------------------

LONE_ROUNDS, LONE_CALM = 20, 6
FAST_BYTES_PER_S = 16_384.0
"""Of six a contribution of 192 KiB and the result go over five ways in three seconds."""


def lone_world(seed: int, *, times: float, rounds: int) -> tuple[list[bool], list[float]]:
    """Whether the third of six, whose line sends so many times more slowly, is listed in each
    round, and how long the rounds take, from round 3 on."""
    peers = peers_named(6)
    slow = peers[2]
    manifest = toy_manifest(peers[0], rounds=rounds, cells=CELLS)
    timing = replace(
        manifest.timing, deadline_floor_s=5.0, deadline_cap_s=60.0, heartbeat_s=1.0, suspect_s=8.0
    )
    manifest = replace(manifest, timing=timing)
    link = Link(latency_s=(0.02, 0.021), bytes_per_s=FAST_BYTES_PER_S)
    settings = WorldSettings(linger_s=60.0, fits_steps=True)
    world = World(manifest, seed=seed, link=link, settings=settings)
    for peer in peers:
        if peer != slow:
            world.set_link(slow, peer, replace(link, bytes_per_s=FAST_BYTES_PER_S / times))
    ends_s: dict[int, float] = {}
    senders = {}

    def saw(record: Record) -> None:
        if isinstance(record, Adopted):
            ends_s.setdefault(record.certificate.value.round, record.at_s)
        elif isinstance(record, Signed) and record.message.slot.kind is Kind.COMMIT:
            senders[record.message.digest] = record.peer

    world.tracers.append(saw)
    for peer in peers:
        config = replace(round_config(manifest), wait_seats=5) if peer == peers[0] else None
        world.join(peer, device=Device(train_s=(60.0, 61.0)), config=config)
    others = [world.nodes[peer] for peer in peers if peer != slow]
    world.run(lambda: all(node.round == rounds for node in others), 300.0 * rounds)
    chain = others[0].core.chain
    listed = [slow in {senders[digest] for digest in link.value.commits} for link in chain[3:]]
    took_s = [ends_s[number] - ends_s[number - 1] for number in range(3, rounds + 1)]
    return listed, took_s


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", range(3))
def test_one_line_ten_times_slower_is_listed_and_rounds_are_hardly_longer(number):
    """It trains less, and so begins to send while the others still train."""
    _, calm_s = lone_world(number, times=1.0, rounds=LONE_CALM)
    listed, took_s = lone_world(number, times=10.0, rounds=LONE_ROUNDS)
    usual_s = sorted(calm_s)[len(calm_s) // 2]
    assert sum(listed) >= 0.95 * len(listed)
    assert sum(took_s) / len(took_s) < 4 / 3 * usual_s
    assert max(took_s[3:]) < 4 / 3 * usual_s


# A slow member to which one of the others has no link ---------------------------------------------

CUT_AT, CUT_ROUNDS = 4, 14


def rounds_that_list_a_slow_one(seed: int) -> tuple[int, int]:
    """How many rounds of six friends list the third, which trains for half a minute where the
    others do for twenty seconds, once the fourth has no link to it; and in how many attempts the
    longest of them is sealed."""
    peers = peers_named(6)
    slow, apart = peers[2], peers[3]
    manifest = toy_manifest(peers[0], rounds=CUT_ROUNDS, cells=8)
    timing = replace(
        manifest.timing, deadline_floor_s=5.0, deadline_cap_s=60.0, heartbeat_s=1.0, suspect_s=8.0
    )
    manifest = replace(manifest, timing=timing)
    link = Link(latency_s=(0.01, 0.02), bytes_per_s=1e7)
    world = World(manifest, seed=seed, link=link, settings=WorldSettings(linger_s=60.0))
    senders, attempts = {}, set[int]()

    def saw(record: Record) -> None:
        if isinstance(record, Signed):
            slot = record.message.slot
            if slot.kind is Kind.COMMIT:
                senders[record.message.digest] = record.peer
            elif slot.kind is Kind.SEAL and slot.round > CUT_AT:
                attempts.add(slot.attempt)

    world.tracers.append(saw)
    for peer in peers:
        config = replace(round_config(manifest), wait_seats=5) if peer == peers[0] else None
        train_s = 30.0 if peer == slow else 20.0
        world.join(peer, device=Device(train_s=(train_s, train_s + 0.2)), config=config)
    others = [world.nodes[peer] for peer in peers if peer != slow]
    world.run(lambda: all(node.round > CUT_AT for node in others), 1000.0)
    world.cut(slow, apart)
    world.run(lambda: all(node.round == CUT_ROUNDS for node in others), 1500.0)
    assert world.faults == []
    behind = others[0].core.chain[CUT_AT + 1 :]
    listed = sum(slow in {senders[digest] for digest in link.value.commits} for link in behind)
    return listed, max(attempts)


@pytest.mark.quick(1)
@pytest.mark.parametrize("number", range(3))
def test_slow_member_is_listed_though_one_friend_has_no_link_to_it(number):
    """The looser wording: that friend says HAVE without it, and nobody waits for it any more."""
    listed, attempt = rounds_that_list_a_slow_one(number)
    assert listed == CUT_ROUNDS - CUT_AT
    assert attempt <= 1, "of the first one the parts have to find their way round"
