import pytest

from protocol.errors import ConfigError
from training.numeric import Registry


def test_registry_gives_factories_by_name_in_sorted_order() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("two", lambda: 2)
    registry.register("one", lambda: 1)
    assert list(registry) == ["one", "two"]
    assert len(registry) == 2
    assert registry["two"]() == 2
    assert "two" in registry
    assert "three" not in registry


def test_registry_refuses_a_name_twice() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one", lambda: 1)
    with pytest.raises(ValueError, match="two factories for the number 'one'"):
        registry.register("one", lambda: 11)
    assert registry["one"]() == 1


def test_registry_lists_the_names_when_asked_for_an_unknown_one() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("two", lambda: 2)
    registry.register("one", lambda: 1)
    with pytest.raises(ConfigError, match="unknown number 'three'; known: one, two"):
        registry["three"]
