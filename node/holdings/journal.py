"""What must survive a crash, so that a restarted node contradicts nothing that it has said (R12).

    slots.log    every own signature, before it leaves; before a SEAL what it rests on
    results/     encoded results of certified LISTs, before the SEAL that locks this node on them
    chain.log    final seals with their certificates, before anything is built on them
    receipts.log the COMMITs that they list, before the seals
    branch.log   provisional seals behind the last final one (R4), likewise

Two rounds of signatures are enough: older slots are closed by final seals. On a branch those of
all its rounds stay. Results stay until a
checkpoint that is kept has them in it.
"""

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import trio

from node.holdings.record_log import RECORD_BYTES_MAX, PackRecord, RecordLog, keep_log
from node.holdings.results import Placed, ReadBack, ResultFiles
from protocol import events as ev
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.errors import DecodeError
from protocol.identity import PeerId
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

# Receipts -----------------------------------------------------------------------------------------
#
# The COMMITs of sealed rounds, kept beside the chain: who did the work, and what proves it.
#
#     receipts.log    a Folded, then a record per COMMIT
#
# A COMMIT says its round and the seal that it is on, and the seal that lists it has its digest: so
# order does not matter, a record that no seal of the chain lists counts for nothing, and a missing
# one leaves its round unproven and nothing else. What is kept is bounded: the COMMITs of the last
# two eras, and of all before them one total per peer.

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
            self._known.update(fresh)

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


# Journal records ----------------------------------------------------------------------------------
#
# What the records of a journal's logs hold, and whether its two logs agree.


def messages_of(records: Iterable[bytes]) -> list[SignedMessage]:
    """The messages in the records, up to the first that is none."""
    messages = []
    for record in records:
        try:
            messages.append(decode_message(record)[0])
        except DecodeError as error:
            logger.warning("slot record skipped reason=%s", error)
            break
    return messages


def certificates_of(records: Iterable[bytes], *, first: int | None = 1) -> list[SealCertificate]:
    """Certificates of round `first` and those behind it, up to the first that does not follow."""
    chain: list[SealCertificate] = []
    for record in records:
        try:
            certificate = decode(SealCertificate, record, max_bytes=limits.CONTROL_FRAME_BYTES_MAX)
        except DecodeError as error:
            logger.warning("chain record skipped reason=%s", error)
            break
        if first is not None and certificate.value.round != first + len(chain):
            break
        chain.append(certificate)
    return chain


def is_signed_unlogged(
    me: PeerId, chain: Sequence[SealCertificate], messages: Sequence[SignedMessage]
) -> bool:
    """Whether the chain's last seal rests on a SEAL of ours, and the log ends before its round.

    A crash may have left the chain without the signatures that were to be logged behind it, which
    are of one round. What was signed in the round before is then there.
    """
    if not chain or chain[-1].value.round == 1:
        return False
    last = chain[-1]
    if any(message.slot.round >= last.value.round - 1 for message in messages):
        return False
    return any(message.sender == me for message in messages_of(last.seals))


logger = logging.getLogger(__name__)

# Journal ------------------------------------------------------------------------------------------

SLOTS_FILE, CHAIN_FILE, LOST_FILE = "slots.log", "chain.log", "slots.lost"
BRANCH_FILE = "branch.log"
RESULTS_FOLDER = "results"
ROTATE_BYTES = 256 << 10
"""The log of signatures is cut to its last rounds beyond this size, or beyond twice what they take;
cutting it holds all of it in memory for a moment."""

ROUNDS_OF_SLOTS = 2


