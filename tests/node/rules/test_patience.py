"""What a round waits for beyond its deadline: members that move on, and each of a few so long."""

import math
from dataclasses import replace

import pytest

from protocol.events import Push, Working
from protocol.frames import Phase, Progress
from protocol.identity import PeerId
from protocol.messages import Kind, List, Seal
from protocol.rounds.agreement import statements
from protocol.rounds.ballots import BallotEntry
from protocol.rounds.lapses import LearnedDeadline
from protocol.rounds.patience import (
    CAP_ROUNDS,
    END_SLACK,
    LATE_SHARE,
    PATIENCE_ROUNDS,
    STALL_BEATS,
    Patience,
    WholeRound,
    WholeRounds,
    parts_s,
)
from protocol.rounds.proposal import awaited_haves
from protocol.rounds.reducers import pack_senders
from protocol.rounds.round_view import RoundView
from protocol.rounds.supply import push_parts
from tests.node.builders import CONFIG, Voice, head_of, peers_named, view_of

BEAT_S, FLOOR_S = 0.5, 1.0
STALL_S = STALL_BEATS * BEAT_S
ROUND = 5
CELLS = set(range(CONFIG.num_cells(1)))


def said(done: int, *, total: int = 50, end_s: int = 0, phase: Phase = Phase.TRAIN) -> Progress:
    return Progress(shard=0, round=ROUND, phase=phase, done=done, total=total, end_s=end_s)


class Scene:
    """A round that `late` of so many members have not committed to; the others did at `at_s`, with
    all their parts."""

    def __init__(self, members: int = 4, late: int = 1, *, at_s: float = 10.0, **fields) -> None:
        self.peers = peers_named(members)
        head = head_of(self.peers)
        voices = [Voice(peer, head.value) for peer in self.peers]
        self.late, self.me = self.peers[:late], self.peers[-1]
        self.commits = {voice.peer: voice.commit() for voice in voices}
        there = [self.commits[peer] for peer in self.peers[late:]]
        self.view = view_of(self.me, head, there, opened_s=at_s, started_s=0.0, **fields)
        for heard in there:
            self.view.cells.parts[heard.message.digest] = CELLS
        self.patience = Patience(heartbeat_s=BEAT_S, floor_s=FLOOR_S)

    def look(self, now_s: float) -> bool:
        """Whether the clock stands still then."""
        self.patience.wait(self.view, now_s=now_s, deadline_s=FLOOR_S)
        return self.view.waits.is_held

    def beat(self, now_s: float, done: int, **fields) -> bool:
        """The same, once all who are late have said how far they are."""
        for peer in self.late:
            self.patience.told(peer, said(done, **fields), now_s)
        return self.look(now_s)

    def spend(self) -> None:
        """Nothing is left of what the late may be waited for."""
        for peer in self.late:
            self.patience._spent[peer] = CAP_ROUNDS
            self.patience._over.add(peer)

    def says_have(self, now_s: float) -> bool:
        deadline = LearnedDeadline(floor_s=FLOOR_S, cap_s=60.0)
        found = statements(self.view, deadline, now_s=now_s)
        return Kind.HAVE in {statement.kind for statement in found}


def test_clock_stands_still_while_a_members_steps_grow_and_goes_on_from_the_last_one():
    scene = Scene()
    for step in range(8):
        assert scene.beat(10.0 + step, done=step)
        assert scene.view.attempt_start_s == math.inf
        assert not scene.says_have(10.0 + step)
    stopped_s = 17.0 + 2 * STALL_S + 1.0
    assert not scene.look(stopped_s)
    assert scene.view.attempt_start_s == stopped_s - FLOOR_S, "nothing else is late at once"
    assert scene.says_have(stopped_s)


def test_words_without_growth_are_not_waited_for():
    """The looser wording: whoever says that it is at work is waited for."""
    scene = Scene()
    for step in range(12):
        held = scene.beat(10.0 + 0.5 * step, done=7)
    assert not held
    assert scene.says_have(16.0)


def test_growth_that_goes_back_or_is_of_an_earlier_phase_is_none():
    scene = Scene()
    scene.beat(10.0, done=3, phase=Phase.ENCODE)
    for step in range(6):
        held = scene.beat(10.5 + 0.5 * step, done=10 + step, phase=Phase.TRAIN)
    assert not held
    scene = Scene()
    for step in range(6):
        held = scene.beat(10.0 + 0.5 * step, done=40 - step)
    assert not held


