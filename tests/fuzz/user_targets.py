"""Decoders of what users type and write: links, addresses, the two TOML files."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from dht.reaching.addresses import RELAY_FRAMES, parse_circuit
from dht.reaching.dial_back import DIAL_BACK_FRAMES
from dht.reaching.punching import PUNCH_FRAMES
from node.peers.invite import LINK_PREFIX, invite_link, parse_invite, read_target
from node.peers.joining import parse_target
from node.peers.two_histories import TOLD_FILE, ToldFile, read_told
from node.reporting.tracing import parse_trace_line, trace_line
from node.settings.run_file import Founder, build_manifest, read_run_file
from node.settings.sections import NodeFile, node_config, read_node_file, run_file_text
from node.state.config import parse_dialable, parse_listen, parse_peer_address
from node.state.folder import MANIFEST_FILE, NODE_FILE
from node.state.invitations import read_credential
from node.state.keystore import read_psk
from protocol import limits
from protocol.errors import ConfigError, DecodeError, ManifestError, PeerError, StateError
from protocol.identity import peer_id_text
from protocol.invitations import check_credential, decode_credential, sign_token
from protocol.manifest import sign_manifest
from protocol.wire import encode
from sim.trials.scenario import settled
from sim.trials.scenario_file import read_scenario, read_scenario_file, scenario_text
from tests.dht.reaching.test_circuits import WORDS
from tests.dht.reaching.test_dial_back import CHECKS
from tests.dht.reaching.test_punching import SIGNALS
from tests.fuzz.mutations import toml_bytes
from tests.fuzz.protocol_targets import INVITE
from tests.fuzz.target import (
    FILE_BYTES,
    JSON_FACTOR,
    PACKER_BYTES,
    STACK_BYTES,
    Target,
    from_bytes,
    from_file,
    from_text,
)
from tests.node.reporting.test_tracing import RECORDS
from tests.node.state_run import FOUNDER
from tests.protocol.entry_vectors import OFFER, SUBJECT, TOKEN
from tests.protocol.vectors import MANIFEST, PEERS, SIGNER
from training.data.sources import parse_source

TO_RUN = sign_token(replace(TOKEN, run=MANIFEST.digest), SIGNER)
CREDENTIAL = replace(OFFER, token=TO_RUN).taken_by(SUBJECT)
TOML_BASE, TOML_FACTOR = 2 * limits.MIB, 200
"""The libraries' messages hold lists of errors, one for each key that is wrong."""


RUN_FILE: dict[str, object] = {
    "run": {"title": "a barn", "trust": "friends", "survive": "any", "rounds": 200},
    "stop": {"tokens": 0, "date": "2099-01-31T18:00:00Z"},
    "model": {
        "name": "gpt",
        "seed": 0,
        "cell_elements": 4096,
        "settings": {"context": 64, "heads": 4, "layers": 2, "width": 64},
    },
    "corpus": {"name": "stdlib", "permutation_seed": 0},
    "inner": {"inner_steps": 50, "batch": 16, "learning_rate": 0.008, "clip_norm": 1.0},
    "outer": {"codec": "fp16", "aggregator": "mean", "optimizer": "nesterov", "momentum": 0.5},
    "timing": {"deadline_floor_s": 5.0, "deadline_cap_s": 60.0},
}


NODE_TOML: dict[str, object] = {
    "listen": "/ip4/0.0.0.0/tcp/4001",
    "announce": ["/ip4/203.0.113.1/tcp/4001"],
    "bootstrap": [f"/ip4/203.0.113.1/tcp/4001/p2p/{peer_id_text(PEERS[0])}"],
    "threads": 2,
    "device": "cpu",
    "linger_s": 15.0,
    "is_observer": False,
    "log_level": "debug",
}


SCENARIO: dict[str, object] = {
    "title": "anything",
    "shows": "all of it",
    "peers": [5, 8],
    "rounds": 12,
    "rare": 0.01,
    "links": [{"latency_s": [0.01, 0.06], "spread": "lognormal", "loss": 0.1}],
    "devices": [{"train_s": 1.0, "clock_rate": [0.9, 1.1]}],
    "disk": {"lose": 0.5, "rotate_bytes": 4096},
    "timing": {"deadline_floor_s": 1.0, "deadline_cap_s": 10.0},
    "faults": [
        {"kind": "bounce", "times": [1, 3], "phases": ["every"], "who": ["any"]},
        {"kind": "partition", "share": 0.4, "ways": 3, "rounds": [2, 4], "period_s": 2.0},
        {"kind": "churn", "amount": 3.0},
    ],
    "expect": {"invariants": ["I3"], "sealed_share": 0.9, "recovery_s": 30.0},
    "limits": {"virtual_s": 100.0},
    "recorded": {"seed": 3, "trace_hash": "0" * 64},
}


