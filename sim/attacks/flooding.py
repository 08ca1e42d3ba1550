"""A member that says one thing, well signed and in good form, as fast as others take it.

One kind of frame or of signed message at a time, so that each is seen to stop nobody. What it says
is what costs its hearer most: sums of LISTs that nobody made, cells of nothing, the longest bodies.
"""

import random
from collections.abc import Callable

from node.plane.hooks import NodeHooks
from protocol import limits
from protocol.core.node_core import NodeCore
from protocol.frames import (
    Branch,
    BranchEnd,
    Bulk,
    Chain,
    Frame,
    Heartbeat,
    Hello,
    Lacking,
    Messages,
    Refusal,
    StatusAnswer,
    StatusAsk,
    Want,
    WantBranch,
    WantChain,
    Welcome,
)
from protocol.gossip import (
    Ack,
    BucketIds,
    Compare,
    Digests,
    Entries,
    Farewell,
    Introduction,
    Neighbour,
    NeighbourKind,
    OfferIds,
    Ping,
    PingFor,
    Shuffle,
    Shuffled,
    WantEntries,
)
from protocol.gram_wire import wire_bytes
from protocol.identity import PeerId, Signer
from protocol.manifest import WIRE_VERSION
from protocol.messages import (
    Agg,
    Body,
    Commit,
    Gram,
    Have,
    Held,
    Kind,
    Leave,
    List,
    NewAttempt,
    Outcome,
    Retract,
    Seal,
    Seat,
    SignedMessage,
    Verdict,
    Vote,
    segment_subject,
    sign_message,
    slice_subject,
)
from protocol.rounds.admission import ATTEMPTS_AHEAD_MAX
from sim.attacks.seats import made_up

