"""Files of a simulated machine: what was not synced is lost, torn or reordered with the power.

Every file and folder is there twice: as processes see it, and as it lies on the disk. Between the
two stand writes, cuts and names that nobody synced. `power_off` decides for each what became of it.

Harsher than any one file system: the name of a synced file is lost unless its folder was synced,
and of two names in a folder the later may be there without the earlier. A sync of a file that fails
loses what it was for. Not modelled: bytes of other files in the place of lost ones.
"""

import errno
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from pathlib import Path

from training.files.durable import Bytes


class FileBytes:
    """The bytes of one file. `data` is what processes see. What lies on the disk is its beginning,
    up to `synced`, until that is overwritten or a sync fails: then `apart` has those bytes.
    """

    __slots__ = ("apart", "data", "has_dropped", "is_flipped", "synced", "unsynced")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced = len(data)
        self.apart: bytearray | None = None
        self.unsynced: list[tuple[int, int, bytes | None]] = []
        """Number, offset and bytes of each write; without bytes a cut to that size."""
        self.has_dropped = False
        """Whether a sync failed, so that no later one makes the two equal."""
        self.is_flipped = False
        """Whether a bit is another one than was written, perhaps in one of the two alone."""

    def stored(self) -> bytearray:
        """What lies on the disk, to be changed."""
        if self.apart is None:
            self.apart = self.data[: self.synced]
        return self.apart

    def note(self, number: int, offset: int, data: bytes | None) -> None:
        """`data` is about to change from there on."""
        if offset < self.synced:
            self.stored()
        self.unsynced.append((number, offset, data))

    def settle(self) -> None:
        """All that was written lies on the disk now."""
        if self.has_dropped or self.is_flipped:
            for _, offset, data in self.unsynced:
                self.store(offset, data)
        else:
            self.apart, self.synced = None, len(self.data)
        self.unsynced.clear()

    def drop(self) -> None:
        """A sync has failed: what it was for is lost."""
        self.stored()
        self.unsynced.clear()
        self.has_dropped = True

    def store(self, offset: int, data: bytes | None) -> None:
        """A write, or without bytes a cut, reaches the disk."""
        stored = self.stored()
        if data is None:
            del stored[offset:]
        if len(stored) < offset:
            stored += bytes(offset - len(stored))
        if data is not None:
            stored[offset : offset + len(data)] = data

    def restart(self) -> None:
        """Processes see what lies on the disk."""
        self.data = self.stored()
        self.apart, self.synced = None, len(self.data)
        self.has_dropped = self.is_flipped = False
        self.unsynced.clear()


SECTOR_BYTES = 512

Before = Callable[[str, Path], None]
"""Called with the operation and its path before each; raises the OSError that it is to end with."""


class Fate(Enum):
    """What became of something unsynced when the power went. A name is there or not."""

    LOST = "lost"
    WHOLE = "whole"
    PREFIX = "its beginning"
    SECTORS = "some of its sectors"
    ZEROS = "its length alone"


class _Folder:
    __slots__ = ("names", "stored", "unsynced")

    def __init__(self) -> None:
        self.names: dict[str, FileBytes | _Folder] = {}
        self.stored: dict[str, FileBytes | _Folder] = {}
        self.unsynced: list[tuple[int, str, str, FileBytes | _Folder | None]] = []
        """Number, name that goes, name that comes, and what it names."""

    def settle(self) -> None:
        for _, old, new, entry in self.unsynced:
            self.store(old, new, entry)
        self.unsynced.clear()

    def store(self, old: str, new: str, entry: "FileBytes | _Folder | None") -> None:
        self.stored.pop(old, None)
        if entry is not None:
            self.stored[new] = entry

    def restart(self) -> None:
        self.names = dict(self.stored)
        self.unsynced.clear()


class SimFile:
    """See OpenFile."""

    __slots__ = ("_file", "_files", "_path")

    def __init__(self, files: "SimFiles", path: Path, file: FileBytes) -> None:
        self._files, self._path, self._file = files, path, file

    def write(self, data: Bytes) -> None:
        """See OpenFile."""
        self.put(len(self._file.data), bytes(data))

    def put(self, start: int, data: Bytes) -> None:
        """See OpenFile."""
        offset, data = start, bytes(data)
        file, files = self._file, self._files
        missing = offset - len(file.data)
        if missing > 0:
            file.data += bytes(missing)
        try:
            files.begin("write", self._path)
        except OSError:
            part = data[: files.stream.randrange(len(data) + 1)]
            file.note(files.note(file), offset, part)
            file.data[offset : offset + len(part)] = part
            raise
        file.note(files.note(file), offset, data)
        if offset == len(file.data):
            file.data += data
        else:
            file.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        """See OpenFile."""
        file = self._file
        try:
            self._files.begin("sync", self._path)
        except OSError:
            file.drop()
            raise
        file.settle()
        self._files.forget(file)

    def relieve(self) -> None:
        """See OpenFile; here that is a sync."""
        self.sync()

    def truncate(self, size: int) -> None:
        """See OpenFile."""
        self._files.begin("truncate", self._path)
        file = self._file
        file.note(self._files.note(file), size, None)
        del file.data[size:]

    def close(self) -> None:
        """See OpenFile."""


