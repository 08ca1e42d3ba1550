"""Evidence as files in a run's folder: whoever is given one can check it alone.

Copies for people. What the node itself goes by is in the replicated state.
"""

from pathlib import Path

from node.state.folder import write_atomically
from node.text.shown import shown
from protocol import limits
from protocol.errors import ConfigError, PeerError, StateError
from protocol.evidence import Evidence, decode_evidence
from protocol.identity import Signer
from protocol.messages import FilledSlot
from protocol.wire import decode

EVIDENCE_FOLDER = "evidence"
FILES_MAX = limits.EVIDENCE_MAX


def save_evidence(folder: Path, evidence: Evidence) -> None:
    """Write it into the folder of evidence of a run; a peer has one file per accusation, however
    often it contradicts itself, and there are FILES_MAX, for keys cost nothing.

    Raises StateError where the disk does not.
    """
    try:
        inside = folder / EVIDENCE_FOLDER
        inside.mkdir(exist_ok=True)
        path = inside / f"{evidence.subject.hex()[:24]}-{evidence.accusation:d}.evidence"
        if path.exists() or len(list(inside.glob("*.evidence"))) < FILES_MAX:
            write_atomically(path, evidence.encoded)
    except OSError as error:
        raise StateError(f"cannot keep evidence: {error.strerror or error}") from error


def saved_evidence(folder: Path) -> list[Path]:
    """The files of a run's folder, by name."""
    return sorted((folder / EVIDENCE_FOLDER).glob("*.evidence"))[:FILES_MAX]


def read_evidence(path: Path, signer: Signer) -> Evidence:
    """The evidence in a file, checked by its signatures alone.

    Raises ConfigError for a file that cannot be read, or proves nothing.
    """
    try:
        with path.open("rb") as file:
            data = file.read(limits.EVIDENCE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        plain = decode(Evidence, data, max_bytes=limits.EVIDENCE_BYTES_MAX)
        return decode_evidence(data, plain.run, signer)
    except PeerError as error:
        raise ConfigError(f"{path} proves nothing: {shown(str(error))}") from error


def place_of(evidence: Evidence) -> str:
    """Where the subject contradicted itself or others, in words; empty where it was no round."""
    try:
        slot = decode(FilledSlot, evidence.second).slot
    except PeerError:
        return ""
    return f"{slot.kind.name} of round {slot.round}, attempt {slot.attempt}"
