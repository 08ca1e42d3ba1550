"""The methods of a run: one throughout, or another one from a round on (`ThenSpec`).

By the number of the round alone, so every trainer and every outer step changes at one seal. A run
that begins at once and goes on with two rounds in flight (R5) has two in flight for the network
from the start; its trainers wait for each outcome until the later method begins.
"""

from dataclasses import dataclass, replace

from torch import nn

from protocol.errors import ConfigError
from protocol.manifest import InnerSpec, OuterSpec, RunManifest
from training.channel.exchange import RunStart
from training.methods import delayed, scaffold, sparta
from training.methods import delayed as in_flight
from training.methods.method import METHODS, Method, MethodSetting, make_pace
from training.methods.presets import PRESETS, SHORT_RUN_ROUNDS, wrong_flight, wrong_then

# Whoever imports this module has all methods in METHODS.
__all__ = ["Stages", "delayed", "in_flight", "make_method", "make_stages", "scaffold", "sparta"]


@dataclass(frozen=True, slots=True)
class Stages:
    """The methods of a run. Each is one object for all of its rounds, for methods remember."""

    first: Method
    later: Method
    from_round: int

    def at(self, round_index: int) -> Method:
        """The method of that round."""
        return self.first if round_index < self.from_round else self.later

    def begin_run(
        self, model: nn.Module, manifest: RunManifest, start: RunStart, shard: int
    ) -> None:
        """Once, when the loop is made; see Method."""
        for method in dict.fromkeys((self.first, self.later)):
            method.begin_run(model, manifest, start, shard)


def make_method(
    spec: OuterSpec, inner: InnerSpec, num_fragments: int, *, waits: bool = False
) -> Method:
    """The method of the manifest's preset; one that `waits` in a run with two rounds in flight.
    Raises ConfigError for an unknown preset, and for rounds in flight that it has no rule for."""
    preset = PRESETS[spec.preset](SHORT_RUN_ROUNDS)
    name = preset.method
    if waits:
        name = "at_once"
    elif (
        wrong := wrong_flight(spec.preset, fragments=num_fragments, overlap=spec.overlap)
    ) is not None:
        key, value, why, instead = wrong
        raise ConfigError(f"{key} is {value}, and {why}; it must be {instead}")
    elif spec.overlap != preset.overlap:
        name = "in_flight" if spec.overlap > 1 else "diloco"
    pace = make_pace(spec.preset, inner)
    setting = MethodSetting(
        spec=spec, inner=inner, num_fragments=num_fragments, pace=pace, tau=preset.tau
    )
    return METHODS[name](setting)


def make_stages(spec: OuterSpec, inner: InnerSpec, num_fragments: int) -> Stages:
    """The methods of a manifest. Raises ConfigError as `make_method` does, and for two that do not
    go together."""
    if not spec.then:
        only = make_method(spec, inner, num_fragments)
        return Stages(only, only, 0)
    (then,) = spec.then
    for why in wrong_then(spec.preset, then.preset, fragments=num_fragments, overlap=spec.overlap):
        raise ConfigError(f"then: {why}")
    spec_first = replace(spec, then=())
    spec_later = replace(
        spec_first,
        preset=then.preset,
        optimizer=then.optimizer,
        learning_rate=then.learning_rate,
        momentum=then.momentum,
    )
    later = make_method(spec_later, inner, num_fragments)
    waits = spec.overlap > PRESETS[spec.preset](SHORT_RUN_ROUNDS).overlap
    first = make_method(spec_first, inner, num_fragments, waits=waits)
    return Stages(first, first.continued(later), then.from_round)
