"""Signals: what is odd is told, what honest peers do is not."""

import math
import random
from dataclasses import replace

import pytest

from protocol import limits
from protocol.identity import PeerId
from protocol.messages import Commit
from protocol.rounds.signals import LISTED_MIN, ROUNDS_KEPT, Signals, copies, odd_lengths
from tests.node.builders import commit_body, head_of, peers_named

PEERS = peers_named(16)
HEAD = head_of(PEERS[:4]).value


def contribution(peer: PeerId, length: float, *, steps: int = 100, mark: str = "") -> Commit:
    body = commit_body(HEAD, mark or peer.hex(), steps=steps)
    return replace(body, cell_norms=(length / math.sqrt(3),) * 3)


def honest(luck: random.Random, spread: float = 0.045) -> list[tuple[PeerId, Commit]]:
    """Lengths as far apart as those of honest peers were measured."""
    return [(peer, contribution(peer, luck.lognormvariate(0.0, spread))) for peer in PEERS]


def test_one_that_is_far_longer_or_shorter_is_odd_and_nobody_else():
    for length in (1000.0, 2.0, 0.5, 0.0):
        listed = [(p, contribution(p, length if p == PEERS[3] else 1.0)) for p in PEERS]
        assert odd_lengths(listed) == {PEERS[3]}


@pytest.mark.parametrize(
    ("steps", "length", "is_odd"),
    [(25, 0.25, False), (25, 0.5, False), (25, 0.35, False), (25, 1.0, True), (25, 0.1, True)],
)
def test_fewer_steps_are_expected_to_be_shorter_and_scaled_up_they_are_odd(steps, length, is_odd):
    listed = [(p, contribution(p, 1.0)) for p in PEERS[1:]]
    listed.append((PEERS[0], contribution(PEERS[0], length, steps=steps)))
    assert (PEERS[0] in odd_lengths(listed)) is is_odd


def test_of_few_there_is_no_telling():
    listed = [(p, contribution(p, 1000.0 if p == PEERS[0] else 1.0)) for p in PEERS]
    assert not odd_lengths(listed[: LISTED_MIN - 1])
    assert odd_lengths(listed[:LISTED_MIN]) == {PEERS[0]}


def test_honest_lengths_lead_to_no_suspicion(seed):
    luck, told = random.Random(seed), 0
    for spread in (0.0, 0.045, 0.11, 0.4):
        signals = Signals()
        for index in range(1, 201):
            signals.saw(index, honest(luck, spread))
            told += sum(bool(found.score) for p in PEERS if (found := signals.of(p)) is not None)
    # Of 12,800: three in ten beyond three spreads is rare, and would ban nobody.
    assert told < 64


def test_copied_bytes_are_told_of_both():
    listed = [(p, contribution(p, 1.0, mark="same" if p in PEERS[:2] else "")) for p in PEERS]
    assert copies(listed) == set(PEERS[:2])
    signals = Signals()
    signals.saw(1, listed)
    found = signals.of(PEERS[0])
    assert found is not None
    assert found.score > 0.5
    assert found.reasons == ("the same bytes as somebody else in 1 of 1 rounds",)


def test_twice_is_chance_and_three_times_in_ten_is_told_until_it_is_long_ago():
    signals = Signals()
    for index in range(1, 4):
        listed = [(p, contribution(p, 50.0 if p == PEERS[0] else 1.0)) for p in PEERS]
        signals.saw(index, listed)
        found = signals.of(PEERS[0])
        assert found is not None
        assert bool(found.reasons) is (index == 3)
    for index in range(4, 4 + ROUNDS_KEPT):
        signals.saw(index, [(p, contribution(p, 1.0)) for p in PEERS])
    assert (found := signals.of(PEERS[0])) is not None
    assert (found.score, found.reasons) == (0.0, ())


def test_round_that_was_seen_counts_once_and_strangers_are_unknown():
    signals = Signals()
    for _ in range(5):
        signals.saw(7, [(p, contribution(p, 50.0 if p == PEERS[0] else 1.0)) for p in PEERS])
    assert (found := signals.of(PEERS[0])) is not None
    assert found.score == 0.0
    assert signals.of(PeerId(bytes(32))) is None


def test_made_up_names_take_no_memory():
    signals = Signals()
    for index in range(1, 30):
        names = [PeerId(index.to_bytes(2, "big") + n.to_bytes(30, "big")) for n in range(60)]
        signals.saw(index, [(p, contribution(p, 1.0)) for p in names])
    assert len(signals._seen) <= limits.PARTIAL_VIEW_MAX
