"""What is fuzzed: a decoder, valid examples of what it reads, and what it promises."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from protocol import limits

STACK_BYTES = 64 * limits.KIB
"""What reading costs beside its input: an unpacker has 41 KiB of its own."""

PACKER_BYTES = 256 * limits.KIB
"""Whoever compares canonical bytes, or needs a manifest's digest, packs once more: the packer of
msgpack reserves so much, and touches what it needs."""

FILE_BYTES = 128 * limits.KIB
"""Buffers of file objects, which are as large as the file system's blocks, and of the parsers."""

MANIFEST_BYTES = FILE_BYTES + PACKER_BYTES + limits.MANIFEST_BYTES_MAX
"""Of reading a manifest's file: a read of at most so many bytes reserves them."""

JSON_FACTOR = 100
"""Per byte of JSON: an empty list of two bytes is an object of 56, a key with a map 300."""

Read = Callable[[bytes, Path], object]
"""Gives bytes to a decoder; where it reads a file, one in this folder."""


def _as_it_is(body: bytes) -> bytes:
    return body


def _none() -> tuple[bytes, ...]:
    return ()


def _no_trees() -> tuple[object, ...]:
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder.

    `covers` names the library's functions that are on trial. `examples` are valid inputs, made when
    they are first asked for. `wrap` closes an envelope around a mutated body, such as a checksum:
    without it hardly any mutant would get behind the check. `trees` are valid inputs as JSON values
    and `dump` makes bytes of a mutated one. Whatever comes, no exception but `errors`, and no more
    memory than `memory_base` and `memory_factor` per byte of input.
    """

    name: str
    covers: tuple[str, ...]
    read: Read
    errors: tuple[type[Exception], ...]
    examples: Callable[[], tuple[bytes, ...]] = _none
    trees: Callable[[], tuple[object, ...]] = _no_trees
    dump: Callable[[object], bytes] | None = None
    wrap: Callable[[bytes], bytes] = _as_it_is
    memory_base: int = STACK_BYTES
    memory_factor: int = 4
    weight: int = 1
    """How many times dearer than most; it gets so many times fewer inputs."""

    def attempt(self, data: bytes, folder: Path) -> bool:
        """Whether the decoder took `data`; it may refuse it only with one of its errors."""
        try:
            self.read(data, folder)
        except self.errors:
            return False
        return True

    def valid(self) -> Iterator[bytes]:
        """Inputs that the decoder must take."""
        yield from (self.wrap(example) for example in self.examples())
        if self.dump is not None:
            yield from (self.dump(tree) for tree in self.trees())


def from_file(read: Callable[[Path], object], name: str) -> Read:
    """A decoder of files: each input is written to `name`, then read."""

    def write_and_read(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return write_and_read


def from_bytes(read: Callable[[bytes], object]) -> Read:
    """A decoder of bytes."""
    return lambda data, folder: read(data)


def from_text(read: Callable[[str], object]) -> Read:
    """A decoder of text; bytes that are no UTF-8 come as the surrogates that a command line has."""
    return lambda data, folder: read(data.decode("utf-8", "surrogateescape"))
