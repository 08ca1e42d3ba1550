"""Acts of a member that does all else as the protocol asks: it says one kind of thing never, late,
to half of the peers, or not of or to one of them.

A name says kind and act: `act_never_gram`, `act_half_list`, `act_late_seal_1.45` (in deadlines,
from where those of the attempt count), `act_deny_have_random`. Kinds are those of signed messages,
of frames and of cells. A HAVE that denies somebody leaves that peer's parts out, and a LIST its
COMMIT; all else that denies somebody is not said to it. Only what a liar says itself is acted upon:
it passes on what others say.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, get_args

from node.plane.hooks import NodeHooks
from protocol import limits
from protocol.errors import ConfigError
from protocol.frames import Bulk, Frame, Messages
from protocol.identity import PeerId, Signer
from protocol.messages import Body, Have, Held, Kind, List, SignedMessage, Slot
from protocol.rounds.round_view import RoundView
from sim.attacks.seam import Attack

if TYPE_CHECKING:
    from protocol.core.node_core import NodeCore

DEADLINES = (0.9, 1.2, 1.45, 2.9)
"""How late: within the deadline of a HAVE, behind it, just before the closer goes on, and just
before the attempt is given up."""

VICTIMS = ("lowest", "random", "all")
"""Who is denied: the lowest voter that does not lie, one drawn for each attempt, all others."""

DELAYS_KEPT = 4096


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


MESSAGES = {kind.name.lower(): kind for kind in Kind}
FRAMES: dict[str, type] = {
    _snake(kind.__name__): kind for kind in get_args(Frame) if kind is not Messages
}
CELLS = {bulk.name.lower(): bulk for bulk in Bulk}
CELLS = {("parts" if name == "part" else f"{name}_cells"): CELLS[name] for name in CELLS}
KINDS = (*MESSAGES, *FRAMES, *CELLS)
"""All that a node says. Cells are `parts` of contributions, `result_cells` and so on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What is done to all that a liar says of one kind."""

    verb: str
    kind: str
    deadlines: float = DEADLINES[2]
    victims: str = VICTIMS[0]

    @property
    def name(self) -> str:
        """Inverse of `act_named`."""
        option = {"late": f"_{self.deadlines:g}", "deny": f"_{self.victims}"}
        return f"act_{self.verb}_{self.kind}{option.get(self.verb, '')}"


ACTS = (
    *(Act(verb=verb, kind="") for verb in ("never", "half")),
    *(Act(verb="late", kind="", deadlines=deadlines) for deadlines in DEADLINES),
    *(Act(verb="deny", kind="", victims=victims) for victims in VICTIMS),
)
"""All of one kind."""


def acts_of(kind: str) -> list[Act]:
    """Every act on a kind."""
    return [replace(act, kind=kind) for act in ACTS]


def act_named(name: str) -> Act | None:
    """The act of a name like `act_late_seal_1.45`; None for other names. Raises ConfigError."""
    found = re.fullmatch(r"act_(never|half|late|deny)_([a-z_]+?)(?:_(\d+(?:\.\d+)?|[a-z]+))?", name)
    if found is None:
        return None
    verb, kind, option = found.groups()
    if option and f"{kind}_{option}" in KINDS:
        kind, option = f"{kind}_{option}", None
    if kind not in KINDS:
        raise ConfigError(f"{name}: {kind!r} is nothing that nodes say; there are {_known()}")
    act = Act(verb=verb, kind=kind)
    if option is None:
        return act
    if verb == "late" and option[0].isdigit():
        return replace(act, deadlines=float(option))
    if verb == "deny" and option in VICTIMS:
        return replace(act, victims=option)
    raise ConfigError(
        f"{name}: write it like act_late_{kind}_1.45 or act_deny_{kind}_{'|'.join(VICTIMS)}"
    )


def _known() -> str:
    return ", ".join(KINDS)


@dataclass(kw_only=True, eq=False)
class Acts(Attack):
    """The vectors are honest; what is said of them, when and to whom is not."""

    act: Act

    def hooks(self) -> NodeHooks:
        """See Attack."""
        return Acting(self.act, self.seed, self.liars)


class Acting(NodeHooks):
    """One liar. Whom it spares are the other `liars`."""

    bends_frames = True

    def __init__(self, act: Act, seed: int = 0, liars: frozenset[PeerId] = frozenset()) -> None:
        self.name = f"attack {act.name}"
        self._act, self._seed, self._liars = act, seed, liars
        self._me: PeerId | None = None
        self._core: NodeCore | None = None
        self._now_s: Callable[[], float] = float
        self._due_s: dict[bytes, float] = {}
        """By message until when it is held back, by the clock of the core."""

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._me = signer.peer_id

    def runs(self, core: "NodeCore", now_s: Callable[[], float]) -> None:
        """See NodeHooks."""
        self._core, self._now_s = core, now_s

    # What is signed -----------------------------------------------------------------------------

    def said(self, slot: Slot, body: Body) -> Body:
        """See NodeHooks: HAVE and LIST without the victims."""
        is_meant = self._act.verb == "deny" and MESSAGES.get(self._act.kind) is slot.kind
        view = self._view_of(slot) if is_meant else None
        if view is None:
            return body
        victims = self._victims(view, slot.attempt)
        match body:
            case Have():
                return Have(held=tuple(_runs_without(body.held, view, victims)))
            case List():
                kept = [digest for digest in body.commits if _sender(view, digest) not in victims]
                return replace(body, commits=tuple(kept))
            case _:
                return body

    def _view_of(self, slot: Slot) -> RoundView | None:
        assert self._core is not None
        views = self._core.machine.standing.under_way
        return next((view for view in views if view.basis == slot.basis), None)

    def _victims(self, view: RoundView, attempt: int) -> frozenset[PeerId]:
        spared = self._liars | {view.me}
        honest = [peer for peer in view.members if peer not in spared]
        if self._act.victims == "all":
            return frozenset(honest)
        voters = [peer for peer in view.roles.electorate if peer not in spared] or honest
        if self._act.victims == "lowest":
            return frozenset(sorted(voters)[:1])
        luck = random.Random(f"{self._seed}/deny/{view.basis.hex()}/{attempt}")
        return frozenset({luck.choice(honest)} if honest else ())

    # What is sent -------------------------------------------------------------------------------

    def outgoing(self, peer: PeerId, frame: Frame) -> Iterable[tuple[float, Frame]]:
        """See NodeHooks."""
        if isinstance(frame, Messages):
            yield from self._messages(peer, frame)
            return
        after_s = 0.0
        if type(frame) is FRAMES.get(self._act.kind):
            after_s = self._held_back_s(peer, b"")
        if after_s < inf:
            yield after_s, frame

    def cells_after_s(self, peer: PeerId, bulk: Bulk, subject: bytes) -> float:
        """See NodeHooks: of parts the own ones, of all else what it serves."""
        if CELLS.get(self._act.kind) is not bulk:
            return 0.0
        return self._held_back_s(peer, subject + peer)

    def _messages(self, peer: PeerId, frame: Messages) -> Iterator[tuple[float, Frame]]:
        kind, by_delay = MESSAGES.get(self._act.kind), dict[float, list[SignedMessage]]()
        for message in frame.messages:
            is_meant = message.sender == self._me and message.slot.kind is kind
            after_s = self._held_back_s(peer, message.digest) if is_meant else 0.0
            by_delay.setdefault(after_s, []).append(message)
        for after_s, messages in by_delay.items():
            if after_s < inf:
                yield after_s, Messages(messages=tuple(messages))

    def _held_back_s(self, peer: PeerId, what: bytes) -> float:
        """How long that is held back from a peer; `what` names it if it may be sent again."""
        assert self._core is not None
        act, view = self._act, self._core.machine.view
        match act.verb:
            case "never":
                return inf
            case "half":
                members = sorted({*view.members, peer})
                return inf if members.index(peer) % 2 == 0 else 0.0
            case "deny":
                if act.kind in ("have", "list"):
                    return 0.0  # It is bent, and said to all.
                return inf if peer in self._victims(view, view.attempt) else 0.0
            case _:
                return self._late_s(view, what)

    def _late_s(self, view: RoundView, what: bytes) -> float:
        """From the beginning of the attempt, or from now while its clock stands still; of what
        comes before there is one, from its own."""
        assert self._core is not None
        now_s = self._now_s()
        late_s = self._act.deadlines * self._core.machine._deadline.seconds(view.times.time_outs)
        if what not in self._due_s:
            is_open = view.times.opened_s is not None
            due_s = late_s + (min(now_s, view.attempt_start_s) if is_open else now_s)
            limits.keep_newest(self._due_s, what, due_s, DELAYS_KEPT)
        due_s = self._due_s[what] if what else now_s + late_s
        return max(0.0, due_s - now_s)


def _sender(view: RoundView, digest: bytes) -> PeerId | None:
    commit = view.ballots.commit_of(digest)
    return None if commit is None else commit[0]


def _runs_without(
    held: Iterable[Held], view: RoundView, victims: frozenset[PeerId]
) -> Iterator[Held]:
    """The runs of a HAVE without the bits of the victims."""
    kept = sum(1 << at for at, peer in enumerate(view.members) if peer not in victims)
    for run in held:
        bits = int.from_bytes(run.senders, "little") & kept
        if bits:
            size = len(run.senders)
            yield replace(run, senders=bits.to_bytes(size, "little"))