class Journal(Protocol):
    """SEAM: the durable memory of one node's share in one shard; files, or the simulator's.

    Called by whoever carries out the core's actions. What a call was given is durable when it
    returns. Raises OSError where that cannot be done: the node must then say no more.
    """

    def record(self, messages: Sequence[SignedMessage]) -> None:
        """Own signatures that are about to leave, and messages of others that they rest on."""
        ...

    def keep_result(
        self, round_index: int, digest: bytes, cells: Sequence[bytes], roots: Sequence[bytes] = ()
    ) -> None:
        """The encoded result of a certified LIST; no cells of an empty one. `roots` are theirs,
        where they are known already."""
        ...

    def write_ahead(self, round_index: int, digest: bytes, cells: Iterable[Placed]) -> None:
        """Cells of a result that may have to be kept soon. Not durable, and raises nothing."""
        ...

    def extend_chain(
        self, certificates: Sequence[SealCertificate], commits: Sequence[SignedMessage] = ()
    ) -> None:
        """Final seals that follow those which are in the chain already, and the COMMITs that they
        list, as far as they are known here.
        """
        ...

    def begin_receipts(self, start: SealValue, messages: Sequence[SignedMessage]) -> None:
        """The run began with the genesis `start`; `messages` may hold receipts that are missing.

        Called once, before the chain grows.
        """
        ...

    def extend_branch(self, certificate: SealCertificate) -> None:
        """A provisional seal that follows the last one given, or the last final one (R4)."""
        ...

    def leave_branch(self) -> None:
        """The branch is given up."""
        ...

    def branch(self) -> Sequence[SealCertificate]:
        """The provisional seals behind the last of `chain`, as they were when it was opened."""
        ...

    def saved_up_to(self, round_index: int) -> None:
        """Every checkpoint that is kept holds what was sealed before that round."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether signatures are missing that may have left: nobody knows what this node said."""
        ...

    def forgive_loss(self) -> None:
        """Nothing that was lost can be signed again; until then a restart is lost as well."""
        ...

    def chain(self) -> Sequence[SealCertificate]:
        """The chain as it was when the journal was opened, without genesis; asked once."""
        ...

    def read_chain(self, first: int, count: int) -> Sequence[SealCertificate]:
        """At most `count` seals of the chain as it is now, from round `first` on."""
        ...

    def messages(self) -> Sequence[SignedMessage]:
        """Own and quoted messages of the last rounds, as they were when it was opened."""
        ...

    def results(self, round_index: int) -> Mapping[bytes, bytes]:
        """By LIST digest the encoded results of a round, all cells behind one another."""
        ...

    def find_result(self, round_index: int, digest: bytes) -> ReadBack | None:
        """Reads bytes of the result of a LIST (start, size); None unless it is kept and whole."""
        ...


