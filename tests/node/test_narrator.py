"""A node that waits for a memory which nobody has says so (R12)."""

import trio

from node.narrator import FORGOTTEN_S, Narrator
from node.restart import Restart
from node.round import RoundMachine
from node.status.board import EventLog
from protocol.identity import KeyedHashSigner
from tests.node.builders import CONFIG, head_of, peers_named

A, B, C = peers_named(3)


def machine_without_memory(*voters) -> RoundMachine:
    head = head_of(voters)
    machine = RoundMachine(CONFIG, KeyedHashSigner(A), head, now_s=0.0)
    machine.resume(Restart(chain=(head,), is_lost=True), now_s=0.0)
    return machine


def teller() -> tuple[Narrator, list[str]]:
    texts: list[str] = []
    log = EventLog(None, 0.0)
    log.also = (Listener(texts),)
    return Narrator(log), texts


class Listener:
    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def emit(self, event: str, **fields) -> None:
        self.texts.append(fields["text"])


async def test_eldest_of_two_voters_without_memory_is_told_what_to_do_once(autojump_clock):
    narrator, texts = teller()
    machine = machine_without_memory(A, B)
    narrator.silence(machine)
    await trio.sleep(FORGOTTEN_S / 2)
    narrator.silence(machine)
    assert not texts
    await trio.sleep(FORGOTTEN_S / 2)
    for _ in range(3):
        narrator.silence(machine)
        await trio.sleep(FORGOTTEN_S)
    assert len(texts) == 1
    assert "barnraise run --new" in texts[0]


async def test_whoever_can_still_be_told_is_not_warned(autojump_clock):
    narrator, texts = teller()
    machine = machine_without_memory(A, B, C)
    for _ in range(3):
        narrator.silence(machine)
        await trio.sleep(2 * FORGOTTEN_S)
    assert machine.has_forgotten
    assert not texts


async def test_founder_that_catches_up_in_time_is_not_warned(autojump_clock):
    narrator, texts = teller()
    alone = machine_without_memory(A)
    narrator.silence(alone)
    await trio.sleep(FORGOTTEN_S - 1.0)
    narrator.silence(machine_without_memory(A, B, C))
    await trio.sleep(FORGOTTEN_S - 1.0)
    narrator.silence(alone)
    assert not texts
