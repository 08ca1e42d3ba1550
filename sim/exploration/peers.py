"""One real machine with its disk and its clock, and the memory of what every such peer did before.

A machine is a pure function of what it is told, so what follows from (machine, event) is worked out
once by the shipped code and remembered by number. A state of the swarm is then a few numbers.

Forks of machines, and the keys by which two of them are the same, walk over whatever an object is
made of, so that a field which is added to a shipped class is copied and compared without a change
here. What is shared is immutable: messages, seals, signers.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, TypeVar, cast

from blake3 import blake3

from protocol import events as ev
from protocol.evidence import Evidence
from protocol.frames import Bulk
from protocol.gram_wire import wire_bytes
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Kind,
    List,
    NewAttempt,
    SealCertificate,
    SealValue,
    SignedMessage,
    decode_message,
    sign_message,
)
from protocol.rounds.agreed import result_place
from protocol.rounds.agreement import time_out_s
from protocol.rounds.ballots import BallotEntry, Ballots
from protocol.rounds.lapses import HAVE_LAPSES_AFTER, LIST_LAPSES_AFTER, LIST_LATE_AFTER
from protocol.rounds.proposal import (
    LIST_AFTER,
    SECOND_CALL_AFTER,
    SECOND_HAVE_AFTER,
    SECOND_LIST_AFTER,
)
from protocol.rounds.reducers import Gathering, GatheringAll
from protocol.rounds.restart import Restart
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import (
    BelievedSums,
    ExpectedPeers,
    MemberRoles,
    RoundCells,
    RoundConfig,
    RoundLapses,
    RoundOutcome,
    RoundView,
)
from sim.exploration.table import Post, contributed, deadline, state_after, sum_root

ObjectT = TypeVar("ObjectT")
Ignored = Mapping[type, Collection[str]]
"""Fields that make no difference to anything that follows, by class."""

# Forks and keys -----------------------------------------------------------------------------------

KEY_BYTES = 16

_ATOMS = (bytes, str, int, float, bool, type(None), frozenset, Enum, range)
_SHARED = (*_ATOMS, type, FunctionType, MethodType)


_PLAIN = frozenset({bytes, str, int, float, bool, type(None)})
_UNSET = object()

_known_shared: dict[type, bool] = {}
_known_kept: dict[tuple[type, int], tuple[str, ...]] = {}
_seen_ignored: list[Ignored] = []
_known_names: dict[type, tuple[str, ...]] = {}


def _is_shared(kind: type) -> bool:
    """Whether objects of this class never change: two forks may have them in common."""
    known = _known_shared.get(kind)
    if known is None:
        parameters = getattr(kind, "__dataclass_params__", None)
        is_frozen = parameters is not None and bool(parameters.frozen)
        known = _known_shared[kind] = issubclass(kind, _SHARED) or is_frozen
    return known


def _slots(kind: type) -> tuple[str, ...]:
    """The names of all slots, those of a dataclass in the order of its fields."""
    known = _known_names.get(kind)
    if known is None:
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            names += [slots] if isinstance(slots, str) else slots
        hidden = ("__dict__", "__weakref__")
        unique = tuple(name for name in dict.fromkeys(names) if name not in hidden)
        known = _known_names[kind] = unique if hasattr(kind, "__slots__") else ()
    return known


def fork(thing: ObjectT) -> ObjectT:
    """A copy that shares nothing with the original that either can change."""
    return cast("ObjectT", _fork(thing, {}))


def _fork(thing: object, done: dict[int, object]) -> object:
    kind = type(thing)
    if _known_shared.get(kind) or _is_shared(kind):
        return thing
    known = done.get(id(thing))
    if known is not None:
        return known
    if kind is dict:
        pairs = cast("dict[object, object]", thing)
        if all(_known_shared.get(type(value)) for value in pairs.values()):
            done[id(thing)] = pairs = pairs.copy()
            return pairs
        copies: dict[object, object] = {}
        done[id(thing)] = copies
        for key, value in pairs.items():
            copies[key] = value if _known_shared.get(type(value)) else _fork(value, done)
        return copies
    if kind is tuple:
        # Not remembered: an empty tuple is one object everywhere, and the parts are remembered.
        return tuple([_fork(part, done) for part in cast("tuple[object, ...]", thing)])
    copied: object
    if isinstance(thing, set):
        copied = set(thing)
    elif isinstance(thing, list):
        copied = [_fork(part, done) for part in thing]
    elif isinstance(thing, deque):
        copied = deque((_fork(part, done) for part in thing), maxlen=thing.maxlen)
    else:
        return _fork_object(thing, done)
    done[id(thing)] = copied
    return copied


def _fork_object(thing: object, done: dict[int, object]) -> object:
    kind = type(thing)
    copied = object.__new__(kind)
    done[id(thing)] = copied
    for name in _slots(kind):
        value = getattr(thing, name, _UNSET)
        if value is not _UNSET:
            is_shared = _known_shared.get(type(value))
            object.__setattr__(copied, name, value if is_shared else _fork(value, done))
    for name, value in getattr(thing, "__dict__", {}).items():
        copied.__dict__[name] = value if _is_shared(type(value)) else _fork(value, done)
    return copied


def key_of(thing: object, ignored: Ignored) -> bytes:
    """KEY_BYTES that are equal for equal objects, whatever the order of their sets and dicts."""
    return blake3(repr(_form(thing, ignored)).encode()).digest()[:KEY_BYTES]


_NAMED: dict[type, Callable[[Any], object]] = {
    SignedMessage: lambda message: message.digest,
    BallotEntry: lambda entry: entry.message.digest,
    SealValue: lambda value: value.digest,
    # By which SEALs it was proved makes no difference to anybody.
    SealCertificate: lambda certificate: certificate.value.digest,
}


def _form(thing: object, ignored: Ignored) -> object:
    """What `thing` is made of, as nested tuples of atoms."""
    kind = type(thing)
    if kind in _PLAIN:
        return thing
    if kind in _NAMED:
        return _NAMED[kind](thing)
    if isinstance(thing, frozenset | set):
        return "set", tuple(sorted([repr(_form(part, ignored)) for part in thing]))
    if issubclass(kind, _ATOMS):
        return thing
    if isinstance(thing, dict):
        # Keys differ, so their forms alone give an order.
        forms = [(repr(k if type(k) in _PLAIN else _form(k, ignored)), v) for k, v in thing.items()]
        forms.sort(key=_first)
        return "dict", tuple([(k, _form(v, ignored)) for k, v in forms])
    if isinstance(thing, tuple | list | deque):
        return tuple([_form(part, ignored) for part in thing])
    if issubclass(kind, type | FunctionType | MethodType):
        return kind.__name__, getattr(thing, "__qualname__", "")
    found: list[object] = [kind.__name__]
    for name in _kept(kind, ignored):
        value = getattr(thing, name, _UNSET)
        if value is not _UNSET:
            found += (name, value if type(value) in _PLAIN else _form(value, ignored))
    left_out = ignored.get(kind, ())
    for name, value in sorted(getattr(thing, "__dict__", {}).items()):
        if name not in left_out:
            found += (name, _form(value, ignored))
    return tuple(found)


def _first(pair: tuple[str, object]) -> str:
    return pair[0]


def _kept(kind: type, ignored: Ignored) -> tuple[str, ...]:
    """The slots that make a difference."""
    known = _known_kept.get((kind, id(ignored)))
    if known is None:
        left_out = ignored.get(kind, ())
        known = tuple(name for name in _slots(kind) if name not in left_out)
        _known_kept[kind, id(ignored)] = known
        _seen_ignored.append(ignored)  # Its number stays its own.
    return known


# One machine --------------------------------------------------------------------------------------

ONLY_FOR_PULLS = {
    RoundCells: ("asked",),
    BelievedSums: ("certified_s", "measured", "summable_s"),
    RoundLapses: ("second_call_s", "ready_s"),
}
"""They time the asking for bytes; here bytes arrive by moves of their own, whoever asked."""

STEPS = (
    1.0,
    SECOND_CALL_AFTER,
    HAVE_LAPSES_AFTER,
    LIST_AFTER,
    SECOND_HAVE_AFTER,
    SECOND_LIST_AFTER,
    LIST_LAPSES_AFTER,
)
"""So many deadlines after its attempt began something falls due for a peer."""

FAR_SAMPLES = 1 << 20

LATE_KINDS = (Kind.COMMIT, Kind.SEAL)
"""What still counts of a round that is sealed (R1)."""

DERIVED = (
    "slices",
    "members",
    "basis",
    "index",
    "_closers",
    "_drawn",
    "_subjects",
)
INDEX = (
    "roster",
    "news",
    "_slots",
    "_by_id",
    "_commits",
    "_commits_sorted",
    "_commit_of",
    "_lists",
    "_votes",
    "_certified",
    "_seals",
    "_sealed",
    "_agreed",
    "_pvotes",
    "_pseals",
    "_ids",
    "_id_set",
    "_certified_sorted",
    "_certified_lists",
)
FOUND_AGAIN = (
    "summing",
    "keeping",
    "own",
    "kept",
    "first_keeping",
    "first_keepers",
    "first_kept",
    "_slices",
    "_me",
    "_belief",
    "_seen",
    "_owing",
)
IGNORED = {
    # Of the times only those make a difference that say which deadlines are past: see `phase_of`.
    RoundView: (*DERIVED, "config", "times"),
    MemberRoles: ("electorate", "set_back", "newcomers"),
    ExpectedPeers: ("expected",),
    RoundOutcome: ("values",),
    **ONLY_FOR_PULLS,
    RoundMachine: ("config", "_signer", "_deadline", "_agenda"),
    Ballots: INDEX,
    Gathering: FOUND_AGAIN,
    GatheringAll: FOUND_AGAIN,
}
"""What follows from the rest of an object, or only times what is moved by hand here."""

Deed = tuple[str | int | bytes, ...]
"""What is done to a peer: a word of `Peers`, and its objects."""

Move = tuple[str, tuple[Deed, ...]]
"""What may happen to a peer: in words, and the deeds."""


@dataclass(slots=True)
class MachinePeer:
    """A machine, its monotonic clock, and what it has on its disk.

    `sent`, `adopted` and `known`, seals that are not final, collect what the last deed led to;
    `broken` says what a machine must never do. Whoever is among the `liars` may be blamed.
    """

    machine: RoundMachine
    chain: tuple[SealCertificate, ...]
    now_s: float = 0.0
    journal: dict[bytes, SignedMessage] = field(default_factory=dict)
    results: set[bytes] = field(default_factory=set)
    has_lost_disk: bool = False
    sent: list[SignedMessage] = field(default_factory=list)
    adopted: list[SealCertificate] = field(default_factory=list)
    known: list[SealCertificate] = field(default_factory=list)
    actions: list[ev.RoundAction] = field(default_factory=list)
    broken: str = ""
    liars: frozenset[PeerId] = frozenset()
    spoiled: set[bytes] = field(default_factory=set)
    """LISTs of whose result it has cells that the parts do not give."""
    evidence: dict[PeerId, Evidence] = field(default_factory=dict)
    """What it holds against whom, on its disk."""

    def tell(self, event: ev.RoundEvent) -> None:
        """Hand an event to the machine, and carry out what it asks for, in order."""
        self._ask(lambda: self.machine.handle(event, self.now_s))

    def _ask(self, ask: Callable[[], list[ev.RoundAction]]) -> None:
        try:
            self._carry_out(ask())
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A machine that cannot go on is a finding like any other, with the trace to it.
            self.broken = f"{type(error).__name__}: {error}"

    def _carry_out(self, actions: list[ev.RoundAction]) -> None:
        due: deque[ev.RoundAction] = deque(actions)
        while due and not self.broken:
            for event in list(self._act(due.popleft())):
                due.extend(self.machine.handle(event, self.now_s))

    def _act(self, action: ev.RoundAction) -> Iterator[ev.RoundEvent]:
        """Carry out an action; the answers of the node's own threads come at once."""
        match action:
            case ev.RecordSlot(message=message):
                self.journal[message.digest] = message
            case ev.RecordProof(messages=messages):
                self.journal |= {message.digest: message for message in messages}
            case ev.Broadcast(message=message):
                self.sent.append(message)
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                if not is_empty:
                    self.results.add(digest)
                mark = b"spoiled" if digest in self.spoiled else b""
                yield ev.Applied(digest, state_after(digest + mark))
            case ev.Reduce(list_digest=digest, first=first, stop=stop, grams=grams):
                is_right = not any(b"".join(grams))
                if not is_right:
                    self.spoiled.add(digest)
                yield ev.Reduced(digest, first, stop, sum_root(digest, first, stop, is_right))
            case ev.Measure(list_digest=digest, entries=entries, first=first, stop=stop):
                yield ev.Measured(digest, first, stop, bytes(wire_bytes(len(entries))))
            case ev.Adopt(certificate=certificate):
                self.chain = (*self.chain, certificate)
                self.adopted.append(certificate)
            case ev.Accuse(evidence=evidence):
                self.evidence.setdefault(evidence.subject, evidence)
            case ev.Fault(peer=peer, reason=reason):
                if peer not in self.liars:
                    self.broken = f"an honest peer is blamed: {reason}"
            case ev.Resync(reason=reason):
                self.broken = f"diverged: {reason}"
            case ev.CheckSeat(peer=peer, basis=basis):
                yield ev.SeatChecked(peer, basis, is_proved=True)
            case ev.Push() | ev.Pull():
                self.actions.append(action)

    def hear(self, message: SignedMessage) -> None:
        """A message arrives; as in a core, the VOTEs that it quotes before it."""
        _, body = decode_message(message.encoded)
        ended = self.machine.ended_on(message.slot.basis)
        if ended is not None and message.slot.kind in LATE_KINDS:
            self._ask(lambda: self.machine.hear_late(ended, BallotEntry(message, body)))
            return
        if isinstance(body, List | NewAttempt):
            for data in body.certificate:
                self.tell(ev.Heard(*decode_message(data)))
        self.tell(ev.Heard(message, body))

    def convict(self, evidence: Evidence) -> None:
        """Somebody else's evidence arrives, by gossip."""
        self.evidence[evidence.subject] = evidence
        self.tell(ev.EvidenceHeld((evidence,)))

    def result(self, digest: bytes) -> None:
        """The whole result of a LIST arrives."""
        view = self.machine.standing.about(digest) or self.machine.view
        cells = tuple(range(view.cells.num_cells))
        self.tell(ev.CellsArrived(Bulk.RESULT, digest, cells))

    def cell_of(self, digest: bytes, cell: int, root: bytes) -> None:
        """A cell of a result arrives: as at a node's edge, only of the sum that is believed."""
        view = self.machine.standing.about(digest)
        place = result_place(view, digest, cell) if view is not None else None
        if place is not None and place.root == root and view is not None:
            if root != sum_root(digest, place.first, place.stop):
                self.spoiled.add(digest)
            self.tell(ev.CellsArrived(Bulk.RESULT, digest, (cell,)))

    def restart(self, *, is_lost: bool = False) -> None:
        """R12: killed, and started again from what is on the disk; or with an empty disk."""
        if is_lost:
            self.has_lost_disk = True
            self.journal, self.results, self.chain = {}, set(), self.chain[:1]
            self.evidence = {}
        fresh = RoundMachine(
            self.machine.config,
            KeyedHashSigner(self.machine.view.me),
            self.chain[0],
            now_s=self.now_s,
        )
        restart = Restart(
            chain=self.chain,
            messages=tuple(message for _, message in sorted(self.journal.items())),
            results=frozenset(self.results),
            is_lost=self.has_lost_disk,
        )
        fresh.resume(restart, now_s=self.now_s)
        self.machine = fresh
        if self.evidence:
            self.tell(ev.EvidenceHeld(tuple(self.evidence.values())))

    def contribute(self) -> None:
        """The trainer hands over its contribution; behind a lost disk it is another one."""
        mark = "again" if self.has_lost_disk else ""
        worked_for = self.machine.standing.worked_for
        view = next((v for v in worked_for if v.own.contribution is None), worked_for[0])
        self.tell(contributed(view.me, view.index, view.cells.num_cells, mark))

    def take_seat(self) -> None:
        """R11: ask for a seat."""
        view = self.machine.view
        self._carry_out(list(self.machine.take_seat(view.basis, bytes(32))))

    def pass_deadline(self, deadlines: float) -> None:
        """Time passes until so many deadlines of the attempt are over."""
        view = self.machine.view
        if view.times.opened_s is not None:
            length_s, start_s = deadline().seconds(view.times.time_outs), view.attempt_start_s
            start_s = self.now_s if start_s == math.inf else start_s
            self.now_s = max(self.now_s, start_s + deadlines * length_s)
        self.tell(ev.Tick())

    def time_out(self) -> None:
        """Time passes until the attempt is given up, whoever else is seen in it."""
        view = self.machine.view
        if view.attempt_start_s == math.inf:
            view.times.entered_s = self.now_s
        self.now_s = max(self.now_s, time_out_s(view, deadline()))
        self.tell(ev.Tick())

    def phase(self) -> tuple[bool | bytes | int | str, ...]:
        """Whether the rules need not be asked, and the phase of the round they are asked about."""
        view = self.machine.view
        is_quiet = self.machine._agenda.is_quiet(view, self.now_s, with_pulls=False)
        beside = self.machine.standing.beside
        other = self.phase_of(beside) if beside is not None else ()
        return is_quiet, *self.phase_of(view), *other

    def phase_of(self, view: RoundView) -> tuple[bool | bytes | int | str, ...]:
        """Whether the round is open, which deadlines are past, where substitutes were called."""
        if view.times.opened_s is None:
            return ()
        waited_s = self.now_s - view.attempt_start_s
        length_s = deadline().seconds(view.times.time_outs)
        is_over = self.now_s >= time_out_s(view, deadline())
        is_timed = view.attempt_start_s < math.inf
        # Where several sum, whoever waits too long for their words calls the next one.
        since = view.sums.certified_s.items() if view.copies > 1 else ()
        late = sorted(digest for digest, at_s in since if self.now_s - at_s >= length_s)
        summable = view.sums.summable_s.items() if view.copies > 1 else ()
        late += sorted(digest for digest, at_s in summable if self.now_s - at_s >= length_s)
        called: list[int | str] = [
            *sorted(view.lapses.second_call_s),
            "ready",
            *sorted(view.lapses.ready_s),
        ]
        ready = [
            self.now_s - at_s >= LIST_LATE_AFTER * length_s for at_s in view.lapses.ready_s.values()
        ]
        passed = sum(waited_s >= step * length_s for step in STEPS)
        return (*late, *called, *ready, True, is_timed, passed, is_over)

    def propose(self, body: List) -> None:
        """As the closer of its attempt, propose this LIST, whatever its duty is."""
        view = self.machine.view
        message = sign_message(
            KeyedHashSigner(view.me), view.slot(Kind.LIST, attempt=view.attempt), body
        )
        view.ballots.add(BallotEntry(message, body), is_own=True)
        self.journal[message.digest] = message
        self.sent.append(message)
        self.tell(ev.Tick())

    def wrong(self) -> str:
        """What must never be, whatever was heard."""
        return ""

    def key(self) -> bytes:
        """Equal for peers that will do the same, whatever they are told.

        One order of the journal stands for all: a restart makes the same machine of any.
        """
        disk = (sorted(self.journal), sorted(self.results), self.has_lost_disk, self.broken)
        chain = [certificate.value.digest for certificate in self.chain]
        parts = (self.machine, self.phase(), disk, chain, sorted(self.spoiled), set(self.evidence))
        return key_of(parts, IGNORED)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a deed led to: messages signed, by number, values adopted, and what must never be."""

    sent: tuple[int, ...]
    adopted: tuple[bytes, ...]
    broken: str


class Peers:
    """Every state that a peer was ever in, by number, and what followed from which deed."""

    def __init__(
        self, post: Post, config: RoundConfig, liars: frozenset[PeerId] = frozenset()
    ) -> None:
        self.post, self.config, self._liars = post, config, liars
        self.states: list[MachinePeer] = []
        self.lists: list[List] = []
        self._numbers: dict[bytes, int] = {}
        self._known: dict[tuple[int, tuple[Deed, ...]], tuple[int, Effect]] = {}

    def fresh(self, peer: PeerId, head: SealCertificate) -> MachinePeer:
        """A peer that begins at `head`."""
        machine = RoundMachine(self.config, KeyedHashSigner(peer), head, now_s=0.0)
        if self.config.clock.lag == 1:
            return MachinePeer(machine, (head,), liars=self._liars)
        # Two seals name the rounds in flight (R5): the one before has the same roster.
        # No sample that it leases is leased again by the next one.
        clock = replace(head.value.clock, cursor=FAR_SAMPLES)
        value = replace(head.value, round=head.value.round - 1, clock=clock)
        before = replace(head, value=value)
        machine.reset(head, now_s=0.0, before=before.value)
        return MachinePeer(machine, (before, head))

    def number(self, peer: MachinePeer) -> int:
        """The number of the state that a peer is in; the peer must not be used any more."""
        key = peer.key()
        known = self._numbers.get(key)
        if known is None:
            known = self._numbers[key] = len(self.states)
            peer.sent, peer.adopted, peer.known, peer.actions = [], [], [], []
            self.states.append(peer)
        return known

    def do(self, number: int, deeds: tuple[Deed, ...]) -> tuple[int, Effect]:
        """What becomes of a peer by these deeds, in this order."""
        known = self._known.get((number, deeds))
        if known is None:
            known = self._known[number, deeds] = self._work_out(number, deeds)
        return known

    def _work_out(self, number: int, deeds: Iterable[Deed]) -> tuple[int, Effect]:
        peer = fork(self.states[number])
        for deed in deeds:
            self._carry_out(peer, deed)
        sent = tuple(self.post.number(message) for message in peer.sent)
        adopted = tuple(certificate.value.digest for certificate in peer.adopted)
        for certificate in (*peer.adopted, *peer.known):
            self.post.rosters[certificate.value.digest] = certificate.value.roster
        effect = Effect(sent, adopted, peer.broken or peer.wrong())
        return self.number(peer), effect

    def _carry_out(self, peer: MachinePeer, deed: Deed) -> None:
        match deed:
            case ("hear", int(number)):
                peer.hear(self.post.letters[number].message)
            case ("result", bytes(digest)):
                peer.result(digest)
            case ("cell", bytes(digest), int(cell), bytes(root)):
                peer.cell_of(digest, cell, root)
            case ("cell", bytes(digest), int(cell)):
                peer.tell(ev.CellsArrived(Bulk.RESULT, digest, (cell,)))
            case ("deadline", int(halves)):
                peer.pass_deadline(halves / 2)
            case ("time-out",):
                peer.time_out()
            case ("propose", int(index)):
                peer.propose(self.lists[index])
            case ("contribute",):
                peer.contribute()
            case ("seat",):
                peer.take_seat()
            case ("restart",):
                peer.restart()
            case ("restart", "no results"):
                peer.results.clear()
                peer.restart()
            case ("lost disk",):
                peer.restart(is_lost=True)
            case ("wake",):
                peer.tell(ev.Woke())
            case ("status", bytes(other), int(round_index)):
                peer.tell(ev.StatusHeard(PeerId(other), round_index))
            case ("part", bytes(commit), int(cell)):
                peer.tell(ev.CellsArrived(Bulk.PART, commit, (cell,)))
            case ("suspect", *suspects):
                peer.tell(ev.SuspicionsChanged(frozenset(PeerId(s) for s in suspects)))  # type: ignore[arg-type]
            case _:
                raise AssertionError(f"no such deed: {deed}")
