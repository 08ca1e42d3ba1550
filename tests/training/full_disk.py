"""A disk without space, for this process: files beyond a size are refused by the system."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Inside, a write behind byte `size` of any file fails with EFBIG."""
    resource = pytest.importorskip("resource", reason="only POSIX limits the size of files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
