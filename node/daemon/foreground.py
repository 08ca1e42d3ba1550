"""`barnraise run` and `barnraise join`: a node in the foreground, this process its network process.

Standard input is nobody's lifeline here: a terminal's may end at any time.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from node.daemon.assembly import Node
from node.daemon.founding import enter_key
from node.daemon.running import RunContext, run_node
from node.peers.departure import Departure
from node.peers.joining import Target, join_patiently, join_run
from node.peers.listening import transport_config
from node.peers.neighbours import look_around, says_so
from node.plane.hooks import NodeHooks
from node.processes.exit_codes import user_error
from node.processes.loop import run_loop
from node.processes.machine import Machine, read_machine
from node.reporting.logs import Logs, start_logging
from node.reporting.people import (
    Countdown,
    Occasion,
    PeopleLog,
    say,
    what_joining_means,
)
from node.reporting.trace_file import tracing
from node.settings.footprint import check_room
from node.settings.run_store import Scrutiny, found_or_resume
from node.settings.sections import node_config, read_node_file
from node.state.config import NodeConfig, parse_dialable
from node.state.folder import KEY_FILE, MANIFEST_FILE, default_state, run_folder
from node.state.keystore import check_private, has_identity, load_or_create_identity
from node.state.lock import locked_state
from node.state.stored_manifest import make_run_folder
from node.status.board import EventLog, StatusBoard
from node.text.terminal import people_console
from protocol.errors import BarnraiseError
from protocol.identity import Ed25519Signer
from protocol.manifest import RunManifest, SignedManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What a command was given. `options` are fields of NodeConfig that outrank node.toml."""

    state: Path
    options: Mapping[str, object]
    is_json: bool
    look_at: Callable[[Path], Machine] | None = read_machine
    """Tells what this machine has free below a folder; None: start whatever it has."""