def test_end_that_runs_away_is_believed_once_and_by_half():
    scene = Scene(members=2)
    last_s = 0.0
    for step in range(1, 60):
        if scene.beat(10.0 + 0.5 * step, done=step, total=1000, end_s=10):
            last_s = 10.0 + 0.5 * step
    assert last_s == pytest.approx(10.5 + END_SLACK * 10 + STALL_S, abs=0.51)


def test_steps_that_take_long_are_waited_for_as_announced():
    scene = Scene(members=2)
    scene.beat(10.0, done=0, total=4, end_s=120)
    assert scene.look(10.0 + 59.0), "twice thirty seconds a step"
    assert not scene.look(10.0 + 61.0)


def test_a_few_are_waited_for_a_third_longer_and_four_rounds_in_an_era():
    scene = Scene(at_s=12.0)
    free_s = 12.0 * (1 + LATE_SHARE)
    now_s, step = 12.0, 0
    while scene.beat(now_s, done=step, total=10_000):
        now_s, step = now_s + 0.25, step + 1
    assert now_s == pytest.approx(free_s + CAP_ROUNDS * 12.0, abs=0.3)
    assert scene.view.waits.given_up == frozenset(scene.late)
    assert scene.says_have(now_s), "at once, and not a deadline later"
    again = Scene(at_s=12.0)
    again.patience = scene.patience
    assert again.beat(12.0, done=60_000, total=100_000, phase=Phase.ENCODE)
    assert again.beat(15.9, done=60_001, total=100_000, phase=Phase.ENCODE)
    assert not again.beat(16.1, done=60_002, total=100_000, phase=Phase.ENCODE)
    assert again.says_have(16.1), "no longer than everybody"


def test_silent_member_that_has_spent_its_rounds_is_not_waited_for_by_the_deadline_either():
    scene, now_s = Scene(at_s=0.3), 0.3
    scene.spend()
    scene.look(now_s)
    assert not scene.says_have(0.39)
    scene.look(0.41)
    assert scene.says_have(0.41)
    other = Scene(at_s=0.3)
    other.look(0.41)
    assert not other.says_have(0.41), "the deadline of a second"


def test_what_was_spent_comes_back_in_an_era():
    first = Scene()
    first.spend()
    later_s = 10.0 * (1 + LATE_SHARE) + 0.1
    for rounds, is_waited_for in ((PATIENCE_ROUNDS - 1, False), (1, True)):
        for _ in range(rounds):
            first.patience.sealed(first.peers)
        scene = Scene()
        scene.patience = first.patience
        phase = Phase.ENCODE if is_waited_for else Phase.TRAIN
        assert scene.beat(later_s, done=1, phase=phase) == is_waited_for


def test_more_than_a_few_that_move_are_waited_for_without_charge():
    scene, now_s = Scene(late=2), 10.0
    for step in range(400):
        assert scene.beat(now_s, done=step, total=10_000)
        now_s += 1.0
    assert not scene.patience._spent


def test_time_in_which_this_node_did_not_run_is_charged_to_nobody():
    scene = Scene(at_s=10.0)
    scene.look(10.0)
    scene.look(14.0)
    scene.look(1000.0)
    spent = scene.patience._spent[scene.late[0]]
    assert spent <= 2 * FLOOR_S / 10.0


def test_own_trainer_that_is_late_keeps_no_word_back_that_others_need():
    scene = Scene(at_s=12.0)
    scene.view.me = scene.late[0]
    scene.spend()
    scene.look(12.0)
    scene.look(16.1)
    assert scene.view.waits.given_up == frozenset(scene.late)


def test_member_that_came_is_heard_of_by_all_before_the_deadline_counts():
    scene = Scene()
    for step in range(8):
        scene.beat(10.0 + step, done=step)
    (peer,) = scene.late
    heard = scene.commits[peer]
    scene.view.ballots.add(BallotEntry(heard.message, heard.body))
    scene.view.arrivals.commit_s[peer] = 18.5
    assert not scene.look(18.5), "its parts do not move yet"
    assert scene.view.attempt_start_s == 18.5
    assert not scene.says_have(19.4)


