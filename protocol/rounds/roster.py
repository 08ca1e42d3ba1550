"""From one seal to the next round: roster, voters, quorum, closer, leases, clock.

All are pure functions of sealed values (R1, R9; of R8 the set-backs and the closer; who sums what
is in `protocol.rounds.reducers`). What gossip says and what one node sees has no influence.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from blake3 import blake3

from protocol import limits
from protocol.identity import PeerId
from protocol.leases import Lease, give_back, lease_size, part_of_lease, take
from protocol.manifest import NO_ADMISSION, AdmissionSpec, RunManifest
from protocol.messages import Commit, Interval, Roster, SealClock, SealValue, SeatRecord
from protocol.rounds.reducers import OPEN_VOTERS_MIN, measured, set_back, unpack_senders
from protocol.rounds.reducers import liars as liars
from protocol.rounds.seating import FOUNDING_ROUND, Turns, counting, earned, in_turn

# Told ---------------------------------------------------------------------------------------------
#
# What the COMMITs that are listed in round r report of round r - L: who was there, who sealed, who
# kept others waiting (R1, R8).
#
# Who is absent follows from no LIST. Whom a LIST names is the choice of one closer, made from what
# a few reducers say that they hold, so that one of them would have the say over the seat of
# another. It follows from the words of more members than may lie, said a round later, when what was
# late has come.

SET_BACK_ROUNDS = 8
"""For so many rounds a member that kept others waiting comes last among reducers and closers (R8);
for twice as many if it lapses again within as many rounds after that."""


class CommitReports:
    """What the COMMITs that are listed in round `round_index` say about the round L before it.

    `roster` is that of the round, over which their bit maps are made. `commits` are those of the
    members whose word on others counts, and up to `may_lie` of these members may lie. `lag` is L.
    """

    def __init__(
        self,
        roster: Roster,
        commits: Sequence[Commit],
        round_index: int,
        *,
        may_lie: int,
        lag: int,
    ) -> None:
        self._roster, self._round, self._lag, self._may_lie = roster, round_index, lag, may_lie
        size = -(-len(roster.seats) // 8)
        said = [commit for commit in commits if len(commit.committed) == size]
        self._num_words = len(said)
        self._committed = self._count([commit.committed for commit in said])
        self._sealed = self._count([commit.sealed for commit in said])
        self._lapsed = self._count([commit.lapsed for commit in said])

    def _count(self, maps: Sequence[bytes]) -> Counter[PeerId]:
        members, counts = self._roster.members, Counter[PeerId]()
        for bits, number in Counter(maps).items():  # Most say the same.
            for peer in unpack_senders(bits, members):
                counts[peer] += number
        return counts

    def says_sealed(self, peer: PeerId) -> bool:
        """Whether enough say that its SEAL of round r - L is of what became final."""
        return self._sealed[peer] > self._may_lie

    def absences(self, seat: SeatRecord) -> int:
        """For how many rounds in a row too few have seen a COMMIT of this member, which is not
        listed now.

        No absence is added if so few words are listed that half of them may be those of liars, nor
        for a round in which the member had no seat.
        """
        was_seated = seat.seated <= self._round - 2 * self._lag
        if self._num_words <= 2 * self._may_lie or self._round <= self._lag or not was_seated:
            return seat.absent
        return 0 if self._committed[seat.peer] > self._may_lie else seat.absent + 1

    def with_set_back(self, seat: SeatRecord) -> SeatRecord:
        """The seat, set back if enough say that it kept them waiting."""
        if self._lapsed[seat.peer] <= self._may_lie:
            return seat
        last = SET_BACK_ROUNDS << max(0, seat.set_backs - 1)
        if seat.set_backs and self._round < seat.set_back_until - last + 2 * self._lag:
            return seat  # The lapse is of a round that began before the member was set back.
        is_again = seat.set_backs and self._round <= seat.set_back_until + last
        count = min(seat.set_backs + 1, limits.SET_BACKS_MAX) if is_again else 1
        until = min(self._round + (SET_BACK_ROUNDS << (count - 1)), limits.ROUNDS_MAX)
        return replace(seat, set_backs=count, set_back_until=until)


# Roster -------------------------------------------------------------------------------------------

ABSENCES_MAX = 2
"""Rounds in a row of which too few saw a COMMIT that cost the seat (R1)."""


@dataclass(frozen=True, slots=True)
class ListedContribution:
    """One listed contribution: who sent it, and its COMMIT.

    `is_proved` says whether the COMMIT carried its sender's own SEAL of the seal that named the
    roster; the caller has checked signature and value.
    """

    sender: PeerId
    commit: Commit
    is_proved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRules:
    """What of the manifest the clock of the next seal depends on."""

    samples_each: int
    """The lease per member and round."""

    rounds: int
    tokens: int
    """The run ends with so many rounds, or with so many tokens unless 0."""

    tokens_each: int = 1
    """Tokens per sample: what a COMMIT may claim is so many times the samples that it used."""

    trust: str = "friends"
    admission: AdmissionSpec = NO_ADMISSION
    """The seats, and the ramp, which says whose reports count (R9)."""
    lag: int = 1
    """L of R1: how many rounds may be in flight (R5)."""
    segments: int = 0
    """Into how many segments the work is cut that a COMMIT must show (R10); 0 without audits."""

    @classmethod
    def from_manifest(cls, manifest: RunManifest) -> "ClockRules":
        """The law of the run."""
        return cls(
            samples_each=manifest.inner.inner_steps * manifest.inner.batch,
            tokens_each=_tokens_each(manifest),
            rounds=manifest.rounds,
            tokens=manifest.stop.tokens,
            trust=manifest.trust,
            admission=manifest.admission,
            lag=manifest.outer.overlap,
            segments=manifest.audits.segments if manifest.audits.rate else 0,
        )


def _tokens_each(manifest: RunManifest) -> int:
    """A sample is a window of `context` tokens; one token where the model has no such setting."""
    named = {setting.name: setting.value for setting in manifest.model.settings}
    context = named.get("context")
    return context if isinstance(context, int) and context > 0 else 1


def genesis_roster(founder: PeerId) -> Roster:
    """The founder alone; genesis counts as a list of its voters."""
    seat = SeatRecord(peer=founder, seated=0, voter_since=0, proved=0, absent=0)
    return Roster(seats=(seat,), window=(0,))


def voters(roster: Roster) -> tuple[PeerId, ...]:
    """The voting members, ascending."""
    return roster.voters


def has_quorum(roster: Roster, peers: Collection[PeerId], *, trust: str) -> bool:
    """Whether the voters among `peers` are a quorum.

    Friends, and open runs of fewer than four voters: a majority, or with an even number the half
    that holds the eldest voter. Open: two thirds, rounded up.
    """
    electorate = roster.voter_set
    if 2 * len(peers) < len(electorate):
        return False  # As most often: it is asked of each SEAL that comes, and none is looked up.
    agreeing = len(electorate.intersection(peers))
    if trust == "open" and len(electorate) >= OPEN_VOTERS_MIN:
        return agreeing >= -(-2 * len(electorate) // 3)
    if 2 * agreeing == len(electorate):
        return eldest_voter(roster) in peers
    return 2 * agreeing > len(electorate)


def may_go(roster: Roster, peer: PeerId, others: Collection[PeerId], *, trust: str) -> bool:
    """Whether these others go on without that peer: it does not vote, or they are a quorum.

    `others` are in reach and have not said that they leave as well.
    """
    if peer not in roster.voter_set:
        return True
    return has_quorum(roster, set(others) - {peer}, trust=trust)


def blocking(num_voters: int, trust: str) -> int:
    """So many voters, and not all of them lying, that every quorum has one of them in it (R12)."""
    if trust == "open" and num_voters >= OPEN_VOTERS_MIN:
        return num_voters - -(-2 * num_voters // 3) + 1 + liars(num_voters, trust)
    # The smallest quorum of an even number is the half with the eldest voter.
    return num_voters - (num_voters + 1) // 2 + 1


def eldest_voter(roster: Roster) -> PeerId:
    """The voter that has voted longest; among equals the lowest peer id."""
    seats = [seat for seat in roster.seats if seat.voter_since >= 0]
    return min(seats, key=lambda seat: (seat.voter_since, seat.peer)).peer


def closer(roster: Roster, basis: bytes, shard: int, attempt: int) -> PeerId:
    """Who proposes the LIST of this attempt: voters in turn, those that are set back behind all."""
    back = set_back(roster)
    first = [peer for peer in roster.voters if peer not in back]
    last = [peer for peer in roster.voters if peer in back]
    start = int.from_bytes(blake3(basis + shard.to_bytes(4, "big")).digest()[:8], "big")
    start %= max(1, len(first))
    order = (*first[start:], *first[:start], *last)
    return order[attempt % len(order)]


def provisional_closer(roster: Roster, basis: bytes, attempt: int) -> PeerId:
    """Who proposes the LIST in this attempt of a provisional round (R4).

    `roster` is of the last final seal: its voters take turns, then its other members, whoever is
    reachable, so that each attempt has one closer, the same for everybody. An unreachable one costs
    an attempt.
    """
    electorate = voters(roster)
    order = (*electorate, *(peer for peer in roster.members if peer not in roster.voter_set))
    start = int.from_bytes(blake3(basis).digest()[:8], "big")
    return order[(start + attempt) % len(order)]


def leases(
    value: SealValue, samples_each: int, *, turn: int = 1
) -> tuple[dict[PeerId, Lease], SealClock]:
    """Who may use which samples in a round that `value` leases, and the clock with them leased.

    Every member gets `samples_each` samples, in ascending peer order, returned ones first. A seal
    leases one round, the one whose roster it names; genesis so many as may be in flight (R5), one
    behind the other, and `turn` says which of them.
    """
    unused: Lease = tuple((gap.first, gap.stop) for gap in value.clock.unused)
    cursor = value.clock.cursor
    leased = {}
    for _ in range(turn):
        for peer in value.roster.members:
            leased[peer], unused, cursor = take(unused, cursor, samples_each)
    return leased, replace(value.clock, unused=_intervals(unused), cursor=cursor)


def leased_for(round_index: int, basis: SealValue, samples_each: int) -> dict[PeerId, Lease]:
    """Who may use which samples in that round, by the seal that names its roster."""
    return leases(basis, samples_each, turn=1 if basis.round else round_index)[0]


def _intervals(gaps: Lease) -> tuple[Interval, ...]:
    return tuple(Interval(first=first, stop=stop) for first, stop in gaps)


def next_clock(
    value: SealValue,
    listed: Sequence[ListedContribution],
    rules: ClockRules,
    *,
    basis: SealValue | None = None,
) -> SealClock:
    """The clock after a round on `value` that listed these contributions.

    What `value` leases is taken from it: with two rounds in flight (R5) for the round behind this
    one, so that of two seals in a row none leases what the other did. This round was leased by
    `basis`, with one in flight `value` itself. Its samples of members that are not listed go back
    whole; a listed member gives back the tail that its COMMIT says it did not use.
    """
    basis = basis or value
    assert basis.round == max(0, value.round + 1 - rules.lag), "another seal leased the round"
    _, clock = leases(value, rules.samples_each, turn=1 if value.round else rules.lag)
    leased = leased_for(value.round + 1, basis, rules.samples_each)
    used = {entry.sender: min(entry.commit.samples, rules.samples_each) for entry in listed}
    returned: list[tuple[int, int]] = []
    for peer, lease in leased.items():
        spent = used.get(peer, 0)
        returned += part_of_lease(lease, spent, lease_size(lease) - spent)
    # All at once: what is too short to be kept by itself may touch what the next one gives back.
    unused = give_back(tuple((gap.first, gap.stop) for gap in clock.unused), tuple(returned))
    tokens = clock.tokens + sum(entry.commit.tokens for entry in listed)
    believed = _believed(basis.roster, listed, rules.admission)
    telling = [e.commit for e in believed if counts_of(basis.roster, e.sender, rules.trust)]
    past_end = sum(commit.is_past_end for commit in telling)
    num_telling = _num_telling(basis.roster, telling, rules.trust)
    return SealClock(
        step=clock.step + _weighted_median_steps(believed),
        tokens=tokens,
        cursor=clock.cursor,
        unused=_intervals(unused),
        ends_run=value.round + 1 >= rules.rounds
        or 0 < rules.tokens <= tokens
        or 2 * past_end > num_telling,
    )


def _weighted_median_steps(listed: Sequence[ListedContribution]) -> int:
    """The H at which half of the round's tokens are reached, counting from the smallest H."""
    total = sum(entry.commit.tokens for entry in listed)
    reached = 0
    ordered = sorted(listed, key=lambda entry: (entry.commit.steps, entry.sender))
    for entry in ordered:
        reached += entry.commit.tokens
        if 2 * reached >= total:
            return entry.commit.steps
    return 0


