"""The COMMITs of sealed rounds, kept beside the chain: who did the work, and what proves it.

    receipts.log    a Folded, then a record per COMMIT

A COMMIT says its round and the seal that it is on, and the seal that lists it has its digest: so
order does not matter, a record that no seal of the chain lists counts for nothing, and a missing
one leaves its round unproven and nothing else. What is kept is bounded: the COMMITs of the last two
eras, and of all before them one total per peer.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from node.holdings.record_log import RECORD_BYTES_MAX, PackRecord, RecordLog
from protocol import limits
from protocol.errors import DecodeError
from protocol.messages import (
    Commit,
    Kind,
    SealCertificate,
    SealValue,
    SignedMessage,
    decode_message,
)
from protocol.rounds.credit import CREDITS_MAX, Folded, add_credit, nothing_folded, ranked
from protocol.rounds.round_view import RoundView
from protocol.wire import decode, encode
from training.files.durable import SYSTEM_FILES, Files

logger = logging.getLogger(__name__)

RECEIPTS_FILE = "receipts.log"

ERA_ROUNDS = 256
RECEIPTS_BYTES_MAX = 64 * limits.MIB
"""Two eras of 64 peers with 16 cells take 32 MiB. Who has longer COMMITs keeps fewer rounds."""

ReadChain = Callable[[int, int], Sequence[SealCertificate]]
"""At most so many seals of the own chain, from a round on."""

_PAGE_SEALS = 64


def listed_commits(
    views: Iterable[RoundView], links: Iterable[SealCertificate]
) -> list[SignedMessage]:
    """The COMMITs that these seals list, of the rounds whose messages are still here."""
    named = [digest for certificate in links for digest in certificate.value.commits]
    found = [view.ballots.find(digest) for view in views for digest in named] if named else []
    return [entry.message for entry in found if entry]


class ReceiptLog:
    """One writer; `begin` comes first. Its methods block and raise OSError as RecordLog does."""

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int = RECEIPTS_BYTES_MAX,
        era_rounds: int = ERA_ROUNDS,
        files: Files = SYSTEM_FILES,
        pack: PackRecord | None = None,
    ) -> None:
        self._log = RecordLog(path, on_damage=self._warn, files=files, pack=pack)
        self._bytes_max, self._era_rounds = bytes_max, era_rounds
        self._opened = self._log.take_opened()
        self._folded: Folded | None = None
        self._known: set[bytes] = set()

    def _warn(self) -> None:
        logger.warning("receipts are damaged, some rounds stay unproven")

    def begin(self, start: SealValue, messages: Iterable[SignedMessage]) -> None:
        """Go on with the ledger of the run that begins with the genesis `start`, or begin it.

        `messages` are those of the last rounds: what of them the log lost comes back to it.
        """
        opened, self._opened = self._opened, []
        folded, commits = decode_receipts(opened)
        beginning = nothing_folded(start)
        is_ours = folded is not None and _origin(folded) == _origin(beginning)
        if folded is None or not is_ours:
            if opened:
                logger.warning("receipts begin anew reason=what was there is no ledger of this run")
                self._log.replace([encode(beginning)])
            else:
                self._log.append([encode(beginning)])
            folded, commits = beginning, []
        self._folded, self._known = folded, {message.digest for message in commits}
        self.keep(message for message in messages if message.slot.kind is Kind.COMMIT)

    def keep(self, commits: Iterable[SignedMessage]) -> None:
        """Make COMMITs durable that a final seal lists; those that are here already stay once."""
        fresh = {message.digest: message for message in commits}
        for digest in fresh.keys() & self._known:
            del fresh[digest]
        if fresh:
            assert self._folded is not None, "begin comes first"
            self._log.append([message.encoded for message in fresh.values()])
            self._known |= fresh.keys()

    def read(self) -> tuple[Folded | None, list[SignedMessage]]:
        """What is in the file: see `decode_receipts`."""
        return decode_receipts(self._log.read(0))

    def tidy(self, sealed: int, read_chain: ReadChain) -> None:
        """Fold the rounds that are older than what is kept, once in an era or when it is too long.

        `sealed` is the last round of the chain.
        """
        folded = self._folded
        if folded is None:
            return
        through = (sealed // self._era_rounds - 1) * self._era_rounds - 1
        if self._log.size_bytes > self._bytes_max:
            through = max(through, (folded.round + sealed) // 2)
        if through > folded.round:
            self._fold(folded, through, read_chain)

    def _fold(self, folded: Folded, through: int, read_chain: ReadChain) -> None:
        _, commits = self.read()
        by_digest = {message.digest: message for message in commits}
        totals = {credit.peer: credit for credit in folded.credits}
        index, seal = folded.round, folded.seal
        while index < through:
            page = read_chain(index + 1, min(_PAGE_SEALS, through - index))
            if not page:
                logger.warning("receipts not folded round=%d reason=not in the chain", index + 1)
                return
            for certificate in page:
                value = certificate.value
                index, seal = value.round, value.digest
                listed = [by_digest[name] for name in value.commits if name in by_digest]
                if len(listed) == len(value.commits):
                    for message in listed:
                        add_credit(totals, message.sender, _commit_of(message))
        most = ranked(totals.values())[:CREDITS_MAX]
        self._folded = replace(
            folded,
            round=index,
            seal=seal,
            credits=tuple(sorted(most, key=lambda credit: credit.peer)),
        )
        kept = [message for message in commits if message.slot.round > index]
        self._log.replace([encode(self._folded), *(message.encoded for message in kept)])
        self._known = {message.digest for message in kept}

    def close(self) -> None:
        """Close the file."""
        self._log.close()


def decode_receipts(records: Sequence[bytes]) -> tuple[Folded | None, list[SignedMessage]]:
    """What the records of a receipts.log say; None and nothing if they are no ledger.

    Whatever else is among the COMMITs is left out: no seal lists it.
    """
    if not records:
        return None, []
    try:
        folded = decode(Folded, records[0], max_bytes=RECORD_BYTES_MAX)
    except DecodeError:
        return None, []
    commits = []
    for record in records[1:]:
        try:
            message, body = decode_message(record)
        except DecodeError as error:
            logger.warning("receipt skipped reason=%s", error)
            continue
        if isinstance(body, Commit):
            commits.append(message)
    return folded, commits


def _origin(folded: Folded) -> tuple[bytes, int, bytes]:
    return folded.run, folded.shard, folded.genesis_root


def _commit_of(message: SignedMessage) -> Commit:
    body = decode_message(message.encoded)[1]
    assert isinstance(body, Commit), "decode_receipts takes nothing else"
    return body
