"""Somebody's own arrays around a strategy: equal to flat vectors, and errors on every rank."""

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import SGD, AllReduce, LocalSGD, Replica

pytestmark = pytest.mark.mpi

SHAPES = [(3, 4), (), (5,), (0,), (2, 1, 2)]


def arrays(seed, dtype="float64"):
    generator = np.random.default_rng(seed)
    return [np.array(generator.standard_normal(shape), dtype) for shape in SHAPES]


def mean_of(comm, step):
    return [np.mean(same, axis=0) for same in zip(*each_rank(comm, step), strict=True)]


def each_rank(comm, step):
    return [arrays([rank, step]) for rank in range(comm.size)]


class Exported:
    """Another framework's array: DLPack is all it has."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("wrap", [lambda array: array, Exported])
def test_gradients_become_their_mean_in_place(comm, wrap):
    params = arrays(comm.rank)
    replica = Replica(AllReduce(comm), map(wrap, params))
    assert all(np.array_equal(p, q) for p, q in zip(params, arrays(0), strict=True))
    for step in range(3):
        gradients = arrays([comm.rank, step])
        assert replica.step(map(wrap, gradients))
        for found, mean in zip(gradients, mean_of(comm, step), strict=True):
            assert np.allclose(found, mean, rtol=1e-12)
    assert all(np.array_equal(p, q) for p, q in zip(params, arrays(0), strict=True))


@pytest.mark.parametrize("make", [AllReduce, LocalSGD])
def test_an_optimizer_of_ours_changes_the_arrays_in_place(comm, make):
    replica = Replica(make(comm, SGD(0.5)), params := arrays(comm.rank))
    expected = arrays(0)
    for step in range(4):
        replica.step(arrays([comm.rank, step]))
        for value, mean in zip(expected, mean_of(comm, step), strict=True):
            value -= 0.5 * mean
    replica.finish()
    assert all(np.allclose(p, e, rtol=1e-10) for p, e in zip(params, expected, strict=True))


def test_strided_arrays(comm):
    whole = np.zeros((6, 4), order="F")
    replica = Replica(AllReduce(comm, SGD(1.0)), [whole[::2, 1:]])
    replica.step([np.full((6, 8), 1.0 + comm.rank)[::2, 5:]])
    assert np.allclose(whole[::2, 1:], -(comm.size + 1) / 2)
    assert not whole[1::2].any()
    assert not whole[:, 0].any()


def test_accumulation_and_its_incomplete_group(comm):
    replica = Replica(AllReduce(comm, accumulate=2), arrays(0))
    done = [replica.step(arrays([comm.rank, step])) for step in range(3)]
    assert done == [False, True, False]
    gradients = arrays(7)
    assert replica.flush(gradients)
    assert all(np.allclose(g, m) for g, m in zip(gradients, mean_of(comm, 2), strict=True))
    assert not replica.flush(gradients)


def test_samples_weigh(comm):
    replica = Replica(AllReduce(comm), [np.zeros(2)])
    total = sum(range(comm.size + 1))
    gradient = np.full(2, float(comm.rank))
    replica.step([gradient], (comm.rank + 1, total))
    assert np.allclose(gradient, sum(rank * (rank + 1) for rank in range(comm.size)) / total)


@pytest.mark.mpi(min_size=2)
def test_a_gradient_that_stays_none_on_one_rank_is_an_error_on_all(comm):
    replica = Replica(AllReduce(comm), arrays(0))
    gradients = arrays(1)
    if comm.rank == 1:
        gradients[2] = None
    with pytest.raises(ConfigError, match=r"rank 1: the gradient of parameter 2, of shape \(5,\)"):
        replica.step(gradients)
    assert replica.step(arrays(1))  # nobody waits for anybody


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda given: given[:-1], "5 parameters on rank 0 and 4 on rank 1"),
        (
            lambda given: [given[0].T.copy(), *given[1:]],
            r"parameter 0 of \(3, 4\) float64 on rank 0 and \(4, 3\) float64 on rank 1",
        ),
        (
            lambda given: [one.astype("float32") for one in given],
            r"parameter 0 of \(3, 4\) float64 on rank 0 and \(3, 4\) float32 on rank 1",
        ),
    ],
)
def test_parameters_that_differ_between_ranks(comm, change, said):
    given = change(arrays(0)) if comm.rank == 1 else arrays(0)
    with pytest.raises(ConfigError, match=f"got {said}; build the same model"):
        Replica(AllReduce(comm), given)


def readonly():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "expected at least one parameter"),
        ([np.zeros(2), np.zeros(2, int)], "parameter 1 must be writable float32 or float64"),
        ([readonly()], "got read-only float64; pass a copy"),
        ([[1.0]], r"must be a NumPy array or give DLPack in the memory of the CPU, got list"),
        ([np.zeros(2), np.zeros(2, "float32")], "all parameters must have one dtype"),
    ],
)
def test_parameters_that_cannot_be_used(comm, given, said):
    with pytest.raises(ConfigError, match=said):
        Replica(AllReduce(comm), given)


@pytest.mark.parametrize(
    ("gradients", "said"),
    [
        ([np.zeros(2)], "a gradient for each of 2 parameters, got 1"),
        ([np.zeros(2), np.zeros(2)], r"gradient 1 must be as its parameter, \(3,\) float64"),
        ([np.zeros(2), np.zeros(3, "float32")], r"got \(3,\) float32"),
    ],
)
def test_gradients_that_do_not_fit(comm, gradients, said):
    replica = Replica(AllReduce(comm), [np.zeros(2), np.zeros(3)])
    with pytest.raises(ConfigError, match=said):
        replica.step(gradients)
