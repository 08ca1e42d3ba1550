"""What a round's view says of its members: who gathers which slice."""

import random

from tests.node.builders import head_of, peers_named, view_of


def gathers(piece, peer, *, attempt, suspects):
    """R3, word by word: the first; the next once all before it are suspected, or by attempts that
    failed for no reason that is known: a death explains one."""
    rank = piece.reducers.index(peer)
    before = piece.reducers[:rank]
    failed = attempt - 1 if suspects else attempt
    return rank <= failed or all(other in suspects for other in before)


def test_slices_are_gathered_by_the_first_and_by_those_who_stand_in_for_it(seed):
    rng = random.Random(seed)
    for _ in range(200):
        peers = peers_named(rng.randrange(1, 7))
        view = view_of(rng.choice(peers), head_of(peers))
        for _ in range(4):  # The same view again: what it has worked out before must not stick.
            view.attempt = rng.randrange(4)
            view.suspect(frozenset(peer for peer in peers if rng.random() < 0.4))
            case = {"attempt": view.attempt, "suspects": view.peers.suspects}
            expected = [
                {peer for peer in peers if gathers(piece, peer, **case)} for piece in view.slices
            ]
            assert [set(found) for found in view.gathering().summing] == expected
            own = [p for p in view.slices if gathers(p, view.me, **case)]
            assert view.own_slices() == own


def test_who_was_not_asked_yet_is_asked_before_those_who_gave_nothing():
    """Though there are more of them each time: by turns, the same two would be asked again."""
    first, second, third, fourth = sources = peers_named(4)
    view = view_of(first, head_of(sources))

    def ask(*peers):
        return view.ask(b"part", 0, list(peers), now_s=0.0, at_once=2)

    assert ask(first, second) == [first, second]
    assert ask(first, second) == [first, second]
    assert ask(first, second, third, fourth) == [third, fourth]
    assert ask(first, second, third, fourth) == [first, second]
    assert ask(second, third) == [third, second], "the first of whom it is longer ago"
