"""R11: a history is compared with those of others before a state of it is taken."""

from dataclasses import replace

import pytest

from protocol.catching_up.catchup import STALL_S, CatchUp
from protocol.catching_up.chain_sources import (
    ALONE_S,
    ANSWER_S,
    COMPARING_S_MAX,
    WITNESSES_MAX,
    NamedSeal,
)
from protocol.errors import ProofError
from protocol.events import (
    Accuse,
    CoreAction,
    Fault,
    FetchState,
    FetchSteps,
    HistoryKnown,
    Send,
    TwoHistories,
)
from protocol.evidence import decode_evidence
from protocol.frames import WantChain
from protocol.grid import CellSizes
from protocol.identity import KeyedHashSigner, PeerId
from protocol.messages import SealCertificate, SealValue
from protocol.rounds.chain import certify
from tests.node.builders import Voice, head_of, peers_named

A, B, C, D, E, ME = peers_named(6)
HEAD = head_of((A, B, C))
SIZES = CellSizes(state=(4096,) * 4, result=((2048,) * 2,))
FAR = 20
"""Rounds behind which results are not kept any more."""


def chain_of(length: int, mark: int = 0, *, on: SealValue = HEAD.value) -> list[SealCertificate]:
    """Seals that a quorum signed; of another `mark` it is another history."""
    chain = []
    last = on
    for _ in range(length):
        commits = (bytes([last.round % 256, mark]) * 16,)
        value = replace(
            last, round=last.round + 1, before=last.digest, basis=last.digest, commits=commits
        )
        seals = tuple(Voice(peer, last).seal(value).message for peer in (A, B))
        chain.append(certify(value, seals))
        last = value
    return chain


CHAIN = chain_of(FAR)
PARTED = 7
FORGED = [*CHAIN[:PARTED], *chain_of(FAR - PARTED, 1, on=CHAIN[PARTED - 1].value)]
AT = HEAD.value.round + FAR + 1
"""The round that whoever has the whole chain works on."""


class Newcomer:
    """A node that asked D for the chain; others say in which round they are."""

    def __init__(self, told: NamedSeal | None = None, **others: int) -> None:
        names = {"e": E, "b": B}
        self.rounds: dict[PeerId, int] = {D: AT, **{names[n]: at for n, at in others.items()}}
        self.machine = CatchUp(KeyedHashSigner(ME), "friends", SIZES)
        self.machine.told = told
        self.rounds[D] += 1  # So that D is the source.
        asked = self.consider(0.0)
        assert asked == [Send(D, WantChain(first=5))]
        self.rounds[D] -= 1
        self.machine._target = AT - 1

    def consider(self, now_s: float) -> list[CoreAction]:
        return self.machine.consider(HEAD.value, self.rounds, moved_s=now_s, now_s=now_s)

    def gives(
        self, peer: PeerId, chain: list[SealCertificate], now_s: float = 0.0
    ) -> list[CoreAction]:
        return self.machine.extend(peer, tuple(chain), now_s=now_s)

    def asks_for(self, peer: PeerId, now_s: float = 0.0) -> int:
        """The round from which on that peer is asked for now."""
        (sent,) = [a for a in self.consider(now_s) if isinstance(a, Send) and a.peer == peer]
        assert isinstance(sent.frame, WantChain)
        return sent.frame.first


def test_no_state_is_taken_before_another_origin_told_the_same():
    node = Newcomer(e=AT)
    assert node.gives(D, CHAIN) == []
    assert node.asks_for(E) == AT - 1
    assert node.consider(ALONE_S + 1.0) == []
    assert node.gives(E, CHAIN[-1:], 4.0) == []
    assert node.consider(4.0) == [HistoryKnown(AT - 1, D, 1, False), FetchState(CHAIN[-1])]
    assert node.machine.wanted == CHAIN[-1]


def test_origin_that_is_behind_is_asked_for_the_newest_seal_that_it_has():
    node = Newcomer(e=AT - 6)
    node.gives(D, CHAIN)
    assert node.asks_for(E) == AT - 7
    node.gives(E, CHAIN[-7:])
    assert node.consider(0.1)[0] == HistoryKnown(AT - 1, D, 1, False)


def test_in_a_swarm_of_two_the_only_origin_is_believed_after_a_moment_and_that_is_told():
    node = Newcomer()
    node.gives(D, CHAIN)
    assert node.consider(ALONE_S - 0.1) == []
    assert node.consider(ALONE_S) == [HistoryKnown(AT - 1, D, 0, False), FetchState(CHAIN[-1])]


def test_origin_that_comes_in_that_moment_is_asked_as_well():
    node = Newcomer()
    node.gives(D, CHAIN)
    assert node.consider(ALONE_S - 0.1) == []
    node.rounds[E] = AT
    assert node.asks_for(E, ALONE_S - 0.05) == AT - 1
    assert node.consider(ALONE_S + 0.1) == []


