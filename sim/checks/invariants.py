"""The promises of a run, I1 to I9, checked against what its nodes did, record by record.

The same for a world, which makes the records, and for files of traces of real processes. What needs
a look into the nodes of a world comes on top, with `sim.trials.watching.watch`.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from node.reporting.tracing import (
    Accused,
    Adopted,
    Advanced,
    Began,
    Confirmed,
    Convicted,
    Record,
    Signed,
    Synced,
)
from protocol.identity import PeerId, Signer, short_id
from protocol.manifest import RunManifest
from sim.checks.accounting import Accounting
from sim.checks.forks import Durability, Equality, Forks
from sim.checks.history import Check, History, Kinds
from sim.checks.leaks import Leaks
from sim.checks.seating import Earning, Seating
from sim.checks.traces import Stalls, Usage


class Accusations(Check):
    """I6 over records: all whose records these are count as honest, but for the `suspects`.

    Those are peers that are bent on purpose, or whose bytes a link spoils.
    """

    name = "I6"
    kinds: Kinds = (Accused, Convicted)

    def __init__(self, history: History, suspects: Collection[PeerId] = ()) -> None:
        self._history = history
        self._suspects = frozenset(suspects)

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        match record:
            case Accused(of=of, reason=reason):
                what = "accuses"
            case Convicted(evidence=evidence):
                of, what, reason = evidence.subject, "convicts", evidence.accusation.name
            case _:
                return
        if of in self._suspects or {record.peer, of} & self._history.bent:
            return
        if of in self._history.lives:
            yield f"{what} {short_id(of)}, which is honest: {reason}"


TITLES = {
    "I1": "durability",
    "I2": "agreement",
    "I3": "no fork",
    "I4": "progress",
    "I5": "accounting",
    "I6": "no honest peer is accused",
    "I7": "bounded",
    "I8": "no secret",
    "I9": "who is there keeps seat and vote",
}
ALL = frozenset(TITLES)


class InvariantBroken(Exception):
    """A finding: a promise that was not kept. `record` is where it showed, if it was one."""

    def __init__(self, name: str, text: str, record: Record | None = None) -> None:
        where = "" if record is None else f" ({short_id(record.peer)} at {record.at_s:.3f} s)"
        super().__init__(f"{name}, {TITLES[name]}: {text}{where}")
        self.name = name
        self.text = text
        self.record = record


def raise_first(name: str, found: Iterable[str], record: Record | None) -> None:
    """Raise InvariantBroken for the first sentence that a check has found."""
    for text in found:
        raise InvariantBroken(name, text, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of a run besides its records.

    `bent` are peers that may be accused: they break rules on purpose, or a link spoils what they
    send. `stall_s` is how long processes that run may go without a seal, None for what the
    manifest allows at most. `skew_s` is how far the clocks of two nodes may be apart. `is_world`
    says that progress is looked after by who knows the world, `may_skip` that nodes take rare
    branches now and then.
    """

    bent: frozenset[PeerId] = frozenset()
    stall_s: float | None = None
    skew_s: float = 0.0
    is_world: bool = False
    may_skip: bool = False


class Invariants:
    """Every record of every node of one run goes through `saw`, in the order of time."""

    def __init__(
        self,
        manifest: RunManifest,
        *,
        signer: Signer,
        names: frozenset[str] = ALL,
        circumstances: Circumstances | None = None,
    ) -> None:
        known = circumstances or Circumstances()
        self.history = History(manifest.trust, lag=manifest.outer.overlap)
        self.leaks = Leaks(self.history)
        self.stalls = Stalls(self.history, manifest, stall_s=known.stall_s)
        checks: list[Check] = [
            Durability(self.history, skew_s=known.skew_s),
            Forks(
                self.history,
                signer,
                manifest.trust,
                skew_s=known.skew_s,
                may_skip=known.may_skip,
            ),
            Equality(self.history),
            Earning(self.history, manifest),
            Seating(self.history, manifest),
            Accounting(self.history, manifest, skew_s=known.skew_s, suspects=known.bent),
            Accusations(self.history, known.bent),
            Usage(4 * max(manifest.layout(shard).numel for shard in range(len(manifest.shards)))),
            self.leaks,
        ]
        if not known.is_world:
            checks.append(self.stalls)
        self._checks = [check for check in checks if check.name in names]
        self._parked: dict[bytes, list[Signed]] = {}
        self._by_kind: dict[type[Record], list[Check]] = {}
        for check in self._checks:
            for kind in check.kinds:
                self._by_kind.setdefault(kind, []).append(check)

    def disk_replaced(self, peer: PeerId) -> None:
        """A node's disk was taken away or set back: what it had told of itself is void."""
        self.history.forget_head(peer)

    def bend(self, peer: PeerId) -> None:
        """From now on this node is not honest, or its machine is broken."""
        self.history.bent.add(peer)

    def saw(self, record: Record) -> None:
        """Take a record in. Raises InvariantBroken at the first promise that it breaks."""
        if isinstance(record, Signed) and record.message.slot.basis not in self.history.values:
            # Durable together with the seal that it rests on, which is told in the same moment.
            self._parked.setdefault(record.message.slot.basis, []).append(record)
            return
        self._take(record)
        if self._parked and isinstance(record, Began | Adopted | Advanced | Confirmed | Synced):
            certificate = record.head if isinstance(record, Began) else record.certificate
            for parked in self._parked.pop(certificate.value.digest, ()):
                self._take(parked)

    def finish(self) -> None:
        """No more records come. Raises InvariantBroken where that breaks a promise."""
        for check in self._checks:
            raise_first(check.name, check.finish(), None)

    def _take(self, record: Record) -> None:
        self.history.saw(record)
        for check in self._by_kind.get(type(record), ()):
            raise_first(check.name, check.saw(record), record)
