"""Who is to hold parts: of open runs those whose word that they do counts."""

from protocol.rounds.reducers import Gathering, Slice, belief_of
from tests.node.builders import peers_named, roster_of

PEERS = peers_named(8)
VOTERS, OTHERS = PEERS[:4], PEERS[4:]
ROSTER = roster_of(VOTERS, OTHERS)
BELIEF = belief_of(ROSTER, "open")
PIECE = Slice(0, 3, (OTHERS[0], VOTERS[0], VOTERS[1], OTHERS[1], VOTERS[2], VOTERS[3], *OTHERS[2:]))
"""A member without a vote sums it first, beside the voters that make its sum believed."""


def at(me, called=0):
    gathering = Gathering((PIECE,), me, BELIEF)
    if called:
        gathering.at(0, frozenset())
        gathering.call_to_hold(PIECE, called)
    return gathering.at(0, frozenset())


def test_members_without_a_vote_are_not_counted_among_who_is_to_hold_a_part():
    for sender in PEERS:
        targets = at(PEERS[0]).targets(PIECE, sender)
        counting = [peer for peer in targets if peer in VOTERS and peer != sender]
        assert len(counting) >= BELIEF.holders, "or it is complete with nobody's help"
    assert set(at(PEERS[0]).keeping[0]) == {OTHERS[0], *VOTERS[:3]}


def test_called_are_the_next_voters_and_they_are_not_asked_to_sum():
    assert at(VOTERS[3]).kept == []
    gathering = at(VOTERS[3], called=1)
    assert gathering.kept == [PIECE]
    assert gathering.own == []
    assert gathering.first_kept == []
    assert gathering.holds(PIECE, VOTERS[0])
    assert VOTERS[3] not in gathering.owing_targets(PIECE, VOTERS[0])


def test_among_friends_whoever_is_called_sums():
    gathering = Gathering((PIECE,), VOTERS[0], belief_of(ROSTER, "friends"))
    assert gathering.at(0, frozenset()).own == []
    gathering.call_to_hold(PIECE, 1)
    assert gathering.at(0, frozenset()).own == [PIECE]


def test_who_moves_up_for_a_suspect_holds_parts_and_owes_nothing_for_them():
    gathering = at(VOTERS[2]).at(0, frozenset({VOTERS[0]}))
    sender = VOTERS[1]
    assert VOTERS[3] in gathering.first_keepers
    assert VOTERS[3] in gathering.targets(PIECE, sender)
    assert VOTERS[3] not in gathering.owing_keepers()
    assert VOTERS[3] not in gathering.owing_targets(PIECE, sender)
    for dead in ([], VOTERS[:1], [VOTERS[1], OTHERS[0]], VOTERS[:2]):
        suspects = frozenset(dead)
        gathering.at(1, suspects)
        assert gathering.owing_keepers() - suspects <= gathering.first_keepers
        owing = set(gathering.owing_targets(PIECE, sender)) - suspects
        assert owing <= set(gathering.targets(PIECE, sender))
