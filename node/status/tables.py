"""A node's status as tables for people. Peers' text is set as text: no markup is read in it."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from node.status.doctor import Finding
from node.status.records import (
    EQUAL_STEPS,
    LEFT_OUT,
    PHASES,
    SUSPICION_USE,
    MethodRecord,
    NodeStatus,
    PeerRecord,
    PeerTable,
    PhaseTimes,
    RoundRecord,
    RoundTable,
    TrainerRecord,
    from_plain,
)
from node.text.shown import counted, shown
from protocol import limits

ROUNDS_SHOWN = 20
STALE_S = 5.0
"""Snapshots are made twice a second: an older one means that the network process hangs."""

_STATE_STYLES = {
    "starting": "yellow",
    "syncing": "yellow",
    "waiting for peers": "yellow",
    "waiting for quorum": "yellow",
    "finished": "cyan",
}
_LEVEL_STYLES = {"ok": "green", "unknown": "dim", "note": "yellow", "problem": "bold red"}
_ID_CHARACTERS = 8
_CLASS_CHARACTERS = 64
_DEVICE_CHARACTERS, _VERSION_CHARACTERS = 16, 12


def draw_status(status: NodeStatus) -> RenderableType:
    """One line per subject, warnings last."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in _status_lines(status):
        grid.add_row(name, value)
    return grid


def draw_peers(table: PeerTable) -> RenderableType:
    """A row per peer."""
    if not table.peers:
        return Text("no peer is a member, linked or heard of yet")
    names = ("peer", "link", "part", "round", "heard", "path", "rtt", "up", "down")
    grid = _grid((*names, "device, version, address"))
    for peer in table.peers:
        grid.add_row(*(Text(cell) for cell in _peer_cells(peer)))
    odd = [peer for peer in table.peers if peer.suspicion is not None and peer.suspicion.reasons]
    alone = [peer for peer in table.peers if peer.is_audited is False]
    lines = []
    if odd:
        lines += [Text(f"suspicion, which {SUSPICION_USE}:", style="dim")]
        lines += [Text(f"  {_suspicion_line(peer)}") for peer in odd]
    if alone:
        share = "" if table.unaudited_share is None else f"; {_capped(table.unaudited_share)}"
        lines += [Text(f"unaudited, for too few others compute their bits{share}:", style="dim")]
        lines += [Text(f"  {_class_line(peer)}") for peer in alone]
    return Group(grid, *lines) if lines else grid


def draw_doctor(found: Sequence[Finding]) -> RenderableType:
    """A line per finding, and what to do below it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for one in found:
        grid.add_row(Text(one.level, style=_LEVEL_STYLES[one.level]), one.subject, Text(one.said))
        if one.advice:
            grid.add_row("", "", Text(f"-> {one.advice}"))
    return grid


def draw_rounds(table: RoundTable) -> RenderableType:
    """A row per sealed round, the newest last."""
    if not table.rounds:
        return Text("no round sealed since this node started")
    names = ("round", "seal", "listed", "ours", "attempt", "s", "up", "down", "train", "held out")
    grid = _grid(names)
    for record in table.rounds[-ROUNDS_SHOWN:]:
        grid.add_row(*(Text(cell) for cell in _round_cells(record)))
    lines = []
    if any(map(_is_partial, table.rounds[-ROUNDS_SHOWN:])):
        lines += ["~: over some of the held-out windows; --json says over how many"]
    if (hidden := len(table.rounds) - ROUNDS_SHOWN) > 0:
        lines += [f"{hidden} earlier rounds with --json"]
    return Group(grid, *(Text(line, style="dim") for line in lines)) if lines else grid


def _is_partial(record: RoundRecord) -> bool:
    return _parts_of(record.validation_windows, record.validation_of) != ""


def _parts_of(windows: int | None, of_windows: int | None) -> str:
    """Over what a held-out loss was measured, where that is not everything."""
    if windows is None or of_windows is None or windows >= of_windows:
        return ""
    return f"{windows} of {of_windows} windows"


PICTURES: dict[str, Callable[[object], RenderableType]] = {
    "status": lambda body: draw_status(from_plain(NodeStatus, body)),
    "peers": lambda body: draw_peers(from_plain(PeerTable, body)),
    "rounds": lambda body: draw_rounds(from_plain(RoundTable, body)),
}
"""What is drawn of a node's answer, by the name of the command. Raises StateError as from_plain."""


def _grid(names: tuple[str, ...]) -> Table:
    grid = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in names:
        # Ten short columns fit 80 characters; only what is long, the last one, may be folded. Where
        # there are fewer, a number that is cut must not pass for a smaller one.
        is_long = name == names[-1]
        grid.add_column(name, overflow="fold" if is_long else "ellipsis", no_wrap=not is_long)
    return grid


