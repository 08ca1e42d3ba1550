"""R8: who is told of for keeping others waiting; and who is not, for what a liar keeps back."""

import math
from dataclasses import replace

import pytest

from protocol.messages import Agg, Kind, slice_subject
from protocol.rounds.agreement import due_times, has_timed_out, is_given_up
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.lapses import LIST_LATE_AFTER, LearnedDeadline, list_late_s, note_lapses, owed
from tests.node.builders import Voice, head_of, list_body, peers_named, view_of

SIX = peers_named(6)
HEAD = head_of(SIX)
"""Of six voters one may lie, so that two name somebody."""
voices = [Voice(peer, HEAD.value) for peer in SIX]
COMMITS = [voice.commit() for voice in voices]
ALL = 0b111111


def sealed_view(haves, *, holds=(), listed=COMMITS, me=SIX[0], sums=(), **fields):
    """A round that is sealed with those in its LIST; `haves` and `holds` say by number of a member
    whom it holds, `sums` who has said what every slice comes to."""
    value = replace(
        HEAD.value,
        round=5,
        before=HEAD.value.digest,
        basis=HEAD.value.digest,
        commits=list_body(listed).commits,
    )
    said = [voices[number].have(bytes([bits])) for number, bits in dict(haves).items()]
    said += [voices[number].hold(bytes([bits])) for number, bits in dict(holds).items()]
    closer = view_of(me, HEAD).closer(0)
    said.append(Voice(closer, HEAD.value).propose(listed))
    said += [voice.seal(value) for voice in voices]
    view = view_of(me, HEAD, [*COMMITS, *said], **{"trust": "open", "opened_s": 0.0} | fields)
    for number in sums:
        for piece in view.slices:
            body = Agg(
                list_digest=value.list_digest, first=piece.first, stop=piece.stop, root=bytes(32)
            )
            heard = voices[number].say(
                Kind.AGG, body, subject=slice_subject(value.list_digest, piece.first, piece.stop)
            )
            view.ballots.add(BallotEntry(heard.message, heard.body))
    assert view.ballots.sealed(view.seals.before)
    return view


def numbers(peers):
    return {SIX.index(peer) for peer in peers}


def without(*members):
    return ALL & ~sum(1 << member for member in members)


def test_who_denies_to_the_end_behind_a_second_call_what_is_sealed_is_told_of():
    haves = dict.fromkeys(range(6), ALL)
    assert numbers(owed(sealed_view(haves, second_call_s={0: 1.0}))) == set()
    for liar in range(6):
        if not is_asked(liar, 5 - liar):
            continue
        said = haves | {liar: without(5 - liar)}
        assert numbers(owed(sealed_view(said, second_call_s={0: 1.0}))) == {liar}
        assert not owed(sealed_view(said)), "nobody was called"
        said_later = {liar: ALL}
        assert not owed(sealed_view(said, holds=said_later, second_call_s={0: 1.0}))


def test_whose_parts_more_lack_than_may_lie_is_told_of_and_they_are_not():
    for sender in range(6):
        asked = [number for number in range(6) if is_asked(number, sender)]
        haves = dict.fromkeys(range(6), ALL)
        for number in asked[:2]:
            haves[number] = without(sender)
        view = sealed_view(haves, second_call_s={0: 1.0})
        assert numbers(owed(view)) == {sender}


def test_nobody_is_told_of_for_parts_whose_sender_committed_too_late_for_haves():
    (liar, *_) = [number for number in range(6) if is_asked(number, 5)]
    haves = dict.fromkeys(range(6), ALL) | {liar: without(5)}
    assert numbers(owed(sealed_view(haves, second_call_s={0: 1.0}))) == {liar}
    assert not owed(sealed_view(haves, second_call_s={0: 1.0}, overdue={SIX[5]}))


def test_who_may_not_have_been_told_of_a_commit_when_it_spoke_is_not_told_of():
    """Nobody knows later than `relayed_s` of what some were told; and nobody who lacks a COMMIT
    speaks before the least deadline is over."""
    sender = 5
    (denier, *_) = [number for number in range(6) if is_asked(number, sender)]
    haves = dict.fromkeys(range(6), ALL) | {denier: without(sender)}

    def named(said_s, *, committed_s=0.1, others_s=0.0, holds=(), **fields):
        at_s = dict.fromkeys(SIX, others_s) | {SIX[0]: -9.0, SIX[sender]: committed_s}
        times = {"deadline_floor_s": 1.0, "relayed_s": 1.5, "second_call_s": {0: 1.0}} | fields
        said = {(0, SIX[denier]): said_s}
        view = sealed_view(haves, holds=holds, commit_s=at_s, said_s=said, **times)
        return numbers(owed(view))

    assert named(0.74) == {denier}, "it waited for nothing"
    assert named(0.75) == set()
    assert named(1.59) == set()
    assert named(1.6) == {denier}, "it was told by then"
    assert named(1.59, relayed_s=0.5) == {denier}
    assert named(0.5, others_s=-0.3) == set(), "by its clock the deadline may be over"
    holding = {denier: without(sender, sender - 1)}
    assert named(1.0, holds=holding) == set()
    assert named(1.7, holds=holding) == {denier}, "still, when all were told"


