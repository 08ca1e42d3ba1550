"""Builds that are broken on purpose in what open runs alone ask for, for `tests.sim.broken`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from protocol.rounds import admission, agreement, round_view


@contextmanager
def one_word_is_enough() -> Iterator[None]:
    """In an open run too, the first AGG of a slice is believed."""

    def first_root(view: round_view.RoundView, digest: bytes, piece: Any) -> bytes | None:
        said = view.agg_of(digest, piece)
        return next((agg.root for agg in said.values()), None)

    with (
        patch("protocol.rounds.agreed.agreed_root", first_root),
        patch("protocol.rounds.supply.agreed_root", first_root),
        patch("protocol.rounds.supply.is_agreed", lambda *_: True),
    ):
        yield


@contextmanager
def last_member_is_gone() -> Iterator[None]:
    """Where nobody has said LEAVE, a node names the last of the roster."""
    body = agreement.commit_body

    def names_the_last(view: round_view.RoundView, *rest: Any) -> Any:
        said = body(view, *rest)
        gone = said.gone or tuple(peer for peer in view.members[-1:] if peer != view.me)
        return replace(said, gone=gone)

    with patch("protocol.rounds.round_machine.commit_body", names_the_last):
        yield


@contextmanager
def one_voter_hurries_all() -> Iterator[None]:
    """In an open run too, whoever sees a later attempt enters it."""
    with patch.object(admission, "liars", lambda num_voters, trust: 0):
        yield
