"""Every example does what it says; a component in it keeps the promises of its registry."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from examples import own_model, plain_loop
from node.trainers.model_file import founders_model
from training.models.building import check_forward

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
TIMEOUT_S = 120.0

LOSSES = re.compile(r"^(\w+) +loss ([\d.]+) -> ([\d.]+) under (\w+)$", re.MULTILINE)


def run_python(words: Sequence[str]) -> str:
    """The standard output of a Python program that ends well, run from the root of the tree."""
    # A pytest in a worker of another would take itself for one.
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def losses_of(name: str) -> dict[str, tuple[float, float]]:
    """The first and the last loss under each rule that an example plays."""
    found = LOSSES.findall(run_python(["-m", f"examples.{name}"]))
    return {rule: (float(first), float(last)) for rule, first, last, _ in found}


@pytest.mark.extended
def test_own_rule_learns_under_an_attack_that_ruins_the_mean() -> None:
    losses = losses_of("own_rule")
    assert set(losses) == {"mean", "winsorized_mean"}
    assert losses["mean"][1] > 2 * losses["mean"][0]
    assert losses["winsorized_mean"][1] < losses["winsorized_mean"][0]


@pytest.mark.extended
def test_own_attack_ruins_the_mean_and_not_the_default_rule() -> None:
    losses = losses_of("own_attack")
    assert set(losses) == {"mean", "default"}
    assert losses["mean"][1] > 2 * losses["mean"][0]
    assert losses["default"][1] < losses["default"][0]


def test_own_codec_takes_two_bytes_and_loses_what_eight_bits_of_mantissa_lose() -> None:
    text = run_python(["-m", "examples.own_codec"])
    found = re.search(
        r"^bf16 +([\d.]+) bits per element, relative error ([\d.]+)$", text, re.MULTILINE
    )
    assert found is not None
    assert float(found[1]) == 16.0
    assert 2.0**-10 < float(found[2]) < 2.0**-8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "name", "tests"),
    [
        (
            "own_rule",
            "winsorized_mean",
            ["training/test_aggregation.py", "node/rules/test_reduce_rules.py"],
        ),
        (
            "own_codec",
            "bf16",
            ["training/test_compression.py", "training/test_codec_checks.py", "fuzz"],
        ),
        ("own_attack", "flip_largest", ["sim/attacks/test_attacks.py"]),
    ],
)
def test_component_keeps_the_promises_of_its_registry(
    module: str, name: str, tests: list[str]
) -> None:
    chosen = [f"tests/{path}" for path in tests]
    text = run_python(["-m", "pytest", "-q", "-p", f"examples.{module}", *chosen, "-k", name])
    assert re.search(r"^\d+ passed, \d+ deselected", text, re.MULTILINE)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("path", "tensors"), [(EXAMPLES / "own_model.py", 7), (EXAMPLES / "plain_loop.py", 7)]
)
def test_a_run_can_be_founded_with_the_model(path: Path, tensors: int) -> None:
    model, shard = founders_model(path, {"context": 16, "width": 8}, seed=0)
    assert model.name == "file"
    assert len(shard.tensors) == tensors


@pytest.mark.parametrize("module", [own_model, plain_loop], ids=["own_model", "plain_loop"])
def test_model_predicts_a_byte_from_those_before_it_alone(module) -> None:
    model = module.build(context=16, width=8)
    check_forward(model, 16)
    bytes_BT = torch.arange(16)[None]
    changed_BT = bytes_BT.clone()
    changed_BT[0, 9] = 200
    same_BT = (model(bytes_BT) == model(changed_BT)).all(dim=-1)
    assert same_BT[0, :9].all()
    assert not same_BT[0, 9:].all()


@pytest.mark.quick(1)
@pytest.mark.parametrize("module", [own_model, plain_loop], ids=["own_model", "plain_loop"])
def test_model_learns_a_text_that_repeats_itself(module) -> None:
    torch.manual_seed(0)
    model = module.build(context=16, width=8)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    bytes_BT = torch.tensor([list(b"barn raise " * 3)])
    losses = []
    for _ in range(30):
        inner.zero_grad()
        logits_BTV = model(bytes_BT[:, :-1])
        loss = functional.cross_entropy(logits_BTV.flatten(0, 1), bytes_BT[:, 1:].flatten())
        loss.backward()
        inner.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1.0


def test_plain_loop_cuts_its_text_into_windows_that_overlap_by_one_byte() -> None:
    x_BT, y_BT = next(iter(plain_loop.text_loader(context=16, batch=4)))
    assert x_BT.shape == y_BT.shape == (4, 16)
    assert torch.equal(x_BT[:, 1:], y_BT[:, :-1])
