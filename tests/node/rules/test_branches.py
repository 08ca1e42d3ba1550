"""R4: who goes on without a quorum, which head wins, and what proves a vote."""

from dataclasses import replace
from itertools import permutations

import pytest
from blake3 import blake3

from protocol.errors import StateError
from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Seal, SealValue, Slot, decode_message, sign_message
from protocol.rounds import roster as rosters
from protocol.rounds.branches import (
    Lock,
    Opening,
    Position,
    Tree,
    better_head,
    highest_lock,
    next_round,
    provisional_sealers,
)
from protocol.rounds.chain import is_own_seal
from protocol.rounds.roster import ListedContribution, provisional_closer, voters
from tests.node.builders import commit_body, head_of, peers_named, roster_of

A, B, C, D, E = peers_named(5)
FINAL = head_of((A, B, C), (D,)).value
AT_FINAL = Position(FINAL, FINAL)


def seal_on(before: SealValue, mark: str, *, tokens: int = 10, **changes) -> SealValue:
    """A seal whose LIST names one COMMIT, of that mark."""
    value = replace(
        before,
        round=before.round + 1,
        before=before.digest,
        basis=before.digest,
        commits=(blake3(mark.encode()).digest(),),
        root=blake3(b"root" + mark.encode()).digest(),
        clock=replace(before.clock, tokens=before.clock.tokens + tokens),
    )
    return replace(value, **changes)


def tree_of(*values: SealValue) -> Tree:
    tree = Tree(FINAL)
    for value in values:
        tree.add(value)
    return tree


def go_on(position: Position, *reachable, trust: str = "friends", survive: str = "any"):
    return next_round(position, reachable, trust=trust, survive=survive)


# --- Who goes on.


def test_quorum_of_the_final_voters_works_behind_the_final_seal_even_from_a_branch():
    branch = seal_on(FINAL, "x", roster=roster_of((C,)))
    assert go_on(Position(FINAL, branch), A, C) == Opening(FINAL, is_provisional=False)


def test_half_with_the_eldest_voter_is_a_quorum_and_the_other_half_goes_on_provisionally():
    pair = head_of((A, B)).value
    assert go_on(Position(pair, pair), A) == Opening(pair, is_provisional=False)
    assert go_on(Position(pair, pair), B) == Opening(pair, is_provisional=True)


def test_minority_goes_on_from_its_head_provisionally():
    branch = seal_on(FINAL, "x", roster=roster_of((C,)))
    assert go_on(Position(FINAL, branch), C) == Opening(branch, is_provisional=True)


@pytest.mark.parametrize(("trust", "survive"), [("friends", "quorum"), ("open", "any")])
def test_minority_pauses_unless_friends_survive_anything(trust, survive):
    assert go_on(AT_FINAL, C, trust=trust, survive=survive) is None


def test_peers_without_a_seat_pause():
    assert go_on(AT_FINAL, E) is None


def test_head_whose_roster_names_nobody_in_reach_is_left_for_the_final_seal():
    others = seal_on(FINAL, "x", roster=roster_of((A, B)))
    assert go_on(Position(FINAL, others), C) == Opening(FINAL, is_provisional=True)
    assert go_on(Position(FINAL, others), C, D) == Opening(FINAL, is_provisional=True)
    assert go_on(Position(FINAL, others), B) == Opening(others, is_provisional=True)


def test_reachable_voters_of_the_final_seal_seal_provisionally_and_else_its_members():
    grown = seal_on(FINAL, "x", roster=roster_of((C, D)))
    assert provisional_sealers(Position(FINAL, grown), (C, D)) == (C,)
    assert provisional_sealers(AT_FINAL, (D, E)) == (D,)
    assert provisional_sealers(AT_FINAL, (E,)) == ()


def test_every_member_of_the_final_seal_closes_some_provisional_attempt_voters_first():
    basis = blake3(b"basis").digest()
    turns = [provisional_closer(FINAL.roster, basis, attempt) for attempt in range(4)]
    assert sorted(turns) == sorted((A, B, C, D))
    assert turns == [provisional_closer(FINAL.roster, basis, attempt + 4) for attempt in range(4)]


# --- Meeting.