def test_round_began_for_nobody_before_as_many_told_all_as_no_quorum_does_without():
    """Of six four are a quorum: one may lie, and this node may be one."""
    (denier, *_) = [number for number in range(6) if is_asked(number, 5)]
    haves = dict.fromkeys(range(6), ALL) | {denier: without(5)}
    found = []
    for early in range(4):
        at_s = {peer: -2.0 if number <= early else 0.0 for number, peer in enumerate(SIX)}
        fields = {"commit_s": at_s, "said_s": {(0, SIX[denier]): 0.5}, "deadline_floor_s": 1.0}
        view = sealed_view(haves, second_call_s={0: 1.0}, relayed_s=1.5, **fields)
        found.append(bool(owed(view)))
    assert found == [True, True, False, False], "number 0 is this node"


def is_asked(number, sender):
    """Whether a member is among the first to hold parts of a sender."""
    view = view_of(SIX[0], HEAD, COMMITS, trust="open", opened_s=0.0)
    targets = (view.gathering().owing_targets(piece, SIX[sender]) for piece in view.slices)
    return number != sender and any(SIX[number] in peers for peers in targets)


@pytest.mark.parametrize("relayed_s", [0.0, 0.3, 0.8])
def test_list_is_late_half_a_deadline_after_it_was_due_and_not_before_it_can_be_relayed(relayed_s):
    late = []
    for now_s in (0.29, 0.49, 0.51, 0.79, 0.81):
        haves = [voice.have(bytes([ALL])) for voice in voices]
        fields = {"trust": "open", "opened_s": 0.0, "relayed_s": relayed_s}
        view = view_of(SIX[1], HEAD, [*COMMITS, *haves], **fields)
        note_lapses(view, now_s=0.0, deadline_s=1.0)
        listed = Voice(view.closer(0), HEAD.value).propose(COMMITS)
        view.ballots.add(BallotEntry(listed.message, listed.body))
        note_lapses(view, now_s=now_s, deadline_s=1.0)
        assert view.lapses.lapsed <= {view.closer(0)}
        late.append(bool(view.lapses.lapsed))
    due_s = max(LIST_LATE_AFTER, relayed_s)
    assert late == [now_s >= due_s for now_s in (0.29, 0.49, 0.51, 0.79, 0.81)]


LISTED = {"nothing": None, "all": 6, "too few": 2}


@pytest.mark.parametrize("relayed_s", [0.3, 0.8])
@pytest.mark.parametrize("said", LISTED)
def test_attempt_ends_when_a_list_is_late_for_which_all_was_there(said, relayed_s):
    """And with it one that this voter will never vote for: it is as good as none."""
    deadline = LearnedDeadline(floor_s=1.0, cap_s=10.0)
    haves = [voice.have(bytes([ALL])) for voice in voices]
    due_s = 0.2 + max(LIST_LATE_AFTER, relayed_s)
    keeper = min(view_of(SIX[1], HEAD, COMMITS, trust="open").gathering().first_keepers)
    for missing in (None, keeper):
        fields = {"trust": "open", "opened_s": 0.0, "relayed_s": relayed_s}
        heard = [have for have in haves if have.message.sender != missing]
        view = view_of(SIX[1], HEAD, [*COMMITS, *heard], **fields)
        if (num_listed := LISTED[said]) is not None:
            listed = Voice(view.closer(0), HEAD.value).propose(COMMITS[:num_listed])
            view.ballots.add(BallotEntry(listed.message, listed.body))
        note_lapses(view, now_s=0.2, deadline_s=1.0)
        ends = [is_given_up(view, deadline, now_s=now_s) for now_s in (due_s - 0.01, due_s)]
        assert ends == [False, said != "all" and not missing]
        if not missing:
            assert due_s in due_times(view, deadline)
            assert has_timed_out(view, deadline, now_s=due_s) == (said != "all")
        note_lapses(view, now_s=due_s, deadline_s=1.0)
        assert view.lapses.lapsed == ({view.closer(0)} if ends[1] or said == "too few" else set())
        assert is_given_up(view, deadline, now_s=3.0)


