"""Every attack by name, entered here; families that share their code share a file.

Beside these there are names made of a kind of message and an act: `sim.attacks.acts`.
"""

from collections.abc import Callable
from functools import partial

from node.plane.hooks import NodeHooks
from sim.attacks import values
from sim.attacks.acts import Act, Acts
from sim.attacks.flooding import Flood
from sim.attacks.insider import Insider
from sim.attacks.messages import LISTS, BendsLists, OldMessages, TwoCommits
from sim.attacks.seam import ATTACKS, Attack, Context, HookedAttack
from sim.attacks.seats import AsksUnderMadeUpKeys, SeatsGhosts
from sim.attacks.work import (
    AloneAndBackwards,
    BendsOneSegment,
    FindsWrong,
    ShownToAllButOne,
    ShownToNobody,
    TrainsAQuarter,
    WrongSums,
)

__all__ = ["ATTACKS", "Attack", "Context"]

_ON_VALUES: dict[str, type[Attack]] = {
    "alie": values.Alie,
    "backdoor": values.Backdoor,
    "constant_direction": values.ConstantDirection,
    "fang": values.Fang,
    "fang_krum": values.FangKrum,
    "gaussian": values.Gaussian,
    "ipm": values.Ipm,
    "label_flip": values.LabelFlip,
    "mimic": values.Mimic,
    "min_max": values.MinMax,
    "min_sum": values.MinSum,
    "nan": values.Nan,
    "on_off": values.OnOff,
    "scale": values.Scale,
    "searched_alie": values.SearchedAlie,
    "searched_ipm": values.SearchedIpm,
    "shift": values.Shift,
    "sign_flip": values.SignFlip,
    "slow_drift": values.SlowDrift,
    "stale": values.Stale,
    "sybil_wave": values.SybilWave,
    "targeted_slice": values.TargetedSlice,
    "zero": values.Zero,
}

_BY_HOOKS: dict[str, Callable[[], NodeHooks]] = {
    "bent_segment": BendsOneSegment,
    "closed_work": ShownToNobody,
    "crowds_out": AsksUnderMadeUpKeys,
    "equivocation": TwoCommits,
    "flood_gram": partial(Flood, "GRAM"),
    "flood_want": partial(Flood, "Want"),
    "ghosts": SeatsGhosts,
    "lazy": TrainsAQuarter,
    "lone_class": AloneAndBackwards,
    "lying_auditor": FindsWrong,
    "lying_reducer": WrongSums,
    "replay": OldMessages,
    "shuts_out": ShownToAllButOne,
    **{name: partial(BendsLists, name, keeps) for name, keeps in LISTS.items()},
}

_ON_HAVES = {"deny_have": "deny", "late_have": "late", "silent_have": "never"}

for _name, _attack in _ON_VALUES.items():
    ATTACKS.register(_name, _attack)
for _name, _make in _BY_HOOKS.items():
    ATTACKS.register(_name, partial(HookedAttack, make_hooks=_make))
for _name, _verb in _ON_HAVES.items():
    ATTACKS.register(_name, partial(Acts, act=Act(verb=_verb, kind="have")))
ATTACKS.register("insider", Insider)
