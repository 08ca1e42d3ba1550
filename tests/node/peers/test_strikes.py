"""Strikes: how many lead to a pause, how long it is, and what is forgotten."""

import random

import pytest

from protocol.core.budgets import (
    FORGOTTEN_S,
    GOOD_S,
    PAUSE_S,
    PAUSE_S_MAX,
    STRIKES_MAX,
    STRUCK_MAX,
    Strikes,
)
from protocol.identity import PeerId


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32, "big"))


LIAR, OTHER = peer(1), peer(2)


def struck(strikes: Strikes, times: int, *, who: PeerId = LIAR, now_s: float = 0.0) -> list[float]:
    return [strikes.strike(who, now_s) for _ in range(times)]


def test_so_many_strikes_at_once_lead_to_a_pause_and_one_less_does_not() -> None:
    strikes = Strikes()
    assert struck(strikes, STRIKES_MAX - 1) == [0.0] * (STRIKES_MAX - 1)
    assert not strikes.is_paused(LIAR, 0.0)
    assert struck(strikes, 1) == [PAUSE_S]
    assert strikes.is_paused(LIAR, PAUSE_S - 0.01)
    assert not strikes.is_paused(LIAR, PAUSE_S)
    assert not strikes.is_paused(OTHER, 0.0)


@pytest.mark.parametrize(
    ("every_s", "is_paused"), [(FORGOTTEN_S * 0.5, True), (FORGOTTEN_S * 1.01, False)]
)
def test_strikes_that_are_far_between_are_forgotten(every_s: float, is_paused: bool) -> None:
    strikes = Strikes()
    pauses = [strikes.strike(LIAR, number * every_s) for number in range(1000)]
    assert any(pauses) == is_paused


def test_each_pause_is_twice_as_long_as_the_one_before_up_to_a_bound() -> None:
    strikes, now_s, pauses = Strikes(), 0.0, []
    for _ in range(12):
        pauses.append(struck(strikes, STRIKES_MAX, now_s=now_s)[-1])
        now_s += pauses[-1]
    assert pauses[:3] == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert pauses[-3:] == [PAUSE_S_MAX] * 3


def test_what_comes_in_a_pause_neither_lengthens_it_nor_counts_later() -> None:
    strikes = Strikes()
    struck(strikes, STRIKES_MAX)
    assert struck(strikes, 1000, now_s=PAUSE_S / 2) == [0.0] * 1000
    assert not strikes.is_paused(LIAR, PAUSE_S)
    assert struck(strikes, STRIKES_MAX - 1, now_s=PAUSE_S) == [0.0] * (STRIKES_MAX - 1)


def test_a_long_time_without_strikes_makes_the_next_pause_a_first_one() -> None:
    strikes = Strikes()
    struck(strikes, STRIKES_MAX)
    assert struck(strikes, STRIKES_MAX, now_s=PAUSE_S + GOOD_S)[-1] == 2 * PAUSE_S
    end_s = PAUSE_S + GOOD_S + 2 * PAUSE_S
    assert struck(strikes, STRIKES_MAX, now_s=end_s + GOOD_S + 1.0)[-1] == PAUSE_S


def test_made_up_names_take_no_memory_and_do_not_end_a_pause() -> None:
    strikes = Strikes()
    struck(strikes, STRIKES_MAX)
    for number in range(10 * STRUCK_MAX):
        strikes.strike(peer(10 + number), 1.0)
    assert strikes.is_paused(LIAR, 1.0)
    assert len(strikes._records) <= STRUCK_MAX


def test_names_that_are_all_paused_take_no_more_memory_either() -> None:
    strikes = Strikes()
    for number in range(2 * STRUCK_MAX):
        struck(strikes, STRIKES_MAX, who=peer(number))
    assert len(strikes._records) == STRUCK_MAX
    assert strikes.is_paused(peer(2 * STRUCK_MAX - 1), 0.0)


def test_strikes_of_one_peer_change_nothing_for_another(seed: int) -> None:
    rng = random.Random(f"{seed}/strikes")
    times = sorted(rng.uniform(0.0, 300.0) for _ in range(400))
    alone, among = Strikes(), Strikes()
    for now_s in times:
        among.strike(OTHER, now_s)
        is_liars = rng.random() < 0.5
        if is_liars:
            assert alone.strike(LIAR, now_s) == among.strike(LIAR, now_s)
        assert alone.is_paused(LIAR, now_s) == among.is_paused(LIAR, now_s)
