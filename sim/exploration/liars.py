"""Open rules: three honest machines and one liar who signs whatever it likes, whenever it likes.

Four vote, so one may lie (b = 1) and three are a quorum. All that the liar could sign within the
scope needs nobody else's leave, so it lies ready from the start (`LiarTable`) and may be told to
each honest peer or not, in any order: two LISTs, VOTEs, SEALs or COMMITs in one slot, one thing to
one peer and another to the next, or nothing.

Reductions, each of which leaves out no behaviour that anybody could see:

- Messages that change nothing until something else arrives are told just before that, as in
  `agreement`: VOTEs and SEALs as the quorum that they make, with the liar's among them or without;
  AGGs with the cell that they make believed, or that a lie is to make believed.
- What the liar told somebody *before* the VOTE or SEAL by which it is one of a quorum, is told when
  that quorum is there: until then nobody could see a difference.
- Honest closers propose any LIST whose COMMITs they know, in any attempt, as if they knew of no
  lock and of no liar: what must never happen may not rest on them. Where L1 is asked they do as
  they should.
"""

from collections.abc import Iterator
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
    Slot,
    Vote,
    decode_body,
    list_digest,
    sign_message,
    slice_subject,
)
from protocol.rounds.chain import seal_value
from protocol.rounds.roster import closer
from protocol.rounds.round_view import RoundView
from sim.exploration.agreement import heard
from sim.exploration.machines import GoodRun, Machines, MachinesState, Moves
from sim.exploration.peers import Deed, Effect, MachinePeer, Move, Peers, fork
from sim.exploration.table import LETTERS, Letter, Post, Table, state_after, sum_root
from sim.world.nodes import peer_named

# What lies ready ----------------------------------------------------------------------------------

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
        view.outcome.applied[digest] = state_after(digest)
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


# The model ----------------------------------------------------------------------------------------


