"""Models, optimizers and compressors on arrays of CuPy: on a GPU where there is one, and on that of
``tests/fake``, which finds what becomes an array of the host by itself. NumPy is the oracle.
"""

import fake_gpu
import numpy as np
import pytest
from pydantic import ValidationError

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.compress import Quantize, RandomK, Threshold, TopK
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import device
from paropt_hpc.train import (
    CNN,
    LAMB,
    LARS,
    MLP,
    SGD,
    Adam,
    AdamW,
    Batch,
    BatchNorm,
    Config,
    EmbeddingBag,
    Softmax,
    Trainer,
    VirtualBatchNorm,
)
from paropt_hpc.train.arrays import all_finite, norm, to_host


@pytest.fixture(params=["gpu", "fake"])
def xp(request, monkeypatch):
    return fake_gpu.real_or_fake(request.param, monkeypatch)


def virtual(channels):
    return VirtualBatchNorm(channels, 3)


NETWORKS = {
    "softmax": lambda: Softmax(60, 3),
    "mlp": lambda: MLP(60, [5], 3),
    "cnn": lambda: CNN((6, 5, 2), [3, 4], [5], 3),
    "cnn, batch norm": lambda: CNN((6, 5, 2), [3, 4], [5], 3, BatchNorm),
    "cnn, virtual": lambda: CNN((6, 5, 2), [3, 4], [5], 3, virtual),
    "embedding": lambda: EmbeddingBag(8, 4, [5], 3),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(xp, name, dtype):
    generator = np.random.default_rng(1)
    x = generator.standard_normal((7, 60)).astype(dtype)
    if name == "embedding":
        x = generator.integers(0, 9, (7, 5))
    y, told = generator.integers(0, 3, 7), []
    here, there = NETWORKS[name](), NETWORKS[name]()
    params = here.init(0, dtype)
    for _ in range(2):  # the second time running statistics are there
        loss, gradient = here.loss_and_grad(params, Batch(x, y))
        batch = Batch(xp.asarray(x), xp.asarray(y))
        own, found = there.loss_and_grad(xp.asarray(params), batch, ready=told.append)
        assert own == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(to_host(found), gradient, rtol=1e-4, atol=1e-6)
    expected, correct = here.evaluate(params, Batch(x, y))
    assert there.evaluate(xp.asarray(params), batch) == (pytest.approx(expected, rel=1e-5), correct)
    for values, other in zip(here.state_dict().values(), there.state_dict().values(), strict=True):
        np.testing.assert_allclose(values["mean"], other["mean"], rtol=1e-5, atol=1e-7)


LAYERS = [slice(0, 40), slice(40, 100)]
OPTIMIZERS = {
    "sgd": lambda: SGD(0.1, weight_decay=0.01),
    "nesterov": lambda: SGD(0.1, 0.9, True, 0.01),
    "lars": lambda: LARS(0.1, LAYERS, weight_decay=0.01),
    "adam": lambda: Adam(0.1, weight_decay=0.01),
    "adamw": lambda: AdamW(0.1, weight_decay=0.01),
    "lamb": lambda: LAMB(0.1, LAYERS, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(xp, name):
    generator = np.random.default_rng(2)
    here = generator.standard_normal(100, np.float32)
    there = xp.asarray(here)
    ours, theirs = OPTIMIZERS[name](), OPTIMIZERS[name]()
    for _ in range(3):
        gradient = generator.standard_normal(100, np.float32)
        copy = xp.asarray(gradient)
        ours.update(here, gradient)
        theirs.update(there, copy)
    np.testing.assert_allclose(to_host(there), here, rtol=1e-5, atol=1e-6)
    for state in theirs.state_dict().values():
        assert not isinstance(state, np.ndarray)


def test_norms(xp):
    values = np.arange(10, dtype=np.float32)
    assert norm(xp.asarray(values)) == pytest.approx(norm(values))
    assert norm(xp.asarray(values * np.float32(1e30))) == pytest.approx(norm(values) * 1e30)
    assert all_finite(xp.asarray(values))
    values[3] = np.nan
    assert not all_finite(xp.asarray(values))


COMPRESSORS = {
    "topk": lambda: TopK(0.1),
    "topk, momentum": lambda: TopK(0.1, momentum=0.9, warmup_steps=2),
    "topk, overshoot": lambda: TopK(0.1, overshoot=1.5),
    "topk, int8": lambda: TopK(0.1, values="int8"),
    "randomk": lambda: RandomK(0.1),
    "randomk, qsgd4": lambda: RandomK(0.1, values="qsgd4"),
    "threshold": lambda: Threshold(1.5),
    "sign": lambda: Quantize("sign"),
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_compressors_make_the_bytes_of_the_host(xp, name):
    generator = np.random.default_rng(3)
    here, there = COMPRESSORS[name](), COMPRESSORS[name]()
    here.start(500, np.dtype(np.float32))
    there.start(500, np.dtype(np.float32), xp)
    for _ in range(4):
        gradient = generator.standard_normal(500, np.float32)
        message, other = here.compress(gradient), there.compress(xp.asarray(gradient))
        assert to_host(other).tobytes() == message.tobytes()
        assert to_host(there.residual).tobytes() == here.residual.tobytes()
    dense = xp.zeros(500, np.float32)
    there.decompress_add(other, dense, 0.5)
    expected = np.zeros(500, np.float32)
    here.decompress_add(message, expected, 0.5)
    np.testing.assert_array_equal(to_host(dense), expected)


def test_a_gpu_that_is_not_there_is_missed_in_a_line(monkeypatch):
    monkeypatch.setattr(device, "cuda_module", lambda: None)
    config = Config.model_validate({"train": {"device": "gpu"}})
    with pytest.raises(ConfigError) as caught:
        Trainer(config, SerialCommunicator())
    assert str(caught.value).startswith("train.device = 'gpu': the CUDA kernels were not built")
    assert "\n" not in str(caught.value)


def test_a_cupy_that_is_not_there(monkeypatch):
    fake_gpu.install(monkeypatch)
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(ConfigError, match=r"CuPy cannot be imported .*paropt-hpc\[cuda\]"):
        device.cupy()


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"strategy": {"algorithm": "nccl"}}, "needs train.device = 'gpu'"),
        (
            {"train": {"device": "gpu"}, "strategy": {"algorithm": "nccl", "wire": "bfloat16"}},
            "'nccl' sums 32 and 64 bits",
        ),
    ],
)
def test_settings_that_do_not_fit(sections, said):
    with pytest.raises(ValidationError, match=said):
        Config.model_validate(sections)
