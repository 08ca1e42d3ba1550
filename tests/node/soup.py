"""Round machines in a soup of messages, and an oracle that trusts none of them.

Everything that was ever sent may arrive at any time, in any order, twice or never; anybody may stop
for ever, suspect anybody, or find that time has leapt. The oracle looks only at what was signed.
"""

import random
from dataclasses import dataclass, field, replace

from blake3 import blake3

from protocol import events as ev
from protocol.frames import Bulk
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Kind,
    List,
    NewAttempt,
    Roster,
    Seal,
    SealCertificate,
    SignedMessage,
    Slot,
    Vote,
    decode_body,
    decode_message,
    list_digest,
)
from protocol.rounds.chain import certify, seal_value
from protocol.rounds.restart import Restart
from protocol.rounds.roster import has_quorum
from protocol.rounds.round_config import Rare, never
from protocol.rounds.round_machine import RoundMachine
from protocol.rounds.round_view import RoundView
from tests.node.builders import CONFIG, contributed, state_after

LOCAL = (ev.Contributed, ev.Reduced, ev.Applied, ev.SeatChecked)
"""Answers of a node's own threads: late, but never lost and never twice."""


class Oracle:
    """S1 and S3 over all signatures of all peers: one message per slot, one value per round.

    Also the rules behind them: nobody signs for an attempt it has left, nobody votes against its
    lock without a later certificate for that very list.
    """

    def __init__(self) -> None:
        self._slots: dict[tuple[PeerId, Slot], bytes] = {}
        self._rosters: dict[bytes, Roster] = {}
        self._votes: dict[tuple[bytes, int, bytes], set[PeerId]] = {}
        self._seals: dict[tuple[bytes, int, bytes], set[PeerId]] = {}
        self._locks: dict[tuple[PeerId, bytes], tuple[int, bytes]] = {}
        self._attempts: dict[tuple[PeerId, bytes], int] = {}
        self.final: dict[bytes, set[bytes]] = {}

    def opened(self, head: SealCertificate) -> None:
        """A round began on `head`."""
        self._rosters[head.value.digest] = head.value.roster

    def saw(self, message: SignedMessage) -> None:
        """Something was signed. Raises AssertionError if it should not have been."""
        slot, peer = message.slot, message.sender
        known = self._slots.setdefault((peer, slot), message.digest)
        assert known == message.digest, f"{slot.kind.name} of attempt {slot.attempt} signed twice"
        if slot.kind in (Kind.PVOTE, Kind.PSEAL):
            return  # R4: they fill slots, and count for nothing that is final.
        body = decode_body(message)
        place = (peer, slot.basis)
        if isinstance(body, NewAttempt):
            self._attempts[place] = max(slot.attempt, self._attempts.get(place, 0))
        elif isinstance(body, Vote):
            assert slot.attempt >= self._attempts.get(place, 0), "VOTE for an attempt that was left"
            self._vote(peer, slot, body.list_digest)
        elif isinstance(body, Seal):
            self._seal(peer, slot, body)

    def _vote(self, peer: PeerId, slot: Slot, digest: bytes) -> None:
        lock = self._locks.get((peer, slot.basis))
        if lock is not None and lock[1] != digest:
            later = range(lock[0] + 1, slot.attempt + 1)
            assert any(
                self._quorum(slot.basis, self._votes.get((slot.basis, attempt, digest), set()))
                for attempt in later
            ), "VOTE against the lock without a later certificate for that list"
        self._votes.setdefault((slot.basis, slot.attempt, digest), set()).add(peer)

    def _seal(self, peer: PeerId, slot: Slot, body: Seal) -> None:
        place = (slot.basis, slot.attempt, body.value)
        votes = self._votes.get((slot.basis, slot.attempt, body.list_digest), set())
        assert self._quorum(slot.basis, votes), "SEAL of a list that is not certified"
        agreeing = self._seals.setdefault(place, set())
        if not self._quorum(slot.basis, agreeing):
            entered = self._attempts.get((peer, slot.basis), 0)
            assert slot.attempt >= entered, "SEAL for an attempt that was left"
            self._locks[peer, slot.basis] = (slot.attempt, body.list_digest)
        agreeing.add(peer)
        if self._quorum(slot.basis, agreeing):
            values = self.final.setdefault(slot.basis, set())
            values.add(body.value)
            assert len(values) == 1, "two final seals of one round"

    def _quorum(self, basis: bytes, peers: set[PeerId]) -> bool:
        return has_quorum(self._rosters[basis], peers, trust="friends")


