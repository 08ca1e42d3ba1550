"""The library face: a user's loop over a run, without a network."""

import dataclasses
import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import node
from node import DiLoCo, NodeConfig, Swarm
from node.processes.children import child_environment
from protocol.errors import ConfigError, ManifestMismatch, RefusedError, StateError, TrainerError
from tests.node.fake_network import FakeNetwork
from tests.training.disk_run import write_run
from tests.training.replicas import INNER
from training.channel.exchange import Contribution
from training.channel.frames import Contributed, Ready, failure_frame, pack_frame
from training.data.corpus import open_corpus
from training.models.building import build_model

H = 3


@pytest.fixture
def network(tmp_path):
    manifest = write_run(tmp_path, inner=dataclasses.replace(INNER, inner_steps=H, batch=2))
    network = FakeNetwork(tmp_path, manifest)
    yield network
    network.close()


@pytest.fixture
def model(network):
    return build_model(network.manifest)


def loop_object(network, model) -> DiLoCo:
    return DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange=network.swarm)


def train_on(model, diloco, batch_BW):
    windows = torch.from_numpy(batch_BW.astype(np.int64))
    model.zero_grad()
    loss = functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    loss.backward()
    return diloco.step(loss.item())


def contribution(network, *, fragment=0) -> Contribution:
    cells = network.manifest.layout(0).num_cells(fragment)
    return Contribution(
        fragment=fragment,
        payloads=(b"x",) * cells,
        tokens=1,
        samples=1,
        steps=1,
        residual_before=b"",
        residual_after=b"",
        loss=1.0,
    )


def test_loop_contributes_each_round_and_ends_with_the_run(network, model):
    network.start(anchor=0.25)
    network.deliver(0, 1)
    network.deliver(1, 2, is_over=True)
    batches = []
    diloco = loop_object(network, model)
    assert all(bool((p == 0.25).all()) for p in model.parameters())
    text = open_corpus(network.manifest.corpus).windows(np.arange(2), 8)
    for batch_BW in network.swarm.batches([text, text + 1]):
        batches.append(int(batch_BW[0, 0]) - int(text[0, 0]))
        train_on(model, diloco, batch_BW)

    # The loader is gone through again and again, across the ends of rounds.
    assert batches == [0, 1, 0, 1, 0, 1]
    contributed = [network.hear(Contributed) for _ in range(2)]
    assert [(one.sequence, one.samples, one.steps) for one in contributed] == [
        (0, 2 * H, H),
        (1, 2 * H, H),
    ]
    assert network.swarm.finished
    assert diloco.finished
    assert network.swarm.round == 2
    assert network.hears_leaving()


def test_the_run_hears_that_the_model_is_ready_only_when_the_loop_object_asks(network):
    network.start(5)
    assert not network.swarm.finished
    assert network.swarm._is_open is False
    start = network.swarm.start
    ready = network.hear(Ready)

    assert isinstance(ready, Ready)
    assert ready.parameters == network.file.spec.fragment_numels[0]
    assert (start.clock, start.lease) == (network.clock(5), network.lease(5))
    assert network.swarm.round == 5
    # Another loop object in the same program begins where the first one is.
    assert network.swarm.start.clock == start.clock


def test_a_run_that_was_over_at_the_start_gives_no_batch(network):
    network.open(9, is_over=True)

    assert list(network.swarm.batches([1])) == []
    assert list(network.swarm.samples()) == []
    assert network.hears_leaving()


def test_samples_are_the_lease_of_each_round_once(network):
    network.open(4)
    network.deliver(0, 7)
    network.deliver(1, 8, is_over=True)
    taken = []
    for windows_BW in network.swarm.samples():
        taken.append(windows_BW)
        if len(taken) % H == 0:
            network.swarm.begin(0, contribution(network)).result()

    dataset = open_corpus(network.manifest.corpus)
    leased = [sample for number in (4, 7) for sample in range(*network.lease(number)[0])]
    assert len(taken) == 2 * H
    expected_BW = dataset.windows(np.array(leased), 8)
    assert np.array_equal(np.concatenate(taken), expected_BW)


def test_a_loop_that_was_interrupted_in_a_round_can_be_made_anew(network, model):
    network.open()
    network.swarm.begin(0, contribution(network))
    network.deliver(0, 1)
    diloco = loop_object(network, model)

    assert diloco.clock == network.clock(1)
    assert diloco.lease == network.lease(1)


