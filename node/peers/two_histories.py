"""What a node knows of its run's history from elsewhere: the seal of the invite link, kept in the
run's folder; and the proof of two histories, after which it starts only with such a seal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from node.holdings.journal import Journal
from node.state.folder import write_atomically
from protocol import limits
from protocol.catching_up.chain_sources import NamedSeal
from protocol.errors import DecodeError, StateError, TwoHistoriesError
from protocol.histories import TwoHistories
from protocol.messages import Round, SealCertificate
from protocol.wire import Digest, Size, decode, encode

TOLD_FILE = "told-seal"
PROOF_FILE = "two-histories"
_ANEW = "move that folder away and join again by the link"
_PROOF_BYTES_MAX = 2 * limits.CONTROL_FRAME_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ToldFile:
    """The seal of an invite link, as it lies on the disk."""

    round: Round
    digest: Digest


@dataclass(frozen=True, slots=True)
class _Proof:
    certificates: Annotated[tuple[SealCertificate, ...], Size(2, 2)]


def keep_told(folder: Path, told: NamedSeal) -> None:
    """Remember the seal of an invite link; the latest one, for it covers all before it."""
    known = read_told(folder)
    if known is None or told.round >= known.round:
        write_atomically(folder / TOLD_FILE, encode(ToldFile(told.round, told.digest)))


def read_told(folder: Path) -> NamedSeal | None:
    """The seal that an invite link named, if one did."""
    path = folder / TOLD_FILE
    try:
        with path.open("rb") as file:
            found = decode(ToldFile, file.read(limits.KIB + 1), max_bytes=limits.KIB)
    except FileNotFoundError:
        return None
    except (OSError, DecodeError) as error:
        raise StateError(f"cannot read {path}: {error}; join again by a fresh link") from error
    return NamedSeal(found.round, found.digest)


def keep_two_histories(folder: Path, found: TwoHistories) -> Path:
    """Write both certificates; whoever has the manifest can check them alone."""
    path = folder / PROOF_FILE
    write_atomically(path, encode(_Proof((found.ours, found.theirs))))
    return path


def two_histories_text(path: Path, round_index: int) -> str:
    """What a person is told, and what to do."""
    return (
        f"peers tell two histories of this run, which part in round {round_index}, and each is "
        "signed by those who voted then: somebody has keys that are not its own. Nothing was taken "
        f"of either; both certificates are in {path}. Ask somebody whom you trust to have been "
        "there for a fresh invite link: it names a seal of the right history, and barnraise join "
        "with it goes on"
    )


def check_history(folder: Path, journal: Journal) -> NamedSeal | None:
    """The seal that the history must have. Raises TwoHistoriesError where the one on this disk has
    another, or where two were found and no link says which is right."""
    told, path = read_told(folder), folder / PROOF_FILE
    own = journal.read_chain(told.round, 1) if told is not None and told.round else ()
    if told is not None and own and own[0].value.digest != told.digest:
        raise TwoHistoriesError(
            f"the history in {folder} is not the one of the invite link, which has another seal of "
            f"round {told.round}: one of the two is forged. If you trust the link, {_ANEW}"
        )
    if not path.exists():
        return told
    first = _parted_in(path)
    if told is None or told.round < first:
        raise TwoHistoriesError(two_histories_text(path, first))
    if journal.read_chain(first, 1) and not own:
        raise TwoHistoriesError(
            f"the history in {folder} is one of two, which part in round {first}, and does not "
            f"reach to the seal that the invite link names, so that nothing shows which: {_ANEW}"
        )
    return told


def _parted_in(path: Path) -> int:
    try:
        proof = decode(_Proof, path.read_bytes(), max_bytes=_PROOF_BYTES_MAX)
    except (OSError, DecodeError) as error:
        raise StateError(f"cannot read {path}: {error}; move it away if you know why") from error
    return proof.certificates[0].value.round