def _status_lines(status: NodeStatus) -> Iterator[tuple[str, Text]]:
    yield "run", Text.assemble((status.title, "bold"), f"  {status.run[:12]}")
    state = Text(status.state, style=_STATE_STYLES.get(status.state, "green"))
    attempt = f", attempt {status.attempt}" if status.attempt else ""
    if status.state != "finished":
        state.append(
            f" in round {min(status.round, status.rounds_total)} of {status.rounds_total}{attempt}",
            style="default",
        )
    yield "state", state
    if status.catching_up is not None:
        yield "fetches", Text(status.catching_up)
    part = ("a voter" if status.is_voter else "a member") if status.is_member else "without a seat"
    if (until := status.set_back_until) is not None:
        part += f", last to sum and to propose until round {until}, for it kept others waiting"
    yield (
        "swarm",
        Text(
            f"{counted(status.members, 'member')}, {counted(status.voters, 'voter')}, "
            f"{status.linked} linked; this node is {part}"
        ),
    )
    if status.unaudited_share is not None and status.device_class is not None:
        yield "audits", Text(_audits(status, status.unaudited_share))
    if status.banned:
        names = ", ".join(peer[-_ID_CHARACTERS:] for peer in status.banned[-4:])
        yield "banned", Text(f"{len(status.banned)}, the last: {names}", style="bold yellow")
    if status.last_round is not None:
        yield "sealed", Text(_sealed(status.last_round))
    if status.validation_loss is not None:
        text = f"{status.validation_loss:.4f} nats per byte after round {status.validation_round}"
        parts = _parts_of(status.validation_windows, status.validation_of)
        yield "held out", Text(f"{text}, over {parts}" if parts else text)
    if status.method is not None:
        yield "method", Text(_method(status.method))
        if status.method.equal_steps:
            yield "equal steps", Text(_equal_steps(status.method))
    if status.last_times is not None:
        yield "time", Text(_times(status.last_times))
    yield "trainer", Text(_trainer(status.trainer))
    yield "traffic", Text(f"{_size(status.bytes_up)} up, {_size(status.bytes_down)} down")
    if status.checkpoint is not None:
        yield "checkpoint", Text(status.checkpoint)
    memory = f", {_size(status.rss_bytes)} of memory" if status.rss_bytes else ""
    yield "node", Text(f"up {_duration(status.uptime_s)}, process {status.pid}{memory}")
    yield "peer id", Text(status.peer)
    for address in status.addresses:
        yield "address", Text(address)
    if status.num_faults:
        last = status.faults[-1] if status.faults else None
        said = (
            f"; the last: {last.peer[-_ID_CHARACTERS:]}, {shown(last.reason, 80)}" if last else ""
        )
        yield "faults", Text(f"{status.num_faults} of peers{said}")
    if status.age_s > STALE_S:
        text = f"the network process has not moved for {status.age_s:.0f} s"
        yield "warning", Text(text, style="bold red")
    for warning in status.warnings:
        yield "warning", Text(warning, style="bold yellow")


def _sealed(record: RoundRecord) -> str:
    mine = "this node's too" if record.was_listed else "this node's not"
    why = LEFT_OUT.get(record.left_out or "")
    loss = "" if record.train_loss is None else f", training loss {record.train_loss:.4f}"
    contributions = counted(len(record.listed), "contribution")
    text = f"round {record.round} in {record.wall_s:.1f} s: {contributions}, {mine}{loss}"
    return f"{text}; without this node: {why}" if why else text


def _trainer(trainer: TrainerRecord) -> str:
    if trainer.pid is None:
        return "not up yet"
    known = [
        trainer.device,
        trainer.precision,
        None if trainer.threads is None else counted(trainer.threads, "thread"),
        None if trainer.micro_batch is None else f"micro-batch {trainer.micro_batch}",
        None if trainer.step is None else f"step {trainer.step}",
        None if trainer.loss is None else f"loss {trainer.loss:.4f}",
        f"process {trainer.pid}",
    ]
    return ", ".join(filter(None, known))


def _method(method: MethodRecord) -> str:
    cut = f", {method.fragments} fragments" if method.fragments > 1 else ""
    bits = "" if method.grade is None else f" of {method.grade} bits ({method.grade_why})"
    text = f"{method.preset}, codec {method.codec}{bits}{cut}; {method.steps} steps a round"
    if method.steps < method.steps_max:
        text += f" of at most {method.steps_max}"
    text += f" ({method.why})"
    if method.step_s is not None and method.exchange_s is not None and method.computing is not None:
        text += (
            f"; a step {1000 * method.step_s:.0f} ms, an exchange {method.exchange_s:.2f} s, "
            f"{method.computing:.0%} of the time in steps"
        )
    return text