@pytest.mark.parametrize(("mine", "other"), [(CHAIN, FORGED), (FORGED, CHAIN)])
def test_two_certificates_of_one_round_stop_the_newcomer_and_convict_who_signed_both(
    mine: list[SealCertificate], other: list[SealCertificate]
) -> None:
    node = Newcomer(e=AT)
    node.gives(D, mine)
    node.consider(0.0)
    # Theirs of the last round differs, and so where they part is looked for from the beginning.
    assert node.gives(E, other[-1:]) == [Send(E, WantChain(first=5))]
    found = node.gives(E, other)
    convicted = [action.evidence for action in found if isinstance(action, Accuse)]
    assert {one.subject for one in convicted} == {A, B}
    for one in convicted:
        decode_evidence(one.encoded, HEAD.value.run, KeyedHashSigner(ME))
    assert found[-1] == TwoHistories(mine[PARTED], other[PARTED], D, E)
    for now_s in (0.0, 100.0, 10_000.0):
        assert node.consider(now_s) == []
    assert node.gives(D, mine) == []
    assert node.machine.wanted is None


def test_seals_of_a_round_in_two_attempts_are_two_histories_and_convict_nobody():
    """Honest voters may seal another LIST in a later attempt: which of them lied is not shown."""
    value = FORGED[PARTED].value
    seals = tuple(
        Voice(peer, CHAIN[PARTED - 1].value).seal(value, attempt=3).message for peer in (A, B)
    )
    other = [*CHAIN[:PARTED], certify(value, seals)]
    node = Newcomer(e=5 + PARTED + 1)
    node.gives(D, CHAIN)
    node.consider(0.0)
    node.gives(E, other[-1:])
    found = node.gives(E, other)
    assert [type(action) for action in found] == [TwoHistories]


def test_witness_whose_seals_nobody_signed_is_at_fault_and_stops_nobody():
    node = Newcomer(e=AT)
    bare = [SealCertificate(value=link.value, seals=()) for link in FORGED]
    node.gives(D, CHAIN)
    node.consider(0.0)
    node.gives(E, bare[-1:])
    with pytest.raises(ProofError):
        node.gives(E, bare)
    assert node.consider(ALONE_S)[-1] == FetchState(CHAIN[-1])


def test_witness_that_gives_another_seal_only_once_is_no_witness():
    node = Newcomer(e=AT)
    node.gives(D, CHAIN)
    node.consider(0.0)
    node.gives(E, FORGED[-1:])
    assert node.gives(E, CHAIN) == []
    assert node.consider(ALONE_S)[0] == HistoryKnown(AT - 1, D, 0, False)


def test_silent_witness_holds_nobody_up_for_long():
    node = Newcomer(e=AT)
    node.gives(D, CHAIN)
    assert node.asks_for(E, 0.0) == AT - 1
    assert node.consider(ANSWER_S - 0.1) == []
    assert node.consider(ANSWER_S)[0] == HistoryKnown(AT - 1, D, 0, False)


def test_witness_that_gives_one_seal_at_a_time_holds_nobody_up_for_ever():
    node = Newcomer(e=AT)
    node.gives(D, CHAIN)
    node.consider(0.0)
    node.gives(E, FORGED[-1:])
    for number, link in enumerate(CHAIN[:-1]):
        node.gives(E, [link], 4.0 * number)
    assert node.consider(COMPARING_S_MAX)[-1] == FetchState(CHAIN[-1])


def test_in_a_run_of_few_rounds_nobody_waits_for_others_but_who_is_there_is_asked():
    young = replace(HEAD.value, round=0)
    chain = chain_of(4, on=young)
    for rounds, asked in (({D: 5}, []), ({D: 5, E: 4}, [Send(E, WantChain(first=3))])):
        machine = CatchUp(KeyedHashSigner(ME), "friends", SIZES)
        machine.consider(young, rounds, moved_s=0.0, now_s=0.0)
        assert machine.extend(D, tuple(chain), now_s=0.0) == []
        found = machine.consider(young, rounds, moved_s=0.0, now_s=0.0)
        assert found == asked or found[0] == HistoryKnown(4, D, 0, False)
        assert machine.is_alone is not bool(asked)


def test_whoever_is_some_rounds_behind_does_not_wait_for_others():
    machine = CatchUp(KeyedHashSigner(ME), "friends", SIZES)
    machine.consider(HEAD.value, {D: 11}, moved_s=0.0, now_s=0.0)
    assert machine.extend(D, tuple(CHAIN[:6]), now_s=0.0) == [FetchState(CHAIN[5])]
    near = CatchUp(KeyedHashSigner(ME), "friends", SIZES)
    near.consider(HEAD.value, {D: 7}, moved_s=0.0, now_s=0.0)
    assert near.extend(D, tuple(CHAIN[:2]), now_s=0.0) == [FetchSteps(tuple(CHAIN[:2]))]


