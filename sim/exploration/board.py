"""What the messages of a round have to offer: certificates, LISTs and seals, ready to be heard."""

from dataclasses import dataclass

from protocol.messages import Seal
from sim.exploration.peers import Deed
from sim.exploration.post import Letter, Post
from sim.exploration.table import Table


@dataclass(frozen=True, slots=True)
class Offer:
    """Messages that together tell something: the attempt, what it is of, and how it is told."""

    attempt: int
    digest: bytes
    deeds: tuple[Deed, ...]
    words: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    """What the messages that were sent have to offer to everybody."""

    lists: dict[int, list[Letter]]
    first_of: dict[bytes, Deed]
    certificates: tuple[Offer, ...]
    finals: tuple[Offer, ...]


def heard(letters: list[Letter]) -> tuple[Deed, ...]:
    """The deeds of hearing these messages."""
    return tuple(("hear", letter.number) for letter in letters)


class Boards:
    """The boards of all sets of messages, each made once."""

    def __init__(self, table: Table, post: Post) -> None:
        self._table, self._post = table, post
        self._boards: dict[int, Board] = {}

    def of(self, sent: int) -> Board:
        """What a set of messages has to offer; remembered."""
        sent = self._post.counted(sent)
        known = self._boards.get(sent)
        if known is None:
            known = self._boards[sent] = self._make(sent)
        return known

    def _make(self, sent: int) -> Board:
        facts, basis = self._post.facts(sent), self._table.head.value.digest
        lists = {attempt: letters for (_, attempt), letters in sorted(facts.lists.items())}
        first_of: dict[bytes, Deed] = {}
        for letters in lists.values():
            for letter in letters:
                first_of.setdefault(letter.proposes, ("hear", letter.number))
        certificates = tuple(
            Offer(attempt, digest, heard(self._post.smallest_quorum(basis, votes)))
            for (_, attempt, digest), votes in sorted(facts.votes.items())
            if (basis, attempt, digest) in facts.certified
        )
        by_value: dict[bytes, list[list[Letter]]] = {}
        for (_, _, value), seals in sorted(facts.seals.items()):
            by_value.setdefault(value, []).append(seals)
        finals = []
        for groups in by_value.values():
            together = [letter for seals in groups for letter in seals]
            for seals in [*groups, together] if len(groups) > 1 else groups:
                if self._post.is_quorum(basis, {letter.sender for letter in seals}):
                    finals += self._final_offers(seals, first_of)
        return Board(lists, first_of, certificates, tuple(finals))

    def _final_offers(self, seals: list[Letter], first_of: dict[bytes, Deed]) -> list[Offer]:
        """Who hears the LIST first still VOTEs for it; who hears it last only adds its SEAL."""
        body = seals[0].body
        assert isinstance(body, Seal)
        digest = body.list_digest
        whose = ", ".join(self._table.names[letter.sender] for letter in seals)
        words = f"hears the SEALs of {self._table.name_of_list(digest)} by {whose} and adopts it"
        hear, result = heard(seals), ("result", digest)
        orders = ((first_of[digest], *hear, result), (*hear, result, first_of[digest]))
        return [Offer(seals[0].attempt, digest, deeds, words) for deeds in orders]
