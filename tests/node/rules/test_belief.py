"""Whose words of a slice are believed, who sums it, and who is called when they differ (R8)."""

import random
from dataclasses import replace

import pytest

from protocol import limits
from protocol.events import Push
from protocol.identity import PeerId
from protocol.messages import Agg, Kind, Roster, slice_subject
from protocol.rounds import supply
from protocol.rounds.agreed import agreed_root, call_substitutes
from protocol.rounds.reducers import belief_of, liars, slices
from protocol.rounds.round_view import RoundView
from tests.node import builders
from tests.node.builders import CONFIG, Voice, digest_of, head_of, peers_named, roster_of
from tests.node.rules.test_agreed import hear

SIZES = [
    (1, 0),
    (1, 7),
    (2, 3),
    (3, 0),
    (4, 0),
    (4, 12),
    (7, 0),
    (9, 0),
    (16, 5),
    (22, 42),
    (64, 0),
]


@pytest.mark.parametrize(("voters", "others"), SIZES)
def test_so_many_liars_as_may_be_are_never_enough_and_the_honest_always_are(voters, others, seed):
    luck = random.Random(seed)
    everybody = peers_named(voters + others)
    named = luck.sample(everybody, voters)
    roster = roster_of(named, [peer for peer in everybody if peer not in named])
    belief = belief_of(roster, "open")
    lying = set(luck.sample(named, liars(voters, "open"))) | set(roster.members) - set(named)
    assert not belief.is_enough(lying)
    honest = set(named) - lying
    assert belief.is_enough(honest | set(luck.sample(sorted(lying), min(1, len(lying))))) or (
        len(everybody) == 1
    )


def test_friends_take_the_word_of_one_whether_it_votes_or_not():
    everybody = peers_named(4)
    belief = belief_of(roster_of(everybody[:1], everybody[1:]), "friends")
    assert belief.is_enough(everybody[1:2])
    assert belief.num_needed(everybody[1:]) == 1, "of each cell there is one sum, not two"


@pytest.mark.parametrize(("voters", "others"), SIZES)
def test_first_reducers_are_as_many_as_it_takes_with_an_honest_voter_among_them(voters, others):
    everybody = peers_named(voters + others)
    roster = roster_of(everybody[:voters], everybody[voters:])
    belief = belief_of(roster, "open")
    for piece in slices(roster, b"x" * 32, 100, trust="open"):
        num = belief.num_needed(piece.reducers)
        assert sorted(piece.reducers) == list(roster.members)
        if len(everybody) > 1:
            assert belief.is_enough(piece.reducers[:num])
            assert not belief.is_enough(piece.reducers[: num - 1])
        # One more where the first has no vote: it pushes results, and its word counts for nothing.
        assert num <= max(liars(voters, "open") + 2, 2)


@pytest.mark.parametrize("members", [7, 9, 16, 31])
def test_equal_voters_sum_equally_however_often_a_cell_is_summed(members):
    roster = roster_of(peers_named(members))
    copies = liars(members, "open") + 1
    for basis in (bytes([number]) * 32 for number in range(5)):
        found = summed(roster, 500, basis)
        assert sum(found.values()) == copies * 500
        # By whole slices, of which each sums as many as there are copies.
        assert max(found.values()) <= 1.5 * copies * 500 / members


def summed(roster: Roster, num_cells: int, basis: bytes) -> dict[PeerId, int]:
    belief, found = belief_of(roster, "open"), dict.fromkeys(roster.members, 0)
    for piece in slices(roster, basis, num_cells, trust="open"):
        for peer in piece.reducers[: belief.num_needed(piece.reducers)]:
            found[peer] += piece.stop - piece.first
    return found


@pytest.mark.parametrize(("voters", "others"), [(16, 0), (36, 0), (37, 0), (64, 0), (48, 16)])
def test_words_of_a_round_leave_room_for_all_other_messages(voters, others):
    everybody = peers_named(voters + others)
    roster = roster_of(everybody[:voters], everybody[voters:])
    # Shares differ, so few cuts fall together.
    seats = tuple(replace(seat, rate=80 + 5 * (n % 2)) for n, seat in enumerate(roster.seats))
    rated, belief = replace(roster, seats=seats), belief_of(roster, "open")
    pieces = slices(rated, b"x" * 32, 4096, trust="open")
    words = sum(belief.num_needed(piece.reducers) for piece in pieces)
    assert 2 * words + 4 * 4 * len(everybody) <= limits.MESSAGES_PER_ROUND_MAX


def test_slow_line_among_many_copies_sums_little():
    roster = roster_of(peers_named(9))
    slow = roster.members[3]
    seats = tuple(replace(seat, rate=60 if seat.peer == slow else 80) for seat in roster.seats)
    for basis in (bytes([number]) * 32 for number in range(8)):
        found = summed(replace(roster, seats=seats), 900, basis)
        assert found[slow] <= 100 < min(share for peer, share in found.items() if peer != slow)


SEVEN = peers_named(7)
HEAD = head_of(SEVEN)
VOICES = {peer: Voice(peer, HEAD.value) for peer in SEVEN}
COMMITS = [VOICES[peer].commit() for peer in SEVEN]
RIGHT, WRONG = b"r" * 32, b"w" * 32


