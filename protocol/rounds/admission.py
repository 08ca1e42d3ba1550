"""Which signed messages of a round count: asked once per message, before it is filed."""

from collections.abc import Iterable

from protocol.events import CheckSeat
from protocol.gram_wire import from_wire
from protocol.identity import PeerId
from protocol.join_puzzle import is_solved
from protocol.messages import Agg, Body, Commit, Gram, Kind, Seal, Seat
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.reducers import Rates
from protocol.rounds.roster import ClockRules, liars
from protocol.rounds.round_view import RoundView
from protocol.rounds.seating import in_turn

_ENTERING = (Kind.LIST, Kind.NEWATTEMPT, Kind.VOTE, Kind.SEAL, Kind.HAVE, Kind.HOLD)
"""Kinds that say in which attempt a voter works."""

BY_VOTERS = frozenset({Kind.PVOTE, Kind.PSEAL, Kind.LIST, Kind.NEWATTEMPT})
"""What the sealers of a provisional round say, members of it or not."""

ATTEMPTS_AHEAD_MAX = 64
"""Messages of later attempts than this are ignored: nobody honest is so far ahead."""


def concerns(view: RoundView, entry: BallotEntry) -> bool:
    """Whether a message belongs to this round and its sender has a say in it.

    Joiners ask for seats; everything else is for members, and on a branch for the voters of the
    last final seal, who may have lost their seats on it.
    """
    slot, sender = entry.message.slot, entry.message.sender
    is_here = slot.round == view.index and slot.basis == view.basis
    is_here |= "slots" in view.config.without
    if not is_here or slot.attempt > view.attempt + ATTEMPTS_AHEAD_MAX:
        return False
    may_branch, is_list = view.config.may_branch, slot.kind is Kind.LIST
    if may_branch and is_list and not view.may_close(sender, slot.attempt):
        return False  # For its sender another seal is the last final one: nobody's fault.
    if isinstance(entry.body, Agg | Gram) and not _is_of_slice(view, entry.body):
        return False
    if may_branch and slot.kind in BY_VOTERS and sender not in view.member_set:
        return view.may_speak(sender)
    return (sender in view.member_set) == (slot.kind is not Kind.SEAT)


def _is_of_slice(view: RoundView, body: Agg | Gram) -> bool:
    """Whether it is of a slice of this round, and a GRAM in a run whose rule asks for it."""
    cells = (body.first, body.stop)
    if isinstance(body, Gram) and (not view.config.uses_gram or view.config.everybody_sums):
        return False
    return any((piece.first, piece.stop) == cells for piece in view.slices)


def may_sit_next(view: RoundView, peer: PeerId) -> bool:
    """Whether that peer may be a member of the next round, by all that is known here: it is one of
    this round, or its proof was checked, or as many name it as seat a joiner (R1)."""
    if view.may_speak(peer) or peer in view.seats.proven:
        return True
    voters = view.roster.voter_set
    named = sum(
        peer in commit.joins
        for sender, _, commit in view.commits()
        if view.config.trust != "open" or sender in voters
    )
    return named > liars(len(voters), view.config.trust)


def breach(view: RoundView, entry: BallotEntry, rules: ClockRules) -> str:
    """What is wrong with a message of this round; empty if nothing is."""
    slot, body = entry.message.slot, entry.body
    is_shared = view.config.may_branch and view.is_overlapped
    if slot.kind in (Kind.SEAL, Kind.PSEAL) and slot.subject != view.seals.before and not is_shared:
        # A second place for a SEAL, in which its sender could contradict itself unconvicted. Where
        # two rounds are in flight among friends, the same round is sealed on several branches.
        return f"{slot.kind.name} with another seal before"
    is_list = slot.kind is Kind.LIST and not view.config.may_branch
    if is_list and entry.message.sender != view.closer(slot.attempt):
        return f"LIST of attempt {slot.attempt} is not its to propose"
    if isinstance(body, Gram):
        return _gram_breach(body)
    if isinstance(body, Seat):
        bits = rules.admission.puzzle_bits
        is_paid = is_solved(slot.run, entry.message.sender, bits, body.work)
        return "" if is_paid else "SEAT without the work that the run asks for"
    return _commit_breach(view, body, rules) if isinstance(body, Commit) else ""


