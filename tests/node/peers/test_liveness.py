"""R3: who is silent, measured against one's own lateness."""

import pytest

from protocol.core.liveness import Liveness
from tests.node.builders import peers_named

ME, A, B = peers_named(3)
PEERS = (ME, A, B)


def liveness() -> Liveness:
    """Linked with A, B never heard of; a beat of half a second, suspicion after two seconds."""
    found = Liveness(ME, heartbeat_s=0.5, suspect_s=2.0, now_s=0.0)
    found.link_up(A, 0.0)
    return found


def run(machine: Liveness, start_s: float, stop_s: float, *, heard=()) -> list[float]:
    """Tick as often as asked; the times at which the node finds that it has slept."""
    slept = []
    steps = round((stop_s - start_s) / machine.tick_interval_s)
    for step in range(1, steps + 1):
        now_s = start_s + step * machine.tick_interval_s
        if machine.tick(now_s):
            slept.append(now_s)
        for peer in heard:
            machine.heard(peer, now_s)
    return slept


def test_linked_peer_is_suspected_after_its_silence_and_not_before():
    machine = liveness()
    run(machine, 0.0, 2.0)
    assert machine.suspects(PEERS, 2.0) == frozenset()
    run(machine, 2.0, 2.25)
    assert machine.suspects(PEERS, 2.25) == {A}


def test_node_never_suspects_itself():
    machine = liveness()
    run(machine, 0.0, 100.0)
    assert ME not in machine.suspects(PEERS, 100.0)


def test_sign_of_life_ends_a_suspicion_at_once():
    machine = liveness()
    run(machine, 0.0, 3.0)
    assert machine.suspects(PEERS, 3.0) == {A}
    machine.heard(A, 3.01)
    assert machine.suspects(PEERS, 3.01) == frozenset()


def test_broken_link_is_forgiven_for_two_beats():
    machine = liveness()
    run(machine, 0.0, 1.0, heard=(A,))
    machine.link_down(A, 1.0)
    run(machine, 1.0, 2.0)
    assert machine.suspects(PEERS, 2.0) == frozenset()
    run(machine, 2.0, 2.25)
    assert machine.suspects(PEERS, 2.25) == {A}


def test_link_that_comes_back_ends_the_suspicion():
    machine = liveness()
    machine.link_down(A, 0.0)
    run(machine, 0.0, 2.0)
    assert machine.suspects(PEERS, 2.0) == {A}
    machine.link_up(A, 2.0)
    assert machine.suspects(PEERS, 2.0) == frozenset()


def test_peer_without_a_link_of_which_others_bring_messages_is_alive():
    machine = liveness()
    machine.link_down(A, 0.0)
    run(machine, 0.0, 5.0, heard=(A,))
    assert A not in machine.suspects(PEERS, 5.0)


def test_peer_never_linked_is_given_three_times_as_long():
    machine = liveness()
    machine.suspects(PEERS, 0.0)
    run(machine, 0.0, 6.0, heard=(A,))
    assert machine.suspects(PEERS, 6.0) == frozenset()
    run(machine, 6.0, 6.25, heard=(A,))
    assert machine.suspects(PEERS, 6.25) == {B}


def test_new_member_is_looked_at_without_waiting_for_the_next_tick():
    machine = liveness()
    machine.suspects((ME, A), 0.0)
    run(machine, 0.0, 3.0)
    assert machine.suspects((ME, A), 3.0) == {A}
    assert machine.suspects((ME,), 3.0) == frozenset()


def test_member_that_comes_back_is_not_judged_by_a_link_of_its_last_time():
    machine = liveness()
    machine.suspects(PEERS, 0.0)
    machine.link_down(A, 0.0)
    run(machine, 0.0, 30.0)
    assert machine.suspects((ME, B), 30.0) == {B}
    run(machine, 30.0, 60.0)
    assert A not in machine.suspects(PEERS, 60.0)
    run(machine, 60.0, 66.25)
    assert A in machine.suspects(PEERS, 66.25)


def test_own_lateness_is_granted_to_the_others():
    machine = liveness()
    run(machine, 0.0, 1.0)
    machine.tick(2.5)  # A second and more too late, which is no sleep yet.
    assert machine.lag_s == pytest.approx(1.375)
    machine.tick(2.6)
    assert machine.suspects(PEERS, 2.6) == frozenset()


def test_lateness_long_past_excuses_nobody():
    machine = liveness()
    machine.tick(2.0)
    run(machine, 2.0, 30.0, heard=(A,))
    run(machine, 30.0, 32.25)
    assert machine.suspects(PEERS, 32.25) == {A}


def test_node_that_slept_says_so_once_and_forgives_every_silence():
    machine = liveness()
    machine.link_down(A, 0.0)
    run(machine, 0.0, 0.5)
    assert machine.tick(10.0)
    assert not machine.tick(10.1)
    assert machine.suspects(PEERS, 10.1) == frozenset()
    run(machine, 10.0, 11.5)
    assert machine.suspects(PEERS, 11.5) == {A}


def test_short_lateness_is_no_sleep():
    machine = liveness()
    assert not machine.tick(2.1)
    assert run(machine, 2.1, 20.0) == []


def test_heartbeat_is_due_once_per_beat():
    machine = liveness()
    due = [now_s for step in range(41) if machine.beat_due(now_s := step * 0.05)]
    assert len(due) == 5