@dataclass
class Delivery:
    """Something under way."""

    target: PeerId
    event: ev.RoundEvent


@dataclass
class SoupJournal:
    """What of a machine survives a restart."""

    messages: dict[bytes, SignedMessage] = field(default_factory=dict)
    results: set[bytes] = field(default_factory=set)


@dataclass
class Soup:
    """Machines of one run, and everything that is under way between them."""

    head: SealCertificate
    rng: random.Random
    now_s: float = 0.0
    machines: dict[PeerId, RoundMachine] = field(default_factory=dict)
    under_way: list[Delivery] = field(default_factory=list)
    dead: set[PeerId] = field(default_factory=set)
    oracle: Oracle = field(default_factory=Oracle)
    adopted: dict[int, set[bytes]] = field(default_factory=dict)
    faults: list[ev.Fault] = field(default_factory=list)
    last_round: int = 7
    restarts: float = 0.0
    rare: Rare = never
    everybody_sums: bool = False
    lost: set[PeerId] = field(default_factory=set)
    journals: dict[PeerId, SoupJournal] = field(default_factory=dict)
    chains: dict[PeerId, list[SealCertificate]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.oracle.opened(self.head)
        for peer in self.head.value.roster.members:
            self.machines[peer] = self._machine(peer, self.head)
            self.journals[peer], self.chains[peer] = SoupJournal(), [self.head]
            self._train(peer)

    def _machine(self, peer: PeerId, head: SealCertificate) -> RoundMachine:
        config = replace(CONFIG, rare=self.rare, everybody_sums=self.everybody_sums)
        return RoundMachine(config, KeyedHashSigner(peer), head, now_s=0.0)

    @property
    def living(self) -> list[PeerId]:
        return [peer for peer in self.machines if peer not in self.dead]

    def machine(self, peer: PeerId) -> RoundMachine:
        return self.machines[peer]

    # What happens ------------------------------------------------------------------------------

    def shake(self, steps: int) -> None:
        """Let anything happen, `steps` times."""
        for _ in range(steps):
            luck = self.rng.random()
            if luck < 0.02:
                self.now_s += self.rng.choice((0.1, 1.0, 4.0, 30.0))
            elif luck < 0.10:
                self._tell(self.rng.choice(self.living), ev.Tick())
            elif luck < 0.115:
                peer = self.rng.choice(self.living)
                whom = [p for p in self.machines if p != peer and self.rng.random() < 0.3]
                self._tell(peer, ev.SuspicionsChanged(frozenset(whom)))
            elif luck < 0.12:
                self._sleep(self.rng.choice(self.living))
            elif luck < 0.12 + self.restarts:
                self.restart(self.rng.choice(self.living))
            elif luck < 0.12 + 2 * self.restarts:
                self._ask_again()
            elif self.under_way:
                self._arrive()

    def _arrive(self) -> None:
        index = self.rng.randrange(len(self.under_way))
        is_local = isinstance(self.under_way[index].event, LOCAL)
        luck = 0.5 if is_local else self.rng.random()
        if luck < 0.1:  # Twice: it stays under way.
            delivery = self.under_way[index]
        else:
            self.under_way[index], self.under_way[-1] = self.under_way[-1], self.under_way[index]
            delivery = self.under_way.pop()
        if luck < 0.85:
            self._tell(delivery.target, delivery.event)

    def _sleep(self, peer: PeerId) -> None:
        """R3: a peer slept; it hears where the others are, some day."""
        self._tell(peer, ev.Woke())
        self._answer(peer)

    def restart(self, peer: PeerId, *, is_lost: bool = False) -> None:
        """Kill -9, and at once again from the journal, or with a new disk (R12)."""
        if is_lost:
            self.lost.add(peer)
            self.journals[peer], self.chains[peer] = SoupJournal(), self.chains[peer][:1]
            self.machine(peer).reset(self.chains[peer][0], now_s=self.now_s)
        journal, old = self.journals[peer], self.machine(peer)
        chain = self.chains[peer]
        assert chain[-1] is old.certificate
        restart = Restart(
            chain=tuple(chain),
            messages=tuple(journal.messages.values()),
            results=frozenset(journal.results),
            is_lost=peer in self.lost,
        )
        fresh = self._machine(peer, chain[0])
        fresh.resume(restart, now_s=self.now_s)
        self.machines[peer] = fresh
        # What it had asked its threads and its peers for is gone; what it was sent still arrives.
        asked = (*LOCAL, ev.StatusHeard)
        self.under_way = [
            d for d in self.under_way if d.target != peer or not isinstance(d.event, asked)
        ]
        self._answer(peer)
        # One time in four its payload is lost: then its COMMIT stands without it.
        self._train(peer, mark="" if self.rng.random() < 0.75 else "again")

    def _answer(self, peer: PeerId) -> None:
        """The others say where they are; not those who have forgotten it themselves."""
        for other in self.living:
            if other != peer and not self.machine(other).has_forgotten:
                index = self.machine(other).view.may_be_open
                self.under_way.append(Delivery(peer, ev.StatusHeard(other, index)))

    def _ask_again(self) -> None:
        for peer in self.living:
            machine = self.machine(peer)
            if machine.is_asking:
                self._answer(peer)
            elif not machine.is_muted:
                self.lost.discard(peer)
        self._catch_up()

    def kill(self, peer: PeerId) -> None:
        """It stops for ever; what it sent is under way."""
        self.dead.add(peer)

    def heal(self, *, seconds: int = 400) -> None:
        """All that live reach each other, and time passes, until the round under way is sealed.

        Nothing is promised where the living are no quorum: that is what branches are for (R4).
        """
        under_way = max(self.machine(peer).view.index for peer in self.living)
        index = self.last_round = min(under_way, self.last_round)
        for peer in self.living:
            self._tell(peer, ev.SuspicionsChanged(frozenset(self.dead)))
            for other in self.living:
                self._tell(peer, ev.StatusHeard(other, self.machine(other).view.may_be_open))
        for _ in range(seconds):
            self._catch_up()
            if not self._is_quorum_alive():
                return
            self._exchange_messages()
            while self.under_way:
                delivery = self.under_way.pop(0)
                self._tell(delivery.target, delivery.event)
            if all(self.machine(peer).head.round >= index for peer in self.living):
                return
            self.now_s += 1.0
            for peer in self.living:
                self._tell(peer, ev.Tick())
        raise AssertionError(f"round {index} was not sealed in a good run of {seconds} s")

    def _is_quorum_alive(self) -> bool:
        heads = [self.machine(peer).head for peer in self.living]
        latest = max(heads, key=lambda head: head.round)
        return has_quorum(latest.roster, self.living, trust="friends")

    def _catch_up(self) -> None:
        """What a core does for a machine that is two rounds behind: from a later seal on."""
        leader = max(self.living, key=lambda peer: self.machine(peer).head.round)
        ahead = self.machine(leader)
        for peer in self.living:
            if self.machine(peer).head.round < ahead.head.round - 1:
                self.machine(peer).reset(ahead.certificate, now_s=self.now_s)
                self.chains[peer] = list(self.chains[leader])
                self._train(peer)

    def _exchange_messages(self) -> None:
        """What heartbeats do: whoever works on a round gets all that is known of it."""
        for peer in self.living:
            mine = self.machine(peer).view
            for other in self.living:
                for theirs in self.views(other):
                    if other != peer and theirs.basis == mine.basis:
                        for message in list(theirs.ballots.messages()):
                            if mine.ballots.find(message.digest) is None:
                                self._hear(peer, message)

    def views(self, peer: PeerId) -> list[RoundView]:
        machine = self.machine(peer)
        return [machine.view] + ([machine.previous] if machine.previous else [])

    # Actions -----------------------------------------------------------------------------------

    def _train(self, peer: PeerId, *, mark: str = "") -> None:
        index = self.machine(peer).view.index
        if index > self.last_round:
            return
        self.under_way.append(Delivery(peer, contributed(index, f"{peer.hex()}/{index}{mark}")))

    def _hear(self, peer: PeerId, message: SignedMessage) -> None:
        """As a core hands it on: the quoted VOTEs first."""
        body = decode_body(message)
        if isinstance(body, List | NewAttempt):
            for data in body.certificate:
                vote, quoted = decode_message(data)
                self._tell(peer, ev.Heard(vote, quoted))
        self._tell(peer, ev.Heard(message, body))

    def _tell(self, peer: PeerId, event: ev.RoundEvent) -> None:
        if peer in self.dead:
            return
        for action in self.machine(peer).handle(event, self.now_s):
            self._act(peer, action)

    def _act(self, peer: PeerId, action: ev.RoundAction) -> None:
        match action:
            case ev.RecordSlot(message=message):
                self.journals[peer].messages[message.digest] = message
                self.oracle.saw(message)
            case ev.RecordProof(messages=messages):
                self.journals[peer].messages |= {message.digest: message for message in messages}
            case ev.Broadcast(message=message):
                body = decode_body(message)
                for other in self.machines:
                    if other != peer:
                        self.under_way.append(Delivery(other, ev.Heard(message, body)))
            case ev.Push(to=to, bulk=bulk, subject=subject, cells=cells):
                self._push(peer, to, bulk, subject, cells)
            case ev.Pull(source=source, bulk=bulk, subject=subject, cells=cells):
                self._push(source, peer, bulk, subject, cells)
            case ev.Reduce(list_digest=digest, first=first, stop=stop):
                assert not self._is_missing_parts(peer, action), "summed without every part"
                root = blake3(b"reduced" + digest + bytes([first, stop])).digest()
                self.under_way.append(Delivery(peer, ev.Reduced(digest, first, stop, root)))
            case ev.Apply(list_digest=digest, is_empty=is_empty):
                held = [view.cells.results.get(digest, ()) for view in self.views(peer)]
                complete = max(len(cells) for cells in held) == CONFIG.num_cells(1)
                assert is_empty or complete, "applied half a result"
                if not is_empty:
                    self.journals[peer].results.add(digest)
                self.under_way.append(Delivery(peer, ev.Applied(digest, state_after(digest))))
            case ev.Adopt(certificate=certificate):
                value = certificate.value
                assert value.digest in self.oracle.final[value.before], "adopted without a quorum"
                self.adopted.setdefault(value.round, set()).add(value.digest)
                self.oracle.opened(certificate)
                self.chains[peer].append(certificate)
                self._train(peer)
            case ev.CheckSeat(peer=joiner, basis=basis):
                self.under_way.append(Delivery(peer, ev.SeatChecked(joiner, basis, False)))
            case ev.Fault():
                self.faults.append(action)
            case ev.Resync(reason=reason):
                raise AssertionError(f"diverged: {reason}")

    def _is_missing_parts(self, peer: PeerId, action: ev.Reduce) -> bool:
        cells = set(range(action.first, action.stop))
        return any(
            all(
                cells - view.cells.parts.get(entry.commit_digest, set())
                for view in self.views(peer)
            )
            for entry in action.entries
        )

    def _push(
        self, source: PeerId, target: PeerId, bulk: Bulk, subject: bytes, cells: tuple[int, ...]
    ) -> None:
        """Only what the source holds can travel."""
        if source in self.dead:
            return
        for view in self.views(source):
            store = view.cells.parts if bulk is Bulk.PART else view.cells.results
            held = tuple(cell for cell in cells if cell in store.get(subject, set()))
            if held:
                self.under_way.append(Delivery(target, ev.CellsArrived(bulk, subject, held)))
                return


def value_of(machine: RoundMachine, commits: tuple[bytes, ...]) -> SealCertificate | None:
    """The seal value that a machine would give to a list it holds the result of."""
    view = machine.view
    digest = list_digest(view.basis, 0, view.index, commits, ())
    value = seal_value(view, digest, KeyedHashSigner(view.me), CONFIG.clock)
    return certify(value, ()) if value else None
