"""Attacks that nodes carry out, each by itself, as what bends it: `NAME:FRACTION` of a command.

Its trainer's honest work is exchanged for what the attack makes of it, or what it says is bent. It
sees its own work alone: what others contribute is not known before everybody has committed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from node.holdings.shard_store import ShardStore
from node.plane.hooks import NodeHooks
from protocol import limits
from protocol.errors import ConfigError
from protocol.grid import Layout
from protocol.identity import PeerId, Signer
from sim.attacks import ATTACKS, Attack, Context
from sim.attacks.acts import Acts, act_named
from sim.attacks.seam import Vector

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
"""Attacks that are made of the vectors of others, which nobody alone knows: `together.py`."""

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

STANDS_BY_ITS_WORK = frozenset({"retract"})
"""What a liar's node does without: it takes nothing back."""

HISTORY_MAX = 16
_SHARE_OF_MOST = 0.5

Rule = Callable[[Vector], Vector]


class Past:
    """What liars know of their earlier rounds, each fragment by itself."""

    def __init__(self) -> None:
        self._rounds: Counter[int] = Counter()
        self._history: dict[int, list[Vector]] = {}

    def context(
        self, layout: Layout, fragment: int, luck: np.random.Generator, rule: Rule
    ) -> Context:
        """What they know of the next round of a fragment."""
        cells = range(layout.num_cells(fragment))
        return Context(
            round=self._rounds[fragment],
            luck=luck,
            rule=rule,
            slices=tuple(slice(*layout.cell_range(fragment, cell)) for cell in cells),
            history=self._history.get(fragment, []),
        )

    def add(self, fragment: int, own_BN: Vector) -> None:
        """Record the attackers' own vectors of a finished round."""
        self._rounds[fragment] += 1
        self._history[fragment] = [*self._history.get(fragment, []), own_BN][-HISTORY_MAX:]


class Liar(NodeHooks):
    """Bends every contribution by an attack. What it draws follows from `seed` and its key."""

    def __init__(self, attack: str, seed: int = 0) -> None:
        self.name = f"attack {attack}"
        self._attack = ATTACKS[attack](blind=True)
        self._seed, self._me = seed, 0
        self._luck: np.random.Generator | None = None
        self._past = Past()

    def began(self, signer: Signer) -> None:
        """See NodeHooks."""
        self._me = int.from_bytes(signer.peer_id, "big")

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return STANDS_BY_ITS_WORK

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What the attack makes of the own work."""
        own_1N = store.decode(payloads, fragment=fragment)[None]
        if self._luck is None:  # A process that starts again goes on drawing.
            self._luck = np.random.default_rng([self._seed, self._me])
        context = self._past.context(store.layout, fragment, self._luck, lambda rows_PN: rows_PN[0])
        sent_N = self._attack.send(own_1N, own_1N, context)[0]
        self._past.add(fragment, own_1N)
        return store.encode(bounded(sent_N), fragment=fragment)


def bounded(sent_N: Vector) -> Vector:
    """No longer than a COMMIT may say, or nobody would take it."""
    most = np.float32(_SHARE_OF_MOST * limits.CELL_NORM_MAX / np.sqrt(len(sent_N)))
    bounded_N: Vector = np.clip(np.nan_to_num(sent_N), -most, most)
    return bounded_N


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
