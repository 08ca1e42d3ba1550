"""All that one liar among four voters could say of a round, and what the honest say at its start.

Whatever a liar signs needs nobody else's leave, so it may as well lie ready from the start: who is
told what of it, and when, is what a search tries.
"""

from dataclasses import dataclass, replace

from blake3 import blake3

from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Agg,
    Commit,
    Kind,
    List,
    Seal,
    SealValue,
    Vote,
    decode_body,
    list_digest,
    sign_message,
    slice_subject,
)
from protocol.rounds.chain import seal_value
from protocol.rounds.roster import closer
from sim.exploration.copies import fork
from sim.exploration.peers import Deed, Peers
from sim.exploration.post import Post
from sim.exploration.table import LETTERS, Table
from sim.exploration.toys import state_after, sum_root
from sim.world.nodes import peer_named

LIAR = "L"
ANYBODY = peer_named("anybody")
"""Whom an accusing COMMIT wants to be seated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarScope:
    """How much is explored.

    The liar is the closer of attempt `liar`. `lists` are LISTs that may be proposed, as letters:
    "AB" of A and B, "ABC2" also of the second COMMIT of the liar. It signs `commits` of them in one
    slot; with `accuses` they say that A left and is convicted, that all are silent, that somebody
    is to be seated, and that the run is over. Before any VOTE or SEAL it may have said `others`
    other things in the slot. With `sums` it lies about sums, with `members` seats of its own that
    have no vote; with `replays` it says again what the honest signed in the round before.

    `restarts` of honest peers may happen. `rules` asks for the rules behind S1 and S3 too. L1 is
    asked of every `every`-th state, 0 for none; with `bans` also that whoever was heard to sign
    twice is banned. `without` are defences that are switched off.
    """

    attempts: int
    liar: int = 0
    lists: tuple[str, ...] = ("ABC", "AB")
    commits: int = 0
    accuses: bool = False
    others: int = 0
    sums: bool = False
    members: int = 0
    replays: bool = False
    restarts: int = 0
    rules: bool = True
    every: int = 0
    bans: bool = False
    without: frozenset[str] = frozenset()


class LiarTable:
    """The table with its machines where all have committed, and what the liar has ready.

    `start` are the honest peers by number, `said_first` what they sent. `options` are the LISTs.
    `ready` is a mask of the liar's COMMITs, LISTs, VOTEs and SEALs; `others` what else it may have
    said in a slot of a kind and attempt, `sums` what it says of a LIST's sum, right and wrong.
    `old` are messages of the round before, of the honest.
    """

    def __init__(self, scope: LiarScope) -> None:
        self.scope = scope
        self.table = Table(voters=4, helpers=0, members=scope.members, trust="open")
        self.liar = self.table.voters[scope.liar]
        self.liars = frozenset({self.liar, *self.table.members})
        self.honest = tuple(peer for peer in self.table.voters if peer != self.liar)
        self.table.names |= {peer: LETTERS[i] for i, peer in enumerate(self.honest)}
        self.table.names |= dict.fromkeys(self.liars, LIAR)
        self.post = Post("open")
        head = self.table.head.value
        self.post.rosters[head.digest] = head.roster
        config = replace(self.table.config, without=scope.without)
        self.peers = Peers(self.post, config, self.liars)
        self.closers = [closer(head.roster, head.digest, 0, a) for a in range(scope.attempts)]
        self.commits: dict[str, int] = {}
        self._begin()
        self.options = [self._option(name) for name in scope.lists]
        self.peers.lists = self.options
        self._values = [self._value(body) for body in self.options]
        self.others: dict[tuple[Kind, int], tuple[Deed, ...]] = {}
        self.ready = self.post.add(0, tuple(self._lie()))
        self.sums = {
            value.list_digest: (self._aggs(value, is_right=True), self._aggs(value, is_right=False))
            for value in self._values
        }
        self.old = self._replayed() if scope.replays else {}

    def _begin(self) -> None:
        """All honest peers have committed, and hold each other's parts."""
        fresh = [self.peers.fresh(peer, self.table.head) for peer in self.honest]
        for peer in fresh:
            peer.contribute()
            name = self.table.names[peer.machine.view.me]
            self.commits[name] = self.post.number(peer.sent[0])
        deeds: list[Deed] = [("hear", number) for number in self.commits.values()]
        deeds += [("part", self.commit(name), 0) for name in self.commits]
        numbers, self.said_first = [], list(self.commits.values())
        for peer in fresh:
            number, effect = self.peers.do(self.peers.number(peer), tuple(deeds))
            numbers.append(number)
            self.said_first += effect.sent
        self.start = tuple(numbers)
        for index in range(self.scope.commits):
            self.commits[str(index + 1)] = self._twice_committed(index)
        for name in self.commits:
            # The liar's COMMITs have names of their own in what is told.
            self.table.senders[self.commit(name)] = PeerId(name.encode())
            self.table.names[PeerId(name.encode())] = name if name.isalpha() else LIAR + name

    def commit(self, name: str) -> bytes:
        """The digest of a COMMIT by its name: the letter of its sender, or the liar's by number."""
        return self.post.letters[self.commits[name]].message.digest

    def _twice_committed(self, index: int) -> int:
        body = decode_body(self.table.commit(self.liar))
        assert isinstance(body, Commit)
        body = replace(body, residual_after=blake3(bytes([index])).digest())
        if self.scope.accuses:
            first = self.honest[:1]
            body = replace(body, bans=first, gone=first, suspects=self.honest)
            body = replace(body, joins=(ANYBODY,), is_past_end=True)
        return self.post.number(self.table.sign(self.liar, Kind.COMMIT, body))

    def _option(self, name: str) -> List:
        found = [self.post.letters[self.commits[letter]] for letter in name]
        commits = sorted((letter.sender, letter.message.digest) for letter in found)
        body = List(commits=tuple(digest for _, digest in commits), drifts=(), certificate=())
        head = self.table.head.value
        digest = list_digest(head.digest, 0, head.round + 1, body.commits, ())
        self.table.learn(digest, (self.table.senders[commit] for commit in body.commits))
        return body

    def _lie(self) -> list[int]:
        """All that the liar could sign of a round but its sums."""
        lies = [self.commits[name] for name in self.commits if name.isdigit()]
        for attempt in range(self.scope.attempts):
            for body, value in zip(self.options, self._values, strict=True):
                if self.closers[attempt] == self.liar:
                    lies.append(self._sign(Kind.LIST, body, attempt))
                lies.append(self._sign(Kind.VOTE, Vote(list_digest=value.list_digest), attempt))
                lies.append(self._sign(Kind.SEAL, _seal(value), attempt))
            for kind in (Kind.VOTE, Kind.SEAL):
                said = [_other(kind, index) for index in range(self.scope.others)]
                numbers = [self._sign(kind, body, attempt) for body in said]
                self.others[kind, attempt] = tuple(("hear", number) for number in numbers)
        return lies

    def _sign(self, kind: Kind, body: List | Vote | Seal, attempt: int) -> int:
        subject = self.table.head.value.digest if kind is Kind.SEAL else b""
        return self.post.number(self.table.sign(self.liar, kind, body, attempt, subject))

    def _value(self, body: List) -> SealValue:
        """What the seal of that LIST says."""
        peer = fork(self.peers.states[self.start[0]])
        for number in self.commits.values():
            message = self.post.letters[number].message
            if message.digest in body.commits:
                peer.hear(message)
        view = peer.machine.view
        digest = view.ballots.list_digest(body)
        view.ballots._lists[digest] = body
        view.applied[digest] = state_after(digest)
        signer = KeyedHashSigner(view.me)
        found = seal_value(view, digest, signer, self.peers.config.clock)
        assert found is not None
        return found

    def _aggs(self, value: SealValue, *, is_right: bool) -> tuple[Deed, ...]:
        """What the liar, and its member without a vote, say of a sum."""
        digest = value.list_digest
        root = sum_root(digest, 0, 1, is_right=is_right)
        body = Agg(list_digest=digest, first=0, stop=1, root=root)
        said = (
            self.table.sign(peer, Kind.AGG, body, subject=slice_subject(digest, 0, 1))
            for peer in (self.liar, *self.table.members)
        )
        return tuple(("hear", self.post.number(message)) for message in said)

    def _replayed(self) -> dict[str, int]:
        """What each of the honest signed as its COMMIT of the round before, by letter."""
        found = {}
        for peer in self.honest:
            name = self.table.names[peer]
            now = self.post.letters[self.commits[name]].message
            before = self.table.head.value.before
            slot = replace(now.slot, round=now.slot.round - 1, basis=before)
            body = decode_body(now)
            assert isinstance(body, Commit)
            other = replace(body, residual_after=blake3(b"before").digest())
            found[name] = self.post.number(sign_message(KeyedHashSigner(peer), slot, other))
        return found


def _seal(value: SealValue) -> Seal:
    return Seal(value=value.digest, list_digest=value.list_digest, root=value.root)


def _other(kind: Kind, index: int) -> Vote | Seal:
    """What nobody else says."""
    digest = blake3(b"other" + bytes([index])).digest()
    if kind is Kind.VOTE:
        return Vote(list_digest=digest)
    return Seal(value=digest, list_digest=digest, root=digest)
