"""What came of one scenario and one seed: plain values, fit for a line of JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """The first promise that was not kept.

    `name` is that of an invariant (I1 to I9), of an expectation, or "error" where the code itself
    broke. `event` is the number of the world's event at which it showed.
    """

    name: str
    text: str
    at_s: float
    event: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`rounds_sealed` rounds listed somebody, `rounds_carried` nobody.

    `loss_last` is the mean loss of the last round trained for, None where nothing real is trained.
    `banned` counts the convicted without a seat
    in the last seal, `evidence` is what convicts them, by name and encoded in hexadecimal;
    `false_bans` counts the honest ones that were accused or convicted. `honest_votes_lost` and
    `honest_seats_lost` count how often one lost its vote or seat that was in reach all the while.
    `recoveries` are the virtual seconds from the end of a fault to the next round that is final, by
    kind of fault; `coverage` counts faults by the phase that their victim was in. `faults_missed`
    of the `faults` struck nobody, `faults_partial` some of their victims only. `audited_share` is
    the training that audits ran again, in parts of all that trainers did for rounds of their own;
    `seats_last` are the seats of the last seal.
    """

    scenario: str
    seed: int
    peers: int
    rounds_sealed: int
    rounds_carried: int
    honest_digests_equal: bool
    loss_last: float | None
    banned: int
    false_bans: int
    virtual_s: float
    wall_s: float
    trace_hash: str
    events: int
    faults: int
    faults_missed: int
    violation: Violation | None
    recoveries: tuple[tuple[str, float], ...] = ()
    coverage: Mapping[str, int] = field(default_factory=dict)
    evidence: Mapping[str, str] = field(default_factory=dict)
    audited_share: float = 0.0
    seats_last: int = 0
    faults_partial: int = 0
    honest_votes_lost: int = 0
    honest_seats_lost: int = 0

    def as_json(self) -> dict[str, object]:
        """Its fields as JSON values."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Outcome":
        """Inverse of `as_json`, of what a worker of our own has written."""
        values = dict(plain)
        violation = values.pop("violation")
        recoveries = tuple((str(kind), float(s)) for kind, s in values.pop("recoveries"))
        return cls(
            **values,
            violation=None if violation is None else Violation(**violation),
            recoveries=recoveries,
        )
