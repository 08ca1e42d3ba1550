"""Where peers may be dialled: what was named and what is announced stand beside each other."""

from node.peers.address_book import KNOWN_MAX, NAMED_MAX, AddressBook
from protocol.identity import Ed25519Signer, PeerId

PEER = Ed25519Signer(b"p" * 32).peer_id
HOME = "/dns4/home.example.org/tcp/4001"
NEAR = "/ip4/192.168.1.5/tcp/4001"


def made_up(number: int) -> PeerId:
    return PeerId(number.to_bytes(38, "big"))


def test_what_a_user_named_stays_whatever_the_peer_announces() -> None:
    book = AddressBook()
    book.name(PEER, HOME)
    book.announce(PEER, (NEAR, HOME))
    assert book.of(PEER) == (HOME, NEAR)
    book.announce(PEER, ())
    assert book.of(PEER) == (HOME,)


def test_dead_addresses_of_one_kind_do_not_come_before_all_others() -> None:
    book = AddressBook()
    for number in range(3):
        book.name(PEER, f"/ip4/192.168.1.66/tcp/{number + 1}")
    book.announce(PEER, (NEAR,))
    assert book.of(PEER).index(NEAR) == 1


def test_addresses_of_a_peer_are_bounded_and_the_first_ones_stay() -> None:
    book = AddressBook()
    book.name(PEER, HOME)
    for number in range(2000):
        book.name(PEER, f"/ip4/192.168.1.66/tcp/{number + 1}")
    assert len(book.of(PEER)) == NAMED_MAX
    assert book.of(PEER)[0] == HOME


def test_full_book_forgets_the_announced_before_the_named_and_the_hopeless_first() -> None:
    book = AddressBook()
    book.name(PEER, HOME)
    for number in range(KNOWN_MAX - 1):
        book.announce(made_up(number), (NEAR,))
    delays = {PEER: 600.0, made_up(7): 60.0, made_up(8): 90.0}

    def forgotten(connected: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
        return book.make_room(made_up(KNOWN_MAX), connected, lambda peer: delays.get(peer, 1.0))

    assert book.make_room(PEER, (), lambda _peer: 1.0) == ()
    assert forgotten((made_up(8),)) == (made_up(7),)
    assert forgotten(()) == ()  # There is room now.
    assert len(book) == KNOWN_MAX - 1
    assert PEER in book
