"""No decoder without fuzz: whoever adds one, by whatever name decoders have, adds it to a table."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGES, Module, module_from_source, read_modules
from tests.fuzz.protocol_targets import WIRE_EXAMPLES
from tests.fuzz.test_decoders import TARGETS

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.xdist_group("tree")

DECODER = re.compile(r"(decode|parse|open|load|read|receive|feed|unpack|from)(_.*)?")
"""What functions are called that make something of bytes or text that somebody else wrote."""

COVERED = {name for target in TARGETS for name in target.covers}

EXEMPT = {
    "dht.transport.libp2p_dialing.CircuitConnection.read": "hands bytes on as they came",
    "dht.reaching.relay_server.RelayBooks.open_circuit": "notes what the relay itself opens",
    "dht.transport.libp2p_link.Links.open": "makes an object",
    "dht.transport.libp2p_inbound.Lines.receive_raw": "a seam; its implementation is fuzzed",
    "dht.transport.libp2p_link.Link.read": "hands bytes on as they came",
    "dht.transport.libp2p_link.KnockingStream.read": "hands bytes on as they came",
    "dht.transport.libp2p_session.Session.receive": "a seam; its implementations are fuzzed",
    "dht.transport.libp2p_security.TlsSession.receive": "OpenSSL decodes; what it makes is fuzzed",
    "dht.transport.libp2p_yamux.Yamux.open_stream": "opens; what comes is read elsewhere",
    "dht.transport.libp2p_transport.Libp2pTransport.open_stream": "opens; what comes is not read",
    "dht.transport.libp2p_transport.open_transport": "opens; what comes is read elsewhere",
    "node.trainers.attached_trainer.Attachment.open_trainer": "opens; what comes is read elsewhere",
    "node.trainers.attached_trainer.Attachment.read": "bytes to FrameReader.feed",
    "node.trainers.attached_trainer.Attachment.receive": "frames that FrameReader.feed has made",
    "sim.demo.display.open_display": "draws",
    "node.holdings.text_blocks.BlockStore.read": "a seam",
    "node.holdings.text_blocks.BlockFolder.read": "bytes as they lie there, if they are the block",
    "node.holdings.text_blocks.WholeText.read": "bytes as they lie there, if they are the block",
    "node.holdings.journal.Journal.read_chain": "a seam; its implementation is fuzzed",
    "protocol.rounds.roster.ClockRules.from_manifest": "a decoded manifest in, numbers out",
    "protocol.rounds.round_config.RoundConfig.from_manifest": "a decoded manifest in, numbers out",
    "node.daemon.running.read_line": "at most 256 bytes as they came",
    "node.holdings.shard_store.ShardStore.decode": "payloads that the codec has taken one by one",
    "node.processes.children.open_json_child": "opens; a child of our own, told by its parent",
    "node.processes.children.read_lines": "lines to parse_event, which is fuzzed, or of our own",
    "node.processes.machine.read_machine": "what the system says of itself",
    "node.state.known_peers.read_table": "a file to read_known_peers, which is fuzzed",
    "node.reporting.trace_file.read_trace": "lines to parse_trace_line, which is fuzzed",
    "node.trainers.trainer.Trainer.read_events": "frames that FrameReader.feed has made",
    "node.trainers.trainer.TrainerLine.receive": "a seam; frames that FrameReader.feed has made",
    "node.trainers.trainer.open_trainer": "opens; what comes is read elsewhere",
    "protocol.transport.Stream.receive_exactly": "a seam; its implementation is fuzzed",
    "protocol.transport.Stream.receive_frame": "a seam; its implementation is fuzzed",
    "protocol.transport.Stream.receive_into": "a seam; its implementation is fuzzed",
    "protocol.transport.Transport.open_stream": "a seam",
    "protocol.transport.TypedFrames.receive": "a frame to TypedFrames.decode, which is fuzzed",
    "sim.bench.libp2p_stock.StockStream.receive_exactly": "of our own process, in a bench",
    "sim.bench.libp2p_stock.open_stock": "opens; what comes is read elsewhere",
    "sim.bench.sampling.read_samples": "a file of our own sampler, in a bench",
    "sim.bench.link_ends.Channel.receive_exactly": "a seam; its implementation is fuzzed",
    "training.channel.channel_file.ChannelFile.read_anchor": "float32 as they lie there",
    "training.channel.trainer_end.ControlPipe.receive": "frames that FrameReader.feed has made",
    "training.data.chats.read_template": "a megabyte of the user's own, taken as text",
    "training.data.dedupe.PackJournal.load": "text of our own journal; SQLite reads the file",
    "training.data.documents.read_documents": "tests/training/data/hostile_sources.py",
    "training.data.store.TokenStore.open": "read_facts, which is fuzzed; blocks go by digests",
    "training.data.store.TokenStore.read_block": "bytes as they lie there, if they are the block",
    "training.data.tokenizers.open_tokenizer": "tests/training/data/hostile_sources.py",
    "training.data.tokenizers.Tokenizer.decode": "a seam",
    "training.data.tokenizers.ByteTokenizer.decode": "any bytes are a text",
    "training.data.tokenizers.FileTokenizer.decode": "numbers that a model drew; a library decodes",
    "training.evaluation.writing.TextWriter.read": "any bytes are a prompt",
    "training.data.corpus.open_corpus": "TokenStore.open, or hashes of this machine's library",
    "training.data.corpus.read_stdlib": "text as it lies there",
    "training.device.device.open_device": "a name out of a fixed set",
    "training.models.building.read_fragment": "weights of a module in memory",
    "training.models.building.read_fragments": "weights of a module in memory",
    "training.kernels.load": "takes what our own installation built, beside its source",
}


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def decoders(modules: Sequence[Module]) -> Iterator[str]:
    """Public functions and methods with such a name, dotted."""

    def named(body: Sequence[ast.stmt], where: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, FUNCTIONS) and DECODER.fullmatch(node.name):
                yield f"{where}.{node.name}"

    for module in modules:
        yield from named(module.tree.body, module.name)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from named(node.body, f"{module.name}.{node.name}")


def wire_types(modules: Sequence[Module]) -> Iterator[str]:
    """Types that some code asks `protocol.wire.decode` for by name."""
    for module in modules:
        for node in ast.walk(module.tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            if node.func.id != "decode":
                continue
            kinds = [arg.id for arg in node.args[:1] if isinstance(arg, ast.Name)]
            # `kind` stands for one of a table of types, and the tables are in `strategies`.
            yield from (name for name in kinds if name[0].isupper())


@pytest.fixture(name="library")
def fixture_library() -> list[Module]:
    modules = read_modules(ROOT, PACKAGES)
    assert {module.package for module in modules} == set(PACKAGES)
    return modules


def test_every_decoder_is_fuzzed_or_says_why_not(library):
    missing = [name for name in decoders(library) if name not in COVERED | EXEMPT.keys()]
    assert missing == [], "add a Target in tests/fuzz, or a reason to EXEMPT"


def test_every_type_on_the_wire_is_fuzzed(library):
    known = {kind.__name__ for kind, examples in WIRE_EXAMPLES.items() if examples}
    assert sorted(set(wire_types(library)) - known) == []
    assert [kind.__name__ for kind, examples in WIRE_EXAMPLES.items() if not examples] == []


def test_nothing_is_exempt_or_covered_that_is_gone(library):
    names = set(decoders(library))
    assert sorted(EXEMPT.keys() - names) == []
    modules = {module.name for module in library}
    gone = [name for name in COVERED if not any(name.startswith(f"{m}.") for m in modules)]
    # Some decoders go by other names than the pattern's; of those, the module must be there.
    named = [name for name in COVERED if DECODER.fullmatch(name.rpartition(".")[2])]
    assert gone == []
    assert sorted(set(named) - names) == []


def test_newcomer_is_seen():
    source = """
def decode_news(data): ...
async def receive_news(stream): ...
def _decode_inside(data): ...
def readiness(): ...
class News:
    @classmethod
    def from_bytes(cls, data): ...
class _Hidden:
    def decode(self, data): ...
def use(data): return decode(News, data)
"""
    module = module_from_source("node/news.py", source)
    assert list(decoders([module])) == [
        "node.news.decode_news",
        "node.news.receive_news",
        "node.news.News.from_bytes",
    ]
    assert list(wire_types([module])) == ["News"]
