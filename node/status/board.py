"""What a node tells the people and programs around it: events, and the board that keeps them.

An event goes to whoever started the node, as a JSON line, and to the StatusBoard, from which the
status server's snapshots are made.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, TextIO, TypeVar, get_type_hints

import trio

from node.status.records import (
    FAULTS_KEPT,
    ROUNDS_KEPT,
    FaultRecord,
    MethodRecord,
    PhaseTimes,
    RoundRecord,
    Snapshot,
    TrainerRecord,
)
from node.text.shown import json_text, shown
from protocol import limits
from protocol.identity import PeerId, peer_id_text

logger = logging.getLogger(__name__)

Field = str | int | float | bool | None | list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated:
    """A held-out loss, nats per byte, over so many of the windows that there are."""

    loss: float | None
    windows: int | None = None
    of_windows: int | None = None


T = TypeVar("T", RoundRecord, MethodRecord, TrainerRecord, PhaseTimes, Validated)

WARNINGS_KEPT = 8
WARNING_CHARACTERS_MAX = 300


FORGOTTEN = (
    "the disk lost what this node signed, and of the voters in {where} no other can tell, so it "
    "waits and signs nothing: start the nodes that know of later rounds. If there are none, this "
    "run cannot go on: take its weights with barnraise export, and found another with "
    "barnraise run --new"
)
"""The warning of a node that waits for a memory which it cannot get (R12)."""


class EventSink(Protocol):
    """SEAM: takes the events of a node. Called by its network process, from its one trio thread."""

    def emit(self, event: str, **fields: Field) -> None:
        """Take one event; never waits, never raises."""
        ...


@dataclass(slots=True)
class EventLog:
    """Events as JSON lines on `stream`, or nowhere, and to the sinks in `also`.

    `time_s` counts from the node's start.
    """

    stream: TextIO | None
    started_s: float
    also: tuple[EventSink, ...] = ()

    @classmethod
    def on_stdout(cls, *, is_enabled: bool, also: tuple[EventSink, ...] = ()) -> "EventLog":
        """The log that `--events` asks for."""
        return cls(sys.stdout if is_enabled else None, trio.current_time(), also)

    def emit(self, event: str, **fields: Field) -> None:
        """One line. A reader that is gone is not our concern; its end shows on stdin."""
        for sink in self.also:
            sink.emit(event, **fields)
        if self.stream is None:
            return
        line = {"event": event, "time_s": round(trio.current_time() - self.started_s, 4), **fields}
        try:
            self.stream.write(json_text(line) + "\n")
            self.stream.flush()
        except (BrokenPipeError, ValueError):
            self.stream = None
        except OSError as error:
            # A file on a disk that is full: the line is lost, the node goes on.
            logger.debug("event not written reason=%s", error)


@dataclass(frozen=True, slots=True)
class Phase:
    """What the driver said last of the round under way."""

    name: str
    round: int
    attempt: int


class StatusBoard:
    """Keeps what the events say, bounded. One thread owns it, all but `current`.

    `current` is a frozen snapshot that is replaced whole: the server's thread reads it at any time.
    Events may come from any module of this node; a field that is missing is taken as unknown.
    """

    def __init__(self, now_s: Callable[[], float] = trio.current_time) -> None:
        self.current: Snapshot | None = None
        self.started_s = now_s()
        self.phase: Phase | None = None
        self.trainer = TrainerRecord()
        self.method: MethodRecord | None = None
        self.rounds: tuple[RoundRecord, ...] = ()
        self.last_times: PhaseTimes | None = None
        self.total_times: PhaseTimes | None = None
        self.validations: dict[int, Validated] = {}
        """Validation losses by the round that made the anchor; 0 is genesis."""

        self.num_sealed = 0
        self.num_faults = 0
        self.checkpoint: str | None = None
        self.has_started = False
        """Whether the node was past `starting` once: it does not go back when it leaves."""

        self._now_s = now_s
        self._bytes = (0, 0)
        self._faults: deque[FaultRecord] = deque(maxlen=FAULTS_KEPT)
        self._warnings: dict[str, str] = {}

    @property
    def faults(self) -> tuple[FaultRecord, ...]:
        """The last faults, oldest first."""
        return tuple(self._faults)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What `warning` events said and did not take back."""
        return tuple(self._warnings.values())

    def emit(self, event: str, **fields: Field) -> None:
        """Take one event; those that say nothing about status are let pass."""
        match event:
            case "phase":
                phase, round_index = _text(fields.get("phase")), _count(fields.get("round"))
                self.phase = Phase(phase, round_index, _count(fields.get("attempt")))
            case "sealed":
                self._seal(fields)
            case "validation":
                self._validate(_count(fields.get("round")), _record_of(Validated, fields))
            case "method":
                self.method = _record_of(MethodRecord, fields)
            case "times":
                self.last_times = _record_of(PhaseTimes, fields)
                self.total_times = (self.total_times or PhaseTimes()) + self.last_times
            case "trainer" | "trainer_ready" | "progress":
                self._hear_trainer(fields)
            case "fault":
                self.num_faults += 1
                peer, reason = shown(_text(fields.get("peer"))), shown(_text(fields.get("reason")))
                at_s = round(self._now_s() - self.started_s, 3)
                self._faults.append(FaultRecord(peer=peer, reason=reason, at_s=at_s))
            case "more_faults":
                self.num_faults += _count(fields.get("count"))
            case "finished":
                self.checkpoint = _text(fields.get("checkpoint")) or None
            case "warning":
                self._warn(_text(fields.get("key")), _text(fields.get("text")))

    def _seal(self, fields: dict[str, Field]) -> None:
        said = _record_of(RoundRecord, fields)
        before, self._bytes = self._bytes, (said.bytes_up, said.bytes_down)
        record = replace(
            _with_loss(said, self.validations.get(said.round)),
            bytes_up=max(0, said.bytes_up - before[0]),
            bytes_down=max(0, said.bytes_down - before[1]),
        )
        self.num_sealed += 1
        # A provisional round may give way to another of the same number.
        kept = [old for old in self.rounds if old.round < record.round]
        self.rounds = (*kept[1 - ROUNDS_KEPT :], record)

    def _validate(self, round_index: int, found: Validated) -> None:
        if found.loss is None:
            return
        self.validations[round_index] = found
        while len(self.validations) > ROUNDS_KEPT:
            del self.validations[min(self.validations)]
        self.rounds = tuple(
            _with_loss(old, found) if old.round == round_index else old for old in self.rounds
        )

    def _hear_trainer(self, fields: dict[str, Field]) -> None:
        """A new process has told nothing yet; what a known one says replaces what it said."""
        said = _record_of(TrainerRecord, fields)
        is_new = said.pid is not None and said.pid != self.trainer.pid
        known = {name: value for name, value in asdict(said).items() if value is not None}
        self.trainer = replace(TrainerRecord() if is_new else self.trainer, **known)

    def _warn(self, key: str, text: str) -> None:
        """One warning per key, the newest last; an empty text takes it back."""
        self._warnings.pop(key, None)
        if text:
            said = shown(text, WARNING_CHARACTERS_MAX)
            limits.keep_newest(self._warnings, key, said, WARNINGS_KEPT)