class Lying(Machines):
    """The model: voters A, B and C, and the liar L."""

    def __init__(self, scope: LiarScope) -> None:
        self.scope, self.lies = scope, LiarTable(scope)
        tables = self.lies.table, self.lies.post, self.lies.peers
        super().__init__(*tables, every=scope.every, rules=scope.rules)
        self.ready = self.lies.ready
        self._endings = dict[tuple[int, ...], str]()

    def start(self) -> MachinesState:
        """The honest have committed."""
        sent = self.post.add(0, tuple(self.lies.said_first))
        return MachinesState(self.lies.start, sent, self.scope.restarts)

    def fails_to_finish(self, state: MachinesState) -> str:
        """Why the honest do not seal once the liar is silent."""
        known = self._endings.get(state.peers)
        if known is None:
            known = self._endings[state.peers] = self._ending(state)
        return known

    def _ending(self, state: MachinesState) -> str:
        living = [fork(self.peers.states[number]) for number in state.peers]
        is_caught = self.scope.bans and self._is_caught(living)
        until = self.table.head.value.round + 1 + is_caught
        failed = GoodRun(self.table, living, self.lies.liars, until=until).fails()
        if failed or not is_caught:
            return failed
        is_banned = all(self.lies.liar in peer.machine.head.roster.banned for peer in living)
        return "" if is_banned else "R1: who signed two messages in a slot is not banned"

    def _is_caught(self, living: list[MachinePeer]) -> bool:
        """Whether the honest together have heard two messages of the liar in one slot."""
        said: dict[Slot, set[bytes]] = {}
        for peer in living:
            for message in peer.machine.view.ballots.messages():
                if message.sender == self.lies.liar:
                    said.setdefault(message.slot, set()).add(message.digest)
        return any(len(digests) > 1 for digests in said.values())

    def moves(self, state: MachinesState) -> Moves:
        """Everything that may happen next."""
        for seat, number in enumerate(state.peers):
            peer = self.peers.states[number]
            view = peer.machine.view
            if len(peer.chain) == 1 and view.attempt < self.scope.attempts:
                name = self.table.names[view.me]
                for label, deeds in self._deeds(state, number):
                    yield from self._after(state, seat, f"{name} {label}", deeds)
                after = state._replace(restarts=state.restarts - 1)
                again: tuple[Deed, ...] = (("restart",), ("contribute",))
                label = f"{name} is killed and restarts"
                yield from self._after(after, seat, label, again) if state.restarts else ()

    def _wrong_step(self, state: MachinesState, seat: int, effect: Effect) -> str:
        """Wrong sums, and honest peers without their seats, in what it sealed or adopted."""
        peer = self.peers.states[state.peers[seat]]
        sealed = [self.post.letters[n].body for n in effect.sent]
        for body in sealed:
            if isinstance(body, Seal) and body.root != state_after(body.list_digest):
                return "a SEAL of a sum that the parts do not give"
        found = [
            *peer.machine.view.outcome.values.values(),
            *(link.value for link in peer.chain[1:]),
        ]
        for value in found:
            if value.root != state_after(value.list_digest):
                return "a sum that the parts do not give is taken for the result"
            if not value.roster.voter_set.issuperset(self.lies.honest):
                return "an honest voter loses its seat"
            if ANYBODY in value.roster.member_set or value.clock.ends_run:
                return "one voter's word seats somebody, or ends the run"
        return ""

    # What may happen to one peer ----------------------------------------------------------------

    def _deeds(self, state: MachinesState, number: int) -> Iterator[Move]:
        view = self.peers.states[number].machine.view
        if view.attempt + 1 < self.scope.attempts:
            yield f"enters attempt {view.attempt + 1}", (("time-out",),)
        for name, old in self.lies.old.items():
            yield f"is told what {name} committed in the round before", (("hear", old),)
        is_closer = self.lies.closers[view.attempt] == view.me
        if is_closer and not view.ballots.of(Kind.LIST, view.attempt):
            for index, body in enumerate(self.lies.options):
                if view.listed(body) is not None:
                    what = self.table.name_of_list(view.ballots.list_digest(body))
                    yield f"proposes {what} in attempt {view.attempt}", (("propose", index),)
        yield from self._commits_for(view)
        yield from self._lists_for(state, number)
        yield from self._results_for(state, number)
        yield from self._finals_for(state, number)

    def _commits_for(self, view: RoundView) -> Iterator[Move]:
        for name, number in self.lies.commits.items():
            if name.isdigit():
                digest = self.post.letters[number].message.digest
                yield f"hears COMMIT {name} of L", (("hear", number),)
                if view.ballots.commit_of(digest) is not None:
                    yield f"gets the part of COMMIT {name} of L", (("part", digest, 0),)

    def _lists_for(self, state: MachinesState, number: int) -> Iterator[Move]:
        view = self.peers.states[number].machine.view
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt), letters in sorted(facts.lists.items()):
            if attempt < view.attempt or view.me in view.ballots.of(Kind.VOTE, attempt):
                continue
            there = view.ballots.of(Kind.LIST, attempt)
            for letter in letters:
                is_known = view.ballots.find(letter.message.digest) is not None
                if there and not is_known:
                    continue  # A second one is no proposal.
                hear: tuple[Deed, ...] = () if is_known else (("hear", letter.number),)
                label = f"hears LIST {self._name(letter)} of attempt {attempt}"
                if hear and self.peers.do(number, hear)[1].sent:
                    yield label, hear
                elif view.own.lock is not None:
                    for what, deeds in self._offers(state, view):
                        if self.peers.do(number, (*deeds, *hear))[1].sent:
                            yield f"{label} and {what}", (*deeds, *hear)

    def _offers(self, state: MachinesState, view: RoundView) -> Iterator[Move]:
        """Certificates that may be shown: of all honest VOTEs, or with the liar's."""
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt, digest), votes in sorted(facts.votes.items()):
            what = f"is shown the certificate of {self.table.name_of_list(digest)} in {attempt}"
            for mine in self._quorums(votes):
                hear = heard(mine)
                yield what, hear
                before = self.lies.others[Kind.VOTE, attempt]
                if before and any(letter.sender == self.lies.liar for letter in mine):
                    yield f"{what}, though L said other things", (*before, *hear)

    def _quorums(self, letters: list[Letter]) -> Iterator[list[Letter]]:
        """The first honest senders that are a quorum, and those that are one with the liar."""
        basis = self.table.head.value.digest
        honest = [letter for letter in letters if letter.sender != self.lies.liar]
        if alone := self.post.smallest_quorum(basis, honest):
            yield alone
        for liar in (letter for letter in letters if letter.sender == self.lies.liar):
            if together := self.post.smallest_quorum(basis, [liar, *honest]):
                yield sorted(together, key=lambda letter: letter.sender)

    def _results_for(self, state: MachinesState, number: int) -> Iterator[Move]:
        """A certificate arrives, what was said of its sum, and a result, right or wrong."""
        view = self.peers.states[number].machine.view
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt, digest), votes in sorted(facts.votes.items()):
            is_sealed = view.me in view.ballots.of(Kind.SEAL, attempt, view.basis)
            if is_sealed or view.ballots.list_of(digest) is None:
                continue
            label = f"has {self.table.name_of_list(digest)} certified in {attempt}"
            for mine in self._quorums(votes):
                hear = heard(mine)
                for words, sums in self._sums_of(state, digest):
                    deeds = (*hear, *sums)
                    if self.peers.do(number, deeds)[1].sent:
                        yield f"{label}{words}", deeds
                    before = self.lies.others[Kind.VOTE, attempt]
                    if before and any(letter.sender == self.lies.liar for letter in mine):
                        yield f"{label}{words}, though L said other things", (*before, *deeds)

    def _sums_of(self, state: MachinesState, digest: bytes) -> Iterator[Move]:
        """What is said of the sum of a LIST, and the cell that fits it.

        Where nobody lies about it and all have all parts, only that it comes, as in `agreement`.
        """
        if not (self.scope.sums or self.scope.commits):
            yield " and its result", (("result", digest),)
            return
        honest: tuple[Deed, ...] = tuple(
            ("hear", letter.number)
            for letter in self.post.of(state.sent)
            if isinstance(letter.body, Agg) and letter.body.list_digest == digest
        )
        right, wrong = self.lies.sums[digest]
        root = sum_root(digest, 0, 1)
        yield ", summed by some", (*honest, ("cell", digest, 0, root))
        yield " and summed", (*honest, *right, ("cell", digest, 0, root))
        yield " and sums itself", (*honest, ("deadline", 2))
        if self.scope.sums:
            cell: Deed = ("cell", digest, 0, sum_root(digest, 0, 1, is_right=False))
            yield " and a lie about its sum", (*wrong, cell)
            yield " and one lie about its sum", (*wrong, *honest, cell)

    def _finals_for(self, state: MachinesState, number: int) -> Iterator[Move]:
        """A quorum of SEALs arrives."""
        facts = self.post.facts(state.sent | self.lies.ready)
        for (_, attempt, _), seals in sorted(facts.seals.items()):
            for mine in self._quorums(seals):
                body = mine[0].body
                assert isinstance(body, Seal)
                digest = body.list_digest
                lists = [
                    x for x in self.post.of(state.sent | self.lies.ready) if x.proposes == digest
                ]
                hear = heard(mine)
                first: tuple[Deed, ...] = (("hear", lists[0].number),) if lists else ()
                what = f"hears the SEALs of {self.table.name_of_list(digest)} in {attempt}"
                for words, sums in self._sums_of(state, digest):
                    for deeds in ((*first, *hear, *sums), (*hear, *sums, *first)):
                        if self.peers.do(number, deeds)[1].adopted:
                            yield f"{what}{words}", deeds

    def _name(self, letter: Letter) -> str:
        return self.table.name_of_list(letter.proposes)
