"""run.toml: what a founder writes, and the RunManifest that comes of it."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from node.settings.corpus_store import STORES_FOLDER, founders_corpus
from node.settings.run_checks import impossible, not_in_nodes, out_of_bounds, unknown_names
from node.settings.sections import (
    BUTTERFLY,
    GATHER,
    GPT_SETTINGS,
    AccessSection,
    AdmissionSection,
    OuterSection,
    RunFile,
)
from node.settings.toml_file import (
    Section,
    key_text,
    parse_sections,
    parse_toml,
    read_toml,
    read_toml_bytes,
)
from node.state.folder import default_state
from node.text.shown import shown
from node.trainers.model_file import DRAWN, founders_model
from protocol import limits
from protocol.errors import ConfigError, DecodeError, ManifestError
from protocol.grid import ShardSpec
from protocol.identity import PeerId, parse_peer_id
from protocol.manifest import (
    ARITHMETIC_VERSION,
    WIRE_VERSION,
    AccessSpec,
    AdmissionSpec,
    AuditSpec,
    CorpusSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunManifest,
    Setting,
    StopSpec,
    ThenSpec,
    TimingSpec,
    check_size,
)
from protocol.rounds.reducers import copies, liars
from training.compression import codec_defaults, make_codec, result_codec
from training.methods.presets import AUTO, PRESETS, Preset, momentum_for
from training.models.genesis import MODEL_FILE, VOCABULARY, VOCABULARY_SETTING, shard_spec
from training.outer.optimizers import make_outer

if TYPE_CHECKING:
    from protocol.wire import Scalar

logger = logging.getLogger(__name__)

CELLS_WANTED = 8
"""Few cells would leave nodes without a slice to sum; small ones cost more proof than content."""

_CELL_ELEMENTS_LEAST = 4096

_RULES = {"friends": "mean", "open": "default"}
"""The rule of aggregation where nobody names one."""


@dataclass(frozen=True, slots=True)
class Founder:
    """Who founds a run, and when."""

    peer: PeerId
    unix_s: int


def read_run_file(path: Path) -> RunFile:
    """The run.toml at `path`, every key and bound of it checked, its preset written out.

    Raises ConfigError, a line for each key that is wrong: file, section, key, what is expected.
    """
    return run_file_of(read_toml_bytes(path), path)


def run_file_of(data: bytes, path: Path) -> RunFile:
    """What `read_run_file` makes of the bytes of a run.toml. `path` is named in errors."""
    return write_out(parse_sections(RunFile, parse_toml(data, path), path), path)


def parse_run_file(path: Path) -> RunFile:
    """The run.toml at `path` as it is written; only keys and types are checked."""
    return parse_sections(RunFile, read_toml(path), path)


def write_out(parsed: RunFile, path: Path, *, in_process: bool = False) -> RunFile:
    """A run.toml with its preset and all defaults written into it. `path` is named in errors.

    Methods that no node runs are refused, unless it is for a run in one process. Raises
    ConfigError, a line for each key that is wrong.
    """
    wrong = [*out_of_bounds(parsed), *unknown_names(parsed)]
    if not wrong:
        parsed = _expanded(parsed)
        wrong = [*impossible(parsed), *(() if in_process else not_in_nodes(parsed))]
    if wrong:
        raise ManifestError("\n".join(f"{path}: {line}" for line in wrong))
    return _with_topology(parsed)


def as_its_preset(parsed: RunFile) -> RunFile:
    """What a file that can be written out would be with nothing in [outer] but its preset: perhaps
    nothing that can be run, beside the other sections."""
    outer = OuterSection(preset=parsed.outer.preset, uplink_mbit=parsed.outer.uplink_mbit)
    return _with_topology(_expanded(parsed.model_copy(update={"outer": outer})))


def build_manifest(
    parsed: RunFile,
    founder: Founder,
    path: Path,
    *,
    warn: Callable[[str], None] = logger.warning,
    stores: Path | None = None,
    say: Callable[[str], None] = logger.info,
) -> RunManifest:
    """The manifest of a new run. `path` is the file that errors name.

    Reads the corpus; a text that is not packed yet is packed into `stores`, of the default state
    folder where None. Raises ConfigError for what no peer would take; `warn` is told what peers
    would take, and the founder may not mean.
    """
    if 0 < parsed.stop.date <= founder.unix_s:
        raise ManifestError(
            f"{path}: [stop] date has passed: the run would end with its first round"
        )
    corpus = founders_corpus(
        parsed.corpus,
        path.parent,
        default_state() / STORES_FOLDER if stores is None else stores,
        lease_tokens=_lease_tokens(parsed),
        say=say,
    )
    try:
        model, shard = _model(parsed, path, corpus.vocab_size, warn)
        _check_context(model, corpus)
        outer = _outer_spec(parsed.outer)
        make_outer(outer)
        manifest = RunManifest(
            wire=WIRE_VERSION,
            arithmetic=ARITHMETIC_VERSION,
            title=parsed.run.title,
            founder=founder.peer,
            created_unix_s=founder.unix_s,
            trust=parsed.run.trust,
            survive=parsed.run.survive,
            rounds=parsed.run.rounds,
            model=model,
            shards=(shard,),
            cell_elements=_cell_elements(parsed.model.cell_elements, shard),
            corpus=corpus,
            inner=InnerSpec(**parsed.inner.model_dump()),
            outer=outer,
            timing=TimingSpec(**parsed.timing.model_dump()),
            stop=StopSpec(tokens=parsed.stop.tokens, unix_s=parsed.stop.date),
            access=_access_spec(parsed.access),
            admission=AdmissionSpec(**parsed.admission.model_dump()),
            audits=AuditSpec(**parsed.audits.model_dump()),
        )
        check_size(manifest)
    except (ValueError, ConfigError) as error:
        raise ManifestError(f"{path}: {error}") from error
    return manifest


def _access_spec(section: AccessSection) -> AccessSpec:
    try:
        allow = sorted({parse_peer_id(text) for text in section.allow})
    except DecodeError as error:
        raise ManifestError(f"[access] allow: {error}") from error
    return AccessSpec(mode=section.mode, allow=tuple(allow))


def _largest_fragment(shard: ShardSpec) -> int:
    """Its elements."""
    return max(sum(shard.tensors[i].numel for i in fragment) for fragment in shard.fragments)


def _cell_elements(given: int | None, shard: ShardSpec) -> int:
    """Of a cell. Raises ManifestError for a number that cuts no cells, or more than there may be,
    with the nearest that does."""
    size = given or cell_elements_for(shard)
    if size.bit_count() != 1:
        nearest = 1 << round(math.log2(size))
        raise ManifestError(
            f"[model] cell_elements is {size}, and cells are a power of two; set it to {nearest}"
        )
    numel = _largest_fragment(shard)
    if numel > size * limits.CELLS_MAX:
        least = 1 << (-(-numel // limits.CELLS_MAX) - 1).bit_length()
        what = f"[model] cell_elements to {least}"
        if least > limits.CELL_ELEMENTS_MAX:
            pieces = -(-numel // (limits.CELLS_MAX * limits.CELL_ELEMENTS_MAX))
            most = pieces * len(shard.fragments)
            what = f"[outer] fragments to {most} or more"
            if most > limits.FRAGMENTS_MAX:
                what = "[model] to a smaller one"
        raise ManifestError(
            f"a fragment of {numel:,} elements is over {limits.CELLS_MAX} cells of {size}; set "
            f"{what}"
        )
    return size


def cell_elements_for(shard: ShardSpec) -> int:
    """The largest cell that leaves at least eight of the largest fragment, within a chunk."""
    numel = _largest_fragment(shard)
    wanted = max(_CELL_ELEMENTS_LEAST, numel // CELLS_WANTED)
    return min(limits.CELL_ELEMENTS_MAX, 1 << (wanted.bit_length() - 1))


def first_changed_key(before: RunFile, after: RunFile) -> str | None:
    """Where two files differ first and how, in words; None if they found the same run."""
    return _first_changed((), before.model_dump(), after.model_dump())


def _first_changed(location: tuple[str, ...], before: object, after: object) -> str | None:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            found = _first_changed((*location, key), before.get(key), after.get(key))
            if found is not None:
                return found
        return None
    # To Python 1, 1.0 and True are equal; in a manifest they are not.
    if type(before) is type(after) and before == after:
        return None
    return f"{key_text(location)} was {shown(repr(before), 60)} and is {shown(repr(after), 60)}"


S = TypeVar("S", bound=Section)


def _filled(section: S, defaults: Mapping[str, object]) -> S:
    """A section with these values for the keys that it leaves out."""
    missing = {key: value for key, value in defaults.items() if getattr(section, key) is None}
    return section.model_copy(update=missing)


def _expanded(parsed: RunFile) -> RunFile:
    """The file with all written out that its preset stands for, and the defaults that depend on
    other keys."""
    given, model = parsed.outer, parsed.model
    preset = preset_of(given, parsed.run.rounds)
    codec = given.codec or preset.codec
    overlap, then = preset.overlap, given.then
    if then is not None:
        # The network has as many in flight throughout; trainers wait until the later method begins.
        later = PRESETS[then.preset](parsed.run.rounds)
        overlap = max(overlap, later.overlap)
        then = _filled(then, _outer_step(later, then.optimizer, parsed))
    defaults = {
        "codec": codec,
        "feedback": preset.feedback,
        "aggregator": preset.aggregator or _RULES[parsed.run.trust],
        "fragments": 1 if preset.is_delayed else max(preset.fragments, given.overlap or 1),
        "overlap": overlap,
    }
    outer = _filled(given, defaults | _outer_step(preset, given.optimizer, parsed))
    settings: dict[str, object] = dict(codec_defaults(codec))
    if codec == preset.codec:
        settings |= preset.codec_settings
    settings |= {
        # A manifest has one form of a number: 1 written for a fraction is 1.0.
        key: float(value) if type(value) is int and type(settings.get(key)) is float else value
        for key, value in given.codec_settings.items()
    }
    outer = outer.model_copy(update={"codec_settings": settings, "then": then})
    if model.file is not None:
        model = model.model_copy(update={"name": MODEL_FILE})
    elif model.name == "gpt":
        model = model.model_copy(update={"settings": {**GPT_SETTINGS, **model.settings}})
    own = {
        "inner_steps": preset.inner_steps,
        "optimizer": preset.inner_optimizer,
        "sam_radius": preset.sam_radius,
    }
    inner, admission = _filled(parsed.inner, own), _admission(parsed)
    filled = {"outer": outer, "model": model, "inner": inner, "admission": admission}
    return parsed.model_copy(update=filled)


def _outer_step(preset: Preset, named: str | None, parsed: RunFile) -> dict[str, object]:
    """A preset's outer optimizer and its numbers, or what suits the one that is named instead."""
    optimizer, momentum = named or preset.optimizer, preset.momentum
    if optimizer != preset.optimizer:
        momentum = 0.0 if optimizer == "sgd" else momentum_for(parsed.run.rounds)
    return {
        "optimizer": optimizer,
        "learning_rate": preset.learning_rate,
        "momentum": momentum,
    }


