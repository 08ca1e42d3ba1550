"""Every error of Barnraise, drawn as one tree.

    BarnraiseError
    ├── ConfigError            the user can mend it: a file, an argument, a key
    │   ├── ManifestError      run.toml or a manifest: unknown key, wrong type, bad value
    │   ├── ManifestMismatch   a peer trains another run; names the first differing field
    │   └── CorpusError        a text cannot be taken, or the run's is not on this machine
    ├── PeerError              that peer did it: a strike of the named kind
    │   ├── DecodeError        bytes that are no well-formed message
    │   ├── LimitError         more than a bound of `protocol.limits` allows
    │   ├── SignatureError     the signature does not fit the writer
    │   ├── ProofError         bytes that do not hash to what was committed
    │   ├── RefusedError       the peer refused us, and says why
    │   │   └── VersionError   it is of another version: who must upgrade
    │   │       └── WireVersionError   of the wire
    │   └── TwoHistoriesError  peers proved two histories of one run, of which one is forged
    ├── NetworkError           try again, or another path
    │   ├── UnreachableError   no address of the peer answered
    │   │   ├── SwarmKeyError  one answered: it has another PSK than we, or none
    │   │   └── PeerFullError  one answered: it takes no more connections now
    │   └── StreamClosedError  the stream ended before the message did
    └── StateError             our own state is not what the swarm sealed: resync
        ├── CheckpointError    a checkpoint is torn, foreign or of another run
        ├── LedgerError        receipts that do not hold; names the round
        └── TrainerError       the trainer process died or broke the channel's rules

Bugs are not here: they are asserts, and they propagate.
"""

from typing import Literal

Strike = Literal["decode", "limit", "signature", "proof", "refused", "protocol"]


class BarnraiseError(Exception):
    """Root of all errors that Barnraise raises on purpose."""


class ConfigError(BarnraiseError):
    """The user can mend it; the message says what to change."""


class ManifestError(ConfigError):
    """A manifest or run.toml has an unknown key, a wrong type or a value out of range."""


_OTHER_RUN = (
    "that peer trains another run: name a peer of this one, or join that one by its invite link"
)


class ManifestMismatch(ConfigError):
    """A peer's manifest differs from ours, or our model from the manifest.

    `field` is the dotted name of the first field that differs; `advice` says what to do.
    """

    def __init__(
        self, field: str, ours: object, theirs: object, *, advice: str = _OTHER_RUN
    ) -> None:
        differs = f"manifest differs at {field}: ours {_shown(ours)}, theirs {_shown(theirs)}"
        super().__init__(f"{differs}; {advice}")
        self.field = field


def _shown(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)[:80]


class CorpusError(ConfigError):
    """A text cannot be taken, or the one that the manifest pins is not on this machine."""


class PeerError(BarnraiseError):
    """A peer sent what it must not send. `strike` says which kind."""

    strike: Strike = "protocol"


class DecodeError(PeerError):
    """Bytes that are no well-formed message."""

    strike: Strike = "decode"


class LimitError(PeerError):
    """More bytes, items or depth than `protocol.limits` allows."""

    strike: Strike = "limit"


class SignatureError(PeerError):
    """A signature that does not fit its writer and bytes."""

    strike: Strike = "signature"


class ProofError(PeerError):
    """Bytes that do not hash to what their writer committed to."""

    strike: Strike = "proof"


class RefusedError(PeerError):
    """The peer refused us; the message is its reason, escaped and cut."""

    strike: Strike = "refused"


class VersionError(RefusedError):
    """The peer, or what it sent, is of another version; the message says who must upgrade."""


class WireVersionError(VersionError):
    """The peer, or the run, speaks wire version `theirs`; 0 where it is not known any more."""

    def __init__(self, message: str, theirs: int = 0) -> None:
        super().__init__(message)
        self.theirs = theirs


class TwoHistoriesError(PeerError):
    """Two certificates of one round: somebody has keys that are not its own; the message says where
    the proof lies, and what a person can do."""

    strike: Strike = "proof"


class NetworkError(BarnraiseError):
    """The network failed; the same call may work later or on another path."""


class UnreachableError(NetworkError):
    """No address of the peer answered; the message lists what was tried."""


class SwarmKeyError(UnreachableError):
    """A peer is there, but of a private swarm whose PSK we do not have, or not of ours."""


FULL = "it is there, but takes no more connections at the moment: try again later"


class PeerFullError(UnreachableError):
    """A peer is there, and has no place for one more connection: try again a little later."""


class StreamClosedError(NetworkError):
    """The stream ended, or the peer vanished, before the message was complete."""


class StateError(BarnraiseError):
    """Our state is not what the swarm sealed; a resync mends it."""


class CheckpointError(StateError):
    """A checkpoint file is torn, foreign or of another run."""


class LedgerError(StateError):
    """A seal or receipt of a run's ledger does not hold; `round` is where, 0 before the first."""

    def __init__(self, message: str, round_index: int = 0) -> None:
        super().__init__(message)
        self.round = round_index

    @classmethod
    def at(cls, round_index: int, reason: str) -> "LedgerError":
        """The error with its round in its words."""
        return cls(f"round {round_index}: {reason}", round_index)


class TrainerError(StateError):
    """The trainer process died or broke the rules of the channel."""


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, however deep."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
