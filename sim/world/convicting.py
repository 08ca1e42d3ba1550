"""Evidence among simulated nodes: kept, passed on once, told to the core; and who is barred for it.

It does what `node.shared_state` and gossip do with evidence, without all their other entries:
linked peers push what is new, and tell a new neighbour what they hold.
"""

from node.reporting.tracing import Convicted
from protocol import events as ev
from protocol.core.budgets import Strikes
from protocol.errors import PeerError
from protocol.evidence import Evidence, decode_evidence
from protocol.gossip import Entries
from protocol.identity import PeerId
from sim.world.nodes import Around, SimNode
from sim.world.sessions import send_frame

BANNED = "banned from this run"


class Convicting:
    """What one process knows of liars. Its disk keeps the evidence."""

    def __init__(self, world: Around, node: SimNode, strikes: Strikes) -> None:
        self._world, self._node, self._strikes = world, node, strikes
        self._run = node.core.manifest.digest

    def begin(self) -> None:
        """The core hears again of what the disk holds."""
        self._tell(tuple(self._node.disk.evidence.values()))
        self.look()

    def found(self, evidence: Evidence) -> None:
        """Evidence that was checked: keep it, and pass it on if it is news."""
        held, node = self._node.disk.evidence, self._node
        if evidence.subject in held:
            return
        held[evidence.subject] = evidence
        at_s = self._world.now_s
        self._world.emit(Convicted(at_s=at_s, peer=node.peer, evidence=evidence))
        send_frame(self._world, node, tuple(node.wires), _told(evidence))
        self._tell((evidence,))

    def heard(self, source: PeerId, frame: Entries) -> None:
        """Evidence that a peer passed on: nobody's word is taken for it."""
        signer = self._node.core.signer
        for encoded in frame.entries:
            try:
                self.found(decode_evidence(encoded, self._run, signer))
            except PeerError as error:
                self._world.accuse(self._node, source, f"entry: {error.strike}")
                return

    def linked(self, peer: PeerId) -> None:
        """A new neighbour may not know."""
        for _, evidence in sorted(self._node.disk.evidence.items()):
            send_frame(self._world, self._node, (peer,), _told(evidence))

    def look(self) -> None:
        """Nobody who is banned has a link; a node that is banned itself ends."""
        node, banned = self._node, self._node.core.machine.head.roster.banned
        if node.peer in banned:
            self._world.ended(node, BANNED)
            return
        for peer in self._strikes.ban(banned):
            self._world.hang_up(node, peer, float("inf"))

    def _tell(self, evidence: tuple[Evidence, ...]) -> None:
        if evidence:
            self._world.push(
                self._world.now_s, self._node, self._node.tell, ev.EvidenceHeld(evidence)
            )


def _told(evidence: Evidence) -> Entries:
    return Entries(is_push=True, entries=(evidence.encoded,))
