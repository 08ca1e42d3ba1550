"""From a running node to a frozen Snapshot: read here, in the trio thread, and nowhere else."""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

import trio

from node.status.board import FORGOTTEN, StatusBoard, Validated
from node.status.records import (
    NodeStatus,
    PeerRecord,
    PeerReport,
    PeerTable,
    RoundTable,
    Snapshot,
    State,
    SuspicionRecord,
)
from node.text.shown import shown
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.hybrid_clock import WallClock
from protocol.identity import PeerId, peer_id_text
from protocol.rounds.round_view import RoundView
from protocol.rounds.signals import Signals

PEERS_MAX = 256


class PeerClocks:
    """The least age at which something new of each peer was seen.

    Gossip takes about a second: what seems older or younger than that is the clocks' difference.
    The first word of a peer may have waited anywhere, and does not count.
    """

    def __init__(self) -> None:
        self._last: dict[PeerId, float] = {}
        self._least: dict[PeerId, float] = {}

    def look(self, told: Mapping[PeerId, PeerReport], wall_s: float) -> float | None:
        """Called often. How far the own clock is ahead of most; None while nothing new came."""
        for peer, said in tuple(told.items())[:PEERS_MAX]:
            before, self._last[peer] = self._last.get(peer), said.at_unix_s
            if before is not None and said.at_unix_s > before:
                age_s = wall_s - said.at_unix_s
                self._least[peer] = min(age_s, self._least.get(peer, age_s))
        for peer in self._last.keys() - told.keys():
            del self._last[peer]
            self._least.pop(peer, None)
        return round(median(self._least.values()), 1) if self._least else None


SNAPSHOT_S = 0.5
"""A snapshot takes under a millisecond; people who watch look once a second."""

PEERS_SHOWN_MAX = 256
"""Four times the seats: linked strangers must not make the answers long."""

