"""Pinging those who asked us something, so that we can tell others about them."""

from collections.abc import Awaitable, Callable

import trio

from dht.kademlia.kademlia import Kademlia
from dht.kademlia.routing import Contact


class Pinger:
    """Pings for one node, so many at once. `run` it in a nursery."""

    def __init__(
        self,
        kademlia: Kademlia,
        ping: Callable[[Contact], Awaitable[object]],
        *,
        num_at_once: int,
    ) -> None:
        """`ping` returns when the contact has answered or failed, and has told the table."""
        self._kademlia = kademlia
        self._ping = ping
        self._places = trio.Semaphore(num_at_once)
        self._wanted = trio.Event()

    def wake(self) -> None:
        """There may be somebody to ping."""
        if self._kademlia.has_pings:
            self._wanted.set()

    async def run(self) -> None:
        """Ping until cancelled; who is slow to fail holds up one place and no other."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._places.acquire()
                while not self._kademlia.has_pings:
                    await self._wanted.wait()
                    self._wanted = trio.Event()
                for contact in self._kademlia.take_pings(1):
                    nursery.start_soon(self._ping_one, contact)

    async def _ping_one(self, contact: Contact) -> None:
        await self._ping(contact)
        self._places.release()
