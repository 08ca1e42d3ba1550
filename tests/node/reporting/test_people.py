"""Lines for the person in front of a node, and the countdown while peers are away."""

import errno
import io
import platform
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from node.reporting.people import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    Countdown,
    Occasion,
    PeopleLog,
    say,
    what_joining_means,
)
from node.status.board import EventLog, Field
from node.status.records import LEFT_OUT
from node.text.terminal import PeopleConsole
from protocol.manifest import RunManifest
from tests.node.edge import toy_manifest

RUN = replace(toy_manifest(), rounds=200, title="kitchen\x1b table")
LINK = "barnraise://join/" + "A" * 300


def told(*events: tuple[str, dict[str, Field]], manifest: RunManifest = RUN) -> str:
    out = io.StringIO()
    console = PeopleConsole(file=out, width=80, soft_wrap=True)
    occasion = Occasion(state=Path("/s"), manifest=manifest, how="joined now", is_usual_state=False)
    log = PeopleLog(console, occasion)
    for name, fields in events:
        log.emit(name, **fields)
    return out.getvalue()


def test_first_lines_say_what_this_is_how_to_look_and_how_to_stop() -> None:
    said = told(("invite", {"link": LINK, "run": "", "title": ""}))
    assert said.startswith("kitchen\\x1b table\n")
    for words in (RUN.digest.hex()[:12], "joined now", "status --state /s", "Ctrl+C"):
        assert words in said
    # Nobody could paste a link that was broken into lines.
    assert f" {LINK}\n" in said


def test_founder_that_waits_says_for_how_many_and_how_to_start() -> None:
    one = told(("waiting_for_peers", {"peers": 1, "has_terminal": True}))
    assert (
        one == "round 1 waits until 1 peer more has joined (start_with in node.toml); Enter "
        "starts at once\n"
    )
    two = told(("waiting_for_peers", {"peers": 2, "has_terminal": False}))
    assert "2 peers more have joined" in two
    assert "--alone" in two
    held = told(("holding", {"round": 7, "peers": 1}))
    assert held == "round 7 waits for 1 peer fetching the state from here\n"
    assert "without waiting for 2 peers" in told(("starts_without", {"peers": 2}))


class Full(io.StringIO):
    def write(self, _text: str, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_output_that_takes_nothing_costs_the_lines_and_no_more() -> None:
    console = PeopleConsole(file=Full())
    say(console, "what joining means")
    assert console.quiet


SEALED: dict[str, Field] = {
    "round": 7,
    "listed": ["a", "b"],
    "members": 3,
    "train_loss": 2.5,
    "wall_s": 4.25,
    "was_listed": True,
}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "round   7 of 200 sealed: 2 of 3 listed, loss 2.500, 4.2 s\n"),
        ({"train_loss": None}, "round   7 of 200 sealed: 2 of 3 listed, 4.2 s\n"),
        (
            {"was_listed": False},
            "round   7 of 200 sealed: 2 of 3 listed, loss 2.500, 4.2 s (without this node)\n",
        ),
    ],
)
def test_each_round_has_a_line(changes: dict[str, Field], line: str) -> None:
    assert told(("sealed", SEALED | changes)) == line


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_node_that_is_left_out_says_why_and_what_changes_next(left_out: str) -> None:
    said = told(("sealed", SEALED | {"was_listed": False, "left_out": left_out}))
    assert f"(without this node: {LEFT_OUT[left_out]})" in said


def test_provisional_rounds_are_told_of_and_what_becomes_of_them() -> None:
    alone: dict[str, Field] = {"round": 8, "listed": 1, "members": 3, "ends_run": False}
    said = told(("provisional", alone))
    assert said == ("round   8 of 200 sealed provisionally: 1 of 3 listed, no quorum is in reach\n")
    ended = told(("provisional", alone | {"round": 200, "ends_run": True}))
    assert "all rounds are done, but not final" in ended
    assert told(("confirmed", {"round": 8})) == "round 8 is final now\n"
    lost = told(("branch_lost", {"round": 7, "rounds": 2}))
    assert lost.endswith("goes on from round 7\n")


def test_who_is_set_back_is_named_and_told_that_it_keeps_its_seat() -> None:
    fields: dict[str, Field] = {"peer": "12D3KooWabcdefgh", "round": 7, "until": 15}
    other = told(("set_back", fields | {"is_own": False}))
    assert other.startswith("peer abcdefgh kept others waiting")
    assert "until round 15" in other
    own = told(("set_back", fields | {"is_own": True}))
    assert own.startswith("this node kept others waiting")
    assert "keeps seat and vote" in own


def test_a_seat_is_told_of_once_until_it_is_lost() -> None:
    seated: tuple[str, dict[str, Field]] = ("seated", {"round": 3})
    assert told(seated, seated).count("takes part") == 1
    lost: tuple[str, dict[str, Field]] = ("resync", {"reason": "x"})
    assert told(seated, lost, seated, seated).count("takes part") == 2


