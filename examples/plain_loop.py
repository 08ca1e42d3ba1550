"""A plain torch loop that trains with a swarm: `python -m examples.plain_loop LINK`.

The model is this file's own, and `build` lets a founder name the file: `[model] file =
"plain_loop.py"` in run.toml, with `context` and `width` under `[model.settings]`.

B sequences, T positions, C channels, W window (T + 1 bytes)
"""

import argparse
import logging
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from barnraise import DiLoCo, Swarm

logger = logging.getLogger("plain_loop")


class ByteGru(nn.Module):
    """A GRU that predicts the next byte of a text."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, bytes_BT: Tensor) -> Tensor:
        """Logits (B, T, 256) of the byte after each position."""
        hidden_BTC, _ = self.gru(self.embedding(bytes_BT))
        logits_BTV: Tensor = self.head(hidden_BTC)
        return logits_BTV


def build(context: int, width: int) -> ByteGru:
    """What a run calls whose manifest names this file; a GRU looks back as far as it likes."""
    del context
    return ByteGru(width)


def text_loader(context: int, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    """Batches of this program's own data: some of Python's library, cut into windows."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py"))
    text = b"".join(path.read_bytes() for path in sources)
    windows = len(text) // (context + 1)
    text_BW = np.frombuffer(text, np.uint8, windows * (context + 1)).reshape(windows, -1)
    x_BT, y_BT = text_BW[:, :-1].astype(np.int64), text_BW[:, 1:].astype(np.int64)
    data = TensorDataset(torch.from_numpy(x_BT), torch.from_numpy(y_BT))
    return DataLoader(data, batch_size=batch, shuffle=True, drop_last=True)


def main() -> None:
    """Join the run of a link and train until it is finished."""
    parser = argparse.ArgumentParser(description="train a small model with a swarm")
    parser.add_argument("link", help="barnraise://join/... or the address of a peer")
    parser.add_argument("--state", help="folder of this node")
    parser.add_argument("--width", type=int, default=48)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    model = ByteGru(options.width)
    inner = torch.optim.AdamW(model.parameters())
    with Swarm.join(options.link, state=options.state) as swarm:
        loader = text_loader(context=64, batch=swarm.manifest.inner.batch)
        diloco = DiLoCo(model, inner, exchange=swarm)
        for x_BT, y_BT in swarm.batches(loader):
            inner.zero_grad()
            loss = functional.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            if diloco.step(loss.item()) is not None:
                logger.info("round sealed round=%d loss=%.3f", swarm.round - 1, loss.item())
    logger.info("run finished round=%d", swarm.round)


if __name__ == "__main__":
    main()
