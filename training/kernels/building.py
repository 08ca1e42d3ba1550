"""Compiles `kernels.c` where there is a C compiler: `python training/kernels/building.py`.

An installation does it, too (`hatch_build.py` in the root). Only Python's own library is used here:
at that time there may be nothing else. Neither the headers of Python nor those of the C library are
needed, and a machine without a compiler lacks nothing but speed.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("kernels.c")
_INCLUDED = "products.h"
LIBRARY = Path(__file__).with_name("_kernels.so")

VARIABLE = "BARNRAISE_KERNELS"
"""`numpy` there: nothing is built, and what was built is not used."""

_FLAGS = (
    *("-O3", "-std=c11", "-fPIC", "-shared", "-fvisibility=default"),
    # One rounding per operation, as numpy has it: the bits of all machines are the same.
    *("-ffp-contract=off", "-fno-fast-math"),
    # What a loop may not be made of many at once for: nobody looks at the flags of an operation.
    *("-fno-math-errno", "-fno-trapping-math"),
)
_CLONES = ("-DBARNRAISE_CLONES",)
"""One function for each of three generations of x86-64, chosen when the library is loaded: GCC and
clang with glibc."""

_TIMEOUT_S = 120.0
_TRIAL = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.barnraise_source.restype = ctypes.c_char_p
size = ctypes.c_size_t
library.barnraise_peaks.argtypes = [ctypes.c_void_p, size, size, size, ctypes.c_void_p]
numbers, peaks = (ctypes.c_float * 100)(*range(100)), (ctypes.c_float * 1)()
library.barnraise_peaks(numbers, 100, 1, 100, peaks)
assert library.barnraise_source() == sys.argv[2].encode() and peaks[0] == 99.0
"""


def source_digest(source: Path = SOURCE) -> str:
    """What a library is of: one that was built of another source is not used."""
    whole = source.read_bytes() + source.with_name(_INCLUDED).read_bytes()
    return hashlib.sha256(whole).hexdigest()


def build(library: Path = LIBRARY, source: Path = SOURCE) -> str:
    """Compile, try, and put in place; what was there before stays where nothing works.

    Returns a line for people: the compiler, or why there is none of it.
    """
    if os.environ.get(VARIABLE) == "numpy":
        return f"not built: {VARIABLE} says numpy"
    if os.name != "posix":
        return "not built: numpy alone on this system"
    failures = []
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building-") as folder:
        made = Path(folder) / library.name
        for compiler, flags in _attempts():
            failure = _compile([*compiler, *flags], source, made)
            if failure is None:
                # A process that has the old one goes on with it: its file lives as long.
                made.replace(library)
                return f"built with {compiler[0]}"
            failures.append(f"{compiler[0]}: {failure}")
    return f"not built: {failures[0]}" if failures else "not built: no C compiler (cc, gcc, clang)"


def _attempts() -> Iterator[tuple[list[str], tuple[str, ...]]]:
    named = shlex.split(os.environ.get("CC", ""))
    found = [path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))]
    for compiler in [named] if named else [[path] for path in found]:
        yield compiler, (*_FLAGS, *_CLONES)
        yield compiler, _FLAGS


def _compile(command: list[str], source: Path, made: Path) -> str | None:
    """None, or the last words of what failed."""
    digest = source_digest(source)
    definition = f'-DBARNRAISE_SOURCE="{digest}"'
    for arguments in (
        [*command, definition, str(source), "-o", str(made)],
        # In a process of its own: a processor may refuse what the compiler made.
        [sys.executable, "-c", _TRIAL, str(made), digest],
    ):
        try:
            done = subprocess.run(
                arguments, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode:
            words = done.stderr.strip().splitlines()
            return words[-1] if words else f"exit status {done.returncode}"
    return None


if __name__ == "__main__":
    sys.stdout.write(f"kernels: {build()}\n")