def test_turn_that_is_over_is_told_of_and_so_is_the_next() -> None:
    said = told(
        ("seated", {"round": 3}), ("unseated", {"round": 12, "seats": 2}), ("seated", {"round": 20})
    )
    assert said.splitlines()[1:] == [
        "all 2 seats are taken, in turns: follows the rounds until one is free",
        "takes part from round 20 on",
    ]


def test_end_says_finished_and_where_the_weights_are() -> None:
    said = told(("finished", {"round": 200, "checkpoint": "/s/runs/x"}))
    assert said == "run finished: 200 rounds; the weights are in /s/runs/x\n"


def test_nobody_is_invited_to_a_run_that_is_finished() -> None:
    # A peer that starts again waits for a relay before it has a link to tell.
    end: dict[str, Field] = {"round": 200, "checkpoint": "/s/runs/x"}
    said = told(("finished", end), ("invite", {"link": LINK}))
    assert said == told(("finished", end))


def test_node_of_a_finished_run_takes_part_in_nothing() -> None:
    assert told(("seated", {"round": 200})) == "takes part from round 200 on\n"
    assert told(("seated", {"round": 201})) == ""


def test_what_a_peer_wrote_moves_no_cursor() -> None:
    said = told(("linked", {"peer": "\x1b[2Jabcdefgh", "linked": ["x"]}))
    assert said == "peer abcdefgh linked, 1 linked now\n"


@pytest.mark.parametrize("event", ["phase", "parts", "resumed", "sealed", "listening", "nonsense"])
def test_events_for_nobody_or_without_their_fields_say_nothing(event: str) -> None:
    assert told((event, {"round": 0})) == ""


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(5, "Input/output error")


def test_closed_terminal_does_not_stop_the_node() -> None:
    console = PeopleConsole(file=Gone(), soft_wrap=True)
    log = PeopleLog(console, Occasion(state=Path("/s"), manifest=RUN, how="", is_usual_state=True))
    log.emit("sealed", **SEALED)
    log.emit("sealed", **SEALED)
    assert console.quiet


def test_release_of_python_that_a_run_needs_is_said_before_joining() -> None:
    here = platform.python_version()
    same, other, none = (
        what_joining_means(replace(RUN, corpus=replace(RUN.corpus, name=name)))
        for name in (f"stdlib-{here}", "stdlib-3.0.99", "letters")
    )
    assert f"needs    Python {here}, whose library is the text; this is it" in same
    assert f"this is {here},\n" in other
    assert "start barnraise with 3.0.99" in other
    assert "It needs" not in none


def test_joining_is_explained_before_it_begins() -> None:
    said = what_joining_means(RUN)
    assert "\x1b" not in said
    for words in ("kitchen", "parameters", "IP address", "peer id", "Ctrl+C", "no code"):
        assert words in said
    assert "strangers" not in said
    assert "strangers" in what_joining_means(replace(RUN, trust="open"))


class Events:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Field]]] = []

    def emit(self, event: str, **fields: Field) -> None:
        self.told.append((event, fields))


async def said_in(num: int, *, is_terminal: bool) -> tuple[str, float, Events]:
    """What is printed in so many pauses for one reason, and how long they take."""
    out, events = io.StringIO(), Events()
    console = PeopleConsole(
        file=out,
        width=80,
        force_terminal=is_terminal,
        soft_wrap=True,
    )
    countdown = Countdown(console, EventLog(None, 0.0, also=(events,)))
    started_s = trio.current_time()
    for _ in range(num):
        await countdown.pause("no peer answered: [/ip4/203.0.113.1]")
    return out.getvalue(), trio.current_time() - started_s, events


async def test_pauses_grow_to_half_a_minute_and_the_reason_is_said_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    said, took_s, events = await said_in(5, is_terminal=False)
    pauses = [PAUSE_FIRST_S, 10, 20, PAUSE_MAX_S, PAUSE_MAX_S]
    assert took_s == pytest.approx(sum(pauses))
    assert said.splitlines() == [
        "no peer answered: [/ip4/203.0.113.1]",
        *(f"tries again in {pause_s} s; Ctrl+C ends" for pause_s in pauses),
    ]
    assert [fields["again_s"] for _, fields in events.told] == pauses
    assert {name for name, _ in events.told} == {"waiting"}


async def test_a_terminal_sees_the_seconds_go_by_in_one_line(
    autojump_clock: trio.abc.Clock,
) -> None:
    said, took_s, _ = await said_in(1, is_terminal=True)
    assert took_s == pytest.approx(PAUSE_FIRST_S)
    counted = [f"tries again in {left_s} s; Ctrl+C ends" for left_s in range(PAUSE_FIRST_S, 0, -1)]
    lines = said.split("\n")[1].split("\r")
    assert [line.strip() for line in lines if line.strip()] == counted