BITS = b"\xff" * (limits.WANT_CELLS_MAX // 8)
SMALL_TOGETHER = 60
"""Short messages are said so many in a frame."""

KEYS = 4096
"""Made-up keys that ask for seats."""

FRAMES_KEPT = 256
"""Of what can be said only so often in a round, each again and again."""


class Flood(NodeHooks):
    """Says one kind, from `FLOODS`. It is quiet while `is_on` is not set, and before it is a
    member."""

    bends_frames = floods = True

    def __init__(self, kind: str, seed: int = 0) -> None:
        self.name = f"attack flood of {kind}"
        self.is_on = True
        self.num_bytes = 0
        self._make = FLOODS[kind]
        self.luck = random.Random(f"{seed}/flood/{kind}")
        self.count = 0
        self._kept: list[Frame] = []
        self._basis = b""

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self.signer = signer

    def flood(self, core: NodeCore, to: PeerId) -> Frame | None:
        """See NodeHooks."""
        view = core.machine.view
        if not (self.is_on and view.is_member and view.slices):
            return None
        if view.basis != self._basis:
            self._basis, self._kept, self.count = view.basis, [], 0
        self.count += 1
        if len(self._kept) >= FRAMES_KEPT:
            return self._kept[self.count % FRAMES_KEPT]
        made = self._make(self, core)
        if made is not None and self._make not in _ENDLESS:
            self._kept.append(made)
        return made

    def digest(self) -> bytes:
        """Of nothing."""
        return self.luck.randbytes(32)

    def say(self, core: NodeCore, kind: Kind, body: Body, subject: bytes = b"") -> SignedMessage:
        """Signed, in the next attempt each time where the kind has attempts."""
        attempt = self.count % ATTEMPTS_AHEAD_MAX if kind in _OF_ATTEMPTS else 0
        slot = core.machine.view.slot(kind, attempt=attempt, subject=subject)
        return sign_message(self.signer, slot, body)


Make = Callable[[Flood, NodeCore], Frame | None]

_OF_ATTEMPTS = frozenset(
    {
        *(Kind.HAVE, Kind.HOLD, Kind.LIST, Kind.VOTE, Kind.SEAL, Kind.NEWATTEMPT),
        *(Kind.PVOTE, Kind.PSEAL),
    }
)


# Signed messages ----------------------------------------------------------------------------------


def _seat(flood: Flood, core: NodeCore) -> Frame:
    slot = core.machine.view.slot(Kind.SEAT)
    body = Seat(proof=bytes(32), device="", work=b"")
    first = flood.count * SMALL_TOGETHER
    keys = [made_up(flood.signer, n % KEYS) for n in range(first, first + SMALL_TOGETHER)]
    return Messages(messages=tuple(sign_message(key, slot, body) for key in keys))


def _commit(flood: Flood, core: NodeCore) -> Frame | None:
    """The own one, over and over: another one would be evidence."""
    view = core.machine.view
    own = view.ballots.find(view.own.commit)
    if own is None or not isinstance(own.body, Commit):
        return None
    return Messages(messages=(own.message,))


def _have(kind: Kind) -> Make:
    """As many runs as there may be."""

    def make(flood: Flood, core: NodeCore) -> Frame:
        runs = min(limits.HAVE_RUNS_MAX, limits.CELLS_MAX // 2) - 1
        held = tuple(Held(first=2 * at, stop=2 * at + 1, senders=b"\x01") for at in range(runs))
        return Messages(messages=(flood.say(core, kind, Have(held=held)),))

    return make


def _list(flood: Flood, core: NodeCore) -> Frame:
    commits = tuple(sorted(flood.digest() for _ in range(limits.SEATS_MAX)))
    body = List(commits=commits, drifts=(), certificate=())
    return Messages(messages=(flood.say(core, Kind.LIST, body),))


def _new_attempt(flood: Flood, core: NodeCore) -> Frame:
    cells = tuple(range(min(limits.CELLS_MAX, 4096)))
    body = NewAttempt(lock_attempt=-1, commits=(), drifts=(), certificate=(), missing=cells)
    return Messages(messages=(flood.say(core, Kind.NEWATTEMPT, body),))


def _vote(kind: Kind) -> Make:
    def make(flood: Flood, core: NodeCore) -> Frame:
        return Messages(messages=(flood.say(core, kind, Vote(list_digest=flood.digest())),))

    return make


def _seal(kind: Kind) -> Make:
    def make(flood: Flood, core: NodeCore) -> Frame:
        one = flood.digest()
        body = Seal(value=one, list_digest=one, root=one)
        before = core.machine.view.seals.before
        return Messages(messages=(flood.say(core, kind, body, before),))

    return make


def _gram(flood: Flood, core: NodeCore) -> Frame:
    """Of a LIST that nobody made, as long as they are: each is a slot of its own."""
    piece, digest = flood.luck.choice(core.machine.view.slices), flood.digest()
    stats = bytes(wire_bytes(limits.SEATS_MAX))
    body = Gram(list_digest=digest, first=piece.first, stop=piece.stop, stats=stats)
    subject = slice_subject(digest, piece.first, piece.stop)
    return Messages(messages=(flood.say(core, Kind.GRAM, body, subject),))


def _agg(flood: Flood, core: NodeCore) -> Frame:
    said = []
    for _ in range(SMALL_TOGETHER):
        piece, digest = flood.luck.choice(core.machine.view.slices), flood.digest()
        body = Agg(list_digest=digest, first=piece.first, stop=piece.stop, root=digest)
        subject = slice_subject(digest, piece.first, piece.stop)
        said.append(flood.say(core, Kind.AGG, body, subject))
    return Messages(messages=tuple(said))


def _leave(flood: Flood, core: NodeCore) -> Frame:
    """Of the round before, which is over: it means to stay."""
    view = core.machine.previous or core.machine.view
    message = sign_message(flood.signer, view.slot(Kind.LEAVE), Leave(reason="x" * 64))
    return Messages(messages=(message,) * SMALL_TOGETHER)


def _verdict(flood: Flood, core: NodeCore) -> Frame:
    commit = flood.digest()
    body = Verdict(commit=commit, segment=0, outcome=Outcome.UNOPENED, found=b"")
    said = flood.say(core, Kind.VERDICT, body, segment_subject(commit, 0))
    return Messages(messages=(said,))


def _retract(flood: Flood, core: NodeCore) -> Frame:
    body = Retract(commit=flood.digest())
    return Messages(messages=(flood.say(core, Kind.RETRACT, body),))


# Frames -------------------------------------------------------------------------------------------


def _hello(flood: Flood, core: NodeCore) -> Frame:
    return Hello(
        wire=WIRE_VERSION, run=core.machine.view.seals.head.run, addresses=("x" * 256,) * 16
    )


def _beat(flood: Flood, core: NodeCore) -> Frame:
    """It holds nothing, and so asks for everything."""
    view = core.machine.view
    return Heartbeat(round=view.index, head=view.basis, held=(), links=())


def _long_beat(flood: Flood, core: NodeCore) -> Frame:
    view, luck = core.machine.view, flood.luck
    held = tuple(sorted(luck.randbytes(8) for _ in range(limits.MESSAGES_PER_ROUND_MAX)))
    links = tuple(sorted(PeerId(luck.randbytes(32)) for _ in range(256)))
    return Heartbeat(round=view.index, head=view.basis, held=held, links=links)


def _later_beat(flood: Flood, core: NodeCore) -> Frame:
    """Of rounds that nobody has come to."""
    index = core.machine.view.index + flood.luck.choice((2, 3, 50, limits.ROUNDS_MAX // 2))
    ends = (BranchEnd(final=index - 1, head=flood.digest()),) * flood.luck.choice((0, 1))
    return Heartbeat(round=index, head=flood.digest(), held=(), links=(), branch=ends)


def _want(flood: Flood, core: NodeCore) -> Frame:
    """All cells of nothing."""
    return Want(bulk=flood.luck.choice(list(Bulk)), subject=flood.digest(), first=0, bits=BITS)


def _want_here(flood: Flood, core: NodeCore) -> Frame:
    """Whatever there is of the round and of the state, again and again."""
    view, head = core.machine.view, core.chain[-1].value
    parts = [(Bulk.PART, digest) for _, digest, _ in view.commits()]
    results = [(Bulk.RESULT, digest) for digest, _ in view.ballots.certified_lists()]
    state = [(Bulk.STATE, head.digest), (Bulk.STEP, head.digest)]
    bulk, subject = flood.luck.choice([*parts, *results, *state])
    return Want(bulk=bulk, subject=subject, first=0, bits=BITS)


def _want_branch(flood: Flood, core: NodeCore) -> Frame:
    return WantBranch(final=core.chain[-1].value.digest)


def _branch(flood: Flood, core: NodeCore) -> Frame:
    head = core.chain[-1]
    seals = (head,) * flood.luck.choice((0, 1))
    return Branch(final=head.value.before, seals=seals, lock=b"")


def _chain(flood: Flood, core: NodeCore) -> Frame:
    return Chain(seals=(flood.luck.choice(core.chain),))


_KNOWN = (Introduction(peer=PeerId(bytes(32)), age_s=0, addresses=("/ip4/192.0.2.7/tcp/1",)),) * 16

FLOODS: dict[str, Make] = {
    "SEAT": _seat,
    "COMMIT": _commit,
    "HAVE": _have(Kind.HAVE),
    "HOLD": _have(Kind.HOLD),
    "LIST": _list,
    "VOTE": _vote(Kind.VOTE),
    "GRAM": _gram,
    "AGG": _agg,
    "SEAL": _seal(Kind.SEAL),
    "NEWATTEMPT": _new_attempt,
    "LEAVE": _leave,
    "PVOTE": _vote(Kind.PVOTE),
    "PSEAL": _seal(Kind.PSEAL),
    "VERDICT": _verdict,
    "RETRACT": _retract,
    "Hello": _hello,
    "Refusal": lambda flood, _: Refusal(reason="x" * 256, manifest=b""),
    "Heartbeat": _beat,
    "Heartbeat, long": _long_beat,
    "Heartbeat, later": _later_beat,
    "Want": _want,
    "Want, here": _want_here,
    "Lacking": lambda flood, core: Lacking(bulk=Bulk.STATE, subject=core.chain[-1].value.digest),
    "WantChain": lambda flood, _: WantChain(first=1),
    "Chain": _chain,
    "WantBranch": _want_branch,
    "Branch": _branch,
    "StatusAsk": lambda flood, _: StatusAsk(nonce=flood.luck.getrandbits(60)),
    "StatusAnswer": lambda flood, _: StatusAnswer(
        nonce=flood.luck.getrandbits(40), round=1000, head=flood.digest()
    ),
    "Welcome": lambda flood, _: Welcome(),
    "Entries": lambda flood, _: Entries(
        is_push=True, entries=tuple(flood.luck.randbytes(200) for _ in range(200))
    ),
    "OfferIds": lambda flood, _: OfferIds(ids=tuple(flood.digest() for _ in range(1024))),
    "WantEntries": lambda flood, _: WantEntries(ids=tuple(flood.digest() for _ in range(1024))),
    "Compare": lambda flood, _: Compare(nonce=flood.luck.getrandbits(60), root=flood.digest()),
    "Digests": lambda flood, _: Digests(
        nonce=5, buckets=tuple(flood.luck.randbytes(16) for _ in range(256))
    ),
    "BucketIds": lambda flood, _: BucketIds(
        nonce=5, bucket=1, first=b"\x01" + bytes(31), last=b"\x01" + b"\xff" * 31, ids=()
    ),
    "Ping": lambda flood, _: Ping(nonce=flood.luck.getrandbits(60), is_neighbour=True, rumours=()),
    "PingFor": lambda flood, _: PingFor(
        nonce=flood.luck.getrandbits(60),
        target=PeerId(flood.digest()),
        addresses=("/ip4/192.0.2.7/tcp/1",),
        rumours=(),
    ),
    "Ack": lambda flood, _: Ack(nonce=7, is_there=False, incarnation=1, rumours=()),
    "Farewell": lambda flood, _: Farewell(incarnation=flood.count),
    "Shuffle": lambda flood, _: Shuffle(nonce=flood.luck.getrandbits(60), known=_KNOWN),
    "Shuffled": lambda flood, _: Shuffled(nonce=flood.luck.getrandbits(60), known=_KNOWN),
    "Neighbour": lambda flood, _: Neighbour(kind=NeighbourKind.URGENT),
}
"""Every frame and every kind of message: a test sees that none lacks."""

_ENDLESS = frozenset({_gram, _agg, _want, _commit, _want_here, _chain, _branch})
"""Each time another one."""
