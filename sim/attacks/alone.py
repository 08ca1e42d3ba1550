"""Attacks that nodes carry out, each by itself, as what bends it: `NAME:FRACTION` of a command.

Its trainer's honest work is exchanged for what the attack makes of it, or what it says is bent. It
sees its own work alone: what others contribute is not known before everybody has committed.
"""

from collections.abc import Collection
from dataclasses import dataclass

from node.plane.hooks import NodeHooks
from protocol.errors import ConfigError
from protocol.identity import PeerId
from sim.attacks import ATTACKS, Attack
from sim.attacks.acts import Acts, act_named
from sim.attacks.work import Liar

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
