"""What a seal shows of samples that were leased, and that nobody can lease any more (R9). Pure."""

from protocol.messages import SealClock, SealValue
from protocol.rounds.roster import ClockRules


def num_in_flight(before: SealValue, rules: ClockRules) -> int:
    """Samples that are leased for rounds behind the one that follows `before` (R5): its seal
    cannot say what becomes of them."""
    return (rules.lag - 1) * rules.samples_each * len(before.roster.members)


def num_forgotten(
    clock: SealClock, tokens_each: int, *, drift_tokens: int = 0, in_flight: int = 0
) -> int:
    """Samples that were leased, came back, and were too many intervals to be kept: the trace that
    a seal has of them.

    Every COMMIT that counts claims `tokens_each` tokens for each sample that it used, so the tokens
    say how many were; what was not used and is not among the unused was forgotten. `drift_tokens`
    are of samples that other branches leased (R4), `in_flight` samples of rounds under way (R5).
    """
    used = (clock.tokens - drift_tokens) // tokens_each
    return clock.cursor - in_flight - sum(gap.stop - gap.first for gap in clock.unused) - used
