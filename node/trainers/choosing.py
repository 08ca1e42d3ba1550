"""What a node chooses for itself of its next round, and what people are told of it: how many steps,
in how many bits what they come to is encoded, and where the time of the last one went.

Machines are not equally fast, nor are lines, and a round is over for all at once. So each takes as
many of its H steps as fit its speed and its line: H if it is the fastest, else so many that its
parts are with the others as soon as those of the fastest (`Fit`), for weights are tokens. How fast
others are is what their COMMITs show, steps over time, and when their parts come. H steps for all
have only runs with audits, those that ask for it, and methods that need them (`has_equal_steps`).

In presets whose peers choose for themselves (`auto`, `a_edit`) the length of a round is chosen too,
by a pure decision over what was measured. A round that the trainer got at 0 hands its contribution
in at c and gets its successor at R, equal for all peers, since a seal ends it for all. Everybody
aims at c = SHARE R: peers of any speed then arrive together, and where the exchange takes E behind
the last of them, rounds tend to R = E / (1 - SHARE), the shortest in which SHARE of the time is
training. Nothing is agreed upon: the lease bounds what anybody may do (R9), and weights are tokens.

What comes with every round beside steps and exchange, encoding and saving for instance, counts as
the exchange does: a share of R is steps, and nothing else passes for them.

E counts from the last COMMIT that came, not from the own one: who waits for others does not wait
for the exchange. Of many peers one is always late by a share of R, and rounds that covered this as
well would grow without end. What is beyond E / (1 - SHARE) they give up by and by, and all of them:
who hears the last COMMIT measures an exchange that is shorter by the line than who sent it, and
would wait in every round for the one that aims higher, if it aimed at its own measure alone.

With two rounds in flight (R5) nobody waits for an exchange that is over before the next round is
handed in: then everybody aims at the length of the last rounds, and these tend to COVER times E.

Nor is the number of bits agreed upon: a payload's size tells its grade, and what a coarse one
leaves out is kept in the residual. Who is on a slow line does not hold the others up, who is on a
fast one does not round for nothing.
"""

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from node.status.board import EventLog
from node.status.records import PhaseTimes
from protocol.events import Working
from protocol.frames import Phase
from protocol.manifest import RunManifest
from protocol.rounds.patience import LATE_SHARE, WholeRound
from training.channel.exchange import Contribution, TrainerTimes
from training.compression import Codec, make_codec, with_grades
from training.methods.method import has_equal_steps
from training.methods.presets import GRADE_FROM_MBIT, is_paced


@dataclass(slots=True)
class TrainerWatch:
    """How long contributions of a trainer are in flight, and how much of that it steps on.

    A contribution is in flight from when the trainer handed it over to when its outcome is on its
    way back; the trainer steps from when it is told for which round to go on to when it hands that
    over. All times are of one monotonic clock, seconds.
    """

    _stepped_s: float = 0.0
    """Of all rounds that it handed over."""
    _began_s: float | None = None
    _open: deque[tuple[float, float]] = field(default_factory=deque)
    """When each was handed over, and how long the trainer had stepped by then; oldest first."""
    _landed: list[tuple[float, float]] = field(default_factory=list)

    def goes_on(self, now_s: float) -> None:
        """The trainer is told for which round to step."""
        self._began_s = now_s

    def handed(self, now_s: float) -> None:
        """It hands a contribution over."""
        self._stepped_s, self._began_s = self._stepped(now_s), None
        self._open.append((now_s, self._stepped_s))

    def landed(self, now_s: float) -> float:
        """The outcome of the oldest is told; how long that was in flight."""
        handed_s, stepped_s = self._open.popleft()
        flight_s = now_s - handed_s
        self._landed.append((flight_s, self._stepped(now_s) - stepped_s))
        return flight_s

    def take(self) -> tuple[float, float] | None:
        """Seconds in flight, and of these stepped, of all that landed since the last call; None if
        nothing did."""
        landed, self._landed = self._landed, []
        if not landed:
            return None
        return sum(flight_s for flight_s, _ in landed), sum(hidden_s for _, hidden_s in landed)

    def _stepped(self, now_s: float) -> float:
        return self._stepped_s + (0.0 if self._began_s is None else now_s - self._began_s)


