"""`barnraise data`: token stores out of anybody's text, and tokenizers for them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.app import (
    ForceOption,
    JsonOption,
    app,
    grouped,
    print_json,
    progress_bars,
    say,
)

if TYPE_CHECKING:
    from training.data.documents import Form
    from training.data.sources import Kind
    from training.data.store import StoreFacts

data_app = typer.Typer(
    help="Token stores: text made ready to train on, and tokenizers for it.", no_args_is_help=True
)
app.add_typer(data_app, name="data")


@data_app.callback()
def data() -> None:
    """Token stores: text made ready to train on, and tokenizers for it."""


class StdinKind(StrEnum):
    """What standard input may hold."""

    TEXT = "text"
    JSONL = "jsonl"
    CSV = "csv"
    TSV = "tsv"


class Packed(StrEnum):
    """How documents are put behind one another."""

    CONCAT = "concat"
    BEST_FIT = "best-fit"


SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help=(
            "Files, folders or patterns of text, JSONL, CSV and Parquet, also with .gz or .zst; -"
            " for standard input; hf://ORG/NAME@REVISION for a data set of the hub. A weight may"
            " follow behind a colon."
        ),
    ),
]
StoreArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of a token store.", show_default=False)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """Options that say how sources become documents."""

    field: Annotated[
        str | None,
        typer.Option(
            help="Field of JSONL, CSV and Parquet that holds the text.",
            show_default="text, or messages with a chat template",
        ),
    ] = None
    chat_template: Annotated[
        str | None,
        typer.Option(
            help=(
                "Write out lists of messages by this template: chatml, a file of Jinja, or a"
                " tokenizer_config.json."
            ),
            show_default=False,
        ),
    ] = None
    stdin_format: Annotated[StdinKind, typer.Option(help="Format of standard input.")] = (
        StdinKind.TEXT
    )

    @property
    def stdin_kind(self) -> "Kind":
        """What standard input holds."""
        return self.stdin_format.value

    def form(self) -> "tuple[Form, dict[str, str]]":
        """How a record becomes text, and what a store notes about it."""
        from training.data.chats import chat_renderer, read_template
        from training.data.documents import Form

        if self.chat_template is None:
            return Form(self.field or "text"), {}
        template = read_template(self.chat_template)
        return Form(self.field or "messages", chat_renderer(template)), {"chat_template": template}


@data_app.command("pack")
@grouped
def pack_sources(
    *,
    sources: SourcesArgument,
    out: Annotated[Path, typer.Option(help="New folder for the store.", show_default=False)],
    reading: ReadingOptions,
    tokenizer: Annotated[
        str, typer.Option(help="The tokenizer: bytes, or the path of a tokenizer.json.")
    ] = "bytes",
    end_of_document: Annotated[
        str | None,
        typer.Option(
            help="Special token of the tokenizer that ends a document.",
            show_default="the usual one",
        ),
    ] = None,
    held_out: Annotated[
        float, typer.Option(help="Share of the documents that is held out for validation.")
    ] = 0.05,
    pack: Annotated[
        Packed,
        typer.Option(
            help=(
                "Put documents behind one another (concat), or so that windows of --context tokens"
                " cut few of them (best-fit)."
            )
        ),
    ] = Packed.CONCAT,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window; only for best-fit packing.", show_default=False),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Number of threads that tokenise.", show_default="one per core"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make a token store from text; the same command goes on with one that was interrupted."""
    from protocol.errors import ConfigError
    from training.data import packing
    from training.data.sources import parse_source
    from training.data.tokenizers import open_tokenizer

    if (context is not None) != (pack is Packed.BEST_FIT):
        raise ConfigError("--pack best-fit and --context belong together: give both or neither")
    form, notes = reading.form()
    options = packing.PackOptions(
        sources=tuple(parse_source(text) for text in sources),
        out=out.expanduser(),
        form=form,
        stdin_kind=reading.stdin_kind,
        held_out_share=held_out,
        context=context or 0,
        threads=threads or min(os.cpu_count() or 1, packing.THREADS_MAX),
        notes=notes,
    )
    is_chat = reading.chat_template is not None
    opened = open_tokenizer(tokenizer, end_of_document, is_chat=is_chat)
    with _interruptible("the same command goes on where it stopped"), progress_bars() as bars:
        begin, tell = bars
        begin("packing")
        facts = packing.pack(options, opened, tell)
    _show(out, facts, json=json)


