"""One node's audits of made-up rounds: what liars gain by what they write into their COMMITs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3

from protocol import events as ev
from protocol.auditing.audit_rounds import Onion, Rounds, is_accused
from protocol.auditing.audits_machine import Audits
from protocol.entry_kinds import Accusation
from protocol.evidence import decode_evidence
from protocol.grid import EMPTY_ROOT
from protocol.identity import KeyedHashSigner, PeerId
from protocol.manifest import AuditSpec
from protocol.messages import (
    Kind,
    Outcome,
    SealValue,
    SignedMessage,
    Verdict,
    Work,
    segment_subject,
    sign_message,
)
from protocol.rounds.round_view import RoundSeals
from protocol.segments import STATE, WorkKind
from tests.node.builders import CONFIG, Voice, head_of, peers_named, toy_manifest

ME, LIAR, VICTIM, THIRD = PEERS = peers_named(4)
MANIFEST = replace(
    toy_manifest(ME), trust="open", survive="quorum", audits=AuditSpec(rate=1.0, segments=2)
)
CELLS = MANIFEST.layout(0).num_cells(0)
STATE_CELLS = CELLS * (1 + CONFIG.moments) + 1
OF_FRAGMENT, WEIGHTS = WorkKind("residual"), WorkKind("weights")
HEAD = head_of(PEERS).value

Bend = Callable[[PeerId, dict[str, Any]], dict[str, Any] | None]
"""What becomes of a COMMIT; None where its sender has none in that round."""


def root(*parts: object) -> bytes:
    return blake3(repr(parts).encode()).digest()


def work_of(peer: PeerId, round_index: int, mark: int) -> Work:
    """`mark` makes the layers."""
    onion = Onion(KeyedHashSigner(peer), root(mark))
    return Work(
        onion=onion.layer(round_index),
        device="cpu",
        trace=tuple(root("state", peer, number) for number in range(3)),
        before=EMPTY_ROOT,
        after=root("moments", peer),
    )


@dataclass
class Filed:
    """Stands for the ballots of a round."""

    entries: dict[bytes, ev.Heard]

    def find(self, digest: bytes) -> ev.Heard | None:
        return self.entries.get(digest)


@dataclass
class Round:
    """What audits ask of a round: the seals that it stands on, and the COMMITs of it."""

    seals: RoundSeals
    ballots: Filed


def round_after(named: SealValue, mark: int, bend: Bend) -> tuple[Any, SealValue]:
    """A round of all who have a COMMIT in it, and its seal."""
    heard = {}
    for peer in PEERS:
        work = work_of(peer, named.round + 1, mark)
        body = {"work": (work,), "residual_before": root("residual", peer)}
        bent = bend(peer, body)
        if bent is not None:
            one = Voice(peer, named).commit(**bent)
            heard[one.message.digest] = one
    value = replace(
        named,
        round=named.round + 1,
        before=named.digest,
        basis=named.digest,
        commits=tuple(heard),
    )
    return Round(RoundSeals(named, named), Filed(heard)), value


class Scene:
    """My audits behind two sealed rounds; the layers of the second one draw, and `mark` makes
    them."""

    def __init__(self, bend: Bend, mark: int) -> None:
        self.audits = Audits(MANIFEST, CONFIG, KeyedHashSigner(ME), HEAD)
        first, second = round_after(HEAD, mark, bend)
        self.actions: list[ev.RoundAction] = list(self.audits.sealed(first, second, frozenset()))
        behind, last = round_after(second, mark, lambda _, body: body)
        self.actions += self.audits.sealed(behind, last, frozenset())

    def asked(self) -> set[tuple[PeerId, bytes]]:
        return {(a.source, a.subject) for a in self.actions if isinstance(a, ev.Pull)}


def residual_as_state(peer: PeerId, body: dict[str, Any]) -> dict[str, Any]:
    """The liar says that all its states are what the victim's contribution was encoded with."""
    (work,) = body["work"]
    trace = (root("residual", VICTIM),) * 3
    return body | {"work": (replace(work, trace=trace),)} if peer == LIAR else body


def test_liar_who_gives_a_residual_as_its_state_leaves_its_owner_audited_and_unharmed():
    residual, state = root("residual", VICTIM), root("state", VICTIM, 2)
    scenes = (Scene(residual_as_state, mark) for mark in range(1, 500))
    both = {(LIAR, residual), (VICTIM, residual)}
    scene = next(one for one in scenes if both <= one.asked())
    audits = scene.audits
    # What comes of it is measured as any of them: the owner's cells are cells of a residual.
    assert {OF_FRAGMENT} < audits.kinds(residual) <= {OF_FRAGMENT, WEIGHTS, STATE}
    assert audits.kinds(state) == {WEIGHTS}
    assert audits.kinds(bytes(32)) == frozenset()
    assert list(audits.cells_came(residual, tuple(range(CELLS)))) == []
    runs = list(audits.cells_came(state, tuple(range(CELLS))))
    assert [(run.sender, run.segment) for run in runs if isinstance(run, ev.Rerun)] == [(VICTIM, 2)]


NEWCOMER = THIRD
NEWER = head_of((ME, LIAR, VICTIM), (NEWCOMER,)).value


def beacon_with(layer: bytes) -> bytes:
    """What draws where the newcomer, whom nothing binds yet, shows that layer in the second
    round, its first."""

    def first(peer: PeerId, body: dict[str, Any]) -> dict[str, Any] | None:
        return None if peer == NEWCOMER else body

    def second(peer: PeerId, body: dict[str, Any]) -> dict[str, Any]:
        (work,) = body["work"]
        return body | {"work": (replace(work, onion=layer),)} if peer == NEWCOMER else body

    rounds = Rounds(NEWER)
    view, value = round_after(NEWER, 0, first)
    rounds.sealed(view, value)
    on, strayed = rounds.sealed(*round_after(value, 0, second))
    assert on is not None
    assert not strayed
    assert on.class_of(NEWCOMER), "it is listed, and its work is audited as everybody's"
    return on.beacon


