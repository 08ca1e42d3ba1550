"""Who sits at the table: voters A, B, C, ..., helpers that do not vote, and their names."""

from collections.abc import Iterable

from blake3 import blake3

from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import (
    Body,
    Commit,
    Have,
    Held,
    Kind,
    List,
    NewAttempt,
    Roster,
    Seal,
    SealCertificate,
    SealClock,
    SealValue,
    SeatRecord,
    SignedMessage,
    Slot,
    Vote,
    list_digest,
    sign_message,
)
from protocol.rounds.belief import pack_senders
from protocol.rounds.reducers import slices
from sim.exploration.post import Letter
from sim.exploration.toys import contributed, toy_config
from sim.world.nodes import peer_named

RUN = blake3(b"barnraise/exploration").digest()
LETTERS = "ABCDEFGH"
WINDOW = (1, 2, 3, 4)


class Table:
    """The peers of a case, the seal that their round begins with, and words for what they sign.

    Helpers come first in the rank of reducers, so that voters have no say about bytes in as many
    attempts as there are helpers. `members` have machines too, and seats, but no vote yet.
    """

    def __init__(
        self,
        *,
        voters: int,
        helpers: int,
        members: int = 0,
        num_cells: int = 1,
        fragment_cells: tuple[int, ...] = (),
        trust: str = "friends",
    ) -> None:
        self.config = toy_config(*(fragment_cells or (num_cells,)), trust=trust)
        self.members = tuple(sorted(peer_named(f"member {index}") for index in range(members)))
        self.voters, self.helpers, self.head = self._seat(voters, helpers)
        named = [*self.voters, *self.members]
        self.names = {peer: LETTERS[index] for index, peer in enumerate(named)}
        self.names |= {peer: f"R{index or ''}" for index, peer in enumerate(self.helpers)}
        self.senders: dict[bytes, PeerId] = {}
        self._digests: dict[bytes, str] = {}

    def _seat(
        self, voters: int, helpers: int
    ) -> tuple[tuple[PeerId, ...], tuple[PeerId, ...], SealCertificate]:
        """Names are tried until the helpers lead the ranks, and A closes attempt 0."""
        for salt in range(100_000):
            mine = sorted(peer_named(f"voter {salt}/{index}") for index in range(voters))
            others = {peer_named(f"helper {salt}/{index}") for index in range(helpers)}
            head = head_of(mine, [*others, *self.members])
            basis = head.value.digest
            num_cells, trust = self._num_cells(head), self.config.trust
            ranks = slices(head.value.roster, basis, num_cells, trust=trust)[0].reducers
            start = int.from_bytes(blake3(basis + bytes(4)).digest()[:8], "big") % voters
            # The first closer sums too, where nobody else does: traces are told so.
            is_first = bool(helpers) or ranks[0] == mine[0]
            if set(ranks[:helpers]) == others and start == 0 and is_first:
                return tuple(mine), ranks[:helpers], head
        raise AssertionError("no such names")

    def _num_cells(self, head: SealCertificate) -> int:
        """Of the fragment that the round behind a seal is about."""
        return self.config.num_cells(head.value.round + 1)

    def add_joiner(self, index: int) -> PeerId:
        """A peer without a seat, and its letter."""
        peer = peer_named(f"joiner {index}")
        self.names[peer] = LETTERS[len(self.voters) + len(self.members) + index]
        return peer

    # What peers without a machine say -----------------------------------------------------------

    def sign(
        self, peer: PeerId, kind: Kind, body: Body, attempt: int = 0, subject: bytes = b""
    ) -> SignedMessage:
        """A message of this round."""
        value = self.head.value
        slot = Slot(
            run=value.run,
            shard=0,
            round=value.round + 1,
            basis=value.digest,
            attempt=attempt,
            kind=kind,
            subject=subject,
        )
        return sign_message(KeyedHashSigner(peer), slot, body)

    def commit(self, peer: PeerId) -> SignedMessage:
        """The COMMIT of a helper."""
        mine = contributed(peer, self.head.value.round + 1, self._num_cells(self.head))
        body = Commit(
            root=mine.root,
            cell_norms=mine.cell_norms,
            tokens=mine.tokens,
            samples=mine.samples,
            steps=mine.steps,
            base=self.head.value.digest,
            residual_before=mine.residual_before,
            residual_after=mine.residual_after,
            seal=b"",
            joins=(),
            suspects=(),
            gone=(),
            bans=(),
            is_past_end=False,
        )
        return self.sign(peer, Kind.COMMIT, body)

    def have(self, senders: Iterable[PeerId], attempt: int) -> SignedMessage:
        """The first helper says that it holds all parts of these senders."""
        bits = pack_senders(set(senders), self.head.value.roster.members)
        held = Held(first=0, stop=self._num_cells(self.head), senders=bits)
        return self.sign(self.helpers[0], Kind.HAVE, Have(held=(held,)), attempt)

    # Words --------------------------------------------------------------------------------------

    def name_of_set(self, senders: Iterable[PeerId]) -> str:
        """A LIST by the letters of its senders."""
        return "{" + ", ".join(sorted(self.names[peer] for peer in senders)) + "}"

    def learn(self, digest: bytes, senders: Iterable[PeerId]) -> None:
        """Remember who is on the LIST of that digest."""
        self._digests[digest] = self.name_of_set(senders)

    def list_of(self, commits: dict[PeerId, bytes]) -> List:
        """The LIST of these COMMIT digests by sender, remembered by name."""
        digests = tuple(digest for _, digest in sorted(commits.items()))
        value = self.head.value
        digest = list_digest(value.digest, 0, value.round + 1, digests, ())
        self.learn(digest, commits)
        return List(commits=digests, drifts=(), certificate=())

    def name_of_list(self, digest: bytes) -> str:
        """A LIST by its digest."""
        return self._digests.get(digest, digest.hex()[:6])

    def said(self, letters: Iterable[Letter]) -> str:
        """What was signed, in words."""
        return ", ".join(words for letter in letters if (words := self._words(letter)))

    def _words(self, letter: Letter) -> str:
        name, attempt = self.names[letter.sender], letter.attempt
        match letter.body:
            case List(commits=commits):
                self.learn(letter.proposes, (self.senders[commit] for commit in commits))
                what = self.name_of_list(letter.proposes)
                return f"{name} proposes LIST {what} in attempt {attempt}"
            case Vote(list_digest=digest):
                return f"{name} VOTEs {self.name_of_list(digest)} in attempt {attempt}"
            case Seal(list_digest=digest):
                return f"{name} SEALs {self.name_of_list(digest)} in attempt {attempt}"
            case Commit():
                self.senders[letter.message.digest] = letter.sender
                return f"{name} COMMITs"
            case NewAttempt(lock_attempt=lock) if lock >= 0:
                return f"{name} reports its lock of attempt {lock}"
            case NewAttempt():
                return ""
            case _:
                return f"{name} signs {letter.message.slot.kind.name}"


def seat(peer: PeerId, *, votes: bool) -> SeatRecord:
    """A seat in the fifth round; voters are of equal age."""
    since = 0 if votes else -1
    return SeatRecord(peer=peer, seated=0, voter_since=since, proved=4 if votes else -1, absent=0)


def head_of(voters: Iterable[PeerId], others: Iterable[PeerId] = ()) -> SealCertificate:
    """A seal of round 4 that names these voters and members; a start, whose proof nobody asks."""
    seats = [seat(peer, votes=True) for peer in voters] + [seat(p, votes=False) for p in others]
    roster = Roster(seats=tuple(sorted(seats, key=lambda record: record.peer)), window=WINDOW)
    value = SealValue(
        run=RUN,
        shard=0,
        round=WINDOW[-1],
        before=blake3(b"before").digest(),
        basis=blake3(b"before").digest(),
        commits=(),
        drifts=(),
        root=blake3(b"state").digest(),
        roster=roster,
        clock=SealClock(step=0, tokens=0, cursor=0, unused=(), ends_run=False),
    )
    return SealCertificate(value=value, seals=())
