"""What is sent when: each cell once, parts first, no more waiting than fits, at the line's pace."""

from node.plane.bulk_queue import (
    CELLS_WAITING_MAX,
    PLACES_WAITING_MAX,
    QUEUED_S,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_START,
    Meter,
    PushQueue,
    SendWindow,
)
from protocol import limits
from protocol.events import Push
from protocol.frames import Bulk
from tests.node.builders import peers_named

A, B = peers_named(2)
X, Y = b"x" * 32, b"y" * 32


def part(*cells, to=A, subject=X):
    return Push(to, Bulk.PART, subject, cells)


def result(*cells, subject=Y):
    return Push(A, Bulk.RESULT, subject, cells)


def state(*cells):
    return Push(A, Bulk.STATE, X, cells)


def queued(*pushes, round_index=1):
    queue = PushQueue()
    for push in pushes:
        queue.offer(push, round_index=round_index)
    return queue


def test_cells_that_wait_or_are_under_way_are_not_sent_again_until_that_is_through():
    queue = queued(part(1, 2))
    due = queue.begin(A)
    assert due == part(1, 2)
    queue.offer(part(2, 1, 2), round_index=1)
    queue.offer(part(2, 3, 3), round_index=1)
    queue.offer(part(3, 4), round_index=1)
    assert queue.begin(A) is None, "one at a time"
    queue.done(due)
    again = queue.begin(A)
    assert again == part(3, 4)
    assert again is not None
    queue.offer(part(1), round_index=1)
    queue.done(again)
    assert queue.begin(A) == part(1), "what broke off may be asked for again"


def test_next_transfer_begins_when_the_last_is_sent_but_no_third_one():
    queue = queued(part(1))
    first = queue.begin(A)
    assert first is not None
    queue.offer(part(1, 2), round_index=1)
    assert queue.begin(A) is None
    queue.sent(first)
    queue.sent(first)
    second = queue.begin(A)
    assert second == part(2), "what is on its way is not sent again"
    queue.offer(result(1), round_index=1)
    assert queue.begin(A) is None
    queue.sent(second)
    assert queue.begin(A) is None, "two are not through"
    queue.done(first)
    queue.sent(first)
    assert queue.begin(A) == result(1)
    queue.done(second)


def test_same_cells_of_another_subject_kind_or_peer_are_others():
    queue = queued(part(1), part(1, subject=Y), part(1, to=B), result(1, subject=X))
    assert queue.begin(B) == part(1, to=B)
    found = []
    while (due := queue.begin(A)) is not None:
        found.append(due)
        queue.done(due)
    assert found == [part(1), part(1, subject=Y), result(1, subject=X)]


def test_parts_go_before_results_and_a_state_goes_beside_them():
    queue = queued(result(1), state(7), part(1))
    assert queue.begin(A) == part(1)
    assert queue.begin(A) == state(7)
    assert queue.begin(A) is None
    queue.done(part(1))
    assert queue.begin(A) is None, "another push with the same cells is not that transfer"


def test_results_of_the_newest_list_go_first_and_parts_in_the_order_of_their_asking():
    old, new = result(1), result(1, subject=X)
    queue = queued(old, new)
    assert queue.begin(A) == new
    assert queue.begin(A) is None
    first, second = part(1), part(1, subject=Y)
    queue = queued(first, second)
    assert queue.begin(A) == first


def test_what_waits_is_bounded_and_the_oldest_round_gives_way():
    queue = queued(part(*range(limits.WANT_CELLS_MAX)), round_index=2)
    for index in range(5):
        subject = bytes([index]) * 32
        queue.offer(
            part(*range(limits.WANT_CELLS_MAX), subject=subject), round_index=1 if index == 3 else 3
        )
    found = []
    while (due := queue.begin(A)) is not None:
        found.append(due.subject[0])
        queue.done(due)
    assert len(found) * limits.WANT_CELLS_MAX == CELLS_WAITING_MAX
    assert found == [0, 1, 2, 4]
    for index in range(2 * PLACES_WAITING_MAX):
        queue.offer(part(1, subject=index.to_bytes(32, "big")), round_index=index)
    assert queue.begin(A) == part(1, subject=PLACES_WAITING_MAX.to_bytes(32, "big"))


