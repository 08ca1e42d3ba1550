"""How much of the line cells may take, each way: what a node's owner allows.

Cells are nearly all that a node moves. Control messages are some kilobytes a round, and wait for
nothing: a round in which they are late is lost.
"""

from collections.abc import Awaitable, Callable

import trio

from dht.reaching.token_bucket import TokenBucket

BURST_S = 0.25
"""Unused rate of so long may go at once: within ten seconds that is 2.5 % more than was set."""

SLACK_S = 10.0
"""What a transfer that waits for its turn is given beyond its wait."""

Pause = Callable[[int, trio.CancelScope], Awaitable[None]]
"""Waits until so many bytes may go; the deadline of the transfer's scope waits with it."""


class LineLimits:
    """Bytes per second up and down, for all transfers together; 0 sets no limit.

    What is received is answered late, and so the sender, which has no more under way than came
    through in good time, keeps to the limit of the taker.
    """

    def __init__(self, up_bytes_per_s: float = 0.0, down_bytes_per_s: float = 0.0) -> None:
        self._is_up_limited = up_bytes_per_s > 0.0
        self._up = TokenBucket(up_bytes_per_s, now_s=0.0, burst_s=BURST_S)
        self._down = TokenBucket(down_bytes_per_s, now_s=0.0, burst_s=BURST_S)

    def turn(self, before: Pause | None) -> Pause | None:
        """What each piece of a transfer waits for, after a pause of its own kind; None: nothing."""
        if not self._is_up_limited:
            return before

        async def both(num_bytes: int, scope: trio.CancelScope) -> None:
            if before is not None:
                await before(num_bytes, scope)
            await self.before_sending(num_bytes, scope)

        return both

    async def before_sending(self, num_bytes: int, scope: trio.CancelScope) -> None:
        """Wait until so many bytes may go; the transfer's `scope` waits with it."""
        await _wait(self._up, num_bytes, scope)

    async def after_receiving(self, num_bytes: int, scope: trio.CancelScope) -> None:
        """Wait as long as so many bytes take on the line that the owner allows."""
        await _wait(self._down, num_bytes, scope)


async def _wait(bucket: TokenBucket, num_bytes: int, scope: trio.CancelScope) -> None:
    now_s = trio.current_time()
    delay_s = bucket.delay_s(num_bytes, now_s)
    if delay_s:
        scope.deadline = now_s + delay_s + SLACK_S
        await trio.sleep(delay_s)
