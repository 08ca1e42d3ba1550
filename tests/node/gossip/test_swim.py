"""Who is gone is found; who is not, is not, though a path is broken or we are late ourselves."""

import random

from protocol import limits
from protocol.gossip import Ack, Farewell, Ping, PingFor, Rumour, RumourKind
from protocol.gossiping.settings import GossipSettings
from protocol.gossiping.swim import DOUBT_MAX, INCARNATIONS_AT_ONCE, REFUTATIONS, UNANSWERED, Swim
from protocol.identity import PeerId
from tests.node.builders import peers_named

ME, A, B, C, D = peers_named(5)
ALL = (ME, A, B, C, D)
CONFIG = GossipSettings()


class Ring:
    """Some of these machines, each watching all others, over paths that may be broken."""

    def __init__(self, members=ALL) -> None:
        self.now_s = 0.0
        self.machines = {
            peer: Swim(peer, random.Random(f"{index}"), CONFIG, now_s=0.0)
            for index, peer in enumerate(members)
        }
        self.members = members
        self.broken: set[tuple[PeerId, PeerId]] = set()
        self.asleep: set[PeerId] = set()
        self.gone: list[tuple[float, PeerId, PeerId]] = []
        for peer, machine in self.machines.items():
            machine.watch(tuple(other for other in members if other != peer))

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):
            self.now_s += 0.05
            for peer, machine in self.machines.items():
                if peer not in self.asleep:
                    machine.tick(self.now_s)
                    self.gone += [(self.now_s, peer, other) for other in machine.gone]
                    machine.gone.clear()
            self.deliver()

    def deliver(self) -> None:
        """What was said is heard at once, and answered."""
        while any(machine.outbox for machine in self.machines.values()):
            for peer, machine in self.machines.items():
                said, machine.outbox = machine.outbox, []
                for to, frame in said:
                    if (peer, to) not in self.broken and to not in self.asleep:
                        self.hear(to, peer, frame)

    def hear(self, to, source, frame) -> None:
        machine = self.machines.get(to)
        if machine is None:
            return
        machine.heard(source)
        for rumour in getattr(frame, "rumours", ()):
            machine.hear(rumour, source, self.now_s)
        machine.take(source, frame, knows=True, now_s=self.now_s)

    def cut(self, one, other) -> None:
        self.broken |= {(one, other), (other, one)}


def test_calm_ring_suspects_nobody():
    ring = Ring()
    ring.run(120.0)
    assert ring.gone == []
    assert all(machine.counts.suspicions == 0 for machine in ring.machines.values())


def test_dead_peer_is_given_up_by_all_and_nobody_else_is():
    ring = Ring()
    ring.run(10.0)
    ring.asleep.add(D)
    ring.run(20.0)
    assert {(by, peer) for _, by, peer in ring.gone if by != D} == {(p, D) for p in ALL if p != D}
    # A turn of four pings, two answers waited for, and the longest suspicion.
    longest_s = 4 * CONFIG.ping_s + 3 * CONFIG.answer_s + CONFIG.suspicion_s[1] + 1.0
    assert max(at_s for at_s, _, _ in ring.gone) < 10.0 + longest_s


def test_peer_with_a_broken_path_is_there_through_others():
    ring = Ring()
    ring.cut(A, B)
    ring.run(120.0)
    assert ring.gone == []
    assert ring.machines[A].counts.suspicions == ring.machines[B].counts.suspicions == 0


def test_broken_path_without_a_way_around_is_found():
    ring = Ring((A, B))
    ring.cut(A, B)
    ring.run(20.0)
    assert {peer for _, _, peer in ring.gone} == {A, B}


def alone() -> Swim:
    machine = Swim(ME, random.Random(3), CONFIG, now_s=0.0)
    machine.watch((A, B, C))
    return machine


def pass_time(machine: Swim, start_s: float, stop_s: float, *, answering=(), refusing=()) -> None:
    """Tick; whoever answers acks its pings at once, whoever refuses acks errands with a no."""
    steps = round((stop_s - start_s) / 0.05)
    for step in range(1, steps + 1):
        now_s = start_s + step * 0.05
        machine.tick(now_s)
        said, machine.outbox = machine.outbox, []
        for peer, frame in said:
            if isinstance(frame, Ping) and peer in answering:
                machine.take(peer, ack(frame.nonce), knows=True, now_s=now_s)
            elif isinstance(frame, PingFor) and peer in refusing:
                no = ack(frame.nonce, is_there=False)
                machine.take(peer, no, knows=True, now_s=now_s)


