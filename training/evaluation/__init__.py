"""Models in use: validation against a yardstick, text that they write, measuring. Here the numbers
by which a user has text drawn, checked without torch."""

from dataclasses import dataclass

from protocol.errors import ConfigError

_TOP_K_MAX = 1 << 20
_TEMPERATURE_MAX = 100.0
"""Above it every byte is as likely as any other."""

_SEED_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How bytes are drawn.

    Logits are divided by `temperature`: 1 draws as the model believes, less is bolder towards the
    likely, 0 always takes the likeliest byte. `top_k` keeps only so many likeliest bytes; 0 keeps
    all. Raises ConfigError naming a number that is out of range.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature <= _TEMPERATURE_MAX:
            raise ConfigError(f"temperature {self.temperature} is not within 0..{_TEMPERATURE_MAX}")
        if not 0 <= self.top_k <= _TOP_K_MAX:
            raise ConfigError(f"top-k {self.top_k} is not within 0..{_TOP_K_MAX}")
        if not 0 <= self.seed <= _SEED_MAX:
            raise ConfigError(f"seed {self.seed} is not within 0..{_SEED_MAX}")
