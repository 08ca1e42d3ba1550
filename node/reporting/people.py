"""What the foreground node tells the person in front of it: a few lines, and one per round."""

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trio

from node.status.board import EventLog, Field
from node.text.shown import as_word, shown
from node.text.terminal import PeopleConsole
from protocol.identity import short_id
from protocol.manifest import RunManifest
from training.data.corpus import python_needed

_TITLE_CHARACTERS_MAX = 128
_WARNING_CHARACTERS_MAX = 800


def say(console: PeopleConsole, line: str) -> None:
    """One line, or several; nowhere once the terminal is gone, or where a disk takes no more."""
    try:
        console.print(line)
    except OSError:
        console.quiet = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """How this start came about, for the first lines."""

    state: Path
    manifest: RunManifest
    how: str
    """"founded now", "joined now" or "resumed"."""

    is_usual_state: bool
    """Whether commands find the state folder without being told."""


class PeopleLog:
    """EventSink that turns events into lines for people."""

    def __init__(self, console: PeopleConsole, occasion: Occasion) -> None:
        self._console = console
        self._occasion = occasion
        self._is_seated = False
        self._is_opened = False
        self._is_finished = False

    def emit(self, event: str, **fields: Field) -> None:
        """See EventSink."""
        line = self._line(event, fields)
        if line is not None:
            self.say(line)

    def say(self, line: str) -> None:
        """See `say`."""
        say(self._console, line)

    def _line(self, event: str, fields: dict[str, Field]) -> str | None:
        rounds = self._occasion.manifest.rounds
        match event, fields:
            case "invite", _ if self._is_finished:
                return None  # The first lines say how to stop and to invite: it is over.
            case "invite", {"link": str(link)}:
                if self._is_opened:
                    return f"invite, now  {link}"
                self._is_opened = True
                return self._opening(link)
            case "linked" | "unlinked", {"peer": str(peer), "linked": list(linked)}:
                verb = "linked" if event == "linked" else "gone"
                return f"peer {_short(peer)} {verb}, {len(linked)} linked now"
            case "resumed", {"round": int(round_index)} if round_index:
                return f"goes on from round {round_index}, which is on the disk"
            case "synced", {"round": int(round_index)}:
                return f"has the state of round {round_index} from its peers"
            case "history", {"others": int(others), "in_link": bool(is_named)}:
                return _history(others, is_named=is_named)
            case "catching_up", {"text": str(text)}:
                return text
            case "seated", {"round": int(round_index)} if (
                not self._is_seated and round_index <= rounds
            ):
                self._is_seated = True
                return f"takes part from round {round_index} on"
            case "unseated", {"seats": int(seats)}:
                self._is_seated = False
                taken = "the only seat is" if seats == 1 else f"all {seats} seats are"
                return f"{taken} taken, in turns: follows the rounds until one is free"
            case "waiting_for_peers" | "starts_without" | "holding", {"peers": int(count)}:
                return _waiting(event, count, fields)
            case "handing_over", {"heirs": int(heirs)}:
                return _handing_over(heirs)
            case "handed_over", {"round": int(round_index)}:
                return f"others vote in its place since round {round_index}: it goes"
            case "resync", _:
                self._is_seated = False
                return "fetches the run's state anew from its peers"
            case "sealed", {"round": int(round_index), "listed": list(listed)}:
                return self._sealed(round_index, rounds, len(listed), fields)
            case "set_back", {"peer": str(peer), "until": int(until), "is_own": bool(is_own)}:
                return _set_back(peer, until, is_own=is_own)
            case "provisional", {"round": int(round_index), "listed": int(listed)}:
                return self._provisional(round_index, rounds, listed, fields)
            case "confirmed", {"round": int(round_index)}:
                return f"round {round_index} is final now"
            case "branch_lost", {"round": int(round_index), "rounds": int(count)}:
                return (
                    f"the last {count} provisional rounds give way to what others sealed: "
                    f"goes on from round {round_index}"
                )
            case "validation", {"round": int(round_index), "loss": float(loss)}:
                part, whole = fields.get("windows"), fields.get("of_windows")
                over = f" (over {part} of {whole} windows)" if part != whole else ""
                return f"held-out loss {loss:.3f} after round {round_index}{over}"
            case "warning", {"text": str(text)} if text:
                return f"warning: {shown(text, _WARNING_CHARACTERS_MAX)}"
            case "finished", {"round": int(round_index), "checkpoint": str(checkpoint)}:
                self._is_finished = True
                return f"run finished: {round_index} rounds; the weights are in {checkpoint}"
            case "left", _:
                # A terminal shows the Ctrl+C, and leaves the cursor behind it.
                start = "\n" if self._console.is_terminal else ""
                return f"{start}left; the same command goes on from here"
            case _:
                return None

    def _opening(self, link: str) -> str:
        occasion, manifest = self._occasion, self._occasion.manifest
        where = "" if occasion.is_usual_state else f" --state {as_word(str(occasion.state))}"
        if manifest.access.mode == "invited":
            link = f"barnraise invite{where} makes a link for one peer; this run is for the invited"
        return "\n".join(
            [
                f"{shown(manifest.title, _TITLE_CHARACTERS_MAX)}",
                f"  run     {manifest.digest.hex()[:12]}, {occasion.how}",
                f"  state   {occasion.state}",
                f"  look    barnraise status{where}",
                "  stop    Ctrl+C; the same command goes on from there",
                f"  invite  {link}",
            ]
        )

    @staticmethod
    def _provisional(round_index: int, rounds: int, listed: int, fields: dict[str, Field]) -> str:
        start = f"round {round_index:{len(str(rounds))}} of {rounds} sealed provisionally"
        line = f"{start}: {listed} of {fields.get('members')} listed, no quorum is in reach"
        if fields.get("ends_run") is not True:
            return line
        return (
            f"{line}\nall rounds are done, but not final: the node stays until enough of the "
            "others are back to seal them. Ctrl+C leaves; the same command goes on waiting"
        )

    @staticmethod
    def _sealed(round_index: int, rounds: int, listed: int, fields: dict[str, Field]) -> str:
        width = len(str(rounds))
        parts = [f"round {round_index:{width}} of {rounds} sealed: {listed}"]
        parts.append(f" of {fields.get('members')} listed")
        loss, wall_s = fields.get("train_loss"), fields.get("wall_s")
        if isinstance(loss, float):
            parts.append(f", loss {loss:.3f}")
        if isinstance(wall_s, int | float):
            parts.append(f", {wall_s:.1f} s")
        if fields.get("was_listed") is False:
            why = _LEFT_OUT.get(str(fields.get("left_out")), "")
            parts.append(f" (without this node{why})")
        return "".join(parts)


