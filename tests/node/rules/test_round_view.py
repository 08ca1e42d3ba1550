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
