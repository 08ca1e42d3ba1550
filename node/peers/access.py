"""Who is let into a run for the invited: what peers show, what entries say, what is written of it.

Whoever has a seat enforces the rules; a newcomer cannot know what was revoked or used, and checks
signatures alone. A peer is let in if it needs no invitation, has a seat, or shows a credential
whose tokens are known, not revoked, not expired and not used up. Each member that lets a peer in
says so in an ADMISSION, and whom one member has let in, all let in.

So a token of n uses lets in n peers as soon as members hear of each other; members that let peers
in at the same moment, before gossip has passed between them, may together let in more. None of
these is thrown out. A token is good while its issue is held: its issuer was here within a day.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from protocol.entry_kinds import Admitted, EntryBody, EntryKind, Invitation
from protocol.errors import DecodeError, ProofError
from protocol.hybrid_clock import WallClock
from protocol.identity import PeerId, Signer
from protocol.invitations import (
    Admission,
    Role,
    Token,
    check_credential,
    decode_credential,
    roots,
)
from protocol.manifest import RunManifest
from protocol.shared_state.book import SharedState

PENDING_MAX = 64
"""Admissions that wait to be written: as many as there are seats."""

Write = tuple[EntryKind, bytes, EntryBody]


class Issued(Protocol):
    """SEAM: the tokens that this node has issued, and which of them it has revoked."""

    def tokens(self) -> tuple[tuple[Token, bool], ...]:
        """Each with whether it is revoked."""
        ...


@dataclass(slots=True)
class _Known:
    """What the entries say, as of `versions`."""

    versions: tuple[int, int] = (-1, -1)
    issued: set[bytes] = field(default_factory=set)
    revoked: set[bytes] = field(default_factory=set)
    """Issuer and key of each token: nobody speaks for another issuer."""

    bearers: dict[bytes, dict[PeerId, set[PeerId]]] = field(default_factory=dict)
    """Name of the token > bearer > who has let it in."""

    seating: set[bytes] = field(default_factory=set)
    """Names of the tokens that make members of their bearers."""


@dataclass(slots=True, kw_only=True)
class Access:
    """The door of one node. `members` are those with a seat, as the own chain says."""

    manifest: RunManifest
    signer: Signer
    book: SharedState
    members: Callable[[], frozenset[PeerId]]
    wall_clock: WallClock
    credential: bytes = b""
    """What this node shows of itself, encoded."""

    issued: Issued | None = None
    _checked: dict[bytes, bool] = field(default_factory=dict)
    """By entry: whether the admission in it is signed."""

    _known: _Known = field(default_factory=_Known)
    _pending: dict[bytes, Admission] = field(default_factory=dict)

    @property
    def is_for_all(self) -> bool:
        """Whether the run takes whoever has its link."""
        return self.manifest.access.mode == "link"

    def refusal(self, peer: PeerId, shown: bytes) -> str:
        """Why a peer is not let in; empty if it is. One that is let in anew is written down."""
        if self.is_for_all or peer in roots(self.manifest) or peer in self.members():
            return ""
        if not shown:
            return "this run is for the invited: join it by a link that `barnraise invite` made"
        try:
            credential = decode_credential(shown)
            check_credential(credential, self.manifest, peer, self.signer)
        except (DecodeError, ProofError) as error:
            return str(error)
        if self.signer.peer_id not in self.members():
            return ""
        return self._refusal_of(credential.admissions)

    def may_sit(self, peer: PeerId) -> bool:
        """Whether a peer may ask for a seat."""
        members = self.members()
        if self.is_for_all or self.signer.peer_id not in members:
            return True  # Who has no seat itself names nobody for one.
        if peer in roots(self.manifest) or peer in members:
            return True
        known = self._look()
        return any(
            known.bearers[name].get(peer, set()) & (members | {self.signer.peer_id})
            for name in known.seating - known.revoked
        )

    def due(self) -> Iterator[Write]:
        """What is to be written: tokens that were issued or revoked here, and who was let in."""
        if self.is_for_all:
            return
        known = self._look()
        for token, is_revoked in self.issued.tokens() if self.issued is not None else ():
            said = known.revoked if is_revoked else known.issued | known.revoked
            if _name(token) not in said:
                yield EntryKind.INVITATION, token.key, _said_of(token, is_revoked=is_revoked)
        for name, admission in tuple(self._pending.items()):
            if self._is_written(admission):
                del self._pending[name]
            else:
                yield EntryKind.ADMISSION, name, Admitted(admission=admission)

    def _refusal_of(self, admissions: tuple[Admission, ...]) -> str:
        known, last = self._look(), admissions[-1]
        names = [_name(one.token) for one in admissions]
        # What was issued or revoked here a moment ago may not be an entry yet.
        own = self.issued.tokens() if self.issued is not None else ()
        revoked = known.revoked | {_name(token) for token, is_revoked in own if is_revoked}
        issued = known.issued | {_name(token) for token, _ in own}
        if not revoked.isdisjoint(names):
            return "the invitation was revoked"
        if self._let_in_by(last) & (self.members() | {self.signer.peer_id}):
            self._note(last)
            return ""
        if self.wall_clock() > min(one.token.not_after_unix_s for one in admissions):
            return "the invitation has expired"
        if not issued.issuperset(names):
            return "the invitation is not known here: its issuer has not been heard of for a day"
        for name, one in zip(names, admissions, strict=True):
            if len(known.bearers.get(name, {}).keys() | {one.bearer}) > one.token.uses:
                return f"the invitation is used up: it was for {one.token.uses}"
        if len(self._pending) >= PENDING_MAX:
            return "too many come at once: try again in a moment"
        self._note(last)
        return ""

    def _note(self, admission: Admission) -> None:
        if not self._is_written(admission):
            self._pending[admission.name] = admission
            _count(self._look(), admission, self.signer.peer_id)

    def _is_written(self, admission: Admission) -> bool:
        own = self.book.entry(self.signer.peer_id, EntryKind.ADMISSION, admission.name)
        return own is not None

    def _let_in_by(self, admission: Admission) -> set[PeerId]:
        return self._look().bearers.get(_name(admission.token), {}).get(admission.bearer, set())

    def _look(self) -> _Known:
        """What the entries say by now, and what waits to become one."""
        kinds = (EntryKind.INVITATION, EntryKind.ADMISSION)
        versions = (self.book.versions[kinds[0]], self.book.versions[kinds[1]])
        if versions != self._known.versions:
            known = self._known = _Known(versions)
            for entry in self.book.entries(EntryKind.INVITATION):
                if isinstance(entry.content, Invitation):
                    is_revoked = entry.content.is_revoked
                    (known.revoked if is_revoked else known.issued).add(entry.writer + entry.key)
            checked, self._checked = self._checked, {}
            for entry in self.book.entries(EntryKind.ADMISSION):
                if isinstance(entry.content, Admitted):
                    admission = entry.content.admission
                    is_sound = checked.get(entry.entry_id)
                    if is_sound is None:
                        is_sound = admission.is_sound(self.manifest.digest, self.signer)
                    self._checked[entry.entry_id] = is_sound
                    if is_sound:
                        _count(known, admission, entry.writer)
            for admission in self._pending.values():
                _count(known, admission, self.signer.peer_id)
        return self._known


def _name(token: Token) -> bytes:
    return token.issuer + token.key


def _count(known: _Known, admission: Admission, writer: PeerId) -> None:
    name = _name(admission.token)
    known.bearers.setdefault(name, {}).setdefault(admission.bearer, set()).add(writer)
    if admission.token.role is Role.MEMBER:
        known.seating.add(name)


def _said_of(token: Token, *, is_revoked: bool) -> Invitation:
    return Invitation(
        is_revoked=is_revoked,
        role=token.role,
        uses=token.uses,
        delegations=token.delegations,
        not_after_unix_s=token.not_after_unix_s,
    )
