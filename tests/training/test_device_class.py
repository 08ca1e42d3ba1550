"""Who is taken to compute equal bits (R10): of two that do not, one would be called a liar."""

import sys
from dataclasses import replace

import pytest
import torch

from protocol.segments import ALONE
from training.device.device import open_device
from training.loop.traced_inner import KERNELS_BY, device_class

INTEL = """processor : 0
vendor_id : GenuineIntel
cpu family : 6
model : 85
model name : Xeon
flags : sse avx2 avx512f
"""
ARM = """processor : 0
Features : fp asimd
CPU implementer : 0x41
CPU architecture: 8
CPU variant : 0x3
CPU part : 0xd0c
"""


@pytest.fixture
def class_on(tmp_path, monkeypatch):
    """The class of a CPU with such a list of what it is."""
    for name in KERNELS_BY:
        monkeypatch.delenv(name, raising=False)

    def found(told: str) -> str:
        path = tmp_path / "cpuinfo"
        path.write_text(told)
        return device_class(open_device("cpu"), path)

    return found


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (INTEL, INTEL.replace("85", "106")),
        (INTEL, INTEL.replace(" avx512f", "")),
        (INTEL, INTEL.replace("GenuineIntel", "AuthenticAMD")),
        (ARM, ARM.replace("0xd0c", "0xd40")),
        (ARM, ARM.replace("0x41", "0x61")),
        (ARM, ARM.replace("0x3", "0x1")),
        (ARM, ARM.replace("asimd", "asimd sve")),
    ],
)
def test_class_of_equal_processors_is_equal_and_of_others_another(class_on, told, changed):
    assert class_on(told) == class_on(told.replace("processor : 0", "processor : 7")) != ALONE
    assert class_on(told) != class_on(changed) != ALONE


@pytest.mark.parametrize("name", KERNELS_BY)
def test_class_is_another_where_the_user_chose_the_kernels(class_on, monkeypatch, name):
    plain = class_on(INTEL)
    monkeypatch.setenv(name, "1")
    assert class_on(INTEL) not in (plain, ALONE)


def test_class_names_the_threads(class_on):
    threads, one = torch.get_num_threads(), class_on(INTEL)
    torch.set_num_threads(threads + 1)
    try:
        assert class_on(INTEL) != one
    finally:
        torch.set_num_threads(threads)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells the model in another way")
def test_cpu_whose_model_nobody_tells_is_alone(class_on, tmp_path):
    assert device_class(open_device("cpu"), tmp_path / "none") == ALONE
    assert class_on("processor : 0\n") == ALONE


def test_accelerator_is_alone():
    device = replace(open_device("cpu"), torch_device=torch.device("meta"))
    assert device_class(device) == ALONE
