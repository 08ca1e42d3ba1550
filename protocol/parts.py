"""Bytes that wait in parts, to be taken from where they lie."""

from collections import deque
from collections.abc import Iterator


def taken(waiting: deque[memoryview], num_bytes: int) -> Iterator[memoryview]:
    """The first `num_bytes` bytes of those that wait, no fewer than so many, part by part."""
    while num_bytes:
        part = waiting.popleft()
        if len(part) > num_bytes:
            waiting.appendleft(part[num_bytes:])
            part = part[:num_bytes]
        num_bytes -= len(part)
        yield part