def test_source_behind_anothers_forged_links_is_not_blamed_for_them():
    """D gives the beginning of the forged chain, and no more; E goes on with the honest one."""
    node = Newcomer(e=AT)
    node.gives(D, FORGED[: PARTED + 3])
    (asked,) = node.consider(STALL_S)
    assert asked == Send(E, WantChain(first=5 + PARTED + 3))
    assert node.gives(E, CHAIN[PARTED + 3 :], STALL_S) == []
    assert node.asks_for(E, STALL_S) == 4 + PARTED + 3
    node.gives(E, CHAIN[PARTED + 2 :], STALL_S)
    found = node.gives(E, CHAIN, STALL_S)
    assert found[-1] == TwoHistories(FORGED[PARTED], CHAIN[PARTED], D, E)


def told(chain: list[SealCertificate], index: int) -> NamedSeal:
    return NamedSeal(chain[index].value.round, chain[index].value.digest)


def test_seal_of_the_link_that_is_on_the_chain_is_told():
    node = Newcomer(told(CHAIN, 12))
    node.gives(D, CHAIN)
    assert node.consider(ALONE_S)[0] == HistoryKnown(AT - 1, D, 0, True)


def test_chain_that_contradicts_the_link_is_refused_and_the_next_one_is_asked_for_whole():
    node = Newcomer(told(CHAIN, 12), e=AT)
    with pytest.raises(ProofError, match=r"not the one of the invite link.*seal of round 17"):
        node.gives(D, FORGED)
    assert node.consider(0.1) == [Send(E, WantChain(first=5))]
    node.gives(E, CHAIN)
    assert node.machine.wanted is None
    node.consider(0.2)
    found = node.gives(D, FORGED[-1:], 0.2) + node.gives(D, FORGED, 0.2)
    assert Fault in {type(action) for action in found}
    assert TwoHistories not in {type(action) for action in found}
    assert node.consider(ALONE_S + 0.2)[-1] == FetchState(CHAIN[-1])


def test_whoever_is_not_as_far_as_the_link_is_not_asked():
    machine = CatchUp(KeyedHashSigner(ME), "friends", SIZES)
    machine.told = told(CHAIN, 12)
    rounds = {D: machine.told.round}
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=0.0) == []
    rounds = {D: machine.told.round + 1}
    assert machine.consider(HEAD.value, rounds, moved_s=0.0, now_s=0.0) != []


def alone_with(chain: list[SealCertificate]) -> Newcomer:
    """It took the history that D alone told, and is through with fetching."""
    node = Newcomer()
    node.gives(D, chain)
    assert node.consider(ALONE_S)[-1] == FetchState(chain[-1])
    node.machine.finish()
    return node


def test_node_that_one_origin_led_to_a_forged_history_stops_when_another_one_comes():
    node = alone_with(FORGED)
    assert node.machine.is_alone
    rounds = {D: AT + 30, E: AT - 4}
    assert node.machine.look_around(rounds, 60.0) == [Send(E, WantChain(first=AT - 5))]
    assert node.machine.look_around(rounds, 61.0) == []
    assert node.gives(E, CHAIN[AT - 10 :], 62.0) == [Send(E, WantChain(first=5))]
    found = node.gives(E, CHAIN, 63.0)
    assert found[-1] == TwoHistories(FORGED[PARTED], CHAIN[PARTED], D, E)
    assert not node.machine.is_alone


def test_node_with_one_origin_asks_everybody_who_comes_later_once_and_few_at_a_time():
    node = alone_with(CHAIN)
    many = dict.fromkeys(peers_named(12), AT)
    asked = set()
    for turn in range(6):
        due = node.machine.look_around(many | {D: AT}, 60.0 + turn * ANSWER_S)
        found = [action for action in due if isinstance(action, Send)]
        assert found == due
        assert len(found) <= WITNESSES_MAX
        asked |= {action.peer for action in found}
        for action in found[:2]:
            assert node.gives(action.peer, CHAIN[-1:], 60.0 + turn * ANSWER_S) == []
    assert asked == set(many) - {D}


def test_node_whose_history_others_told_as_well_asks_nobody_later():
    node = Newcomer(e=AT)
    node.gives(D, CHAIN)
    node.consider(0.0)
    node.gives(E, CHAIN[-1:])
    node.consider(0.1)
    assert not node.machine.is_alone
    assert node.machine.look_around({D: AT, E: AT, B: AT}, 60.0) == []


def test_newcomer_that_compares_nothing_takes_what_it_is_told_first():
    node = Newcomer(e=AT)
    node.machine._is_compared = True
    assert node.gives(D, FORGED) == [FetchState(FORGED[-1])]