def _with_topology(expanded: RunFile) -> RunFile:
    """The file with who sums, by what its codec sends, where it does not say so."""
    outer = expanded.outer
    if outer.topology is not None:
        return expanded
    plain = outer.model_copy(update={"topology": BUTTERFLY})
    topology = topology_for(_outer_spec(plain), expanded.run.trust)
    return expanded.model_copy(update={"outer": outer.model_copy(update={"topology": topology})})


PUZZLE_BITS, PROBATION, RAMP = 22, 3, 10
"""In open runs. 2^22 hashes are 3 s of one core, once per identity. Three rounds weigh nothing
before ten that grow: no fewer show whether somebody comes back."""


def _admission(parsed: RunFile) -> AdmissionSection:
    is_open = parsed.run.trust == "open"
    by_default = {
        "puzzle_bits": PUZZLE_BITS if is_open and parsed.access.mode == "link" else 0,
        "probation": PROBATION if is_open and parsed.admission.ramp != 0 else 0,
        "ramp": RAMP if is_open else 0,
    }
    return _filled(parsed.admission, by_default)


def preset_of(given: OuterSection, rounds: int) -> Preset:
    """The preset that a section names, for lines as it says. Raises ConfigError for no preset."""
    factory = PRESETS[given.preset]
    if given.preset == AUTO and given.uplink_mbit is not None:
        return factory(rounds, uplink_mbit=given.uplink_mbit)
    return factory(rounds)


