"""Swarm: a run as a user's own training program sees it. Blocking; nothing runs in the background.

    with Swarm.join("barnraise://join/...") as swarm:
        diloco = DiLoCo(model, inner_optimizer, exchange=swarm)
        for x, y in swarm.batches(loader):
            inner_optimizer.zero_grad(); loss_fn(model(x), y).backward(); diloco.step()

The user's process is the trainer. Everything else is done by a network process that `join` starts
as its child: a run needs no main guard, no event loop and no thread of the user's.

B samples, W window (context + 1 bytes)
"""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from node.daemon.network_child import JOIN_VARIABLE, NOTHING_MORE, NetworkChild
from node.state.config import LISTEN_DEFAULT
from node.state.folder import default_state
from node.text.shown import shown
from protocol.errors import ConfigError, TrainerError
from protocol.leases import Lease, lease_size, part_of_lease
from protocol.manifest import RunManifest
from training.channel.exchange import Contribution, Outcome, RunClock, RunStart, Turn
from training.channel.frames import Attach, Ready
from training.channel.manifest_file import read_manifest
from training.channel.trainer_end import (
    ChannelExchange,
    ChannelFile,
    ChannelTicket,
    channel_spec,
)
from training.data.corpus import open_corpus
from training.data.sampling import lease_samples
from training.methods.method import steps_of
from training.numeric import Tokens

if TYPE_CHECKING:
    from training.loop.inner_state import InnerStore

logger = logging.getLogger(__name__)

T = TypeVar("T")

NETWORK_COMMAND = (sys.executable, "-P", "-m", "node.network_main", "--attached")
"""-P keeps the working directory, where a user may have a `node` of their own, off the path."""

LINGER_S = 15.0

_TITLE_CHARACTERS_MAX = 128

_DEVICE = "user's program"
"""What others are shown as our device: where the loop computes is its own business."""


