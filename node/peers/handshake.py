"""Hello: the first frames of a control stream. Wire version and run must agree."""

import trio

from node.peers.access import Access
from protocol import limits
from protocol.errors import DecodeError, LimitError, ProofError, RefusedError, VersionError
from protocol.frames import (
    Hello,
    Refusal,
    Welcome,
    decode_frame,
    encode_frame,
    hello_version,
)
from protocol.identity import Signer
from protocol.manifest import (
    WIRE_VERSION,
    RunManifest,
    SignedManifest,
    first_difference,
    open_manifest,
)
from protocol.transport import Stream
from protocol.wire import encode

HELLO_S = 5.0
"""For both hellos; a peer that takes longer is not there."""


async def shake_hands(
    stream: Stream,
    signed: SignedManifest,
    addresses: tuple[str, ...],
    signer: Signer,
    access: Access | None = None,
    started_ms: int = 0,
) -> Hello:
    """Exchange hellos; the peer's, if it is of our run and `access` lets it in.

    Raises ManifestMismatch naming the first differing field if it is of another run, RefusedError
    if it refuses us, VersionError if it speaks another wire, ProofError if we do not let it in,
    DecodeError or LimitError for bytes that are no hello, NetworkError and trio.TooSlowError if it
    does not answer.
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
        version = hello_version(data)
        if version is not None and version != WIRE_VERSION:
            await _refuse_version(stream, version)
        theirs = decode_frame(data)
        if isinstance(theirs, Hello) and theirs.run == run:
            if access is not None and not access.is_for_all:
                await _let_in(stream, theirs, access)
            return theirs
        if isinstance(theirs, Hello):
            await stream.send_frame(encode_frame(_refusal(signed)))
            theirs = decode_frame(await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX))
        if isinstance(theirs, Refusal):
            _explain(theirs, signed.manifest, signer)
        raise DecodeError(f"expected a hello, got {type(theirs).__name__}")


async def _refuse_version(stream: Stream, theirs: int) -> None:
    """Tell the peer and raise VersionError: one of the two must be upgraded."""
    is_older = theirs < WIRE_VERSION
    told = f"it speaks wire version {WIRE_VERSION}, and you {theirs}: upgrade "
    told += "yours" if is_older else "it"
    await stream.send_frame(encode_frame(Refusal(reason=told, manifest=b"")))
    which = "the peer's" if is_older else "this"
    raise VersionError(
        f"the peer speaks wire version {theirs}, and this barnraise {WIRE_VERSION}: upgrade {which}"
        " one"
    )


async def _let_in(stream: Stream, theirs: Hello, access: Access) -> None:
    """Tell the peer whether it may come in, and hear whether we may."""
    why = access.refusal(stream.peer, theirs.credential)
    answer = Refusal(reason=why[:200], manifest=b"") if why else Welcome()
    await stream.send_frame(encode_frame(answer))
    if why:
        raise ProofError(f"not let in: {why}")
    heard = decode_frame(await stream.receive_frame(limits.CONTROL_FRAME_BYTES_MAX))
    if isinstance(heard, Refusal):
        raise RefusedError(_printable(heard.reason))
    if not isinstance(heard, Welcome):
        raise DecodeError(f"expected a welcome, got {type(heard).__name__}")


def _printable(reason: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in reason)


def _refusal(signed: SignedManifest) -> Refusal:
    data = encode(signed)
    if len(data) > limits.CONTROL_FRAME_BYTES_MAX - 1024:
        data = b""
    return Refusal(reason="another run", manifest=data)


def _explain(refusal: Refusal, ours: RunManifest, signer: Signer) -> None:
    """Raise what the refusal means for the user."""
    reason = _printable(refusal.reason)
    if refusal.manifest:
        try:
            theirs = open_manifest(refusal.manifest, signer)
        except VersionError:
            raise
        except (DecodeError, LimitError) as error:
            raise RefusedError(f"{reason}; its manifest is malformed") from error
        mismatch = first_difference(ours, theirs)
        if mismatch is not None:
            raise mismatch
    raise RefusedError(reason)