class FileJournal:
    """The journal in a run's folder. Its methods block: call them in threads, one or more.

    `is_wiped` says that there is no journal although this peer may have taken part before: whoever
    deletes a run's folder and joins again must ask what it signed. So must `me`, where the chain
    shows that the log of signatures is not all that it was.

    What it finds when it is opened it will answer for. So all of that is made durable first: the
    process before may have been killed after a write and before the sync behind it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        rotate_bytes: int = ROTATE_BYTES,
        is_wiped: bool = False,
        me: PeerId | None = None,
        files: Files = SYSTEM_FILES,
        pack: PackRecord | None = None,
    ) -> None:
        self._files, self._pack = files, pack
        self._rotate_bytes = self._rotate_at_bytes = rotate_bytes
        self._lock = threading.Lock()
        """Signatures and seals come from different threads."""
        self._results = ResultFiles(folder / RESULTS_FOLDER, files)
        self._lost = folder / LOST_FILE
        has_slots = files.exists(folder / SLOTS_FILE)
        if is_wiped or (files.exists(folder / CHAIN_FILE) and not has_slots):
            self._mark_lost()
        # In this order: a chain without slots is then a loss, never an interrupted first start.
        self._slots = RecordLog(
            folder / SLOTS_FILE, on_damage=self._mark_lost, files=files, pack=pack
        )
        self._opened_messages = self._take_messages()
        self._rounds = [(m.digest, m.slot.round) for m in self._opened_messages]
        """Of each record of the log, so that cutting it decodes none."""
        self._logged = {digest for digest, _ in self._rounds}
        self.damage = ""
        """What was found of the chain, for people; nothing where it is whole."""
        self._chain_path = self._kept_chain = folder / CHAIN_FILE
        self._chain = RecordLog(
            self._chain_path,
            on_cut=self._keep_chain,
            on_damage=self._tell_damage,
            files=files,
            pack=pack,
        )
        self._opened_chain = self._take_chain()
        if me and is_signed_unlogged(me, self._opened_chain, self._opened_messages):
            logger.warning("signatures are missing that the chain has path=%s", self._slots.path)
            self._mark_lost()
        self._chain_round = len(self._opened_chain)
        self._receipts = ReceiptLog(folder / RECEIPTS_FILE, files=files, pack=pack)
        self._branch_path = folder / BRANCH_FILE
        self._branch: RecordLog | None = None
        """Opened once there is a branch, as hardly ever."""
        self._branch_head = b""
        self._opened_branch: list[SealCertificate] = []
        if files.exists(self._branch_path):
            self._branch = RecordLog(self._branch_path, files=files, pack=pack)
            self._opened_branch = self._take_branch(self._branch)

    def _take_messages(self) -> list[SignedMessage]:
        """The signatures in their log; nothing stays behind what is none."""
        records = self._slots.take_opened()
        messages = messages_of(records)
        if len(messages) < len(records):
            self._mark_lost()
            self._slots.replace(records[: len(messages)])
        return messages

    def _take_chain(self) -> list[SealCertificate]:
        """The seals of the chain; what follows upon none of them is cut off."""
        records = self._chain.take_opened()
        chain = certificates_of(records)
        if len(chain) < len(records):
            self._keep_chain()
            self._tell_damage()
            self._chain.replace(records[: len(chain)])
        if self.damage:
            self.damage += f" {len(chain)} are whole"
        return chain

    def _keep_chain(self) -> None:
        """Before it is cut: seals of later rounds may stand behind the one that is damaged.

        Also where a crash may have torn a page of them: nobody can tell that from damage.
        """
        self._kept_chain = keep_log(self._chain_path, self._files)
        logger.warning("chain is cut, a copy is kept path=%s", self._kept_chain)

    def _tell_damage(self) -> None:
        if not self.damage:
            kept = f"{CHAIN_FILE} is damaged, and was kept as {self._kept_chain}"
            self.damage = f"{kept}; of its seals"

    def _take_branch(self, log: RecordLog) -> list[SealCertificate]:
        """Provisional seals as far as each follows the one before."""
        branch: list[SealCertificate] = []
        records = log.take_opened()
        for record in records:
            found = certificates_of([record], first=None)
            if not found or (branch and found[0].value.before != branch[-1].value.digest):
                break
            branch += found
        if len(branch) < len(records):
            log.replace(records[: len(branch)])
        self._branch_head = branch[-1].value.digest if branch else b""
        return branch

    def _mark_lost(self) -> None:
        """Before the files are mended: the next start finds them whole and would believe them."""
        self._files.append(self._lost).close()
        self._files.sync_folder(self._lost.parent)

    @property
    def is_lost(self) -> bool:
        """See Journal."""
        return self._files.exists(self._lost)

    def forgive_loss(self) -> None:
        """See Journal."""
        self._files.unlink(self._lost)
        self._files.sync_folder(self._lost.parent)

    def record(self, messages: Sequence[SignedMessage]) -> None:
        """See Journal."""
        with self._lock:
            fresh = [message for message in messages if message.digest not in self._logged]
            if not fresh:
                return
            if self._slots.size_bytes > self._rotate_at_bytes:
                self._rotate(fresh[0].slot.round)
            self._slots.append([message.encoded for message in fresh])
            self._logged |= {message.digest for message in fresh}
            self._rounds += [(message.digest, message.slot.round) for message in fresh]

    def _rotate(self, round_index: int) -> None:
        records = self._slots.read(0)
        if len(records) < len(self._slots):
            # The new file will be whole, and tell nobody that the disk damaged the old one.
            self._mark_lost()
        through = min(round_index, self._chain_round + 1) - ROUNDS_OF_SLOTS
        kept = [
            (record, of)
            for record, of in zip(records, self._rounds, strict=False)
            if of[1] > through
        ]
        self._slots.replace([record for record, _ in kept])
        self._rounds = [of for _, of in kept]
        self._logged = {digest for digest, _ in self._rounds}
        self._rotate_at_bytes = max(self._rotate_bytes, 2 * self._slots.size_bytes)

    def keep_result(
        self, round_index: int, digest: bytes, cells: Sequence[bytes], roots: Sequence[bytes] = ()
    ) -> None:
        """See Journal."""
        if cells:
            self._results.keep(round_index, digest, cells, roots)

    def write_ahead(self, round_index: int, digest: bytes, cells: Iterable[Placed]) -> None:
        """See Journal."""
        self._results.write_ahead(round_index, digest, cells)

    def begin_receipts(self, start: SealValue, messages: Sequence[SignedMessage]) -> None:
        """See Journal."""
        self._receipts.begin(start, messages)

    def read_receipts(self) -> tuple[Folded | None, list[SignedMessage]]:
        """The ledger as it is now: what was folded, and the COMMITs; None before it was begun."""
        return self._receipts.read()

    def extend_chain(
        self, certificates: Sequence[SealCertificate], commits: Sequence[SignedMessage] = ()
    ) -> None:
        """See Journal; starting over from an earlier seal drops what stood behind it."""
        if not certificates:
            return
        # Before the seals: no crash leaves a round in the chain whose receipts were here.
        self._receipts.keep(commits)
        first = certificates[0].value.round
        assert first <= self._chain_round + 1, "a chain has no gaps"
        with self._lock:
            records = [certificate.encoded for certificate in certificates]
            if first <= self._chain_round:
                kept = self._chain.read(0, first - 1)
                if len(kept) < first - 1:
                    raise OSError(errno.EIO, "the disk damaged the chain", str(self._chain.path))
                # All at once: most seals that are dropped are the same as those that come.
                self._chain.replace(kept + records)
            else:
                self._chain.append(records)
            self._chain_round = certificates[-1].value.round
        self._receipts.tidy(self._chain_round, self.read_chain)

    def extend_branch(self, certificate: SealCertificate) -> None:
        """See Journal; one that follows another seal than the last starts the log over."""
        with self._lock:
            if self._branch is None:
                self._branch = RecordLog(self._branch_path, files=self._files, pack=self._pack)
            record, value = certificate.encoded, certificate.value
            if len(self._branch) and (
                value.before != self._branch_head or value.round == self._chain_round + 1
            ):
                self._branch.replace([record])
            else:
                self._branch.append([record])
            self._branch_head = value.digest

    def leave_branch(self) -> None:
        """See Journal."""
        with self._lock:
            if self._branch is not None and len(self._branch):
                self._branch.replace([])
                self._branch_head = b""

    def branch(self) -> Sequence[SealCertificate]:
        """See Journal; what became final since is not of it."""
        branch, self._opened_branch = self._opened_branch, []
        return branch

    def saved_up_to(self, round_index: int) -> None:
        """See Journal; the results of the last rounds stay, for those who step through them."""
        self._results.remove_before(round_index - 1)

    def chain(self) -> Sequence[SealCertificate]:
        """See Journal."""
        chain, self._opened_chain = self._opened_chain, []
        return chain

    def read_chain(self, first: int, count: int) -> Sequence[SealCertificate]:
        """See Journal."""
        with self._lock:
            records = self._chain.read(first - 1, count)
        return certificates_of(records, first=first)

    def messages(self) -> Sequence[SignedMessage]:
        """See Journal."""
        messages, self._opened_messages = self._opened_messages, []
        return messages

    def results(self, round_index: int) -> Mapping[bytes, bytes]:
        """See Journal; files that are not whole are left out, with a warning."""
        return self._results.of_round(round_index)

    def find_result(self, round_index: int, digest: bytes) -> ReadBack | None:
        """See Journal."""
        return self._results.reader(round_index, digest)

    def close(self) -> None:
        """Close the files."""
        self._results.close()
        self._slots.close()
        self._chain.close()
        self._receipts.close()
        if self._branch is not None:
            self._branch.close()


# Write ahead --------------------------------------------------------------------------------------
#
# Hands the cells of results to the disk as they come, so that the SEAL waits for the last only.

SMALL_BYTES = 64 * limits.KIB
"""Cells below it come with small models, whose results are one short write."""

BATCH_BYTES = 8 * limits.MIB
"""What is written in one go: a cell at a time would be a step to a thread and back for each, and
who keeps the result waits for a batch that is under way."""


class WriteAhead:
    """For one driver. `run` writes what was offered; the cells are in the store anyway."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._result: tuple[int, bytes] | None = None
        self._waiting: list[Placed] = []
        self._waiting_bytes = 0
        self._is_due = trio.Event()

    def offer(self, round_index: int, digest: bytes, cells: Sequence[Placed]) -> None:
        """Cells of a result that are here; what waits of another one is not written any more."""
        if self._result != (round_index, digest):
            self._result = round_index, digest
            self._take()
        large = [place for place in cells if len(place[1]) >= SMALL_BYTES]
        self._waiting += large
        self._waiting_bytes += sum(len(payload) for _, payload in large)
        if self._waiting_bytes >= BATCH_BYTES:
            self._is_due.set()

    def _take(self) -> list[Placed]:
        batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
        return batch

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._is_due.wait()
            self._is_due = trio.Event()
            batch = self._take()
            if batch and self._result is not None:
                write = partial(self._journal.write_ahead, *self._result, batch)
                await trio.to_thread.run_sync(write)

    async def keep(
        self, round_index: int, digest: bytes, cells: Sequence[bytes], roots: Sequence[bytes]
    ) -> None:
        """Until the result is on the disk; `roots` are its cells'. Raises OSError."""
        self._take()  # They are among the cells.
        keep = partial(self._journal.keep_result, round_index, digest, cells, roots)
        await trio.to_thread.run_sync(keep)


