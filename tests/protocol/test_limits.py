"""The arithmetic of the limits: whatever the types allow at worst fits what carries it."""

import dataclasses
import types
import typing
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import limits
from protocol.frames import (
    BlockHeader,
    BulkHeader,
    BulkItems,
    Chain,
    Heartbeat,
    Messages,
    Refusal,
    Want,
    WantBlocks,
    encode_frame,
)
from protocol.gossip import BucketIds, Entries, Introduction, Rumour, Shuffle
from protocol.grid import TensorSpec, merkle_proof
from protocol.identity import PeerId
from protocol.manifest import sign_manifest
from protocol.messages import (
    Body,
    Commit,
    Have,
    Held,
    Interval,
    Kind,
    Roster,
    Seal,
    SealCertificate,
    SealClock,
    SealValue,
    SeatRecord,
    SignedMessage,
    Slot,
    Vote,
    sign_message,
)
from protocol.wire import OneOf, encode
from tests.protocol.strategies import BODIES, FRAMES, TYPES, fields_of, range_of, resolve, size_of
from tests.protocol.strategies import values as valid
from tests.protocol.vectors import MANIFEST, SIGNED, SIGNER, digest

PEERS = tuple(PeerId(number.to_bytes(32, "big")) for number in range(limits.SEATS_MAX))
DIGESTS = tuple(digest(number) for number in range(limits.SEATS_MAX))


def int_bytes(low: float, high: float) -> int:
    """msgpack's bytes for the widest integer of a range."""
    steps = [(0x7F, 1), (0xFF, 2), (0xFFFF, 3), (0xFFFFFFFF, 5), (2**64, 9)]
    upper = next(size for most, size in steps if high <= most)
    negative = [(-32, 1), (-(2**7), 2), (-(2**15), 3), (-(2**31), 5), (-(2**63), 9)]
    return max(upper, next(size for least, size in negative if low >= least))


def head_bytes(length: int, steps: tuple[tuple[int, int], ...]) -> int:
    return next(size for most, size in steps if length <= most)


ARRAY = ((15, 1), (2**16 - 1, 3), (2**32 - 1, 5))
BIN = ((2**8 - 1, 2), (2**16 - 1, 3), (2**32 - 1, 5))
STR = ((31, 1), *BIN)


def largest(hint: Any) -> int:
    """Bytes of the longest value of a type, from its annotations alone."""
    kind, limit = resolve(hint)
    if isinstance(limit, OneOf):
        return max(len(encode_scalar(value)) for value in limit.values)
    if kind is bool:
        return 1
    if kind is int:
        bound = range_of(kind, limit)
        return int_bytes(bound.low, bound.high)
    if kind is float:
        return 9
    if kind in (str, bytes):
        most = size_of(kind, limit).high
        return most + head_bytes(most, STR if kind is str else BIN)
    if get_origin(kind) is tuple:
        most = size_of(kind, limit).high
        return most * largest(get_args(kind)[0]) + head_bytes(most, ARRAY)
    if get_origin(kind) in (typing.Union, types.UnionType):
        return max(map(largest, get_args(kind)))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        fields = fields_of(kind)
        return head_bytes(len(fields), ARRAY) + sum(map(largest, fields.values()))
    return 1  # a small enumeration


def encode_scalar(value: str | int) -> bytes:
    return value.encode() + b"\x00" if isinstance(value, str) else bytes(int_bytes(value, value))


