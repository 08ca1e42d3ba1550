"""Rare branches: what the rules always allow, and what hardly ever happens by itself.

A simulated world takes them on purpose, so that the paths behind them are walked. A real node never
does. The code asks `rare("name")` where such a branch begins; whoever answers draws from a stream
of its own. Questions that are asked again after every event go through `RoundView.rare`, which
draws once per attempt.
"""

from collections.abc import Callable, Mapping

Rare = Callable[[str], bool]
"""Whether the branch of that name is taken now."""


def never(name: str) -> bool:
    """The answer of every real node."""
    return False


NAMES: Mapping[str, str] = {
    "closer-early": "The closer proposes what is complete, as if late: clocks are local.",
    "closer-carries": "The closer lets the round carry: a LIST may be empty.",
    "closer-free": "The closer passes over a list that is summed: without a lock it is free.",
    "have-early": "A reducer signs HAVE before its deadline: what it leaves out is not listed.",
    "vote-later": "A VOTE waits for the next event: a vote not given is an absent voter.",
    "seal-later": "A SEAL waits for the next event: a seal not given is an absent voter.",
    "late-seal-unsigned": "The own SEAL of a round that is final anyway is not added.",
    "left-at-list": "A voter gives the attempt up when it hears the LIST: time-outs are its own.",
    "left-at-vote": "A voter gives the attempt up after its VOTE: a vote locks nobody.",
    "left-at-seal": "A voter gives the attempt up after its SEAL: it reports its lock to the next.",
    "attempt-skipped": "Whoever gives an attempt up enters the one after the next.",
    "part-unpushed": "A sender pushes no part: whoever sums them asks.",
    "part-at-once": "A reducer asks for parts before they can have been pushed.",
    "result-unpushed": "A reducer pushes no result: whoever needs it asks.",
    "result-at-once": "A member asks for results before they can have been pushed.",
    "other-source": "Cells are asked for at the second source first.",
    "want-ignored": "A question for cells is not answered: the asked may lack them.",
    "forward-to-none": "A message is not passed on: heartbeats fill the gap.",
    "forward-to-all": "A message is passed on to those whom its origin reaches too.",
    "early-dropped": "A message of the next round is not kept: heartbeats fill the gap.",
    "beat-skipped": "A heartbeat is left out: one is no silence yet.",
    "live-suspected": "One peer is suspected for one look though it was heard: suspicion is local.",
    "source-given-up": "A source of the state is given up while its bytes arrive.",
    "deadline-forgotten": "The learned deadline starts from its floor again.",
}
"""What each branch does, and why the rules allow it."""