LISTED_SCENARIO: dict[str, object] = {
    "title": "listed",
    "timetable": [
        {"kind": "crash", "round": 3, "phase": "VOTE sent", "victims": ["any"]},
        {"kind": "cut", "victims": ["n00"], "against": ["n01"], "duration_s": 3.0},
    ],
}


def _played(path: Path) -> None:
    """A scenario that is read can be drawn, and what is drawn can be written."""
    found = read_scenario_file(path)
    if found.peers[1] <= 64 and found.rounds <= 64:
        scenario_text(settled(found, 1))


def _read_credential(data: bytes) -> None:
    """What is decoded is judged without any other error."""
    check_credential(decode_credential(data), MANIFEST, SUBJECT, SIGNER)


def _link(body: bytes) -> bytes:
    """A link around any body, its checksum sound."""
    packed = b"\x02" + blake3(body).digest(length=4) + body
    return LINK_PREFIX.encode() + base64.urlsafe_b64encode(packed).rstrip(b"=")


def _node_file(data: bytes, folder: Path) -> None:
    (folder / NODE_FILE).write_bytes(data)
    found = read_node_file(folder)
    assert isinstance(found, NodeFile)
    node_config(found, {}, state=folder, manifest=folder / MANIFEST_FILE)


def _founded(path: Path) -> None:
    """A manifest that is built is one that can be signed and read, or there is none."""
    manifest = build_manifest(read_run_file(path), Founder(FOUNDER.peer_id, 1_700_000_000), path)
    sign_manifest(manifest, FOUNDER)


def text(read: Callable[[str], object], name: str, *examples: str) -> Target:
    """A target that reads what a user types."""
    return Target(
        name=name,
        covers=(f"{read.__module__}.{read.__qualname__}",),
        read=from_text(read),
        errors=(ConfigError,),
        examples=lambda: tuple(example.encode() for example in examples),
        memory_base=STACK_BYTES + PACKER_BYTES,
        memory_factor=20,
    )


MULTIADDR = f"/ip4/203.0.113.1/tcp/4001/p2p/{peer_id_text(PEERS[0])}"
CIRCUIT = f"{MULTIADDR}/p2p-circuit/p2p/{peer_id_text(PEERS[1])}"


