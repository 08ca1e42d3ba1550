"""What a RoundMachine needs to know besides the chain."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from protocol.grid import NO_CELLS, CellSizes
from protocol.identity import PeerId
from protocol.leases import Lease
from protocol.manifest import NO_AUDITS, AuditSpec, RunManifest
from protocol.messages import Body, Roster, SealValue, Slot
from protocol.rounds import roster as rosters
from protocol.rounds.reducers import Slice
from protocol.segments import MOMENTS

# Rare branches ------------------------------------------------------------------------------------
#
# Rare branches: what the rules always allow, and what hardly ever happens by itself.
#
# A simulated world takes them on purpose, so that the paths behind them are walked. A real node
# never does. The code asks `rare("name")` where such a branch begins; whoever answers draws from a
# stream of its own. Questions that are asked again after every event go through `RoundView.rare`,
# which draws once per attempt.

Rare = Callable[[str], bool]
"""Whether the branch of that name is taken now."""


def never(name: str) -> bool:
    """The answer of every real node."""
    return False


NAMES: Mapping[str, str] = {
    "closer-early": "The closer proposes what is complete, as if late: clocks are local.",
    "closer-carries": "The closer lets the round carry: a LIST may be empty.",
    "closer-free": "The closer takes up no list that is summed: without a lock it is free.",
    "have-early": "A reducer signs HAVE before its deadline: what it leaves out is not listed.",
    "vote-later": "A VOTE waits for the next event: a vote not given is an absent voter.",
    "seal-later": "A SEAL waits for the next event: a seal not given is an absent voter.",
    "late-seal-unsigned": "The own SEAL of a round that is final anyway is not added.",
    "left-at-list": "A voter gives the attempt up when it hears the LIST: time-outs are its own.",
    "left-at-vote": "A voter gives the attempt up after its VOTE: a vote locks nobody.",
    "left-at-seal": "A voter gives the attempt up after its SEAL: it reports its lock to the next.",
    "attempt-skipped": "Whoever gives an attempt up enters the one after the next.",
    "part-unpushed": "A sender pushes no part: whoever sums them asks.",
    "part-at-once": "A reducer asks for parts before they can have been pushed.",
    "result-unpushed": "A reducer pushes no result: whoever needs it asks.",
    "result-at-once": "A member asks for results before they can have been pushed.",
    "other-source": "Cells are asked for at the second source first.",
    "want-ignored": "A question for cells is not answered: the asked may lack them.",
    "forward-to-none": "A message is not passed on: heartbeats fill the gap.",
    "forward-to-all": "A message is passed on to those whom its origin reaches too.",
    "early-dropped": "A message of the next round is not kept: heartbeats fill the gap.",
    "beat-skipped": "A heartbeat is left out: one is no silence yet.",
    "live-suspected": "One peer is suspected for one look though it was heard: suspicion is local.",
    "source-given-up": "A source of the state is given up while its bytes arrive.",
    "deadline-forgotten": "The learned deadline starts from its floor again.",
}
"""What each branch does, and why the rules allow it."""


# Derived ------------------------------------------------------------------------------------------
#
# What follows from seals alone, and may be worked out once for all nodes of a simulated world.


class Derived(Protocol):
    """SEAM: what follows from seals and from results that they name. Each as the rule of its name:
    in `chain`, `reducers` and `roster`."""

    @property
    def seal_value(self) -> Callable[..., SealValue | None]:
        """What the seal of a LIST says."""
        ...

    def slices(
        self, roster: Roster, basis: bytes, num_cells: int, *, trust: str
    ) -> tuple[Slice, ...]:
        """Who sums what."""
        ...

    def leased_for(
        self, round_index: int, basis: SealValue, samples_each: int
    ) -> dict[PeerId, Lease]:
        """Who may use which samples."""
        ...


# Round config -------------------------------------------------------------------------------------


def as_it_is(slot: Slot, body: Body) -> Body:
    """What an honest node signs in a slot."""
    del slot
    return body


BEATS_TO_RELAY = 3.0
"""Heartbeats until a word that was said to others is here (`protocol.core.relay`): it settles for
half of one, the next asks for it, and the one behind that asks all where the first to send it had
not got it either; and it has its way."""


OVERDUE_AFTER = 0.75
"""In least deadlines from when the round was opened here: behind it a COMMIT may come too late for
somebody's HAVE, whose clock of the round began earlier; before it nobody speaks who waits for one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """What a RoundMachine needs to know besides the chain; `wait_seats` is local taste.

    `survive` says who goes on where the quorum is out of reach for longer than `grace_s`: in
    friends runs "any" half does, provisionally (R4), or only the "quorum". A founder holds its
    first COMMIT until `wait_seats` joiners have proved their seats, for at most `wait_seats_s`.
    `fragment_cells` are the cells of each fragment, which are synced in turn.
    `relayed_s` after it was said to somebody a word is known to all whom others tell of it.
    `cell_sizes` are what a node that is behind asks for.
    `uses_gram` says that the run's rule judges whole vectors: partial Gram matrices are exchanged.
    `audits` says what those weigh whose training nobody can run again.
    `everybody_sums` that every member sums all cells from whole contributions, so that no results
    travel (R8).
    Audits (R10) need the class of the own `device`, and how many vectors beside the weights an
    inner state has: `moments`, AdamW's two.
    `rare` says when a simulated node takes a rare branch; `without` are defences that a test
    switches off, to see what an attack does there: "bans", "words" of voters, "slots" that belong
    to one round, "inclusion" of whoever belongs in a LIST. A liar stands by its work without
    "retract". `derived` is there in a simulated world that works out once for all nodes what
    follows from seals; None: each does by itself. `bend` is what a liar signs in a slot in place of
    what it should (`node.plane.hooks.NodeHooks.said`).
    """

    trust: str
    fragment_cells: tuple[int, ...]
    clock: rosters.ClockRules
    deadline_floor_s: float
    deadline_cap_s: float
    relayed_s: float = 0.0
    heartbeat_s: float = 1.0
    survive: str = "quorum"
    grace_s: float = 3.0
    wait_seats: int = 0
    wait_seats_s: float = 12.0
    uses_gram: bool = False
    cell_sizes: CellSizes = NO_CELLS
    audits: AuditSpec = NO_AUDITS
    everybody_sums: bool = False
    device: str = ""
    moments: int = MOMENTS
    without: frozenset[str] = frozenset()
    rare: Rare = field(default=never, compare=False, repr=False)
    derived: Derived | None = field(default=None, compare=False, repr=False)
    bend: Callable[[Slot, Body], Body] = field(default=as_it_is, compare=False, repr=False)

    @property
    def overdue_s(self) -> float:
        """For how long each waits at least, by whatever clock of the round, for what it lacks."""
        return OVERDUE_AFTER * self.deadline_floor_s

    @property
    def may_branch(self) -> bool:
        """Whether rounds may be sealed provisionally."""
        return self.trust == "friends" and self.survive == "any"

    def num_cells(self, round_index: int) -> int:
        """Cells of the fragment that a round is about: r mod F (R5)."""
        return self.fragment_cells[round_index % len(self.fragment_cells)]

    @classmethod
    def from_manifest(
        cls, manifest: RunManifest, shard: int, *, uses_gram: bool, cell_sizes: CellSizes
    ) -> "RoundConfig":
        """The law of the run, with no local taste (see `node.holdings.states.round_config`)."""
        return cls(
            trust=manifest.trust,
            fragment_cells=manifest.layout(shard).fragment_cells,
            clock=rosters.ClockRules.from_manifest(manifest),
            deadline_floor_s=manifest.timing.deadline_floor_s,
            deadline_cap_s=manifest.timing.deadline_cap_s,
            relayed_s=BEATS_TO_RELAY * manifest.timing.heartbeat_s,
            heartbeat_s=manifest.timing.heartbeat_s,
            survive=manifest.survive,
            grace_s=manifest.timing.suspect_s,
            uses_gram=uses_gram,
            cell_sizes=cell_sizes,
            audits=manifest.audits,
            everybody_sums=manifest.outer.everybody_sums,
        )
