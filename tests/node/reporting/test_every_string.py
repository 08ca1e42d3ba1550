"""Whatever strangers may write, through every line for people: no terminal obeys any of it.

The strings are not listed: they are found by the types of manifest, entries, messages, frames and
records, so that a field which comes later is fed through as well. What a type refuses never comes
as far as a line; what it takes is put into all lines that are made of such a record.
"""

import dataclasses
import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dht.kademlia.keyspace import topic_key
from dht.kademlia.records import sign_record
from node import cli
from node.commands.founding import _print_runs
from node.peers.handshake import refusal_error
from node.peers.invite import Invite
from node.peers.public_runs import RunAdvert, public_runs, topic_of
from node.reporting.logs import JsonFormatter, TextFormatter
from node.reporting.people import Occasion, PeopleLog, what_joining_means
from node.status.doctor import findings
from node.status.records import NodeStatus, PeerReport, PeerTable, from_plain
from node.status.server import render_metrics
from node.status.snapshot import snapshot
from node.status.tables import draw_doctor, draw_peers, draw_status
from node.text.terminal import PeopleConsole
from protocol.entry_kinds import RULES, Identity
from protocol.errors import DecodeError, RefusedError
from protocol.frames import Hello, Refusal
from protocol.identity import Ed25519Signer
from protocol.manifest import (
    RunManifest,
    first_difference,
)
from protocol.messages import Commit, Seat
from protocol.wire import OneOf, encode
from tests.node.cores import A, B, C, core_of
from tests.node.status_scene import board_at, sources_of
from tests.protocol.manifest_vector import MANIFEST, SIGNER
from tests.protocol.strategies import BODIES, FRAMES, fields_of, resolve

EVIL = (
    "x\x1b[2J\x1b[H",  # clears the screen
    "\x1b]0;owned\x07x",  # renames the window
    "a\r\nYou join a harmless run\x0b\x0c\x85\u2028",  # forges a line
    "\x9b31m\x90x\x9c",  # the same in eight bits
    "\u202ex\u2066\u200f",  # turns the direction
    "[red]x[/red] %s {0} \\",
    "\ud7ff\ufeff\x00\x7f",
)

ENTRY_BODIES = tuple(rule.body for rule in RULES.values())
ROOTS: tuple[type, ...] = (RunManifest, *ENTRY_BODIES, *BODIES, *FRAMES, RunAdvert, Invite)

FREE = {
    "RunManifest.title",
    "Setting.value",
    "TensorSpec.name",
}
"""The texts of a manifest that may say anything. All others are names by type."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A string within a record: how to get there, and its type's bound."""

    root: type
    owner: str
    path: tuple[str | int, ...]
    limit: object

    def __str__(self) -> str:
        return f"{self.root.__name__}.{'.'.join(map(str, self.path))}"


def strings_of(root: type) -> Iterator[Place]:
    """Every string within a type, however deep."""

    def look(hint: Any, owner: str, path: tuple[str | int, ...]) -> Iterator[Place]:
        kind, limit = resolve(hint)
        if kind is str or (get_origin(kind) is not tuple and str in get_args(kind)):
            yield Place(root, owner, path, limit)
        elif get_origin(kind) is tuple:
            yield from look(get_args(kind)[0], owner, (*path, 0))
        elif dataclasses.is_dataclass(kind) and isinstance(kind, type):
            for name, field in fields_of(kind).items():
                yield from look(field, f"{kind.__name__}.{name}", (*path, name))

    yield from look(root, root.__name__, ())


PLACES = [place for root in ROOTS for place in strings_of(root)]


def least(hint: Any) -> Any:
    """A small value of a type, its checks of one field against another left out."""
    kind, limit = resolve(hint)
    if isinstance(limit, OneOf):
        return limit.values[0]
    low = getattr(limit, "low", 0)
    if kind is bool:
        return False
    if kind in (int, float):
        return kind(max(low, 0))
    if kind in (str, bytes):
        return kind() + (kind(b"a", "ascii") if kind is str else b"a") * int(low)
    if get_origin(kind) is tuple:
        return tuple(least(get_args(kind)[0]) for _ in range(int(low)))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return unchecked(kind, {name: least(field) for name, field in fields_of(kind).items()})
    if get_origin(kind) is not None or isinstance(kind, type(int | str)):
        return least(get_args(kind)[0])
    return next(iter(kind))


