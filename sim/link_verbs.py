"""What a world can do to the links of its nodes."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from protocol.identity import PeerId
from sim.links import Link
from sim.nodes import Around, SimNode
from sim.sessions import Sessions


class LinkVerbs(Around):
    """See World."""

    sessions: Sessions

    @abstractmethod
    def later(self, delay_s: float, verb: Callable[[], object]) -> None:
        """Call a verb when that much time has passed."""

    @abstractmethod
    def _living(self) -> list[SimNode]:
        """The nodes whose process runs."""

    @abstractmethod
    def _verb(self, name: str, *peers: PeerId) -> None:
        """Note in the trace what is done to whom."""

    def cut(self, one: PeerId, other: PeerId) -> None:
        """The link of two nodes breaks, both hear of it, and no new one comes until `heal`."""
        self._verb("cut", one, other)
        self.network.cut(one, other)
        session = self.sessions.between(one, other)
        if session is not None:
            self.sessions.broken(session)

    def heal(self, one: PeerId, other: PeerId) -> None:
        """The two are linked again, at once."""
        self._verb("heal", one, other)
        self.network.heal(one, other)
        # Behind the end of the link before, if that is not heard of yet.
        self.later(0.0, lambda: self.sessions.link_now(one, other, at_once=True))

    def block(self, source: PeerId, target: PeerId) -> None:
        """Nothing arrives any more from the one at the other, and nobody is told."""
        self._verb("block", source, target)
        self.sessions.silence(self.network.direction(source, target))

    def unblock(self, source: PeerId, target: PeerId) -> None:
        """The one reaches the other again."""
        self._verb("unblock", source, target)
        self.sessions.unsilence(self.network.direction(source, target))

    def partition(self, groups: Sequence[Sequence[PeerId]]) -> None:
        """Nothing arrives between the groups, and nobody is told; who is in none reaches all."""
        self._verb("partition", *(peer for group in groups for peer in (*group, PeerId(b"|"))))
        for number, group in enumerate(groups):
            for source in group:
                for others in (*groups[:number], *groups[number + 1 :]):
                    for target in others:
                        self.sessions.silence(self.network.direction(source, target))

    def repair(self) -> None:
        """All links are as they were: nothing is cut, blocked or held."""
        self._verb("repair")
        self.network.heal_all()
        for direction in self.network.directions():
            self.sessions.unsilence(direction)
            self.sessions.release(direction)
        living = self._living()
        for number, node in enumerate(living):
            for other in living[number + 1 :]:
                if other.peer not in node.wires:
                    self.sessions.link_soon(node.peer, other.peer)

    def hold(self, source: PeerId, target: PeerId) -> None:
        """What is sent from the one to the other waits until `release`."""
        self._verb("hold", source, target)
        direction = self.network.direction(source, target)
        direction.held = direction.held if direction.held is not None else []

    def release(self, source: PeerId, target: PeerId) -> None:
        """What waited goes on its way."""
        self._verb("release", source, target)
        self.sessions.release(self.network.direction(source, target))

    def clog(self, source: PeerId, target: PeerId, seconds: float) -> None:
        """What is sent from the one to the other arrives after that time at the earliest."""
        self._verb(f"clog {seconds!r}", source, target)
        self.network.direction(source, target).stick(self.now_s + seconds)

    def set_link(self, source: PeerId, target: PeerId, link: Link) -> None:
        """One direction gets another quality."""
        self._verb(f"link {link!r}", source, target)
        self.network.set_link(source, target, link)