# Batches ------------------------------------------------------------------------------------------
#
# What must survive of a batch of actions, before any of it is carried out (R12).


@dataclass(frozen=True, slots=True)
class JournalBatch:
    """Seals and signatures that a core's actions rest on. `own` are the signatures among them."""

    links: tuple[SealCertificate, ...]
    listed: tuple[SignedMessage, ...]
    steps: tuple[ev.Advance | ev.FallBack, ...]
    signed: tuple[SignedMessage, ...]
    own: tuple[SignedMessage, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return not (self.links or self.steps or self.signed)

    def write(self, journal: Journal) -> None:
        """On the disk when it returns. Raises OSError."""
        # The chain first: a signature of a round that it does not reach could not be used.
        if self.links:
            journal.extend_chain(self.links, self.listed)
        for step in self.steps:
            if isinstance(step, ev.Advance):
                journal.extend_branch(step.certificate)
            else:
                journal.leave_branch()
        if self.signed:
            journal.record(self.signed)


_NOTHING = JournalBatch((), (), (), (), ())


def _only_send(actions: Sequence[ev.CoreAction]) -> bool:
    for action in actions:  # noqa: SIM110 - asked behind each event: no generator
        if not isinstance(action, ev.Send | ev.SendAll):
            return False
    return True


def batch_of(
    core: NodeCore, actions: Sequence[ev.CoreAction], *, logged_round: int
) -> JournalBatch:
    """What these actions rest on; the chain is on the disk up to `logged_round`."""
    is_longer = core.chain[-1].value.round > logged_round
    if not is_longer and _only_send(actions):
        return _NOTHING  # As nearly always.
    links = [link for link in core.chain if link.value.round > logged_round] if is_longer else []
    listed = listed_commits(core.views(), links) if links else []
    steps: list[ev.Advance | ev.FallBack] = []
    signed: list[SignedMessage] = []
    own: list[SignedMessage] = []
    for action in actions:
        if isinstance(action, ev.RecordSlot):
            own.append(action.message)
            signed.append(action.message)
        elif isinstance(action, ev.RecordProof):
            signed += action.messages
        elif isinstance(action, ev.Advance | ev.FallBack):
            steps.append(action)
        elif isinstance(action, ev.Confirm):
            listed += action.commits
    return JournalBatch(tuple(links), tuple(listed), tuple(steps), tuple(signed), tuple(own))
