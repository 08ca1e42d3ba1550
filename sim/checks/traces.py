"""The records of many nodes' trace files, in one order of time."""

import heapq
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from node.reporting.trace_file import read_trace
from node.reporting.tracing import Record


def merge_traces(paths: Sequence[Path]) -> Iterator[Record]:
    """All records by time; of equal ones those of the earlier path first.

    A last line that a killed node left torn is passed over. Raises OSError without one of the
    files, and DecodeError with file and line for any other line that is no record.
    """
    traces = [read_trace(path) for path in paths]
    keyed = (_in_order(records, number) for number, records in enumerate(traces))
    for _, record in heapq.merge(*keyed, key=lambda entry: entry[0]):
        yield record


def _in_order(records: Sequence[Record], number: int) -> Iterator[tuple[tuple[float, int], Record]]:
    """A node's records stay in the order in which it told them, whatever its clock did."""
    times_s = accumulate((record.at_s for record in records), max)
    for at_s, record in zip(times_s, records, strict=True):
        yield (at_s, number), record
