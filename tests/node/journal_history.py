"""A journal's history on a simulated disk, and what of it has been promised at any moment.

Each journal call is a Step. What a call that returned was given is promised; of one that did not
return all, nothing or a part may be there, as `Promise` says. What a journal tells when it is
opened is promised as well: the node builds on it.
"""

import copy
import errno
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from blake3 import blake3

from node.holdings.journal import RESULTS_FOLDER, ROUNDS_OF_SLOTS, FileJournal
from protocol.messages import SealCertificate, SignedMessage
from sim.world.files import Fate, SimFiles
from tests.node.builders import Voice, head_of, peers_named

FOLDER = Path("/state/runs/run")
ROTATE_BYTES = 900

ME, OTHER = peers_named(2)
HEAD = head_of((ME, OTHER))


class PowerCut(Exception):
    """The process ends here."""


def message(round_index: int, attempt: int = 0, peer=ME) -> SignedMessage:
    """A VOTE in some slot of a round."""
    return Voice(peer, replace(HEAD.value, round=round_index - 1)).vote([], attempt).message


def seals(first: int, last: int, branch: int = 0) -> list[SealCertificate]:
    """Certificates of these rounds; a journal looks at their order only."""
    return [
        replace(HEAD, value=replace(HEAD.value, round=n, before=bytes([branch] * 32)))
        for n in range(first, last + 1)
    ]


# Steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    messages: tuple[SignedMessage, ...]


@dataclass(frozen=True)
class Extend:
    certificates: tuple[SealCertificate, ...]


@dataclass(frozen=True)
class Keep:
    round: int
    body: bytes

    @property
    def digest(self) -> bytes:
        return blake3(self.body).digest()


@dataclass(frozen=True)
class Saved:
    round: int


@dataclass(frozen=True)
class Forgive:
    pass


@dataclass(frozen=True)
class Restart:
    """The process is killed, and the next one opens its journal."""


Step = Record | Extend | Keep | Saved | Forgive | Restart


@dataclass
class Promise:
    """What must be there, and what may be."""

    messages: dict[bytes, SignedMessage] = field(default_factory=dict)
    maybe_messages: dict[bytes, SignedMessage] = field(default_factory=dict)
    chains: list[list[SealCertificate]] = field(default_factory=lambda: [[]])
    results: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    maybe_results: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    losses: set[bool] = field(default_factory=lambda: {False})
    is_wiped: bool = False
    """Whether the next start is told that the folder was wiped."""

    def copy(self) -> "Promise":
        """Another one with the same in it."""
        own = {name: copy.copy(getattr(self, name)) for name in self.__dataclass_fields__}
        return Promise(**own)

    def begins(self, step: Step) -> None:
        """From now on the step may have been done, in part or whole."""
        match step:
            case Record(messages=messages):
                self.maybe_messages |= {m.digest: m for m in messages}
            case Extend(certificates=certificates):
                first = certificates[0].value.round
                for chain in list(self.chains):
                    if first == len(chain) + 1:
                        stops = range(1, len(certificates) + 1)
                        self.chains += [chain + list(certificates[:stop]) for stop in stops]
                    elif first <= len(chain):
                        self.chains.append(chain[: first - 1] + list(certificates))
            case Keep():
                self.maybe_results[step.round, step.digest] = step.body
            case Saved(round=round_index):
                for key in [key for key in self.results if key[0] < round_index - 1]:
                    self.maybe_results[key] = self.results.pop(key)
            case Forgive():
                self.losses.add(False)
            case Restart():
                pass

    def returned(self, step: Step) -> None:
        """It is done, and durable."""
        match step:
            case Record(messages=messages):
                self.messages |= {m.digest: m for m in messages}
            case Extend(certificates=certificates):
                whole, first = list(certificates), certificates[0].value.round
                self.chains = [chain for chain in self.chains if chain[first - 1 :] == whole]
            case Keep():
                self.results[step.round, step.digest] = step.body
            case Forgive():
                self.losses = {False}
            case Saved() | Restart():
                pass

    def heard(self, told: "Told") -> None:
        """A process told this, so it is promised."""
        self.messages |= {m.digest: m for m in told.messages}
        self.results |= told.results
        self.chains, self.losses = [told.chain], {told.is_lost}

    def check(self, told: "Told") -> None:
        """What a journal tells, and what it may."""
        known = self.messages | self.maybe_messages
        latest = max((m.slot.round for m in known.values()), default=0)
        needed = {d for d, m in self.messages.items() if m.slot.round > latest - ROUNDS_OF_SLOTS}
        got = {m.digest for m in told.messages}
        assert told.is_lost in self.losses, f"is_lost is {told.is_lost}"
        assert told.is_lost or needed <= got, f"{len(needed - got)} signatures are gone"
        assert got <= known.keys(), "signatures that nobody made"
        assert told.chain in self.chains, f"chain of {len(told.chain)}"
        assert told.paged == told.chain, "pages show another chain"
        for key, body in self.results.items():
            assert told.results.get(key) == body, f"result of round {key[0]} is gone"
        both = self.results | self.maybe_results
        assert all(both.get(key) == body for key, body in told.results.items())


