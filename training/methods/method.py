"""SEAM Method: what a preset changes about the rounds of a trainer, as hooks of the loop.

N elements of a fragment

The loop (`training.loop.diloco`) knows this class and no other: it calls these hooks at the places
that their docstrings name. `Method` itself is DiLoCo with one round in flight. A file beside this
one overrides what its method does in another way, and enters `METHODS` under the name by which
presets call it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from typing_extensions import override

from protocol.leases import Lease, lease_size
from protocol.manifest import InnerSpec, OuterSpec, RunManifest
from training.channel.exchange import Exchange, Outcome, RunClock, RunStart, Turn
from training.methods.presets import PRESETS, SHORT_RUN_ROUNDS
from training.numeric import Registry

if TYPE_CHECKING:
    from torch import nn

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Due:
    """What follows a local step: fragments to hand over, then fragments to await, in order.

    The outcome of `take` is taken over if it is here; if not, it is asked for again at a later
    step, and awaited at the end of the round. That of `join` is of the round before on a fragment
    of `begin`, and awaited before that is handed over again.
    """

    join: tuple[int, ...] = ()
    begin: tuple[int, ...] = ()
    finish: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MethodNotes:
    """What a method must know again after a crash: words and vectors of its fragment by name."""

    words: Mapping[str, str] = field(default_factory=dict)
    vectors: Mapping[str, Vector] = field(default_factory=dict)


class Pace:
    """How many inner steps a round has: H where all take equally many, else as many as the lease is
    long enough for; and where the learning rate is at."""

    def __init__(self, inner: InnerSpec) -> None:
        self._inner = inner

    def steps(self, lease: Lease) -> int:
        """Inner steps of a round that is trained on this lease, at least one."""
        if self._inner.equal_steps:
            return self._inner.inner_steps
        return self._fitting(lease)

    def _fitting(self, lease: Lease) -> int:
        return max(1, min(self._inner.inner_steps, lease_size(lease) // self._inner.batch))

    def rate_step(self, clock: RunClock, local_step: int, steps: int) -> int:
        """The global step whose learning rate a local step of a round of so many steps has: of
        sealed facts and the local step alone (R9)."""
        del steps
        return clock.step + local_step


class OwnPace(Pace):
    """Peers choose how many steps. Rounds then have fewer than H of them, and the rate goes by
    rounds: it is to end with the run."""

    @override
    def steps(self, lease: Lease) -> int:
        return self._fitting(lease)

    def rate_step(self, clock: RunClock, local_step: int, steps: int) -> int:
        """As of a round of H steps, the same share of it done."""
        inner_steps = self._inner.inner_steps
        return clock.round * inner_steps + local_step * inner_steps // steps


def make_pace(preset: str, inner: InnerSpec) -> Pace:
    """The pace of a preset's rounds. Raises ConfigError for an unknown name."""
    found = PRESETS[preset](SHORT_RUN_ROUNDS)
    return OwnPace(inner) if found.is_paced else Pace(inner)


def has_equal_steps(manifest: RunManifest) -> bool:
    """Whether all peers take all H steps of a round: auditors run them again, and variates are
    means over them. And with two rounds in flight about one fragment, or where a method is to come
    that has them, each awaits the outcome of the round before and only then commits: when the
    slowest lets it, so that no COMMIT tells how fast its sender is."""
    inner, outer = manifest.inner, manifest.outer
    found = PRESETS[outer.preset](SHORT_RUN_ROUNDS)
    is_few = len(manifest.shards[0].fragments) < outer.overlap
    awaits = outer.overlap > 1 and (is_few or bool(outer.then))
    return bool(manifest.audits.rate) or inner.equal_steps or found.has_variates or awaits


def law_of_steps(manifest: RunManifest) -> InnerSpec:
    """The manifest's inner loop, with `equal_steps` also where audits or the method need them."""
    return replace(manifest.inner, equal_steps=has_equal_steps(manifest))


def steps_of(manifest: RunManifest, lease: Lease) -> int:
    """Inner steps of a round: H where all take equally many, else as many as this lease is long
    enough for."""
    return make_pace(manifest.outer.preset, law_of_steps(manifest)).steps(lease)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodSetting:
    """What a method is made for. `spec` has the numbers of its own rounds where a run has two
    methods, `tau` is the preset's."""

    spec: OuterSpec
    inner: InnerSpec
    num_fragments: int
    pace: Pace
    tau: int = 0


