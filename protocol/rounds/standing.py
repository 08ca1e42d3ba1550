"""Where a node stands (R4): last final seal, branch behind it, a view of each round. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from protocol.messages import SealCertificate, SignedMessage
from protocol.rounds.branches import Position
from protocol.rounds.round_view import RoundView

NewView = Callable[[SealCertificate], RoundView]


@dataclass(slots=True)
class Standing:
    """The chain's end and what stands on it.

    `views[0]` is of the round behind `final`, the next of the round behind `branch[0]`, and so on:
    one more than there are seals in `branch`. `ahead` are seals behind the head to which others
    went on, and this node follows. `given_up` holds the views of branches that were left, by basis:
    what was signed in them stays signed, should the node come back there.
    """

    final: SealCertificate
    views: list[RoundView]
    branch: list[SealCertificate] = field(default_factory=list)
    ahead: tuple[SealCertificate, ...] = ()
    given_up: dict[bytes, RoundView] = field(default_factory=dict)
    beside: RoundView | None = None
    """The round behind `top`, where two are in flight (R5): the head names it, whatever the round
    before it comes to. So the second round of a branch is the same one on all branches."""

    _own_words: dict[bytes, int] = field(default_factory=dict)
    """By digest the rounds of own messages on branches that cannot become final any more."""

    @property
    def base(self) -> RoundView:
        """The round that is final next."""
        return self.views[0]

    @property
    def top(self) -> RoundView:
        """The round behind the head: the one that is trained for."""
        return self.views[-1]

    @property
    def head(self) -> SealCertificate:
        """The last seal of the branch, or the final one."""
        return self.branch[-1] if self.branch else self.final

    @property
    def position(self) -> Position:
        """Final seal and head."""
        return Position(self.final.value, self.head.value, self.base.named, self.top.named)

    @property
    def bound(self) -> bytes:
        """The LIST that the own branch, or the one that is followed, made of the next round."""
        path = self.branch or self.ahead
        return path[0].value.list_digest if path else b""

    @property
    def under_way(self) -> list[RoundView]:
        """All rounds under way, and those of the branch."""
        return self.views if self.beside is None else [*self.views, self.beside]

    @property
    def worked_for(self) -> list[RoundView]:
        """The rounds that a contribution may be for."""
        return [self.top] if self.beside is None else [self.top, self.beside]

    def on(self, basis: bytes) -> RoundView | None:
        """The view of the round that this names."""
        for view in self.under_way:
            if view.basis == basis:
                return view
        return None

    def about(self, subject: bytes) -> RoundView | None:
        """The view of the round that a COMMIT or LIST is of, the newest first."""
        return next((view for view in reversed(self.under_way) if view.is_about(subject)), None)

    def others(self, view: RoundView) -> Iterator[RoundView]:
        """All views but this one."""
        return (other for other in self.under_way if other is not view)

    @property
    def shared(self) -> list[RoundView]:
        """The rounds that final seals name: the same ones on all branches."""
        return self.views[: 1 + self.base.is_overlapped]

    @property
    def followed(self) -> bytes:
        """The LIST from which those that are followed went on behind the head; empty if none."""
        return self.ahead[0].value.list_digest if self.ahead else b""

    def advance(self, certificate: SealCertificate, new_view: NewView) -> None:
        """Go on from a provisional seal on the head."""
        assert certificate.value.before == self.top.before
        self.branch.append(certificate)
        self._follow(certificate)
        self.views.append(self._behind(certificate, new_view))

    def confirm(self, certificate: SealCertificate) -> None:
        """The first seal of the branch is final."""
        assert certificate.value.digest == self.branch[0].value.digest
        self.final = certificate
        del self.branch[0], self.views[0]
        self.base.promote()
        for view in self.under_way:
            view.final = self.base.named
        self._forget()

    def fall_back(self) -> list[RoundView]:
        """Give the branch up; the rounds that stood on seals of it, and stand on none now (R5)."""
        left = self.views[1:]
        floating = left if self.base.is_overlapped else []
        for view in floating:
            view.leaves()
        if self.beside is not None and self.branch:
            left = [*left, self.beside]
        if floating:
            # The last final seal names it, too: it is under way beside the next one again.
            self.beside = left.pop(0)
        self.given_up |= {view.basis: view for view in left}
        del self.branch[:], self.views[1:]
        self.ahead = ()
        return floating

    def resynced(self) -> None:
        """The trainer begins anew (R6): what it gave for these rounds it does not hold any more,
        and COMMITs of a branch that comes back are of that."""
        for view in (*self.under_way, *self.given_up.values()):
            view.is_out_of_hand = bool(view.own_commit)

    def adopt(self, certificate: SealCertificate, new_view: NewView) -> None:
        """Stand on another final seal; there is no branch."""
        assert not self.branch
        self._follow(certificate)
        self.final = certificate
        self.views = [self._behind(certificate, new_view)]
        self.base.promote()
        self._forget()

    def _follow(self, certificate: SealCertificate) -> None:
        is_ahead = self.ahead and self.ahead[0].value.digest == certificate.value.digest
        self.ahead = self.ahead[1:] if is_ahead else ()

    def _behind(self, certificate: SealCertificate, new_view: NewView) -> RoundView:
        """The round behind a seal: the one that it names, which may come back; or with two in
        flight that which was beside the round before (R5)."""
        beside, self.beside = self.beside, None
        value = certificate.value
        basis = value.before if self.base.is_overlapped else value.digest
        if beside is not None and beside.basis == basis:
            return beside
        return self.returned(basis) or new_view(certificate)

    def returned(self, basis: bytes) -> RoundView | None:
        """The view of a round that was left, and comes back."""
        view = self.given_up.pop(basis, None)
        if view is not None:
            view.final, view.followed, view.is_diverged = self.base.named, b"", False
            # Contributions of rounds that were left are not kept: they have to be asked for again.
            view.parts.clear()
            view.asked.clear()
        return view

    def has_signed(self, message: SignedMessage) -> bool:
        """Whether an own message is of a round on a branch that was left."""
        view = self.given_up.get(message.slot.basis)
        is_there = view is not None and view.ballots.find(message.digest) is not None
        return is_there or message.digest in self._own_words

    def _forget(self) -> None:
        """Rounds that stand on no seal which may still become final are over.

        What was signed in them may come back from whoever was on that branch as well, as long as
        rounds of that number are ahead.
        """
        known = {self.final.value.digest, *(link.value.digest for link in self.branch)}
        kept = {}
        for basis, view in sorted(self.given_up.items(), key=lambda item: item[1].index):
            if view.head.before in known:
                known.add(basis)
                kept[basis] = view
            else:
                own = (message for message in view.ballots.messages() if message.sender == view.me)
                self._own_words |= {message.digest: message.slot.round for message in own}
        self.given_up = kept
        past = [digest for digest, number in self._own_words.items() if number < self.base.index]
        for digest in past:
            del self._own_words[digest]
