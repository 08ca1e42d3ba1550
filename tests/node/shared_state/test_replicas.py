"""Replicas agree, whatever happened to them: by hypothesis and by seeded soups."""

import collections
import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings

from protocol.entry_kinds import EntryKind, Invitation
from protocol.evidence import fork_evidence
from protocol.wire import encode
from tests.node.shared_state.replicas import KINDS, LIARS, Replicas
from tests.node.shared_state.scene import WALL_S, Node, key_of, make_entry
from tests.protocol.entry_vectors import BODIES


class ManyReplicas(Replicas):
    """The same for longer."""


_COMMON = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    print_blob=True,
)
TestReplicas = Replicas.TestCase
TestReplicas.settings = settings(_COMMON, max_examples=15, stateful_step_count=30)
TestManyReplicas = pytest.mark.slow(ManyReplicas.TestCase)
TestManyReplicas.settings = settings(_COMMON, max_examples=200, stateful_step_count=60)


def soup(machine: Replicas, rng: random.Random, steps: int) -> collections.Counter[str]:
    """Steps drawn by weight: longer and denser than what hypothesis draws. How often what came."""

    def index() -> int:
        return rng.randrange(8)

    def kind() -> EntryKind:
        return rng.choice(KINDS)

    verbs = [
        (30, lambda: machine.write(index(), kind(), rng.randrange(5))),
        (
            30,
            lambda: machine.stranger_writes(index(), rng.choice(LIARS), kind(), rng.randrange(3)),
        ),
        (8, lambda: machine.fork(index(), rng.randrange(100), rng.randrange(3))),
        (5, lambda: machine.bad_write(index(), index(), kind())),
        (
            120,
            lambda: machine.deliver(rng.randrange(200), rng.random() < 0.2, rng.random() < 0.1),
        ),
        (10, lambda: machine.gossip_some(index(), index(), rng)),
        (3, lambda: machine.partition([rng.randrange(2) for _ in range(8)])),
        (2, machine.heal),
        (5, lambda: machine.restart(index(), rng.random() < 0.5)),
        (3, lambda: machine.clock_jump(index(), rng.choice([-3600.0, 3600.0, 0.0]))),
        (3, lambda: machine.time_passes(rng.choice([1.0, 60.0, 300.0]))),
        (3, lambda: machine.collect(index())),
        (1, lambda: machine.enter_era(index())),
        (1, machine.settle),
    ]
    weights = [weight for weight, _ in verbs]
    for _ in range(steps):
        _, step = rng.choices(verbs, weights)[0]
        step()
        machine.honest_are_never_convicted_and_convictions_stay()
    machine.memory_is_bounded_and_counted()
    return machine.seen


def run_soup(rng: random.Random, steps: int) -> collections.Counter[str]:
    machine = Replicas()
    try:
        machine.begin(rng.randrange(2, 9))
        return soup(machine, rng, steps)
    finally:
        machine.teardown()


def test_replicas_agree_after_any_soup(seed):
    seen = collections.Counter[str]()
    for number in range(5):
        seen += run_soup(random.Random(f"{seed}/replicas/{number}"), 300)
    # Else they would have tried nothing.
    assert seen["NEW"] > 300
    assert seen["KNOWN"] > 30
    assert seen["REFUSED"] > 10
    assert seen["CONTRADICTION"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("number", range(40))
def test_replicas_agree_after_any_long_soup(number, seed):
    run_soup(random.Random(f"{seed}/long replicas/{number}"), 1500)


def told_in_every_order() -> list[bytes]:
    """A token and its revocation, a presence before and after the fork, both halves of the fork,
    and the evidence as somebody else has it."""
    liar = LIARS[0]
    issue = make_entry(liar, EntryKind.INVITATION, wall_s=WALL_S - 9)
    token = BODIES[EntryKind.INVITATION]
    assert isinstance(token, Invitation)
    token = replace(token, is_revoked=True)
    revoke = make_entry(liar, EntryKind.INVITATION, after=issue, wall_s=WALL_S - 8, body=token)
    early = make_entry(liar, EntryKind.PRESENCE, wall_s=WALL_S - 5)
    late = make_entry(liar, EntryKind.PRESENCE, after=early, wall_s=WALL_S + 5)
    halves = [make_entry(liar, key=key_of(EntryKind.NOTE, number)) for number in (1, 2)]
    proof = fork_evidence(halves[0].signed_header, halves[1].signed_header)
    return [*map(encode, (issue, revoke, early, late, *halves)), proof.encoded]


def test_ban_refresh_and_revocation_end_alike_in_every_order():
    told = told_in_every_order()
    digests = set()
    # Of the 5040 orders every thirteenth: all of them take half a minute, and do as well.
    for order in itertools.islice(itertools.permutations(told), 0, None, 13):
        node = Node(9, wall_s=WALL_S + 6)
        # Gossip brings again what came too early or was taken away too soon.
        for encoded in (*order, *order):
            assert not node.offer(encoded).fault
        assert [one.encoded for one in node.book.evidence] == [told[-1]]
        (invitation,) = node.book.entries(EntryKind.INVITATION)
        assert isinstance(invitation.content, Invitation)
        assert invitation.content.is_revoked
        digests.add(node.book.bucket_digests())
    assert len(digests) == 1
