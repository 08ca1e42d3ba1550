"""The keys of run.toml and node.toml: each with its default, its unit, and what raising it costs.

What is declared here is read by pydantic, and written where a file is missing: one declaration, one
file that explains itself. Bounds of run.toml's keys are those of the part of the manifest that a
section becomes (its `law`); keys that stand elsewhere in the manifest carry their own. node.toml is
local taste of one node, in its state folder; a command's options outrank it.
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from node.settings.toml_file import (
    Section,
    TemplateLook,
    key,
    parse_sections,
    read_toml,
    template_lines,
)
from node.state.config import (
    DEVICE_DEFAULT,
    LISTEN_DEFAULT,
    RELAY_GIB_DEFAULT,
    RELAY_MBIT_DEFAULT,
    VALIDATION_SHARE_DEFAULT,
    NodeConfig,
)
from node.state.folder import NODE_FILE, write_atomically
from node.trainers.model_file import DRAWN
from protocol import limits
from protocol.errors import ConfigError
from protocol.manifest import (
    AdmissionSpec,
    AuditSpec,
    CorpusSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    StopSpec,
    ThenSpec,
    TimingSpec,
)
from protocol.wire import OneOf, Range
from training.models.genesis import GPT_SIZES, GptSize

BUTTERFLY, GATHER = "butterfly", "gather"
"""Who sums (R8): few each cell, who send the result to all; or everybody all cells."""

TITLE_DEFAULT = "a run among friends"
TITLE_BYTES_MAX = 128


class RunSection(Section):
    """What everybody sees, whom the run trusts, how long it goes on."""

    law: ClassVar[type] = RunManifest
    title: str = key(..., gap=8)
    """everybody sees it before joining"""
    trust: Literal["friends", "open"] = "friends"
    """"friends": people you invite; "open": strangers, quorums of two thirds"""
    survive: Literal["any", "quorum"] = "any"
    """who goes on where the swarm is cut in two: "any" half, or only the "quorum" """
    rounds: int = 200
    """the run ends after so many; the learning rate falls over all of them"""


def _unix_s(value: object) -> object:
    """Seconds of a TOML date, or of the text of one; without a zone it is UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError("must be a date like 2027-01-31 or 2027-01-31T18:00:00Z") from error
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return math.ceil(moment.timestamp())
    if isinstance(value, date):
        return int(datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp())
    raise ValueError("must be a date like 2027-01-31 or 2027-01-31T18:00:00Z")


class StopSection(Section):
    """What else ends the run; `date` is kept as unix seconds, 0 stands for never."""

    law: ClassVar[type] = StopSpec
    tokens: int = 0
    """bytes of text trained on by all together; 0: never"""
    date: Annotated[int, BeforeValidator(_unix_s), Range(0, 2**53)] = key(
        0, example=datetime(2027, 1, 31, 18, tzinfo=UTC)
    )


class AccessSection(Section):
    """Who gets in; `allow` has peer ids as text."""

    mode: Literal["link", "invited"] = "link"
    """"link": whoever has the link; "invited": by `barnraise invite` alone"""
    allow: list[str] = Field(default_factory=list)
    """peer ids that need no invitation, and may invite, besides this node's"""


class AdmissionSection(Section):
    """See AdmissionSpec. What is left out is nothing among friends; in an open run whom nobody
    invited pays for its seat, and newcomers come to their weight slowly."""

    law: ClassVar[type] = AdmissionSpec
    puzzle_bits: int | None = key(example=0)
    """a seat costs about 2^puzzle_bits hashes: 22, the default of open runs that anybody
    may join, takes 3 s on one core; each further bit doubles it"""
    probation: int | None = key(example=0)
    """rounds in which a newcomer's work has no weight; default of open runs: 3"""
    ramp: int | None = key(example=0)
    """rounds in which its weight then grows to the full one; 0: at once. Default of open
    runs: 10. Peers that have a seat by the first round skip both"""
    seats: int = key(limits.SEATS_MAX, is_first=True)
    """most peers that train in one round; if more ask, they take turns of at least 8 rounds
    and follow the run while they wait"""


