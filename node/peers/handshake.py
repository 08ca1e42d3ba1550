"""Hello: the first frames of a control stream. Wire version and run must agree."""

from contextlib import suppress

import trio

from node.peers.access import Access
from node.text.shown import shown
from protocol import limits
from protocol.errors import (
    DecodeError,
    LimitError,
    ManifestMismatch,
    NetworkError,
    PeerError,
    ProofError,
    RefusedError,
    WireVersionError,
)
from protocol.frames import HELLO_TYPE, Hello, Refusal, Welcome, decode_frame, encode_frame
from protocol.identity import Signer
from protocol.manifest import (
    HELLO_LISTS,
    WIRE_VERSION,
    RunManifest,
    SignedManifest,
    first_difference,
    open_manifest,
    other_version,
    peek_version,
    refusal_of_version,
)
from protocol.transport import Stream
from protocol.wire import encode

HELLO_S = 5.0
"""For both hellos; a peer that takes longer is not there."""


FAREWELL_S = 2.0
"""For a refusal to arrive before the stream ends."""

REASON_CHARACTERS_MAX = 256
"""As many as a refusal may have bytes."""


async def shake_hands(
    stream: Stream,
    signed: SignedManifest,
    addresses: tuple[str, ...],
    signer: Signer,
    access: Access | None = None,
    started_ms: int = 0,
) -> Hello:
    """Exchange hellos; the peer's, if it is of our run and `access` lets it in.

    Raises WireVersionError if it speaks another wire version, and tells it so; ManifestMismatch
    naming the first differing field if it is of another run, RefusedError if it refuses us,
    ProofError if we do not let it in, DecodeError or LimitError for bytes that are no hello,
    NetworkError and trio.TooSlowError if it does not answer.
    """
    run = signed.manifest.digest
    hello = Hello(
        wire=WIRE_VERSION,
        run=run,
        addresses=addresses[: limits.ADDRESSES_PER_PEER_MAX],
        credential=b"" if access is None or access.is_for_all else access.credential,
        started_ms=started_ms,
    )
    with trio.fail_after(HELLO_S):
        await stream.send_frame(encode_frame(hello))
        data = await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX)
        await _end_with_other_version(stream, data)
        theirs = decode_frame(data)
        if isinstance(theirs, Hello) and (theirs.wire, theirs.run) == (WIRE_VERSION, run):
            if access is not None and not access.is_for_all:
                await _let_in(stream, theirs, access)
            return theirs
        if isinstance(theirs, Hello):
            await stream.send_frame(encode_frame(_refusal(signed)))
            theirs = decode_frame(await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX))
        if isinstance(theirs, Refusal):
            raise refusal_error(theirs, signed.manifest, signer)
        raise DecodeError(f"expected a hello, got {type(theirs).__name__}")


async def _end_with_other_version(stream: Stream, data: bytes) -> None:
    """Tell a peer whose hello is of another wire version who must upgrade, and raise it here."""
    version = peek_version(data[1:], HELLO_LISTS) if data[:1] == HELLO_TYPE else None
    if version is None or version == WIRE_VERSION:
        return
    # Without our manifest, which the other one could not read.
    refusal = Refusal(reason=refusal_of_version(version, WIRE_VERSION), manifest=b"")
    await stream.send_frame(encode_frame(refusal))
    with suppress(NetworkError, LimitError), trio.move_on_after(FAREWELL_S):
        # What it says does not matter; once it has spoken, it has heard what we said.
        await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX)
    raise other_version(version, WIRE_VERSION)


async def _let_in(stream: Stream, theirs: Hello, access: Access) -> None:
    """Tell the peer whether it may come in, and hear whether we may."""
    why = access.refusal(stream.peer, theirs.credential)
    answer = Refusal(reason=why[:200], manifest=b"") if why else Welcome()
    await stream.send_frame(encode_frame(answer))
    if why:
        raise ProofError(f"not let in: {why}")
    heard = decode_frame(await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX))
    if isinstance(heard, Refusal):
        raise RefusedError(shown(heard.reason, REASON_CHARACTERS_MAX))
    if not isinstance(heard, Welcome):
        raise DecodeError(f"expected a welcome, got {type(heard).__name__}")


def _refusal(signed: SignedManifest) -> Refusal:
    data = encode(signed)
    if len(data) > limits.CONTROL_FRAME_BYTES_MAX - 1024:
        data = b""
    return Refusal(reason="another run", manifest=data)


def refusal_error(
    refusal: Refusal, ours: RunManifest, signer: Signer
) -> ManifestMismatch | RefusedError:
    """What the refusal means for the user."""
    reason = shown(refusal.reason, REASON_CHARACTERS_MAX)
    if refusal.manifest:
        try:
            theirs = open_manifest(refusal.manifest, signer)
        except WireVersionError as error:
            return error
        except PeerError:
            return RefusedError(f"{reason}; its manifest is no good")
        mismatch = first_difference(ours, theirs)
        if mismatch is not None:
            return mismatch
    return RefusedError(reason)
