"""Arithmetic that gives the same bits everywhere, and where vectors lie. Here the registry: a
component that has a name in one is tested and benched by it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError

T = TypeVar("T")

Tokens = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.uint32]
"""Numbers of tokens, of whatever shape, in the dtype that a token store has them in."""


class Registry(Mapping[str, Callable[..., T]], Generic[T]):
    """Factories by name. `kind` is what an error calls them, such as "codec"."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Enter a factory. Raises ValueError for a name that is taken.

        A plain call and no decorator: so the type checker holds the factory against the seam.
        """
        if name in self._factories:
            raise ValueError(f"two factories for the {self._kind} {name!r}")
        self._factories[name] = factory

    def __getitem__(self, name: str) -> Callable[..., T]:
        """The factory called `name`. Raises ConfigError that lists the known names."""
        if name not in self._factories:
            raise ConfigError(f"unknown {self._kind} {name!r}; known: {', '.join(self)}")
        return self._factories[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a factory of that name."""
        return name in self._factories

    def __iter__(self) -> Iterator[str]:
        """All names, sorted."""
        return iter(sorted(self._factories))

    def __len__(self) -> int:
        """Number of names."""
        return len(self._factories)
