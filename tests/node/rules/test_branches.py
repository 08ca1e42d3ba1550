"""R4: what is final, who goes on without a quorum, and which head wins."""

from dataclasses import replace
from itertools import permutations

import pytest
from blake3 import blake3

from protocol.identity import KeyedHashSigner
from protocol.messages import Kind, Seal, SealValue, Vote, decode_message, sign_message
from protocol.rounds import roster as rosters
from protocol.rounds.branches import (
    Lock,
    Opening,
    Position,
    SealSeen,
    Tree,
    better_head,
    contributors,
    head_behind,
    highest_lock,
    is_final,
    is_proof,
    lock_after,
    next_attempt,
    next_list,
    next_round,
    provisional_closer,
    provisional_sealers,
    slot_of,
)
from protocol.rounds.roster import ListedContribution, voters
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


def sealed(*peers, kind: Kind = Kind.SEAL, attempt: int = 0) -> list[SealSeen]:
    return [SealSeen(peer, kind, attempt) for peer in peers]


def go_on(position: Position, *reachable, trust: str = "friends", survive: str = "any"):
    return next_round(position, reachable, trust=trust, survive=survive)


# --- Finality.


def test_seal_is_final_with_a_quorum_of_one_attempt():
    value = seal_on(FINAL, "x")
    assert is_final(AT_FINAL, value, sealed(A, B), trust="friends")
    assert not is_final(AT_FINAL, value, sealed(A, D), trust="friends")


def test_seals_of_two_attempts_do_not_add_up():
    mixed = sealed(A) + sealed(B, attempt=1)
    assert not is_final(AT_FINAL, seal_on(FINAL, "x"), mixed, trust="friends")


def test_provisional_seals_never_count():
    value = seal_on(FINAL, "x")
    provisional = sealed(A, B, C, kind=Kind.PSEAL)
    assert not is_final(AT_FINAL, value, provisional, trust="friends")
    assert not is_final(AT_FINAL, value, [*sealed(A), *provisional], trust="friends")


def test_seal_behind_a_provisional_one_is_not_final_whoever_sealed_it():
    first = seal_on(FINAL, "x")
    second = seal_on(first, "y")
    at_branch = Position(FINAL, first)
    assert not is_final(at_branch, second, sealed(A, B, C), trust="friends")
    assert is_final(Position(first, first), second, sealed(A, B, C), trust="friends")


def test_own_roster_of_a_branch_makes_nothing_final():
    alone = seal_on(FINAL, "x", roster=roster_of((C,)))
    assert not is_final(Position(FINAL, alone), seal_on(alone, "y"), sealed(C), trust="friends")


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


def test_only_members_that_the_basis_names_contribute():
    branch = seal_on(FINAL, "x", roster=roster_of((C,), (E,)))
    assert contributors(Opening(branch, is_provisional=True), (E, D, C)) == tuple(sorted((C, E)))


def test_every_member_of_the_final_seal_closes_some_provisional_attempt_voters_first():
    basis = blake3(b"basis").digest()
    turns = [provisional_closer(AT_FINAL, basis, attempt) for attempt in range(4)]
    assert sorted(turns) == sorted((A, B, C, D))
    assert turns == [provisional_closer(AT_FINAL, basis, attempt + 4) for attempt in range(4)]
    others = seal_on(FINAL, "x", roster=roster_of((C,)))
    assert provisional_closer(Position(FINAL, others), basis, 1) == turns[1]


# --- Slots, attempts and locks.


def test_attempts_on_one_basis_are_numbered_once_for_all():
    assert next_attempt(()) == 0
    assert next_attempt((0, 4, 2)) == 5


def test_slots_of_two_branches_differ_in_the_same_round_and_attempt():
    left, right = seal_on(FINAL, "x"), seal_on(FINAL, "y")
    for kind in (Kind.COMMIT, Kind.VOTE, Kind.PVOTE, Kind.SEAL, Kind.PSEAL):
        assert slot_of(left, kind) != slot_of(right, kind)
        assert slot_of(left, kind).round == slot_of(right, kind).round == FINAL.round + 2


def test_provisional_kinds_have_slots_of_their_own():
    assert slot_of(FINAL, Kind.VOTE, 3) != slot_of(FINAL, Kind.PVOTE, 3)
    assert slot_of(FINAL, Kind.SEAL, 3) != slot_of(FINAL, Kind.PSEAL, 3)


def test_slots_can_be_signed_in():
    signer = KeyedHashSigner(A)
    value = seal_on(FINAL, "x")
    sign_message(signer, slot_of(FINAL, Kind.PVOTE, 1), Vote(list_digest=value.list_digest))
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    sign_message(signer, slot_of(FINAL, Kind.PSEAL, 1), body)