class AuditsSection(Section):
    """See AuditSpec."""

    law: ClassVar[type] = AuditSpec
    rate: float = 0.0
    """average number of audits per contribution, in open runs: 0.2 is some 3 % more training, and
    at most 10 % that is made again for auditors. `barnraise check` tells the disk space"""
    segments: int = 8
    """parts of a round; an audit trains one of them again"""
    unaudited: float = 0.25
    """most weight, as a share of a round, of all peers together whose training nobody can
    repeat, because too few have such a device. 1.0: no limit"""


class GptSettings(Section):
    """The settings of the built-in model: some 120 000 parameters, with which any laptop ends a
    round within seconds. A model in a file has settings of its own."""

    context: int = GPT_SIZES["120k"].context
    """bytes that the model sees at once; memory and time grow with it"""
    heads: int = GPT_SIZES["120k"].heads
    """must divide width"""
    layers: int = GPT_SIZES["120k"].layers
    """time, memory and payload grow with it"""
    width: int = GPT_SIZES["120k"].width
    """they grow with its square"""


GPT_SETTINGS: Mapping[str, int] = GptSettings().model_dump()


class ModelSection(Section):
    """A built-in model by name, or one in a `file` beside this one; its settings, and the seed of
    its genesis weights. `first_values` says that those of the file are not meant."""

    law: ClassVar[type] = ModelSpec
    name: str = "gpt"
    """a transformer that reads bytes; a link or manifest never carries code"""
    file: str | None = key(example="my_model.py")
    """or your own: it has `def build(**settings)` that returns an nn.Module. Whoever joins
    needs the file from you; the manifest names its digest"""
    first_values: Annotated[str | None, OneOf((DRAWN,))] = key(example=DRAWN)
    """a run draws the first weights; this says that those of the file are not meant, where
    they look as if they were (pretrained, or seeded in build)"""
    seed: int = 0
    """of the first weights"""
    cell_elements: Annotated[
        int | None, Range(limits.CELL_ELEMENTS_MIN, limits.CELL_ELEMENTS_MAX)
    ] = key(example=8192)
    """the grid on which payloads are cut, a power of two. Left out, it follows from the
    model. Larger: fewer proofs; but each node sums whole cells"""
    settings: dict[str, object] = key({}, section=GptSettings)
    """about 12 x layers x width^2 parameters"""


class CorpusSection(Section):
    """The text, and the key of the order in which samples are leased."""

    law: ClassVar[type] = CorpusSpec
    name: str = "stdlib"
    """the sources of the Python library: every peer needs the founder's version"""
    path: str | None = key(example="my_texts")
    """or your own: a file or folder of text, JSONL, CSV or Parquet, or a token store that
    `barnraise data pack` made. Whoever joins needs the token store from you"""
    tokenizer: str | None = key(example="tokenizer.json")
    """of a text of your own; without one its bytes are the tokens"""
    field: str = "text"
    """where the text is in records of JSONL, CSV and Parquet"""
    held_out: Annotated[float, Range(0.0001, 0.9)] = 0.05
    """share of the documents of your own text that measures the loss, and trains nobody"""
    permutation_seed: int = 0
    """the order in which samples are given out"""


class InnerSection(Section):
    """See InnerSpec. The numbers are those of the demo; `inner_steps`, `optimizer` and `sam_radius`
    are the preset's."""

    law: ClassVar[type] = InnerSpec
    inner_steps: int | None = key(example=50)
    """steps per round. More: less traffic, and peers drift further apart"""
    batch: int = 16
    """sequences per step and peer; time grows with it"""
    learning_rate: float = GPT_SIZES["120k"].learning_rate
    """after the warm-up; larger models want less"""
    learning_rate_floor: float = key(0.1, gap=2)
    """where the cosine ends, as a share of learning_rate"""
    warmup_steps: int = 120
    """steps, over rounds, until the full rate"""
    beta1: float = 0.9
    """how long the mean of gradients remembers; higher is smoother and slower"""
    beta2: float = 0.99
    """the same for their squares"""
    weight_decay: float = 0.1
    """pull to zero per step, times the rate; higher fits the text less closely"""
    clip_norm: float = 1.0
    """gradients longer than this are shortened; lower is safer and slower"""
    drift_max: int = 2
    """rounds' worth of steps against one anchor while a round waits"""
    optimizer: str | None = key(example="adamw", is_first=True)
    """or "sgd", without moments and decay. Left out it is the preset's"""
    sam_radius: float | None = key(example=0.0, is_first=True)
    """above 0: gradients from so far uphill, at twice the time (flat minima)"""
    equal_steps: bool = False
    """true: all take inner_steps, and wait for the slowest; false: each as many as fit its speed"""


