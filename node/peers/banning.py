"""Who is banned, at the edge of a node: told, traced, and without a link once a seal says so.

Evidence alone closes no link: until the next seal its subject is a member, whose SEAL a small
quorum may need.
"""

import logging
from collections.abc import Awaitable, Callable

from node.peers.links import Links
from node.reporting.trace_file import NodeTrace
from node.status.board import EventLog
from protocol import events as ev
from protocol.core.node_core import NodeCore
from protocol.errors import RefusedError
from protocol.evidence import Evidence
from protocol.identity import PeerId, peer_id_text, short_id

logger = logging.getLogger(__name__)

Accuse = Callable[[Evidence], Awaitable[None]]
"""Keeps evidence that this node found, and spreads it."""

OWN_BAN = (
    "this key is banned from the run: it signed two different things in one place, or sums that are"
    " wrong. If it is in use on two machines, stop one; if this machine errs, have its memory"
    " tested; and join with a new key"
)


class Banning:
    """Looks after every event of one node's driver."""

    def __init__(self, core: NodeCore, trace: NodeTrace, log: EventLog) -> None:
        self._core, self._trace, self._log = core, trace, log
        self._banned: tuple[PeerId, ...] = ()

    def look(self, event: ev.CoreEvent, links: Links) -> None:
        """Whom this event convicted, or the newest seal bans. Raises RefusedError if that is we."""
        if isinstance(event, ev.EvidenceHeld):
            for evidence in event.evidence:
                self._trace.convicted(evidence)
                name, what = peer_id_text(evidence.subject), evidence.accusation.name.lower()
                self._log.emit("convicted", peer=name, accusation=what)
        banned = self._core.machine.head.roster.banned
        if banned == self._banned:
            return
        for peer in sorted(set(banned) - set(self._banned)):
            logger.warning("banned peer=%s", short_id(peer))
            self._log.emit("banned", peer=peer_id_text(peer), round=self._core.machine.head.round)
        self._banned = banned
        links.ban(banned)
        if self._core.machine.view.me in banned:
            raise RefusedError(OWN_BAN)
