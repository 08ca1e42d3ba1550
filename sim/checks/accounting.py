"""I5: tokens, steps and samples of every seal follow from the COMMITs that it lists.

Written from docs/protocol/rounds.md (R6, R9), not from `node.rules.roster` and
`training.data.corpus`: the samples are counted here as sets of intervals. Their numbers go on from
epoch to epoch, so each may be used once in the whole chain; and of each below the cursor it is
known what became of it: used, waiting to be leased again, or forgotten, and then the seal says how
many were.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from node.reporting.tracing import (
    Adopted,
    Advanced,
    Began,
    Confirmed,
    FellBack,
    Record,
    Signed,
    Synced,
)
from protocol import limits
from protocol.grid import EMPTY_ROOT
from protocol.identity import PeerId, short_id
from protocol.manifest import RunManifest
from protocol.messages import Commit, Kind, SealClock, SealValue
from sim.checks.earning import num_parts
from sim.checks.history import History, TracedSignature

Gap = tuple[int, int]
"""Samples [first, stop)."""

Residual = tuple[PeerId, int]
"""A peer's, of a fragment: rounds are about one after the other (R5)."""


class Accounting:
    """I5 over records. `suspects` are bent on purpose, and may be banned."""

    name = "I5"
    kinds = (Began, Signed, Adopted, Advanced, Confirmed, FellBack, Synced)

    def __init__(
        self,
        history: History,
        manifest: RunManifest,
        *,
        skew_s: float = 0.0,
        suspects: frozenset[PeerId] = frozenset(),
    ) -> None:
        self._history, self._suspects = history, suspects
        self._skew_s = skew_s
        self._later: deque[tuple[float, SealValue]] = deque()
        """Seals whose COMMITs may be told a little later, where clocks are apart."""
        self._manifest = manifest
        self._each = manifest.inner.inner_steps * manifest.inner.batch
        self._lag = manifest.outer.overlap
        named = {setting.name: setting.value for setting in manifest.model.settings}
        self._tokens_each = int(named.get("context", 1))
        self._used: list[Gap] = []
        """Samples of listed contributions, ascending, merged."""
        self._forgotten: list[Gap] = []
        """Those that no seal carries any more, though nobody used them."""
        self._credits: dict[PeerId, int] = {}
        self._counted = 0
        """The last round whose samples and credits are in those above."""
        self._is_whole = True
        """Whether they are of every round from the first on."""
        self._checked: set[bytes] = set()
        self._fragments = range(len(manifest.shards[0].fragments))
        self._residuals: dict[Residual, TracedSignature] = {}
        """The last COMMIT of each."""
        self._commits: dict[PeerId, set[bytes]] = {}
        """What each committed to since it began, fetched a state or left a branch last."""
        self._dropped: dict[PeerId, set[bytes]] = {}
        """What it committed to before: its trainer may hold nothing of that any more."""
        self._fresh: set[Residual] = set()
        """Of whom began or fetched a state since, and may go on without a residual."""
        self._afoot: dict[PeerId, bytes] = {}
        """By who fetched a state while a round beside was in flight (R5) what names that: its
        contribution may be from before, and then no residual waits for its outcome (R6)."""

    def saw(self, record: Record) -> Iterator[str]:
        """See Check."""
        while self._later and self._later[0][0] < record.at_s:
            yield from self._sealed(self._later.popleft()[1])
        if isinstance(record, Signed):
            yield from self._signed(record.peer)
        elif isinstance(record, Advanced):
            yield from self._was_listed(record, record.certificate.value)
        elif isinstance(record, Adopted | Confirmed):
            value = record.certificate.value
            if isinstance(record, Adopted):
                yield from self._was_listed(record, value)
            if value.digest not in self._checked:
                self._checked.add(value.digest)
                if self._skew_s:
                    self._later.append((record.at_s + self._skew_s, value))
                else:
                    yield from self._sealed(value)
        else:
            self._fresh |= {(record.peer, fragment) for fragment in self._fragments}
            self._dropped.setdefault(record.peer, set()).update(self._commits.pop(record.peer, ()))
            self._afoot.pop(record.peer, None)
            if isinstance(record, Synced) and self._lag > 1:
                self._fetched(record.peer, record.certificate.value)

    def finish(self) -> Iterator[str]:
        """See Check."""
        for _, value in self._later:
            yield from self._sealed(value)

    # Contributions and residuals ----------------------------------------------------------------

    def _signed(self, peer: PeerId) -> Iterator[str]:
        """R6: the residual goes on from what became of the last contribution, or from nothing."""
        said = self._history.said
        if said is None or said.message.slot.kind is not Kind.COMMIT:
            return
        self._commits.setdefault(peer, set()).add(said.message.digest)
        commit = _commit(said)
        if commit.base != said.message.slot.basis:
            yield "commits to a contribution that is relative to another anchor than the round's"
        bent = self._suspects | self._history.bent
        if peer not in bent and not bent.issuperset(commit.bans):
            yield "bans somebody who is honest"
        place = (peer, said.message.slot.round % len(self._fragments))
        is_behind = self._is_behind_its_branch(said)
        last = self._before(said) if is_behind else self._residuals.get(place)
        if not is_behind:
            self._residuals[place] = said
        is_fresh = place in self._fresh
        if said.message.slot.basis != self._afoot.get(peer):
            self._fresh.discard(place)
        if last is None or (is_fresh and commit.residual_before == EMPTY_ROOT):
            return
        sealed = self._sealed_behind(last)
        # Restarted in the same round it commits anew only if its COMMIT is lost with the disk.
        if sealed is None:
            return
        before = _commit(last)
        is_listed = last.message.digest in sealed.commits
        kept = before.residual_after if is_listed else before.residual_before
        if commit.residual_before != kept:
            outcome = "was listed" if is_listed else "was not listed"
            yield f"its last contribution {outcome}, and its residual says otherwise"

    def _fetched(self, peer: PeerId, value: SealValue) -> None:
        history = self._history
        basis, previous = history.basis_behind(value), history.previous
        is_final = previous is not None and previous.digest == basis
        if is_final or basis in history.left.get(peer, ()):
            self._afoot[peer] = basis

    def _is_behind_its_branch(self, said: TracedSignature) -> bool:
        """Whether its sender works again at the round that its branch begins with (R4): this one
        does not go on from what it committed to on the branch."""
        stand = self._history.stand(said.message.sender)
        return stand is not None and stand.round >= said.message.slot.round

    def _before(self, said: TracedSignature) -> TracedSignature | None:
        """What its sender committed to before that round, of the same fragment."""
        mine, num = said.message.slot.round, len(self._fragments)
        return max(
            (
                one
                for one in self._history.commits.values()
                if one.message.sender == said.message.sender
                and one.message.slot.round < mine
                and (mine - one.message.slot.round) % num == 0
            ),
            key=lambda one: one.message.slot.round,
            default=None,
        )

    def _sealed_behind(self, said: TracedSignature) -> SealValue | None:
        """The seal of the round in which that was said, if its sender stands on it now."""
        basis, value = said.message.slot.basis, self._history.stand(said.message.sender)
        while value is not None and value.round > said.message.slot.round:
            value = self._history.values.get(value.before)
        return value if value is not None and value.basis == basis else None

    def _was_listed(self, record: Adopted | Advanced, value: SealValue) -> Iterator[str]:
        mine = [
            said
            for digest in value.commits
            if (said := self._history.commits.get(digest)) and said.message.sender == record.peer
        ]
        if record.was_listed and not mine and self._knows(value):
            yield f"takes itself for listed in round {value.round}, which does not list it"
        elif (
            not record.was_listed
            and mine
            and mine[0].life == self._history.lives.get(record.peer)
            and mine[0].message.digest not in self._dropped.get(record.peer, ())
        ):
            yield f"is listed in round {value.round} and does not know it"

    def _knows(self, value: SealValue) -> bool:
        return all(digest in self._history.commits for digest in value.commits)

    # Seals --------------------------------------------------------------------------------------

    def _sealed(self, value: SealValue) -> Iterator[str]:
        previous = self._history.values.get(value.before)
        basis = self._history.values.get(value.basis)
        if previous is None or basis is None or not self._knows(value):
            return  # Somebody fetched this state, and nobody told of the rounds before it.
        listed = [self._history.commits[digest] for digest in value.commits]
        senders = [said.message.sender for said in listed]
        if senders != sorted(set(senders)):
            yield f"round {value.round} lists somebody twice, or not in order"
        if basis.round != max(0, value.round - self._lag):
            yield f"round {value.round} is named by the seal of round {basis.round}"
        strangers = set(senders) - set(basis.roster.members)
        if strangers:
            yield f"round {value.round} lists {short_id(min(strangers))}, who has no seat"
        if any(said.message.slot.basis != value.basis for said in listed):
            yield f"round {value.round} lists a contribution to another round"
        yield from self._clock((basis, previous), value, listed)
        yield from self._samples((basis, previous), value, listed)

    def _clock(
        self,
        named: tuple[SealValue, SealValue],
        value: SealValue,
        listed: Sequence[TracedSignature],
    ) -> Iterator[str]:
        basis, previous = named
        before, after = previous.clock, value.clock
        commits = [_commit(said) for said in listed]
        tokens = before.tokens + sum(commit.tokens for commit in commits)
        if after.tokens != tokens:
            yield f"round {value.round} seals {after.tokens} tokens, its COMMITs give {tokens}"
        believed = [said for said in listed if self._is_believed(basis, said)]
        step = before.step + _median_steps([_commit(said) for said in believed])
        if after.step != step:
            yield f"round {value.round} seals step {after.step}, its COMMITs give {step}"
        for commit in commits:
            worth = commit.samples * self._tokens_each
            if commit.samples > self._each or commit.tokens != worth:
                yield (
                    f"round {value.round} lists {commit.tokens} tokens for {commit.samples} samples"
                )
        stop = self._manifest.stop
        telling = [_commit(said) for said in believed if self._has_a_say(basis, said)]
        is_past_end = 2 * sum(commit.is_past_end for commit in telling) > len(telling)
        ends = value.round >= self._manifest.rounds or 0 < stop.tokens <= tokens or is_past_end
        if after.ends_run != ends:
            yield f"round {value.round} is the last one by its seal or by the manifest, not by both"

    def _is_believed(self, basis: SealValue, said: TracedSignature) -> bool:
        """With a ramp, newcomers have no say of others or of time."""
        return num_parts(basis, said.message.sender, self._manifest.admission) > 0

    def _has_a_say(self, basis: SealValue, said: TracedSignature) -> bool:
        """In open runs voters alone say when it is over."""
        voting = {seat.peer for seat in basis.roster.seats if seat.voter_since >= 0}
        return self._manifest.trust != "open" or said.message.sender in voting

    def _samples(
        self,
        named: tuple[SealValue, SealValue],
        value: SealValue,
        listed: Sequence[TracedSignature],
    ) -> Iterator[str]:
        """`named` are the seal that leased the round, and the one before it."""
        basis, previous = named
        turn = 1 if basis.round else value.round
        leases = _leases(basis, self._each, turn)[0]
        # What is leased meanwhile, for rounds behind this one (R5).
        ahead, free, cursor = _leases(previous, self._each, 1 if previous.round else self._lag)
        in_flight = [gap for mine in ahead.values() for gap in mine] if self._lag > 1 else []
        spent = {said.message.sender: min(_commit(said).samples, self._each) for said in listed}
        used: list[Gap] = []
        for peer, lease in leases.items():
            mine, rest = _split(lease, spent.get(peer, 0))
            used += mine
            free += rest
        if value.clock.cursor != cursor:
            yield f"round {value.round} seals cursor {value.clock.cursor}, and leased to {cursor}"
        given_back = _gaps(value.clock)
        kept, forgotten = _kept(_merged(free))
        if given_back != kept:
            yield f"round {value.round} gives back other samples than were left unused"
        if value.round != self._counted + 1:
            # The rounds between were fetched: of them the seal is all that is known, and not which
            # of the samples that are not to be leased again were used.
            before = previous.clock
            mine = [gap for lease in leases.values() for gap in lease] if self._lag > 1 else []
            known = _merged([*_gaps(before), *mine])
            self._used = _merged(_complement(known, before.cursor)) if previous.round else []
            self._forgotten, self._is_whole = [], False
            self._credits = {previous.roster.members[0]: before.tokens}
        twice = next((gap for gap in used if _overlaps(self._used, gap)), None)
        if twice is not None:
            yield f"round {value.round} lists samples {twice[0]}..{twice[1]}, used before"
        self._used = _merged([*self._used, *used])
        self._forgotten = _merged([*self._forgotten, *forgotten])
        self._counted = value.round
        parts = [*self._used, *self._forgotten, *given_back, *in_flight]
        if _size(parts) != value.clock.cursor or _merged(parts) != _below(value.clock.cursor):
            yield f"round {value.round} leaves samples of which nobody knows what became of them"
        yield from self._receipts(value, listed, _size(in_flight))

    def _receipts(
        self, value: SealValue, listed: Sequence[TracedSignature], in_flight: int
    ) -> Iterator[str]:
        """The contributions of the whole chain add up to what the seal says."""
        for said in listed:
            sender = said.message.sender
            self._credits[sender] = self._credits.get(sender, 0) + _commit(said).tokens
        total = sum(self._credits.values())
        if value.clock.tokens != total:
            yield f"round {value.round} seals {value.clock.tokens} tokens for credits of {total}"
        clock = value.clock
        unknown = clock.cursor - _size(_gaps(clock)) - clock.tokens // self._tokens_each
        unknown -= in_flight
        if self._is_whole and unknown != _size(self._forgotten):
            yield f"round {value.round} counts {unknown} forgotten samples by its tokens"