TARGETS = [
    text(parse_invite, "invite link", invite_link(INVITE)),
    text(parse_target, "target to join", invite_link(INVITE), MULTIADDR),
    text(parse_peer_address, "peer address", MULTIADDR),
    text(
        parse_dialable,
        "address to dial",
        MULTIADDR,
        MULTIADDR.replace("ip4/203.0.113.1", "dns/a.b"),
        CIRCUIT,
    ),
    Target(
        name="words of relays",
        covers=("protocol.transport.TypedFrames.decode",),
        read=lambda data, _: RELAY_FRAMES.decode(data),
        errors=(DecodeError,),
        examples=lambda: tuple(RELAY_FRAMES.encode(word) for word in WORDS),
        memory_base=STACK_BYTES + PACKER_BYTES,
    ),
    Target(
        name="signals of a punch",
        covers=("protocol.transport.TypedFrames.decode",),
        read=lambda data, _: PUNCH_FRAMES.decode(data),
        errors=(DecodeError,),
        examples=lambda: tuple(PUNCH_FRAMES.encode(signal) for signal in SIGNALS),
        memory_base=STACK_BYTES + PACKER_BYTES,
    ),
    Target(
        name="dial-back",
        covers=("protocol.transport.TypedFrames.decode",),
        read=lambda data, _: DIAL_BACK_FRAMES.decode(data),
        errors=(DecodeError,),
        examples=lambda: tuple(DIAL_BACK_FRAMES.encode(check) for check in CHECKS),
        memory_base=STACK_BYTES + PACKER_BYTES,
    ),
    Target(
        name="address through a relay",
        covers=("dht.reaching.addresses.parse_circuit",),
        read=from_text(parse_circuit),
        errors=(DecodeError,),
        examples=lambda: (f"{MULTIADDR}/p2p-circuit".encode(),),
    ),
    text(parse_listen, "listen address", "/ip4/0.0.0.0/tcp/4001", "/ip6/::1/tcp/0"),
    Target(
        name="credential",
        covers=("protocol.invitations.decode_credential",),
        read=from_bytes(_read_credential),
        errors=(PeerError,),
        examples=lambda: (encode(CREDENTIAL),),
        memory_base=STACK_BYTES + PACKER_BYTES,
        memory_factor=10,
    ),
    Target(
        name="psk file",
        covers=("node.state.keystore.read_psk",),
        read=from_file(read_psk, "swarm.key"),
        errors=(ConfigError,),
        examples=lambda: (b"/key/swarm/psk/1.0.0/\n/base16/\n" + b"ab" * 32 + b"\n",),
        memory_base=FILE_BYTES,
    ),
    Target(
        name="credential file",
        covers=("node.state.invitations.read_credential",),
        read=from_file(lambda path: read_credential(path.parent), "credential"),
        errors=(),
        examples=lambda: (encode(CREDENTIAL),),
        memory_base=FILE_BYTES + PACKER_BYTES,
        memory_factor=10,
    ),
    Target(
        name="body of an invite link",
        covers=("node.peers.invite.parse_invite",),
        read=from_text(parse_invite),
        errors=(ConfigError,),
        examples=lambda: (encode(INVITE),),
        wrap=_link,
        memory_base=STACK_BYTES + PACKER_BYTES,
        memory_factor=20,
    ),
    Target(
        name="file of an invite link",
        covers=("node.peers.invite.read_target", "node.state.ownership.read_secret"),
        read=from_file(lambda path: read_target(None, path, io.BytesIO()), "link"),
        errors=(ConfigError,),
        examples=lambda: (invite_link(INVITE).encode(),),
        memory_base=FILE_BYTES + STACK_BYTES,
        memory_factor=20,
    ),
    Target(
        name="seal that an invite link named",
        covers=("node.peers.two_histories.read_told",),
        read=from_file(lambda path: read_told(path.parent), TOLD_FILE),
        errors=(StateError,),
        examples=lambda: (encode(ToldFile(7, bytes(32))),),
        memory_base=FILE_BYTES + PACKER_BYTES,
        memory_factor=10,
    ),
    Target(
        name="run.toml",
        covers=(
            "node.settings.run_file.read_run_file",
            "node.settings.run_file.parse_run_file",
            "node.settings.run_file.run_file_of",
            "node.settings.toml_file.read_toml",
            "node.settings.toml_file.read_toml_bytes",
            "node.settings.toml_file.parse_toml",
        ),
        read=from_file(read_run_file, "run.toml"),
        errors=(ConfigError,),
        examples=lambda: (run_file_text("run.toml", "a barn").encode(),),
        trees=lambda: (RUN_FILE,),
        dump=toml_bytes,
        memory_base=TOML_BASE,
        memory_factor=TOML_FACTOR,
        weight=2,
    ),
    Target(
        name="run.toml, founded",
        covers=("node.settings.run_file.build_manifest",),
        read=from_file(_founded, "run.toml"),
        errors=(ConfigError, ManifestError),
        trees=lambda: (RUN_FILE,),
        dump=toml_bytes,
        # The text of the run is read, at most 8 MiB of it.
        memory_base=64 * limits.MIB,
        memory_factor=TOML_FACTOR,
        weight=12,
    ),
    Target(
        name="node.toml",
        covers=(
            "node.settings.sections.read_node_file",
            "node.settings.toml_file.parse_sections",
        ),
        read=_node_file,
        errors=(ConfigError,),
        examples=lambda: (toml_bytes(NODE_TOML), b"# nothing\n"),
        trees=lambda: (NODE_TOML,),
        dump=toml_bytes,
        memory_base=TOML_BASE,
        memory_factor=TOML_FACTOR,
    ),
    Target(
        name="scenario",
        covers=("sim.trials.scenario_file.read_scenario_file",),
        read=from_file(_played, "scenario.toml"),
        errors=(ConfigError,),
        trees=lambda: (SCENARIO, LISTED_SCENARIO),
        dump=toml_bytes,
        memory_base=TOML_BASE,
        memory_factor=TOML_FACTOR,
        weight=2,
    ),
    text(read_scenario, "name of a scenario", "mixed"),
    text(parse_source, "source of a text", "notes:2.5", "hf://org/name@main", "-"),
    Target(
        name="line of a trace",
        covers=("node.reporting.tracing.parse_trace_line",),
        read=from_text(parse_trace_line),
        errors=(DecodeError,),
        examples=lambda: tuple(trace_line(record).encode() for record in RECORDS),
        memory_base=STACK_BYTES + PACKER_BYTES,
        memory_factor=JSON_FACTOR,
    ),
]
