"""Encoders of torch tensors: numpy's decoders take what they send, mostly the very same bytes."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.training.devices import available
from tests.training.elsewhere import DEVICE, Elsewhere
from tests.training.replicas import small_manifest
from tests.training.test_compression import SHAPES
from tests.training.test_one_step_delay import manifest_of, trained
from training.compression import CODECS, Codec, Encodes, admits, make_feedback
from training.loop import device_encoding
from training.loop.device_encoding import encode_on_device, encoder_on, encodes_on_device

EXACT = ("int8", "int4", "topk", "topk_gaps")
SUMMED = ("ternary", "dense2bit", "sparse2bit", "sparse2bit_gaps", "graded")
"""Their scales and levels are sums, whose order of addition is the device's."""

SIZES = [0, 1, 2, 255, 1024, 5000, 70_000]
CPU = torch.device("cpu")


def vector(shape: str, numel: int, seed: int) -> NDArray[np.float32]:
    x_N: NDArray[np.float32] = SHAPES[shape](np.random.default_rng(seed), numel).astype(np.float32)
    return x_N


def check(name: str, x_N: NDArray[np.float32], device: torch.device) -> None:
    """The payload on a device against numpy's."""
    codec = CODECS[name]()
    expected = codec.encode(x_N)
    found = encode_on_device(codec, torch.from_numpy(x_N).to(device))
    if name in EXACT:
        assert found == expected
        return
    ours_N, theirs_N = (codec.decode(payload, len(x_N)) for payload in (found, expected))
    most = np.abs(x_N).max(initial=0.0)
    # A magnitude on the edge between two codes may fall on either side.
    is_far_N = np.abs(ours_N - theirs_N) > 1e-3 * most
    assert np.count_nonzero(is_far_N) <= 1e-3 * len(x_N)


@pytest.mark.quick(each="name")
@pytest.mark.parametrize("name", [*EXACT, *SUMMED])
@pytest.mark.parametrize("shape", SHAPES)
def test_payload_of_a_tensor_is_that_of_the_vector(name: str, shape: str, seed: int) -> None:
    for numel in SIZES:
        check(name, vector(shape, numel, seed), CPU)


@pytest.mark.parametrize("name", CODECS)
def test_every_codec_encodes_a_tensor_and_is_told_from_those_that_do_it_in_numpy(
    name: str, seed: int
) -> None:
    codec, x_N = CODECS[name](), vector("normal", 5000, seed)
    assert encodes_on_device(codec) == (name in EXACT + SUMMED)
    payload = encode_on_device(codec, torch.from_numpy(x_N))
    assert admits(codec, len(payload), len(x_N))
    assert len(codec.decode(payload, len(x_N))) == len(x_N)


def test_nothing_of_a_tensor_passes_through_numpy_but_its_payload(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    tensor_N, moved = torch.from_numpy(vector("normal", 70_000, seed)), []
    to_host = torch.Tensor.cpu

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        moved.append(tensor.numel() * tensor.element_size())
        return to_host(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", counted)
    for name in (*EXACT, *SUMMED):
        moved.clear()
        payload = encode_on_device(CODECS[name](), tensor_N)
        assert sum(moved) == len(payload)


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", [*EXACT, *SUMMED])
@pytest.mark.parametrize("shape", SHAPES)
def test_all_of_an_encoder_is_done_on_a_device_that_is_not_the_hosts(
    monkeypatch: pytest.MonkeyPatch, name: str, shape: str, seed: int
) -> None:
    """Mixing it with the host raises, as on CUDA; nothing comes back but the payload."""
    codec, on_host = CODECS[name](), device_encoding.encodes_on_device
    monkeypatch.setattr(device_encoding, "encodes_on_device", lambda codec, _: on_host(codec))
    for numel in SIZES:
        x_N = torch.from_numpy(vector(shape, numel, seed))
        expected = encode_on_device(codec, x_N)
        with Elsewhere() as there:
            far_N = there.put(x_N)
            assert far_N.device == DEVICE
            assert encode_on_device(codec, far_N) == expected
        assert there.moved_bytes == len(expected)


def test_device_that_is_not_the_hosts_takes_nothing_of_it_and_is_seen_to_be_left() -> None:
    """What the test above rests on."""
    near_N = torch.arange(10.0)
    with Elsewhere() as there:
        far_N = there.put(near_N)
        with pytest.raises(RuntimeError, match="tensors of two devices"):
            far_N + near_N
        with pytest.raises(RuntimeError, match="tensors of two devices"):
            far_N[torch.arange(3)]
        made_N = torch.ones(10, device=DEVICE) + far_N * 2
        made_N += 1.0
        assert there.moved_bytes == 0
        assert made_N.cpu().tolist() == (2 * near_N + 2.0).tolist()
        assert there.moved_bytes == 40
        assert float(far_N.sum()) == 45.0
    with pytest.raises(AssertionError, match="not there"):
        far_N + 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_tensor_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        encode_on_device(CODECS["int8"](), torch.tensor([1.0, value]))


def test_codec_encodes_on_accelerators_and_levels_of_sums_where_there_is_float64() -> None:
    meta, mps = torch.device("meta"), torch.device("mps")
    assert encoder_on(CPU, CODECS["int8"]()) is None
    assert encoder_on(meta, CODECS["lowrank"]()) is None
    assert encoder_on(mps, CODECS["sparse2bit"]()) is None
    assert encoder_on(mps, CODECS["topk"]()) is not None
    assert encoder_on(torch.device("cuda"), CODECS["sparse2bit"]()) is not None


def test_feedback_keeps_what_another_encoder_lost(seed: int) -> None:
    """Whoever encodes: the residual is the sum less what everybody decodes."""
    sent = []

    def half(codec: Codec, x_N: NDArray[np.float32]) -> bytes:
        sent.append(x_N.copy())
        return np.asarray(x_N / 2, dtype="<f4").tobytes()

    feedback, x_N = make_feedback(small_manifest(), half), vector("normal", 5000, seed)
    feedback.encode(x_N)
    feedback.commit()
    residual_N = feedback.residual_N
    assert residual_N is not None
    assert np.array_equal(np.concatenate(sent), x_N)
    assert np.array_equal(residual_N, x_N - x_N / 2)


def test_loop_encodes_on_the_device_of_its_model(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The same payloads either way: int4 is exact."""
    manifest, devices = manifest_of("diloco", codec="int4", overlap=1), []

    def here(device: torch.device, codec: Codec) -> Encodes:
        devices.append(device)
        return lambda by, x_N: encode_on_device(by, torch.from_numpy(x_N))

    in_numpy = trained(manifest, seed, 2)[0]
    monkeypatch.setattr("training.loop.diloco.encoder_on", here)
    assert trained(manifest, seed, 2)[0].anchor.tobytes() == in_numpy.anchor.tobytes()
    assert devices == [CPU, CPU]


@pytest.mark.gpu
@pytest.mark.parametrize("device", [n for n in available() if n != "cpu"] or ["cuda"])
@pytest.mark.parametrize("name", [*EXACT, *SUMMED])
@pytest.mark.parametrize("shape", SHAPES)
def test_payload_of_an_accelerator_is_that_of_numpy(
    device: str, name: str, shape: str, seed: int
) -> None:
    if encoder_on(torch.device(device), CODECS[name]()) is None:
        pytest.skip(f"{name} has no encoder on {device}")
    for numel in SIZES:
        check(name, vector(shape, numel, seed), torch.device(device))
