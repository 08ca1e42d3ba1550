"""A swarm of the demo as its parent would have seen it, told event by event."""

import math
from dataclasses import replace
from pathlib import Path

from protocol.identity import PeerId
from protocol.manifest import WIRE_VERSION, CorpusSpec, ModelSpec, RunManifest
from sim.demo.result import DemoResult, YardstickResult
from sim.demo.story import DemoOptions
from sim.demo.swarm_view import Role, SwarmView
from sim.processes import events
from sim.processes.recipe import INNER, MODEL, OUTER, TIMING
from training.models.genesis import shard_spec

ROUND_S = 1.5
PART_BYTES = 240_000


def options(**changes) -> DemoOptions:
    given = DemoOptions(peers=4, rounds=40, seed=3, folder=Path("somewhere"))
    return replace(given, **changes)


def manifest(chosen: DemoOptions) -> RunManifest:
    """Of the demo's recipe, but of no text of this machine."""
    model = ModelSpec(name="gpt", settings=MODEL, seed=chosen.seed)
    return RunManifest(
        wire=WIRE_VERSION,
        arithmetic=1,
        title="a demo",
        founder=PeerId(bytes(32)),
        created_unix_s=0,
        trust="friends",
        survive="any",
        rounds=chosen.rounds,
        model=model,
        shards=(shard_spec(model),),
        cell_elements=16384,
        corpus=CorpusSpec(
            name="stdlib-3.12.4",
            digest=bytes(32),
            training_blocks=18,
            held_out_blocks=2,
            document_blocks=0,
            block_bytes=65536,
            token_bytes=1,
            vocab_size=256,
            held_out_tokens=131072,
            held_out_text_bytes=131072,
            shuffle_blocks=18,
            permutation_seed=0,
        ),
        inner=INNER,
        outer=OUTER,
        timing=TIMING,
    )


def peer(name: str) -> str:
    return f"12D3KooWpeerOf{name}{name}{name}{name}"


def sealed(index: int, listed: str, **changes) -> events.RoundSealed:
    given = events.RoundSealed(
        round=index,
        digest=f"{index:064x}",
        listed=tuple(peer(name) for name in listed),
        members=len(listed),
        voters=len(listed),
        attempt=0,
        was_listed=True,
        wall_s=ROUND_S,
        bytes_up=PART_BYTES * index,
        bytes_down=PART_BYTES * index,
        train_loss=2.0,
    )
    return replace(given, **changes)


def phase(name: str, index: int) -> events.PhaseEntered:
    return events.PhaseEntered(round=index, phase=name, attempt=0)


def listening(name: str) -> events.Listening:
    return events.Listening(
        peer=peer(name), addresses=(f"/ip4/127.0.0.1/tcp/4001/p2p/{peer(name)}",), pid=None
    )


def loss_after(index: int, floor: float = 1.66) -> float:
    return floor + 3.8 * math.exp(-index / 0.9) + 1.1 * math.exp(-index / 14)


def start(view: SwarmView, names: str) -> None:
    """The nodes of these names, listening, each with a trainer."""
    for number, name in enumerate(names, start=len(view.nodes)):
        role: Role = "peer" if view.num_sealed == 0 else "latecomer"
        role = "founder" if number == 0 else role
        assert view.add(role).name == name
        view.started(name, 1000 + 2 * number, 0.0)
        view.fold(name, listening(name), 0.5)
        view.fold(name, events.TrainerStarted(pid=1001 + 2 * number), 1.0)


def seal(view: SwarmView, index: int, names: str, listed: str, now_s: float, **changes) -> None:
    """All these nodes trained, exchanged parts and sealed the round."""
    for name in names:
        view.fold(name, phase("pushing", index), now_s - 0.2)
    for name in names:
        for sender in set(listed) - {name}:
            parts = events.PartsMoved(round=index, peer=peer(sender), cells=2, direction="in")
            view.fold(name, parts, now_s - 0.1)
    for name in names:
        view.fold(name, sealed(index, listed, **changes), now_s)
        view.fold(name, events.Validated(round=index, loss=loss_after(index)), now_s)


def whole_demo(chosen: DemoOptions) -> SwarmView:
    """Four nodes; A is killed in round 14 and not listed in it; E contributes from round 18 on."""
    view = SwarmView(num_rounds=chosen.rounds)
    start(view, "ABCD")
    for index in range(1, 14):
        seal(view, index, "ABCD", "ABCD", 3.0 + ROUND_S * index)
    view.fold("A", phase("pushing", 14), 24.0)
    view.kill("A", 24.1)
    seal(view, 14, "BCD", "BCD", 27.4, attempt=1)
    start(view, "E")
    view.fold("E", events.StateFetched(round=16), 30.0)
    view.fold("E", events.Seated(round=18), 31.0)
    for index in range(15, chosen.rounds + 1):
        names = "BCD" if index < 18 else "BCDE"
        seal(view, index, names, names, 27.4 + ROUND_S * (index - 14))
    for name in "BCDE":
        view.fold(name, events.Finished(round=chosen.rounds, checkpoint="there"), 70.0)
    return view


def whole_result(chosen: DemoOptions, *, error: str | None = None) -> DemoResult:
    """What comes of `whole_demo`."""
    measured = YardstickResult(
        loss_first=5.68,
        loss_last=loss_after(chosen.rounds),
        loss_alone=loss_after(chosen.rounds, 1.78),
        text='def parse(self, value):\n    if value < "<b>&":\n        return None\n',
        alone_curve=[(20 * i, loss_after(i, 1.78)) for i in range(chosen.rounds + 1)],
    )
    return DemoResult(
        options=chosen,
        manifest=manifest(chosen),
        view=whole_demo(chosen),
        measured=measured,
        anchors_equal=error is None,
        wall_s=82.31,
        error=error,
    )
