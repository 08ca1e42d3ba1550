"""Which signed messages of a round count: asked once per message, before it is filed."""

from node.ballots import Entry
from node.round_view import RoundView
from protocol.messages import Commit, Kind

ATTEMPTS_AHEAD_MAX = 64
"""Messages of later attempts than this are ignored: nobody honest is so far ahead."""


def concerns(view: RoundView, entry: Entry) -> bool:
    """Whether a message belongs to this round and its sender has a say in it.

    Joiners ask for seats; everything else is for members.
    """
    slot = entry.message.slot
    is_member = entry.message.sender in view.member_set
    return (
        (slot.round, slot.basis) == (view.index, view.basis)
        and slot.attempt <= view.attempt + ATTEMPTS_AHEAD_MAX
        and is_member == (slot.kind is not Kind.SEAT)
    )


def breach(view: RoundView, entry: Entry) -> str:
    """What is wrong with a message of this round; empty if nothing is."""
    slot, body = entry.message.slot, entry.body
    if slot.kind in (Kind.SEAL, Kind.PSEAL) and slot.subject != view.basis:
        # A second place for a SEAL, in which its sender could contradict itself unconvicted.
        return f"{slot.kind.name} with another seal before"
    if slot.kind is Kind.LIST and entry.message.sender != view.closer(slot.attempt):
        return f"LIST of attempt {slot.attempt} is not its to propose"
    return _commit_breach(view, body) if isinstance(body, Commit) else ""


def _commit_breach(view: RoundView, body: Commit) -> str:
    if body.base != view.basis:
        return "COMMIT on another anchor"
    if len(body.cell_norms) != view.num_cells:
        return f"COMMIT of {len(body.cell_norms)} cells instead of {view.num_cells}"
    # No weight at all has no mean: a list of nothing but such COMMITs could not be summed.
    return "" if body.tokens else "COMMIT of no tokens"


def is_for_us(view: RoundView, entry: Entry) -> bool:
    """Whether a COMMIT, HAVE or NEWATTEMPT that was filed may give this node anything to do.

    They are for whoever sums, and for the closer; a COMMIT also where a LIST waits for it, but for
    nobody until a quorum opens the round. Asked in the attempt that the message leads to.
    """
    kind = entry.message.slot.kind
    if kind is Kind.COMMIT:
        if view.ballots.is_proposed(entry.message.digest):
            return True
        if view.opened_s is None:
            return view.has_quorum(set(view.ballots.of(kind)))
    elif kind is not Kind.HAVE and kind is not Kind.NEWATTEMPT:
        return False
    if view.closer(view.attempt) == view.me:
        return True
    return kind is not Kind.NEWATTEMPT and bool(view.own_slices())