class SimFiles:
    """See Files. `before` may make an operation fail; `stream` decides what is left of it."""

    def __init__(self, stream: random.Random, *, before: Before | None = None) -> None:
        self.stream = stream
        self.before = before
        self._root = _Folder()
        self._folders = {str(Path("/")): self._root}
        self._changed: dict[FileBytes | _Folder, None] = {}
        """What is not on the disk as processes see it."""
        self._count = 0

    # Files --------------------------------------------------------------------------------------

    def append(self, path: Path) -> SimFile:
        """See Files."""
        folder, name = self._place(path)
        entry = folder.names.get(name)
        return self._opened(path, entry) if isinstance(entry, FileBytes) else self._made(path)

    def create(self, path: Path) -> SimFile:
        """See Files."""
        folder, name = self._place(path)
        entry = folder.names.get(name)
        if not isinstance(entry, FileBytes):
            return self._made(path)
        opened = self._opened(path, entry)
        opened.truncate(0)
        return opened

    def _opened(self, path: Path, file: FileBytes) -> SimFile:
        self.begin("open", path)
        return SimFile(self, path, file)

    def _made(self, path: Path) -> SimFile:
        self.begin("create", path)
        file = FileBytes()
        folder, name = self._place(path)
        self._name(folder, "", name, file)
        return SimFile(self, path, file)

    def overwrite(self, path: Path, start: int, data: Bytes) -> None:
        """See Files."""
        opened = self._opened(path, self._file(path))
        opened.put(start, bytes(data))
        opened.sync()

    def content(self, path: Path, start: int = 0, size: int = -1) -> bytes:
        """See Files."""
        data = self._file(path).data
        with memoryview(data) as seen:  # Else it would be copied twice.
            return bytes(seen[start : len(data) if size < 0 else start + size])

    def exists(self, path: Path) -> bool:
        """See Files."""
        text = str(path)
        place, name = _split(text)
        folder = self._folders.get(place)
        return text in self._folders or (folder is not None and name in folder.names)

    def names(self, folder: Path) -> list[str]:
        """See Files."""
        return sorted(self._folder(str(folder)).names)

    def rename(self, path: Path, to: Path) -> None:
        """See Files."""
        (place, old), (to_place, new) = _split(str(path)), _split(str(to))
        assert place == to_place, "within one folder"
        self.begin("rename", to)
        self._name(self._folder(place), old, new, self._file(path))

    def unlink(self, path: Path) -> None:
        """See Files."""
        folder, name = self._place(path)
        if name in folder.names:
            self.begin("unlink", path)
            self._name(folder, name, "", None)

    def make_folder(self, folder: Path) -> None:
        """See Files."""
        text = str(folder)
        if text not in self._folders:
            self.begin("make folder", folder)
            made = self._folders[text] = _Folder()
            around, name = self._place(folder)
            self._name(around, "", name, made)

    def sync_folder(self, folder: Path) -> None:
        """See Files; of one that fails the names may still be synced later."""
        self.begin("sync folder", folder)
        found = self._folder(str(folder))
        found.settle()
        self.forget(found)

    def begin(self, operation: str, path: Path) -> None:
        """An operation begins; raises what it is to fail with."""
        if self.before is not None:
            self.before(operation, path)

    def note(self, changed: "FileBytes | _Folder") -> int:
        """Something is unsynced; its number in the order of all that is."""
        self._changed[changed] = None
        self._count += 1
        return self._count

    def forget(self, synced: "FileBytes | _Folder") -> None:
        """It is on the disk as processes see it."""
        if not (isinstance(synced, FileBytes) and synced.has_dropped):
            self._changed.pop(synced, None)

    def _folder(self, path: str) -> _Folder:
        folder = self._folders.get(path)
        if folder is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return folder

    def _place(self, path: Path) -> tuple[_Folder, str]:
        """The folder that a path is in, and what it is called there."""
        place, name = _split(str(path))
        return self._folder(place), name

    def _file(self, path: Path) -> FileBytes:
        folder, name = self._place(path)
        entry = folder.names.get(name)
        if not isinstance(entry, FileBytes):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return entry

    def _name(
        self, folder: _Folder, old: str, new: str, entry: "FileBytes | _Folder | None"
    ) -> None:
        folder.names.pop(old, None)
        if entry is not None:
            folder.names[new] = entry
        folder.unsynced.append((self.note(folder), old, new, entry))

    # Disasters ----------------------------------------------------------------------------------

    @property
    def num_unsynced(self) -> int:
        """Writes, cuts and names that the power would take along."""
        return sum(len(changed.unsynced) for changed in self._changed)

    def power_off(self, fates: Sequence[Fate]) -> None:
        """The machine goes off and on again; a fate for each of `num_unsynced`, oldest first.

        Whoever had a file open is gone.
        """
        settles: list[tuple[int, Callable[[Fate], None]]] = []
        for changed in self._changed:
            if isinstance(changed, _Folder):
                settles += [
                    (number, partial(_store_name, changed, old, new, entry))
                    for number, old, new, entry in changed.unsynced
                ]
            else:
                settles += [
                    (number, partial(self._store, changed, offset, data))
                    for number, offset, data in changed.unsynced
                ]
        settles.sort(key=lambda settle: settle[0])
        for (_, settle), fate in zip(settles, fates, strict=True):
            settle(fate)
        for changed in self._changed:
            changed.restart()
        self._changed.clear()
        self._folders = dict(_folders_in(Path("/"), self._root))

    def _store(self, file: FileBytes, offset: int, data: bytes | None, fate: Fate) -> None:
        if fate is Fate.LOST:
            return
        if data is None or fate is Fate.WHOLE:
            file.store(offset, data)
        elif fate is Fate.PREFIX:
            file.store(offset, data[: self.stream.randrange(len(data) + 1)])
        elif fate is Fate.ZEROS:
            file.store(offset + len(data), b"")
        else:
            # Sectors lie on the disk's own grid, not on that of the write.
            start = offset
            file.store(offset + len(data), b"")  # Its length is there.
            while start < offset + len(data):
                stop = min(start - start % SECTOR_BYTES + SECTOR_BYTES, offset + len(data))
                if self.stream.random() < 0.5:
                    file.store(start, data[start - offset : stop - offset])
                start = stop

    def flip(self, path: Path, bit: int) -> None:
        """Bit rot: one bit of a file is the other one, on the disk and for who reads it."""
        file = self._file(path)
        stored, file.is_flipped = file.stored(), True
        for data in (stored, file.data):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << bit % 8

    def image(self) -> Mapping[str, bytes | None]:
        """All files as processes see them, by path; a folder has no bytes."""
        found: dict[str, bytes | None] = {}
        for path, folder in self._folders.items():
            found[path] = None
            for name, entry in folder.names.items():
                if isinstance(entry, FileBytes):
                    found[str(Path(path) / name)] = bytes(entry.data)
        return found

    def restore(self, image: Mapping[str, bytes | None]) -> None:
        """Put all of an image on this disk, which is empty; it is durable."""
        for name, data in sorted(image.items()):
            path = Path(name)
            if path == path.parent:
                continue
            entry: FileBytes | _Folder
            if data is None:
                entry = self._folders[name] = _Folder()
            else:
                entry = FileBytes(data)
            folder, called = self._place(path)
            folder.names[called] = folder.stored[called] = entry

    @property
    def bytes_used(self) -> int:
        """Bytes of all files, as processes see them."""
        return sum(
            len(entry.data)
            for folder in self._folders.values()
            for entry in folder.names.values()
            if isinstance(entry, FileBytes)
        )


def _split(path: str) -> tuple[str, str]:
    """The folder of an absolute path, and the name in it; a Path would be made for each."""
    place, _, name = path.rpartition("/")
    return place or "/", name


def _store_name(
    folder: _Folder, old: str, new: str, entry: FileBytes | _Folder | None, fate: Fate
) -> None:
    if fate is not Fate.LOST:
        folder.store(old, new, entry)


def _folders_in(path: Path, folder: _Folder) -> Iterator[tuple[str, _Folder]]:
    yield str(path), folder
    for name, entry in folder.names.items():
        if isinstance(entry, _Folder):
            yield from _folders_in(path / name, entry)
