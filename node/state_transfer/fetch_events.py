"""What core and edge of a node say to each other while a state is fetched: see `node.events`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.frames import Bulk
from protocol.identity import PeerId
from protocol.messages import SealCertificate

# Actions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchState:
    """Gather the state cells of that seal: what arrives, and what is here already.

    Answer with FetchBegun, then Fetched, and at the end StateReady or StateFailed. The cells are
    asked for by the core.
    """

    certificate: SealCertificate


@dataclass(frozen=True, slots=True)
class FetchSteps:
    """Gather the results of these rounds, which follow upon the own head, and take the steps.

    Answer as to FetchState, for the last of them; with StepFailed where a result is wrong.
    """

    certificates: tuple[SealCertificate, ...]


FetchOrder = FetchState | FetchSteps

# Events ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchBegun:
    """By subject the cells of the wanted state, or results, that are here; `basis` is its seal's
    digest. Answers FetchState and FetchSteps."""

    basis: bytes
    held: Mapping[bytes, Collection[int]]


@dataclass(frozen=True, slots=True)
class CellsFetched:
    """Cells that were fetched are checked and kept; `subject` is the digest of their seal."""

    peer: PeerId
    subject: bytes
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FetchedWrong:
    """A peer sent a cell that is not of the sealed state; the fault is told apart from this."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class NotServed:
    """A peer asked for a state or step of which nothing is here: the core tells it so."""

    peer: PeerId
    bulk: Bulk
    subject: bytes


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The result that was fetched for that seal does not lead to its state."""

    subject: bytes


@dataclass(frozen=True, slots=True)
class StateReady:
    """The state of the certified seal is assembled and in place; answers FetchState, FetchSteps.

    `results` names the LISTs whose results were put into the store with it.
    """

    certificate: SealCertificate
    results: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class StateFailed:
    """The source did not deliver the state of that seal."""

    basis: bytes


FetchEvent = (
    FetchBegun | CellsFetched | FetchedWrong | NotServed | StepFailed | StateReady | StateFailed
)
