"""A run that changes its method half-way: which one each round has, and what does not go together.

By the number of the round alone (`ThenSpec`), so every trainer and every outer step changes at one
seal. A run that begins at once and goes on with two rounds in flight (R5) has two in flight for the
network from the start; its trainers wait for each outcome until the later method begins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from protocol.errors import ConfigError
from protocol.manifest import OuterSpec
from training.loop.merge import MERGES
from training.loop.method import Method, make_method, wrong_flight
from training.loop.schedule import SCHEDULES
from training.methods.presets import PRESETS, SHORT_RUN_ROUNDS


@dataclass(frozen=True, slots=True)
class Stages:
    """The methods of a run. Each is one object for all of its rounds, for merges remember."""

    first: Method
    later: Method
    from_round: int

    def at(self, round_index: int) -> Method:
        """The method of that round."""
        return self.first if round_index < self.from_round else self.later


def make_stages(spec: OuterSpec, inner_steps: int, num_fragments: int) -> Stages:
    """The methods of a manifest. Raises ConfigError as `make_method` does, and for two that do not
    go together."""
    if not spec.then:
        only = make_method(spec, inner_steps, num_fragments)
        return Stages(only, only, 0)
    (then,) = spec.then
    for why in wrong_then(spec.preset, then.preset, fragments=num_fragments, overlap=spec.overlap):
        raise ConfigError(f"then: {why}")
    spec_later = replace(
        spec,
        then=(),
        preset=then.preset,
        optimizer=then.optimizer,
        learning_rate=then.learning_rate,
        momentum=then.momentum,
    )
    later = make_method(spec_later, inner_steps, num_fragments)
    preset = PRESETS[spec.preset](SHORT_RUN_ROUNDS)
    if spec.overlap > preset.overlap:
        schedule = SCHEDULES["at_once"](inner_steps, num_fragments)
        first = Method(schedule, MERGES["replace"]())
    else:
        first = make_method(replace(spec, then=()), inner_steps, num_fragments)
    return Stages(first, later, then.from_round)


def wrong_then(name: str, later: str, *, fragments: int, overlap: int) -> Iterator[str]:
    """Why one preset cannot be followed by another in such a run, with what to write instead.

    Raises ConfigError for an unknown name.
    """
    both = {one: PRESETS[one](SHORT_RUN_ROUNDS) for one in (name, later)}
    first, then = both[name], both[later]
    for one, preset in both.items():
        if preset.lacks:
            yield f"no node runs {one!r}, it needs {preset.lacks}; take another preset"
            return
        if preset.has_own_weights and name != later:
            yield (
                f"replicas of {one!r} have weights of their own, and those of other presets begin "
                "each round with the anchor; take a preset of that kind for both"
            )
            return
        if preset.has_variates and name != later:
            yield (
                f"the variates of {one!r} are of all rounds, and a trainer has them throughout "
                "or not at all; take a preset without"
            )
            return
    paced = [one for one, preset in both.items() if preset.is_paced]
    if paced:
        yield (
            f"the rounds of {paced[0]!r} are as long as each peer likes, and a run has them of one "
            "kind throughout; take presets whose rounds have H steps"
        )
        return
    if first.overlap > then.overlap:
        yield (
            f"{name!r} trains beside an exchange and {later!r} waits for it; a run goes from "
            f"waiting to training on: begin with {later!r}"
        )
        return
    if overlap != then.overlap:
        yield f"{later!r} has {then.overlap} rounds in flight; set [outer] overlap to that"
        return
    wrong = wrong_flight(later, fragments=fragments, overlap=overlap)
    if wrong is not None:
        key, value, why, instead = wrong
        yield f"[outer] {key} is {value}, and {why}; set it to {instead}"