def unchecked(kind: type, fields: dict[str, Any]) -> Any:
    made: Any = object.__new__(kind)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


def planted(hint: Any, value: Any, path: tuple[str | int, ...], text: str) -> Any:
    """`value`, a sound one, with `text` at the end of the path."""
    if not path:
        return text
    kind, _ = resolve(hint)
    step, rest = path[0], path[1:]
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return (planted(item, value[0] if value else least(item), rest, text), *value[1:])
    fields = {name: getattr(value, name) for name in fields_of(kind)}
    name = str(step)
    return unchecked(
        kind, fields | {name: planted(fields_of(kind)[name], fields[name], rest, text)}
    )


def sound(root: type) -> Any:
    return MANIFEST if root is RunManifest else least(root)


def refusal(record: Any) -> str:
    """Why the wire does not take a record; empty if it does."""
    try:
        encode(record)
    except DecodeError as error:
        return str(error)
    return ""


def drawn(*pictures: RenderableType) -> str:
    """As a plain console of rich prints it: without the fence of ours, and without styles."""
    out = io.StringIO()
    console = Console(file=out, width=200, highlight=False, markup=False, emoji=False)
    for picture in pictures:
        console.print(picture)
    return out.getvalue()


# The lines for people, by what they are made of.


def any_lines(text: str) -> Iterator[str]:
    """What may be said of any text: in a log, as an error's words, as a warning, as a fault."""
    for arguments in (("peer %s goes", text), ("link ended peer=%s reason=%s", "x", text)):
        record = logging.LogRecord(
            "node.x", logging.WARNING, "", 0, arguments[0], arguments[1:], None
        )
        yield TextFormatter(is_short=False).format(record)
        yield TextFormatter(is_short=True).format(record)
        yield JsonFormatter().format(record)
    yield from error_lines(RefusedError(text))
    occasion = Occasion(state=Path("/s"), manifest=MANIFEST, how="joined now", is_usual_state=False)
    out = io.StringIO()
    log = PeopleLog(PeopleConsole(file=out, soft_wrap=True), occasion)
    fields: dict[str, Any] = {"peer": text, "text": text, "reason": text, "linked": [text]}
    for event in ("warning", "fault", "linked", "unlinked", "catching_up", "unseated", "left"):
        log.emit(event, **fields)
    yield out.getvalue()
    board = board_at()
    board.emit("fault", **fields)
    board.emit("warning", key="x", text=text)
    shot = snapshot(sources_of(core_of(A, B), board), 1.0)
    yield from status_lines(shot.status, shot.peers)
    yield render_metrics(shot, age_s=0.0).decode()


def error_lines(error: Exception | None) -> Iterator[str]:
    """As a command's last words."""
    out = io.StringIO()
    with redirect_stderr(out):
        cli._tell(str(error))
    yield out.getvalue()


def manifest_lines(manifest: RunManifest) -> Iterator[str]:
    yield what_joining_means(manifest)
    out = io.StringIO()
    occasion = Occasion(state=Path("/s"), manifest=manifest, how="joined now", is_usual_state=False)
    log = PeopleLog(PeopleConsole(file=out, soft_wrap=True), occasion)
    yield str(log._line("invite", {"link": "barnraise://join/AA"}))
    core = core_of(A, B)
    core.manifest = manifest
    shot = snapshot(sources_of(core), 1.0)
    yield drawn(draw_status(shot.status))
    yield from status_lines(shot.status, shot.peers)
    yield from error_lines(first_difference(MANIFEST, manifest))
    yield from error_lines(first_difference(manifest, MANIFEST))


def status_lines(status: NodeStatus, peers: PeerTable) -> Iterator[str]:
    yield drawn(draw_status(status), draw_peers(peers), draw_doctor(findings(status, peers)))
    again = from_plain(PeerTable, json.loads(json.dumps(dataclasses.asdict(peers))))
    yield drawn(draw_peers(again))


def identity_lines(said: Identity) -> Iterator[str]:
    told = PeerReport(
        device=said.device,
        software=said.software,
        addresses=said.addresses,
        round=3,
        at_unix_s=0.0,
    )
    sources = replace(sources_of(core_of(A, B)), told=lambda: {C: told})
    shot = snapshot(sources, 1.0)
    yield from status_lines(shot.status, shot.peers)