def _outer_spec(section: OuterSection) -> OuterSpec:
    given = cast("Mapping[str, Scalar]", section.codec_settings)
    settings = tuple(Setting(name, given[name]) for name in sorted(given))
    fields = section.model_dump(exclude={"fragments", "uplink_mbit", "then"})
    then = () if section.then is None else (ThenSpec(**section.then.model_dump()),)
    return OuterSpec(**fields | {"codec_settings": settings, "then": then})


def _lease_tokens(parsed: RunFile) -> int:
    """Tokens of a lease; 0 where the model has no context, or one that is refused later."""
    context = parsed.model.settings.get("context")
    if not isinstance(context, int) or parsed.inner.inner_steps is None:
        return 0
    return max(0, context) * parsed.inner.batch * parsed.inner.inner_steps


def _model(
    parsed: RunFile, path: Path, vocab_size: int, warn: Callable[[str], None]
) -> tuple[ModelSpec, ShardSpec]:
    section, fragments = parsed.model, parsed.outer.fragments or 1
    given = dict(cast("Mapping[str, Scalar]", section.settings))
    if vocab_size != VOCABULARY:
        given[VOCABULARY_SETTING] = vocab_size
    if section.file is not None:
        return founders_model(
            path.parent / section.file,
            given,
            seed=section.seed,
            fragments=fragments,
            is_drawn=section.first_values == DRAWN,
            warn=warn,
        )
    settings = tuple(Setting(name, given[name]) for name in sorted(given))
    model = ModelSpec(name=section.name, settings=settings, seed=section.seed)
    return model, shard_spec(model, fragments=fragments)


