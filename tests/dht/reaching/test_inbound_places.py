"""Places of inbound connections: what floods, silence and strangers leave to members and others."""

from dataclasses import dataclass, field

import pytest

from dht.reaching.inbound_places import (
    HOST_KNOCKS_MAX,
    HOST_SHARE,
    KNOCKS_S,
    PLACES_A_MEMBER,
    STALL_S,
    STREAMLESS_S,
    SUBNET_KNOCKS_MAX,
    WAITING_MAX,
    Guest,
    InboundPlaces,
)
from protocol.identity import PeerId

NUM_MAX = 300
HOME = "127.0.0.1"


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(38, "big"))


def far(number: int) -> str:
    """A public host in a subnet of its own."""
    return f"45.{number >> 8}.{number & 255}.7"


@dataclass
class Hall:
    """The places of a node, and which guests have a stream."""

    num_max: int = NUM_MAX
    busy: set[Guest] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.places = InboundPlaces(self.num_max, has_stream=self.busy.__contains__)

    def enter(self, number: int, host: str = "", now_s: float = 0.0) -> tuple[Guest, bool]:
        """One whose handshake takes no time."""
        guest = self.places.knock(host or far(number), now_s)
        assert guest is not None
        assert guest in self.places.turn(now_s)[0]
        return guest, self.places.prove(guest, peer(number), now_s)[0]

    def fill(self, num: int, *, is_busy: bool) -> None:
        for number in range(num):
            guest, is_in = self.enter(number)
            assert is_in
            if is_busy:
                self.busy.add(guest)


def test_a_fifth_of_all_connections_is_left_for_the_nodes_own_dials() -> None:
    hall = Hall()
    hall.fill(240, is_busy=True)
    assert hall.places.num_proven_max == 240
    assert not hall.enter(1000)[1]


def test_a_stranger_that_opens_no_stream_goes_for_the_next() -> None:
    hall = Hall()
    hall.fill(240, is_busy=False)
    guest = hall.places.knock(far(1000), 5.0)
    assert guest is not None
    hall.places.turn(5.0)
    is_in, gone = hall.places.prove(guest, peer(1000), 5.0)
    assert is_in
    assert [one.peer for one in gone] == [peer(0)]
    assert len(hall.places) == 240


def test_a_member_has_a_place_whatever_strangers_do_and_a_stranger_never_has_that_of_members() -> (
    None
):
    hall = Hall()
    members = frozenset(map(peer, range(1000, 1010)))
    hall.places.members = lambda: members
    kept = PLACES_A_MEMBER * len(members)
    hall.fill(240 - kept, is_busy=True)
    assert not hall.enter(999)[1]
    guests = [hall.enter(1000 + number) for number in range(10)]
    assert all(is_in for _, is_in in guests)
    # Those of ten members alone: then all places are taken, and strangers' are given to members.
    others = frozenset(map(peer, range(1000, 1300)))
    hall.places.members = lambda: others
    assert all(hall.enter(1010 + number)[1] for number in range(200))
    assert len(hall.places) == 240


def test_members_are_not_thrown_out_for_members() -> None:
    hall = Hall()
    everybody = frozenset(map(peer, range(400)))
    hall.places.members = lambda: everybody
    assert all(hall.enter(number)[1] for number in range(240))
    assert not hall.enter(300)[1]


def test_one_public_host_holds_a_quarter_of_the_places_and_gives_its_own_for_more() -> None:
    hall = Hall()
    for number in range(100):
        guest, is_in = hall.enter(number, "45.1.1.1", now_s=KNOCKS_S * number)
        assert is_in
    assert len(hall.places) == 240 // HOST_SHARE
    for guest in list(hall.places._proven):
        hall.busy.add(guest)
    assert not hall.enter(200, "45.1.1.1", now_s=5000.0)[1]
    assert hall.enter(201, "46.1.1.1", now_s=5000.0)[1]


def test_one_home_holds_what_it_needs() -> None:
    hall = Hall()
    assert all(hall.enter(number, HOME)[1] for number in range(240))


