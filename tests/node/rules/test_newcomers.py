"""Members without a vote, and those who said no COMMIT: the others wait for neither of them."""

from dataclasses import replace

import pytest

from protocol.events import Push
from protocol.messages import SealCertificate
from protocol.rounds import supply
from protocol.rounds.proposal import holds_all_expected
from tests.node import builders
from tests.node.builders import CONFIG, Voice, head_of, peers_named
from tests.node.rules.test_agreed import hear
from tests.node.rules.test_belief import view_of

PEERS = peers_named(6)


def wherever_newcomers_rank() -> SealCertificate:
    """A seal whose hash ranks a newcomer among the first three of some slice."""
    start = head_of(PEERS[:4], PEERS[4:])
    for mark in range(64):
        head = replace(start, value=replace(start.value, before=bytes([mark]) * 32))
        slices = builders.view_of(PEERS[0], head, trust="open").slices
        if any(set(PEERS[4:]) & set(piece.reducers[:3]) for piece in slices):
            return head
    raise AssertionError("no hash ranks a newcomer first")


HEAD = wherever_newcomers_rank()


def absent_head() -> SealCertificate:
    """As HEAD, and too few have seen the last COMMIT of its first voter."""
    value = HEAD.value
    seats = tuple(
        replace(seat, absent=1) if seat.peer == PEERS[0] else seat for seat in value.roster.seats
    )
    return replace(HEAD, value=replace(value, roster=replace(value.roster, seats=seats)))


@pytest.mark.parametrize("sender", PEERS)
def test_parts_are_held_by_as_many_voters_as_it_takes_wherever_newcomers_rank(sender):
    """Their word that they hold something counts for nothing, however honest they are."""
    mine = Voice(sender, HEAD.value).commit().message.digest
    own_parts = {mine: set(range(CONFIG.num_cells(1)))}
    view = view_of(sender, head=HEAD, commit=mine, parts=own_parts)
    assert any(set(PEERS[4:]) & set(piece.reducers[:3]) for piece in view.slices)
    pushes = [action for action in supply.push_parts(view) if isinstance(action, Push)]
    holding = {peer: view_of(peer, head=HEAD).gathering() for peer in PEERS}
    for piece in view.slices:
        holders = {peer for peer, gathering in holding.items() if gathering.holds(piece, sender)}
        others = holders & view.roster.voter_set - {sender}
        assert len(others) >= view.roles.belief.holders
        assert others <= {push.to for push in pushes if piece.first in push.cells}
        for peer in others:
            assert piece in holding[peer].kept
            assert piece in holding[peer].first_kept
            assert holding[peer].is_soon(piece)


@pytest.mark.parametrize("trust", ["open", "friends"])
def test_nobody_waits_in_an_open_run_for_who_said_no_commit_until_it_does(trust):
    head = absent_head()
    slices = builders.view_of(PEERS[1], head, trust=trust).slices
    me = next(piece.reducers[0] for piece in slices if piece.reducers[0] != PEERS[0])
    view = builders.view_of(me, head, trust=trust, opened_s=0.0)
    others = [Voice(peer, head.value).commit() for peer in PEERS[1:]]
    hear(view, *others)
    view.suspect(frozenset())
    assert (PEERS[0] in view.awaited) is (trust == "friends")
    for entry in others:
        view.cells.parts[entry.message.digest] = set(range(view.cells.num_cells))
    assert holds_all_expected(view) is (trust == "open")
    hear(view, Voice(PEERS[0], head.value).commit())
    assert PEERS[0] in view.awaited
    assert not holds_all_expected(view)
