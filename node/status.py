"""What a node tells the people and programs around it: one event per line, and counters."""

import json
import sys
from dataclasses import dataclass
from typing import TextIO

import trio

from protocol.identity import PeerId, peer_id_text

Field = str | int | float | bool | None | list[str]


@dataclass(slots=True)
class EventLog:
    """Events as JSON lines on `stream`, or nowhere. `time_s` counts from the node's start."""

    stream: TextIO | None
    started_s: float

    @classmethod
    def on_stdout(cls, *, is_enabled: bool) -> "EventLog":
        """The log that `--events` asks for."""
        return cls(sys.stdout if is_enabled else None, trio.current_time())

    def emit(self, event: str, **fields: Field) -> None:
        """One line. A reader that is gone is not our concern; its end shows on stdin."""
        if self.stream is None:
            return
        line = {"event": event, "time_s": round(trio.current_time() - self.started_s, 4), **fields}
        try:
            self.stream.write(json.dumps(line) + "\n")
            self.stream.flush()
        except (BrokenPipeError, ValueError):
            self.stream = None


def peer_texts(peers: tuple[PeerId, ...]) -> list[str]:
    """Peer ids as people and multiaddrs write them."""
    return [peer_id_text(peer) for peer in peers]