class ThenSection(Section):
    """See ThenSpec. What is left out is the preset's."""

    law: ClassVar[type] = ThenSpec
    preset: str = key(..., example="eager")
    """such as one that trains on beside an exchange, once the run has settled"""
    from_round: int = key(..., example=100)
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None


class OuterSection(Section):
    """See OuterSpec. What is left out is the preset's; `aggregator` follows from whom the run
    trusts where the preset names none. In so many `fragments` the model is cut, of which each round
    syncs the next; `overlap` rounds are in flight at a time. The `topology` follows from what the
    codec sends. The preset auto begins in the bits that suit `uplink_mbit`, what lines send. `then`
    is the method that follows, if one does."""

    law: ClassVar[type] = OuterSpec
    preset: str = "diloco"
    """the method; what is left out below is the preset's, and `barnraise check` says what
    that is. "sparseloco" sends least; with "auto" each peer takes as many steps as suit its
    speed and line; "fedavg", "diloco_int4", ..."""
    codec: str | None = key(example="fp16")
    """what travels: "fp16", two bytes per parameter, round and peer; "none", four; "int8",
    one; coarser ones lose something: `barnraise bench codecs`"""
    codec_settings: dict[str, object] = key({}, section=Section)
    """of the codec above, such as density = 0.0625 for "sparse2bit": the share of numbers
    that travels; higher loses less and costs more"""
    feedback: float | None = key(example=1.0)
    """share of what the codec loses that is made good in the next round"""
    aggregator: str | None = key(example="mean")
    """left out: "mean", weighted by tokens, which one liar ruins; in open runs "default",
    which clips and filters, and costs some ten times the sums"""
    optimizer: str | None = key(example="nesterov")
    """or "heavy_ball"; "sgd" with learning_rate 1.0 is plain averaging"""
    learning_rate: float | None = key(example=0.7)
    """of the outer step; higher is faster until it diverges"""
    momentum: float | None = key(example=0.5)
    """left out: 0.5, in runs of 500 rounds and more 0.9, because a short run

    ends before so long a memory pays"""
    fragments: Annotated[int | None, Range(1, limits.FRAGMENTS_MAX)] = key(example=1)
    """cut the model in so many, of which each round syncs the next: as much less at a time,
    and each of them in every so many rounds only"""
    overlap: int | None = key(example=1)
    """or 2: train on while a round is in flight, for lines that are slow beside the
    training; a fragment then comes home some steps late"""
    topology: Literal["butterfly", "gather"] | None = key(example="butterfly")
    """each cell is summed by few, who send the result to all; or "gather": everybody sums
    all. Left out: what sends less; `barnraise check` tells"""
    uplink_mbit: Annotated[float | None, Range(0.01, 1e6)] = key(example=20.0)
    """with preset = "auto": what peers' lines send. Each node takes 2, 4 or 8 bits by what
    it measures of its own; below 10 all send few values alone"""
    then: ThenSection | None = key(section=ThenSection, is_first=True)
    """another method from a round on: its schedule, and its outer step"""


class TimingSection(Section):
    """See TimingSpec; for homes, where the demo's are for one machine."""

    law: ClassVar[type] = TimingSpec
    deadline_floor_s: float = 5.0
    """the least that a round waits for its slowest; higher is kinder and slower"""
    deadline_cap_s: float = 60.0
    """the most"""
    heartbeat_s: float = 1.0
    """sign of life to each peer; lower finds the dead sooner, costs frames"""
    suspect_s: float = 8.0
    """silence after which a peer is suspected; at least two heartbeats"""


