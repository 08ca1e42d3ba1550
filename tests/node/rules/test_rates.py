"""What a node measures of the bytes that come to it, and says in its COMMITs."""

from protocol import events as ev
from protocol.messages import Commit, Kind, decode_body
from protocol.rounds.reducers import PEERS_MAX, SAMPLE_BYTES, SAMPLE_S, Rates, level_of
from tests.node.builders import Voice, contributed, peers_named
from tests.node.cores import HEAD, A, B, C, core_of, faults, hand, recorded


def test_rate_is_bytes_over_the_seconds_that_they_took():
    rates = Rates()
    rates.took(A, 100_000, 0.5)
    rates.took(A, 300_000, 1.5)
    assert rates.level(A) == level_of(200_000.0)
    assert rates.bytes_per_s(A) == 200_000.0
    assert rates.level(B) == 0


def test_of_too_little_nothing_is_said():
    rates = Rates()
    rates.took(A, 1000, 0.001)
    rates.took(B, 0, 5.0)
    rates.took(C, SAMPLE_BYTES, 0.0)
    assert [rates.level(peer) for peer in (A, B, C)] == [0, 0, 0]
    assert rates.bytes_per_s(A) is None
    rates.took(A, SAMPLE_BYTES, 0.001)
    assert rates.level(A) > 0
    # Of a slow line a while is enough.
    rates.took(B, 10, SAMPLE_S)
    assert rates.level(B) > 0


def test_what_is_past_counts_half_per_round():
    rates = Rates()
    rates.took(A, 1_000_000, 1.0)
    rates.fade()
    rates.took(A, 100_000, 1.0)
    assert rates.level(A) == level_of(600_000 / 1.5)
    for _ in range(8):
        rates.fade()
        rates.took(A, 100_000, 1.0)
    assert rates.level(A) == level_of(100_000.0)


def test_report_has_a_byte_for_each_member_and_none_for_who_is_not_linked():
    rates = Rates()
    rates.linked = (A, B)
    rates.took(C, 1_000_000, 1.0)
    rates.took(B, 1_000_000, 1.0)
    assert rates.report((A, B, C), A) == bytes([1, 1 + level_of(1e6), 0])
    assert rates.report((A, B, C), C) == bytes([1, 1 + level_of(1e6), 1 + level_of(1e6)])


def test_strangers_are_forgotten_before_they_are_too_many():
    rates, peers = Rates(), peers_named(2 * PEERS_MAX)
    rates.linked = (peers[0],)
    for peer in peers:
        rates.took(peer, SAMPLE_BYTES, 1.0)
        assert len(rates._sums) <= PEERS_MAX
    assert rates.level(peers[0])
    # Full as it is, who is known makes no room.
    before = [rates.level(peer) for peer in peers]
    rates.took(peers[-1], SAMPLE_BYTES, 1.0)
    assert [rates.level(peer) for peer in peers] == before


def test_commit_says_who_is_linked_and_how_fast_it_is():
    core = core_of(A, B)
    core.handle(ev.BytesArrived(B, num_bytes=1_000_000, seconds=1.0), 0.1)
    (commit,) = recorded(core.handle(contributed(5), 0.2), Kind.COMMIT)
    body = decode_body(commit)
    assert isinstance(body, Commit)
    assert dict(zip(HEAD.value.roster.members, body.seen, strict=True)) == {
        A: 1,
        B: 1 + level_of(1e6),
        C: 0,
    }


def test_commit_that_speaks_of_another_number_of_members_is_a_fault():
    core = core_of(A, B)
    actions = hand(core, B, Voice(B, HEAD.value).commit(seen=b"\x01\x01"))
    assert any("2 members of 3" in reason for reason in faults(actions))
    assert not faults(hand(core, B, Voice(B, HEAD.value).commit("b", seen=b"\x01\x01\x01")))