def view_of(me: PeerId, *heard, head=HEAD, **fields) -> RoundView:
    """What that peer knows, in a round whose LIST is certified."""
    voices = {peer: Voice(peer, head.value) for peer in head.value.roster.members}
    certified_s = {digest_of(head.value, commits_of(voices)): 5.0}
    view = builders.view_of(me, head, trust="open", opened_s=0.0, certified_s=certified_s, **fields)
    commits = commits_of(voices)
    votes = [voices[peer].vote(commits) for peer in head.value.roster.voters]
    hear(view, *commits, voices[view.closer(0)].propose(commits), *votes, *heard)
    return view


def commits_of(voices: dict[PeerId, Voice]):
    return [voices[peer].commit() for peer in sorted(voices)]


def agg(view: RoundView, peer: PeerId, root: bytes):
    digest, piece = digest_in(view), view.slices[0]
    body = Agg(list_digest=digest, first=piece.first, stop=piece.stop, root=root)
    subject = slice_subject(digest, piece.first, piece.stop)
    return Voice(peer, view.seals.head).say(Kind.AGG, body, subject=subject)


def digest_in(view: RoundView) -> bytes:
    return view.ballots.certified_lists()[0][0]


def believed(view: RoundView) -> bytes | None:
    return agreed_root(view, digest_in(view), view.slices[0])


def test_two_liars_who_say_the_same_are_not_believed_and_three_voters_are():
    view = view_of(SEVEN[0])
    one, two, three, four, five, *_ = [p for p in view.slices[0].reducers if p != SEVEN[0]]
    hear(view, agg(view, one, WRONG), agg(view, two, WRONG))
    assert believed(view) is None
    hear(view, agg(view, three, RIGHT), agg(view, four, RIGHT))
    assert believed(view) is None
    hear(view, agg(view, five, RIGHT))
    assert believed(view) == RIGHT


def test_without_the_defence_two_liars_who_say_the_same_are_believed():
    view = view_of(SEVEN[0], without=frozenset({"words"}))
    one, two, *_ = [p for p in view.slices[0].reducers if p != SEVEN[0]]
    hear(view, agg(view, one, WRONG), agg(view, two, WRONG))
    assert believed(view) == WRONG


def test_members_without_a_vote_are_believed_by_nobody_and_call_nobody():
    everybody = peers_named(12)
    view = view_of(everybody[0], head=head_of(everybody[:4], everybody[4:]))
    others = everybody[4:]
    before = view.gathering().summing[0]
    hear(view, *(agg(view, peer, WRONG if n % 2 else RIGHT) for n, peer in enumerate(others)))
    assert believed(view) is None
    call_substitutes(view, now_s=5.0, deadline_s=1.0)
    assert view.gathering().summing[0] == before
    hear(view, *(agg(view, peer, RIGHT) for peer in everybody[2:4]))
    assert believed(view) == RIGHT


def test_founder_who_votes_alone_is_believed_once_another_says_the_same():
    everybody = peers_named(5)
    founder = everybody[2]
    view = view_of(everybody[0], head=head_of([founder], [p for p in everybody if p != founder]))
    hear(view, agg(view, everybody[3], WRONG), agg(view, everybody[4], WRONG))
    assert believed(view) is None
    hear(view, agg(view, founder, RIGHT))
    assert believed(view) is None
    hear(view, agg(view, everybody[1], RIGHT))
    assert believed(view) == RIGHT
    assert all(
        founder in piece.reducers[: view.roles.belief.num_needed(piece.reducers)]
        for piece in view.slices
    )


def test_so_many_are_called_as_liars_may_be_wrong_and_no_more():
    view = view_of(SEVEN[0])
    ranks, gathering = view.slices[0].reducers, view.gathering()
    assert gathering.summing[0] == ranks[:3]
    hear(view, agg(view, ranks[0], WRONG), agg(view, ranks[1], WRONG))
    call_substitutes(view, now_s=5.0, deadline_s=1.0)
    assert view.gathering().summing[0] == ranks[:3]
    hear(view, agg(view, ranks[2], RIGHT))
    call_substitutes(view, now_s=5.0, deadline_s=1.0)
    assert view.gathering().summing[0] == ranks[:5]
    hear(view, agg(view, ranks[3], b"x" * 32), agg(view, ranks[4], b"y" * 32))
    call_substitutes(view, now_s=5.0, deadline_s=1.0)
    assert view.gathering().summing[0] == ranks[:5], "two of seven may lie"


def test_after_a_deadline_there_is_one_for_each_who_said_nothing_but_no_more_than_may_lie():
    view = view_of(SEVEN[0])
    ranks = view.slices[0].reducers
    call_substitutes(view, now_s=5.9, deadline_s=1.0)
    assert view.gathering().summing[0] == ranks[:3]
    hear(view, agg(view, ranks[1], RIGHT), agg(view, ranks[2], RIGHT))
    call_substitutes(view, now_s=6.0, deadline_s=1.0)
    assert view.gathering().summing[0] == ranks[:4]
    silent = view_of(SEVEN[0])
    call_substitutes(silent, now_s=6.0, deadline_s=1.0)
    assert silent.gathering().summing[0] == ranks[:5]


def test_parts_go_to_all_who_sum_and_to_two_others_where_the_sender_sums():
    ranks = view_of(SEVEN[0]).slices[0].reducers
    for me in ranks:
        mine = VOICES[me].commit().message.digest
        view = view_of(me, commit=mine, parts={mine: set(range(CONFIG.num_cells(1)))})
        first = view.slices[0].first
        pushes = [p for p in supply.push_parts(view) if isinstance(p, Push) and first in p.cells]
        assert {p.to for p in pushes} == set(ranks[:3]) - {me}
