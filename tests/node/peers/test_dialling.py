"""Whom a node dials: time goes by in steps, and every dial is counted where it leads."""

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from node.peers.dialling import (
    AT_ONCE_MAX,
    LINKED_A_SECOND,
    LINKS_ENOUGH,
    STRANGE_AT_ONCE_MAX,
    AddressBook,
    Dial,
    DialContext,
    DialDecider,
    KnownProgress,
)
from node.peers.entry_exchange import KNOWN_MAX
from protocol.identity import PeerId

STEP_S = 0.05
ME, FOUNDER = PeerId(b"me" * 19), PeerId(b"fo" * 19)
SECOND_MAX = 10


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(38, "big"))


def place(number: int) -> str:
    return f"/ip4/127.0.0.1/tcp/{20_000 + number}"


@dataclass
class Hall:
    """One node's decider, and what answers its dials at once, or after a while."""

    book: AddressBook = field(default_factory=AddressBook)
    there: dict[str, PeerId] = field(default_factory=dict)
    members: frozenset[PeerId] = frozenset()
    silent_s: float = 0.0
    now_s: float = 0.0
    dialled: list[tuple[float, str]] = field(default_factory=list)
    connected: dict[PeerId, float] = field(default_factory=dict)
    pending: list[tuple[float, Dial]] = field(default_factory=list)
    round: int = 0

    def __post_init__(self) -> None:
        self.decider = DialDecider(
            me=ME, founder=FOUNDER, book=self.book, rng=random.Random("dialling")
        )

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            around = DialContext(
                connected=set(self.connected),
                linked=set(self.connected),
                standing=KnownProgress(self.members, self.round),
            )
            for dial in self.decider.choose(around, self.now_s):
                self.dialled += [(self.now_s, one) for one in self.tried(dial)]
                self.pending.append((self.now_s + self.silent_s, dial))
            for due in [one for one in self.pending if one[0] <= self.now_s]:
                self.pending.remove(due)
                self.end(due[1])
            assert len(self.pending) <= AT_ONCE_MAX
            self.now_s += STEP_S

    def tried(self, dial: Dial) -> tuple[str, ...]:
        for number, address in enumerate(dial.addresses):
            if self.there.get(address) == dial.peer:
                return dial.addresses[: number + 1]
        return dial.addresses

    def end(self, dial: Dial) -> None:
        at = next((one for one in dial.addresses if self.there.get(one) == dial.peer), "")
        if at:
            self.connected[dial.peer] = self.now_s
        self.decider.ended(dial, at, set(self.connected), self.now_s)

    def most_a_second(self) -> int:
        times = [at_s for at_s, _ in self.dialled]
        return max(sum(at <= one < at + 1.0 for one in times) for at in times)

    def most_a_minute_to_one(self) -> int:
        by_place: dict[str, list[float]] = {}
        for at_s, address in self.dialled:
            by_place.setdefault(address, []).append(at_s)
        return max(
            max(sum(at <= one < at + 60.0 - STEP_S for one in times) for at in times)
            for times in by_place.values()
        )


def test_dead_writers_are_dialled_ten_a_second_at_most_and_each_once_a_minute() -> None:
    hall = Hall()
    for number in range(KNOWN_MAX):
        hall.book.announce(peer(number), (place(number), place(number + 500)))
    hall.run(180.0)
    assert hall.most_a_second() <= SECOND_MAX
    assert hall.most_a_minute_to_one() == 1
    assert len({address for _, address in hall.dialled}) == 2 * KNOWN_MAX  # All get their turn.


@pytest.mark.extended
def test_a_third_party_whom_all_writers_name_is_dialled_once_a_minute_at_each_address() -> None:
    hall = Hall()
    aimed = tuple(map(place, range(8)))
    for number in range(20):  # The book is filled anew with every search, by names never heard.
        for writer in range(KNOWN_MAX):
            name = peer(1000 * number + writer)
            if hall.book.make_room(name, (3, 1.0), (), lambda one: hall.decider.merit(one, ())):
                hall.book.announce(name, aimed)
        hall.run(9.0)
    assert hall.most_a_minute_to_one() == 1
    assert len(hall.dialled) <= 4 * len(aimed)


