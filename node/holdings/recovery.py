"""A node comes back: from journal and checkpoints to the head that it may go on from (R12).

The newest whole checkpoint that lies on the chain, and from there every sealed round whose result
the journal holds, stepped again: the arithmetic is bit-exact, so each state has its sealed root or
is not taken.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.holdings.journal import Journal
from node.holdings.shard_store import ShardStore
from node.holdings.states import State
from protocol.errors import DecodeError, StateError
from protocol.messages import (
    Kind,
    Seal,
    SealCertificate,
    SealValue,
    SignedMessage,
    decode_body,
)
from protocol.rounds.restart import Restart

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredState:
    """Anchor and outer slots as a checkpoint holds them, and the digest of their seal."""

    round: int
    """The last round that is in it."""
    seal: bytes
    anchor_N: NDArray[np.float32]
    slots: Mapping[str, NDArray[np.float32]]


def recover(
    genesis: SealCertificate,
    store: ShardStore,
    journal: Journal,
    states: Iterable[StoredState],
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Restart:
    """Bring the store as far as disk and chain allow; `states` come newest first.

    The store holds the genesis state before. Never raises for bad files: they were skipped by
    whoever read them, and what is missing is fetched from peers; `tell` gets a sentence about it
    for people.
    """
    chain = _linked(genesis, journal.chain())
    head = _place_checkpoint(chain, store, states, tell)
    head = _step_again(chain, head, store, journal)
    closed = len(chain) - 1
    branch = _branch_behind(chain[head], journal.branch()) if head == closed else []
    branch = _step_on(branch, store, journal)
    messages = tuple(journal.messages())
    journal.begin_receipts(genesis.value, _listed(chain, messages))
    # Of the last round too: whoever is one round behind still asks for its result.
    results = recall_results(store, journal, range(head, head + len(branch) + 2))
    if closed > head:
        logger.warning("state is behind the chain round=%d sealed=%d", head, closed)
        tell(
            f"of {closed} sealed rounds this disk has the state of {head}: the others come from "
            "peers, or are trained again"
        )
    signed = _signed_through(chain[head].value, messages)
    silent_through = max(closed if closed > head else 0, signed if signed > head + store.lag else 0)
    return Restart(
        chain=tuple(chain[: head + 1]),
        branch=tuple(branch),
        messages=messages,
        results=results,
        silent_through=silent_through,
        is_lost=journal.is_lost,
    )


def recall_results(store: ShardStore, journal: Journal, rounds: Iterable[int]) -> frozenset[bytes]:
    """Put what the journal has of the results of these rounds into the store; their LISTs."""
    return frozenset(
        digest
        for round_index in rounds
        for digest, data in journal.results(round_index).items()
        if _has_taken(store, digest, data, round_index)
    )


def take_state(
    store: ShardStore, journal: Journal, round_index: int, state: State
) -> frozenset[bytes]:
    """Put a synchronised state in place, and behind it the results which this node still has.

    It may have sealed the round behind that state before its own one was lost, and be the only one
    left with the result: R12 binds all others to that LIST. Returns the LISTs of these results.
    """
    store.replace_state(state)
    return recall_results(store, journal, range(round_index, round_index + 2))


def _signed_through(final: SealValue, messages: Sequence[SignedMessage]) -> int:
    """The last round in whose final chain something was signed, for all that the log tells.

    A round that a provisional seal opened proves nothing of final ones, also on a branch that was
    given up (R4): what was signed there is in the log, whose cut leaves the rounds behind a final
    seal. VOTE and SEAL are signed in none but the round behind a final seal.
    """
    # The latter names the round behind it where two are in flight (R5); else it is of none here.
    known = {final.digest, final.before}
    for message in messages:
        if message.slot.kind is Kind.PSEAL:
            body = decode_body(message)
            assert isinstance(body, Seal)
            known.add(body.value)
    return max(
        (
            message.slot.round
            for message in messages
            if message.slot.basis not in known or message.slot.kind in (Kind.VOTE, Kind.SEAL)
        ),
        default=0,
    )


def _linked(genesis: SealCertificate, stored: Sequence[SealCertificate]) -> list[SealCertificate]:
    """The stored chain as far as every seal names the one before."""
    chain = [genesis]
    for certificate in stored:
        value, last = certificate.value, chain[-1].value
        follows = (value.run, value.shard, value.before) == (last.run, last.shard, last.digest)
        if not follows:
            logger.warning("chain is cut round=%d reason=another run or branch", value.round)
            break
        chain.append(certificate)
    return chain


def _listed(
    chain: Sequence[SealCertificate], messages: Sequence[SignedMessage]
) -> list[SignedMessage]:
    """The COMMITs among the messages that a seal of the chain lists."""
    rounds = {message.slot.round for message in messages}
    named = {name for link in chain if link.value.round in rounds for name in link.value.commits}
    return [message for message in messages if message.digest in named]


def _place_checkpoint(
    chain: Sequence[SealCertificate],
    store: ShardStore,
    states: Iterable[StoredState],
    tell: Callable[[str], None],
) -> int:
    """The round of the newest checkpoint that is on the chain; its state is in the store."""
    is_told = False
    for stored in states:
        if not 0 < stored.round < len(chain):
            logger.warning("checkpoint skipped round=%d reason=not on the chain", stored.round)
            if not is_told:
                tell(
                    f"the seals up to round {stored.round}, of which there is a checkpoint, are "
                    "not on this disk: it cannot be gone on from, and is kept"
                )
                is_told = True
            continue
        value = chain[stored.round].value
        state = store.make_state(stored.anchor_N, stored.slots)
        if (value.digest, value.root) == (stored.seal, state.root):
            store.replace_state(state)
            return stored.round
        logger.warning("checkpoint skipped round=%d reason=not what was sealed", stored.round)
    return 0


def _step_again(
    chain: Sequence[SealCertificate], head: int, store: ShardStore, journal: Journal
) -> int:
    """Take the outer steps of sealed rounds whose results are here; the round that it leads to."""
    for certificate in chain[head + 1 :]:
        value = certificate.value
        data = journal.results(value.round).get(value.list_digest, b"")
        if value.commits and not (data and _has_taken(store, value.list_digest, data, value.round)):
            break
        root = store.apply(value.list_digest, is_empty=not value.commits, round_index=value.round)
        if root != value.root:
            logger.warning("result skipped round=%d reason=not what was sealed", value.round)
            break
        store.adopt(value.list_digest)
        head = value.round
    return head


def _branch_behind(
    final: SealCertificate, stored: Sequence[SealCertificate]
) -> list[SealCertificate]:
    """The stored provisional seals that continue the last final one."""
    branch: list[SealCertificate] = []
    for link in stored:
        last = branch[-1].value if branch else final.value
        if link.value.before == last.digest:
            branch.append(link)
    return branch


def _step_on(
    branch: list[SealCertificate], store: ShardStore, journal: Journal
) -> list[SealCertificate]:
    """R4: as far along the branch as its results are here."""
    for number, link in enumerate(branch):
        value = link.value
        data = journal.results(value.round).get(value.list_digest, b"")
        if value.commits and not (data and _has_taken(store, value.list_digest, data, value.round)):
            return branch[:number]
        digest, is_empty = value.list_digest, not value.commits
        root = store.apply(digest, is_empty=is_empty, round_index=value.round)
        if root != value.root:
            return branch[:number]
        store.advance(digest)
    return branch


def _has_taken(store: ShardStore, digest: bytes, data: bytes, round_index: int) -> bool:
    fragment = store.layout.fragment_of(round_index)
    try:
        store.restore_result(digest, data, fragment=fragment)
    except (StateError, DecodeError) as error:
        logger.warning("result skipped list=%s reason=%s", digest.hex()[:12], error)
        return False
    return True