_CHECKPOINT_NAME = re.compile(r"round-(\d{6,12})")
_PHASES: tuple[State, ...] = ("training", "committed", "pushing", "certified")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkView:
    """What transport and directory know of each peer, and of how this node is reached."""

    path: Callable[[PeerId], str]
    """The word for how a peer is reached; empty without a connection."""

    traffic_with: Callable[[PeerId], tuple[int, int]]
    """Payload bytes sent to a peer, and received."""

    round_trip_s: Callable[[PeerId], float | None]
    """How long a peer's answers take, by requests of the DHT; None if it has not answered."""

    seen_as: Callable[[], Sequence[str]]
    """Addresses that we come from, in the eyes of relays that hold a place for us, or were asked
    for one."""

    needs_relay: Callable[[], bool]
    """Whether strangers have no address of ours to dial."""

    answers_at: Callable[[], Sequence[str]]
    """Public addresses at which others find us, by dial-back."""

    silent_at: Callable[[], Sequence[str]]
    """Public addresses at which others do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusSources:
    """Where a snapshot comes from.

    `own_addresses` are full multiaddrs of this node, `addresses` those at which others said they
    may be dialled. `checkpoint` is the newest on the disk; while it says None, the board's is
    shown.
    """

    core: NodeCore
    board: StatusBoard
    traffic: Callable[[], tuple[int, int]]
    own_addresses: Callable[[], Sequence[str]]
    addresses: Callable[[], Mapping[PeerId, Sequence[str]]]
    checkpoint: Callable[[], Path | None]
    is_observer: bool = False
    num_tasks: Callable[[], int] = int
    """Tasks of the event loop."""

    num_lost_lines: Callable[[], int] = int
    """Log lines that the disk did not take of late; `Logs.num_lost`."""

    network: NetworkView | None = None
    """What the transport knows of each peer."""

    clocks: PeerClocks = field(default_factory=PeerClocks)
    told: Callable[[], Mapping[PeerId, PeerReport]] = dict
    """What peers said of themselves in entries of the replicated state."""

    wall_clock: WallClock = time.time
    signals: Signals = field(default_factory=Signals)


async def keep_status(sources: StatusSources, *, every_s: float = SNAPSHOT_S) -> NoReturn:
    """Put a fresh snapshot on the board again and again, until cancelled."""
    while True:
        sources.board.current = snapshot(sources, trio.current_time())
        await trio.sleep(every_s)


def snapshot(sources: StatusSources, now_s: float) -> Snapshot:
    """The node at this moment; `now_s` is its monotonic time."""
    core, board = sources.core, sources.board
    view, run = core.machine.view, core.manifest.digest.hex()
    _look_for_signals(sources)
    state = node_state(sources)
    board.has_started |= state != "starting"
    sent, received = sources.traffic()
    checkpoint = sources.checkpoint()
    progress = core.catchup.progress(now_s)
    status = NodeStatus(
        pid=os.getpid(),
        peer=peer_id_text(view.me),
        addresses=_cut(sources.own_addresses()),
        run=run,
        title=shown(core.manifest.title, 128),
        state=state,
        round=view.index,
        rounds_total=core.manifest.rounds,
        attempt=view.attempt,
        members=len(view.members),
        voters=len(view.roles.electorate),
        banned=tuple(peer_id_text(peer) for peer in view.seals.head.roster.banned),
        is_member=view.is_member,
        is_voter=view.is_voter,
        set_back_until=_set_back(view).get(view.me),
        was_listed=board.rounds[-1].was_listed if board.rounds else None,
        num_sealed=board.num_sealed,
        final_round=core.machine.head.round,
        final_seal=core.machine.head.digest.hex(),
        provisional=len(core.machine.standing.branch),
        linked=len(core.liveness.linked),
        bytes_up=sent,
        bytes_down=received,
        last_round=board.rounds[-1] if board.rounds else None,
        trainer=board.trainer,
        method=board.method,
        last_times=board.last_times,
        total_times=board.total_times,
        checkpoint=board.checkpoint if checkpoint is None else str(checkpoint),
        checkpoint_round=_checkpoint_round(checkpoint or board.checkpoint),
        uptime_s=round(now_s - board.started_s, 3),
        rss_bytes=rss_bytes(),
        tasks=sources.num_tasks(),
        descriptors=num_descriptors(),
        num_faults=board.num_faults,
        faults=board.faults,
        warnings=tuple(dict.fromkeys((*_warnings(sources, state), *board.warnings))),
        catching_up=progress.text if progress is not None else None,
        seen_as=_cut(sources.network.seen_as()) if sources.network is not None else None,
        needs_relay=sources.network.needs_relay() if sources.network is not None else None,
        answers_at=_cut(sources.network.answers_at()) if sources.network is not None else None,
        silent_at=_cut(sources.network.silent_at()) if sources.network is not None else None,
        clock_offset_s=sources.clocks.look(sources.told(), sources.wall_clock()),
        **_of_validation(board),
        **_of_audits(core),
    )
    return Snapshot(
        taken_s=time.monotonic(),
        status=status,
        peers=PeerTable(
            run=run,
            round=view.index,
            peers=_peers(sources, now_s),
            unaudited_share=_unaudited_share(core),
        ),
        rounds=RoundTable(run=run, rounds=board.rounds),
    )


def _of_validation(board: StatusBoard) -> dict[str, Any]:
    newest = max(board.validations, default=None)
    found = Validated(loss=None) if newest is None else board.validations[newest]
    return {
        "validation_round": newest,
        "validation_loss": found.loss,
        "validation_windows": found.windows,
        "validation_of": found.of_windows,
    }


def _of_audits(core: NodeCore) -> dict[str, Any]:
    audits, me = core.audits, core.machine.view.me
    return {
        "device_class": shown(audits.device) if audits.is_on and audits.device else None,
        "is_audited": me in audits.answerable if me in audits.classes else None,
        "unaudited_share": _unaudited_share(core),
    }


def _unaudited_share(core: NodeCore) -> float | None:
    law = core.manifest.audits
    return law.unaudited if law.rate else None


def node_state(sources: StatusSources) -> State:
    """What the node is at.

    It waits for a quorum only from its COMMIT on: until then it trains, whoever is in reach.
    """
    core, board = sources.core, sources.board
    view = core.machine.view
    if core.is_finished:
        return "finished"
    if not (core.wants_seat or sources.is_observer or board.has_started):
        return "starting"  # The core asks for a seat, or trains, when the trainer is up.
    if core.machine.is_held or view.outcome.is_diverged or not view.is_member:
        return "syncing"
    if core.machine.standing.head.value.clock.ends_run:
        return "waiting for quorum"
    if view.own.contribution is not None and not view.own.commit:
        machine = core.machine
        is_held = machine.giving.num_held_for(view.basis) > 0
        if is_held or machine.seats_awaited(view.times.started_s):
            return "waiting for peers"
    if view.own.commit and not (view.is_provisional or view.has_quorum(reachable_voters(view))):
        return "waiting for quorum"
    phase = board.phase
    is_now = phase is not None and phase.round == view.index
    return next((one for one in _PHASES if phase and is_now and one == phase.name), "training")


def reachable_voters(view: RoundView) -> set[PeerId]:
    """The voters whom this node does not suspect, itself included."""
    return set(view.roles.electorate) - (view.peers.suspects - {view.me})


def _warnings(sources: StatusSources, state: State) -> tuple[str, ...]:
    core = sources.core
    machine, view, liveness = core.machine, core.machine.view, core.liveness
    found = []
    reachable, num_voters = reachable_voters(view), len(view.roles.electorate)
    if state == "finished":
        return ()
    if machine.standing.head.value.clock.ends_run:
        final = set(machine.standing.views[0].roles.electorate)
        here = final & {view.me, *liveness.linked}
        found.append(
            f"all rounds are done, the last {len(machine.standing.branch)} provisionally: they"
            " become final, or give way, when enough voters of the last final seal are back;"
            f" {len(here)} of {len(final)} are here"
        )
    elif machine.standing.branch or view.is_provisional:
        found.append(
            f"{len(machine.standing.branch)} rounds are sealed provisionally: they become final or"
            " give way when enough voters are back"
        )
    elif not view.has_quorum(reachable):
        pause = "sealing pauses, " if view.config.trust == "open" else ""
        found.append(
            f"{pause}waits for a quorum: {len(reachable)} of {num_voters} voters reachable"
        )
    if machine.view.is_quorum_alone and (machine.has_forgotten or machine.may_contradict):
        found.append(FORGOTTEN.format(where=f"round {view.index}"))
    elif machine.is_muted:
        found.append("signs nothing yet: waits until enough voters have told where the run is")
    if not liveness.linked and (view.members != (view.me,)):
        found.append("no peer is linked: is the network up, and are the addresses right?")
    if not (view.is_member or sources.is_observer) and state == "syncing":
        seats = core.manifest.admission.seats
        why = f"no seat now: all {seats} are taken, in turns" if len(view.members) >= seats else ""
        found.append(
            f"has {why or 'no seat yet'}: it follows the rounds and takes part once it is seated"
        )
    if liveness.lag_s > core.manifest.timing.suspect_s / 2:
        found.append(f"this machine lags by {liveness.lag_s:.1f} s: others may suspect this node")
    num_lost = sources.num_lost_lines()
    if num_lost:
        found.append(f"the disk takes no log lines, {num_lost} are lost: is it full?")
    last = sources.board.rounds[-1] if sources.board.rounds else None
    if last and last.train_loss is not None and not math.isfinite(last.train_loss):
        found.append(f"the training loss is {last.train_loss}: the model has diverged")
    return tuple(found)


def _peers(sources: StatusSources, now_s: float) -> tuple[PeerRecord, ...]:
    """Members first, then the banned, other linked peers, and those known by entries; each
    ascending by id. Without this node itself."""
    core, known, told = sources.core, sources.addresses(), sources.told()
    view, linked, rounds = core.machine.view, core.liveness.linked, core.rounds
    members = [peer for peer in view.members if peer != view.me]
    shown_peers = dict.fromkeys((*members, *view.seals.head.roster.banned, *linked, *sorted(told)))
    wall_s = sources.wall_clock()
    classes = core.audits.classes
    answerable = core.audits.answerable
    back_until = _set_back(view)
    records = []
    for peer in list(shown_peers)[:PEERS_SHOWN_MAX]:
        silence_s, said = core.liveness.silence_s(peer, now_s), told.get(peer)
        told_round = None if said is None else said.round
        addresses = known.get(peer) or (() if said is None else said.addresses)
        records.append(
            PeerRecord(
                peer=peer_id_text(peer),
                is_linked=peer in linked,
                is_member=peer in view.members,
                is_voter=peer in view.roles.electorate,
                is_suspected=peer in view.peers.suspects,
                is_convicted=peer in view.peers.convicted or peer in view.seals.head.roster.banned,
                round=rounds.get(peer, told_round),
                heard_s_ago=None if silence_s is None else round(max(0.0, silence_s), 3),
                addresses=_cut(addresses),
                device=None if said is None else shown(said.device),
                software=None if said is None else shown(said.software),
                told_s_ago=None if said is None else round(max(0.0, wall_s - said.at_unix_s), 3),
                rate_bytes_s=core.machine.rates.bytes_per_s(peer),
                suspicion=_suspicion(sources, peer),
                device_class=shown(classes[peer]) if peer in classes else None,
                set_back_until=back_until.get(peer),
                is_audited=peer in answerable if peer in classes else None,
                **_of_network(sources.network, peer),
            )
        )
    return tuple(records)


def _set_back(view: RoundView) -> dict[PeerId, int]:
    """Who is set back, and until which round."""
    return {
        seat.peer: seat.set_back_until
        for seat in view.seals.head.roster.seats
        if seat.set_back_until >= view.index
    }


def _look_for_signals(sources: StatusSources) -> None:
    """The COMMITs of the last final round; of one that lasted no longer than a snapshot nothing."""
    machine = sources.core.machine
    before, value = machine.previous, machine.standing.final.value
    if before is None or before.config.trust != "open" or before.index != value.round:
        return
    listed = [
        (peer, commit) for peer, digest, commit in before.commits() if digest in value.commits
    ]
    sources.signals.saw(value.round, listed)


def _suspicion(sources: StatusSources, peer: PeerId) -> SuspicionRecord | None:
    found = sources.signals.of(peer)
    return SuspicionRecord(score=found.score, reasons=found.reasons) if found is not None else None


def _of_network(network: NetworkView | None, peer: PeerId) -> dict[str, Any]:
    if network is None or not (path := network.path(peer)):
        return {}
    sent, received = network.traffic_with(peer)
    trip_s = network.round_trip_s(peer)
    rtt_ms = None if trip_s is None else round(1000 * trip_s, 2)
    return {"path": path, "rtt_ms": rtt_ms, "bytes_up": sent, "bytes_down": received}


def _cut(addresses: Sequence[str]) -> tuple[str, ...]:
    """Addresses are peers' text."""
    return tuple(
        shown(address, limits.ADDRESS_BYTES_MAX)
        for address in addresses[: limits.ADDRESSES_PER_PEER_MAX]
    )


def _checkpoint_round(path: Path | str | None) -> int | None:
    """The round that starts from the checkpoint, as its folder's name says."""
    match = _CHECKPOINT_NAME.fullmatch(Path(path).name) if path else None
    return int(match[1]) if match else None


def num_descriptors() -> int | None:
    """Open files and sockets of this process; None where the system has no cheap answer."""
    if sys.platform == "linux":
        with suppress(OSError):
            return len(os.listdir("/proc/self/fd"))
    return None


def rss_bytes() -> int | None:
    """Memory of this process; its peak on macOS, None where the system has no cheap answer."""
    if sys.platform == "linux":
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path("/proc/self/statm").read_bytes().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None
