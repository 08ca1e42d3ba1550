"""The phases of a round, as moments at which something can be done to a node.

A phase is a question asked before each action of a node, and with None once all actions of an event
are carried out. "Recorded" is the moment in which R12 lives: durable, and heard by nobody.
"""

from collections.abc import Callable, Mapping

from protocol import events as ev
from protocol.frames import Bulk
from protocol.messages import Kind
from protocol.rounds.round_view import RoundView

Phase = Callable[[RoundView, ev.CoreAction | None], bool]
"""Whether the node whose view it is stands there, about to carry out that action."""

TRAINING = "training"
"""Where a node is that has signed nothing in its round."""


def said(kind: Kind) -> Phase:
    """All its messages of that kind, for any attempt and subject, have left."""

    def is_over(view: RoundView, action: ev.CoreAction | None) -> bool:
        return action is None and _has_signed(view, kind)

    return is_over


def recorded(kind: Kind) -> Phase:
    """The message is durable and was sent to nobody."""

    def is_over(view: RoundView, action: ev.CoreAction | None) -> bool:
        return isinstance(action, ev.Send | ev.SendAll) and _has_signed(view, kind)

    return is_over


def _has_signed(view: RoundView, kind: Kind) -> bool:
    return view.ballots.has_said(kind, view.me)


def _before_parts(view: RoundView, action: ev.CoreAction | None) -> bool:
    del view
    return isinstance(action, ev.Push) and action.bulk is Bulk.PART


def _after_parts(view: RoundView, action: ev.CoreAction | None) -> bool:
    return action is None and view.pushed_among is not None


PHASES: Mapping[str, Phase] = {
    "COMMIT recorded": recorded(Kind.COMMIT),
    "COMMIT sent": _before_parts,
    "parts sent": _after_parts,
    "HAVE recorded": recorded(Kind.HAVE),
    "HAVE sent": said(Kind.HAVE),
    "LIST recorded": recorded(Kind.LIST),
    "LIST sent": said(Kind.LIST),
    "VOTE recorded": recorded(Kind.VOTE),
    "VOTE sent": said(Kind.VOTE),
    "GRAM recorded": recorded(Kind.GRAM),
    "GRAM sent": said(Kind.GRAM),
    "AGG recorded": recorded(Kind.AGG),
    "AGG sent": said(Kind.AGG),
    "SEAL recorded": recorded(Kind.SEAL),
    "SEAL sent": said(Kind.SEAL),
    "NEWATTEMPT sent": said(Kind.NEWATTEMPT),
}
"""In the order of a round. LIST is of its closer alone, HAVE and AGG of reducers; NEWATTEMPT comes
only where an attempt failed. GRAM comes only where the rule judges whole vectors."""

IN_EVERY_RUN = tuple(name for name in PHASES if not name.startswith("GRAM"))


def phase_of(view: RoundView) -> str:
    """The kind of the newest message that the node has signed in this round, or TRAINING."""
    newest = TRAINING
    for message in view.ballots.messages():
        if message.sender == view.me:
            newest = message.slot.kind.name
    return newest