class RunFile(Section):
    """A whole run.toml. Two that parse to equal values found the same run, whatever they say."""

    run: RunSection
    stop: StopSection = StopSection()
    """what else ends the run, whichever comes first"""
    access: AccessSection = AccessSection()
    """who gets in; runs cannot be changed later, so choose now"""
    admission: AdmissionSection = AdmissionSection()
    """who may contribute, and what a newcomer must do before its work counts (nothing in
    runs of friends)"""
    audits: AuditsSection = AuditsSection()
    """peers train parts of each other's rounds again, to find invented work"""
    model: ModelSection = ModelSection()
    corpus: CorpusSection = CorpusSection()
    inner: InnerSection = InnerSection()
    """steps on each peer, between two rounds"""
    outer: OuterSection = OuterSection()
    """the step that all take together"""
    timing: TimingSection = TimingSection()
    """seconds"""


_RUN_FILE_HEAD = """\
# run.toml: what everybody in this run trains. `barnraise run {name}` founds the run and prints an
# invite link. From then on nothing in here can change; comments may. What is only about your own
# machine belongs to node.toml in the state folder.
"""


def run_file_text(
    name: str, title: str, size: GptSize | None = None, data: str | None = None
) -> str:
    """A run.toml with every key at its default, but for those that make a model of that size, and
    the path of a text of one's own."""
    given: dict[str, object] = {"run.title": title}
    if data is not None:
        given["corpus.path"] = data
    if size is not None:
        given |= {f"model.settings.{key}": value for key, value in size.settings.items()}
        given["inner.learning_rate"] = size.learning_rate
    lines = template_lines(RunFile, TemplateLook(column=23, gap=1), given)
    return _RUN_FILE_HEAD.format(name=name) + "\n".join(lines) + "\n"


def size_named(name: str | None) -> GptSize | None:
    """The size of the built-in model by its name; None where none is given. Raises ConfigError."""
    if name is not None and name.lower() not in GPT_SIZES:
        raise ConfigError(f"--model-size {name!r} is none of {', '.join(GPT_SIZES)}")
    return None if name is None else GPT_SIZES[name.lower()]


def write_run_file(
    path: Path, title: str, size: GptSize | None = None, data: Path | None = None
) -> None:
    """Write a new run.toml; see `run_file_text`. `data` is relative to the working folder.

    Raises ConfigError for a title that no manifest admits, for a text that is not there, and for a
    file that is there already.
    """
    if data is not None and not data.exists():
        raise ConfigError(f"--data: there is no file or folder {data}")
    beside = None if data is None else _seen_from(path.parent, data)
    num_bytes = len(title.encode("utf-8", "replace"))
    if not title.isprintable() or not 1 <= num_bytes <= TITLE_BYTES_MAX:
        raise ConfigError(f"--title: 1 to {TITLE_BYTES_MAX} bytes of printable text")
    try:
        # "x" refuses at once and for good: between a look and a write another could come.
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(run_file_text(path.name, title, size, beside))
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already: name another file, or remove it") from error
    except OSError as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _seen_from(folder: Path, data: Path) -> str:
    """A path as a file in `folder` names it: the two may be moved together."""
    if data.is_absolute():
        return str(data)
    return Path(os.path.relpath(data.resolve(), folder.resolve())).as_posix()


# node.toml ---------------------------------------------------------------------------------------

_NODE_FILE_HEAD = """\
# node.toml: this machine's own settings. All of them may change between two starts; options of the
# command outrank them. Remove the mark in front of a line to change it.

"""


