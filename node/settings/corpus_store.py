"""The token store of a run: packed where a run.toml names a text of the founder's, and found again
wherever the run goes on."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from blake3 import blake3

from node.settings.sections import CorpusSection
from node.state.folder import write_atomically
from protocol.errors import ConfigError, CorpusError
from protocol.manifest import CorpusSpec, RunManifest
from training.data.corpus import CORPORA, pin_corpus, pin_store
from training.data.documents import Form
from training.data.packing import PackOptions, pack
from training.data.sources import SourceSpec, list_files
from training.data.store import CORPUS_JSON, TokenStore
from training.data.tokenizers import ByteTokenizer, Tokenizer, open_tokenizer

STORES_FOLDER = "corpora"
"""Of a state folder: the stores that were packed for its runs."""

KEPT_STORE = "corpus_folder"
"""Of a run's folder: a file that says where its token store is."""

_PATH_BYTES_MAX = 4096
_DIGITS = 16
_THREADS_MAX = 8


def founders_corpus(
    section: CorpusSection,
    beside: Path,
    stores: Path,
    *,
    lease_tokens: int,
    say: Callable[[str], None],
) -> CorpusSpec:
    """What a manifest says of the text of a run.toml in the folder `beside`.

    A text that is not packed yet is packed into `stores`, which takes as long as it takes; `say` is
    told. A lease has `lease_tokens`. Raises ConfigError saying what to change.
    """
    if section.path is None:
        return pin_corpus(
            section.name, permutation_seed=section.permutation_seed, lease_bytes=lease_tokens
        )
    facts = TokenStore.open(founders_store(section, beside, stores, say)).facts
    return pin_store(
        facts,
        _name_of(section.path),
        permutation_seed=section.permutation_seed,
        lease_bytes=lease_tokens * facts.token_bytes,
    )


def founders_store(
    section: CorpusSection, beside: Path, stores: Path, say: Callable[[str], None]
) -> Path:
    """The folder of the token store that `[corpus] path` names, or that its text is packed into.

    Once packed it is found again, for as long as no file of the text changes.
    """
    assert section.path is not None
    source = beside / Path(section.path).expanduser()
    if (source / CORPUS_JSON).exists():
        return source
    spec, tokenizer = SourceSpec(str(source)), _tokenizer(section, beside)
    files = [asdict(file) for file in list_files(spec).files]
    told = [files, asdict(tokenizer.facts), section.field, section.held_out]
    folder = stores / blake3(json.dumps(told, sort_keys=True).encode()).hexdigest()[:_DIGITS]
    if (folder / CORPUS_JSON).exists():
        return folder
    say(f"packing the text {source}: {len(files):,} files")
    options = PackOptions(
        sources=(spec,),
        out=folder,
        form=Form(field=section.field),
        held_out_share=section.held_out,
        threads=min(_THREADS_MAX, os.cpu_count() or 1),
    )
    facts = pack(options, tokenizer)
    tokens = facts.training.tokens + facts.held_out.tokens
    documents = facts.training.documents + facts.held_out.documents
    say(f"packed {documents:,} documents, {tokens:,} tokens; the token store is {folder}")
    return folder


def _tokenizer(section: CorpusSection, beside: Path) -> Tokenizer:
    if section.tokenizer is None:
        return ByteTokenizer()
    return open_tokenizer(str(beside / Path(section.tokenizer).expanduser()))


def _name_of(path: str) -> str:
    """The last part of a path in the letters that a manifest takes."""
    name = re.sub(r"[^a-z0-9_.+-]+", "-", Path(path).name.lower())[:48].strip("-.")
    # A text of the user's is none that other machines have, whatever it is called.
    return f"text-{name}" if not name or name.partition("-")[0] in CORPORA else name


def kept_store(manifest: RunManifest, given: Path | None, folder: Path) -> Path | None:
    """The folder of the run's token store: the one that the user names, which is remembered in the
    run's `folder`, or the one that was remembered; None where the text is one that machines have.

    Raises CorpusError where there is none, or `given` holds another text, saying what to do.
    """
    if given is not None:
        root = TokenStore.open(given).facts.root
        if root != manifest.corpus.digest.hex():
            raise CorpusError(
                f"{given} holds another text than the run's: its root is {root[:12]}, the run's "
                f"{manifest.corpus.digest.hex()[:12]}"
            )
        write_atomically(folder / KEPT_STORE, str(given.resolve()).encode())
        return given
    try:
        with (folder / KEPT_STORE).open("rb") as file:
            return Path(os.fsdecode(file.read(_PATH_BYTES_MAX)))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {folder / KEPT_STORE}: {error.strerror}") from error
