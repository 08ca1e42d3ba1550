"""`barnraise data` as people run it: from files to a store, and on behind a kill."""

import gzip
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.demo_command import environment
from tests.e2e.hub_stub import hub
from tests.e2e.node_command import COMMAND
from tests.training.data.test_documents import as_jsonl
from tests.training.data.test_packing import texts_of, write_mixed
from training.data.store import UNFINISHED

pytestmark = pytest.mark.slow

KEYS = {"documents", "skipped", "tokens", "bytes", "blocks", "root"}


def data(folder: Path, *words: object, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, "data", *map(str, words)],
        cwd=folder,
        env=environment(),
        input=text,
        capture_output=True,
        timeout=120,
        check=False,
    )


def told(folder: Path, *words: object, text: bytes = b""):
    done = data(folder, *words, "--json", text=text)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.splitlines()[-1])


def test_tokenizer_is_trained_and_a_mixed_set_packed_and_shown(tmp_path: Path) -> None:
    write_mixed(tmp_path / "in")
    made = told(tmp_path, "train-tokenizer", "in", "--vocab", 500, "--out", "t.json")
    assert made["vocab"] <= 500
    packed = told(tmp_path, "pack", "in", "--out", "store", "--tokenizer", "t.json")
    assert packed.keys() >= KEYS
    assert packed["documents"] == 180
    assert packed["skipped"] == 122
    assert packed["tokens"] < packed["bytes"]
    assert packed["tokenizer"]["digest"] == made["digest"]
    assert told(tmp_path, "show", "store", "--verify") == packed
    lines = data(tmp_path, "show", "store").stdout.decode()
    assert packed["root"] in lines
    assert "120 of: duplicate (" in lines


def test_standard_input_gives_the_store_of_the_same_file(tmp_path: Path) -> None:
    content = as_jsonl(texts_of(1, 3))
    (tmp_path / "a.jsonl").write_bytes(content)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content))
    by_file = told(tmp_path, "pack", "a.jsonl", "--out", "one")
    by_pipe = told(tmp_path, "pack", "-", "--out", "two", "--stdin-format", "jsonl", text=content)
    by_glob = told(tmp_path, "pack", "*.gz", "--out", "three")
    assert by_file["root"] == by_pipe["root"] == by_glob["root"]
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [
        *("blocks.bin", "corpus.json", "documents.bin", "tokens.bin")
    ]


def test_chats_and_best_fit_from_the_command(tmp_path: Path) -> None:
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes"}]}
        for text in texts_of(1, 20)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, chats)))
    words = ("--chat-template", "chatml", "--pack", "best-fit", "--context", 256)
    packed = told(tmp_path, "pack", "a.jsonl", "--out", "s", *words)
    assert packed["documents"] == 20
    assert packed["context"] == 256
    assert packed["training"]["tokens"] % 256 == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("pack", "none", "--out", "s"), "there is no file, folder or pattern none"),
        (("pack", "a.txt", "--out", "s"), "only one document"),
        (("pack", "a.txt", "--out", "s", "--tokenizer", "none.json"), "train-tokenizer"),
        (("pack", "a.txt", "--out", "s", "--tokenizer", "a.txt"), "no JSON object"),
        (("pack", "a.txt", "--out", "s", "--pack", "best-fit"), "give both or neither"),
        (("pack", "a.txt", "--out", "s", "--held-out", "2"), "between 0 and 1"),
        (("pack", "a.txt:200", "--out", "s"), "at most 100"),
        (("pack", "a.txt", "--out", "."), "is not empty"),
        (("show", "."), "barnraise data pack"),
        (("train-tokenizer", "a.txt", "--out", "a.txt"), "--force"),
        (("train-tokenizer", "a.txt", "--vocab", "7"), "257"),
    ],
)
def test_refusal_is_one_line_that_says_what_to_do(
    tmp_path: Path, words: tuple[str, ...], why: str
) -> None:
    (tmp_path / "a.txt").write_text("one")
    done = data(tmp_path, *words)
    assert done.returncode == 2
    assert why in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_pack_that_is_ended_by_a_signal_goes_on_to_the_same_store(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "a.jsonl").write_bytes(as_jsonl(texts_of(1, 40_000)))
    whole = told(tmp_path, "pack", "a.jsonl", "--out", "whole")
    words = [*COMMAND, "data", "pack", "a.jsonl", "--out", "torn"]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE)
    tokens, ends_s = tmp_path / "torn" / UNFINISHED / "tokens.bin", time.monotonic() + 60
    while not (tokens.exists() and tokens.stat().st_size > 1_000_000):
        assert process.poll() is None
        assert time.monotonic() < ends_s
    process.send_signal(number)
    stderr = process.communicate()[1].decode()
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert stderr == "stopped; the same command goes on where it stopped\n"
    assert told(tmp_path, "pack", "a.jsonl", "--out", "torn")["root"] == whole["root"]


@pytest.mark.net
def test_data_set_of_a_hub_is_streamed_and_one_that_breaks_off_makes_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = texts_of(1, 40)
    files = {
        "README.md": b"# A data set\n",
        "data/train-00000-of-00002.jsonl": as_jsonl(texts[:25]),
        "data/train-00001-of-00002.jsonl": as_jsonl(texts[25:]),
    }
    (tmp_path / "same.jsonl").write_bytes(as_jsonl(texts))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with hub("org/name", files) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        packed = told(tmp_path, "pack", "hf://org/name@main", "--out", "hub")
        assert packed["root"] == told(tmp_path, "pack", "same.jsonl", "--out", "file")["root"]
        done = data(tmp_path, "pack", "hf://org/none", "--out", "none")
        assert done.returncode == 2
        assert "hf://org/none cannot be read" in done.stderr.decode()
    with hub("org/name", files, broken="data/train-00001-of-00002.jsonl") as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        done = data(tmp_path, "pack", "hf://org/name@main", "--out", "broken")
        assert done.returncode == 2
        assert "hf://org/name@main cannot be read" in done.stderr.decode()
        assert not (tmp_path / "broken" / "corpus.json").exists()
