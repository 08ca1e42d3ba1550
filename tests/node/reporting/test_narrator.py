"""A node that waits for what nobody may give says so: a memory (R12), enough voters (R3)."""

from dataclasses import replace
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.reporting.narrator import FORGOTTEN_S, PROGRESS_S, Narrator, why_left_out
from node.status.board import EventLog
from node.status.records import LEFT_OUT
from protocol import events as ev
from protocol.catching_up.catchup import CatchUpProgress
from protocol.identity import KeyedHashSigner
from protocol.rounds.giving import Giving
from protocol.rounds.restart import Restart
from protocol.rounds.round_machine import RoundMachine
from tests.node.builders import CONFIG, head_of, peers_named, view_of

A, B, C = peers_named(3)


def machine_without_memory(*voters) -> RoundMachine:
    head = head_of(voters)
    machine = RoundMachine(CONFIG, KeyedHashSigner(A), head, now_s=0.0)
    machine.resume(Restart(chain=(head,), is_lost=True), now_s=0.0)
    return machine


def teller() -> tuple[Narrator, list[str]]:
    texts: list[str] = []
    log = EventLog(None, 0.0)
    log.also = (Listener(texts),)
    return Narrator(log), texts


class Listener:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def emit(self, event: str, **fields) -> None:
        self.texts.append(fields["text"])


async def test_eldest_of_two_voters_without_memory_is_told_what_to_do_once(autojump_clock):
    narrator, texts = teller()
    machine = machine_without_memory(A, B)
    narrator.silence(machine)
    await trio.sleep(FORGOTTEN_S / 2)
    narrator.silence(machine)
    assert not texts
    await trio.sleep(FORGOTTEN_S / 2)
    for _ in range(3):
        narrator.silence(machine)
        await trio.sleep(FORGOTTEN_S)
    assert len(texts) == 1
    assert "barnraise run --new" in texts[0]


async def test_founder_whose_seals_are_lost_is_told_unless_rounds_go_by(autojump_clock):
    narrator, texts = teller()
    head = head_of([A])
    machine = RoundMachine(CONFIG, KeyedHashSigner(A), head, now_s=0.0)
    machine.resume(Restart(chain=(head,), silent_through=9), now_s=0.0)
    assert machine.is_muted
    assert not machine.has_forgotten
    for index in range(2, 6):
        narrator.silence(machine)
        await trio.sleep(FORGOTTEN_S - 1.0)
        machine.view.index = index  # What it had signed in the round before made it final again.
    assert not texts
    for _ in range(3):
        narrator.silence(machine)
        await trio.sleep(FORGOTTEN_S)
    assert len(texts) == 1
    assert "barnraise export" in texts[0]


async def test_hold_for_takers_is_told_once_in_a_round_if_it_lasts(autojump_clock, monkeypatch):
    events: list[str] = []
    log = EventLog(None, 0.0, (SimpleNamespace(emit=lambda event, **_: events.append(event)),))
    narrator = Narrator(log)
    machine = RoundMachine(CONFIG, KeyedHashSigner(A), head_of([A]), now_s=0.0)
    held = {machine.view.basis: 1}
    monkeypatch.setattr(Giving, "num_held_for", lambda _, basis: held.get(basis, 0))
    narrator.holding(machine)
    assert not events, "it may be over in a moment"
    for _ in range(3):
        await trio.sleep(PROGRESS_S)
        narrator.holding(machine)
    assert events == ["holding"]


async def test_whoever_can_still_be_told_is_not_warned(autojump_clock):
    narrator, texts = teller()
    machine = machine_without_memory(A, B, C)
    for _ in range(3):
        narrator.silence(machine)
        await trio.sleep(2 * FORGOTTEN_S)
    assert machine.has_forgotten
    assert not texts


async def test_founder_that_catches_up_in_time_is_not_warned(autojump_clock):
    narrator, texts = teller()
    alone = machine_without_memory(A)
    narrator.silence(alone)
    await trio.sleep(FORGOTTEN_S - 1.0)
    narrator.silence(machine_without_memory(A, B, C))
    await trio.sleep(FORGOTTEN_S - 1.0)
    narrator.silence(alone)
    assert not texts


async def test_open_run_says_once_that_sealing_pauses_and_again_after_voters_were_back(
    autojump_clock,
):
    narrator, texts = teller()
    voters = peers_named(4)
    view = view_of(voters[0], head_of(voters))
    narrator.quorum(view)
    assert not texts
    for suspects, told in ((1, 0), (2, 1), (3, 1), (0, 1), (2, 2)):
        view.config = replace(view.config, trust="open")
        view.suspect(frozenset(voters[4 - suspects :]) if suspects else frozenset())
        narrator.quorum(view)
        narrator.quorum(view)
        assert len(texts) == told
    assert "2 of 4 voters" in texts[0]
    view.config = replace(view.config, trust="friends")
    narrator.quorum(view)
    view.suspect(frozenset(voters[1:]))
    narrator.quorum(view)
    assert len(texts) == 2, "friends go on alone (R4)"