class NodeFile(Section):
    """A node.toml."""

    listen: str = LISTEN_DEFAULT
    """where peers reach us; port 0 takes a free one and keeps it"""
    announce: list[str] = Field(default_factory=list)
    """addresses to tell others, e.g. ["/ip4/203.0.113.1/tcp/4001"] of a router"""
    interface: str = ""
    """tell others the addresses of this interface alone, e.g. "eth0" """
    has_port_mapping: bool = True
    """ask the home's router for a port (NAT-PMP, UPnP); given back at the end"""
    has_mdns: bool = True
    """meet the nodes of this network (mDNS): all of it hears that one is here"""
    private_addresses: str = "auto"
    """in records that strangers read, addresses of this network: "auto", while the node has
    no other; "always"; or "never" """
    bootstrap: list[str] = Field(default_factory=list)
    """peers to ask first: ["/ip4/203.0.113.1/tcp/4001/p2p/12D3Koo..."]"""
    psk: str = ""
    """key file of a private swarm; its nodes meet each other and nobody else"""
    security: str = "tls"
    """of connections: "tls" with all who take it, or "noise" with all"""
    threads: int | None = key(example=1)
    """torch threads; left out, all cores but one"""
    compute_threads: int = 1
    """threads for hashing and sums; each takes a core while it works"""
    device: str = DEVICE_DEFAULT
    """where to train: "auto", "cuda", "mps" or "cpu" """
    start_with: int = 2
    """a founder waits with its first round for so many peers, itself included,"""
    start_within_s: float = 0.0
    """at most so many seconds; 0: for as long as it takes"""
    validate_every: int = 1
    """rounds between looks at held-out text, where there is time; 0: never"""
    validation_share: float = VALIDATION_SHARE_DEFAULT
    """of the time that they may take; the last round's has what it needs"""
    linger_s: float = 15.0
    """seconds to serve others after the last round"""
    up_mbit: float = 0.0
    """Mbit/s of our line that the run may take on the way out; 0: no limit"""
    down_mbit: float = 0.0
    """and on the way in; some kilobytes a round come on top of both"""
    state_mbit: float = 0.0
    """Mbit/s that joiners may take of our line for their state; 0: no limit"""
    relay_gib: float = RELAY_GIB_DEFAULT
    """GiB a day that it carries for peers behind routers, where it can; 0: none"""
    relay_mbit: float = RELAY_MBIT_DEFAULT
    """Mbit/s of the line that this may take; 0: no limit"""
    is_observer: bool = False
    """follow the run without training"""
    status_port: int = 0
    """of the status server on this machine; 0 takes a free one"""
    has_status: bool = True
    """whether there is one"""
    log_level: str = "info"
    """"debug" (a line per message), "info", "warning" or "error" """
    is_log_json: bool = False
    """log lines as JSON objects"""


def node_file_text() -> str:
    """A node.toml with every key at its default, all of it comments."""
    look = TemplateLook(column=25, gap=2, is_marked=True)
    return _NODE_FILE_HEAD + "\n".join(template_lines(NodeFile, look, {})) + "\n"


def read_node_file(state: Path) -> NodeFile:
    """The node.toml of a state folder; a first one, all of it comments, is written there.

    Raises ConfigError naming file and key.
    """
    path = state / NODE_FILE
    if not path.exists():
        write_atomically(path, node_file_text().encode())
    return parse_sections(NodeFile, read_toml(path), path)


def psk_file(file: NodeFile, options: Mapping[str, object], state: Path) -> Path | None:
    """The PSK's key file, by option or node.toml, where a path is seen from the state folder."""
    given = options.get("psk")
    if isinstance(given, Path):
        return given.expanduser().absolute()
    return state / Path(file.psk).expanduser() if file.psk else None


def node_config(
    file: NodeFile, options: Mapping[str, object], *, state: Path, manifest: Path
) -> NodeConfig:
    """The config of one start. `options` are those that the command was given, by field.

    Raises ConfigError naming the field that is out of range.
    """
    values = file.model_dump(exclude={"has_status"})
    for name in ("announce", "bootstrap"):
        values[name] = tuple(values[name])
    values["psk"] = psk_file(file, options, state)
    if values["threads"] is None:
        # One core is for the network process: trainers with a thread too many are far slower.
        values["threads"] = max(1, (os.cpu_count() or 1) - 1)
    if not file.has_status:
        values["status_port"] = None
    # Peers named on the command line are asked besides those of the file.
    named = options.get("bootstrap", ())
    assert isinstance(named, tuple)
    bootstrap = tuple(dict.fromkeys((*named, *values["bootstrap"])))
    try:
        return NodeConfig(
            state=state,
            manifest=manifest,
            **{**values, **options, "bootstrap": bootstrap, "psk": values["psk"]},
        )
    except ConfigError as error:
        given = f"the command's options or {state / NODE_FILE}"
        raise ConfigError(f"{error} (in {given})") from error
