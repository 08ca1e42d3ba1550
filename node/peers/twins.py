"""One identity on two machines: noticed by the peers that both link to, told to the later one.

Each start of a node says in its hello when it was. A start that comes back after another one was
heard shows that both run: whoever starts anew never says an earlier time again. Two that run under
one key fill the same slots twice, which looks like a lie; so the later one stops. Its peers say so,
and their word is taken where more than half of those that it can ask say the same. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from protocol.identity import PeerId

TWIN = (
    "another node runs with this one's identity, and was there before: one of the two must stop. "
    "Was the state folder copied? Give this machine a folder of its own with --state, or stop the "
    "other node"
)
"""What the later one is told, and what its peers send it."""

TOLD_S = 120.0
"""For so long the later one is refused, and a peer's word is remembered."""

PEERS_MAX = 4096
"""Of which starts are remembered; the one heard longest ago is forgotten."""


@dataclass(slots=True)
class _Heard:
    last: int
    before: set[int] = field(default_factory=set)
    later: int = -1
    until_s: float = 0.0


class Twins:
    """Starts that peers speak of. Times are monotonic seconds, starts others' milliseconds."""

    def __init__(self) -> None:
        self._heard: dict[PeerId, _Heard] = {}
        self._told_s: dict[PeerId, float] = {}

    def hear(self, peer: PeerId, start: int, now_s: float) -> bool:
        """A hello of that start is here: whether it is the later of two that both run."""
        heard = self._heard.pop(peer, None) or _Heard(start)
        self._heard[peer] = heard
        while len(self._heard) > PEERS_MAX:
            del self._heard[next(iter(self._heard))]
        if start != heard.last:
            if start in heard.before:
                heard.later, heard.until_s = max(start, heard.last), now_s + TOLD_S
            heard.before = {heard.last} | (heard.before & {start, heard.later})
            heard.last = start
        return start == heard.later and now_s < heard.until_s

    def told_by(self, peer: PeerId, others: Collection[PeerId], now_s: float) -> bool:
        """That peer says that we are the later one: whether to believe it, `others` being whom
        else we are linked to."""
        self._told_s[peer] = now_s
        self._told_s = {one: at for one, at in self._told_s.items() if now_s - at < TOLD_S}
        return 2 * len(self._told_s) > len({*others, *self._told_s})
