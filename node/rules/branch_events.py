"""What a RoundMachine asks for on a branch (R4); the other actions are in `node.events`."""

from dataclasses import dataclass

from protocol.messages import SealCertificate, SignedMessage


@dataclass(frozen=True, slots=True)
class Advance:
    """A round is sealed provisionally (R4): the applied state becomes the anchor, and what is final
    is kept. The certificate holds PSEALs.

    `kept` are the roots of the contributions to the round that is final next, as far as they are
    known: it comes back once there is a quorum, and may then list others than the branch did.
    """

    certificate: SealCertificate
    was_listed: bool
    kept: frozenset[bytes]
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Confirm:
    """The first round of the own branch is final: what was kept goes on by its result.

    `commits` are those that it lists, as far as they are known.
    """

    certificate: SealCertificate
    commits: tuple[SignedMessage, ...]


@dataclass(frozen=True, slots=True)
class FallBack:
    """The branch is given up: the last final state is the anchor again."""

    final: SealCertificate
    lost: SealCertificate
    """The head of the branch."""