def ack(nonce: int, *, is_there: bool = True) -> Ack:
    return Ack(nonce=nonce, is_there=is_there, incarnation=0, rumours=())


def rumour(kind: RumourKind, peer: PeerId, incarnation: int = 0) -> Rumour:
    return Rumour(kind=kind, peer=peer, incarnation=incarnation)


def until_suspected(machine: Swim, peer: PeerId) -> float:
    now_s = 0.0
    others = tuple(other for other in (A, B, C) if other != peer)
    while peer not in machine.suspects:
        pass_time(machine, now_s, now_s + 0.05, answering=others, refusing=others)
        now_s += 0.05
        assert now_s < 20.0
    return now_s


def test_no_rumour_alone_removes_anybody():
    machine = alone()
    now_s = 0.0
    for incarnation in range(40):
        for teller in (B, C):
            machine.hear(rumour(RumourKind.GONE, A, incarnation), teller, now_s)
        pass_time(machine, now_s, now_s + 1.0, answering=(A, B, C))
        now_s += 1.0
    assert machine.gone == []
    assert machine.suspects == frozenset()


def test_rumour_makes_the_node_look_at_once():
    machine = alone()
    pass_time(machine, 0.0, 5.0, answering=(A, B, C))
    machine.hear(rumour(RumourKind.SUSPECT, A), B, 5.0)
    machine.tick(machine.wakeup_s())
    machine.tick(6.1)
    assert A in [peer for peer, frame in machine.outbox if isinstance(frame, Ping)]


def test_others_who_suspect_too_shorten_the_time():
    def given_up_after_s(num_tellers: int) -> float:
        machine = alone()
        began_s = now_s = until_suspected(machine, A)
        for teller in (B, C, D)[:num_tellers]:
            for _ in range(5):  # One teller counts once, however often it says so.
                machine.hear(rumour(RumourKind.SUSPECT, A), teller, now_s)
        while not machine.gone:
            pass_time(machine, now_s, now_s + 0.05, answering=(B, C), refusing=(B, C))
            now_s += 0.05
        assert machine.gone == [A]
        return now_s - began_s

    times = [given_up_after_s(num) for num in range(4)]
    assert times == sorted(times, reverse=True)
    assert abs(times[0] - CONFIG.suspicion_s[1]) < 0.2
    # Not before this node itself has asked as often as it must: an ask waits thrice for answers.
    shortest_s = max(CONFIG.suspicion_s[0], 3 * CONFIG.answer_s * (UNANSWERED - 1))
    assert shortest_s <= times[3] < shortest_s + 0.5


def test_whoever_answers_the_last_ask_is_not_given_up_whatever_others_say():
    """Frames get lost: three asks in a row that come to nothing are luck."""

    def end_of(num_lost: int) -> tuple[list[PeerId], frozenset[PeerId]]:
        machine = alone()
        now_s = until_suspected(machine, A)
        for teller in (B, C, D):
            machine.hear(rumour(RumourKind.SUSPECT, A), teller, now_s)
        waited_s = 3 * CONFIG.answer_s * num_lost + 0.1  # The first has gone by.
        pass_time(machine, now_s, now_s + waited_s, answering=(B, C), refusing=(B, C))
        now_s += waited_s
        pass_time(machine, now_s, now_s + 4.0, answering=(A, B, C))
        return machine.gone, machine.suspects

    assert end_of(UNANSWERED - 2) == ([], frozenset())
    gone, _ = end_of(UNANSWERED)
    assert gone == [A]


def test_contradiction_ends_a_suspicion_but_not_for_ever():
    machine = alone()
    now_s = until_suspected(machine, A)
    for incarnation in range(1, 100):
        machine.hear(rumour(RumourKind.ALIVE, A, incarnation), B, now_s)
        if incarnation <= REFUTATIONS:
            assert A not in machine.suspects
        pass_time(machine, now_s, now_s + 5.0, answering=(B, C), refusing=(B, C))
        now_s += 5.0
        if machine.gone:
            break
    # A liar that keeps contradicting for the dead only puts it off.
    assert machine.gone == [A]
    assert now_s < 60.0


def test_slandered_node_contradicts_with_a_later_incarnation():
    machine = alone()
    machine.hear(rumour(RumourKind.SUSPECT, ME, 4), A, 0.0)
    machine.take(A, Ping(nonce=1, is_neighbour=True, rumours=()), knows=True, now_s=0.0)
    ((_, answer),) = machine.outbox
    assert isinstance(answer, Ack)
    assert answer.incarnation == 5
    assert answer.rumours == (rumour(RumourKind.ALIVE, ME, 5),)