class Method:
    """DiLoCo: H steps on one's own, then a round on the fragment round mod F, whose outcome is
    awaited at once; training goes on from its anchor (R5).

    One object serves all rounds of its method, so it may remember things from one to the next.
    Vectors that hooks are given are only read, unless a docstring says otherwise.
    """

    def __init__(self, setting: MethodSetting) -> None:
        self.pace = setting.pace
        self._inner_steps = setting.inner.inner_steps
        self._num_fragments = setting.num_fragments

    # A run ------------------------------------------------------------------------------------

    def begin_run(
        self, model: "nn.Module", manifest: RunManifest, start: RunStart, shard: int
    ) -> None:
        """Once, when the loop is made and the model has the start's anchors. Raises ConfigError for
        a manifest that the method cannot run."""

    def continued(self, later: "Method") -> "Method":
        """What takes the place of a `later` method of the same preset, in a run that changes its
        numbers: itself, where what it remembers is of all rounds."""
        return later

    # Steps ------------------------------------------------------------------------------------

    def due(self, local_step: int, round_index: int) -> Due:
        """What is due after `local_step` (1..H) inner steps of a round. Pure."""
        if local_step < self._inner_steps:
            return Due()
        fragment = round_index % self._num_fragments
        return Due(begin=(fragment,), finish=(fragment,))

    def after_step(self, rate_step: int) -> None:
        """Behind each inner step, which had the learning rate of that step of the run."""

    # A contribution ---------------------------------------------------------------------------

    def record_drift(self, drift_N: Vector) -> None:
        """The round's steps are done: the drift that will be contributed. Its memory is used for
        something else behind this."""

    def lots(self, round_index: int) -> Callable[[int], bytes] | None:
        """By cell what all draw alike in a round; None where nobody draws."""
        del round_index
        return None

    def weights_ahead(
        self, anchor_N: Vector, own: Callable[[], Vector], members: int
    ) -> Vector | None:
        """The weights that the next round begins from while this one is in flight; None where
        working weights stay as they are.

        `anchor_N` is the newest anchor, `own` gives what everybody decodes of the contribution that
        is handed over, `members` is how many have a seat in its round.
        """
        del anchor_N, own, members
        return None

    def sent_weights(self, local_N: Vector) -> Vector | None:
        """What `take_in` is to know of the weights whose drift is to be handed over, or None."""
        del local_N
        return None

    def next_turn(self, exchange: Exchange) -> Turn | None:
        """Behind each hand-over: for which round to go on; None where the outcome will say that."""
        del exchange
        return None

    # An outcome -------------------------------------------------------------------------------

    def is_awaited(self, round_index: int, turn: Turn) -> bool:
        """Whether the outcome of a contribution may come later than a turn. Asked only of a method
        whose `next_turn` gives turns."""
        del round_index, turn
        return False

    def is_over(self, round_index: int, turn: Turn) -> bool:
        """Whether a round that was under way when the process before us died needs no hand-over any
        more at a turn: what others had of it was enough. Asked as `is_awaited` is."""
        return round_index in turn.listed

    def settle(self, outcome: Outcome) -> None:
        """The round is over, and what became of it is known."""

    def take_in(
        self, round_index: int, outcome: Outcome, local: Callable[[], Vector], sent_N: Vector | None
    ) -> Vector:
        """The new working weights behind a round; not asked behind a resync, whose are the anchor.

        `local` gives those of now, `sent_N` is what `sent_weights` gave, None where that is not
        known any more.
        """
        del round_index, local, sent_N
        return outcome.anchor_N

    def next_round(self, outcome: Outcome) -> Turn | None:
        """For which round an outcome says to go on; None where a turn has said it."""
        return Turn(clock=outcome.clock, lease=outcome.lease, members=outcome.members)

    # What the disk keeps ----------------------------------------------------------------------

    def notes(self) -> MethodNotes:
        """What the method must know again, before a contribution leaves."""
        return MethodNotes()

    def reopen(self, notes: MethodNotes) -> None:
        """A contribution of the process before us is handed over again, kept with these notes."""

    def take_up(self, notes: MethodNotes, round_index: int, start: RunStart) -> None:
        """What the process before us kept of its newest round, at the start."""

    def keeps_weights(self, fragment: int, contributed: int) -> bool:
        """Whether the working weights of a fragment go on when `contributed` is handed over: its
        own are replaced by the next anchor."""
        return fragment != contributed

    def newest_kept(self, next_round: int) -> int:
        """The latest round that may have been handed over where `next_round` is in hand."""
        return next_round

    def is_same_version(self, digest: bytes, anchor_N: Vector) -> bool:
        """Whether a contribution against the anchor of that digest may be handed over again."""
        return digest == anchor_digest(anchor_N)

    def weights_behind(
        self, round_index: int, fragment: int, local_N: Vector, anchor_N: Vector
    ) -> Vector | None:
        """What becomes of kept working weights behind the round that they were kept in, the last
        one that was sealed; None where they go on only if their anchor is still the newest."""
        del round_index, fragment, local_N, anchor_N
        return None

    def began_with(self, local_N: Vector) -> Vector | None:
        """What the round in hand began with, where these working weights are taken up; None for the
        anchor."""
        del local_N
        return None


METHODS: Registry[Method] = Registry("method")
"""Factories `(setting)`; a preset names one of them."""

METHODS.register("diloco", Method)


def anchor_digest(anchor_N: Vector) -> bytes:
    """What names an anchor on the disk: BLAKE3 over its little-endian float32."""
    return blake3(np.ascontiguousarray(anchor_N, dtype="<f4").view(np.uint8).data).digest()
