"""A scenario's world, before anything happens in it."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from node.rules.round_view import RoundConfig
from protocol.identity import PeerId
from protocol.manifest import NO_ADMISSION, AdmissionSpec, AuditSpec
from sim.attacks import ATTACKS
from sim.attacks.alone import TOGETHER, Lies, hooks_of, lies_of_worlds
from sim.attacks.together import Accomplice, Conspiracy
from sim.trials.faults import member_names
from sim.trials.scenario import Scenario
from sim.world.nodes import Device, peer_named, signer_named
from sim.world.toy_run import toy_run
from sim.world.world import World, WorldSettings

ADMISSION = AdmissionSpec(puzzle_bits=5, probation=3, ramp=10)
"""Of open worlds: as by default, with a puzzle that costs no time."""

WAVE_AFTER_S = 5.0
"""So long after the others a wave of fresh identities starts: behind the first rounds."""


def build_world(scenario: Scenario, seed: int, *, is_sharing: bool = False) -> World:
    """The world of a scenario with a seed; nobody has joined. `is_sharing`: see WorldSettings."""
    luck = random.Random(f"{seed}/scenario/world")
    link = luck.choice(scenario.links)
    is_real = luck.random() < scenario.real_signatures
    names = member_names(scenario.peers[0])
    members = [signer_named(name).peer_id if is_real else peer_named(name) for name in names]
    lies = Lies("", 0)
    if scenario.attack:
        lies = lies_of_worlds(scenario.attack, len(names), scenario.audits)
    seated = tuple(members[: len(members) - lies.count] if lies.is_fresh else members)
    settings = WorldSettings(
        is_signing_for_real=is_real,
        is_encoding=luck.random() < scenario.encoding,
        rare=scenario.rare,
        trainer="model" if scenario.audits or scenario.learns else "drift",
        disk=scenario.disk,
        state_bytes_per_s=scenario.state_bytes_per_s,
        # Whoever was down at the end finds somebody to hear the last rounds from.
        linger_s=math.inf,
        seated=seated if scenario.trust == "open" else (),
        is_sharing=is_sharing,
    )
    manifest = toy_run(
        members[0],
        rounds=scenario.rounds,
        cells=(scenario.cells,) * scenario.fragments,
        timing=scenario.timing,
        ends_after_s=scenario.ends_after_s,
        trust=scenario.trust,
    )
    outer = replace(
        manifest.outer,
        aggregator=scenario.aggregator,
        overlap=scenario.lag,
        topology=scenario.topology,
    )
    is_slow = scenario.trust == "open" and "ramp" not in scenario.without
    manifest = replace(
        manifest,
        outer=outer,
        admission=replace(ADMISSION if is_slow else NO_ADMISSION, seats=scenario.seats),
        audits=AuditSpec(rate=scenario.audits),
    )
    if scenario.audits:
        # Keys of names are the same in all worlds, and what is drawn follows from keys and run.
        manifest = replace(manifest, model=replace(manifest.model, seed=seed))
    bent = _bent(lies, members[len(members) - lies.count :], seed)
    is_flooded = any(hooks.floods for hooks in bent["liars"].values())
    settings = replace(settings, costs_time=is_flooded, **bent)
    return World(manifest, seed=seed, link=link, settings=settings)


def _bent(lies: Lies, liars: Sequence[PeerId], seed: int) -> dict[str, Any]:
    """What bends them, each by itself or all together."""
    if lies.name not in TOGETHER:
        return {"liars": {peer: hooks_of(lies.name, seed, liars) for peer in liars}}
    conspiracy = Conspiracy(ATTACKS[lies.name](), liars)
    hooks = {peer: Accomplice(lies.name, peer, conspiracy) for peer in liars}
    return {"liars": hooks, "conspiracy": conspiracy}


def device_of(scenario: Scenario, seed: int, name: str) -> Device:
    """What the node of that name runs on."""
    luck = random.Random(f"{seed}/scenario/device/{name}")
    return luck.choice(scenario.devices).device(luck)


def seat_members(world: World, scenario: Scenario, seed: int, names: dict[str, PeerId]) -> None:
    """All members join; the founder waits for them, so that the first round has all."""
    without = frozenset(scenario.without)
    config = replace(RoundConfig.from_manifest(world.manifest), without=without)
    for number, (name, peer) in enumerate(names.items()):
        is_waiting = number == 0 and not world.settings.seated
        wait = replace(config, wait_seats=len(names) - 1) if is_waiting else config
        if peer in world.settings.liars:
            wait = replace(wait, without=without | {"retract"})  # Who lies on purpose stands by it.
        join = partial(world.join, peer, config=wait, device=device_of(scenario, seed, name))
        if world.settings.seated and peer not in world.settings.seated:
            world.later(WAVE_AFTER_S, join)
        else:
            join()