@pytest.fixture
def in_flight(tmp_path):
    """A network with two rounds in flight."""
    inner = dataclasses.replace(INNER, inner_steps=H, batch=2)
    network = FakeNetwork(tmp_path, write_run(tmp_path, inner=inner, overlap=2))
    yield network
    network.close()


def test_loop_goes_on_while_a_round_is_in_flight_and_ends_with_the_run(in_flight):
    model = build_model(in_flight.manifest)
    in_flight.start(4)
    in_flight.goes_on(5)
    diloco = loop_object(in_flight, model)
    text = open_corpus(in_flight.manifest.corpus).windows(np.arange(2), 8)
    outcomes = []
    for step, batch_BW in enumerate(in_flight.swarm.batches([text])):
        outcomes.append(train_on(model, diloco, batch_BW) is not None)
        if step == H:  # One step into the next round.
            assert in_flight.swarm.round == 5
            in_flight.deliver(0, 5)
            while not in_flight.swarm._tickets[0].is_here():
                pass  # It comes by way of a thread.
        elif step == 2 * H - 2:
            in_flight.deliver(1, 6)
            in_flight.goes_on(7, is_over=True)
    assert outcomes == [False, False, False, False, True, True]
    contributed = [in_flight.hear(Contributed) for _ in range(2)]
    assert [(one.sequence, one.fragment, one.steps) for one in contributed] == [
        (0, 0, H),
        (1, 1, H),
    ]
    assert in_flight.swarm.finished
    assert diloco.finished
    assert in_flight.hears_leaving()


def test_samples_follow_the_turn_and_not_the_outcome(in_flight):
    in_flight.open(4)
    dataset = open_corpus(in_flight.manifest.corpus)
    taken = []
    for windows_BW in in_flight.swarm.samples():
        taken.append(windows_BW)
        if len(taken) == H:
            in_flight.goes_on(7)
            in_flight.swarm.begin(0, contribution(in_flight))
            in_flight.swarm.proceed()
        elif len(taken) == 2 * H:
            in_flight.deliver(0, 8)
            in_flight.goes_on(9, is_over=True)
            in_flight.swarm.begin(1, contribution(in_flight, fragment=1))
            in_flight.swarm.proceed()
    leased = [sample for number in (4, 7) for sample in range(*in_flight.lease(number)[0])]
    assert np.array_equal(np.concatenate(taken), dataset.windows(np.array(leased), 8))


def test_loop_that_was_interrupted_with_two_in_flight_can_be_made_anew(in_flight):
    in_flight.open(4)
    in_flight.goes_on(5)
    in_flight.swarm.begin(0, contribution(in_flight))
    in_flight.swarm.proceed()
    in_flight.swarm.begin(1, contribution(in_flight, fragment=1))
    in_flight.deliver(0, 5)
    in_flight.goes_on(6)
    in_flight.deliver(1, 6)
    diloco = loop_object(in_flight, build_model(in_flight.manifest))
    assert (diloco.clock, diloco.lease) == (in_flight.clock(6), in_flight.lease(6))


def test_samples_before_the_loop_object_say_what_is_to_be_made_first(network):
    with pytest.raises(ConfigError, match="make the loop object first"):
        next(network.swarm.samples())


@pytest.mark.parametrize("address", [None, 7, b"barnraise://join/x"])
def test_address_that_is_no_text_is_refused(address, tmp_path):
    with pytest.raises(ConfigError, match="is a text, not"):
        Swarm.join(address, state=tmp_path)


@pytest.mark.parametrize("loader", [[], iter([]), iter([1, 2])])
def test_a_loader_that_runs_dry_is_told(network, loader):
    network.open()

    with pytest.raises(ConfigError, match="gave no batch"):
        list(itertools.islice(network.swarm.batches(loader), 10))


def test_being_refused_raises_before_the_next_batch_and_not_only_at_the_rounds_end(network):
    network.open()
    batches = network.swarm.batches([1])
    next(batches)
    network.say(failure_frame(RefusedError("banned: two signatures in one slot")))
    assert network.child.pipe.wait_closed(60)

    with pytest.raises(RefusedError, match="two signatures"):
        next(batches)


def test_a_failure_while_a_round_is_awaited_raises_as_what_it_is(network):
    network.open()
    ticket = network.swarm.begin(0, contribution(network))
    network.say(failure_frame(StateError("weights not finite")))

    with pytest.raises(StateError, match="not finite"):
        ticket.result()


