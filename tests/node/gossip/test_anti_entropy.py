"""Two nodes that compare hold the same afterwards, within what an exchange may cost."""

import random
from itertools import pairwise

import pytest

from protocol import limits
from protocol.events import Fault, Send
from protocol.frames import encode_frame
from protocol.gossip import BucketIds, Compare, Digests, Entries, GossipFrame
from protocol.gossiping.machine import Gossip
from protocol.gossiping.settings import GossipSettings
from sim.crowds.gossiping import MARK, SimBook
from tests.node.builders import peers_named

A, B, C = peers_named(3)


class Pair:
    """Two machines that compare when they are told to; spreading has no neighbours."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.books = {A: SimBook(), B: SimBook()}
        self.machines = {
            peer: Gossip(peer, book, random.Random(f"{peer!r}"), now_s=0.0)
            for peer, book in self.books.items()
        }
        self.sent: list[tuple[bytes, GossipFrame]] = []
        self.faults: list[Fault] = []

    def write(self, peer, start: int, stop: int, *, size: int = 200) -> None:
        for number in range(start, stop):
            encoded = (MARK + b"%d " % number).ljust(size, b".")
            self.books[peer].offer(encoded, wall_s=0.0, now_s=0.0)

    def exchange(self, *, drop=lambda index, frame: False) -> None:
        """A opens one with B; ten seconds pass."""
        opener = self.machines[A]
        opener.comparing.begin(B, self.now_s)
        self.deliver(A, opener._take_actions(), drop)
        for _ in range(40):
            self.now_s += 0.25
            for peer, machine in self.machines.items():
                machine.comparing._due_s = float("inf")  # Only those that we open.
                self.deliver(peer, machine.tick(now_s=self.now_s), drop)

    def deliver(self, source, actions, drop) -> None:
        for action in actions:
            if isinstance(action, Fault):
                self.faults.append(action)
            if not isinstance(action, Send) or action.peer not in self.machines:
                continue
            frame: GossipFrame = action.frame  # type: ignore[assignment]  # it says nothing else
            self.sent.append((source, frame))
            if not drop(len(self.sent), frame):
                answers = self.machines[action.peer].handle(
                    source, frame, wall_s=0.0, now_s=self.now_s
                )
                self.deliver(action.peer, answers, drop)

    def is_equal(self) -> bool:
        return self.books[A].bucket_digests() == self.books[B].bucket_digests()

    def sent_bytes(self, kind: type | None = None) -> int:
        return sum(
            len(encode_frame(frame))
            for _, frame in self.sent
            if kind is None or type(frame) is kind
        )


def test_equal_nodes_exchange_two_small_frames():
    pair = Pair()
    for peer in (A, B):
        pair.write(peer, 0, 500)
    pair.exchange()
    frames = [frame for _, frame in pair.sent if isinstance(frame, Compare | Digests)]
    assert len(frames) == 2
    assert sum(len(encode_frame(frame)) for frame in frames) < 80


def test_one_exchange_mends_both_sides():
    pair = Pair()
    pair.write(A, 0, 300)
    pair.write(B, 200, 500)
    pair.exchange()
    assert pair.is_equal()
    assert len(pair.books[A]) == len(pair.books[B]) == 500
    # Nobody was sent what it had: 400 entries were missing in all.
    assert pair.sent_bytes(Entries) < 400 * 215
    assert pair.faults == []


@pytest.mark.parametrize(("of_a", "of_b"), [(0, 400), (400, 0), (1, 0)])
def test_empty_node_gets_everything_and_gives_everything(of_a, of_b):
    pair = Pair()
    pair.write(A, 0, of_a)
    pair.write(B, 1000, 1000 + of_b)
    pair.exchange()
    assert pair.is_equal()
    assert len(pair.books[A]) == of_a + of_b


def test_exchange_beyond_its_limit_goes_on_the_next_time():
    pair = Pair()
    pair.write(B, 0, 200, size=15_000)  # 3 MB
    held = [0]
    while not pair.is_equal():
        before = pair.sent_bytes()
        pair.exchange()
        assert pair.sent_bytes() - before < 1.9 * limits.GOSSIP_EXCHANGE_BYTES_MAX
        held.append(len(pair.books[A]))
        assert held[-1] > held[-2], "an exchange brought nothing"
        assert len(held) < 10
    assert len(held) > 2
    assert pair.faults == []


@pytest.mark.parametrize("kind", [Compare, Digests, BucketIds, Entries])
def test_loss_of_any_one_frame_is_mended_in_the_same_exchange(kind):
    pair = Pair()
    pair.write(A, 0, 20)
    pair.write(B, 10, 40)
    lost: list[object] = []

    def drop(_, frame):
        if isinstance(frame, kind) and not lost:
            lost.append(frame)
            return True
        return False

    pair.exchange(drop=drop)
    assert lost
    assert pair.is_equal()


def test_page_of_a_bucket_holds_its_ids_in_ranges_without_gaps():
    class Crowded(SimBook):
        def ids_in(self, bucket: int) -> tuple[bytes, ...]:
            return tuple(bytes([bucket]) + number.to_bytes(31, "big") for number in range(2500))

    machine = Gossip(A, Crowded(), random.Random(1), now_s=0.0)
    pages = list(machine.comparing._pages(1, 7))
    assert [len(page.ids) for page in pages] == [1024, 1024, 452]
    assert pages[0].first == bytes(32)
    assert pages[-1].last == b"\xff" * 32
    for one, other in pairwise(pages):
        assert int.from_bytes(other.first, "big") == int.from_bytes(one.last, "big") + 1
    # Whoever holds the same finds nothing missing in any of them.
    for page in pages:
        assert machine.comparing.compared(page)[0] == []


def test_answer_to_no_question_is_not_acted_on():
    pair = Pair()
    pair.write(A, 0, 50)
    digests = Digests(nonce=1, buckets=(bytes(16),) * 256)
    for source in (B, C):
        assert pair.machines[A].handle(source, digests, wall_s=0.0, now_s=0.0) == []


def test_silent_partner_is_asked_three_times_then_lost():
    pair = Pair()
    machine = pair.machines[A]
    machine.views.heard(C, 0.0)
    machine.comparing.begin(C, 0.0)
    asked = [a for a in machine._take_actions() if isinstance(a, Send) and a.peer == C]
    for step in range(1, 20):
        machine.comparing._due_s = float("inf")
        asked += [
            a
            for a in machine.tick(now_s=step * 0.25)
            if isinstance(a, Send) and isinstance(a.frame, Compare)
        ]
    assert len([a for a in asked if isinstance(a.frame, Compare)]) == 3
    assert machine.views.lost == (C,)


def test_differences_are_mended_by_settings_of_any_size(seed):
    rng = random.Random(seed)
    pair = Pair()
    for number in range(rng.randrange(1, 400)):
        encoded = (MARK + b"%d" % number).ljust(rng.randrange(20, 600), b".")
        for peer in rng.choice(((A,), (B,), (A, B))):
            pair.books[peer].offer(encoded, wall_s=0.0, now_s=0.0)
    pair.exchange()
    assert pair.is_equal()
    assert GossipSettings().exchange_s == 10.0
