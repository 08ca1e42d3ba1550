"""The table of every kind against every act in sim/PROTOCOL_ATTACKS.md has no empty square.

Some squares rest on what is of any kind alike, and is looked at here.
"""

import random
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import trio

from node.peers.handshake import HELLO_S, shake_hands
from protocol import frames
from protocol.entry_kinds import Accusation
from protocol.errors import ProofError
from protocol.evidence import Evidence, decode_evidence, two_messages_evidence
from protocol.frames import Bulk, Hello, encode_frame
from protocol.manifest import WIRE_VERSION
from protocol.messages import _BODIES, Kind, decode_body, sign_message
from protocol.wire import encode
from sim.attacks.insider import Bender
from tests.node.edge import signed, toy_manifest
from tests.node.peers.test_handshake import OURS, Door, ends
from tests.node.rules.test_silence import OTHERS, heard, silence_after
from tests.protocol import vectors
from tests.protocol.strategies import BULK

ROOT = Path(__file__).parent.parent
ACTS = ("never", "late", "half", "twice", "other", "too many", "bent")
_, _, SECTION = (
    (ROOT / "sim" / "PROTOCOL_ATTACKS.md")
    .read_text("utf-8")
    .partition("\n## Every kind, every act\n")
)
HEAD, *ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line.startswith("| ")
]
EXPLAINED = {
    code: (words.strip(), re.findall(r"`(tests/[^`]+)`", rest))
    for code, words, rest in re.findall(r"(?m)^- \*\*(\w+)\*\* (.*?)((?:`tests/.*)?)$", SECTION)
}


def spoken() -> set[str]:
    """All that this version says, as the table calls it."""
    kinds = {kind.name for kind in _BODIES} | {kind.__name__ for kind in frames._TYPES.values()}
    headers = {kind.__name__ for kind in BULK}
    return kinds | headers | {f"cells of {bulk.name}" for bulk in Bulk}


def test_every_kind_has_one_row_and_nothing_else_has():
    named = [row[0].strip("`") for row in ROWS]
    assert tuple(HEAD[1:]) == ACTS
    assert sorted(named) == sorted(spoken())


def test_no_square_is_empty_and_every_code_is_explained_once():
    codes = {code for row in ROWS for square in row[1:] for code in square.split(", ")}
    assert {len(row) for row in ROWS} == {1 + len(ACTS)}
    assert "" not in codes
    assert codes == EXPLAINED.keys()
    assert len(re.findall(r"(?m)^- \*\*", SECTION)) == len(EXPLAINED)


@cache
def source(path: str) -> str:
    """What is in a file of the tests; nothing where there is none."""
    file = ROOT / path
    return file.read_text("utf-8") if file.is_file() else ""


@pytest.mark.parametrize("code", EXPLAINED)
def test_code_says_in_words_what_happens_and_names_tests_that_there_are(code):
    words, tests = EXPLAINED[code]
    assert len(words) > 20
    assert tests
    for test in tests:
        path, _, name = test.partition("::")
        assert re.search(rf"^(async )?def {name}\(", source(path), re.MULTILINE), test


# Of any kind alike --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", _BODIES, ids=lambda kind: kind.name)
def test_two_messages_of_any_kind_in_one_slot_convict_their_sender(kind: Kind, seed: int) -> None:
    message, bender = vectors.SIGNED[kind], Bender(random.Random(seed))
    signer, body = vectors.SIGNER, decode_body(vectors.SIGNED[kind])
    other = None
    while other is None or other == body:
        try:
            other = bender.field(body)
            second = sign_message(signer, message.slot, other)
        except (ValueError, AssertionError):  # Of another slot, or what a type refuses.
            other = None
    proof = two_messages_evidence(message, second)
    found = decode_evidence(proof.encoded, message.slot.run, signer)
    assert (found.accusation, found.subject) == (Accusation.TWO_MESSAGES, message.sender)
    with pytest.raises(ValueError, match="must ascend"):  # The same one, said again.
        two_messages_evidence(message, message)
    elsewhere = sign_message(signer, replace(message.slot, round=message.slot.round + 1), other)
    low, high = sorted((encode(message.filled), encode(elsewhere.filled)))
    honest: Evidence = replace(proof, first=low, second=high)
    with pytest.raises(ProofError):
        decode_evidence(honest.encoded, message.slot.run, signer)


def test_peer_that_tells_again_and_again_where_it_is_counts_once() -> None:
    silence = silence_after()
    assert not heard(silence, *OTHERS[:1] * 5)
    assert heard(silence, OTHERS[1])


async def test_welcome_that_never_comes_ends_in_time(autojump_clock: trio.abc.Clock) -> None:
    near, far = await ends()
    ours = signed(toy_manifest())
    hello = Hello(wire=WIRE_VERSION, run=ours.manifest.digest, addresses=())
    started_s = trio.current_time()
    await far.send_frame(encode_frame(hello))
    with pytest.raises(trio.TooSlowError):
        await shake_hands(near, ours, (), OURS, Door(""))  # type: ignore[arg-type]
    assert trio.current_time() - started_s == pytest.approx(HELLO_S)