def test_nothing_is_kept_of_a_peer_that_is_out_of_reach():
    queue = queued(part(1), result(1))
    due = queue.begin(A)
    assert due is not None
    queue.forget(A)
    assert A in queue
    assert queue.begin(A) is None
    queue.done(due)
    queue.done(due)
    assert A not in queue
    queue.offer(part(), round_index=1)
    assert A not in queue


def sent_on(line_bytes_per_s: float, num_bytes: int, *, round_trip_s: float):
    """Send over a line with an endless buffer; the window, and the longest wait, at the end."""
    pace, now_s, free_s, waits = SendWindow(), 0.0, 0.0, []
    meter = Meter(pace)
    out: list[float] = []
    for _ in range(num_bytes // limits.PIECE_BYTES_MIN):
        while not meter.has_room(limits.PIECE_BYTES_MIN):
            now_s = max(now_s, out.pop(0))
            meter.through(now_s)
        free_s = max(free_s, now_s) + limits.PIECE_BYTES_MIN / line_bytes_per_s
        waits.append(free_s - now_s)
        meter.sent(limits.PIECE_BYTES_MIN, now_s)
        out.append(free_s + round_trip_s)
    return pace.window_bytes, max(waits[len(waits) // 2 :]), free_s


def test_slow_line_does_not_fill_up_and_a_fast_one_does_not_run_dry():
    window, wait_s, _ = sent_on(62_500.0, 4 << 20, round_trip_s=0.08)
    assert limits.PIECE_BYTES_MIN <= window < 3 * WINDOW_BYTES_START
    assert wait_s < 4 * QUEUED_S, "an endless one would be a minute late"
    window, _, took_s = sent_on(20e6, 256 << 20, round_trip_s=0.1)
    assert window <= WINDOW_BYTES_MAX
    assert took_s < 1.3 * (256 << 20) / 20e6


def test_one_piece_may_always_be_sent_and_the_window_never_closes():
    pace = SendWindow()
    meter = Meter(pace)
    meter.sent(limits.PIECE_BYTES_MIN, 0.0)
    meter.through(0.1)
    for step in range(20):
        assert meter.has_room(limits.PIECE_BYTES_MIN)
        meter.sent(limits.PIECE_BYTES_MIN, 10.0 * step)
        meter.through(10.0 * step + 9.0)
    assert pace.window_bytes == limits.PIECE_BYTES_MIN
    assert meter.has_room(10 * limits.PIECE_BYTES_MIN)
    assert meter.under_way == 0


def test_rest_of_a_transfer_is_a_window_and_never_any_while_it_gives_way():
    pace = SendWindow()
    assert Meter(pace).is_rest(WINDOW_BYTES_START)
    assert not Meter(pace).is_rest(WINDOW_BYTES_START + 1)
    pace.took(WINDOW_BYTES_START, 0.1)
    assert Meter(pace).is_rest(2 * WINDOW_BYTES_START)
    assert not Meter(pace, gives_way=lambda: True).is_rest(1)


def test_result_of_an_earlier_round_goes_before_the_parts_of_a_later_one():
    """Whoever is a round behind needs it first: with parts before it, the result never came where
    a round's parts took the line as long as a round."""
    queue, sent = PushQueue(), []
    queue.offer(part(2), round_index=3)
    queue.offer(result(1), round_index=2)
    queue.offer(part(1, subject=Y), round_index=2)
    while due := queue.begin(A):
        sent.append(due)
        queue.done(due)
    assert sent == [part(1, subject=Y), result(1), part(2)]
