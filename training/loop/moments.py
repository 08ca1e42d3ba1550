"""Moments of a large model on the disk, written beside the rounds in a file of their own.

    moments.safetensors    by parameter and moment, those of the newest write that was finished

Nothing that was signed depends on them, so a crash may cost the newest: a trainer that starts anew
goes on with those of some minutes ago. They are written in a thread, from where they lie, while
training goes on: one tensor after the other, and while one is read no step changes any. Of one
parameter the second moment is written behind the first and is never the older one, so that no step
by them is larger than it should be.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from protocol.errors import CheckpointError
from training.files.tensor_file import TensorFile, read_tensors, write_tensors
from training.loop.sums import MOMENTS_APART_S, MOMENTS_FILE

logger = logging.getLogger(__name__)


class _Gate:
    """Steps go first: who reads moments waits for as long as one is due."""

    def __init__(self) -> None:
        self._turn, self._held = threading.Lock(), threading.Lock()

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Held while moments change."""
        with self._turn, self._held:
            yield

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Held while one tensor is read."""
        with self._turn:
            pass
        with self._held:
            yield


class MomentsFile:
    """The moments of one trainer in one folder; `words` say whose they are."""

    def __init__(
        self,
        folder: Path,
        words: Mapping[str, str],
        *,
        apart_s: float = MOMENTS_APART_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = folder / MOMENTS_FILE
        self._words, self._apart_s, self._clock = dict(words), apart_s, clock
        self._gate = _Gate()
        self._begun_s: float | None = None
        self._due: TensorFile | None = None
        self._thread: threading.Thread | None = None

    def round_ended(self, moments: Mapping[str, Tensor], words: Mapping[str, str]) -> None:
        """The moments as they lie, which go on to change: written with the next step if those on
        the disk are old."""
        is_old = self._begun_s is None or self._clock() - self._begun_s > self._apart_s
        if is_old and moments and not self.is_writing:
            named = {_turned(name): tensor for name, tensor in moments.items()}
            self._due = TensorFile(named, {**self._words, **words})

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Held while the moments change."""
        due, self._due = self._due, None
        if due is not None:
            # Now, not with the contribution: then the disk has the results of the round to write,
            # and everybody waits for those.
            self._begun_s = self._clock()
            self._thread = threading.Thread(target=self._write, args=(due,), daemon=True)
            self._thread.start()
        with self._gate.updating():
            yield

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Until no write is under way."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, due: TensorFile) -> None:
        try:
            write_tensors(self.path, due, guard=self._gate.reading)
        except OSError as error:
            # They are no part of any promise: those before stand, and the next round tries again.
            self._begun_s = None
            logger.warning("moments not written reason=%s", error)

    def read(self, *, tensors_max: int) -> TensorFile | None:
        """What was written last, under the names that were given; None if it is not there, not
        whole or another's."""
        if not self.path.exists():
            return None
        try:
            found = read_tensors(self.path, tensors_max=tensors_max)
        except CheckpointError as error:
            logger.warning("moments skipped reason=%s", error)
            return None
        if any(found.metadata.get(key) != word for key, word in self._words.items()):
            logger.warning("moments skipped reason=%s is of another run", self.path)
            return None
        return TensorFile({_turned_back(n): t for n, t in found.tensors.items()}, found.metadata)


def _turned(name: str) -> str:
    """`parameter/moment` of `moment/parameter`: tensors are written in the order of their names."""
    moment, _, parameter = name.partition("/")
    return f"{parameter}/{moment}"


def _turned_back(name: str) -> str:
    parameter, _, moment = name.rpartition("/")
    return f"{moment}/{parameter}"
