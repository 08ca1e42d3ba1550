"""The bytes of one simulated file: as processes see them, and as they lie on the disk."""


class FileBytes:
    """`data` is what processes see. What lies on the disk is its beginning, up to `synced`, until
    that is overwritten or a sync fails: then `apart` has those bytes.
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
