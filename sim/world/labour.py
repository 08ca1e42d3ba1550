"""What trainers of a world did, in rounds of one peer: for themselves, and again for audits."""

from dataclasses import dataclass


@dataclass(slots=True)
class Labour:
    """All trainers together."""

    trained: int = 0
    audited: float = 0.0

    @property
    def share(self) -> float:
        """Audits, in parts of what was trained."""
        return self.audited / max(1, self.trained)