def owe_have(scene: "Scene", peer: PeerId) -> None:
    """Its COMMIT and parts come, and all others have said what they hold."""
    heard = scene.commits[peer]
    scene.view.ballots.add(BallotEntry(heard.message, heard.body))
    scene.view.arrivals.commit_s[peer] = 10.1
    scene.view.cells.parts[heard.message.digest] = CELLS
    everybody = pack_senders(set(scene.peers), scene.view.members)
    for voice in (Voice(other, scene.view.seals.head) for other in scene.peers if other != peer):
        have = voice.have(everybody)
        scene.view.ballots.add(BallotEntry(have.message, have.body))


@pytest.mark.parametrize("phase", [Phase.TRAIN, Phase.FETCH])
def test_what_was_done_before_the_last_commit_came_excuses_no_have_that_is_missing(phase):
    """The looser wordings: whoever moved lately is waited for, whatever it owes, and whatever it
    fetched then."""
    scene = Scene(trust="open")
    (peer,) = scene.late
    scene.beat(10.05, done=1, phase=phase)
    owe_have(scene, peer)
    assert awaited_haves(scene.view) == {peer}
    assert not scene.look(10.2)
    assert scene.beat(10.5, done=2, phase=Phase.FETCH)


def test_what_is_fetched_for_a_later_attempt_excuses_no_have_that_is_missing():
    """The looser wording: whoever fetches is waited for, in whatever attempt it is."""
    scene = Scene(trust="open")
    (peer,) = scene.late
    owe_have(scene, peer)
    assert scene.beat(10.5, done=1, phase=Phase.FETCH)
    ahead = Voice(peer, scene.view.seals.head).report(1)
    scene.view.ballots.add(BallotEntry(ahead.message, ahead.body))
    assert not scene.beat(10.6, done=2, phase=Phase.FETCH)
    assert awaited_haves(scene.view) == {peer}, "it is named for it"