@data_app.command("show")
def show_store(
    folder: StoreArgument,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every block against its digest.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show what a token store holds."""
    from training.data.store import TokenStore

    store = TokenStore.open(folder.expanduser())
    if verify:
        store.verify()
    _show(folder, store.facts, json=json)


@data_app.command("train-tokenizer")
@grouped
def train_one(
    *,
    sources: SourcesArgument,
    reading: ReadingOptions,
    vocab: Annotated[int, typer.Option(help="Number of tokens in the vocabulary.")] = 16000,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("tokenizer.json"),
    sample_mib: Annotated[
        int,
        typer.Option(
            help="MiB of text to learn from, spread over the sources; more take more memory.",
            min=1,
            max=4096,
        ),
    ] = 64,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Train a tokenizer on text; the same text gives the same file."""
    from protocol.errors import ConfigError
    from protocol.limits import MIB
    from training.data.documents import ReadTally, sample_documents
    from training.data.sources import list_files, parse_source
    from training.data.tokenizers import FileTokenizer, train_tokenizer
    from training.files.durable import replace_durably

    out = out.expanduser()
    if out.exists() and not force:
        raise ConfigError(f"{out} is there already: name another file, or overwrite it by --force")
    form, _ = reading.form()
    found = [list_files(parse_source(text), reading.stdin_kind) for text in sources]
    files = [file for one in found for file in one.files]
    tally, total, counts = ReadTally(), sum(file.num_bytes for file in files), [0, 0]

    def texts() -> Iterator[bytes]:
        for one in sample_documents(files, form, sample_mib * MIB, tally):
            counts[0] += 1
            counts[1] += len(one)
            tell(tally.num_bytes, total)
            yield one

    with _interruptible("no file was written"), progress_bars() as (begin, tell):
        begin("reading")
        content = train_tokenizer(texts(), vocab)
    if not counts[0]:
        raise ConfigError("the sources hold no document: see what `barnraise data pack` says")
    facts = FileTokenizer(content).facts
    replace_durably(out, [content])
    told = {"documents": counts[0], "bytes": counts[1], "vocab": facts.vocab_size}
    if json:
        print_json(told | {"digest": facts.digest, "path": str(out)})
    else:
        sys.stdout.write(
            f"{out}: {facts.vocab_size:,} tokens, learnt from {counts[0]:,} documents of "
            f"{counts[1]:,} bytes\n"
        )


@contextmanager
def _interruptible(words: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped; {words}")
        raise


def _show(folder: Path, facts: "StoreFacts", *, json: bool) -> None:
    """What a store holds, as a line of JSON or as a table for people."""
    from node.text.shown import shown

    skipped = _counts(facts.made.get("skipped"))
    parts = (facts.training, facts.held_out)
    found = {
        "documents": sum(part.documents for part in parts),
        "skipped": sum(skipped.values()),
        "tokens": sum(part.tokens for part in parts),
        "bytes": sum(part.text_bytes for part in parts),
        "blocks": facts.token_blocks,
        "root": facts.root,
    }
    if json:
        more = {name: value for name, value in asdict(facts).items() if name not in found}
        print_json(found | {"skipped_by_reason": skipped} | more)
        return
    lines = [f"token store {folder}"]
    for name, part in (("training", facts.training), ("held out", facts.held_out)):
        lines.append(
            f"{name:>10}  {part.documents:,} documents, {part.text_bytes:,} bytes of text, "
            f"{part.tokens:,} tokens, {part.blocks:,} blocks of {facts.block_bytes >> 10:,} KiB"
        )
    lines.append(f" tokenizer  {facts.tokenizer.kind}, {facts.tokenizer.vocab_size:,} tokens")
    examples = facts.made.get("examples")
    for reason, count in sorted(skipped.items()):
        where = examples.get(reason, "") if isinstance(examples, dict) else ""
        lines.append(f"   skipped  {count:,} of: {shown(reason)} ({shown(str(where))})")
    lines.append(f"      root  {facts.root}")
    sys.stdout.write("\n".join(lines) + "\n")


def _counts(value: object) -> dict[str, int]:
    """What was skipped, by reason: the file may say anything there."""
    body = value if isinstance(value, dict) else {}
    return {str(reason): count for reason, count in body.items() if isinstance(count, int)}