def test_highest_lock_is_that_of_the_latest_attempt_behind_this_final_seal():
    elsewhere = Lock(bytes(32), 9, b"z")
    locks = [Lock(FINAL.digest, 1, b"y"), Lock(FINAL.digest, 2, b"x"), elsewhere]
    for order in permutations(locks):
        assert highest_lock(FINAL.digest, order) == Lock(FINAL.digest, 2, b"x")
    assert highest_lock(FINAL.digest, [elsewhere]) is None


def test_longer_final_chain_wins_over_any_tokens():
    rich, poor = seal_on(FINAL, "x", tokens=1000), seal_on(FINAL, "y", tokens=1)
    here, there = Position(FINAL, rich), Position(poor, poor)
    for order in permutations((here, there)):
        assert better_head(tree_of(rich, poor), order, ()) == there


def test_head_with_the_lock_wins_over_tokens():
    rich, locked = seal_on(FINAL, "x", tokens=1000), seal_on(FINAL, "y", tokens=1)
    tip = seal_on(locked, "z")
    lock = Lock(FINAL.digest, 0, locked.list_digest)
    tree, met = tree_of(rich, locked, tip), [Position(FINAL, rich), Position(FINAL, tip)]
    assert better_head(tree, met, [lock]).head == tip
    assert better_head(tree, met, ()).head == rich


def test_final_seal_wins_where_no_head_continues_the_lock():
    rich = seal_on(FINAL, "x", tokens=1000)
    lock = Lock(FINAL.digest, 0, b"elsewhere")
    assert better_head(tree_of(rich), [Position(FINAL, rich)], [lock]) == AT_FINAL


def test_lock_of_a_round_that_is_final_has_no_say():
    first = seal_on(FINAL, "x")
    left, right = seal_on(first, "y", tokens=2), seal_on(first, "z", tokens=1)
    met = [Position(first, left), Position(first, right)]
    old = Lock(FINAL.digest, 5, b"elsewhere")
    assert better_head(tree_of(first, left, right), met, [old]).head == left


def test_tokens_count_along_the_whole_chain_and_the_lower_digest_breaks_the_tie():
    short, long = seal_on(FINAL, "x", tokens=15), seal_on(FINAL, "y", tokens=10)
    tip = seal_on(long, "z", tokens=10)
    equal = seal_on(long, "w", tokens=10)
    tree = tree_of(short, long, tip, equal)
    met = [Position(FINAL, short), Position(FINAL, tip)]
    assert better_head(tree, met, ()).head == tip
    lowest = min((tip, equal), key=lambda value: value.digest)
    for order in permutations([*met, Position(FINAL, equal)]):
        assert better_head(tree, order, ()).head == lowest


def test_round_that_listed_nobody_never_loses_to_the_seal_before_it():
    """Else who stands on it goes back, seals it again, and so on for ever."""
    for name in "abcdefgh":
        first = seal_on(FINAL, name, tokens=10)
        empty = seal_on(first, "z", tokens=0)
        tree = tree_of(first, empty)
        met = [Position(FINAL, first), Position(FINAL, empty)]
        for order in permutations(met):
            assert better_head(tree, order, ()).head == empty


def met_in_turn(tree, standing, locks, order):
    """Where all end of whom the first two meet, then the next one comes, and so on."""
    standing = list(standing)
    for count in range(2, len(order) + 1):
        met = order[:count]
        best = better_head(tree, [standing[i] for i in met], [locks[i] for i in met if i in locks])
        for index in met:
            standing[index] = best
    return standing[0].head.digest


def test_outcome_does_not_depend_on_who_meets_first_as_long_as_locks_have_a_say():
    rich, locked = seal_on(FINAL, "x", tokens=1000), seal_on(FINAL, "y", tokens=1)
    tip = seal_on(locked, "z")
    tree = tree_of(rich, locked, tip)
    standing = [Position(FINAL, rich), Position(FINAL, tip), Position(locked, locked)]
    orders = list(permutations(range(3)))
    locks = {1: Lock(FINAL.digest, 0, locked.list_digest)}
    assert {met_in_turn(tree, standing, locks, order) for order in orders} == {tip.digest}
    # Where tokens go before locks, the tip is lost to whoever has most, and that to what is final.
    ends = {met_in_turn(tree, standing, {}, order) for order in orders}
    assert ends == {tip.digest, locked.digest}