def test_newcomer_that_knows_all_other_layers_and_chooses_its_own_changes_no_draw():
    """Identities are cheap: with a fresh one each round liars would choose whom audits meet."""
    assert len({beacon_with(root("layer", number)) for number in range(20)}) == 1


def verdict(
    commit: SignedMessage, outcome: Outcome, shard: int = 0, by: PeerId = LIAR
) -> tuple[SignedMessage, Verdict]:
    """What the liar, or another, says of the first segment of a contribution."""
    found = b"" if outcome is Outcome.UNOPENED else work_of(VICTIM, commit.slot.round, 1).trace[1]
    body = Verdict(commit=commit.digest, segment=0, outcome=outcome, found=found)
    subject = segment_subject(commit.digest, 0)
    place = replace(commit.slot, kind=Kind.VERDICT, subject=subject, shard=shard)
    return sign_message(KeyedHashSigner(by), place, body), body


def test_voter_who_says_one_thing_to_some_and_another_to_others_is_convicted():
    audits = Scene(lambda _, body: body, 1).audits
    newest = audits._rounds.newest
    assert newest is not None
    (commit,) = (message for message, _ in newest.listed() if message.sender == VICTIM)
    right, unopened = verdict(commit, Outcome.RIGHT), verdict(commit, Outcome.UNOPENED)
    assert audits.takes(*right)
    assert [one for one in audits.heard(*right) if isinstance(one, ev.Accuse)] == []
    assert not audits.takes(*right), "nothing new"
    assert not audits.takes(*verdict(commit, Outcome.UNOPENED, shard=1)), "in another slot"
    assert audits.takes(*unopened)
    (accuse,) = audits.heard(*unopened)
    assert isinstance(accuse, ev.Accuse)
    checked = decode_evidence(accuse.evidence.encoded, commit.slot.run, KeyedHashSigner(ME))
    assert (checked.subject, checked.accusation) == (LIAR, Accusation.TWO_MESSAGES)
    assert not audits.takes(*unopened), "it is accused"


def my_state_as_its_own(peer: PeerId, body: dict[str, Any]) -> dict[str, Any]:
    (work,) = body["work"]
    trace = (root("state", ME, 0), *work.trace[1:])
    return body | {"work": (replace(work, trace=trace),)} if peer == LIAR else body


def test_own_state_is_not_shown_to_all_voters_for_a_liar_that_names_it_and_one_that_accuses_it():
    state, num_accused = root("state", ME, 0), 0
    for mark in range(1, 200):
        audits = Scene(my_state_as_its_own, mark).audits
        on = audits._rounds.at(HEAD.round + 1)
        assert on is not None
        (commit,) = (message for message, _ in on.listed() if message.sender == LIAR)
        said = verdict(commit, Outcome.WRONG, by=THIRD)
        seen_before = [peer for peer in PEERS[1:] if audits.may_open(peer, state)]
        if not audits.takes(*said):
            continue
        list(audits.heard(*said))
        num_accused += is_accused(audits._rounds, MANIFEST.audits, on, (commit.digest, 0))
        assert [peer for peer in PEERS[1:] if audits.may_open(peer, state)] == seen_before
        if num_accused == 2:
            break
    assert num_accused


def chain_of(num_fragments: int, rounds: int, *, absent: int, anew: int = -1) -> list[Any]:
    """Sealed rounds, in one of which the victim has no COMMIT, and in one begins anew."""
    known, named, found = Rounds(HEAD, num_fragments), HEAD, []
    for number in range(HEAD.round + 1, HEAD.round + 1 + rounds):

        def of_round(peer: PeerId, body: dict[str, Any], number=number) -> dict[str, Any] | None:
            if peer == VICTIM and number == absent:
                return None
            (work,) = body["work"]
            before = EMPTY_ROOT if number == anew else root("before", number)
            bent = replace(work, before=before, after=root("after", number))
            return body | {"work": (bent,), "residual_after": root("behind", number)}

        view, named = round_after(named, 0, of_round)
        on, _ = known.sealed(view, named)
        found.append(on)
    return found


def test_each_fragment_goes_on_from_its_own_last_listed_residual_and_all_from_one_inner_state():
    first = HEAD.round + 1
    rounds = chain_of(3, 7, absent=first + 2)
    assert rounds[0].inherited[VICTIM] == (), "nobody here knows what was before"
    assert rounds[0].since[VICTIM] == 0
    for index, on in enumerate(rounds):
        assert on.round == first + index
        if index != 2 and index >= 3:
            last = first + (1 if index == 3 else index - 1)
            assert on.since[VICTIM] == last
            if index == 5:  # The fragment of the round that does not list it: never seen.
                assert on.inherited[VICTIM] == ()
                continue
            pair = (root("after", last), root("behind", first + index - 3))
            assert on.inherited[VICTIM] == (pair, (EMPTY_ROOT, EMPTY_ROOT))
    assert VICTIM not in rounds[2].inherited


def test_who_begins_anew_has_no_residual_of_any_fragment():
    first = HEAD.round + 1
    rounds = chain_of(3, 6, absent=-1, anew=first + 3)
    for index, behind in ((4, EMPTY_ROOT), (5, EMPTY_ROOT)):
        pair = (root("after", first + index - 1), behind)
        assert rounds[index].inherited[VICTIM][0] == pair
