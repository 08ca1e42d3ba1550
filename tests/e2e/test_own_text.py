"""A run on a folder of one's own text, as people do it."""

import json
from pathlib import Path

import pytest

from node.settings.corpus_store import STORES_FOLDER
from tests.e2e.node_command import LOOPBACK, SMALL, command, node, write_run_file

pytestmark = [pytest.mark.slow, pytest.mark.net]

SENTENCES = (
    "The kettle sang before anybody was awake.",
    "Seven lanterns hung along the river, and one of them was out.",
    "She counted the boats twice, and came to different numbers.",
    "Nobody had asked the baker what he thought of it.",
)


def write_texts(folder: Path, count: int = 40) -> None:
    folder.mkdir()
    for index in range(count):
        lines = [f"{SENTENCES[(index * 7 + n) % 4]} {index * n}" for n in range(30)]
        (folder / f"note-{index:02}.md").write_text("# Notes\n\n" + "\n".join(lines))


@pytest.mark.parametrize("tokenizer", [None, "tokens.json"])
def test_two_nodes_train_on_a_folder_of_markdown(tmp_path: Path, tokenizer: str | None) -> None:
    write_texts(tmp_path / "notes")
    changes = SMALL | {"path": '"notes"'}
    if tokenizer is not None:
        made = command(
            tmp_path, "data", "train-tokenizer", "notes", "--vocab", "400", "--out", tokenizer
        )
        assert made.returncode == 0, made.stderr
        changes |= {"tokenizer": f'"{tokenizer}"'}
    write_run_file(tmp_path, **changes)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "node.toml").write_text("start_with = 2\nstart_within_s = 120.0\n")
    with node(tmp_path, "a", "run", "run.toml", *LOOPBACK) as a:
        link = a.link()
        # Without the text nobody trains, and says what to do.
        poor = command(tmp_path, "join", link, *LOOPBACK, "--state", "c")
        assert poor.returncode != 0
        assert "--corpus" in poor.stderr + poor.stdout
        (store,) = (a.state / STORES_FOLDER).iterdir()
        with node(tmp_path, "b", "join", link, "--corpus", str(store), *LOOPBACK) as b:
            assert (a.exit_status(), b.exit_status()) == (0, 0), a.said() + b.said()
    assert "2 of 2 listed" in b.said()
    assert f"the token store is {store}" in a.said()
    made = command(tmp_path, "eval", "--state", "b", "--windows", "8", "--json")
    assert made.returncode == 0, made.stderr
    found = json.loads(made.stdout.splitlines()[-1])
    tokens_per_byte = 1.0 if tokenizer is None else 0.5
    assert 0.0 < found["bits_per_byte"] < 1.1 * found["loss"] * 1.4427 * tokens_per_byte
    made = command(
        tmp_path, "generate", "--state", "b", "--bytes", "20", "--prompt", "The", "--json"
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout.splitlines()[-1])["bytes"] <= 20


def test_text_that_is_packed_is_found_again_until_a_file_changes(tmp_path: Path) -> None:
    write_texts(tmp_path / "notes")
    write_run_file(tmp_path, **SMALL, path='"notes"')
    alone = ("run", "run.toml", "--alone", *LOOPBACK, "--state", "state")
    stores = tmp_path / "state" / STORES_FOLDER
    for _ in range(2):
        done = command(tmp_path, *alone)
        assert done.returncode == 0, done.stderr
        assert len(list(stores.iterdir())) == 1
    first = min((tmp_path / "notes").iterdir())
    first.write_text("Something else altogether. " * 40)
    done = command(tmp_path, *alone, "--new")
    assert done.returncode == 0, done.stderr
    assert len(list(stores.iterdir())) == 2


def test_init_names_the_text_as_the_file_sees_it(tmp_path: Path) -> None:
    write_texts(tmp_path / "notes")
    (tmp_path / "runs").mkdir()
    done = command(tmp_path, "init", "runs/run.toml", "--data", "notes")
    assert done.returncode == 0, done.stderr
    assert '\npath = "../notes"' in (tmp_path / "runs" / "run.toml").read_text()
    done = command(tmp_path, "init", "other.toml", "--data", "nothing")
    assert done.returncode != 0
    assert "there is no file or folder nothing" in done.stderr
