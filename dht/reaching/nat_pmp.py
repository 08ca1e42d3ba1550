"""NAT-PMP (RFC 6886): what is said to a router that it lead a port to us, and its answers. Pure."""

import ipaddress
import struct
from dataclasses import dataclass

from protocol.errors import DecodeError

PORT = 5351
_VERSION = 0
_OF_ADDRESS, _OF_TCP = 0, 2
_ANSWER = 128
_HEAD = struct.Struct("!BBH")
_ADDRESS = struct.Struct("!BBHI4s")
_MAPPING = struct.Struct("!BBHIHHI")
REPLY_BYTES_MAX = 64

RETRIES_S = (0.25, 0.5, 1.0)
"""How long each packet is waited for; the specification goes on to a minute, for nobody's good."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """The router leads `outer_port` to our `port` for so long."""

    port: int
    outer_port: int
    lease_s: int


def ask_address() -> bytes:
    """Which address do you have outside?"""
    return struct.pack("!BB", _VERSION, _OF_ADDRESS)


def ask_mapping(port: int, outer_port: int, lease_s: int) -> bytes:
    """Lead that outer port, or another, to ours; a lease of 0 s takes it away again."""
    return struct.pack("!BBHHHI", _VERSION, _OF_TCP, 0, port, outer_port, lease_s)


def decode_address(data: bytes) -> str:
    """The router's outer IPv4 address. Raises DecodeError, also where the router says no."""
    _check(data, _OF_ADDRESS, _ADDRESS.size)
    return str(ipaddress.IPv4Address(_ADDRESS.unpack(data)[4]))


def decode_mapping(data: bytes) -> Mapped:
    """What the router did. Raises DecodeError, also where it says no."""
    _check(data, _OF_TCP, _MAPPING.size)
    *_, port, outer_port, lease_s = _MAPPING.unpack(data)
    return Mapped(port, outer_port, lease_s)


def _check(data: bytes, kind: int, num_bytes: int) -> None:
    if len(data) < _HEAD.size:
        raise DecodeError("no answer of NAT-PMP")
    version, said, result = _HEAD.unpack_from(data)
    if version != _VERSION or said != _ANSWER + kind:
        raise DecodeError("an answer to something else")
    if result:
        raise DecodeError(f"the router says no: result {result}")
    if len(data) != num_bytes:
        raise DecodeError(f"{len(data)} bytes instead of {num_bytes}")
