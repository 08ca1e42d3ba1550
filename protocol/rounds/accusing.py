"""R10: who said of a slice what its parts do not give, by what voters found. Pure.

One honest voter is among more voters than may lie, and it summed the slice itself. So whoever
differs from what they all say lied, or its machine errs. Nobody needs the parts to see that.
"""

from collections.abc import Iterator

from protocol.errors import ProofError
from protocol.evidence import Evidence, may_be_accused, words_needed, wrong_sum_evidence
from protocol.identity import PeerId
from protocol.messages import Kind, Slot
from protocol.rounds.agreed import alike
from protocol.rounds.round_view import RoundView

JUDGED = (Kind.AGG, Kind.GRAM)
"""Kinds that are a pure function of listed bytes (R7)."""


def wrong_sums(view: RoundView, slot: Slot) -> Iterator[tuple[PeerId, Evidence | None]]:
    """Who said something else in that slot than so many voters as are needed, with the evidence;
    without it where it would be too large.

    Once of each: whoever is convicted is left out, and so is this node.
    """
    if view.trust != "open" or slot.kind not in JUDGED:
        return
    said = {p: e.message for p, e in view.ballots.of(slot.kind, 0, slot.subject).items()}
    groups = alike({peer: message.body for peer, message in said.items()})
    needed = words_needed(len(view.electorate))
    for body, peers in sorted(groups.items()) if len(groups) > 1 else ():
        judges = sorted(peers.intersection(view.electorate))[:needed]
        if len(judges) < needed:
            continue
        for peer in sorted(said.keys() - view.convicted - {view.me}):
            if said[peer].body == body or not may_be_accused(view.named, peer):
                continue
            others = tuple(said[judge] for judge in judges)
            try:
                yield peer, wrong_sum_evidence(view.named, said[peer], others)
            except ProofError:
                yield peer, None
