"""How an error of the network process is told to a user's process, and raised there again."""

from collections.abc import Iterator

from protocol.errors import BarnraiseError, ManifestMismatch
from training.channel.frames import Failed

_MESSAGE_CHARACTERS_MAX = 8192
"""Far below a frame's bound; a trace in it stays readable."""


def failure_frame(error: BarnraiseError) -> Failed:
    """The frame that says why the network process ends."""
    return Failed(
        kind=type(error).__name__,
        message=str(error)[:_MESSAGE_CHARACTERS_MAX],
        field=error.field if isinstance(error, ManifestMismatch) else "",
    )


def error_of(failed: Failed) -> BarnraiseError:
    """The error that `failure_frame` was made of, of the same class.

    A class that this version does not know becomes a BarnraiseError with its name in the message.
    """
    kinds = {kind.__name__: kind for kind in _kinds(BarnraiseError)}
    kind = kinds.get(failed.kind)
    if kind is None:
        return BarnraiseError(f"{failed.kind}: {failed.message}")
    if kind is ManifestMismatch:
        # Its constructor words the message anew, and this one is worded already.
        mismatch = ManifestMismatch.__new__(ManifestMismatch, failed.message)
        mismatch.field = failed.field
        return mismatch
    return kind(failed.message)


def _kinds(kind: type[BarnraiseError]) -> Iterator[type[BarnraiseError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)