def test_seal_locks_and_provisional_seal_does_not():
    held, new = Lock(FINAL.digest, 1, b"x"), Lock(FINAL.digest, 2, b"y")
    assert lock_after(held, Kind.SEAL, new) == new
    assert lock_after(held, Kind.PSEAL, new) == held
    assert lock_after(None, Kind.PSEAL, new) is None


def test_highest_lock_is_that_of_the_latest_attempt_behind_this_final_seal():
    elsewhere = Lock(bytes(32), 9, b"z")
    locks = [Lock(FINAL.digest, 1, b"y"), Lock(FINAL.digest, 2, b"x"), elsewhere]
    for order in permutations(locks):
        assert highest_lock(FINAL.digest, order) == Lock(FINAL.digest, 2, b"x")
    assert highest_lock(FINAL.digest, [elsewhere]) is None


@pytest.mark.parametrize("is_provisional", [True, False])
def test_round_behind_the_final_seal_takes_up_the_highest_lock(is_provisional):
    branch = seal_on(FINAL, "x")
    locks = [Lock(FINAL.digest, 0, b"low"), Lock(FINAL.digest, 3, b"high")]
    opening = Opening(FINAL, is_provisional)
    position = Position(FINAL, branch)
    assert next_list(tree_of(branch), position, opening, locks) == b"high"


def test_ordinary_round_takes_up_the_first_list_of_the_branch():
    first = seal_on(FINAL, "x")
    second = seal_on(first, "y")
    tree, position = tree_of(first, second), Position(FINAL, second)
    assert next_list(tree, position, Opening(FINAL, False), ()) == first.list_digest
    behind = Position(first, second)
    assert next_list(tree, behind, Opening(first, False), ()) == second.list_digest


def test_later_provisional_rounds_are_free():
    first = seal_on(FINAL, "x")
    lock = Lock(FINAL.digest, 0, first.list_digest)
    position, tree = Position(FINAL, first), tree_of(first)
    assert next_list(tree, position, Opening(first, True), [lock]) is None
    assert next_list(tree, AT_FINAL, Opening(FINAL, True), ()) is None


def test_side_that_leaves_a_head_does_not_take_up_its_lists():
    others = seal_on(FINAL, "x", roster=roster_of((A, B)))
    position = Position(FINAL, others)
    opening = go_on(position, C)
    assert next_list(tree_of(others), position, opening, ()) is None


# --- Meeting.


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


def test_peer_stays_on_its_branch_where_that_continues_the_new_final_seal():
    first, other = seal_on(FINAL, "x"), seal_on(FINAL, "y")
    tip = seal_on(first, "z")
    tree = tree_of(first, other, tip)
    assert head_behind(tree, tip, first) == tip
    assert head_behind(tree, tip, other) == other


# --- Proofs.


def proof_by(kind: Kind, *, sender=A, value: SealValue | None = None) -> tuple[SealValue, bytes]:
    real = seal_on(FINAL, "x")
    value = value or real
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    return real, sign_message(KeyedHashSigner(sender), slot_of(FINAL, kind, 2), body).encoded


@pytest.mark.parametrize("kind", [Kind.SEAL, Kind.PSEAL])
def test_own_seal_of_either_kind_proves(kind):
    basis, data = proof_by(kind)
    assert is_proof(data, A, basis, KeyedHashSigner(B))


@pytest.mark.parametrize("kind", [Kind.SEAL, Kind.PSEAL])
def test_seal_of_another_peer_or_of_another_value_proves_nothing(kind):
    signer = KeyedHashSigner(B)
    basis, data = proof_by(kind, sender=B)
    assert not is_proof(data, A, basis, signer)
    basis, data = proof_by(kind, value=seal_on(FINAL, "other"))
    assert not is_proof(data, A, basis, signer)
    assert not is_proof(b"", A, basis, signer)
    basis, data = proof_by(kind)
    assert not is_proof(data[:-1] + bytes([data[-1] ^ 1]), A, basis, signer)


@pytest.mark.parametrize("kind", [Kind.SEAL, Kind.PSEAL])
def test_seal_in_the_slot_of_another_round_or_branch_proves_nothing(kind):
    value = seal_on(FINAL, "x")
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    right = slot_of(FINAL, kind)
    for slot in (
        replace(right, round=right.round + 1),
        replace(right, shard=right.shard + 1),
        replace(right, run=bytes(32)),
        replace(right, subject=bytes(32)),
    ):
        data = sign_message(KeyedHashSigner(A), slot, body).encoded
        assert not is_proof(data, A, value, KeyedHashSigner(B))


def provisional_seal(peer, before: SealValue, value: SealValue) -> bytes:
    body = Seal(value=value.digest, list_digest=value.list_digest, root=value.root)
    return sign_message(KeyedHashSigner(peer), slot_of(before, Kind.PSEAL), body).encoded


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
        return kind is Kind.SEAL and is_proof(data, sender, head, signer)

    assert voters_after(6, is_proof) == (A, B)
    assert voters_after(6, is_of_a_quorum) == (B,)
