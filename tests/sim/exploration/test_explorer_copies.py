"""Forks share nothing that can change, and keys tell apart what differs."""

import random
from collections import deque
from dataclasses import fields
from typing import Any

import pytest

from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.identity import KeyedHashSigner
from protocol.rounds.restart import Restart
from protocol.rounds.round_machine import RoundMachine
from sim.exploration.peers import IGNORED, fork, key_of
from tests.node.builders import CONFIG, head_of, machine_of, peers_named, toy_manifest
from tests.node.soup import Soup

IMMUTABLE = (bytes, str, int, float, bool, type(None), frozenset, type, type(lambda: 0))


def machine_in_the_middle(seed) -> RoundMachine:
    """A machine with messages, parts, a lock or a round behind it, as the soup has left it."""
    soup = Soup(head_of(peers_named(3)), random.Random(seed), restarts=0.01)
    soup.shake(400)
    return max(soup.machines.values(), key=lambda machine: machine.head.round)


def core_of(machine: RoundMachine) -> NodeCore:
    me = machine.view.me
    manifest, head = toy_manifest(me), head_of([me])
    core = NodeCore(manifest, CONFIG, KeyedHashSigner(me), head, now_s=0.0)
    for other in peers_named(3):
        core.handle(ev.Linked(other), 0.0)
    return core


def mutables(thing: Any, found: dict[int, object]) -> dict[int, object]:
    """Everything that can change within an object, by identity; unlike `fork`, it trusts no class
    but the plain immutable ones."""
    if isinstance(thing, IMMUTABLE) or id(thing) in found:
        return found
    parts: list[Any]
    if isinstance(thing, tuple):
        parts = list(thing)
    elif getattr(getattr(thing, "__dataclass_params__", None), "frozen", False):
        parts = [getattr(thing, field.name) for field in fields(thing)]
    else:
        found[id(thing)] = thing
        if isinstance(thing, dict):
            parts = [*thing.keys(), *thing.values()]
        elif isinstance(thing, set | list | deque):
            parts = list(thing)
        else:
            names = [n for c in type(thing).__mro__ for n in getattr(c, "__slots__", ())]
            parts = [getattr(thing, n) for n in names if hasattr(thing, n)]
            parts += getattr(thing, "__dict__", {}).values()
    for part in parts:
        mutables(part, found)
    return found


@pytest.mark.parametrize("make", [lambda machine: machine, core_of])
def test_fork_and_original_have_nothing_in_common_that_can_change(make, seed):
    original = make(machine_in_the_middle(seed))
    copied = fork(original)
    mine, theirs = mutables(original, {}), mutables(copied, {})
    shared = [repr(mine[key])[:80] for key in mine.keys() & theirs.keys()]
    assert not shared
    assert len(mine) == len(theirs) > 10


def test_what_a_fork_goes_through_leaves_the_original_as_it_was(seed):
    original = machine_in_the_middle(seed)
    before = key_of(original, {})
    copied = fork(original)
    assert key_of(copied, {}) == before
    copied.handle(ev.Woke(), 5.0)
    copied.handle(ev.SuspicionsChanged(frozenset(peers_named(3))), 5.0)
    assert key_of(copied, {}) != before
    assert key_of(original, {}) == before


def test_fork_keeps_what_was_one_object_one_object():
    shared = {"list": [1]}
    copied = fork([shared, shared])
    assert copied[0] is copied[1] is not shared


def test_key_looks_past_the_order_of_dicts_and_sets_and_at_nothing_that_is_ignored():
    one = machine_of(peers_named(2)[0], head_of(peers_named(2)))
    other = fork(one)
    one.view.cells.results |= {b"x": {1, 2}, b"y": set()}
    other.view.cells.results |= {b"y": set(), b"x": {2, 1}}
    assert key_of(one, {}) == key_of(other, {})
    other.view.times.progress_s = 7.0
    assert key_of(one, {}) != key_of(other, {})
    ignored = {type(one.view.times): ("progress_s",)}
    assert key_of(one, ignored) == key_of(other, ignored)


def test_restart_leads_to_the_same_machine_whatever_the_order_of_its_log(seed):
    """So a key may sort it: one order stands for all, where nobody says two things in one slot."""
    machine = machine_in_the_middle(seed)
    said = list(machine.view.ballots.messages())
    keys = set()
    for order in (said, said[::-1], random.Random(seed).sample(said, len(said))):
        fresh = RoundMachine(
            machine.config, KeyedHashSigner(machine.view.me), machine.certificate, now_s=0.0
        )
        fresh.resume(Restart(chain=(machine.certificate,), messages=tuple(order)), now_s=0.0)
        assert len(fresh.view.ballots) == len(said)
        keys.add(key_of(fresh, {**IGNORED, Restart: ("messages",)}))
    assert len(keys) == 1
