"""Attacks that nodes carry out, each by itself, as what bends it: `NAME:FRACTION` of a command.

Its trainer's honest work is exchanged for what the attack makes of it, or what it says is bent. It
sees its own work alone: what others contribute is not known before everybody has committed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from node.cells.shard_store import ShardStore
from node.hooks import NodeHooks
from protocol import limits
from protocol.errors import ConfigError
from sim.attacks import ATTACKS, Context
from sim.attacks.seam import Vector

ALONE = (
    "bent_segment",
    "closed_work",
    "constant_direction",
    "equivocation",
    "gaussian",
    "lazy",
    "leaves_out",
    "lists_itself",
    "lone_class",
    "lying_auditor",
    "lying_reducer",
    "on_off",
    "replay",
    "scale",
    "shift",
    "sign_flip",
    "slow_drift",
    "stale",
    "sybil_wave",
    "targeted_slice",
    "zero",
)
"""Attacks that need no vector of others, and no other data. `nan` is no contribution: a node that
makes one ends."""

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
)
"""Attacks that are made of the vectors of others, the same from all liars: `together.py`."""

IN_WORLDS = frozenset({"bent_segment", "lazy", "lone_class"})
"""Attacks on the inner loop: hooks bend the network process, and a trainer is another program."""

NEEDS_AUDITS = IN_WORLDS | {"lying_auditor"}
"""Attacks on what audits look at: without any they bend nothing."""

STANDS_BY_ITS_WORK = frozenset({"retract"})
"""What a liar's node does without: it takes nothing back."""

HISTORY_MAX = 16
_SHARE_OF_MOST = 0.5


class Liar(NodeHooks):
    """Bends every contribution by an attack."""

    def __init__(self, attack: str) -> None:
        self.name = f"attack {attack}"
        self._attack = ATTACKS[attack](blind=True)
        self._luck = np.random.default_rng(0)
        self._history: list[Vector] = []
        self._round = 0

    @property
    def without(self) -> frozenset[str]:
        """See NodeHooks."""
        return STANDS_BY_ITS_WORK

    def contribution(
        self, payloads: Sequence[bytes], store: ShardStore, fragment: int
    ) -> Sequence[bytes]:
        """What the attack makes of the own work."""
        own_1N = store.decode(payloads, fragment=fragment)[None]
        layout = store.layout
        cells = range(layout.num_cells(fragment))
        context = Context(
            round=self._round,
            luck=self._luck,
            rule=lambda rows_PN: rows_PN[0],
            slices=tuple(slice(*layout.cell_range(fragment, cell)) for cell in cells),
            history=self._history,
        )
        self._round += 1
        sent_N = self._attack.send(own_1N, own_1N, context)[0]
        self._history = [*self._history, own_1N][-HISTORY_MAX:]
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


def lies_named(text: str, peers: int) -> Lies:
    """`scale:0.25` of so many nodes. Raises ConfigError saying what is wrong."""
    name, _, share = text.partition(":")
    if name not in (*ALONE, *TOGETHER):
        known = ", ".join((*ALONE, *TOGETHER))
        raise ConfigError(f"--attack: {name!r} is none that nodes can carry out; there are {known}")
    try:
        fraction = float(share)
    except ValueError:
        fraction = -1.0
    is_fresh = ATTACKS[name]().is_fresh
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


def hooks_of(name: str) -> NodeHooks:
    """What bends one node that attacks so."""
    return ATTACKS[name]().hooks() or Liar(name)