def test_a_newcomer_finds_one_of_four_members_among_256_dead_writers_within_half_a_minute() -> None:
    slowest_s = 0.0
    for seed in range(20):
        hall = Hall()
        hall.decider.rng = random.Random(f"{seed}/newcomer")
        honest = random.Random(f"{seed}/honest").sample(range(KNOWN_MAX), 4)
        for number in range(KNOWN_MAX):
            hall.book.announce(peer(number), (place(number),))
        hall.there = {place(number): peer(number) for number in honest}
        while not hall.connected:
            hall.run(0.5)
        slowest_s = max(slowest_s, hall.now_s)
    assert slowest_s < 30.0


def test_who_has_done_the_work_of_the_run_is_dialled_before_those_who_say_so_alone() -> None:
    hall = Hall(silent_s=8.0)  # Nobody even refuses: four a time, eight seconds each.
    for number in range(KNOWN_MAX):
        hall.book.announce(peer(number), (place(number),))
    hall.decider.note_proven(peer(200))
    hall.there = {place(200): peer(200)}
    hall.run(STEP_S)
    assert hall.dialled[0][1] == place(200)


def test_strangers_take_half_of_the_places_and_members_the_others() -> None:
    hall = Hall(silent_s=8.0)
    for number in range(KNOWN_MAX):
        hall.book.announce(peer(number), (place(number),))
    hall.run(3.0)
    assert len(hall.pending) == STRANGE_AT_ONCE_MAX
    hall.members = frozenset(map(peer, range(KNOWN_MAX)))
    hall.run(1.0)
    assert len(hall.pending) == AT_ONCE_MAX


@pytest.mark.parametrize("round_index", [0, 1])
def test_nobody_new_is_dialled_while_links_suffice_and_rounds_seal(round_index: int) -> None:
    hall = Hall(round=round_index)
    hall.members = frozenset({ME, *map(peer, range(LINKS_ENOUGH))})
    hall.connected = dict.fromkeys(map(peer, range(LINKS_ENOUGH)), 0.0)
    for number in range(100, 200):
        hall.book.announce(peer(number), (place(number),))
    hall.run(60.0)
    # Before the first seal they are, each second one.
    assert (len(hall.dialled) == 0) == (round_index > 0)
    assert len(hall.dialled) <= 60 * LINKED_A_SECOND + 3


def test_a_member_is_dialled_also_while_rounds_seal_whatever_strangers_say_of_its_address() -> None:
    hall = Hall(round=1)
    others = list(map(peer, range(LINKS_ENOUGH + 1)))
    hall.members = frozenset({ME, *others})
    hall.connected = dict.fromkeys(others[1:], 0.0)
    hall.there = {place(0): others[0]}
    for number in range(100, 200):  # They are not there: somebody else is.
        hall.book.announce(peer(number), (place(0),))
        hall.decider.memory.note_tried(place(0), 0.0)
    hall.book.announce(others[0], (place(0),))
    hall.now_s = 60.0
    hall.run(3.0)
    assert others[0] in hall.connected


def test_what_became_of_a_peer_survives_that_it_is_forgotten() -> None:
    hall = Hall()
    hall.book.announce(peer(1), (place(1),))
    hall.run(1.0)
    assert Counter(address for _, address in hall.dialled) == {place(1): 1}
    hall.decider.book = hall.book = AddressBook()
    hall.book.announce(peer(1), (place(1), place(2)))
    hall.book.announce(peer(2), (place(1),))
    hall.run(30.0)
    assert Counter(address for _, address in hall.dialled) == {place(1): 1, place(2): 1}


def test_what_the_user_named_is_tried_again_and_again_at_all_of_its_addresses() -> None:
    hall = Hall()
    for number in range(9):
        hall.book.name(peer(1), place(number))
    hall.run(20.0)
    assert {address for _, address in hall.dialled} == set(map(place, range(9)))
    assert hall.most_a_second() <= SECOND_MAX


def test_members_that_are_away_are_dialled_ten_a_second_at_most_and_all_of_them() -> None:
    hall = Hall(members=frozenset(map(peer, range(64))))
    for number in range(64):
        hall.book.announce(peer(number), tuple(place(4 * number + at) for at in range(4)))
    hall.run(60.0)
    assert hall.most_a_second() <= SECOND_MAX
    assert len({address for _, address in hall.dialled}) == 4 * 64
