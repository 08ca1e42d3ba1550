"""Where peers may be dialled: what was named and what is announced stand beside each other."""

from node.peers.dialling import NAMED_MAX, AddressBook, Merit
from node.peers.entry_exchange import KNOWN_MAX
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


def full_book() -> AddressBook:
    book = AddressBook()
    book.name(PEER, HOME)
    for number in range(KNOWN_MAX - 1):
        book.announce(made_up(number), (NEAR,))
    return book


def test_full_book_forgets_whoever_is_worth_least_and_was_out_of_reach_most_often() -> None:
    book = full_book()
    merits = {PEER: (0, 600.0), made_up(7): (1, 60.0), made_up(8): (1, 90.0)}

    def merit(peer: PeerId) -> Merit:
        return merits.get(peer, (1, 1.0))

    newcomer = made_up(KNOWN_MAX)
    assert book.make_room(PEER, (0, 0.0), (), merit)  # It is in there.
    assert book.make_room(newcomer, (1, 0.0), (made_up(8),), merit)
    assert made_up(7) not in book
    assert made_up(8) in book
    assert PEER in book
    assert len(book) == KNOWN_MAX - 1


def test_nobody_is_forgotten_for_a_newcomer_that_is_worth_no_more() -> None:
    book = full_book()
    merit: Merit = (1, 0.0)
    assert not book.make_room(made_up(KNOWN_MAX), merit, (), lambda _: merit)
    assert not book.make_room(made_up(KNOWN_MAX), (1, 60.0), (), lambda _: merit)
    assert len(book) == KNOWN_MAX
    assert book.make_room(made_up(KNOWN_MAX), (0, 0.0), (), lambda _: merit)


def test_what_others_say_is_not_what_the_user_chose() -> None:
    book = AddressBook()
    book.name(PEER, NEAR, is_chosen=False)
    assert not book.is_chosen(PEER)
    book.name(PEER, HOME)
    assert book.chosen(PEER) == {HOME}
    assert book.of(PEER) == (NEAR, HOME)