@dataclass(frozen=True, slots=True)
class Obtained:
    """The run of this start, and what to say about it."""

    signed: SignedManifest
    how: str
    bootstrap: tuple[str, ...] = ()
    is_to_explain: bool = False
    is_founded_here: bool = False
    """Whether this state folder founded it, now or earlier."""

    warnings: tuple[str, ...] = ()
    """What of it may not be meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obtaining:
    """What the run of a start is obtained with: the PSK of a private swarm, what waits for peers
    that are away, what raises ConfigError where this machine is too small for a run, and what tells
    people of work that takes long."""

    signer: Ed25519Signer
    psk: bytes | None
    countdown: Countdown
    check: Callable[[RunManifest], None]
    say: Callable[[str], None]


Obtain = Callable[[Obtaining], Awaitable[Obtained]]
"""The run of this start."""


_OTHER_KEY = (
    "{file} is another key than this folder's run was begun with: to the run this node is a new "
    "peer, that has no seat before others give it one. Put the old key back if there is a copy. If "
    "there is none, and no other peer is left, the run cannot go on: take its weights with "
    "barnraise export, and found another with barnraise run --new"
)


def _has_other_key(obtained: Obtained, signer: Ed25519Signer, *, is_new_peer: bool) -> bool:
    """Whether the run was begun here by somebody else than the key says now."""
    if obtained.is_founded_here:
        return obtained.signed.manifest.founder != signer.peer_id
    return is_new_peer and obtained.how == "resumed"


def run_file_in_foreground(start: Start, path: Path, *, is_new: bool) -> int:
    """Found or resume the run of a run.toml, and run it to its end; the exit status."""

    async def obtain(given: Obtaining) -> Obtained:
        warnings: list[str] = []
        scrutiny = Scrutiny(warn=warnings.append, check=given.check, say=given.say)
        # Packing a text takes as long as it takes, and Ctrl+C ends it: it goes on from there.
        signed, is_founded = await trio.to_thread.run_sync(
            partial(
                found_or_resume,
                path,
                start.state,
                given.signer,
                time.time,
                is_new=is_new,
                scrutiny=scrutiny,
            ),
            abandon_on_cancel=True,  # type: ignore[call-arg]
        )
        how = "founded now" if is_founded else "resumed"
        return Obtained(signed, how, is_founded_here=True, warnings=tuple(warnings))

    return _run(start, obtain)


def join_in_foreground(start: Start, target: Target) -> int:
    """Join the run of a link or address, or resume it, and run it to its end; the exit status.

    Waits for peers that are away, or have no place for this node, for as long as the user does.
    """

    async def obtain(given: Obtaining) -> Obtained:
        file = read_node_file(start.state)
        config = node_config(file, start.options, state=start.state, manifest=Path())
        look = look_around if says_so(config) else None
        once = partial(
            join_run,
            target,
            start.state,
            given.signer,
            psk=given.psk,
            look_around=look,
            check=given.check,
        )
        joined = await join_patiently(once, given.countdown.pause)
        how = "joined now" if joined.is_first else "resumed"
        return Obtained(joined.signed, how, joined.bootstrap, is_to_explain=True)

    return _run(start, obtain)


def _run(start: Start, obtain: Obtain) -> int:
    departure = Departure()
    with departure.handling_signals(), locked_state(start.state):
        run_loop(_serve, start, obtain, departure)
        departure.done()
    return departure.status


async def _serve(start: Start, obtain: Obtain, departure: Departure) -> None:
    console = people_console(is_json=start.is_json)
    log = EventLog.on_stdout(is_enabled=start.is_json)
    failure: BarnraiseError | None = None
    try:
        is_new_peer = not has_identity(start.state)
        signer = load_or_create_identity(start.state)
        # Read before a run is founded or fetched: a slip in it must not cost that.
        node_file = read_node_file(start.state)
        named = start.options.get("bootstrap", ())
        assert isinstance(named, tuple)
        for text in (*named, *node_file.bootstrap):
            parse_dialable(text)
        given = {**start.options, "bootstrap": named}
        early = node_config(node_file, given, state=start.state, manifest=Path())
        psk = transport_config(early).psk
        obtaining = Obtaining(
            signer=signer,
            psk=psk,
            countdown=Countdown(console, log),
            check=partial(_check_room, start, early),
            say=partial(say, console),
        )
        obtained = await obtain(obtaining)
        manifest = obtained.signed.manifest
        folder = make_run_folder(start.state, manifest.digest)
        check_private(folder, psk)
        options = {**start.options, "bootstrap": (*named, *obtained.bootstrap)}
        config = node_config(node_file, options, state=start.state, manifest=folder / MANIFEST_FILE)
        if obtained.is_to_explain:
            say(console, what_joining_means(manifest))
        occasion = Occasion(
            state=start.state,
            manifest=manifest,
            how=obtained.how,
            is_usual_state=start.state == default_state(),
        )
        board = StatusBoard()
        log.also = (board, PeopleLog(console, occasion))
        with _logging(config, folder) as logs, tracing(config.trace, signer.peer_id) as trace:
            node = Node(
                config=config,
                signed=obtained.signed,
                signer=signer,
                hooks=NodeHooks(),
                log=log,
                is_new_peer=is_new_peer,
                trace=trace,
                waits_for_peers=obtained.is_to_explain,
            )
            for text in obtained.warnings:
                log.emit("warning", key="model", text=text)
            if _has_other_key(obtained, signer, is_new_peer=is_new_peer):
                text = _OTHER_KEY.format(file=start.state / KEY_FILE)
                log.emit("warning", key="identity", text=text)
            around = RunContext(
                departure=departure,
                board=board,
                num_lost_lines=lambda: logs.num_lost,
                enter=enter_key(),
            )
            await run_node(node, around)
    except* (BarnraiseError, OSError) as group:
        failure = user_error(group, start.state)
    if failure is not None:
        # Out here: Pythons before 3.11.4 wrap what is raised inside of `except*`.
        log.emit("error", kind=type(failure).__name__, message=str(failure))
        raise failure


def _check_room(start: Start, config: NodeConfig, manifest: RunManifest) -> None:
    """Raises ConfigError where this machine is too small for a node of that run."""
    if start.look_at is not None:
        check_room(
            manifest,
            run_folder(start.state, manifest.digest),
            start.look_at(start.state),
            device=config.device,
            is_observer=config.is_observer,
        )


def _logging(config: NodeConfig, folder: Path) -> Logs:
    """node.log; the terminal shows lines for people and, of the log, what needs eyes.

    As JSON the whole log also goes to standard error, for whoever collects it there.
    """
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    return start_logging(
        folder, log_json=config.is_log_json, console=config.is_log_json, level=level
    )