def test_attempt_goes_on_whose_list_was_voted_for_by_what_was_there_then():
    deadline = LearnedDeadline(floor_s=1.0, cap_s=10.0)
    haves = [voice.have(bytes([ALL])) for voice in voices]
    found = []
    for voters in ([], [1], [0, 2, 3], [0, 2, 3, 4]):
        view = view_of(SIX[1], HEAD, [*COMMITS, *haves], trust="open", opened_s=0.0)
        few = COMMITS[:2]
        votes = [voices[number].vote(few) for number in voters]
        for one in (Voice(view.closer(0), HEAD.value).propose(few), *votes):
            view.ballots.add(BallotEntry(one.message, one.body))
        note_lapses(view, now_s=0.0, deadline_s=1.0)
        view.lapses.ready_s[0] = 0.0
        found.append(is_given_up(view, deadline, now_s=1.0))
    assert found == [True, False, True, False], "nobody voted, this one, three, a quorum"


def test_sum_that_comes_late_is_told_of_once_it_could_have_been_relayed_or_if_it_never_comes():
    haves = dict.fromkeys(range(6), ALL)
    first = view_of(SIX[0], HEAD, COMMITS, trust="open", opened_s=0.0).slices[0]
    liar = next(peer for peer in first.reducers[:2] if peer != SIX[0])
    number, others = SIX.index(liar), [n for n in range(6) if SIX[n] != liar]
    never = sealed_view(haves, sums=others, late_to_sum={liar})
    assert owed(never) == {liar}
    late = sealed_view(haves, sums=[*others, number], late_to_sum={liar})
    assert owed(late) == set()
    later = {(liar, first.first)}
    much_later = sealed_view(haves, sums=[*others, number], late_to_sum={liar}, owed_sums=later)
    assert owed(much_later) == {liar}


def test_who_lacks_parts_that_are_kept_back_is_not_told_of_for_its_sums():
    first = view_of(SIX[0], HEAD, COMMITS, trust="open", opened_s=0.0).slices[0]
    late = SIX.index(next(peer for peer in first.reducers[:2] if peer != SIX[0]))
    sender = next(
        number
        for number in range(6)
        if len([n for n in range(6) if is_asked(n, number)]) > 1 and is_asked(late, number)
    )
    lacking = [late, next(n for n in range(6) if n != late and is_asked(n, sender))]
    haves = dict.fromkeys(range(6), ALL) | dict.fromkeys(lacking, without(sender))
    fields = {"second_call_s": {0: 1.0}, "late_to_sum": {SIX[late]}}
    others = [number for number in range(6) if number != late]
    assert numbers(owed(sealed_view(haves, sums=others, **fields))) == {sender}
    unlisted = [commit for at, commit in enumerate(COMMITS) if at != sender]
    view = sealed_view(haves, listed=unlisted, sums=others, **fields)
    assert numbers(owed(view)) == {sender, late}, "what is not listed is not summed"


def test_list_that_is_awaited_for_one_whom_this_node_gave_up_is_not_late():
    """The closer may still wait for it: patience is a view of each node."""
    me = next(peer for peer in SIX[1:] if peer != view_of(SIX[1], HEAD).closer(0))
    for bits, late_s in ((ALL & ~1, math.inf), (ALL, 1.0 + LIST_LATE_AFTER * 20.0)):
        said = [voice.have(bytes([bits])) for voice in voices]
        view = view_of(me, HEAD, [*COMMITS, *said], trust="friends", opened_s=0.0)
        view.waits.given_up = frozenset({SIX[0]})
        note_lapses(view, now_s=1.0, deadline_s=20.0)
        assert list_late_s(view, 20.0) == late_s


def test_list_is_late_again_once_most_have_left_behind_who_is_missing():
    """The looser wording: a LIST is late only where all have committed. Whoever never commits then
    lets a silent closer hold the attempt until it times out."""
    me = next(peer for peer in SIX[1:] if peer != view_of(SIX[1], HEAD).closer(0))
    said = [voice.have(bytes([ALL & ~1])) for voice in voices[1:]]
    fields = {"trust": "friends", "opened_s": 0.0, "relayed_s": 1.5}
    view = view_of(me, HEAD, [*COMMITS[1:], *said], **fields)
    view.roles = replace(view.roles, set_back=frozenset({SIX[0]}))  # Nobody waits for its HAVE.
    view.waits.given_up = frozenset({SIX[0]})
    note_lapses(view, now_s=1.0, deadline_s=20.0)
    assert list_late_s(view, 20.0) == math.inf
    view.waits.left_behind_s[SIX[0]] = 1.0
    for now_s, late_s in ((2.4, math.inf), (2.5, 2.5 + LIST_LATE_AFTER * 20.0)):
        note_lapses(view, now_s=now_s, deadline_s=20.0)
        assert list_late_s(view, 20.0) == late_s