def test_seal_of_a_tree_stands_on_another_one_of_it():
    first = seal_on(FINAL, "x")
    with pytest.raises(StateError):
        tree_of(seal_on(first, "y"))
    with pytest.raises(StateError):
        tree_of(replace(first, round=first.round + 1))
    with pytest.raises(StateError):
        tree_of().seal(first.digest)


# --- Proofs.


def place_of(before: SealValue, kind: Kind, attempt: int = 0) -> Slot:
    """Where a SEAL or PSEAL of the round on `before` stands."""
    return Slot(
        run=before.run,
        shard=before.shard,
        round=before.round + 1,
        basis=before.digest,
        attempt=attempt,
        kind=kind,
        subject=before.digest,
    )


def proof_by(kind: Kind, *, sender=A, value: SealValue | None = None) -> tuple[SealValue, bytes]:
    real = seal_on(FINAL, "x")
    value = value or real
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    return real, sign_message(KeyedHashSigner(sender), place_of(FINAL, kind, 2), body).encoded


@pytest.mark.parametrize("kind", [Kind.SEAL, Kind.PSEAL])
def test_own_seal_of_either_kind_proves(kind):
    basis, data = proof_by(kind)
    assert is_own_seal(data, A, basis, KeyedHashSigner(B))


@pytest.mark.parametrize("kind", [Kind.SEAL, Kind.PSEAL])
def test_seal_of_another_peer_or_of_another_value_proves_nothing(kind):
    signer = KeyedHashSigner(B)
    basis, data = proof_by(kind, sender=B)
    assert not is_own_seal(data, A, basis, signer)
    basis, data = proof_by(kind, value=seal_on(FINAL, "other"))
    assert not is_own_seal(data, A, basis, signer)
    assert not is_own_seal(b"", A, basis, signer)
    basis, data = proof_by(kind)
    assert not is_own_seal(data[:-1] + bytes([data[-1] ^ 1]), A, basis, signer)


@pytest.mark.parametrize("kind", [Kind.SEAL, Kind.PSEAL])
def test_seal_in_the_slot_of_another_round_or_branch_proves_nothing(kind):
    value = seal_on(FINAL, "x")
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    right = place_of(FINAL, kind)
    for slot in (
        replace(right, round=right.round + 1),
        replace(right, shard=right.shard + 1),
        replace(right, run=bytes(32)),
        replace(right, subject=bytes(32)),
    ):
        data = sign_message(KeyedHashSigner(A), slot, body).encoded
        assert not is_own_seal(data, A, value, KeyedHashSigner(B))


def provisional_seal(peer, before: SealValue, value: SealValue) -> bytes:
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    return sign_message(KeyedHashSigner(peer), place_of(before, Kind.PSEAL), body).encoded


def test_voters_of_a_branch_keep_their_votes_only_if_provisional_seals_prove():
    """A proved two rounds before B. Where nobody can prove, A loses its vote first; B, the last
    one, keeps it alone; if B then dies, nobody is left although A sealed every round."""
    signer = KeyedHashSigner(C)

    def voters_after(rounds: int, is_proved):
        a, b = roster_of((A, B)).seats
        value = replace(FINAL, roster=replace(FINAL.roster, seats=(replace(a, proved=2), b)))
        last = None
        for index in range(rounds):
            entries = []
            for peer in (A, B):
                own = commit_body(value, seal=provisional_seal(peer, last, value) if last else b"")
                entries.append(
                    ListedContribution(peer, own, is_proved(own.seal, peer, value, signer))
                )
            roster = rosters.next_roster(value.roster, value.round + 1, entries, trust="friends")
            last, value = value, seal_on(value, f"{index}", roster=roster)
        return voters(value.roster)

    def is_of_a_quorum(data, sender, head, signer) -> bool:
        kind = decode_message(data)[0].slot.kind if data else None
        return kind is Kind.SEAL and is_own_seal(data, sender, head, signer)

    assert voters_after(6, is_own_seal) == (A, B)
    assert voters_after(6, is_of_a_quorum) == (B,)