def _commit(said: TracedSignature) -> Commit:
    assert isinstance(said.body, Commit)
    return said.body


def _gaps(clock: SealClock) -> list[Gap]:
    return [(gap.first, gap.stop) for gap in clock.unused]


def _median_steps(commits: Sequence[Commit]) -> int:
    """R9: the H at which half of the tokens are reached, from the smallest H on."""
    steps = sorted({commit.steps for commit in commits})
    total = sum(commit.tokens for commit in commits)
    reaching = (h for h in steps if 2 * sum(c.tokens for c in commits if c.steps <= h) >= total)
    return next(reaching, 0)


def _leases(
    value: SealValue, each: int, turns: int = 1
) -> tuple[dict[PeerId, list[Gap]], list[Gap], int]:
    """Every member takes `each` samples, the lowest free ones first; what is left, the cursor.

    Genesis does that for several rounds where they overlap: the leases are of the last `turns`.
    """
    free, cursor = _gaps(value.clock), value.clock.cursor
    leases: dict[PeerId, list[Gap]] = {}
    peers = sorted(seat.peer for seat in value.roster.seats)
    for peer in peers * turns:
        mine, free = _split(free, each)
        missing = each - _size(mine)
        if missing:
            mine = _merged([*mine, (cursor, cursor + missing)])
            cursor += missing
        leases[peer] = mine
    return leases, free, cursor


