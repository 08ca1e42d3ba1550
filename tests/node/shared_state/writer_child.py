"""A process that writes entries as fast as it can, until it is killed.

Prints a line `kind sequence id` for each one that others may have seen, and `must ask` where its
disk told it so; then it asks nobody, the worst that can be.
"""

import argparse
import sys
import time
from pathlib import Path

from protocol.entry_kinds import EntryKind
from protocol.shared_state.book import SharedState
from protocol.shared_state.store import Store
from protocol.wire import encode
from tests.node.shared_state.scene import RUN, key_of, make_entry, signer
from tests.protocol.entry_vectors import BODIES


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    store = Store(folder, RUN)
    book = SharedState(RUN, signer(9), floor=store.floor, must_ask=store.must_ask)
    book.restore(store.take_rows(), wall_s=time.time())
    if store.must_ask:
        say("must ask")
        store.asked()
        book.asked()
    number = 0
    while True:
        number += 1
        kind = (EntryKind.DATA, EntryKind.NOTE, EntryKind.PRESENCE)[number % 3]
        written = book.write(kind, key_of(kind, number % 5), BODIES[kind], wall_s=time.time())
        store.write_own([written])
        book.release(written, wall_s=time.time())
        say(f"{kind.name} {written.sequence} {written.entry_id.hex()}")
        other = make_entry(signer(20 + number % 50), EntryKind.METRICS, wall_s=time.time())
        book.offer(encode(other), wall_s=time.time(), now_s=0.0)
        if number % 4 == 0:
            store.apply(book.take_changes())


if __name__ == "__main__":
    main()
