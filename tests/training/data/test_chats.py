"""Chats as texts: templates, and messages that they do not take."""

import json
from pathlib import Path

import pytest

from protocol.errors import CorpusError
from training.data.chats import chat_renderer, read_template
from training.data.documents import Form, read_documents
from training.data.sources import BadDocument, SourceSpec, list_files

MESSAGES = [{"role": "user", "content": "Hi <b>"}, {"role": "assistant", "content": "Hello"}]


def test_chatml_writes_roles_and_contents() -> None:
    text = chat_renderer(read_template("chatml"))(MESSAGES)
    assert text == ("<|im_start|>user\nHi <b><|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n")


def test_template_comes_from_a_file_or_from_the_configuration_of_a_tokenizer(
    tmp_path: Path,
) -> None:
    template = "{%- for m in messages %}\n{{ m['role'][0] }}: {{ m['content'] }};\n{%- endfor %}"
    (tmp_path / "chat.jinja").write_text(template)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    for name in ("chat.jinja", "tokenizer_config.json"):
        render = chat_renderer(read_template(str(tmp_path / name)))
        assert render(MESSAGES) == "u: Hi <b>;a: Hello;"


@pytest.mark.parametrize(
    "content", [None, b"{", b"[]", b'{"chat_template": 1}', b"\xff", b" " * 2**21]
)
def test_file_that_has_no_template_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer_config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusError):
        read_template(str(path))


def test_template_that_no_store_could_keep_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("x" * 70_000)
    with pytest.raises(CorpusError, match="more than 64 KiB"):
        read_template(str(tmp_path / "chat.jinja"))


def test_template_that_is_none_is_refused() -> None:
    with pytest.raises(CorpusError, match="chat template is none"):
        chat_renderer("{% for %}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ range(100000000) | list }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[99].role }}",
        "{{ 1 // 0 }}",
        "{{ messages + 1 }}",
    ],
)
def test_template_reaches_nothing_outside_and_its_errors_are_told(template: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        chat_renderer(template)(MESSAGES)


def test_chats_that_the_template_does_not_take_are_counted(tmp_path: Path) -> None:
    bad: list[object] = [None, "text", [1], [{"role": "user"}], [{"role": 1, "content": "x"}], {}]
    lines = [json.dumps({"messages": one}) for one in (MESSAGES, *bad)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (file,) = list_files(SourceSpec(str(tmp_path / "a.jsonl"))).files
    form = Form("messages", chat_renderer(read_template("chatml")))
    found = list(read_documents(file, form))
    assert isinstance(found[0], bytes)
    assert [one.reason for one in found[1:] if isinstance(one, BadDocument)] == [
        "chat that its template does not take"
    ] * len(bad)
