"""I5 at the end of a run: what the nodes keep of it is a ledger that adds up.

The sums here are made from the COMMITs themselves, beside those of `node.credit`.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from node.credit import Folded, Ledger, SealedRound
from node.tracing import Adopted, Began, Confirmed, Record
from protocol.errors import LedgerError
from protocol.identity import PeerId, Signer
from protocol.manifest import RunManifest
from protocol.messages import Commit, SealValue, decode_body


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
    rounds: Iterable[SealedRound],
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