def _believed(
    roster: Roster, listed: Sequence[ListedContribution], law: AdmissionSpec
) -> Sequence[ListedContribution]:
    """The contributions whose reports count. In runs with a ramp newcomers are left out, so that
    identities which anybody can make by the dozen are never a majority (R9)."""
    if not law.ramp:
        return listed
    counted = counting(roster, law)
    return [entry for entry in listed if entry.sender in counted]


@dataclass(frozen=True, slots=True)
class InFlight:
    """With two rounds in flight (R5): `roster` is that of the round itself, which the seal before
    the last one carries; `lag` is L."""

    roster: Roster
    lag: int


def next_roster(
    roster: Roster,
    round_index: int,
    listed: Sequence[ListedContribution],
    *,
    trust: str,
    law: AdmissionSpec = NO_ADMISSION,
    in_flight: InFlight | None = None,
) -> Roster:
    """The roster that the seal of `round_index` carries (R1); `law` is the manifest's admission.

    `roster` is what the seal before it carries. With one round in flight that is the roster of the
    round itself; with two, `in_flight` holds that one (R5), and a member seated in between is not
    charged with absence from a round in which it had no seat.
    An empty LIST changes nothing: it says of nobody that it was absent, and it names nobody.
    """
    if not listed:
        return roster
    of_round = in_flight or InFlight(roster, 1)
    rules = _Rules(round_index, listed, trust, law, of_round.roster, of_round.lag)
    gone = _Named(roster, rules.seated, listed, trust).gone()
    following = _following(roster, rules, gone)
    # R1: a leaver that is needed goes with the first seal that others carry on from. One that is
    # not listed may be late, or gone already: it stays as well, until it was absent twice.
    rest = {entry.sender for entry in listed} - gone
    needed = {p for p in roster.voter_set & gone if not may_go(roster, p, rest, trust=trust)}
    if needed and not _is_carried(following, round_index, trust=trust):
        following = _following(roster, rules, gone - needed)
    return following


