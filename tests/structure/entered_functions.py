"""Records which functions of a source tree a process enters, and when.

`tests.structure.trip` puts a copy of this file, named `sitecustomize.py`, on the path of the
processes that it watches, because Python imports a module of that name at every start. The file
therefore imports nothing of this project. Each process appends to a file of its own. One line says
that a function was entered in a bucket of time: the bucket, the path, the function.
"""

import atexit
import inspect
import os
import sys
import threading
import time
from types import CodeType, FrameType

TREE = "ENTERED_FUNCTIONS_OF"
"""The environment variable that names the root of the tree."""
RECORDS = "ENTERED_FUNCTIONS_INTO"
"""The environment variable that names the folder of the records."""
BUCKETS_PER_S = 1000
"""A function that is entered several times within one bucket has one line for it."""
LINES_PER_WRITE = 1000

BACKWARD = "torch backward"
"""The line of torch's `Tensor.backward`, which marks the steps of a trainer."""


class Recorder:
    """The profile function of a process, and what it has recorded."""

    def __init__(self, tree: str, records: str) -> None:
        self._tree = os.path.join(tree, "")
        self._file = os.path.join(records, f"{os.getpid()}.txt")
        self._pid = os.getpid()
        self._names: dict[tuple[str, CodeType], str | None] = {}
        self._last: dict[str, int] = {}
        self._lines: list[str] = []

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Record the call of a Python function; other events do not matter."""
        if event != "call":
            return
        # Codes of two files may be equal: where they are from is not compared.
        key = frame.f_code.co_filename, frame.f_code
        if key in self._names:
            name = self._names[key]
        else:
            name = self._names[key] = self._name(frame)
        if name is None:
            return
        bucket = int(time.monotonic() * BUCKETS_PER_S)
        if self._last.get(name) != bucket:
            self._last[name] = bucket
            self._lines.append(f"{bucket} {name}\n")
            if len(self._lines) >= LINES_PER_WRITE:
                self.write()

    def _name(self, frame: FrameType) -> str | None:
        """The path in the tree and the function; None for code that is not recorded."""
        code = frame.f_code
        path = code.co_filename
        if path.startswith("<"):
            # The methods that `dataclass` generates belong to no file: ask for their module's.
            path = str(frame.f_globals.get("__file__", ""))
        # Modules and bodies of classes run once, at import; only functions have this flag.
        is_function = code.co_flags & inspect.CO_OPTIMIZED
        if code.co_name == "backward" and path.endswith(os.path.join("torch", "_tensor.py")):
            return BACKWARD
        within = path[len(self._tree) :] if path.startswith(self._tree) else ""
        # An environment with the libraries may lie in the tree, in a hidden folder.
        if within and not within.startswith(".") and is_function:
            return f"{within} {code.co_qualname}"
        return None

    def write(self) -> None:
        """Append the lines that are not yet in the file."""
        lines, self._lines = self._lines, []
        # A forked child must not write the lines of its parent again.
        if lines and os.getpid() == self._pid:
            with open(self._file, "a", encoding="utf-8") as file:
                file.writelines(lines)


if __name__ == "sitecustomize":
    _recorder = Recorder(os.environ[TREE], os.environ[RECORDS])
    atexit.register(_recorder.write)
    threading.setprofile(_recorder.profile)
    sys.setprofile(_recorder.profile)