def hello_lines(hello: Hello) -> Iterator[str]:
    shot = snapshot(sources_of(core_of(A, B), addresses={B: hello.addresses}), 1.0)
    yield from status_lines(shot.status, shot.peers)


def refusal_lines(refusal: Refusal) -> Iterator[str]:
    yield str(refusal_error(refusal, MANIFEST, SIGNER))


def class_lines(device: str) -> Iterator[str]:
    """Of a device class, which a SEAT and a COMMIT tell."""
    shot = snapshot(sources_of(core_of(A, B)), 1.0)
    classes: dict[str, Any] = {"device_class": device, "is_audited": False}
    status = replace(shot.status, **classes, unaudited_share=0.25)
    peers = tuple(replace(one, **classes) for one in shot.peers.peers)
    assert peers
    yield from status_lines(status, replace(shot.peers, peers=peers))


def advert_lines(advert: RunAdvert) -> Iterator[str]:
    key = topic_key(topic_of(advert.run))
    signer = Ed25519Signer(bytes(32))
    record = sign_record(signer, key, encode(advert), sequence=1, expires_unix_s=2**31)
    runs = public_runs([record])
    out = io.StringIO()
    with redirect_stdout(out):
        _print_runs(runs)
    yield out.getvalue()
    yield json.dumps([one.as_json() for one in runs])


LINES: dict[type, Callable[[Any], Iterator[str]]] = {
    RunManifest: manifest_lines,
    Identity: identity_lines,
    Hello: hello_lines,
    Refusal: refusal_lines,
    Seat: lambda seat: class_lines(seat.device),
    Commit: lambda commit: class_lines(commit.work[0].device if commit.work else ""),
    RunAdvert: advert_lines,
}


@pytest.mark.quick(10)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_no_terminal_obeys_what_a_stranger_writes(place: Place) -> None:
    harmless = place.limit.values[0] if isinstance(place.limit, OneOf) else "a"
    assert not refusal(planted(place.root, sound(place.root), place.path, str(harmless)))
    for text in EVIL:
        record = planted(place.root, sound(place.root), place.path, text)
        why = refusal(record)
        assert why.isprintable() or not why
        is_of_manifest = place.root is RunManifest
        assert not is_of_manifest or bool(why) != (place.owner in FREE), "a name by its type?"
        lines = (
            [] if why else [*any_lines(text), *LINES.get(place.root, lambda _: iter(()))(record)]
        )
        for line in lines:
            assert line.replace("\n", "").isprintable(), ascii(line)


def test_strings_are_found_where_they_are() -> None:
    """The search itself: these are known to be there, of each family."""
    found = set(map(str, PLACES))
    for known in (
        "RunManifest.title",
        "RunManifest.model.settings.0.name",
        "RunManifest.shards.0.tensors.0.name",
        "Identity.addresses.0",
        "Note.text",
        "Metrics.readings.0.name",
        "Commit.work.0.device",
        "Hello.addresses.0",
        "Refusal.reason",
        "RunAdvert.addresses.0",
    ):
        assert known in found
    assert {place.owner for place in PLACES if place.root is RunManifest} >= FREE


def test_lines_do_show_what_is_put_into_them() -> None:
    """So that the test above does not pass because nothing is shown."""
    for path, kind in ((("title",), RunManifest), (("device",), Identity), (("reason",), Refusal)):
        record = planted(kind, sound(kind), path, "a\x1bz")
        assert any("a\\x1bz" in line for line in LINES[kind](record)), kind


def test_console_lets_nothing_through_that_forgot_to_escape() -> None:
    out = io.StringIO()
    console = PeopleConsole(file=out, width=60)
    table = Table("a", "b")
    for text in EVIL:
        console.print(text)
        console.print(Text(text, style="bold"))
        table.add_row(text, Text(text))
    console.print(table)
    assert out.getvalue().replace("\n", "").isprintable()
    assert "[red]x[/red] %s {0}" in out.getvalue()


def test_console_keeps_its_own_styles_on_a_terminal() -> None:
    out = io.StringIO()
    console = PeopleConsole(file=out)
    console._force_terminal = True
    console.print(Text("fine\x1b[2J", style="bold"))
    assert "\x1b[2J" not in out.getvalue()
    assert "fine\\x1b[2J" in out.getvalue()