@pytest.mark.parametrize("trust", ["friends", "open"])
def test_nobody_waits_alone_for_whom_most_have_left_behind(trust):
    """The looser wordings: each waits for whom it hears; one friend that does not hear it is
    enough."""
    # Who is to say what it holds follows from digests: of the rosters one in which this node is.
    for members in range(4, 12):
        scene = Scene(members, trust=trust, relayed_s=0.7)
        (late,) = scene.late
        first = scene.view.gathering().first_keepers - {late}
        if scene.me in first and len(first) > 2:
            break
    others = sorted(first - {scene.me})
    there = pack_senders(set(scene.peers) - {late}, scene.view.members)
    for count, peer in enumerate(others[: len(first) // 2 + 1]):
        assert scene.beat(10.0 + count, done=count), "too few have spoken"
        have = Voice(peer, scene.view.seals.head).have(there)
        scene.view.ballots.add(BallotEntry(have.message, have.body))
    assert not scene.beat(20.0, done=40)
    assert scene.says_have(20.0), "at once"
    assert scene.view.waits.look_s == 20.7, "by then all others have heard that"


def test_who_waits_says_so_as_long_as_the_work_of_the_late_one_grows_and_no_longer():
    """Those hear it who have no link to that one. What others fetch keeps nobody waiting."""
    scene = Scene()
    (late,) = scene.late
    scene.view.own.commit = scene.commits[scene.me].message.digest

    def told(now_s):
        return [
            (one.done, one.total, one.end_s) for one in scene.patience.own(scene.view, None, now_s)
        ]

    assert told(10.0) == [], "nothing is heard of it"
    grown = []
    for step in range(1, 4):
        scene.beat(10.0 + step, done=step)
        ((done, total, end_s),) = told(10.0 + step)
        assert done < total
        assert not end_s, "nobody knows when"
        grown.append(done)
    assert grown == sorted(set(grown))
    other = next(peer for peer in scene.peers if peer not in (late, scene.me))
    scene.patience.told(other, said(7, phase=Phase.FETCH), 13.5)
    assert [done for done, _, _ in told(13.5)] == grown[-1:]
    assert told(13.0 + STALL_S + 20.0) == [], "it stands still"
    heard = scene.commits[late]
    scene.view.ballots.add(BallotEntry(heard.message, heard.body))
    assert [done for done, _, _ in told(14.0)] == grown[-1:]
    scene.view.cells.parts[heard.message.digest] = CELLS
    assert told(14.5) == [], "all is here"


def test_own_progress_is_told_with_bounded_numbers():
    scene = Scene()
    (told,) = scene.patience.own(scene.view, Working(ROUND, Phase.TRAIN, 60, 50, 1e9), 1.0)
    assert (told.done, told.total, told.end_s) == (50, 50, 86_400)
    assert scene.patience.own(scene.view, Working(ROUND - 1, Phase.TRAIN, 1, 50, None), 1.0) == ()


@pytest.mark.parametrize(
    ("trust", "whole"),
    [
        ("friends", WholeRound(1.0, 300.0, 1.0)),
        ("open", WholeRound(60.0, 120.0, 1.0)),
    ],
)
def test_whole_rounds_are_by_steps_and_in_open_runs_without_as_many_as_may_lie(trust, whole):
    peers = peers_named(4)
    head = head_of(peers)
    steps_and_s = [(50, 1.0), (50, 60.0), (25, 60.0), (10, 60.0)]
    commits = [
        Voice(peer, head.value).commit(steps=steps)
        for peer, (steps, _) in zip(peers, steps_and_s, strict=True)
    ]
    view = view_of(peers[0], head, commits, trust=trust, started_s=0.0)
    view.arrivals.commit_s = dict(zip(peers, [s for _, s in steps_and_s], strict=True))
    lengths = WholeRounds(50)
    assert lengths.see(view) == whole
    assert lengths.see(view) is None, "it counts once"
    view.arrivals.commit_s = {}
    assert WholeRounds(50).see(view) is None


def test_with_two_rounds_in_flight_a_round_begins_for_each_when_it_handed_the_one_before_in():
    """The slow one is handed a round while it is at the one before: that is not time it took."""
    peers = peers_named(4)
    lengths, found = WholeRounds(50), []
    head = head_of(peers)
    for number, came_s in enumerate(([60.0, 120.0, 60.0, 60.0], [120.0, 240.0, 120.0, 120.0])):
        commits = [Voice(peer, head.value).commit() for peer in peers]
        view = view_of(peers[0], head, commits, started_s=0.0)
        view.seals = replace(view.seals, named_by=head.value)
        view.basis = bytes([number]) * 32
        view.arrivals.commit_s = dict(zip(peers, came_s, strict=True))
        found.append(lengths.see(view))
    assert found == [WholeRound(300.0, 600.0, 300.0)] * 2


def test_commits_that_come_in_the_wrong_order_make_nobody_fast():
    peers = peers_named(2)
    head, lengths, found = head_of(peers), WholeRounds(10), None
    for number, came_s in enumerate(([60.0, 130.0], [120.0, 120.0])):
        commits = [Voice(peer, head.value).commit() for peer in peers]
        view = view_of(peers[0], head, commits, started_s=0.0)
        view.seals = replace(view.seals, named_by=head.value)
        view.basis = bytes([number]) * 32
        view.arrivals.commit_s = dict(zip(peers, came_s, strict=True))
        found = lengths.see(view)
    assert found == WholeRound(60.0, 120.0, 60.0)


class Results(Scene):
    """A LIST of all is certified, and results of the first so many reducers are missing here."""

    def __init__(self, members: int, late: int) -> None:
        super().__init__(members, late)
        heard = [self.commits[peer] for peer in self.late]
        everyone = [Voice(peer, self.view.seals.head) for peer in self.peers]
        closer = next(v for v in everyone if v.peer == self.view.closer(0))
        said = [closer.propose(list(self.commits.values()))]
        said += [voice.vote(list(self.commits.values())) for voice in everyone]
        for message in [*heard, *said]:
            self.view.ballots.add(BallotEntry(message.message, message.body))
        ((_, self.digest),) = self.view.ballots.certified()
        first = dict(zip(self.view.slices, self.view.gathering().summing, strict=True))
        self.of = {summing[0]: piece for piece, summing in first.items()}
        self.late = tuple(self.of)[:late]
        self.view.own.commit = self.commits[self.me].message.digest
        self.view.cells.results[self.digest] = set(CELLS)
        for peer in self.late:
            piece = self.of[peer]
            self.view.cells.results[self.digest] -= set(range(piece.first, piece.stop))

    def moves(self, now_s: float) -> bool:
        for peer in self.late:
            self.view.note_movement(self.digest, peer, now_s)
        return self.look(now_s)


def test_results_of_all_that_take_long_are_charged_to_nobody():
    """Nobody can tell who is slow before all but a few have given theirs: else whoever gives the
    state of a first round to a slow line has spent the patience of its taker."""
    scene = Results(members=3, late=2)
    assert not scene.look(10.0), "nothing moves yet"
    for tenth in range(1_000):  # The line brings what one gives, and then what the other does.
        scene.view.note_movement(scene.digest, scene.late[0], 10.0 + tenth / 10)
        assert scene.look(10.0 + tenth / 10)
    assert not scene.patience._spent
    for tenth in range(1_000, 10_000):
        assert scene.moves(10.0 + tenth / 10)
    assert not scene.patience._spent
    here = set(CELLS)
    scene.view.cells.results[scene.digest] = here
    assert not scene.look(1010.0), "who has to seal is another question, and nobody moves"
    assert not scene.patience._spent


def test_results_of_a_few_that_take_long_are_charged():
    scene, now_s = Results(members=3, late=1), 10.0
    while scene.moves(now_s):
        now_s += 0.25
        assert now_s < 100.0
    assert now_s == pytest.approx(10.0 * (1 + LATE_SHARE) + CAP_ROUNDS * 10.0, abs=0.6)
    assert scene.patience._over == set(scene.late)
    assert not scene.view.waits.given_up, "without its result there is no seal"


def test_waiting_is_charged_to_nobody_once_more_than_a_few_move_again():
    """Nothing moved for a deadline, because all were between two phases: that ended no round."""
    scene = Scene(late=2)
    scene.look(10.0)
    scene.look(12.0)
    assert scene.view.waits.done_s
    for step in range(200):
        assert scene.beat(12.5 + step, done=step, total=10_000)
    assert not scene.patience._spent


def test_time_in_which_more_than_a_few_moved_is_charged_to_nobody_afterwards():
    scene = Scene(late=2)
    scene.look(10.0)
    scene.look(12.0)  # Nothing moved for a deadline, and for as long as that both are late.
    for step in range(20):
        scene.beat(12.5 + step, done=step, total=10_000)
    scene.view.peers = replace(scene.view.peers, expected=frozenset(scene.peers) - {scene.late[1]})
    scene.look(32.0)
    assert scene.view.waits.done_s, "one alone is late now"
    assert not scene.patience._spent
    scene.look(32.5)
    assert scene.patience._spent.keys() == {scene.late[0]}


def test_result_of_a_sealed_round_is_waited_for_at_nobodys_cost():
    """The looser wording: whoever gives a result slowly is charged, though the line of the taker
    is slow, who is behind all others. A founder on such a line was given up by its joiners."""
    for is_over in (False, True):
        scene, now_s = Scene(at_s=12.0), 12.0
        head = scene.view.seals.head
        for peer in scene.peers if is_over else ():
            heard = Voice(peer, head).seal(replace(head, round=ROUND))
            scene.view.ballots.add(BallotEntry(heard.message, heard.body))
        for step in range(80):
            scene.beat(now_s, done=step, total=10_000)
            now_s += 1.0
        assert bool(scene.patience._spent) == (not is_over)


def test_end_is_put_off_once_with_each_commit_that_there_is_more_to_fetch_of():
    scene = Scene(members=2)
    (peer,) = scene.late
    patience, view = scene.patience, scene.view
    patience.told(peer, said(1, total=100, end_s=10, phase=Phase.FETCH), 0.0, commits=1)
    first_s = patience._courses[peer, ROUND].until_s
    patience.told(peer, said(2, total=200, end_s=20, phase=Phase.FETCH), 9.0, commits=1)
    assert patience._courses[peer, ROUND].until_s == first_s, "no COMMIT came"
    patience.told(peer, said(3, total=300, end_s=20, phase=Phase.FETCH), 10.0, commits=2)
    then_s = patience._courses[peer, ROUND].until_s
    assert then_s == pytest.approx(10.0 + END_SLACK * 20 + STALL_S)
    patience.told(peer, said(4, total=400, end_s=20, phase=Phase.FETCH), 30.0, commits=2)
    assert patience._courses[peer, ROUND].until_s == then_s
    assert view.index == ROUND


def test_steps_are_no_more_for_a_commit_that_came():
    """The looser wording: a trainer that names more steps with each COMMIT puts its end off."""
    scene = Scene(members=2)
    (peer,) = scene.late
    for count in range(1, 9):
        words = said(count, total=100 * count, end_s=10 * count)
        scene.patience.told(peer, words, float(count), commits=count)
    until_s = scene.patience._courses[peer, ROUND].until_s
    assert until_s == pytest.approx(1.0 + END_SLACK * 10 + STALL_S)


def sent_parts(members: int) -> tuple[RoundView, list[PeerId]]:
    """A round to which all committed after a minute, whose parts came in three seconds, and in
    which the own ones are on their way; and to whom."""
    scene = Scene(members=members, late=0, at_s=60.0)
    view = scene.view
    view.own.commit = scene.commits[scene.me].message.digest
    view.arrivals.commit_s = dict.fromkeys(scene.peers, 60.0)
    heard = [scene.commits[peer] for peer in scene.peers if peer != scene.me]
    view.arrivals.parts_s = {commit.message.digest: 63.0 for commit in heard}
    assert parts_s(view, 100.0) is None, "nothing was sent"
    takers = {push.to for push in push_parts(view) if isinstance(push, Push)}
    return view, sorted(takers)


def test_time_of_the_own_parts_is_that_of_all_but_a_few_takers_and_beside_it_that_of_other_lines():
    view, takers = sent_parts(3)
    assert len(takers) == 2
    assert parts_s(view, 105.0) == (45.0, 3.0), "it is not over yet"
    view.arrivals.sent_s = {takers[0]: 7.0, takers[1]: 500.0}
    own_s, others_s = parts_s(view, 1000.0) or (0.0, 0.0)
    assert own_s == 7.0, "a few may take as long as they like"
    assert others_s < 3.1


def test_who_is_past_the_round_shows_nothing_of_the_line_of_who_was_listed():
    view, takers = sent_parts(3)
    view.arrivals.sent_s = {takers[0]: 7.0}
    before = parts_s(view, 1000.0)
    assert before is not None
    assert before[1] < 3.0, "as if its line had taken until now"
    heard = [Voice(peer, view.seals.head) for peer in view.members]
    everybody = [voice.commit() for voice in heard]
    proposal = heard[0].propose(everybody)
    view.ballots.add(BallotEntry(proposal.message, proposal.body))
    assert isinstance(proposal.body, List)
    digest = view.ballots.list_digest(proposal.body)
    for voice in heard:
        seal = voice.seal(replace(view.seals.head, round=ROUND, commits=proposal.body.commits))
        assert isinstance(seal.body, Seal)
        body = replace(seal.body, list_digest=digest)
        again = voice.say(Kind.SEAL, body, subject=view.seals.head.digest)
        view.ballots.add(BallotEntry(again.message, again.body))
    assert parts_s(view, 1000.0) == (7.0, 3.0)
    view.cells.requested = {place for place in view.cells.requested if place[-1] != takers[1]}
    view.arrivals.sent_s[takers[1]] = 900.0
    assert parts_s(view, 1000.0) == (7.0, 3.0), "it asked in a second call"


def test_commit_and_parts_that_were_there_before_the_round_say_nothing_of_times():
    view, _ = sent_parts(3)
    view.times.started_s = 60.0
    assert parts_s(view, 100.0) is None
    assert WholeRounds(10).see(view) is None


def test_of_two_neither_does_less_for_its_line():
    view, takers = sent_parts(2)
    view.arrivals.sent_s = dict.fromkeys(takers, 40.0)
    assert parts_s(view, 100.0) is None


@pytest.mark.parametrize(("seated", "is_awaited"), [(1, True), (2, False)])
def test_open_run_waits_for_those_whom_its_founder_waited_for_before_they_commit(
    seated, is_awaited
):
    """The looser wording, that a newcomer is waited for: anybody can prove a seat for a key that
    does nothing. The tighter one, that nobody new is: founded on slow lines it listed nobody."""
    peers = peers_named(5)
    head = head_of(peers[:4], peers[4:])
    seats = [
        replace(seat, seated=seated, proved=-1) if seat.peer == peers[4] else seat
        for seat in head.value.roster.seats
    ]
    value = replace(head.value, roster=replace(head.value.roster, seats=tuple(seats)))
    view = view_of(peers[0], replace(head, value=value), trust="open")
    assert (peers[4] in view.awaited) == is_awaited
