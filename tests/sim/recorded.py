"""A clean world's records, and the same with one thing changed: what the checks are tested on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from node.holdings.states import round_config
from node.reporting.tracing import Adopted, Record, Signed
from protocol.identity import KeyedHashSigner, PeerId
from protocol.manifest import RunManifest
from protocol.messages import Kind, SignedMessage, decode_body, sign_message
from sim.checks.invariants import ALL, Circumstances, InvariantBroken, Invariants
from sim.world.nodes import peer_named
from sim.world.toy_run import toy_run
from sim.world.world import World
from tests.sim.mixed import TIMING

NAMES = ("n0", "n1", "n2", "n3")
ROUNDS = 9


def manifest_of_record(rounds: int = ROUNDS) -> RunManifest:
    return toy_run(peer_named(NAMES[0]), rounds=rounds, cells=6, timing=TIMING)


@lru_cache(maxsize=1)
def clean_records() -> tuple[Any, ...]:
    """Four nodes, nine rounds, one of them killed and back in the fifth."""
    records: list[Record] = []
    manifest = manifest_of_record()
    world = World(manifest, seed=4)
    world.tracers.append(records.append)
    config = round_config(manifest)
    peers = [world.peer(name) for name in NAMES]
    world.join(peers[0], config=replace(config, wait_seats=len(peers) - 1))
    for peer in peers[1:]:
        world.join(peer)
    world.run(lambda: world.nodes[peers[3]].round >= 4, 60.0)
    world.crash(peers[3])
    world.later(0.5, lambda: world.bounce(peers[3]))
    world.run(lambda: all(node.round >= ROUNDS for node in world.nodes.values()), 60.0)
    return tuple(records)


def verdict(
    records: Sequence[Record],
    names: frozenset[str] = ALL,
    circumstances: Circumstances | None = None,
) -> Any:
    """What is found in the records: an InvariantBroken, or None."""
    manifest = manifest_of_record()
    signer = KeyedHashSigner(manifest.founder)
    checks = Invariants(manifest, signer=signer, names=names, circumstances=circumstances)
    try:
        for record in records:
            checks.saw(record)
        checks.finish()
    except InvariantBroken as error:
        return error
    return None


def index_of(
    kind: type[Record], fits: Callable[[Any], bool] = lambda _: True, *, last: bool = False
) -> int:
    """Where the first, or last, record of a kind stands that fits."""
    found = [i for i, r in enumerate(clean_records()) if isinstance(r, kind) and fits(r)]
    return found[-1 if last else 0]


def index_of_signed(kind: Kind, round_index: int) -> int:
    """Where a message of that kind and round was signed first."""
    return index_of(
        Signed, lambda r: r.message.slot.kind is kind and r.message.slot.round == round_index
    )


def index_of_adopted(round_index: int) -> int:
    """Where a round was adopted first."""
    return index_of(Adopted, lambda r: r.certificate.value.round == round_index)


def with_changed(index: int, **changes: Any) -> list[Any]:
    """The records, and in one of them other fields."""
    records: list[Any] = list(clean_records())
    records[index] = replace(records[index], **changes)
    return records


def with_inserted(index: int, *more: Any) -> list[Any]:
    """The records, and behind one of them others."""
    records = list(clean_records())
    return [*records[: index + 1], *more, *records[index + 1 :]]


def without(leave_out: Callable[[Any], bool]) -> list[Any]:
    """The records but those."""
    return [record for record in clean_records() if not leave_out(record)]


def body_of(message: SignedMessage) -> Any:
    return decode_body(message)


def signed_anew(message: SignedMessage, body: Any, **slot: Any) -> SignedMessage:
    """What its sender might have signed instead."""
    return signed_by(message.sender, message, body, **slot)


def signed_by(peer: PeerId, like: SignedMessage, body: Any, **slot: Any) -> SignedMessage:
    return sign_message(KeyedHashSigner(peer), replace(like.slot, **slot), body)