def _gram_breach(body: Gram) -> str:
    try:
        from_wire(body.stats)
    except ValueError as error:
        return f"GRAM: {error}"
    return ""


def _commit_breach(view: RoundView, body: Commit, rules: ClockRules) -> str:
    if body.base != view.basis:
        return "COMMIT on another anchor"
    if len(body.cell_norms) != view.cells.num_cells:
        return f"COMMIT of {len(body.cell_norms)} cells instead of {view.cells.num_cells}"
    if len(body.seen) not in (0, len(view.members)):
        return f"COMMIT that says something of {len(body.seen)} members of {len(view.members)}"
    if [len(work.trace) for work in body.work] != [rules.segments + 1] * bool(rules.segments):
        return f"COMMIT without the work of {rules.segments} segments"
    # No weight at all has no mean: a list of nothing but such COMMITs could not be summed.
    if not body.tokens:
        return "COMMIT of no tokens"
    size = -(-len(view.members) // 8)
    if {len(body.committed), len(body.sealed), len(body.lapsed)} not in ({0}, {size}):
        return f"COMMIT that says something of other members than the {len(view.members)} there are"
    wrong = claim_breach(rules, samples=body.samples, tokens=body.tokens)
    return f"COMMIT of {wrong}" if wrong else ""


def claim_breach(rules: ClockRules, *, samples: int, tokens: int) -> str:
    """What is wrong with the work that somebody claims; empty if nothing is.

    Tokens are weight, credit and the run's clock: nobody gets more of them than its lease has.
    """
    if samples > rules.samples_each:
        return f"{samples} samples of a lease of {rules.samples_each}"
    if tokens != samples * rules.tokens_each:
        return f"{tokens} tokens for {samples} samples of {rules.tokens_each}"
    return ""


def attempt_shown(view: RoundView, entry: BallotEntry) -> int:
    """The latest attempt that a message leads to (R2); it is filed already.

    Friends enter whatever LIST or NEWATTEMPT of a voter shows. In open runs one voter's word is not
    enough: the latest in which, or beyond which, more voters are seen than may lie.
    """
    slot, sender = entry.message.slot, entry.message.sender
    if slot.attempt <= view.attempt or slot.kind not in _ENTERING:
        return view.attempt
    num_liars = liars(len(view.roles.electorate), view.config.trust)
    if not num_liars:
        # On a branch those seal who are left of the voters, or of the members (R4).
        may_lead = sender in view.roster.voter_set or (
            view.config.may_branch and view.may_speak(sender)
        )
        is_led = may_lead and slot.kind in (Kind.LIST, Kind.NEWATTEMPT)
        return slot.attempt if is_led else view.attempt
    ahead = sorted(_latest(view).values(), reverse=True)
    return max(view.attempt, ahead[num_liars] if len(ahead) > num_liars else 0)


def is_attended(view: RoundView) -> bool:
    """Whether a quorum is seen in the attempt that this node works in, or beyond it.

    In open runs a later attempt is timed from then on: whoever was alone in it would leave it when
    the others, whom one voter's word does not move, come to it, and so for ever. Friends need not
    ask: each of them enters what any other one shows.
    """
    if not liars(len(view.roles.electorate), view.config.trust):
        return True
    there = {peer for peer, attempt in _latest(view).items() if attempt >= view.attempt}
    return view.has_quorum(there | {view.me})


def _latest(view: RoundView) -> dict[PeerId, int]:
    """The latest attempt in which each voter is seen."""
    latest: dict[PeerId, int] = {}
    for kind in _ENTERING:
        for attempt in view.ballots.attempts(kind):
            for peer in view.ballots.of(kind, attempt, _subject(view, kind)):
                if peer in view.roster.voter_set:
                    latest[peer] = max(attempt, latest.get(peer, 0))
    return latest


def _subject(view: RoundView, kind: Kind) -> bytes:
    return view.seals.before if kind is Kind.SEAL else b""


def is_for_us(view: RoundView, entry: BallotEntry) -> bool:
    """Whether a message that was filed, and is no quorum's last, may give this node anything to do.

    They are for whoever sums, and for the closer; a COMMIT also where a LIST waits for it, but for
    nobody until a quorum opens the round. Asked in the attempt that the message leads to.
    """
    kind = entry.message.slot.kind
    if kind is Kind.AGG:
        # Of a second reducer: then results may be pushed.
        return view.copies > 1 and not view.config.everybody_sums
    if kind is Kind.GRAM:
        return bool(view.kept_slices())  # They may be summed then, or need a substitute.
    if kind is Kind.COMMIT:
        if view.ballots.is_proposed(entry.message.digest):
            return True
        if view.times.opened_s is None:
            return view.can_open()
    elif kind is Kind.SEAL:
        # Its sender has what the dead do not push any more; and it is a lock (R4).
        return view.is_provisional or (
            bool(view.peers.suspects) and _lacks_result(view, entry.body)
        )
    elif kind not in (Kind.HAVE, Kind.HOLD, Kind.NEWATTEMPT):
        return False
    if view.closer(view.attempt) == view.me:
        return True
    # Of a HAVE also to who keeps no slice yet: it may be called to.
    return kind is not Kind.NEWATTEMPT and view.is_member


def _lacks_result(view: RoundView, body: Body) -> bool:
    """Whether cells are missing here of the result that a SEAL is for."""
    return not isinstance(body, Seal) or bool(view.cells.missing_results(body.list_digest))


# Proofs -------------------------------------------------------------------------------------------
#
# Whose proof for a seat is checked next, and who gave a wrong one (R11).
#
# Anybody makes up keys, and a check takes a hash over the whole state. So there is one at a time,
# in the order of the round: however many ask, and whoever comes first, all have the same chance. In
# open runs a key that gave a wrong proof is not heard again for long: who crowds others out pays
# for a join puzzle with each check, and not once for ever.

SHUT_ROUNDS = 64
"""So long nobody hears the SEATs of whose proof was wrong."""

SHUT_MAX = 4096
"""Keys that are remembered for it."""


class Proofs:
    """The proofs that one node looks at: in open runs of peers with which it has a link itself. One
    who holds the state can prove it for any number of keys, and a proof is no sign of life."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._is_checking = False
        self._wrong: dict[PeerId, int] = {}
        """Whose proof was wrong, and in which round."""

    def next(self, views: Iterable[RoundView]) -> list[CheckSeat]:
        """The proof to look at now, if there is one and none is looked at."""
        if self._is_checking:
            return []
        for view in views:
            if view.seals.is_beside:
                continue  # A SEAT shows the state of the seal before, which is not here yet (R5).
            asking = view.ballots.of(Kind.SEAT)
            waiting = asking.keys() - view.seats.checked - {view.me}
            if view.config.trust == "open" and "links" not in view.config.without:
                waiting &= set(self._rates.linked)
            if waiting:
                peer = in_turn(view.index, waiting)[0]
                body = asking[peer].body
                assert isinstance(body, Seat)
                view.seats.checked.add(peer)
                self._is_checking = True
                return [CheckSeat(peer, view.basis, body.proof)]
        return []

    def checked(self, peer: PeerId, view: RoundView | None, is_proved: bool | None) -> None:
        """What came of it; `view` is None where that round is over."""
        self._is_checking = False
        if view is None or is_proved is None:
            return
        if is_proved:
            view.seats.proven.add(peer)
            return
        if view.config.trust != "open":
            return  # Among friends it may be of another branch (R4), and nobody makes up keys.
        self._wrong[peer] = view.index
        if len(self._wrong) > SHUT_MAX:
            del self._wrong[next(iter(self._wrong))]

    def is_shut(self, peer: PeerId, round_index: int) -> bool:
        """Whether SEATs of that peer are not heard in that round."""
        return peer in self._wrong and round_index - self._wrong[peer] < SHUT_ROUNDS