def test_linked_peers_are_listed_in_ascending_order():
    machine = liveness()
    machine.link_up(B, 0.0)
    assert machine.linked == tuple(sorted((A, B)))
    machine.link_down(A, 0.0)
    machine.link_down(A, 0.0)
    assert machine.linked == (B,)


def test_strangers_that_came_and_went_leave_nothing_behind():
    machine = liveness()
    run(machine, 0.0, 1.0, heard=(A,))
    strangers = set(peers_named(40)) - set(PEERS)
    for stranger in sorted(strangers):
        machine.link_up(stranger, 1.0)
        machine.heard(stranger, 1.0)
        machine.link_down(stranger, 1.0)
    assert machine.suspects(PEERS, 1.3) == frozenset()
    assert machine.silence_s(A, 1.3) is not None
    assert not [peer for peer in strangers if machine.silence_s(peer, 1.3) is not None]


# What others hear


BEAT_S = 0.5


def vouch_every_beat(machine: Liveness, start_s: float, stop_s: float, *, silent=()) -> None:
    """A beats: it is linked with B. Nobody has signed anything."""
    for step in range(round((stop_s - start_s) / machine.tick_interval_s)):
        now_s = start_s + step * machine.tick_interval_s
        machine.tick(now_s)
        machine.spoke(A, now_s)
        if step % 4 == 0:
            machine.vouched((ME, B), silent, now_s)
        machine.suspects(PEERS, now_s)


def test_peer_never_linked_is_there_while_others_hear_it_though_nothing_is_signed():
    machine = liveness()
    machine.suspects(PEERS, 0.0)
    vouch_every_beat(machine, 0.0, 60.0)
    assert machine.suspects(PEERS, 60.0) == frozenset()


def test_peer_whose_link_broke_is_there_while_others_hear_it():
    machine = liveness()
    machine.link_up(B, 0.0)
    machine.suspects(PEERS, 0.0)
    machine.link_down(B, 1.0)
    vouch_every_beat(machine, 1.0, 30.0)
    assert machine.suspects(PEERS, 30.0) == frozenset()


def test_peer_that_died_is_suspected_no_later_for_the_word_of_others():
    late_s = 0.1  # A heartbeat that was on its way when B died.

    def suspected_s(*, is_told: bool) -> float:
        machine = liveness()
        machine.link_up(B, 0.0)
        machine.suspects(PEERS, 0.0)
        run(machine, 0.0, 1.0, heard=(A, B))
        machine.link_down(B, 1.0)
        now_s = 1.0
        while B not in machine.suspects(PEERS, now_s):
            now_s += 0.05
            machine.tick(now_s)
            machine.spoke(A, now_s)
            if is_told and now_s < 1.0 + late_s:
                machine.vouched((ME, B), (), now_s)
        return now_s

    assert suspected_s(is_told=True) <= suspected_s(is_told=False) + late_s + BEAT_S / 4


def test_word_of_others_ends_with_their_own_hearing():
    machine = liveness()
    machine.suspects(PEERS, 0.0)
    vouch_every_beat(machine, 0.0, 20.0)
    vouch_every_beat(machine, 20.0, 22.0, silent=(B,))
    assert machine.suspects(PEERS, 22.0) == {B}


def test_linked_peer_is_heard_or_not_whatever_others_say():
    machine = liveness()
    machine.link_up(B, 0.0)
    machine.suspects(PEERS, 0.0)
    vouch_every_beat(machine, 0.0, 2.5)
    assert machine.suspects(PEERS, 2.5) == {B}


def test_node_stands_surety_for_whom_it_hears_itself_and_only_lately():
    machine = liveness()
    machine.link_up(B, 0.0)
    assert machine.silent_links(0.0) == ()
    run(machine, 0.0, 2.0, heard=(B,))  # Through others: that is hearsay.
    machine.spoke(A, 2.0)
    assert machine.silent_links(2.0) == (B,)
    # Long before it would be suspected.
    late_s = 2.0 + 2.5 * BEAT_S + 0.01
    assert machine.silent_links(late_s) == tuple(sorted((A, B)))
    assert machine.suspects((ME, A), late_s) == frozenset()


def test_node_that_slept_knows_nothing_of_what_others_heard_meanwhile():
    machine = liveness()
    machine.suspects(PEERS, 0.0)
    vouch_every_beat(machine, 0.0, 5.0)
    assert machine.tick(60.0)
    assert machine.suspects(PEERS, 60.0) == frozenset()


def test_peer_that_is_gone_is_suspected_at_once():
    machine = liveness()
    run(machine, 0.0, 1.0, heard=(A,))
    machine.link_down(A, 1.0)
    assert machine.suspects(PEERS, 1.05) == frozenset()
    machine.link_down(A, 1.1, is_gone=True)
    assert machine.suspects(PEERS, 1.1) == {A}
    machine.link_up(A, 1.3)
    assert machine.suspects(PEERS, 1.3) == frozenset()
    machine.link_down(A, 1.4)
    assert machine.suspects(PEERS, 1.45) == frozenset(), "another break, of which nothing is known"


def test_late_word_of_the_dead_is_none_of_life_and_a_later_one_is():
    machine = liveness()
    run(machine, 0.0, 1.0, heard=(A,))
    machine.link_down(A, 1.0)
    machine.link_down(A, 1.1, is_gone=True)
    machine.heard(A, 1.3)
    assert machine.suspects(PEERS, 1.4) == {A}, "it was under way when A ended"
    machine.heard(A, 1.7)
    assert machine.suspects(PEERS, 1.7) == frozenset()
