"""One real machine that may go on without a quorum (R4): where it stands, whom it met, its disk.

Beside the machine runs the shipped `protocol.rounds.standing`, told of heartbeats and branches as a
NodeCore tells it. The store is a toy that does what `node.holdings.shard_store` does to states.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from blake3 import blake3

from protocol import events as ev
from protocol.errors import ProofError
from protocol.frames import Branch, Bulk
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import Kind, SealCertificate, SealValue
from protocol.rounds.restart import Restart
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundConfig
from protocol.rounds.standing import ASK_AFTER_S, WAIT_S, Meeting, Reach, _Peer
from sim.exploration import peers
from sim.exploration.copies import fork, key_of
from sim.exploration.peers import Deed, Effect, MachinePeer, Peers
from sim.exploration.toys import contributed

IGNORED = {
    **peers.IGNORED,
    Reach: ("lost_s",),
    Meeting: ("_signer",),
    _Peer: ("since_s", "asked_s"),
}
"""There is no grace: what counts is whom one suspects; and nobody asks twice in vain."""

LATER_S = WAIT_S + 1.0
"""Whenever time passes, it is long enough for who waits for the branch of somebody it has met."""


def branching(config: RoundConfig) -> RoundConfig:
    """That config, with R4 and no grace: suspicions come when they come."""
    return replace(config, survive="any", grace_s=0.0)


@dataclass(slots=True)
class BranchPeer(MachinePeer):
    """See Peer. `branch` is its log of provisional seals; `state` and `final` are the roots in its
    store, `steps` what each LIST was applied on."""

    meeting: Meeting = field(kw_only=True)
    state: bytes = field(kw_only=True)
    final: bytes = field(kw_only=True)
    branch: tuple[SealCertificate, ...] = ()
    steps: dict[bytes, tuple[bytes, bool]] = field(default_factory=dict)
    advanced: list[SealCertificate] = field(default_factory=list)

    def _act(self, action: ev.RoundAction) -> Iterator[ev.RoundEvent]:
        match action:
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                view = self.machine.standing.about(digest) or self.machine.view
                self.steps[digest] = (view.head.root, is_empty)
                if not is_empty:
                    self.results.add(digest)
                yield ev.Applied(digest, self._taken(digest), view.head.root)
            case ev.Adopt(certificate=certificate, was_listed=was_listed):
                self._judge_outcome(certificate.value, was_listed)
                self.state = self.final = self._taken(certificate.value.list_digest)
                self.branch = ()
                yield from MachinePeer._act(self, action)
            case ev.Advance(certificate=certificate, was_listed=was_listed):
                self._judge_outcome(certificate.value, was_listed)
                self.state = self._taken(certificate.value.list_digest)
                self.branch = (*self.branch, certificate)
                self.advanced.append(certificate)
            case ev.Confirm(certificate=certificate):
                self.final = self._taken(certificate.value.list_digest)
                self.chain, self.branch = (*self.chain, certificate), self.branch[1:]
                self.adopted.append(certificate)
            case ev.FallBack():
                self.state, self.branch = self.final, ()
            case _:
                yield from MachinePeer._act(self, action)

    def _taken(self, digest: bytes) -> bytes:
        base, is_empty = self.steps[digest]
        return base if is_empty else blake3(b"applied" + base + digest).digest()

    def _judge_outcome(self, value: SealValue, was_listed: bool) -> None:
        """R6: the trainer is told the truth about the COMMIT that this node signed there."""
        me = self.machine.view.me
        own = {
            message.digest
            for message in self.journal.values()
            if (message.sender, message.slot.kind) == (me, Kind.COMMIT)
        }
        if was_listed != bool(own & set(value.commits)):
            self.broken = "R6: the trainer is told a wrong outcome"

    # Deeds --------------------------------------------------------------------------------------

    def notice(self, lost: frozenset[PeerId]) -> None:
        """The links to these are gone, those to all others are there."""
        for peer in sorted(lost):
            self.meeting.left(peer)
        self.tell(ev.SuspicionsChanged(lost))

    def meet(self, other: "BranchPeer", *, is_answered: bool) -> None:
        """A heartbeat of a peer; then, if it is answered, the question for its branch."""
        machine, meeting, theirs = self.machine, self.meeting, other.machine
        peer, standing = theirs.view.me, theirs.standing
        final, head = standing.final.value.round, standing.head.value.digest
        meeting.heard(peer, final, head, now_s=self.now_s - ASK_AFTER_S)
        meeting._peers[peer].asked_s = None
        asked = {question.peer for question in meeting.ask(machine.standing, now_s=self.now_s)}
        if is_answered and peer in asked:
            for sent in Meeting.answer(standing, machine.view.me, machine.head.digest):
                assert isinstance(sent.frame, Branch)
                try:
                    meeting.arrived(peer, sent.frame, machine.standing)
                except ProofError as error:
                    self.broken = f"an honest peer is blamed: {error}"
                    return
        self._look()
        path = meeting.choose(machine.standing)
        if path is not None:
            self._carry_out(list(machine.follow(path, self.now_s)))
        self.tell(ev.Tick())

    def _look(self) -> None:
        """What a core tells its machine of the branches of others, with every heartbeat."""
        machine, meeting = self.machine, self.meeting
        is_open = meeting.is_open(machine.standing, now_s=self.now_s)
        machine.meets(is_behind=meeting.is_behind(machine.head), is_meeting=is_open)

    def catch_up(self, other: "BranchPeer") -> None:
        """Take over the final chain of a peer: what the own branch has of it is confirmed, else its
        last state is fetched."""
        links = other.chain[len(self.chain) :]
        own = {link.value.digest for link in self.machine.standing.branch}
        if links[-1].value.digest in own:
            self._carry_out(list(self.machine.confirm(list(links), self.now_s)))
        else:
            self.chain, self.branch = other.chain, ()
            self.state = self.final = links[-1].value.root
            self.machine.reset(links[-1], now_s=self.now_s, before=other.chain[-2].value)
            self.adopted += links
        self._look()
        self.tell(ev.Tick())

    def later(self, steps: int) -> None:
        """Time passes."""
        self.now_s += steps * LATER_S
        self._look()
        self.tell(ev.Tick())

    def pass_deadline(self, deadlines: float) -> None:
        """See Peer."""
        self.now_s += LATER_S
        self._look()
        MachinePeer.pass_deadline(self, deadlines)

    def time_out(self) -> None:
        """See Peer."""
        self.now_s += LATER_S
        self._look()
        MachinePeer.time_out(self)

    def contribute(self) -> None:
        """The trainer hands over what it made on the anchor in the store."""
        rounds = self.machine.standing.worked_for
        view = next(one for one in rounds if one.is_member and one.contribution is None)
        made = contributed(view.me, view.index, view.num_cells, view.basis.hex())
        self.tell(replace(made, basis=view.basis))

    def restart(self, *, is_lost: bool = False) -> None:
        """R12: killed, and started again from what is on the disk."""
        assert not is_lost
        old = self.machine
        fresh = RoundMachine(
            old.config, KeyedHashSigner(old.view.me), self.chain[0], now_s=self.now_s
        )
        restart = Restart(
            chain=self.chain,
            branch=self.branch,
            messages=tuple(message for _, message in sorted(self.journal.items())),
            results=frozenset(self.results),
        )
        fresh.resume(restart, now_s=self.now_s)
        self.machine, self.meeting = fresh, Meeting(KeyedHashSigner(old.view.me))
        self.tell(ev.Tick())

    # Answers ------------------------------------------------------------------------------------

    def holds(self, bulk: Bulk, subject: bytes, cell: int) -> bool:
        """Whether it can give that cell."""
        if bulk is Bulk.RESULT and subject in self.results:
            return True
        return any(
            cell in (view.parts if bulk is Bulk.PART else view.results).get(subject, ())
            for view in self.machine.views
        )

    def wrong(self) -> str:
        """What must never be, whatever was heard."""
        standing = self.machine.standing
        if (self.final, self.state) != (standing.final.value.root, standing.head.value.root):
            return "I2: the state in the store is not the one that is sealed"
        if [link.value.digest for link in self.branch] != [
            link.value.digest for link in standing.branch
        ]:
            return "I1: the branch on the disk is another one"
        if self.chain[-1].value.digest != standing.final.value.digest:
            return "I1: the chain on the disk ends with another seal"
        # With two rounds in flight the first one only stands for what came before (R5).
        path = [*self.chain[self.machine.config.clock.lag - 1 :], *self.branch]
        for before, link in pairwise(path):
            if link.value.before != before.value.digest:
                return "S5: a seal stands on another one than the one before it"
        counted = [commit for link in path for commit in link.value.commits]
        if len(counted) != len(set(counted)):
            return "S5: a contribution counts twice"
        if not self.journal.keys() >= {
            digest for link in self.branch for digest in link.value.commits
        }:
            return (
                "I5: it may make a round final of which it would have no receipts after a restart"
            )
        left = len(standing.given_up)
        if len(standing.views) != len(standing.branch) + 1 or left > GIVEN_UP_MAX:
            return f"I7: {len(standing.views)} rounds are kept, and {left} that were left"
        return ""

    def key(self) -> bytes:
        """See Peer."""
        disk = (sorted(self.journal), sorted(self.results), self.broken)
        chain = [link.value.digest for link in (*self.chain, *self.branch)]
        met = (self.meeting, self.meeting.is_open(self.machine.standing, now_s=self.now_s))
        # Any of the rounds may be the one to work in next.
        phases = self.phase(), *map(self.phase_of, self.machine.standing.views)
        parts = (self.machine, phases, met, disk, chain, self.state, self.final)
        return key_of(parts, IGNORED)


GIVEN_UP_MAX = 16
"""Rounds that were left, and may come back: in the few moves of an exploration never so many."""


class BranchPeers(Peers):
    """See Peers."""

    states: list[MachinePeer]

    def at(self, number: int) -> BranchPeer:
        """The peer of that state; it must not be changed."""
        peer = self.states[number]
        assert isinstance(peer, BranchPeer)
        return peer

    def fresh(self, peer: PeerId, head: SealCertificate) -> BranchPeer:
        """See Peers."""
        signer, root = KeyedHashSigner(peer), head.value.root
        plain = Peers.fresh(self, peer, head)
        return BranchPeer(
            plain.machine, plain.chain, meeting=Meeting(signer), state=root, final=root
        )

    def _work_out(self, number: int, deeds: Iterable[Deed]) -> tuple[int, Effect]:
        peer = fork(self.at(number))
        for deed in deeds:
            self._carry_out(peer, deed)
        sent = tuple(self.post.number(message) for message in peer.sent)
        adopted = tuple(certificate.value.digest for certificate in peer.adopted)
        for certificate in (*peer.adopted, *peer.advanced):
            self.post.rosters[certificate.value.digest] = certificate.value.roster
        effect = Effect(sent, adopted, peer.broken or peer.wrong())
        peer.advanced = []
        return self.number(peer), effect

    def _carry_out(self, peer: MachinePeer, deed: Deed) -> None:
        assert isinstance(peer, BranchPeer)
        match deed:
            case ("notice", *lost):
                peer.notice(frozenset(PeerId(one) for one in lost if isinstance(one, bytes)))
            case ("meet", int(number), bool(is_answered)):
                peer.meet(self.at(number), is_answered=is_answered)
            case ("catch up", int(number)):
                peer.catch_up(self.at(number))
            case ("later", int(steps)):
                peer.later(steps)
            case ("cells", bytes(digest)):
                peer.result(digest)
            case _:
                Peers._carry_out(self, peer, deed)
