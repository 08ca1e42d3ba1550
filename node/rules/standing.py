"""Where a node stands (R4): last final seal, branch behind it, a view of each round. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from node.rules.branches import Position
from node.rules.round_view import RoundView
from protocol.messages import SealCertificate

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
    """The round behind `base`, where that is under way beside it (R5); never on a branch."""

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
        return Position(self.final.value, self.head.value)

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

    def advance(self, certificate: SealCertificate, new_view: NewView) -> None:
        """Go on from a provisional seal on the head."""
        assert certificate.value.before == self.top.before
        self.branch.append(certificate)
        is_ahead = self.ahead and self.ahead[0].value.digest == certificate.value.digest
        self.ahead = self.ahead[1:] if is_ahead else ()
        self.views.append(self._view(certificate, new_view))

    def confirm(self, certificate: SealCertificate) -> None:
        """The first seal of the branch is final."""
        assert certificate.value.digest == self.branch[0].value.digest
        self.final = certificate
        del self.branch[0], self.views[0]
        for view in self.views:
            view.final = certificate.value
        self.base.promote()
        self._forget()

    def fall_back(self) -> None:
        """Give the branch up."""
        self.given_up |= {view.basis: view for view in self.views[1:]}
        del self.branch[:], self.views[1:]
        self.ahead = ()

    def adopt(self, certificate: SealCertificate, new_view: NewView) -> None:
        """Stand on another final seal; there is no branch."""
        assert not self.branch
        is_ahead = self.ahead and self.ahead[0].value.digest == certificate.value.digest
        self.ahead = self.ahead[1:] if is_ahead else ()
        self.final = certificate
        self.views = [self._view(certificate, new_view)]
        self.base.promote()
        self._forget()

    def _view(self, certificate: SealCertificate, new_view: NewView) -> RoundView:
        view = self.given_up.pop(certificate.value.digest, None)
        if view is None:
            return new_view(certificate)
        view.final, view.followed, view.is_diverged = self.final.value, b"", False
        # Contributions of rounds that were left are not kept: here they have to be asked for again.
        view.parts.clear()
        view.asked.clear()
        return view

    def _forget(self) -> None:
        """Rounds that stand on no seal which may still become final are over."""
        known = {self.final.value.digest, *(link.value.digest for link in self.branch)}
        kept = {}
        for basis, view in sorted(self.given_up.items(), key=lambda item: item[1].index):
            if view.head.before in known:
                known.add(basis)
                kept[basis] = view
        self.given_up = kept
