"""Every attack by name: one file each, entered here.

Beside these there are names made of a kind of message and an act: `sim.attacks.acts`.
"""

from functools import partial

from sim.attacks.acts import Act, Acts
from sim.attacks.alie import Alie
from sim.attacks.backdoor import Backdoor
from sim.attacks.bent_segment import BentSegment
from sim.attacks.closed_work import ClosedWork
from sim.attacks.constant_direction import ConstantDirection
from sim.attacks.crowds_out import CrowdsOut
from sim.attacks.equivocation import Equivocation
from sim.attacks.fang import Fang
from sim.attacks.fang_krum import FangKrum
from sim.attacks.flood_gram import FloodGram
from sim.attacks.flood_want import FloodWant
from sim.attacks.gaussian import Gaussian
from sim.attacks.ghosts import Ghosts
from sim.attacks.insider import Insider
from sim.attacks.ipm import Ipm
from sim.attacks.label_flip import LabelFlip
from sim.attacks.lazy import Lazy
from sim.attacks.leaves_out import LeavesOut, ListsItself, ListsNobody
from sim.attacks.lone_class import LoneClass
from sim.attacks.lying_auditor import LyingAuditor
from sim.attacks.lying_reducer import LyingReducer
from sim.attacks.mimic import Mimic
from sim.attacks.min_max import MinMax
from sim.attacks.min_sum import MinSum
from sim.attacks.nan import Nan
from sim.attacks.on_off import OnOff
from sim.attacks.replay import Replay
from sim.attacks.scale import Scale
from sim.attacks.seam import ATTACKS, Attack, Context
from sim.attacks.searched_alie import SearchedAlie
from sim.attacks.searched_ipm import SearchedIpm
from sim.attacks.shift import Shift
from sim.attacks.shuts_out import ShutsOut
from sim.attacks.sign_flip import SignFlip
from sim.attacks.slow_drift import SlowDrift
from sim.attacks.stale import Stale
from sim.attacks.sybil_wave import SybilWave
from sim.attacks.targeted_slice import TargetedSlice
from sim.attacks.zero import Zero

__all__ = ["ATTACKS", "Attack", "Context"]

ATTACKS.register("alie", Alie)
ATTACKS.register("backdoor", Backdoor)
ATTACKS.register("bent_segment", BentSegment)
ATTACKS.register("closed_work", ClosedWork)
ATTACKS.register("constant_direction", ConstantDirection)
ATTACKS.register("crowds_out", CrowdsOut)
ATTACKS.register("ghosts", Ghosts)
ATTACKS.register("deny_have", partial(Acts, act=Act(verb="deny", kind="have")))
ATTACKS.register("equivocation", Equivocation)
ATTACKS.register("fang", Fang)
ATTACKS.register("fang_krum", FangKrum)
ATTACKS.register("flood_gram", FloodGram)
ATTACKS.register("flood_want", FloodWant)
ATTACKS.register("gaussian", Gaussian)
ATTACKS.register("insider", Insider)
ATTACKS.register("ipm", Ipm)
ATTACKS.register("label_flip", LabelFlip)
ATTACKS.register("late_have", partial(Acts, act=Act(verb="late", kind="have")))
ATTACKS.register("lazy", Lazy)
ATTACKS.register("leaves_out", LeavesOut)
ATTACKS.register("lists_itself", ListsItself)
ATTACKS.register("lists_nobody", ListsNobody)
ATTACKS.register("lone_class", LoneClass)
ATTACKS.register("lying_auditor", LyingAuditor)
ATTACKS.register("lying_reducer", LyingReducer)
ATTACKS.register("mimic", Mimic)
ATTACKS.register("min_max", MinMax)
ATTACKS.register("min_sum", MinSum)
ATTACKS.register("nan", Nan)
ATTACKS.register("on_off", OnOff)
ATTACKS.register("replay", Replay)
ATTACKS.register("scale", Scale)
ATTACKS.register("searched_alie", SearchedAlie)
ATTACKS.register("searched_ipm", SearchedIpm)
ATTACKS.register("shift", Shift)
ATTACKS.register("shuts_out", ShutsOut)
ATTACKS.register("sign_flip", SignFlip)
ATTACKS.register("silent_have", partial(Acts, act=Act(verb="never", kind="have")))
ATTACKS.register("slow_drift", SlowDrift)
ATTACKS.register("stale", Stale)
ATTACKS.register("sybil_wave", SybilWave)
ATTACKS.register("targeted_slice", TargetedSlice)
ATTACKS.register("zero", Zero)