def _with_loss(record: RoundRecord, found: Validated | None) -> RoundRecord:
    if found is None:
        return record
    return replace(
        record,
        validation_loss=found.loss,
        validation_windows=found.windows,
        validation_of=found.of_windows,
    )


def peer_texts(peers: tuple[PeerId, ...]) -> list[str]:
    """Peer ids as people and multiaddrs write them."""
    return [peer_id_text(peer) for peer in peers]


def _record_of(kind: type[T], fields: Mapping[str, Field]) -> T:
    """What an event says of a record's fields; what is missing, or no such thing, is unknown."""
    hints = get_type_hints(kind).items()
    return kind(**{name: _READERS[hint](fields.get(name)) for name, hint in hints})


def _text(field: Field) -> str:
    return field if isinstance(field, str) else ""


def _whole(field: Field) -> int | None:
    return field if isinstance(field, int) and not isinstance(field, bool) else None


def _count(field: Field) -> int:
    return _whole(field) or 0


def _number(field: Field) -> float | None:
    if isinstance(field, bool) or not isinstance(field, int | float):
        return None
    return float(field)


_READERS: dict[object, Callable[[Field], Any]] = {
    str: _text,
    str | None: lambda field: _text(field) or None,
    int: _count,
    int | None: _whole,
    float: lambda field: _number(field) or 0.0,
    float | None: _number,
    bool: lambda field: field is True,
    tuple[str, ...]: lambda field: tuple(field) if isinstance(field, list) else (),
}
