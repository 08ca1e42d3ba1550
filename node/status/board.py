"""What a node tells the people and programs around it: events, and the board that keeps them.

An event goes to whoever started the node, as a JSON line, and to the StatusBoard, from which the
status server's snapshots are made.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TextIO, TypeVar

import trio

from node.status.records import (
    FAULTS_KEPT,
    ROUNDS_KEPT,
    FaultRecord,
    MethodRecord,
    RoundRecord,
    Snapshot,
    TrainerRecord,
)
from node.text.shown import json_text, shown
from protocol.identity import PeerId, peer_id_text

logger = logging.getLogger(__name__)

N = TypeVar("N", int, float)

Field = str | int | float | bool | None | list[str]

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
        self.validations: dict[int, float] = {}
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
                self._validate(_count(fields.get("round")), _number(fields.get("loss")))
            case "method":
                self.method = _method(fields)
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
        round_index = _count(fields.get("round"))
        total = (_count(fields.get("bytes_up")), _count(fields.get("bytes_down")))
        listed = fields.get("listed")
        record = RoundRecord(
            round=round_index,
            digest=_text(fields.get("digest")),
            listed=tuple(listed) if isinstance(listed, list) else (),
            was_listed=fields.get("was_listed") is True,
            members=_count(fields.get("members")),
            voters=_count(fields.get("voters")),
            attempt=_count(fields.get("attempt")),
            wall_s=_number(fields.get("wall_s")) or 0.0,
            bytes_up=max(0, total[0] - self._bytes[0]),
            bytes_down=max(0, total[1] - self._bytes[1]),
            train_loss=_number(fields.get("train_loss")),
            validation_loss=self.validations.get(round_index),
        )
        self._bytes = total
        self.num_sealed += 1
        # A provisional round may give way to another of the same number.
        kept = [old for old in self.rounds if old.round < round_index]
        self.rounds = (*kept[1 - ROUNDS_KEPT :], record)

    def _validate(self, round_index: int, loss: float | None) -> None:
        if loss is None:
            return
        self.validations[round_index] = loss
        while len(self.validations) > ROUNDS_KEPT:
            del self.validations[min(self.validations)]
        self.rounds = tuple(
            replace(old, validation_loss=loss) if old.round == round_index else old
            for old in self.rounds
        )

    def _hear_trainer(self, fields: dict[str, Field]) -> None:
        """A new process has told nothing yet; what a known one says replaces what it said."""
        pid = _whole(fields.get("pid"))
        is_new = pid is not None and pid != self.trainer.pid
        old = TrainerRecord(pid=pid) if is_new else self.trainer
        self.trainer = replace(
            old,
            device=_text(fields.get("device")) or old.device,
            precision=_text(fields.get("precision")) or old.precision,
            threads=_known(_whole(fields.get("threads")), old.threads),
            micro_batch=_known(_whole(fields.get("micro_batch")), old.micro_batch),
            step=_known(_whole(fields.get("step")), old.step),
            loss=_known(_number(fields.get("loss")), old.loss),
        )

    def _warn(self, key: str, text: str) -> None:
        """One warning per key, the newest last; an empty text takes it back."""
        self._warnings.pop(key, None)
        if text:
            self._warnings[key] = shown(text, WARNING_CHARACTERS_MAX)
            while len(self._warnings) > WARNINGS_KEPT:
                del self._warnings[next(iter(self._warnings))]


def _method(fields: dict[str, Field]) -> MethodRecord:
    return MethodRecord(
        preset=_text(fields.get("preset")),
        codec=_text(fields.get("codec")),
        grade=_whole(fields.get("grade")),
        grade_why=_text(fields.get("grade_why")) or None,
        fragments=_count(fields.get("fragments")),
        steps=_count(fields.get("steps")),
        steps_max=_count(fields.get("steps_max")),
        why=_text(fields.get("why")),
        step_s=_number(fields.get("step_s")),
        exchange_s=_number(fields.get("exchange_s")),
        computing=_number(fields.get("computing")),
    )


def peer_texts(peers: tuple[PeerId, ...]) -> list[str]:
    """Peer ids as people and multiaddrs write them."""
    return [peer_id_text(peer) for peer in peers]


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


def _known(new: N | None, old: N | None) -> N | None:
    return old if new is None else new