def _check_context(model: ModelSpec, corpus: CorpusSpec) -> None:
    """A window of the model must fit a block of the text twice, or there is nothing to cut."""
    context = next((one.value for one in model.settings if one.name == "context"), None)
    most = corpus.block_tokens // 2
    if isinstance(context, int) and context > most:
        raise ManifestError(f"[model.settings] context is {context}; the text admits 1 to {most}")


# Who sums so that the fewest bytes travel: few each cell, or everybody all cells (R8) ------------

EXPECTED_PEERS = 8
"""For so many a founder's file chooses where it says nothing: nobody knows how many come."""


def num_reducers(peers: int, trust: str, topology: str) -> int:
    """How many sum each cell; each has the result of what it summed."""
    if topology == GATHER:
        return peers
    # In an open run in which all vote more than may lie.
    return min(peers, max(copies(trust), liars(peers, trust) + 1))


def topology_for(spec: OuterSpec, trust: str, peers: int = EXPECTED_PEERS) -> str:
    """Gather where all contributions whole are fewer bytes than shares of them and of the result.

    Never with two rounds in flight (R5): nobody explored that.
    Raises ConfigError for a codec that is none.
    """
    if spec.overlap > 1:
        return BUTTERFLY
    numel = limits.CELL_ELEMENTS_MAX
    payload = make_codec(spec).payload_bytes(numel)
    result = result_codec(spec).payload_bytes(numel)
    reducers = num_reducers(peers, trust, BUTTERFLY)
    of_few = payload * reducers * (peers - 1) + result * (peers - reducers)
    return GATHER if payload * peers * (peers - 1) < of_few else BUTTERFLY


def other_than(topology: str) -> str:
    """The other one."""
    return BUTTERFLY if topology == GATHER else GATHER
