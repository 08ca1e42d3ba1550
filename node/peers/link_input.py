"""Where an invite link comes from: the command line, standard input, or a file.

A link into a run for the invited holds a key, and what stands on a command line is shown to every
user of the machine for as long as the command runs.
"""

from pathlib import Path
from typing import BinaryIO

from node.peers.invite import CHARACTERS_MAX, LINK_EXAMPLE
from node.state.ownership import read_secret
from node.text.shown import as_word
from protocol.errors import ConfigError

STANDARD_INPUT = "-"

SHOWN_LINK = (
    "the link holds a key, and other users of this machine can read it in the list of processes: "
    "next time give it with --link-file FILE, or as - on standard input"
)


def read_target(target: str | None, link_file: Path | None, stdin: BinaryIO) -> str:
    """The link or address that a command was given: as an argument, in a file, or, where the
    argument is -, on `stdin`. Raises ConfigError unless it is exactly one of these.
    """
    if (target is None) == (link_file is None):
        raise ConfigError(
            "barnraise join takes one of: a link or an address, - to read it from standard input, "
            f"or --link-file FILE; a link looks like {LINK_EXAMPLE}"
        )
    if link_file is not None:
        try:
            data = read_secret(link_file, CHARACTERS_MAX, "the invite link in")
        except OSError as error:
            raise ConfigError(f"cannot read {link_file}: {error.strerror or error}") from error
        return _text_of(data, as_word(str(link_file)))
    assert target is not None
    if target != STANDARD_INPUT:
        return target
    # One line and not all there is: whoever pastes it ends it with Enter.
    return _text_of(stdin.readline(CHARACTERS_MAX + 1), "standard input")


def _text_of(data: bytes, where: str) -> str:
    if len(data) > CHARACTERS_MAX:
        raise ConfigError(f"what is in {where} is too long for an invite link")
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise ConfigError(f"{where} holds no invite link; one looks like {LINK_EXAMPLE}")
    return text