@dataclass(frozen=True, slots=True)
class _Rules:
    """What the next roster depends on, besides the last one and who has left."""

    round_index: int
    listed: Sequence[ListedContribution]
    trust: str
    law: AdmissionSpec
    seated: Roster
    lag: int


def _following(roster: Roster, rules: _Rules, gone: Collection[PeerId]) -> Roster:
    """The next roster, where these have left."""
    round_index, listed, law, trust = rules.round_index, rules.listed, rules.law, rules.trust
    seated = rules.seated
    present = {entry.sender: entry for entry in listed}
    named = _Named(roster, seated, listed, trust)
    banned = named.banned()
    window = (*roster.window, round_index)[-limits.SEAL_WINDOW :]
    believed = _believed(seated, listed, law)
    suspected = _Named(roster, seated, believed, trust).suspected()
    dropped = suspected | set(gone) | set(banned)
    lag = rules.lag
    told = CommitReports(seated, named.told, round_index, may_lie=named.may_lie, lag=lag)
    seats = {}
    for seat in roster.seats:
        if seat.peer in dropped:
            continue
        is_proved = seat.peer in present and present[seat.peer].is_proved
        # Words keep a vote. They give none: a peer that sends no part could sign what others seal.
        is_proved |= seat.voter_since >= 0 and told.says_sealed(seat.peer)
        proved = round_index if is_proved else seat.proved
        absent = 0 if seat.peer in present else told.absences(seat)
        kept = _seat(seat, voter_since=seat.voter_since, proved=proved, absent=absent)
        seats[seat.peer] = told.with_set_back(kept)
    held = _held_votes(roster, seats, window, round_index, trust)
    seats = {p: s for p, s in seats.items() if s.absent < ABSENCES_MAX or p in held}
    turns, joiners = Turns(round_index, law, trust), named.joiners() - set(banned)
    if trust == "open" and round_index > lag:
        # At the beginning all come at once; later a crowd of identities comes a few at a time.
        joiners = set(in_turn(round_index, joiners)[: max(1, len(roster.seats) // 4)])
    given_up = turns.giving_way(seats, voters(roster), len(joiners))
    seats = {peer: seat for peer, seat in seats.items() if peer not in given_up}
    seats = measured(seats, seated.members, [(e.sender, e.commit.seen) for e in believed])
    seats = turns.with_joiners(seats, set(voters(roster)) - given_up, joiners)
    left = tuple(seat for seat in roster.seats if seat.peer not in banned)
    if not (seats and left):
        return replace(roster, window=window)  # A run of nobody else goes on with whom it has.
    is_leaving = not roster.voter_set.isdisjoint(named.gone())
    old, votes = replace(roster, seats=left), _Kept(held, is_leaving=is_leaving)
    following = _with_voters(old, seats, window, round_index, trust=trust, kept=votes)
    # Of all who go on: voters that are kept for want of others count as they did.
    records = {seat.peer: seat for seat in following.seats}
    weights = earned(records, present, round_index, law)
    return replace(following, seats=_sorted(weights), banned=banned)


def _held_votes(
    roster: Roster,
    seats: Mapping[PeerId, SeatRecord],
    window: tuple[int, ...],
    round_index: int,
    trust: str,
) -> frozenset[PeerId]:
    """Voters of an open run that nobody saw of late, and that keep seat and vote for now.

    Only in rounds whose number is a multiple of SEAL_WINDOW do voters lose their votes because they
    were not seen, and then at most b of them: the longest absent first, the rest wait their turn.
    Otherwise a liar that suppresses the words of others for a few rounds would be left with all
    the votes.
    """
    may_lie = liars(len(roster.voters), trust)
    if not may_lie:
        return frozenset()
    losing = [
        seats[peer]
        for peer in roster.voters
        if peer in seats and (seats[peer].absent >= ABSENCES_MAX or seats[peer].proved < window[0])
    ]
    num_lost = may_lie if round_index % limits.SEAL_WINDOW == 0 else 0
    losing.sort(key=lambda seat: (-seat.absent, seat.proved, seat.peer))
    return frozenset(seat.peer for seat in losing[num_lost:])


def _is_carried(following: Roster, round_index: int, *, trust: str) -> bool:
    """Whether a quorum of the voters that follow proved itself in this very round, and so is here
    for the next one.

    A voter that is needed leaves with no other seal: of a voter that proved itself in an earlier
    round nobody knows whether it still lives, and without the leaver there might be no quorum (R1).
    """
    here = [seat.peer for seat in following.seats if seat.proved == round_index]
    return has_quorum(following, here, trust=trust)


def counts_of(roster: Roster, peer: PeerId, trust: str) -> bool:
    """Whether that member's word on others counts. In open runs voters' words alone do: a seat
    costs nothing yet, so members without a vote may be liars beyond number."""
    return trust != "open" or peer in roster.voter_set


def _num_telling(roster: Roster, told: Sequence[Commit], trust: str) -> int:
    """Out of how many members a majority is counted: in open runs out of all voters, not only out
    of those that one LIST happens to list."""
    if liars(len(roster.voters), trust):
        return len(roster.voters)
    return len(told)


class _Named:
    """Which peers are named by the listed COMMITs whose word counts.

    `of_round` is the roster of the round of these COMMITs, `roster` the newest one.
    """

    def __init__(
        self, roster: Roster, of_round: Roster, listed: Sequence[ListedContribution], trust: str
    ) -> None:
        self._roster, self._of_round, self._trust = roster, of_round, trust
        self._voting = [e.commit for e in listed if e.sender in of_round.voter_set]
        self.told = [e.commit for e in listed if counts_of(of_round, e.sender, trust)]
        self.may_lie = liars(len(of_round.voters), trust)

    def banned(self) -> tuple[PeerId, ...]:
        """Those banned before, and those whom more listed voters than may lie hold evidence
        against.

        The last ones only: whoever is banned beyond that is known by the evidence alone.
        """
        known, members = self._roster.banned, self._roster.member_set
        new = self._by_enough([commit.bans for commit in self._voting]) & members
        return (*known, *sorted(new - set(known)))[-limits.SEATS_MAX :]

    def gone(self) -> set[PeerId]:
        """Those who said that they leave: friends take one word for it, open runs b + 1."""
        return self._by_enough([commit.gone for commit in self.told])

    def suspected(self) -> set[PeerId]:
        """Those whom more than half suspect."""
        counts = _counts([commit.suspects for commit in self.told])
        num_telling = _num_telling(self._of_round, self.told, self._trust)
        return {peer for peer, count in counts.items() if 2 * count > num_telling}

    def joiners(self) -> set[PeerId]:
        """Named by enough (friends 1, open b + 1), not seated yet."""
        named = self._by_enough([commit.joins for commit in self.told])
        return named - self._roster.member_set - self.gone()

    def _by_enough(self, names: Sequence[tuple[PeerId, ...]]) -> set[PeerId]:
        return {peer for peer, count in _counts(names).items() if count > self.may_lie}


def _counts(names: Sequence[tuple[PeerId, ...]]) -> Counter[PeerId]:
    """By how many each is named; who names somebody twice counts once."""
    return Counter(peer for of_one in names for peer in set(of_one))


@dataclass(frozen=True, slots=True)
class _Kept:
    """`held` are voters that keep their votes although nobody saw them of late. `is_leaving` says
    that a voter is about to leave: then only members that proved themselves now become voters."""

    held: frozenset[PeerId]
    is_leaving: bool


def _with_voters(
    old: Roster,
    seats: Mapping[PeerId, SeatRecord],
    window: tuple[int, ...],
    round_index: int,
    *,
    trust: str,
    kept: _Kept,
) -> Roster:
    """Decide who votes: proved within the window; growth capped, lowest peer ids first."""
    recent = {peer for peer, seat in seats.items() if seat.proved >= window[0]}
    qualified = recent | kept.held.intersection(seats)
    stay = {peer for peer in voters(old) if peer in qualified}
    if kept.is_leaving:
        qualified = stay | {peer for peer in qualified if seats[peer].proved == round_index}
    growth = len(voters(old)) if trust == "friends" else _open_growth(old, round_index)
    enter = _founding(seats, qualified - stay)
    enter |= set(sorted(qualified - stay - enter)[: max(0, growth - len(enter))])
    if kept.is_leaving:
        enter |= _successors(seats, qualified, stay | enter)
    if not stay | enter:
        # A roster that would have no voter keeps the old ones, even those that lost their seat.
        before = {seat.peer: seat for seat in old.seats if seat.voter_since >= 0}
        return Roster(seats=_sorted({**seats, **before}), window=window)
    decided = {}
    for peer, seat in seats.items():
        since = round_index if peer in enter else -1
        voter_since = seat.voter_since if peer in stay else since
        decided[peer] = _seat(seat, voter_since=voter_since, proved=seat.proved, absent=seat.absent)
    return Roster(seats=_sorted(decided), window=window)


def _founding(seats: Mapping[PeerId, SeatRecord], qualified: Collection[PeerId]) -> set[PeerId]:
    """Who votes beyond the growth cap: whoever the founder waited for has a seat since round 1.

    The cap is there against identities that come later by the dozen; a run whose founder votes
    alone for its first rounds ends with its founder. They too vote only once they are proved.
    """
    return {peer for peer in qualified if seats[peer].seated == FOUNDING_ROUND}


def _successors(
    seats: Mapping[PeerId, SeatRecord], here: Collection[PeerId], electorate: Collection[PeerId]
) -> set[PeerId]:
    """Who becomes a voter in the place of one that leaves, where fewer than four would be left.

    With four voters or more one may die, and then nobody succeeds a leaver: liars could take the
    places of honest voters that leave. The longest seated members come first.
    """
    heirs = sorted(set(here) - set(electorate), key=lambda peer: (seats[peer].seated, peer))
    return set(heirs[: max(0, OPEN_VOTERS_MIN - len(electorate))])


def _seat(seat: SeatRecord, *, voter_since: int, proved: int, absent: int) -> SeatRecord:
    """The same seat a round later. Spelt out: `replace` of all took longer than all the rest."""
    if (voter_since, proved, absent) == (seat.voter_since, seat.proved, seat.absent):
        return seat
    return SeatRecord(
        peer=seat.peer,
        seated=seat.seated,
        voter_since=voter_since,
        proved=proved,
        absent=absent,
        reached=seat.reached,
        rate=seat.rate,
        earned=seat.earned,
        set_backs=seat.set_backs,
        set_back_until=seat.set_back_until,
    )


def _open_growth(old: Roster, round_index: int) -> int:
    """Open runs admit max(1, v/4) new voters per 16 rounds."""
    return max(1, len(voters(old)) // 4) if round_index % 16 == 0 else 0


def _sorted(seats: Mapping[PeerId, SeatRecord]) -> tuple[SeatRecord, ...]:
    return tuple(seats[peer] for peer in sorted(seats))
