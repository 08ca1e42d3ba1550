"""Two nodes of different wire versions: found out before anything else is read, and said to both.

The first field of a hello and of a manifest is the wire version, in every version that there was or
will be. So it is read even where nothing behind it can be.
"""

import msgpack

from protocol.errors import WireVersionError

PEEKED_BYTES_MAX = 64
"""Heads of nested lists and one number: more than any version needs."""

HELLO_LISTS, MANIFEST_LISTS = 1, 2
"""So many lists are opened before the version: a signed manifest holds a manifest."""


def peek_version(data: bytes, lists: int) -> int | None:
    """The wire version at the head of an encoded hello or manifest; None where there is none.

    They count from 1.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=PEEKED_BYTES_MAX)
    unpacker.feed(data[:PEEKED_BYTES_MAX])
    try:
        for _ in range(lists):
            unpacker.read_array_header()
        version = unpacker.unpack()
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    return version if type(version) is int and version >= 1 else None


def other_version(theirs: int, ours: int) -> WireVersionError:
    """What is said here of a peer, or of a run, of another wire version than ours."""
    who = "upgrade barnraise on this machine" if theirs > ours else "they must upgrade barnraise"
    said = f"the other side speaks wire version {theirs}, this node {ours}: {who}"
    return WireVersionError(said, theirs)


def refusal_of_version(theirs: int, ours: int) -> str:
    """The same, as the other side is to read it. Old nodes print it as it comes."""
    who = "they must upgrade barnraise" if theirs > ours else "upgrade barnraise on your machine"
    return f"that peer speaks wire version {ours}, yours {theirs}: {who}"