_LEFT_OUT = {
    "training": (
        ": its steps took longer than the others wait; from the next round on it takes as many as "
        "fit its speed, unless the run asks for equal steps"
    ),
    "line": (
        ": its contribution did not reach the others in time; from the next round on it takes "
        "fewer steps and sends earlier, unless the run asks for equal steps"
    ),
}
"""Why, and what changes next."""


def _set_back(peer: str, until: int, *, is_own: bool) -> str:
    who = "this node" if is_own else f"peer {peer[-8:]}"
    return (
        f"{who} kept others waiting for what it owed: until round {until} others sum and propose"
        " before it; it keeps seat and vote"
    )


def _history(num_others: int, *, is_named: bool) -> str:
    if num_others:
        who = "one peer more tells" if num_others == 1 else f"{num_others} peers more tell"
        also = ", and so does the invite link" if is_named else ""
        return f"{who} the same history of this run from its first round on{also}"
    if is_named:
        return "the history of this run is the one that the invite link names"
    return (
        "one peer alone tells this run's history, and nothing shows that it is the one which the "
        "swarm lived through: whoever has the founder's key could have written another. A fresh "
        "invite link from somebody you trust names a seal of the right one"
    )


def _waiting(event: str, count: int, fields: dict[str, Field]) -> str:
    """For how many peers a round waits, or a founder that has started does not."""
    if event == "starts_without":
        return f"starts without waiting for {_peers(count)} more"
    if event == "holding":
        return f"round {fields.get('round')} waits for {_peers(count)} fetching the state from here"
    how = "Enter starts" if fields.get("has_terminal") else "the option --alone starts"
    return (
        f"round 1 waits until {_peers(count)} more {'has' if count == 1 else 'have'} joined "
        f"(start_with in node.toml); {how} at once"
    )


