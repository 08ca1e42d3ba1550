"""What a RoundMachine says of the sums that its node made (R2, R7)."""

from collections.abc import Iterator

from node import events as ev
from node.rules import supply
from node.rules.agreed import take_own_sum
from node.rules.round_steps import RoundSteps
from protocol.messages import Agg, Gram, Kind, sign_message, slice_subject


class RoundSums(RoundSteps):
    """See RoundState; these are the answers to Reduce and Measure."""

    def _reduced(self, event: ev.Reduced) -> Iterator[ev.RoundAction]:
        view = self.standing.about(event.list_digest)
        if view is None:
            return
        if ("reduce", event.list_digest, event.first, view.me) not in view.requested:
            return  # The round went on while the slice was summed.
        digest, first, stop = event.list_digest, event.first, event.stop
        piece = next(p for p in view.slices if p.first == first)
        is_mute = self._silence.has_lost(view)
        take_own_sum(view, digest, piece, event.root, is_mute=is_mute)
        if is_mute:
            return
        subject = slice_subject(digest, first, stop)
        body = Agg(list_digest=digest, first=first, stop=stop, root=event.root)
        if view.me not in view.ballots.of(Kind.AGG, 0, subject):  # Signed before a restart.
            slot = view.slot(Kind.AGG, subject=subject)
            yield from self._publish(view, sign_message(self._signer, slot, body), body)
        yield from supply.push_results(view, digest, piece)

    def _measured(self, event: ev.Measured) -> Iterator[ev.RoundAction]:
        """R7: say the partial Gram matrix of a slice; with lost signatures it is kept to oneself,
        and a substitute says it (R12)."""
        view = self.standing.about(event.list_digest)
        digest, first, stop = event.list_digest, event.first, event.stop
        if view is None or ("measure", digest, first, view.me) not in view.requested:
            return  # The round went on meanwhile.
        if view.everybody_sums:
            view.grams[digest, first] = event.stats  # Nobody else asks for it.
        subject = slice_subject(digest, first, stop)
        is_said = view.everybody_sums or view.me in view.ballots.of(Kind.GRAM, 0, subject)
        if not (is_said or self._silence.has_lost(view)):
            body = Gram(list_digest=digest, first=first, stop=stop, stats=event.stats)
            slot = view.slot(Kind.GRAM, subject=subject)
            yield from self._publish(view, sign_message(self._signer, slot, body), body)
