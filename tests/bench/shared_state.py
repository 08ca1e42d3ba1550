"""What the replicated state costs: time per entry, memory and disk of many members.

    python -m tests.bench.shared_state [--members 10000]

CPU seconds of this process, the median of five where it is short; the last line is one JSON object.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from protocol import limits
from protocol.entries import decode_entry
from protocol.entry_kinds import EntryKind
from protocol.identity import Ed25519Signer
from protocol.shared_state.book import SharedState
from protocol.shared_state.store import DATABASE, Store
from protocol.wire import encode
from tests.node.shared_state.scene import RUN, WALL_S, make_entry

MEASURED = 5


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def cpu_s(work: Callable[[], object]) -> float:
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def member_entries(members: int) -> list[bytes]:
    """Identity and presence of each, as they come off the wire."""
    entries = []
    for number in range(members):
        who = Ed25519Signer(number.to_bytes(32, "big"))
        entries += [
            encode(make_entry(who, kind)) for kind in (EntryKind.IDENTITY, EntryKind.PRESENCE)
        ]
    return entries


def take_all(entries: list[bytes]) -> SharedState:
    book = SharedState(RUN, Ed25519Signer(bytes([255]) * 32))
    for encoded in entries:
        assert book.offer(encoded, wall_s=WALL_S, now_s=0.0).is_new
    return book


def measure_memory(entries: list[bytes]) -> float:
    """MiB that the book holds; the bytes of the entries themselves are its own."""
    copies = [bytes(bytearray(encoded)) for encoded in entries]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    book = SharedState(RUN, Ed25519Signer(bytes([255]) * 32))
    for index, _ in enumerate(copies):
        encoded = bytes(bytearray(copies[index]))
        assert book.offer(encoded, wall_s=WALL_S, now_s=0.0).is_new
    book.take_changes()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(book) == len(copies)
    return held / limits.MIB


def measure_disk(book: SharedState) -> dict[str, float]:
    """Milliseconds to write all, to write an own entry, to start again; MiB of the file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = Store(folder, RUN)
        start_s = time.perf_counter()
        store.apply(book.take_changes())
        write_s = time.perf_counter() - start_s
        own = []
        body = decode_entry(encode(make_entry(Ed25519Signer(bytes(32)))), RUN).content
        for number in range(20):
            start_s = time.perf_counter()
            store.write_own(
                [book.write(EntryKind.NOTE, number.to_bytes(16, "big"), body, wall_s=WALL_S)]
            )
            own.append(time.perf_counter() - start_s)
        store.close()
        mib = (folder / DATABASE).stat().st_size / limits.MIB
        start_s = time.perf_counter()
        store = Store(folder, RUN)
        again = SharedState(RUN, Ed25519Signer(bytes([255]) * 32), floor=store.floor)
        again.restore(store.take_rows(), wall_s=WALL_S)
        restart_s = time.perf_counter() - start_s
        store.close()
    return {
        "write_all_ms": 1e3 * write_s,
        "write_own_ms": 1e3 * statistics.median(own),
        "restart_s": restart_s,
        "disk_mib": mib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=10_000)
    members: int = parser.parse_args().members
    entries = member_entries(members)
    sample = entries[:2000]
    say(f"merging {len(sample)} entries, {MEASURED} times")
    merge_s = statistics.median(cpu_s(lambda: take_all(sample)) for _ in range(MEASURED))
    say(f"memory of {len(entries)} entries")
    memory_mib = measure_memory(entries)
    book = take_all(entries)
    known_s = cpu_s(lambda: [book.offer(one, wall_s=WALL_S, now_s=0.0) for one in sample])
    digest_s = cpu_s(book.bucket_digests)
    expire_s = cpu_s(lambda: book.expire(WALL_S))
    result = {
        "members": members,
        "entries": len(entries),
        "entry_bytes": book.num_bytes / len(entries),
        "merged_per_s": len(sample) / merge_s,
        "known_per_s": len(sample) / known_s,
        "memory_mib": memory_mib,
        "digests_ms": 1e3 * digest_s,
        "expire_ms": 1e3 * expire_s,
        **measure_disk(book),
    }
    for name, value in result.items():
        say(f"{name:16} {value:12.2f}")
    say(json.dumps(result))


if __name__ == "__main__":
    main()
