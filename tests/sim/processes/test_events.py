"""Lines of a node's standard output as events."""

import json

import pytest

from sim.processes import events
from sim.processes.events import parse_event

SEALED = {
    "event": "sealed",
    "time_s": 3.25,
    "round": 4,
    "digest": "ab" * 32,
    "listed": ["12D3KooWone", "12D3KooWtwo"],
    "members": 2,
    "voters": 2,
    "attempt": 0,
    "was_listed": True,
    "wall_s": 1,
    "bytes_up": 10,
    "bytes_down": 20,
    "train_loss": None,
}


def line(**fields) -> bytes:
    return json.dumps(fields).encode()


def test_sealed_line_gives_the_event_with_all_of_its_fields():
    event = parse_event(line(**SEALED))
    assert isinstance(event, events.RoundSealed)
    assert event.listed == ("12D3KooWone", "12D3KooWtwo")
    assert (event.round, event.wall_s, event.train_loss) == (4, 1.0, None)


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        (
            {"event": "listening", "peer": "p", "addresses": ["/ip4/1.2.3.4/tcp/1"], "pid": 7},
            events.Listening(peer="p", addresses=("/ip4/1.2.3.4/tcp/1",), pid=7),
        ),
        (
            {"event": "listening", "peer": "p", "addresses": []},
            events.Listening(peer="p", addresses=(), pid=None),
        ),
        ({"event": "trainer", "pid": 8}, events.TrainerStarted(pid=8)),
        (
            {"event": "linked", "peer": "p", "linked": ["p"]},
            events.LinkOpened(peer="p", linked=("p",)),
        ),
        (
            {"event": "unlinked", "peer": "p", "linked": []},
            events.LinkClosed(peer="p", linked=()),
        ),
        (
            {"event": "phase", "round": 1, "phase": "pushing", "attempt": 2},
            events.PhaseEntered(round=1, phase="pushing", attempt=2),
        ),
        (
            {"event": "parts", "round": 1, "peer": "p", "cells": 2, "direction": "in"},
            events.PartsMoved(round=1, peer="p", cells=2, direction="in"),
        ),
        ({"event": "validation", "round": 0, "loss": 5}, events.Validated(round=0, loss=5.0)),
        ({"event": "progress", "step": 7, "loss": 5}, events.StepTold(step=7, loss=5.0)),
        ({"event": "synced", "round": 9}, events.StateFetched(round=9)),
        ({"event": "seated", "round": 9}, events.Seated(round=9)),
        ({"event": "resync", "reason": "r"}, events.Resynced(reason="r")),
        (
            {"event": "finished", "round": 40, "checkpoint": "x"},
            events.Finished(round=40, checkpoint="x"),
        ),
        ({"event": "fault", "peer": "p", "reason": "r"}, events.FaultSeen(peer="p", reason="r")),
        ({"event": "error", "kind": "K", "message": "m"}, events.Failed(kind="K", message="m")),
    ],
)
def test_each_kind_of_line_gives_its_event(fields, event):
    assert parse_event(line(**fields)) == event


@pytest.mark.parametrize(
    "raw",
    [b"", b"a library says hello", b"{", b"[]", b"3", b'{"event": "weather"}', b"{}", b"\xff\xfe"],
)
def test_line_that_is_no_event_of_ours_is_passed_over(raw):
    assert parse_event(raw) is None


@pytest.mark.parametrize(
    "change",
    [
        {"round": "4"},
        {"round": True},
        {"round": 4.0},
        {"listed": "AB"},
        {"listed": [1]},
        {"was_listed": 1},
        {"train_loss": "2"},
        {"digest": None},
    ],
)
def test_known_event_with_a_field_of_a_wrong_type_names_the_field(change):
    (name,) = change
    with pytest.raises(ValueError, match=f"event sealed: {name} missing"):
        parse_event(line(**(SEALED | change)))


def test_known_event_without_a_field_names_it():
    with pytest.raises(ValueError, match="digest, members"):
        parse_event(line(**{k: v for k, v in SEALED.items() if k not in ("digest", "members")}))
