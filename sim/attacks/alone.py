"""Attacks that nodes carry out in rounds, as what bends them: `NAME:FRACTION` of a command.

H honest peers, B liars, N elements of a fragment

A liar alone exchanges its trainer's honest work for what the attack makes of it, or bends what it
says. It sees its own work alone: what others contribute is not known before everybody has
committed. Liars who share what they know train as well, and each holds its contribution back until
all others of its round are known to it, or its patience is over; then all of them send what the
attack makes of that. In a world nothing is hidden from them. A real liar hears of the other liars
alone, and takes their honest work for that of all.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from protocol.errors import ConfigError
from protocol.identity import PeerId
from sim.attacks import ATTACKS, Attack
from sim.attacks.acts import Acts, act_named
from sim.attacks.seam import Vector
from sim.attacks.work import HISTORY_MAX, STANDS_BY_ITS_WORK, Liar, Past, bounded

TOGETHER = (
    "alie",
    "fang",
    "fang_krum",
    "ipm",
    "mimic",
    "min_max",
    "min_sum",
    "searched_alie",
    "searched_ipm",
    "shift",
)
"""Attacks that are made of the vectors of others, which nobody alone knows: `Conspiracy`."""

NOT_BY_NODES = ("backdoor", "label_flip", "nan")
"""Attacks that bend a trainer's data, which no hook reaches; and `nan`, which is no contribution: a
node that makes one ends."""

ALONE = tuple(name for name in ATTACKS if name not in (*TOGETHER, *NOT_BY_NODES))
"""Attacks that need no vector of others. A new attack is one of them unless it is named above."""

INNER = frozenset({"bent_segment", "lazy", "lone_class"})
"""Attacks on the inner loop: hooks bend the network process, and a trainer is another program."""

IN_WORLDS = INNER | {"crowds_out", "ghosts"}
"""Those, and what has solved the puzzle of worlds alone."""

NEEDS_AUDITS = INNER | {"lying_auditor", "shuts_out"}
"""Attacks on what audits look at: without any they bend nothing."""


@dataclass(frozen=True, slots=True)
class Lies:
    """An attack by name, and how many of the nodes that start together lie.

    `is_fresh` liars start later, and were not seated by anybody.
    """

    name: str
    count: int
    is_fresh: bool = False


def is_carried_out(name: str) -> bool:
    """Whether nodes can attack so. Raises ConfigError for an act that is misspelt."""
    return name in (*ALONE, *TOGETHER) or act_named(name) is not None


def attack_named(name: str) -> Attack:
    """An attack of that name, or an act. Raises ConfigError."""
    act = act_named(name)
    return ATTACKS[name]() if act is None else Acts(act=act)


def lies_named(text: str, peers: int) -> Lies:
    """`scale:0.25` of so many nodes. Raises ConfigError saying what is wrong."""
    name, _, share = text.partition(":")
    if not is_carried_out(name):
        known = ", ".join((*ALONE, *TOGETHER))
        raise ConfigError(
            f"--attack: {name!r} is none that nodes can carry out; there are {known}, and acts like"
            " act_never_gram, act_half_list, act_late_seal_1.45, act_deny_vote_lowest"
        )
    try:
        fraction = float(share)
    except ValueError:
        fraction = -1.0
    is_fresh = attack_named(name).is_fresh
    # Written so that what is not a number does not pass.
    if not 0.0 < fraction < (1.0 if is_fresh else 0.5):
        most = "below 1" if is_fresh else "below a half"
        raise ConfigError(f"--attack {text}: write it like {name}:0.25, {most}")
    count = max(1, int(fraction * peers))
    if not count < (peers if is_fresh else peers / 2):
        raise ConfigError(f"--attack {text}: {count} of {peers} peers would lie; take more peers")
    return Lies(name, count, is_fresh=is_fresh)


def check_audits(name: str, audits: float) -> None:
    """Raises ConfigError for an attack that does nothing in a run of so many audits."""
    if name in NEEDS_AUDITS and not audits:
        raise ConfigError(f"--attack: {name} needs --audits above 0: without any it bends nothing")


def lies_of_worlds(text: str, peers: int, audits: float) -> Lies:
    """The same of the nodes of a world. Raises ConfigError."""
    lies = lies_named(text, peers)
    check_audits(lies.name, audits)
    return lies


def lies_of_nodes(text: str, peers: int) -> Lies:
    """The same of real nodes. Raises ConfigError."""
    lies = lies_named(text, peers)
    if lies.name in IN_WORLDS:
        raise ConfigError(f"--attack: {lies.name} is for `barnraise sim` alone")
    if lies.name in TOGETHER and lies.count < 2:
        raise ConfigError(f"--attack: {lies.name} takes two liars who share; {text} gives one")
    return lies


def hooks_of(name: str, seed: int = 0, liars: Collection[PeerId] = ()) -> NodeHooks:
    """What bends one node that attacks so; `seed` is that of its world, `liars` all that lie."""
    attack = attack_named(name)
    attack.seed, attack.liars = seed, frozenset(liars)
    return attack.hooks() or Liar(name, seed)


# Several who share what they know -----------------------------------------------------------------

Made = Mapping[PeerId, Vector]
"""What peers made of the same state: (N,) each."""


class Crafting:
    """What all liars send in a round, from what was made in it; the same for the same."""

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._luck = np.random.default_rng(0)
        self._past = Past()

    def sent(
        self, honest: Made, own: Made, store: ShardStore, fragment: int
    ) -> dict[PeerId, Vector]:
        """By liar what it sends; called once for a round. `own` is their honest work, `store` says
        what the rule is, and where cells begin."""
        own_BN = _rows(own)
        context = self._past.context(
            store.layout, fragment, self._luck, lambda rows_PN: store.aggregator(rows_PN).value
        )
        sent_BN = self._attack.send(_rows(honest) if honest else own_BN, own_BN, context)
        self._past.add(fragment, own_BN)
        return {peer: bounded(row_N) for peer, row_N in zip(sorted(own), sent_BN, strict=True)}


def _rows(made: Made) -> Vector:
    return np.stack([made[peer] for peer in sorted(made)])


class Conspiracy:
    """The liars of a world, who hear of every contribution when it is made."""

    def __init__(self, attack: Attack, liars: Collection[PeerId]) -> None:
        self.liars = frozenset(liars)
        self._crafting = Crafting(attack)
        self._made: dict[bytes, dict[PeerId, Vector]] = {}
        """By the root of the state that they began from."""
        self._sent: dict[bytes, dict[PeerId, Vector]] = {}

    def made(self, peer: PeerId, root: bytes, vector_N: Vector) -> None:
        """A peer trained on the state of that root; an honest one is about to commit to it."""
        self._made.setdefault(root, {})[peer] = vector_N
        for kept in (self._made, self._sent):
            while len(kept) > HISTORY_MAX:
                del kept[next(iter(kept))]

    def knows(self, root: bytes, peers: Collection[PeerId]) -> bool:
        """Whether all of them have made theirs."""
        return self._made.get(root, {}).keys() >= set(peers)

    def sent(self, peer: PeerId, store: ShardStore, fragment: int) -> Vector:
        """What a liar, whose own work is known, sends. The first who asks settles it for all."""
        root = store.state.root
        made = self._made[root]
        if root not in self._sent:
            honest = {one: made[one] for one in made if one not in self.liars}
            own = {one: made[one] for one in made if one in self.liars}
            self._sent[root] = self._crafting.sent(honest, own, store, fragment)
        sent = self._sent[root]
        # Who trained later than that says what another one says.
        return sent.get(peer, next(iter(sent.values())))


class Accomplice(NodeHooks):
    """One liar of a conspiracy."""

    def __init__(self, name: str, peer: PeerId, conspiracy: Conspiracy) -> None:
        self.name = f"attack {name}"
        self._peer, self._conspiracy = peer, conspiracy

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return STANDS_BY_ITS_WORK

    def is_waiting(self, store: ShardStore, others: Collection[PeerId]) -> bool:
        """See NodeHooks: until all are known."""
        return not self._conspiracy.knows(store.state.root, others)

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What all of them send."""
        root = store.state.root
        self._conspiracy.made(self._peer, root, store.decode(payloads, fragment=fragment))
        return store.encode(self._conspiracy.sent(self._peer, store, fragment), fragment=fragment)