def test_slander_neither_deafens_nor_uses_the_incarnations_up():
    machine = alone()
    machine.hear(rumour(RumourKind.GONE, ME, limits.INCARNATION_MAX), A, 0.0)
    machine.hear(rumour(RumourKind.GONE, ME, INCARNATIONS_AT_ONCE), A, 0.0)
    assert machine.leave() == Farewell(incarnation=0)
    for incarnation in range(50):
        machine.hear(rumour(RumourKind.GONE, ME, incarnation), A, 1.0)
    assert machine.doubt == 1


def test_node_that_hears_nobody_doubts_itself_and_takes_longer():
    def suspects_after_s(doubting: bool) -> float:
        machine = alone()
        now_s = 0.0
        if doubting:
            # Not even those who were asked to help say no.
            pass_time(machine, 0.0, 8.0)
            assert machine.doubt > 2
            now_s = 8.0
        began_s = now_s
        before = machine.counts.suspicions
        while machine.counts.suspicions == before:
            pass_time(machine, now_s, now_s + 0.05)
            now_s += 0.05
            if now_s > 60.0:
                break
        return now_s - began_s

    assert suspects_after_s(True) > 1.5 * suspects_after_s(False)
    machine = alone()
    pass_time(machine, 0.0, 100.0)
    assert machine.doubt <= DOUBT_MAX


def test_node_that_slept_accuses_nobody_of_the_silence():
    machine = alone()
    pass_time(machine, 0.0, 5.0, answering=(A, B, C))
    now_s = until_nonce(machine, 5.0)
    suspicions = machine.counts.suspicions
    machine.tick(now_s + 60.0)  # It was asleep with a question under way.
    assert machine.counts.suspicions == suspicions
    assert machine.gone == []
    assert machine.doubt > 0


def until_nonce(machine: Swim, now_s: float) -> float:
    while not machine.outbox:
        now_s += 0.05
        machine.tick(now_s)
    return now_s


def test_sleeper_starts_suspicions_over():
    machine = alone()
    now_s = until_suspected(machine, A)
    machine.outbox.clear()
    machine.tick(now_s + 8.0)
    pass_time(machine, now_s + 8.0, now_s + 10.0)
    assert machine.gone == []
    machine.heard(A)
    assert machine.suspects == frozenset()


def test_answer_of_whom_nobody_asked_counts_for_nothing():
    machine = alone()
    machine.watch((A,))
    now_s = until_nonce(machine, 0.0)
    ((_, ping),) = machine.outbox
    assert isinstance(ping, Ping)
    for _ in range(200):
        now_s += 0.05
        machine.tick(now_s)
        machine.take(B, ack(ping.nonce), knows=True, now_s=now_s)
    assert machine.suspects == {A}


def test_errand_is_run_and_its_failure_told():
    machine = alone()
    machine.take(B, PingFor(nonce=9, target=D, addresses=(), rumours=()), knows=True, now_s=0.0)
    ((to, ping),) = machine.outbox
    assert to == D
    assert isinstance(ping, Ping)
    assert not ping.is_neighbour
    machine.outbox.clear()
    machine.take(C, ack(ping.nonce), knows=True, now_s=0.1)
    assert machine.outbox == []
    pass_time_quiet(machine, 0.0, 0.7)
    (answer,) = [f for p, f in machine.outbox if p == B and isinstance(f, Ack)]
    assert answer.nonce == 9
    assert not answer.is_there


def pass_time_quiet(machine: Swim, start_s: float, stop_s: float) -> None:
    for step in range(1, round((stop_s - start_s) / 0.05) + 1):
        machine.tick(start_s + step * 0.05)


def test_who_says_goodbye_is_not_watched_any_more():
    machine = alone()
    machine.take(A, Farewell(incarnation=0), knows=True, now_s=0.0)
    pass_time(machine, 0.0, 60.0, answering=(B, C))
    assert machine.gone == []
    assert machine.counts.suspicions == 0


def test_strangers_and_rumours_leave_bounded_memory():
    machine = alone()
    strangers = peers_named(700)
    for round_index in range(3):
        for number, peer in enumerate(strangers):
            machine.hear(rumour(RumourKind.SUSPECT, peer, round_index), A, 0.0)
            frame = PingFor(nonce=number, target=peer, addresses=(), rumours=())
            machine.take(B, frame, knows=True, now_s=0.0)
    assert len(machine._mill._newest) <= 512
    assert len(machine._mill._queue) <= 64
    assert len(machine._errands) <= 64