@dataclass(frozen=True)
class Told:
    """What a journal says when it is opened."""

    messages: list[SignedMessage]
    chain: list[SealCertificate]
    paged: list[SealCertificate]
    results: dict[tuple[int, bytes], bytes]
    is_lost: bool

    def promise(self) -> Promise:
        promise = Promise()
        promise.heard(self)
        return promise


def opened(files: SimFiles, **options) -> FileJournal:
    return FileJournal(FOLDER, rotate_bytes=ROTATE_BYTES, files=files, **options)


def tell(journal: FileJournal) -> Told:
    chain = list(journal.chain())
    names = journal._files.names(FOLDER / RESULTS_FOLDER)
    return Told(
        messages=list(journal.messages()),
        chain=chain,
        paged=list(journal.read_chain(1, 99)),
        results={
            (index, digest): body
            for index in sorted({int(name.split("-")[1]) for name in names})
            for digest, body in journal.results(index).items()
        },
        is_lost=journal.is_lost,
    )


def do(journal: FileJournal, step: Step) -> None:
    match step:
        case Record(messages=messages):
            journal.record(messages)
        case Extend(certificates=certificates):
            journal.extend_chain(certificates)
        case Keep():
            half = len(step.body) // 2
            cells = [step.body[:half], step.body[half:]]
            journal.write_ahead(step.round, step.digest, [(half, cells[1])])
            journal.keep_result(step.round, step.digest, cells)
        case Saved(round=round_index):
            journal.saved_up_to(round_index)
        case Forgive():
            journal.forgive_loss()


# Runs -------------------------------------------------------------------------------------------


@dataclass
class Operations:
    """Counts file operations, and lets the one numbered `stop` not happen.

    It ends as `how` says: the process ends before it ("cut") or in its midst ("torn": a write has
    put something), or it raises an OSError with that number; `ends_after` so many more operations
    the process ends then. What was done is in `seen`.
    """

    stop: int = -1
    how: str | int = "cut"
    ends_after: int = -1
    seen: list[tuple[str, Path]] = field(default_factory=list)
    is_off: bool = False

    def __call__(self, operation: str, path: Path) -> None:
        if self.is_off:
            raise PowerCut
        self.seen.append((operation, path))
        if 0 < self.ends_after <= len(self.seen) - 1 - self.stop:
            self.is_off = True
            raise PowerCut
        if len(self.seen) - 1 != self.stop:
            return
        if isinstance(self.how, int):
            raise OSError(self.how, errno.errorcode[self.how], str(path))
        self.is_off = True
        if self.how == "torn" and operation == "write":
            raise TornWrite
        raise PowerCut


class TornWrite(PowerCut, OSError):
    """The power goes in the middle of a write, of which the system has taken a part."""


def run(
    files: SimFiles, history: Sequence[Step], *, goes_on: bool = False, is_wiped: bool = False
) -> Promise:
    """Make the calls up to the first that the disk ends; what is promised then.

    With `goes_on` the calls behind one that failed are made as well: other threads of the node do
    so before it is gone. None of them may fail with anything but OSError.
    """
    promise = Promise(losses={is_wiped}, is_wiped=is_wiped)
    try:
        journal = opened(files, is_wiped=is_wiped)
    except (PowerCut, OSError):
        return promise
    promise.is_wiped = False
    for step in history:
        if isinstance(step, Extend) and step.certificates[0].value.round > min(
            len(chain) + 1 for chain in promise.chains
        ):
            continue
        promise.begins(step)
        try:
            if isinstance(step, Restart):
                journal = opened(files)
                told = tell(journal)
                promise.check(told)
                promise.heard(told)
            else:
                do(journal, step)
        except PowerCut:
            return promise
        except OSError:
            if not goes_on or isinstance(step, Restart):
                return promise
        else:
            promise.returned(step)
    return promise


def fates_of(count: int, rng: random.Random, draws: int) -> Iterator[list[Fate]]:
    """All of nothing, all of everything, then every one alone lost or there, then by chance."""
    seen = set()

    def fresh(fates: Sequence[Fate]) -> Iterator[list[Fate]]:
        if tuple(fates) not in seen:
            seen.add(tuple(fates))
            yield list(fates)

    yield from fresh([Fate.LOST] * count)
    yield from fresh([Fate.WHOLE] * count)
    for index in range(count):
        for one, others in ((Fate.LOST, Fate.WHOLE), (Fate.WHOLE, Fate.LOST)):
            fates = [others] * count
            fates[index] = one
            yield from fresh(fates)
    for _ in range(draws):
        yield from fresh(rng.choices(list(Fate), k=count))


def check_disk(files: SimFiles, promise: Promise) -> None:
    """A process comes back: it tells what was promised, and from then on that is promised.

    Then it goes on a little, and the power goes with all that it has not synced.
    """
    files.before = None
    told = tell(opened(files, is_wiped=promise.is_wiped))
    promise.check(told)
    files.power_off([Fate.LOST] * files.num_unsynced)
    journal = opened(files)
    promise = told.promise()
    promise.check(tell(journal))
    latest = max((m.slot.round for m in told.messages), default=1)
    height = len(told.chain) + 1
    for step in (
        Record((message(latest, 77),)),
        Extend((*seals(height, height, branch=9),)),
        Keep(latest, b"more"),
    ):
        promise.begins(step)
        do(journal, step)
        promise.returned(step)
    files.power_off([Fate.LOST] * files.num_unsynced)
    promise.check(tell(opened(files)))