def _equal_steps(method: MethodRecord) -> str:
    """What they cost this node, or the others."""
    own_s, fastest_s, slowest_s = method.whole_s, method.fastest_s, method.slowest_s
    if own_s is None or fastest_s is None or slowest_s is None:
        return EQUAL_STEPS
    return (
        f"{EQUAL_STEPS}: the steps of one take {own_s:.1f} s here, {fastest_s:.1f} s on the fastest"
        f" machine, {slowest_s:.1f} s on the slowest"
    )


def _times(times: PhaseTimes) -> str:
    """The phases in the order in which a round has them."""
    shares = [f"{phase} {times.share(phase):.1%}" for phase in PHASES if times.share(phase) > 0.0]
    return f"a round of {times.round_s:.1f} s: {', '.join(shares)}"


def _peer_cells(peer: PeerRecord) -> Iterator[str]:
    yield peer.peer[-_ID_CHARACTERS:]
    link = "linked" if peer.is_linked else "no link"
    why = "convicted" if peer.is_convicted else "suspected" if peer.is_suspected else ""
    yield f"{link}, {why}" if why else link
    seat = ("voter" if peer.is_voter else "member") if peer.is_member else "-"
    late = peer.set_back_until
    yield seat if late is None else f"{seat}, kept others waiting (last until round {late})"
    yield "-" if peer.round is None else str(peer.round)
    yield _heard(peer)
    yield peer.path or "-"
    yield "-" if peer.rtt_ms is None else f"{peer.rtt_ms:.1f} ms"
    yield "-" if peer.bytes_up is None else _size(peer.bytes_up)
    yield "-" if peer.bytes_down is None else _size(peer.bytes_down)
    version = (peer.software or "").removeprefix("barnraise ")
    more = f" +{len(peer.addresses) - 1}" if len(peer.addresses) > 1 else ""
    last = (
        shown(peer.device or "", _DEVICE_CHARACTERS),
        shown(version, _VERSION_CHARACTERS),
        peer.addresses[0] + more if peer.addresses else "",
    )
    yield ", ".join(text for text in last if text) or "-"


def _suspicion_line(peer: PeerRecord) -> str:
    assert peer.suspicion is not None
    reasons = shown("; ".join(peer.suspicion.reasons), limits.STRING_BYTES_MAX)
    return f"{peer.peer[-_ID_CHARACTERS:]}  {peer.suspicion.score:.2f}  {reasons}"


def _audits(status: NodeStatus, share: float) -> str:
    if status.is_audited is None:
        said = "not known yet whether others can run its training again"
    elif status.is_audited:
        said = "others run its training again"
    else:
        said = f"unaudited, for too few others compute its bits; {_capped(share)}"
    return f"{said} (class {shown(status.device_class or '', _CLASS_CHARACTERS)})"


def _capped(share: float) -> str:
    return f"together they weigh at most {share:.0%} of a round"


def _class_line(peer: PeerRecord) -> str:
    return f"{peer.peer[-_ID_CHARACTERS:]}  {shown(peer.device_class or '', _CLASS_CHARACTERS)}"


def _heard(peer: PeerRecord) -> str:
    """By its link, or else by what others passed on."""
    if peer.heard_s_ago is not None:
        return f"{peer.heard_s_ago:.1f} s ago"
    return "-" if peer.told_s_ago is None else f"told {_duration(peer.told_s_ago)} ago"


def _round_cells(record: RoundRecord) -> Iterator[str]:
    yield str(record.round)
    yield record.digest[:_ID_CHARACTERS]
    yield f"{len(record.listed)} of {record.members}"
    yield "yes" if record.was_listed else "no"
    yield str(record.attempt)
    yield f"{record.wall_s:.1f}"
    yield _size(record.bytes_up)
    yield _size(record.bytes_down)
    yield "-" if record.train_loss is None else f"{record.train_loss:.4f}"
    mark = "~" if _is_partial(record) else ""
    yield "-" if record.validation_loss is None else f"{mark}{record.validation_loss:.4f}"


def _size(num_bytes: int) -> str:
    if num_bytes < 1024 * 1024:
        return f"{num_bytes / 1024:.1f} KiB"
    if num_bytes < 1024**3:
        return f"{num_bytes / 1024**2:.1f} MiB"
    return f"{num_bytes / 1024**3:.2f} GiB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