class Swarm:
    """A run that this process trains in: what DiLoCo takes as its `exchange`. Made by `join`.

    Use it as a context manager and in one thread. Absent peers never raise. What ends the run for
    this node raises in whichever call comes next: RefusedError where the peers refuse us,
    ManifestMismatch where they train another run, UnreachableError where nobody answers,
    TrainerError with its last lines where the network process died. Training that diverges raises
    StateError in `DiLoCo.step`.
    """

    def __init__(
        self, child: NetworkChild, attach: Attach, manifest: RunManifest, channel: ChannelFile
    ) -> None:
        self._child = child
        self._attach = attach
        self._manifest = manifest
        self._channel = channel
        self._pid = os.getpid()
        self._exchange = ChannelExchange(channel, child.pipe, copies=True)
        self._clock = RunClock(round=0, step=0, tokens=0)
        self._lease: Lease = ()
        self._since = 0
        self._listed: tuple[int, ...] = ()
        self._members = 1
        self._bases: tuple[bytes, ...] = ()
        self._is_open = False
        self._awaits_turn = False
        """Whether a contribution was handed over, and it is not known for which round to go on."""
        self._is_finished = False
        self._tickets: list[SwarmTicket] = []

    @classmethod
    def join(
        cls,
        address: str,
        *,
        state: Path | str | None = None,
        listen: str = LISTEN_DEFAULT,
        psk: Path | str | None = None,
    ) -> Self:
        """Join the run of an invite link, or of the peer with the multiaddr `address`.

        Blocks until the run's manifest is here. `state` is the folder of key, checkpoints and logs,
        one for each program that runs at a time, by default the system's place for user data;
        joining again with the same folder resumes. What the network process has to say is in the
        folder's runs/<digest>/node.log. `listen` is where peers reach this node, `psk` the key
        file of a private swarm.
        """
        folder = default_state() if state is None else Path(state)
        folder = folder.expanduser().absolute()
        _check_text(folder)
        options = ["--state", str(folder), "--listen", listen, "--status-port", "0"]
        if not isinstance(address, str):
            raise ConfigError(f"an invite link or an address is a text, not {address!r}")
        if psk is not None:
            options += ["--psk", str(Path(psk).expanduser().absolute())]
        if "\0" in address:
            raise ConfigError(f"{address!r:.80} is neither an invite link nor an address")
        # Not on its command line, which every user of the machine can read.
        return cls.over([*NETWORK_COMMAND, *options], folder, {JOIN_VARIABLE: address})

    @classmethod
    def over(
        cls, command: Sequence[str], state: Path, environment: Mapping[str, str] = NOTHING_MORE
    ) -> Self:
        """A swarm over a network process started by `command`, which has `--attached` in it, with
        `environment` on top of ours."""
        child = NetworkChild(command, state, environment)
        with ExitStack() as stack:
            stack.callback(child.close)
            with child.explained():
                attach = child.pipe.receive()
                if not isinstance(attach, Attach):
                    raise TrainerError(f"{type(attach).__name__} before Attach")
            manifest = read_manifest(Path(attach.manifest), attach.run)
            spec = channel_spec(manifest, attach.shard)
            channel = ChannelFile.open(Path(attach.channel), spec)
            swarm = cls(child, attach, manifest, channel)
            title, run = shown(manifest.title, _TITLE_CHARACTERS_MAX), attach.run.hex()[:12]
            logger.info("attached run=%s title=%s", run, title)
            stack.pop_all()
        return swarm

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A run that came to its end also belongs to the peers that are a round behind.
        self.close(linger_s=LINGER_S if kind is None and self._is_finished else 0.0)

    def close(self, *, linger_s: float = 0.0) -> None:
        """Leave the run: the network process says so to its peers and is gone within two seconds.

        `linger_s` bounds how long it may go on serving peers in a run that is over; it ends by
        itself when nobody needs it. A fork of this process cannot leave for it: nothing is done.
        """
        if os.getpid() != self._pid:
            return
        try:
            # Windows deletes no file that is mapped, and the network process is to delete this one.
            self._channel.close()
        finally:
            self._child.close(linger_s=linger_s)
            # It is still there where the network process was killed.
            self._channel.path.unlink(missing_ok=True)

    @property
    def manifest(self) -> RunManifest:
        """The law of the run."""
        return self._manifest

    @property
    def start(self) -> "RunStart":
        """Where training begins, or goes on with a new loop object: newest anchors, clock, lease.

        The first time it blocks until this node has the run's state and a seat in it; the model
        should be ready by then, since from here on the peers wait for contributions.
        """
        if not self._is_open:
            self._open()
        for ticket in list(self._tickets):
            # A loop that was interrupted while it waited; its round comes to an end first.
            ticket.result()
        if self._awaits_turn:
            self.proceed()
        return RunStart(
            anchors=self._exchange.anchors,
            clock=self._clock,
            lease=self._lease,
            since=self._since,
            listed=self._listed,
            members=self._members,
            bases=self._bases,
        )

    @property
    def inner_store(self) -> "InnerStore":
        """Where DiLoCo keeps what must survive this process: moments, residual, contribution."""
        from training.loop.inner_state import InnerFolder

        return InnerFolder(Path(self._attach.inner), self._manifest, self._attach.shard)

    @property
    def grade(self) -> int:
        """See KnowsLine; DiLoCo asks."""
        return self._exchange.grade

    @property
    def round(self) -> int:
        """The round in hand."""
        return self._clock.round

    @property
    def finished(self) -> bool:
        """Whether the run has ended: there is nothing to train any more."""
        return self._is_finished

    def values_replaced(self, names: Sequence[str]) -> None:
        """See HearsOfValues; DiLoCo calls it."""
        logger.warning(
            "the run's values of round %d replace the model's own in %d tensors, %s among them: a "
            "run cannot begin with given (pretrained) weights yet",
            self._clock.round,
            len(names),
            names[0],
        )

    def begin(self, fragment: int, contribution: Contribution) -> "SwarmTicket":
        """See Exchange; DiLoCo calls it."""
        with self._child.explained():
            inner = self._exchange.begin(fragment, contribution)
        ticket = SwarmTicket(self, inner, self._clock.round)
        self._tickets.append(ticket)
        self._awaits_turn = self._manifest.outer.overlap > 1
        return ticket

    def proceed(self) -> Turn:
        """See Exchange; DiLoCo calls it."""
        with self._child.explained():
            turn = self._exchange.proceed()
        self._awaits_turn, self._members, self._bases = False, turn.members, ()
        self._go_on(turn.clock, turn.lease)
        return turn

    def batches(self, loader: Iterable[T]) -> Iterator[T]:
        """The batches of `loader` again and again until the run is finished.

        Raises ConfigError where the loader gives none: it must be iterable more than once, like a
        DataLoader or a list.
        """
        while self._goes_on():
            is_empty = True
            for batch in loader:
                is_empty = False
                if not self._goes_on():
                    return
                yield batch
            if is_empty:
                raise ConfigError(
                    "the loader gave no batch: pass something that can be iterated again and "
                    "again, like a DataLoader or a list"
                )

    def samples(self) -> Iterator[Tokens]:
        """The run's own text as leased to this node: (B, W) windows per inner step, to its end.

        No byte is lost or trained on twice if each is followed by one `DiLoCo.step`. The loop
        object must be made first. Raises CorpusError where this machine lacks the text.
        """
        inner = self._manifest.inner
        context = self._manifest.model.setting("context")
        if not isinstance(context, int):
            raise ConfigError("the run's model has no context: it is not trained on text")
        dataset = open_corpus(self._manifest.corpus)
        if not self._is_open:
            raise ConfigError(
                "make the loop object first: DiLoCo(model, optimizer, exchange=swarm)"
            )
        while self._goes_on():
            now, lease = self.round, self._lease
            steps = steps_of(self._manifest, lease)
            if lease_size(lease) < inner.batch * steps:
                raise TrainerError(f"a lease of {lease_size(lease)} samples is too short")
            for step in range(steps):
                if not self._goes_on() or self.round != now:
                    break
                part = part_of_lease(lease, step * inner.batch, inner.batch)
                yield dataset.windows(lease_samples(part), context)

    def settle(self, ticket: "SwarmTicket") -> Outcome:
        """Wait for a ticket's outcome and go on from it; called by the ticket."""
        with self._child.explained():
            outcome = ticket.inner.result()
        self._tickets.remove(ticket)
        self._since = outcome.clock.round if outcome.is_resync else ticket.round
        self._listed = (ticket.round,) if outcome.listed else ()
        if self._manifest.outer.overlap == 1:
            self._members = outcome.members
            self._go_on(outcome.clock, outcome.lease)
        return outcome

    def explained(self) -> AbstractContextManager[None]:
        """What a call raises within is what the network process gave as its reason."""
        return self._child.explained()

    def _goes_on(self) -> bool:
        if not self._is_finished:
            self._child.check()
        return not self._is_finished

    def _open(self) -> None:
        import torch

        ready = Ready(
            threads=torch.get_num_threads(),
            parameters=sum(self._channel.spec.fragment_numels),
            device=_DEVICE,
            precision=_DEVICE,
            micro_batch=self._manifest.inner.batch,
        )
        logger.info("waiting for a seat")
        with self._child.explained():
            self._child.pipe.send(ready)
            opening = self._exchange.opening()
        logger.info("training begins round=%d", opening.clock.round)
        self._is_open = True
        self._since, self._listed = opening.since, opening.listed
        self._members, self._bases = opening.members, opening.bases
        self._go_on(opening.clock, opening.lease)

    def _go_on(self, clock: RunClock, lease: Lease) -> None:
        self._clock, self._lease = clock, lease
        if not lease:
            self._is_finished = True
            self._child.say_leaving()


def _check_text(folder: Path) -> None:
    try:
        str(folder).encode()
    except UnicodeEncodeError as error:
        # The network process is told of files in it, in UTF-8.
        name = shown(str(folder))
        raise ConfigError(f"the path {name} is no UTF-8 text: name another as `state`") from error


@dataclass(frozen=True, slots=True)
class SwarmTicket:
    """A contribution that the network process has in its hands."""

    swarm: Swarm
    inner: ChannelTicket
    round: int

    def is_here(self) -> bool:
        """See Ticket. Raises as Swarm says."""
        with self.swarm.explained():
            return self.inner.is_here()

    def result(self) -> Outcome:
        """See Ticket. Raises as Swarm says."""
        return self.swarm.settle(self)