@pytest.mark.parametrize("kind", TYPES)
@settings(deadline=None, max_examples=settings().max_examples // 10)
@given(data=st.data())
def test_no_value_is_longer_than_the_annotations_say(kind, data):
    """So that the sums below are to be trusted."""
    assert len(encode(data.draw(valid(kind)))) <= largest(kind)


# Messages and frames


@pytest.mark.parametrize("kind", BODIES)
def test_every_body_at_its_longest_fits_a_message(kind):
    assert largest(kind) <= limits.MESSAGE_BODY_BYTES_MAX


@pytest.mark.parametrize("kind", [kind for kind in FRAMES if kind not in (Messages, Entries)])
def test_every_frame_at_its_longest_fits_the_control_stream(kind):
    assert 1 + largest(kind) <= limits.CONTROL_FRAME_BYTES_MAX


def test_any_one_message_fits_a_frame():
    around = largest(SignedMessage) - limits.MESSAGE_BODY_BYTES_MAX
    assert around == 221
    assert 1 + 1 + 1 + largest(SignedMessage) <= limits.CONTROL_FRAME_BYTES_MAX


def signed_bytes(kind: type[Body], *, subject: int) -> int:
    """The longest signed message with that body, and a subject of so many bytes."""
    body = largest(kind)
    slot = largest(Slot) - (32 - subject)
    return 1 + slot + (2 + 32) + (body + head_bytes(body, BIN)) + (2 + 64)


def test_messages_within_messages_fit_their_limit():
    assert signed_bytes(Vote, subject=0) == 223
    assert signed_bytes(Seal, subject=32) == 323
    assert signed_bytes(Seal, subject=32) <= limits.NESTED_MESSAGE_BYTES_MAX
    assert len(SIGNED[Kind.VOTE].encoded) <= 223
    assert len(SIGNED[Kind.SEAL].encoded) <= 323


def largest_commit(cells: int) -> Commit:
    return Commit(
        root=digest(1),
        cell_norms=(1e30,) * cells,
        tokens=limits.TOKENS_PER_ROUND_MAX,
        samples=limits.TOKENS_PER_ROUND_MAX,
        steps=limits.STEPS_PER_ROUND_MAX,
        base=digest(1),
        residual_before=digest(2),
        residual_after=digest(3),
        seal=bytes(limits.NESTED_MESSAGE_BYTES_MAX),
        joins=PEERS,
        suspects=PEERS,
        gone=PEERS,
        bans=PEERS,
        is_past_end=True,
        seen=bytes(limits.SEATS_MAX),
    )


def test_commit_of_the_most_cells_fits_a_control_frame():
    slot = Slot(
        run=digest(1),
        shard=limits.SHARDS_MAX,
        round=limits.ROUNDS_MAX,
        basis=digest(2),
        attempt=0,
        kind=Kind.COMMIT,
    )
    message = sign_message(SIGNER, slot, largest_commit(limits.CELLS_MAX))
    assert len(encode_frame(Messages(messages=(message,)))) < 48 * limits.KIB


def test_have_of_the_most_runs_fits_its_message():
    run = Held(first=256, stop=limits.CELLS_MAX, senders=bytes(limits.SEATS_MAX // 8))
    assert len(encode(run)) == 17
    held = tuple(dataclasses.replace(run, first=c, stop=c + 1) for c in range(limits.HAVE_RUNS_MAX))
    assert len(encode(Have(held=held))) <= 51 * limits.KIB
    # As many runs as cells would not fit: the reason for the limit.
    assert limits.CELLS_MAX * 17 > limits.MESSAGE_BODY_BYTES_MAX


def largest_seal() -> SealCertificate:
    rounds = limits.ROUNDS_MAX
    seats = tuple(
        SeatRecord(
            peer=p,
            seated=rounds,
            voter_since=rounds,
            proved=rounds,
            absent=rounds,
            rate=limits.RATE_LEVEL_MAX,
        )
        for p in PEERS
    )
    gaps = tuple(
        Interval(first=2**61 + 2 * number, stop=2**61 + 2 * number + 1)
        for number in range(limits.LEASE_INTERVALS_MAX)
    )
    value = SealValue(
        run=digest(1),
        shard=limits.SHARDS_MAX,
        round=rounds,
        before=digest(2),
        basis=digest(4),
        commits=DIGESTS,
        drifts=DIGESTS,
        root=digest(3),
        roster=Roster(seats=seats, window=(rounds,) * limits.SEAL_WINDOW, banned=PEERS),
        clock=SealClock(step=2**53, tokens=2**62, cursor=2**62, unused=gaps, ends_run=True),
    )
    return SealCertificate(value=value, seals=(bytes(323),) * limits.SEATS_MAX)


def test_seal_of_the_largest_roster_fits_a_chain_frame_and_two_do_not():
    size = len(encode_frame(Chain(seals=(largest_seal(),))))
    assert 34 * limits.KIB < size < 36 * limits.KIB
    assert limits.CHAIN_SEALS_PER_FRAME_MAX == 1
    assert 2 * size > limits.CONTROL_FRAME_BYTES_MAX


def test_want_covers_the_state_of_the_most_cells_with_two_outer_slots():
    assert limits.WANT_CELLS_MAX == 3 * limits.CELLS_MAX
    assert largest(Want) < limits.CONTROL_FRAME_BYTES_MAX


def test_heartbeat_names_all_messages_of_a_round():
    assert limits.MESSAGES_PER_ROUND_MAX == limits.SEATS_MAX * 8 * 8
    assert largest(Heartbeat) < 58 * limits.KIB


def test_entry_of_the_most_bytes_fits_a_frame():
    frame = Entries(is_push=True, entries=(bytes(limits.ENTRY_BYTES_MAX),) * 3)
    assert len(encode_frame(frame)) < 49 * limits.KIB


def test_frames_of_gossip_are_as_small_as_the_page_says():
    assert largest(Rumour) == 1 + 1 + 34 + 9
    assert largest(Introduction) == 815
    assert largest(Shuffle) < 13 * limits.KIB
    assert largest(BucketIds) < 35 * limits.KIB


def test_refusal_holds_a_manifest_as_large_as_a_frame_allows():
    assert largest(Refusal) + 1 <= limits.CONTROL_FRAME_BYTES_MAX


# Bulk streams and the grid


def test_headers_of_bulk_streams_fit_their_limits():
    assert largest(BulkHeader) == 44
    assert largest(BulkHeader) <= limits.BULK_HEADER_BYTES_MAX
    assert 16 * limits.KIB < largest(BulkItems) <= limits.BULK_ITEMS_HEADER_BYTES_MAX
    assert largest(WantBlocks) <= limits.TEXT_WANT_BYTES_MAX
    assert limits.KIB < largest(BlockHeader) <= limits.TEXT_HEADER_BYTES_MAX
    assert len(merkle_proof([bytes(32)] * 1025, 1024)) <= limits.PROOF_NODES_MAX
    assert limits.TEXT_BLOCKS_MAX.bit_length() - 1 <= limits.PROOF_NODES_MAX


def test_proof_of_a_state_cell_fits_its_header():
    for count in (2 * limits.CELLS_MAX, limits.WANT_CELLS_MAX):
        proof = merkle_proof([bytes(32)] * count, 0)
        assert len(proof) == (count - 1).bit_length() <= 14


def test_cell_is_at_most_a_chunk():
    assert 4 * limits.CELL_ELEMENTS_MAX == limits.CHUNK_BYTES
    assert limits.CELLS_MAX * limits.CELL_ELEMENTS_MAX == 2**30


def test_bit_map_has_a_bit_for_every_seat():
    held = fields_of(Held)["senders"]
    assert 8 * size_of(bytes, resolve(held)[1]).high == limits.SEATS_MAX


# Sums that a seal carries


def test_claims_of_peers_cannot_outgrow_a_seal():
    """A sum beyond its field could not be encoded, and no round would ever be sealed again."""
    clock = fields_of(SealClock)
    contributions = limits.SEATS_MAX * limits.ROUNDS_MAX
    claims = fields_of(Commit)

    def most(hint: Any) -> float:
        kind, limit = resolve(hint)
        return range_of(kind, limit).high

    assert contributions * most(claims["tokens"]) <= most(clock["tokens"])
    assert limits.ROUNDS_MAX * most(claims["steps"]) <= most(clock["step"])
    inner = fields_of(type(MANIFEST.inner))
    assert contributions * most(inner["inner_steps"]) * most(inner["batch"]) <= most(
        clock["cursor"]
    )


def test_coefficients_of_tokens_are_exact_in_double_precision():
    assert limits.SEATS_MAX * limits.TOKENS_PER_ROUND_MAX <= 2**53


# Manifest


def test_manifest_of_a_mixture_of_experts_fits():
    """A tensor with a name of 40 bytes costs 60: over four thousand of them fit."""
    tensor = TensorSpec("x" * 40, (4096, 4096))
    assert len(encode(tensor)) + 3 <= 62
    assert 4096 * 62 + len(encode(sign_manifest(MANIFEST, SIGNER))) < limits.MANIFEST_BYTES_MAX


def test_smallest_tensor_bounds_how_many_a_manifest_holds():
    smallest = len(encode(TensorSpec("ab", ()))) + 3
    assert smallest == 16
    assert limits.MANIFEST_BYTES_MAX // smallest == limits.TENSORS_MAX
