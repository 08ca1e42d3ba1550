"""A board and a core of a toy run for tests of status, and a snapshot of them."""

from pathlib import Path

from node.status.board import Field, StatusBoard
from node.status.records import Snapshot
from node.status.snapshot import StatusSources, snapshot
from protocol.core.node_core import NodeCore
from protocol.identity import PeerId, peer_id_text
from tests.node.cores import A, B, C, core_of

HOSTILE = "evil\n\x1b[2J[red]\u202e" + "x" * 5000


def board_at(start_s: float = 0.0) -> StatusBoard:
    """A board whose clock stands."""
    return StatusBoard(now_s=lambda: start_s)


def sealed(round_index: int, **changes: Field) -> dict[str, Field]:
    """The fields of a `sealed` event; every round moves a thousand bytes up and two down."""
    fields: dict[str, Field] = {
        "round": round_index,
        "digest": f"{round_index:064x}",
        "listed": [peer_id_text(A), peer_id_text(B)],
        "members": 3,
        "voters": 2,
        "attempt": 0,
        "was_listed": True,
        "wall_s": 1.5,
        "bytes_up": 1000 * round_index,
        "bytes_down": 2000 * round_index,
        "train_loss": 2.0,
    }
    return fields | changes


def sources_of(
    core: NodeCore,
    board: StatusBoard | None = None,
    *,
    addresses: dict[PeerId, tuple[str, ...]] | None = None,
    checkpoint: Path | None = None,
    is_observer: bool = False,
) -> StatusSources:
    """The sources of a node that has moved 10 bytes up and 20 down."""
    return StatusSources(
        core=core,
        board=board or board_at(),
        traffic=lambda: (10, 20),
        own_addresses=lambda: ("/ip4/127.0.0.1/tcp/4001/p2p/me",),
        addresses=lambda: addresses or {},
        checkpoint=lambda: checkpoint,
        is_observer=is_observer,
    )


def busy_snapshot(now_s: float = 10.0) -> Snapshot:
    """A node that has sealed two rounds, and heard of a fault of a peer that writes mischief."""
    board = board_at()
    board.emit("trainer", pid=7)
    board.emit("trainer_ready", device="cpu", precision="float32", threads=2, micro_batch=8)
    board.emit("progress", step=40, loss=2.25)
    board.emit("phase", round=5, phase="pushing", attempt=0)
    board.emit("validation", round=1, loss=2.5, windows=48, of_windows=128)
    board.emit("times", steps=40, round_s=50.0, train_s=45.0, encode_s=3.0, wait_s=2.0)
    for round_index in (1, 2):
        board.emit("sealed", **sealed(round_index))
    board.emit("fault", peer=peer_id_text(C), reason=HOSTILE)
    core = core_of(A, B, C)
    return snapshot(sources_of(core, board, addresses={B: (HOSTILE,)}), now_s)
