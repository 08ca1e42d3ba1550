"""A node's disk in the simulator: what survives a crash, in memory, one per node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from node.recovery import StoredState
from protocol.messages import SealCertificate, SignedMessage

CHECKPOINTS_KEPT = 3


@dataclass(slots=True)
class Disk:
    """Journal and checkpoints. Every call is durable at once; `forget` is a disk that was lost."""

    is_lost: bool = False
    stored_messages: dict[bytes, SignedMessage] = field(default_factory=dict)
    stored_chain: list[SealCertificate] = field(default_factory=list)
    stored_results: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    states: list[StoredState] = field(default_factory=list)

    def forget(self) -> None:
        """Everything is gone, and the node will know that."""
        self.__init__(is_lost=True)  # type: ignore[misc]

    def record(self, messages: Sequence[SignedMessage]) -> None:
        """See Journal."""
        self.stored_messages |= {message.digest: message for message in messages}

    def keep_result(self, round_index: int, digest: bytes, cells: Sequence[bytes]) -> None:
        """See Journal."""
        if cells:
            self.stored_results.setdefault(round_index, {})[digest] = b"".join(cells)

    def extend_chain(self, certificates: Sequence[SealCertificate]) -> None:
        """See Journal."""
        if certificates:
            del self.stored_chain[certificates[0].value.round - 1 :]
            self.stored_chain += certificates

    def saved_up_to(self, round_index: int) -> None:
        """See Journal."""
        for index in [index for index in self.stored_results if index < round_index - 1]:
            del self.stored_results[index]

    def forgive_loss(self) -> None:
        """See Journal."""
        self.is_lost = False

    def chain(self) -> Sequence[SealCertificate]:
        """See Journal."""
        return tuple(self.stored_chain)

    def read_chain(self, first: int, count: int) -> Sequence[SealCertificate]:
        """See Journal."""
        return self.stored_chain[first - 1 : first - 1 + count]

    def messages(self) -> Sequence[SignedMessage]:
        """See Journal."""
        return tuple(self.stored_messages.values())

    def results(self, round_index: int) -> Mapping[bytes, bytes]:
        """See Journal."""
        return self.stored_results.get(round_index, {})

    def save(self, state: StoredState) -> None:
        """A checkpoint; the newest three stay, and results only for what is not in all of them."""
        self.states = [state, *self.states][:CHECKPOINTS_KEPT]
        self.saved_up_to(self.states[-1].round + 1)
        last = state.round
        kept = {d: m for d, m in self.stored_messages.items() if m.slot.round >= last}
        self.stored_messages = kept