class Fetching:
    """A catch-up that is so far."""

    def __init__(self) -> None:
        self.now: CatchUpProgress | None = None

    @property
    def is_busy(self) -> bool:
        return self.now is not None

    def progress(self, now_s: float) -> CatchUpProgress | None:
        return self.now


async def test_whoever_waits_for_its_turn_is_told_once_each_time(autojump_clock):
    narrator, events = Narrator(log := EventLog(None, 0.0)), []
    log.also = (SimpleNamespace(emit=lambda event, **fields: events.append((event, fields))),)
    two, one = head_of((A, B)), head_of((A,))
    full, open_, own = view_of(C, two), view_of(C, one), view_of(A, two)
    for view in (open_, full, full, own, full):
        narrator.turn(view, 2)
    assert events == [("unseated", {"round": full.index, "seats": 2})] * 2


async def test_long_fetch_is_told_of_now_and_then_and_a_short_one_not(autojump_clock):
    narrator, texts = teller()
    fetching = Fetching()
    for done in range(8):
        fetching.now = CatchUpProgress("state", 42, done << 20, 8 << 20, 3, 1 << 20)
        narrator.catching_up(fetching)  # type: ignore[arg-type]  # all that is asked of it
        await trio.sleep(PROGRESS_S / 2)
    assert texts == [
        f"state of round 42: {share} % from 3 peers, 1.0 MiB/s" for share in (25, 50, 75)
    ]
    fetching.now = None
    narrator.catching_up(fetching)  # type: ignore[arg-type]
    fetching.now = CatchUpProgress("rounds", 44, 1, 2, 1, 0.0)
    narrator.catching_up(fetching)  # type: ignore[arg-type]
    assert len(texts) == 3


def test_progress_says_what_is_fetched_in_a_line():
    text = CatchUpProgress("chain", 900, 225, 900, 1, 0.0).text
    assert text == "seals up to round 900: 25 % checked"
    text = CatchUpProgress("rounds", 44, 1, 2, 1, 3.5e6).text
    assert text == "results up to round 44: 50 % from 1 peer, 3.3 MiB/s"


def left_out(
    *,
    commit_s: float | None = None,
    is_ready: bool = False,
    held_until_s: float | None = None,
    has_spent: bool = False,
) -> str | None:
    """Why A is not in a seal, of a round in which B said HAVE at 10 s."""
    view = view_of(A, head_of([A, B]))
    view.lapses.said_s = {(0, B): 10.0, (0, A): 5.0}
    if commit_s is not None:
        view.own.commit, view.arrivals.commit_s[A] = bytes(32), commit_s
    if is_ready or commit_s is not None:
        view.own.contribution = ev.Contributed(
            round=1,
            root=b"",
            cell_norms=(),
            tokens=50,
            samples=50,
            steps=50,
            residual_before=b"",
            residual_after=b"",
        )
    view.own.held_until_s = held_until_s
    view.waits.given_up = frozenset([A])  # As in any round that is said to be without it.
    return why_left_out(view, wants_seat=True, has_spent=has_spent, equal_steps=False)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ({}, "training"),
        ({"commit_s": 10.5}, "training"),
        ({"commit_s": 9.5}, "line"),
        ({"has_spent": True}, "given_up"),
        ({"has_spent": True, "commit_s": 12.0}, "given_up"),
        ({"is_ready": True, "held_until_s": -inf}, "held"),
        ({"is_ready": True}, "silent"),
    ],
)
def test_member_that_a_seal_does_not_list_is_told_what_kept_it_out(what, why):
    assert left_out(**what) == why
    assert why in LEFT_OUT


def test_where_all_take_equally_many_steps_a_slow_machine_is_promised_no_fewer():
    view = view_of(A, head_of([A, B]))
    why = partial(why_left_out, wants_seat=True, has_spent=False, equal_steps=True)
    assert why(view) == "equal_steps"
    view.own.commit = bytes(32)  # From before a restart.
    assert why(view) == "line"


@pytest.mark.parametrize(("wants_seat", "why"), [(True, "seat"), (False, None)])
def test_node_without_a_seat_is_told_so_and_an_observer_is_not(wants_seat, why):
    view = view_of(C, head_of([A, B]))
    found = why_left_out(view, wants_seat=wants_seat, has_spent=False, equal_steps=False)
    assert found == why


@pytest.mark.parametrize("why", [None, "equal_steps"])
async def test_event_of_a_seal_says_why_this_node_is_not_in_it(autojump_clock, why):
    events: list[dict[str, Any]] = []
    also = (SimpleNamespace(emit=lambda event, **fields: events.append(fields)),)
    narrator = Narrator(EventLog(None, 0.0, also))
    head = head_of([A, B])
    adopt = ev.Adopt(head, why is None, False)
    narrator.sealed(adopt, view_of(A, head), (0, 0), None, why)
    assert (events[0]["left_out"], events[0]["was_listed"]) == (why, why is None)