def _size(gaps: Sequence[Gap]) -> int:
    return sum(stop - first for first, stop in gaps)


def _split(gaps: Sequence[Gap], count: int) -> tuple[list[Gap], list[Gap]]:
    """The first `count` samples, and the others."""
    taken: list[Gap] = []
    left: list[Gap] = []
    for first, stop in gaps:
        middle = first + min(count, stop - first)
        count -= middle - first
        taken += [(first, middle)] if middle > first else []
        left += [(middle, stop)] if stop > middle else []
    return taken, left


def _merged(gaps: Sequence[Gap]) -> list[Gap]:
    merged: list[Gap] = []
    for first, stop in sorted(gaps):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((first, stop))
    return merged


def _complement(gaps: Sequence[Gap], cursor: int) -> list[Gap]:
    """What of [0, cursor) is in none of the ascending gaps."""
    bounds = [0, *(bound for gap in gaps for bound in gap), cursor]
    pairs = zip(bounds[::2], bounds[1::2], strict=True)
    return [(first, stop) for first, stop in pairs if first < stop]


def _kept(gaps: list[Gap]) -> tuple[list[Gap], list[Gap]]:
    """A seal carries so many intervals; the shortest are forgotten, of equal ones the lowest."""
    excess = max(0, len(gaps) - limits.LEASE_INTERVALS_MAX)
    forgotten = sorted(gaps, key=lambda gap: (gap[1] - gap[0], gap))[:excess]
    return [gap for gap in gaps if gap not in set(forgotten)], forgotten


def _below(cursor: int) -> list[Gap]:
    return [(0, cursor)] if cursor else []


def _overlaps(gaps: list[Gap], gap: Gap) -> bool:
    """Whether a sample of `gap` is in one of the ascending, merged `gaps`."""
    index = bisect_left(gaps, (gap[1], gap[1]))
    return index > 0 and gaps[index - 1][1] > gap[0]