SURELY = 1.25
"""So much more than a grade asks for a line has to send before a finer one is taken: at the edge it
would change with every round."""


@dataclass(frozen=True, slots=True)
class Grading:
    """`bits` per element of the next contribution, 0 where the codec has no grades; and why."""

    bits: int
    why: str


def grading(codec: Codec, before: int, mbit: float | None) -> Grading:
    """`before` are the bits of the last one, 0 of none; `mbit` is what the line sends, None while
    nobody knows."""
    of_grades = with_grades(codec)
    if of_grades is None:
        return Grading(0, "")
    last = before or of_grades.usual
    if mbit is None:
        return Grading(last, "the usual, until enough has been sent to tell")
    fitting = [
        bits
        for bits in of_grades.grades
        if mbit >= GRADE_FROM_MBIT[bits] * (SURELY if bits > last else 1.0)
    ]
    return Grading(max(fitting, default=of_grades.grades[-1]), f"{mbit:.0f} Mbit/s leave this node")


SHARE = 0.965
"""Of a round that is to be training; 0.9 is asked for, and steps never take equally long: who is
early waits. From one step on 0.9 is reached within some 15 rounds."""

FIRST_STEPS = 10
"""Before anything is known: the first rounds are short."""

ROUNDS_LOOKED_AT = 3
"""The median of their lengths counts, so that one round with a fault in it changes nothing."""

EXCHANGES_LOOKED_AT = 8
"""The median of their seconds counts."""

GIVEN_UP = 0.15
"""Of what is beyond the length that the exchange asks for, as a share of it, a round is so much
shorter than the last. More of it and peers part that measure a little differently; less, and rounds
are longer where one of many is always late."""

FAR, HURRY = 0.9, 1.6
"""Rounds below that share of the length that the exchange asks for grow by that factor."""

COVER = 1.3
"""With two rounds in flight: so much longer than the exchange beside it is a round, for neither
takes equally long each time."""

ALIKE = 1.1
"""Whoever takes so many times as long as the fastest for a whole round takes all of it as well: its
COMMIT is not late, and times of rounds differ by as much."""

