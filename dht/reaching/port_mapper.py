"""Keeping an outer port of the home's router: asked for, renewed, and given back."""

import logging
from collections.abc import Callable, Sequence

import trio

from dht.reaching.circuits import is_public
from dht.reaching.routers import Mapping, Router
from protocol.errors import UnreachableError

logger = logging.getLogger(__name__)

LEASE_S = 3600
"""A router that hears no more from us forgets the port by itself, for example after our crash."""

AGAIN_S = 900.0
"""Where no router does it: the machine may have been carried home."""

LOOK_S = 1.0
GIVE_BACK_S = 1.5
"""At the end of the node, which is not to be held up."""


class PortMapper:
    """An outer port for the one on which we listen. `run` it in a nursery."""

    def __init__(self, routers: Sequence[Router], *, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted`: whether this machine is behind a router, as far as it knows."""
        self._routers = routers
        self._is_wanted = is_wanted
        self._held: tuple[Router, Mapping] | None = None
        self._due_s = 0.0
        self._changed = trio.Event()

    @property
    def change(self) -> trio.Event:
        """Set when there is another outer address, or none; another one from then on."""
        return self._changed

    def address(self) -> str:
        """Where the router says that it leads others to us; nothing where that is no public one."""
        if self._held is None:
            return ""
        mapping = self._held[1]
        address = f"/ip4/{mapping.host}/tcp/{mapping.port}"
        # A router behind another one tells an address that means nothing outside.
        return address if is_public(address) else ""

    def start_over(self) -> None:
        """The machine is in another network, and has another router."""
        self._hold(None)
        self._due_s = 0.0

    async def run(self, port: int) -> None:
        """Keep a mapping to `port` until cancelled, and give it back then. Raises nothing."""
        try:
            while True:
                if trio.current_time() >= self._due_s and self._is_wanted():
                    await self._renew(port)
                await trio.sleep(LOOK_S)
        finally:
            if self._held is not None:
                router, mapping = self._held
                self._hold(None)
                with trio.CancelScope(deadline=trio.current_time() + GIVE_BACK_S, shield=True):
                    await _give_back(router, mapping, port)

    async def _renew(self, port: int) -> None:
        held = (self._held[0],) if self._held is not None else ()
        for router in (*held, *(one for one in self._routers if one not in held)):
            try:
                mapping = await router.map(port, LEASE_S)
            except UnreachableError as error:
                logger.debug("no port reason=%s", error)
                continue
            self._hold((router, mapping))
            self._due_s = trio.current_time() + mapping.lease_s / 2
            return
        self._hold(None)
        self._due_s = trio.current_time() + AGAIN_S

    def _hold(self, held: tuple[Router, Mapping] | None) -> None:
        before, self._held = self.address(), held
        if self.address() != before:
            logger.info("port of the router address=%s", self.address() or "none")
            self._changed.set()
            self._changed = trio.Event()


async def _give_back(router: Router, mapping: Mapping, port: int) -> None:
    try:
        await router.unmap(mapping, port)
    except UnreachableError as error:
        logger.debug("port not given back reason=%s", error)
