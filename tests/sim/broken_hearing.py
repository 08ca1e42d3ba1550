"""Builds that suspect whom they hear, for `tests.sim.broken`: rosters follow from what is said."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from protocol.core.liveness import Liveness
from protocol.identity import PeerId


@contextmanager
def one_beat_late_is_silent() -> Iterator[None]:
    """Whoever says nothing for a little longer than a heartbeat is suspected."""
    make = Liveness.__init__

    def made(machine: Liveness, *args: Any, **rest: Any) -> None:
        make(machine, *args, **rest)
        machine._suspect_s = 1.2 * machine._heartbeat_s

    with patch.object(Liveness, "__init__", made):
        yield


def once_suspected_is_suspected() -> AbstractContextManager[Any]:
    """Whoever was silent is suspected though it speaks again."""
    ask = Liveness.suspects

    def suspects(machine: Liveness, peers: tuple[PeerId, ...], now_s: float) -> frozenset[PeerId]:
        before = machine._suspects
        machine._suspects = ask(machine, peers, now_s) | before
        return machine._suspects

    return patch.object(Liveness, "suspects", suspects)


HEARING = (
    ("one beat late is silent", one_beat_late_is_silent),
    ("once suspected is suspected", once_suspected_is_suspected),
)