GROWTH_MAX = 2.0
"""From one round to the next: a measurement of little is not trusted with much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsChoice:
    """Steps of the next round, why, and what that rests on; None is what is not known yet.

    `computing` is the share of the rounds looked at that was steps, `exchange_s` the time from
    the last contribution that came to the outcome.
    """

    steps: int
    steps_max: int
    why: str
    step_s: float | None = None
    exchange_s: float | None = None
    computing: float | None = None
    last: "MeasuredRound | None" = None


@dataclass(frozen=True, slots=True)
class MeasuredRound:
    """A round: its steps and how long they took, what came beside them in the trainer, and how long
    it waited, for the seal above all."""

    steps: int
    training_s: float
    beside_s: float
    waiting_s: float

    @property
    def round_s(self) -> float:
        """The whole of it."""
        return self.training_s + self.beside_s + self.waiting_s


@dataclass(slots=True)
class Fit:
    """Which share of a round's steps fits a node, by how long whole rounds and their parts take it
    and the fastest whose word is enough (`WholeRounds`, `parts_s` in `protocol.rounds.patience`).
    """

    is_equal: bool = False
    """Whether all take all steps, whatever fits: then what they take is only told."""
    is_overlapped: bool = False
    """Whether the trainer steps on while its contribution is in flight (R5)."""
    _own_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_LOOKED_AT))
    _rounds: deque[WholeRound] = field(default_factory=lambda: deque(maxlen=ROUNDS_LOOKED_AT))
    _sends_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_LOOKED_AT))
    """How long the own parts were on the line, and those of the fastest."""
    _sent_fastest_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_LOOKED_AT))

    def trained(self, steps: int, took_s: float, steps_max: int) -> None:
        """The own trainer handed so many steps in, so long after it was given the lease."""
        self._own_s.append(took_s * steps_max / max(1, steps))

    def saw(self, whole: WholeRound) -> None:
        """What a whole round took, by the COMMITs of the last one."""
        self._rounds.append(whole)

    @property
    def fastest_s(self) -> float | None:
        """What a whole round takes the fastest; None until that is known."""
        return statistics.median(one.fastest_s for one in self._rounds) if self._rounds else None

    @property
    def slowest_s(self) -> float | None:
        """Likewise the slowest."""
        return statistics.median(one.slowest_s for one in self._rounds) if self._rounds else None

    @property
    def own_s(self) -> float | None:
        """Likewise this node, by its COMMITs as the others."""
        own_s = [one.own_s for one in self._rounds if one.own_s is not None]
        return statistics.median(own_s) if own_s else None

    def exchanged(self, own_s: float, fastest_s: float) -> None:
        """So long the own parts were on the line, and those of the fastest."""
        self._sends_s.append(own_s)
        self._sent_fastest_s.append(fastest_s)

    @property
    def sends_s(self) -> float:
        """How long the own line takes for the parts of a round: the best of the last, and 0 after
        one alone, for parts also wait where the taker is a round behind."""
        return min(self._sends_s) if len(self._sends_s) > 1 else 0.0

    @property
    def there_s(self) -> float:
        """When in a round the parts of the fastest are there; infinite until that is known."""
        fastest_s = self.fastest_s
        if fastest_s is None:
            return math.inf
        return fastest_s + statistics.median(self._sent_fastest_s or (0.0,))

    @property
    def too_slow(self) -> str:
        """Why no number of steps is small enough, for people; empty if one is."""
        if self.sends_s <= (1.0 + LATE_SHARE) * self.there_s:
            return ""
        return (
            f"the line of this node takes {self.sends_s:.0f} s for what it sends in a round, and "
            f"the others are done in {self.there_s:.0f} s: fewer steps do not help; it is rarely "
            "listed; a codec of fewer bits or more steps a round would help"
        )

    def steps(self, steps_max: int) -> int:
        """Of the next round; all until enough is known."""
        fastest_s = self.fastest_s
        if self.is_equal or not self._own_s or fastest_s is None:
            return steps_max
        if self.is_overlapped:
            # Nobody waits for the others before it begins anew: who takes a little longer than they
            # do falls behind for good, until its COMMITs come too late.
            own_s = statistics.fmean(self._own_s)
            fitting = steps_max if own_s <= fastest_s else math.floor(steps_max * fastest_s / own_s)
            return max(1, fitting)
        # The best of the own rounds: the fastest of several has a good round each time, and whoever
        # measured its usual ones by that would give steps up for nothing.
        own_s = min(self._own_s)
        if own_s + self.sends_s <= ALIKE * self.there_s:
            return steps_max
        fitting_s = own_s if own_s <= ALIKE * fastest_s else fastest_s
        spare_s = self.there_s - self.sends_s
        if spare_s > 0.0:  # Else no number of steps is small enough, and fewer are for nothing.
            # Others need its parts, not its COMMIT: it sends while the fastest still train.
            fitting_s = min(fitting_s, spare_s)
        return max(1, round(steps_max * fitting_s / own_s))


@dataclass(slots=True)
class Pace:
    """Measures the rounds of one trainer. `is_chosen` False measures, and leaves steps alone."""

    steps_max: int
    is_chosen: bool
    fit: Fit | None = None
    """Where steps are not chosen: how many of the manifest's fit this node."""
    is_overlapped: bool = False
    """Whether the trainer steps on while its contribution is in flight (R5)."""
    _steps: int = 0
    _began_s: float | None = None
    _handed: tuple[int, float, float] | None = None
    """Of this round, once its contribution is here: its steps, their seconds, and those beside."""
    _is_first: bool = True
    _step_s: deque[float] = field(default_factory=lambda: deque(maxlen=ROUNDS_LOOKED_AT))
    _rounds: deque[MeasuredRound] = field(default_factory=lambda: deque(maxlen=ROUNDS_LOOKED_AT))
    _exchanges_s: deque[float] = field(default_factory=lambda: deque(maxlen=EXCHANGES_LOOKED_AT))

    def handed(self, steps: int, now_s: float, times: TrainerTimes | None = None) -> None:
        """The trainer's contribution of so many steps is in. What it does not tell of its time
        counts as steps."""
        if self._began_s is None:
            return
        trained_s, beside_s = now_s - self._began_s, 0.0
        if times is not None:
            trained_s, beside_s = times.train_s, times.beside_s
        self._handed = steps, trained_s, beside_s
        if self.fit is not None:
            self.fit.trained(steps, now_s - self._began_s, self.steps_max)
        # The first also loads kernels and fills caches, or is one that a process before us made.
        if not self._is_first:
            self._step_s.append(trained_s / max(1, steps))

    def landed(self, flight_s: float, now_s: float, *, last_s: float | None = None) -> None:
        """The outcome of a contribution is here, so long after it was handed over; the last one
        of another peer was announced at `last_s`."""
        if not self._is_first:
            exchange_s = flight_s if last_s is None else min(flight_s, now_s - last_s)
            self._exchanges_s.append(exchange_s)

    def next(self, now_s: float, *, usual: int = 0) -> StepsChoice:
        """The trainer is handed its next lease now: how many steps of it are to be taken.

        `usual` is how many rounds had so far, as seals say: a latecomer and a node that was
        restarted begin with half of it, for they may be slow.
        """
        if self._began_s is not None and self._handed is not None:
            if not self._is_first:
                steps, trained_s, beside_s = self._handed
                waiting_s = max(0.0, now_s - self._began_s - trained_s - beside_s)
                self._rounds.append(MeasuredRound(steps, trained_s, beside_s, waiting_s))
            self._is_first = False
        self._began_s, self._handed = now_s, None
        choice = self._choice(usual)
        self._steps = choice.steps
        return choice

    def _choice(self, usual: int) -> StepsChoice:
        most = self.steps_max
        fitting = most if self.fit is None else self.fit.steps(most)
        if not self._rounds or not self._step_s:
            steps = min(max(FIRST_STEPS, usual // 2), most) if self.is_chosen else fitting
            return StepsChoice(steps=steps, steps_max=most, why="nothing is measured yet")
        step_s = max(1e-9, statistics.median(self._step_s))
        last = list(self._rounds)
        round_s = statistics.median(one.round_s for one in last)
        beside_s = statistics.median(one.beside_s for one in last)
        waited_s = [one.waiting_s for one in last]
        exchange_s = statistics.median(self._exchanges_s or waited_s)
        total_s = sum(one.round_s for one in last)
        computing = sum(one.training_s for one in last) / max(1e-9, total_s)
        steps, why = fitting, "the manifest's"
        if fitting < most:
            why = "as many as fit its speed and its line"
        if self.is_chosen:
            steps, why = self._paced(step_s, _Costs(round_s, exchange_s, beside_s))
        return StepsChoice(
            steps=steps,
            steps_max=most,
            why=why,
            step_s=step_s,
            exchange_s=exchange_s,
            computing=computing,
            last=last[-1],
        )

    def _paced(self, step_s: float, costs: "_Costs") -> tuple[int, str]:
        round_s, exchange_s, beside_s = costs.round_s, costs.exchange_s, costs.beside_s
        cover = SHARE / (1.0 - SHARE)
        beside = f"an exchange of {exchange_s:.2f} s"
        if beside_s >= 0.005:
            beside += f" and {beside_s:.2f} s of encoding and saving"
        if self.is_overlapped:
            # The exchange is hidden by steps, what the trainer does itself is not.
            aim_s, share = round_s - beside_s, "100%"
            enough_s = max(COVER * exchange_s - beside_s, cover * beside_s)
            enough = f"{COVER:g} times {beside}, which is in flight meanwhile"
        else:
            aim_s, share = SHARE * round_s, f"{SHARE:.0%}"
            enough_s = cover * (exchange_s + beside_s)
            enough = f"{SHARE:.0%} training beside {beside}"
        # Were every peer a little early in turn, rounds would grow without end.
        enough_s, share = max(1e-9, enough_s), f"{share} of a round of {round_s:.1f} s"
        why = f"{share}, to arrive with the others"
        if aim_s < FAR * enough_s:
            # By itself it would take dozens of rounds; all see the same length, and stay together.
            aim_s = min(HURRY * aim_s, FAR * enough_s)
            why = f"longer than the last, {round_s:.1f} s with {beside}"
        if enough_s < aim_s:
            aim_s = max(enough_s, aim_s * (1.0 - GIVEN_UP * (aim_s / enough_s - 1.0)))
            why = enough if aim_s == enough_s else f"{share}, shorter by and by, towards {enough}"
        # Rounded to the nearest, a few steps short would stay a few steps short.
        steps = math.ceil(aim_s / step_s - 1e-9)
        if steps > GROWTH_MAX * self._steps:
            steps, why = int(GROWTH_MAX * self._steps), f"{why}; at most twice the last"
        if steps > self.steps_max:
            return self.steps_max, f"{why}; the manifest's most"
        return max(1, steps), why


@dataclass(frozen=True, slots=True)
class _Costs:
    """Medians of the last rounds: their length, their exchange, and what came beside the steps."""

    round_s: float
    exchange_s: float
    beside_s: float


def pace_of(manifest: RunManifest) -> Pace:
    """The pace of a trainer of that run. Raises ConfigError for an unknown preset."""
    outer = manifest.outer
    is_chosen, is_overlapped = is_paced(outer.preset), outer.overlap > 1
    fit = Fit(is_equal=has_equal_steps(manifest), is_overlapped=is_overlapped)
    return Pace(
        steps_max=manifest.inner.inner_steps,
        is_chosen=is_chosen,
        fit=None if is_chosen else fit,
        is_overlapped=is_overlapped,
    )


UNKNOWN_S = 30.0
"""What was never seen is announced to take so long: others wait for it within what they wait for
anybody that is late."""


@dataclass(slots=True)
class Headway:
    """How far the trainer is with its round, for others (`protocol.rounds.patience`): it begins,
    takes its steps, and encodes. How long each takes is known from the round before."""

    _round: int = -1
    _steps: int = 0
    _first: int = 0
    _done: int = -1
    """Steps that are behind it; -1 before it tells of the first."""
    _began_s: float = 0.0
    _stepped_s: float = 0.0
    """When the last step was told of."""
    _begin_s: float | None = None
    _step_s: float | None = None
    _encode_s: float | None = None

    def begins(self, round_index: int, steps: int, first: int, now_s: float) -> None:
        """It is given a lease for so many steps; `first` is the number of its first one."""
        self._round, self._steps, self._first, self._done = round_index, steps, first, -1
        self._began_s = self._stepped_s = now_s

    def progressed(self, step: int, now_s: float) -> None:
        """It tells that it begins that step of the run."""
        done = step - self._first
        if self._done < 0:
            self._begin_s = now_s - self._began_s
        elif done > self._done:
            self._step_s = (now_s - self._stepped_s) / (done - self._done)
        self._done, self._stepped_s = done, now_s

    def handed(self, now_s: float) -> None:
        """Its contribution is in."""
        if self._done >= 0:
            rest_s = (self._steps - self._done) * (self._step_s or 0.0)
            self._encode_s = max(0.0, now_s - self._stepped_s - rest_s)

    def working(self, now_s: float) -> Working:
        """What it does now, and how long that takes by what was seen of it."""
        if self._done < 0:
            end_s = UNKNOWN_S if self._begin_s is None else max(1.0, self._begin_s)
            return Working(self._round, Phase.BEGIN, 0, 1, end_s)
        step_s = self._step_s
        left = max(0, self._steps - self._done)
        if step_s is not None and now_s >= self._stepped_s + left * step_s:
            end_s = UNKNOWN_S if self._encode_s is None else max(1.0, self._encode_s)
            return Working(self._round, Phase.ENCODE, 0, 1, end_s)
        rest_s = None if step_s is None else left * step_s
        return Working(self._round, Phase.TRAIN, self._done, self._steps, rest_s)


@dataclass(slots=True)
class PhaseTimer:
    """The one writer of PhaseTimes, for one trainer. All times are of the network process's
    monotonic clock, seconds.

    What the trainer did it tells with each contribution. While it did nothing it waited for us, up
    to the moment at which it was told how to go on; what for, our own marks say.
    """

    _handed_s: float | None = None
    """When the last contribution came, or the trainer was told where to begin."""
    _told_s: float = 0.0
    _committed_s: float | None = None
    """When the last contribution was ready for its COMMIT."""
    _others_s: float | None = None
    """When the last COMMIT of another peer came."""
    _results_s: float | None = None
    """When the whole result was here."""
    _num_members: int = 1
    """With a seat in the round that the trainer was told of last."""

    def begun(self, now_s: float) -> None:
        """The trainer was told where to begin."""
        self._handed_s = self._told_s = now_s

    def committed(self, now_s: float) -> None:
        """The last contribution is ready for its COMMIT."""
        self._committed_s = now_s

    def results_here(self, now_s: float) -> None:
        """A round's whole result is here."""
        self._results_s = now_s

    def told(self, now_s: float, *, others_s: float | None, num_members: int) -> None:
        """The trainer was told how to go on; the last COMMIT of another peer came at `others_s`,
        of so many that have a seat."""
        self._told_s, self._others_s, self._num_members = now_s, others_s, num_members

    def handed(self, now_s: float, steps: int, times: TrainerTimes) -> PhaseTimes | None:
        """A contribution is here: where the time since the one before went; None of a trainer that
        was never told to begin."""
        before_s, self._handed_s = self._handed_s, now_s
        if before_s is None:
            return None
        began_s = self._told_s - times.wait_s
        # An edge that was not seen is where the one before is; without a result there was no seal,
        # and where no other member came there was nothing to exchange.
        results_s, others_s = self._results_s or self._told_s, self._others_s
        if others_s is None and self._num_members > 1:
            others_s = results_s
        ends_s = (self._committed_s, others_s, results_s)
        edges = [began_s]
        for edge_s in ends_s:
            edges.append(min(max(edges[-1], edge_s or began_s), self._told_s))
        ready_s, met_s, whole_s = edges[1:]
        return PhaseTimes(
            steps=steps,
            round_s=now_s - before_s,
            train_s=times.train_s,
            validate_s=times.validate_s,
            encode_s=times.encode_s + ready_s - began_s,
            save_s=times.save_s,
            audit_s=times.audit_s,
            wait_s=met_s - ready_s,
            exchange_s=whole_s - met_s,
            seal_s=times.take_s + self._told_s - whole_s,
        )


logger = logging.getLogger(__name__)


class Choosing:
    """Watches one trainer's rounds. All times are of one monotonic clock, seconds."""

    def __init__(
        self,
        manifest: RunManifest,
        num_fragments: int,
        log: EventLog,
        uplink_mbit: Callable[[], float | None],
    ) -> None:
        """`uplink_mbit` is what leaves this node; None while nobody knows."""
        self._outer, self._num_fragments, self._log = manifest.outer, num_fragments, log
        self._codec = make_codec(manifest.outer)
        self._uplink_mbit = uplink_mbit
        self._pace = pace_of(manifest)
        self._timer = PhaseTimer()
        self._flight = TrainerWatch()
        self.headway = Headway()
        self._grading = Grading(0, "")
        self._is_too_slow = False
        """Whether it was said that the line is."""

    @property
    def grade(self) -> int:
        """Bits per element of the next contribution; 0 where the codec has no grades."""
        return self._grading.bits

    def handed(self, round_index: int, contribution: Contribution, now_s: float) -> None:
        """The trainer's contribution to a round is in."""
        times = contribution.times
        self._pace.handed(contribution.steps, now_s, times)
        self._flight.handed(now_s)
        self.headway.handed(now_s)
        spent = self._timer.handed(now_s, contribution.steps, times or TrainerTimes())
        if spent is not None and times is not None:
            told = {name: _rounded(value) for name, value in asdict(spent).items()}
            self._log.emit("times", round=round_index, **told)

    def committed(self, now_s: float) -> None:
        """What was handed over last is ready for its COMMIT."""
        self._timer.committed(now_s)

    def results_here(self, now_s: float) -> None:
        """The whole result of a round is here."""
        self._timer.results_here(now_s)

    def progressed(self, step: int, now_s: float) -> None:
        """The trainer tells that it is at that step of the run."""
        self.headway.progressed(step, now_s)

    def saw(self, whole: WholeRound | None) -> None:
        """How long a whole round takes others; None where the last round did not show it."""
        if whole is not None and self._pace.fit is not None:
            self._pace.fit.saw(whole)

    def sent(self, took_s: tuple[float, float] | None) -> None:
        """How long the own parts took in the last round, and those of the fastest; None where it
        did not show."""
        fit = self._pace.fit
        if took_s is None or fit is None or fit.is_overlapped:
            return
        fit.exchanged(*took_s)
        if fit.too_slow and not self._is_too_slow:
            logger.warning("%s", fit.too_slow)
        if fit.too_slow or self._is_too_slow:
            self._log.emit("warning", key="line", text=fit.too_slow)
        self._is_too_slow = bool(fit.too_slow)

    def landed(self, now_s: float, *, last_s: float | None) -> None:
        """The outcome of the oldest contribution is here; see `Pace.landed`."""
        self._pace.landed(self._flight.landed(now_s), now_s, last_s=last_s)

    def begun(self, now_s: float) -> None:
        """The trainer was told where to begin."""
        self._timer.begun(now_s)

    def told(self, now_s: float, *, last_s: float | None, num_members: int) -> None:
        """The trainer was told how to go on; `last_s` is that of `landed`."""
        self._timer.told(now_s, others_s=last_s, num_members=num_members)

    def next(self, round_index: int, now_s: float, *, usual: int) -> StepsChoice:
        """The trainer is handed its next lease now; see `Pace.next`."""
        choice = self._pace.next(now_s, usual=usual)
        self._flight.goes_on(now_s)
        fresh = grading(self._codec, self._grading.bits, self._uplink_mbit())
        if fresh.bits != self._grading.bits:
            logger.info("encoding bits=%d because=%r", fresh.bits, fresh.why)
        self._grading = fresh
        self._tell(round_index, choice)
        return choice

    def _tell(self, round_index: int, choice: StepsChoice) -> None:
        last = choice.last
        flight_s, hidden_s = self._flight.take() or (None, None)
        graded, fit = self._grading, self._pace.fit or Fit()
        self._log.emit(
            "method",
            preset=self._outer.preset_of(round_index),
            codec=self._outer.codec,
            grade=graded.bits or None,
            grade_why=graded.why or None,
            fragments=self._num_fragments,
            steps=choice.steps,
            steps_max=choice.steps_max,
            why=choice.why,
            equal_steps=fit.is_equal,
            whole_s=_rounded(fit.own_s),
            fastest_s=_rounded(fit.fastest_s),
            slowest_s=_rounded(fit.slowest_s),
            step_s=_rounded(choice.step_s),
            exchange_s=_rounded(choice.exchange_s),
            computing=_rounded(choice.computing),
            last_steps=None if last is None else last.steps,
            training_s=None if last is None else _rounded(last.training_s),
            beside_s=None if last is None else _rounded(last.beside_s),
            waiting_s=None if last is None else _rounded(last.waiting_s),
            flight_s=_rounded(flight_s),
            hidden_s=_rounded(hidden_s),
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