def test_new_connections_of_a_host_and_a_subnet_have_a_rate() -> None:
    hall = Hall()
    knocks = [hall.places.knock("45.1.1.1", 0.0) for _ in range(100)]
    assert sum(one is not None for one in knocks) == HOST_KNOCKS_MAX
    beside = [hall.places.knock(f"45.1.1.{number}", 0.0) for number in range(2, 200)]
    assert sum(one is not None for one in beside) <= SUBNET_KNOCKS_MAX - HOST_KNOCKS_MAX
    assert hall.places.knock("45.1.2.1", 0.0) is not None
    assert hall.places.knock("45.1.1.1", KNOCKS_S) is not None


def test_who_stalls_makes_room_and_who_goes_on_does_not() -> None:
    hall = Hall()
    num = hall.places.num_knocking_max
    guests = [hall.places.knock(HOME, 0.0) for _ in range(num)]
    assert len(hall.places.turn(0.0)[0]) == num
    late = hall.places.knock(HOME, 0.1)
    assert hall.places.turn(STALL_S - 0.1) == ([], [])
    for guest in guests[1:]:
        assert guest is not None
        guest.heard_s = STALL_S - 0.1
    assert hall.places.turn(STALL_S) == ([late], [guests[0]])


def test_a_flood_from_one_host_does_not_hold_up_another() -> None:
    hall = Hall()
    flood = [hall.places.knock(HOME, 0.0) for _ in range(WAITING_MAX + 10)]
    assert flood.count(None) == 10
    hall.places.turn(0.0)
    for _ in range(WAITING_MAX):
        hall.places.knock(HOME, 0.1)
    other = hall.places.knock("192.168.1.2", 0.5)
    assert hall.places.turn(STALL_S)[0][0] is other


def test_a_flood_from_one_host_holds_up_others_of_that_host_for_seconds_alone() -> None:
    hall, now_s = Hall(num_max=20), 0.0
    for _ in range(40):
        hall.places.knock(HOME, now_s)
    hall.places.turn(now_s)
    late = hall.places.knock(HOME, 0.1)
    assert late is not None
    while now_s < 3.0:
        now_s += 0.25
        admitted, gone = hall.places.turn(now_s)
        if late in admitted:
            break
        for _ in gone:  # Each that was cut off comes again at once.
            hall.places.knock(HOME, now_s)
    assert now_s <= 3.0
    assert late in admitted


def test_strangers_without_a_stream_go_where_places_are_scarce() -> None:
    hall = Hall()
    hall.fill(100, is_busy=False)
    assert hall.places.sweep(2 * STREAMLESS_S) == []
    for number in range(100, 130):
        guest, _ = hall.enter(number, now_s=2 * STREAMLESS_S)
        hall.busy.add(guest)
    gone = hall.places.sweep(2 * STREAMLESS_S)
    assert {one.peer for one in gone} == set(map(peer, range(100)))
    assert hall.places.sweep(4 * STREAMLESS_S) == []


@pytest.mark.parametrize("num_max", [1, 2, 5, 20])
def test_small_numbers_leave_a_place_for_somebody(num_max: int) -> None:
    hall = Hall(num_max=num_max)
    assert hall.enter(1)[1]


def test_nothing_is_left_of_whoever_has_left() -> None:
    hall = Hall()
    waiting = hall.places.knock(HOME, 0.0)
    assert waiting is not None
    proven, _ = hall.enter(1, "192.168.1.3")
    hall.places.leave(waiting)
    hall.places.leave(proven)
    hall.places.leave(proven)
    assert len(hall.places) == 0


def test_who_holds_most_gives_a_place_before_those_that_hold_one() -> None:
    hall = Hall()
    for number in range(20):
        hall.enter(number, f"192.168.2.{number}")
    for number in range(20, 240):
        hall.enter(number, HOME, now_s=1.0)
    guest = hall.places.knock("192.168.3.1", 2.0)
    assert guest is not None
    hall.places.turn(2.0)
    is_in, gone = hall.places.prove(guest, peer(1000), 2.0)
    assert is_in
    assert [one.host for one in gone] == [HOME]
