"""I5 at the end of a run: what the nodes keep of it is a ledger that adds up.

The sums here are made from the COMMITs themselves, beside those of `protocol.rounds.credit`.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgpack

from node.reporting.tracing import Adopted, Began, Confirmed, Record
from protocol.errors import LedgerError
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import Commit, SealCertificate, SealValue, SignedMessage, decode_body
from protocol.rounds.credit import ChainRound, Folded, Ledger, prove
from protocol.wire import decode


class OwnRounds:
    """Which rounds every node has made final itself, so that their receipts must be on its disk."""

    def __init__(self) -> None:
        self._rounds: dict[PeerId, set[int]] = {}

    def saw(self, record: Record) -> None:
        """Take a record in."""
        if isinstance(record, Adopted | Confirmed):
            self._rounds.setdefault(record.peer, set()).add(record.certificate.value.round)
        elif isinstance(record, Began) and record.is_lost:
            self.disk_replaced(record.peer)  # It knows that its disk is not what it was.

    def disk_replaced(self, peer: PeerId) -> None:
        """What was on that node's disk is gone."""
        self._rounds.pop(peer, None)

    def of(self, peer: PeerId) -> AbstractSet[int]:
        """Rounds whose receipts that node was given to keep."""
        return self._rounds.get(peer, set())


def check_receipts(
    manifest: RunManifest,
    folded: Folded,
    rounds: Iterable[ChainRound],
    *,
    own: AbstractSet[int],
    signer: Signer | None = None,
    start: SealValue | None = None,
) -> Iterator[str]:
    """What is wrong with one node's ledger; `own` are the rounds that it must be able to prove.

    With a signer all signatures in it are checked. `start` is genesis, if it is not the manifest's.
    """
    owed: dict[PeerId, int] = {credit.peer: credit.tokens for credit in folded.credits}
    unproven, before = 0, 0
    try:
        ledger = Ledger(manifest, folded, signer=signer, start=start)
        for sealed in rounds:
            value, commits = sealed.certificate.value, sealed.commits
            ledger.add(sealed.certificate, commits)
            gained, before = value.clock.tokens - before, value.clock.tokens
            if value.round <= folded.round:
                unproven = value.clock.tokens - sum(owed.values())
            elif commits is None:
                unproven += gained
                if value.round in own:
                    yield f"has no receipts of round {value.round}, which it made final itself"
            else:
                for message in commits:
                    body = decode_body(message)
                    assert isinstance(body, Commit)
                    owed[message.sender] = owed.get(message.sender, 0) + body.tokens
        statement = ledger.statement()
    except LedgerError as error:
        yield f"keeps a ledger that does not hold: {error}"
        return
    if statement.round < max(own, default=0):
        yield f"has made round {max(own)} final, and a ledger up to round {statement.round} only"
    told = {credit.peer: credit.tokens for credit in statement.credits}
    if told != owed or statement.unproven_tokens != unproven:
        yield "adds its receipts up to other credits"
    if sum(owed.values()) + unproven + statement.drift_tokens != statement.tokens:
        yield f"has receipts that do not add up to the {statement.tokens} sealed tokens"


def _digests(messages: Iterable[SignedMessage]) -> Iterator[bytes]:
    return (message.digest for message in messages)


@dataclass(frozen=True, slots=True)
class LedgerDisk:
    """What a node keeps for its ledger: the records of its chain, credits, COMMITs."""

    chain: Sequence[bytes]
    folded: Folded
    commits: Sequence[SignedMessage]


@dataclass(slots=True)
class Ledgers:
    """The ledgers on all disks of a world. They hold the same, or nearly: that is judged once."""

    manifest: RunManifest
    start: SealValue
    _values: dict[bytes, SealValue] = field(default_factory=dict)
    _found: dict[object, list[str]] = field(default_factory=dict)

    def check(self, disk: LedgerDisk, own: AbstractSet[int]) -> list[str]:
        """See `check_receipts`."""
        rounds = list(prove(self._chain(disk.chain), disk.folded, disk.commits))
        said = tuple(
            (one.certificate.value.digest, one.commits is None, *_digests(one.commits or ()))
            for one in rounds
        )
        place = (disk.folded, said, frozenset(own))
        if place not in self._found:
            found = check_receipts(self.manifest, disk.folded, rounds, own=own, start=self.start)
            self._found[place] = list(found)
        return self._found[place]

    def _chain(self, records: Iterable[bytes]) -> Iterator[SealCertificate]:
        """Nodes hold the same seals with other SEALs for them: only those are read anew."""
        for record in records:
            unpacker = msgpack.Unpacker()
            unpacker.feed(record)
            unpacker.read_array_header()
            unpacker.skip()
            first = record[: unpacker.tell()]
            if first not in self._values:
                self._values[first] = decode(SealCertificate, record).value
            seals = msgpack.unpackb(record[len(first) :])
            assert first + msgpack.packb(seals) == record, "a seal that is not canonical"
            yield SealCertificate(value=self._values[first], seals=tuple(seals))
