"""A disk without space, for this process: files beyond a size are refused by the system."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Inside, a write behind byte `size` of any file fails with EFBIG.

    Some releases of Python keep what such a write left of a module's compiled code, and that module
    is never imported again (CPython issue 126606): inside, nobody compiles to disk, children
    neither.
    """
    resource = pytest.importorskip("resource", reason="only POSIX limits the size of files")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with (
            patch.object(sys, "dont_write_bytecode", True),
            patch.dict("os.environ", PYTHONDONTWRITEBYTECODE="1"),
        ):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