def _peers(count: int) -> str:
    return "1 peer" if count == 1 else f"{count} peers"


def _handing_over(heirs: int) -> str:
    peers = "a peer takes" if heirs == 1 else f"some of {heirs} peers take"
    return (
        "the run cannot seal without this node's vote: were it gone now, nothing would become "
        f"final until it is back. It works on until {peers} its place, a few rounds; Ctrl+C again "
        "ends it at once"
    )


def what_joining_means(manifest: RunManifest) -> str:
    """What a run trains, what leaves this machine, and how to stop: shown before anything does."""
    settings = ", ".join(
        f"{one.name} {shown(str(one.value), 40)}" for one in manifest.model.settings
    )
    numel = sum(sum(tensor.numel for tensor in shard.tensors) for shard in manifest.shards)
    who = "people who were invited" if manifest.trust == "friends" else "strangers"
    return "\n".join(
        [
            f"You join {shown(repr(manifest.title), _TITLE_CHARACTERS_MAX)}, "
            f"founded by peer {short_id(manifest.founder)}, run {manifest.digest.hex()[:12]}.",
            f"  It trains   {shown(manifest.model.name, 64)}, {numel:,} parameters ({settings}),",
            f"              on {shown(manifest.corpus.name, 64)}, together with {who}",
            *_python_needed(manifest),
            "  It uses     this machine's processor or GPU, some memory, disk and traffic",
            "  It sends    weight updates and signed messages to the run's peers, with this",
            "              machine's IP address and peer id; no file of yours is read or sent",
            "  It runs     no code from others: a link or manifest never carries any",
            "  To stop     Ctrl+C, at any time; nothing has to be undone",
        ]
    )


def _python_needed(manifest: RunManifest) -> Iterator[str]:
    """The text is the library of one release of Python, to the patch."""
    needed, here = shown(python_needed(manifest.corpus), 32), platform.python_version()
    if not needed:
        return
    if needed == here:
        yield f"  It needs    Python {needed}, whose library is the text; this is it"
    else:
        yield f"  It needs    Python {needed}, whose library is the text; this is {here},"
        yield f"              which cannot train here: start barnraise with {needed}"


def _short(peer: str) -> str:
    return shown(peer, 64)[-8:]


# Waiting for peers that are away: why, and how long until the next try ---------------------------

PAUSE_FIRST_S, PAUSE_MAX_S = 5, 30
"""Until the next try: more from time to time, as whoever is away longer stays away longer."""


class Countdown:
    """The pauses between the tries of one command. Ctrl+C ends the process in the middle of one."""

    def __init__(self, console: PeopleConsole, log: EventLog) -> None:
        self._console = console
        self._log = log
        self._pause_s = PAUSE_FIRST_S
        self._said = ""

    async def pause(self, why: str) -> None:
        """Say what failed, unless it is what failed before, and wait until it is time to try."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)
        self._log.emit("waiting", again_s=pause_s, reason=why)
        if why != self._said:
            self._said = why
            say(self._console, why)
        if not self._console.is_terminal:
            say(self._console, _line(pause_s))
            await trio.sleep(pause_s)
            return
        for left_s in range(pause_s, 0, -1):
            self._show(_line(left_s))
            await trio.sleep(1.0)
        self._show(" " * len(_line(pause_s)))

    def _show(self, line: str) -> None:
        try:
            self._console.overwrite(line)
        except OSError:
            self._console.quiet = True


def _line(left_s: int) -> str:
    return f"tries again in {left_s} s; Ctrl+C ends"
