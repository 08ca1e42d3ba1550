"""E19: MoDeST's order and view are equal on all who know the same, however they came to know it."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from protocol.rounds.seating import order
from sim.methods.modest import ACTIVE_ROUNDS, Entry, View, sample

PEERS = [bytes([number]) * 4 for number in range(16)]
peers_of = st.sets(st.sampled_from(PEERS))
seeds = st.binary(max_size=8)
entries = st.builds(Entry, st.integers(-1, 200), st.integers(0, 5), st.booleans())
views = st.builds(View, st.dictionaries(st.sampled_from(PEERS[:5]), entries))


@given(seeds, st.lists(st.sampled_from(PEERS)), st.randoms())
def test_order_is_that_of_the_set_alone(seed: bytes, peers: list[bytes], chance) -> None:
    shuffled = list(peers)
    chance.shuffle(shuffled)
    found = order(seed, peers)
    assert order(seed, shuffled + peers) == found
    assert sorted(found) == sorted(set(peers))


@given(seeds, peers_of, st.sampled_from(PEERS))
def test_whoever_comes_or_goes_leaves_the_others_in_their_order(
    seed: bytes, peers: set[bytes], other: bytes
) -> None:
    without = [peer for peer in order(seed, peers | {other}) if peer != other]
    assert without == order(seed, peers - {other})


@given(seeds, peers_of, peers_of, st.integers(0, 16))
def test_sample_is_the_first_of_the_order_that_answer(
    seed: bytes, peers: set[bytes], silent: set[bytes], size: int
) -> None:
    found = sample(seed, peers, size, lambda peer: peer not in silent)
    answering = [peer for peer in order(seed, peers) if peer not in silent]
    assert found == answering[:size]
    assert set(sample(seed, peers, 16)) == peers, "all of them where there are seats for all"


def test_each_round_draws_others_and_all_alike() -> None:
    drawn = Counter(peer for index in range(2000) for peer in sample(b"%d" % index, PEERS, 4))
    # 500 each; five times the standard deviation of so many draws.
    assert all(abs(drawn[peer] - 500) < 100 for peer in PEERS)
    firsts = [tuple(sample(b"%d" % index, PEERS, 4)) for index in range(50)]
    assert len(set(firsts)) == 50


def test_order_is_the_same_on_every_machine() -> None:
    """Golden: Python's own hash differs from process to process."""
    assert [peer[0] for peer in order(b"round 7", PEERS)][:6] == GOLDEN


GOLDEN = [2, 1, 4, 8, 14, 12]


@given(views, views, views)
def test_views_merge_to_the_same_whatever_the_order(a: View, b: View, c: View) -> None:
    assert a.merged(b) == b.merged(a)
    assert a.merged(b).merged(c) == a.merged(b.merged(c))
    assert a.merged(a) == a == a.merged(View())
    assert a.merged(b).merged(b) == a.merged(b)


@given(views, views, st.integers(0, 200))
def test_nobody_s_round_or_word_goes_back(a: View, b: View, index: int) -> None:
    both = a.merged(b)
    for peer, entry in a.entries.items():
        assert both.entries[peer].last_active >= entry.last_active
        assert both.entries[peer].words >= entry.words
    later = a.active(PEERS[:2], index)
    assert all(later.entries[peer].last_active >= index for peer in PEERS[:2])


@given(views, st.integers(0, 200))
def test_who_left_is_no_candidate_until_it_joins_again(view: View, index: int) -> None:
    peer = PEERS[0]
    joined = view.said(peer, is_member=True, round_index=index)
    assert peer in joined.candidates(index)
    left = joined.said(peer, is_member=False, round_index=index)
    assert peer not in left.candidates(index)
    assert peer not in left.merged(joined).candidates(index), "old news does not bring it back"
    assert peer in left.said(peer, is_member=True, round_index=index).candidates(index)


def test_who_is_silent_too_long_is_no_candidate_until_heard_of() -> None:
    view = View().active(PEERS, 10)
    assert view.candidates(10 + ACTIVE_ROUNDS) == sorted(PEERS)
    later = view.active(PEERS[:3], 20)
    assert later.candidates(11 + ACTIVE_ROUNDS) == PEERS[:3]
    assert PEERS[9] in later.active([PEERS[9]], 60).candidates(61)