def test_a_failure_before_the_seat_raises_where_the_loop_object_is_made(network, model):
    network.say(failure_frame(ManifestMismatch("inner.batch", 4, 8)))

    with pytest.raises(ManifestMismatch, match=r"inner\.batch"):
        loop_object(network, model)


class Wrong(nn.Module):
    def __init__(self, right: nn.Module, **changes: nn.Parameter | None) -> None:
        super().__init__()
        for name, parameter in right.named_parameters():
            changed = changes.get(name, parameter)
            if changed is not None:
                module: nn.Module = self
                *path, last = name.split(".")
                for part in path:
                    if not hasattr(module, part):
                        module.add_module(part, nn.Module())
                    module = module.get_submodule(part)
                module.register_parameter(last, changed)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"norm.weight": None, "positions.weight": None}, r"norm\.weight"),
        ({"positions.weight": nn.Parameter(torch.zeros(3, 3))}, r"positions\.weight.*\(3, 3\)"),
    ],
)
def test_a_model_that_is_not_the_runs_is_refused_by_its_first_tensor(
    network, model, changes, complaint
):
    network.start()

    with pytest.raises(ManifestMismatch, match=complaint):
        loop_object(network, Wrong(model, **changes))


@pytest.mark.skipif(sys.platform == "win32", reason="every path is text there")
def test_a_state_folder_whose_name_is_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"udcff is no UTF-8 text: name another as `state`"):
        Swarm.join("barnraise://join/x", state=tmp_path / "\udcff")
    assert not list(tmp_path.iterdir())


def test_a_fork_that_leaves_the_block_ends_nothing(network, monkeypatch):
    network.open()
    with monkeypatch.context() as fork:
        fork.setattr("os.getpid", lambda: -1)
        network.swarm.close()
    assert network.child.lingered_s == []
    assert network.swarm._channel.path.exists()


def test_leaving_a_run_takes_no_time_and_only_a_finished_one_lingers(network):
    network.open(is_over=True)
    with network.swarm:
        pass
    with pytest.raises(KeyboardInterrupt), network.swarm:
        raise KeyboardInterrupt
    network.swarm._is_finished = False
    with network.swarm:
        pass

    assert network.child.lingered_s == [node.swarm.LINGER_S, 0.0, 0.0]
    assert not network.swarm._channel.path.exists()


def test_moments_of_a_users_loop_survive_its_process(network, model, tmp_path):
    network.start()
    network.deliver(0, 1)
    diloco = DiLoCo(model, torch.optim.AdamW(model.parameters(), lr=0.1), exchange=network.swarm)
    text = open_corpus(network.manifest.corpus).windows(np.arange(2), 8)
    for _ in range(H):
        train_on(model, diloco, text)

    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["round-000000.safetensors"]


def test_it_attaches_to_the_run_that_the_network_process_names(network, tmp_path):
    says = f"import os; os.write(1, {pack_frame(network.attach)!r}); os.read(0, 1)"
    with Swarm.over([sys.executable, "-S", "-c", says], tmp_path / "state") as swarm:
        assert swarm.manifest == network.manifest

    assert not list((tmp_path / "state").iterdir())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [({"run": bytes(32)}, "manifest"), ({"channel": "another"}, "no channel of this")],
)
def test_a_manifest_or_mapping_of_another_run_is_refused(network, tmp_path, change, complaint):
    attach = dataclasses.replace(network.attach, **change)
    if "channel" in change:
        attach = dataclasses.replace(attach, channel=str(tmp_path / "manifest.msgpack"))
    says = f"import os; os.write(1, {pack_frame(attach)!r}); os.read(0, 1)"

    with pytest.raises((ConfigError, TrainerError), match=complaint):
        Swarm.over([sys.executable, "-S", "-c", says], tmp_path / "state")


def test_importing_the_package_loads_nothing_and_its_light_names_load_no_torch():
    code = """
import sys
import node
assert not {"torch", "trio", "numpy"} & set(sys.modules), sys.modules
from node import NodeConfig, Swarm
assert "torch" not in sys.modules
assert {"DiLoCo", "NodeConfig", "Swarm"} <= set(dir(node))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=child_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Trainer"):
        getattr(node, "Trainer")  # noqa: B009 - a type checker refuses it already
    assert NodeConfig.__name__ == "NodeConfig"
