"""The parameter server: bounded, complete, and plain SGD where there is one worker."""

import itertools
import time

import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator
from paropt_hpc.compress import TopK
from paropt_hpc.errors import CollectiveTimeout, ConfigError, DivergenceError
from paropt_hpc.train import SGD, Config, ParameterServer, Trainer

pytestmark = pytest.mark.mpi

N, STEPS = 30, 12


def gradient_of(rank, params, step):
    """Of a quadratic bowl that is the same on every rank, with noise of its own."""
    noise = np.random.default_rng([rank, step]).standard_normal(N)
    return params - np.arange(N) + 0.1 * noise


def start_params():
    return np.random.default_rng(3).standard_normal(N)


def run(strategy, comm, steps=STEPS, pause=0.0):
    params = start_params() + comm.rank  # only rank 0's count
    strategy.start(params)
    for step in range(steps if strategy.works else 0):
        strategy.step(params, gradient_of(comm.rank, params, step), (1 + comm.rank, 1))
        time.sleep(pause * comm.rank)
    strategy.finish(params)
    return params


def plain_sgd(steps=STEPS):
    sgd, params = SGD(0.1, momentum=0.9), start_params()
    for step in range(steps):
        sgd.update(params, gradient_of(0, params, step))
    return params


def equal_everywhere(comm, array):
    copies = comm.allgather_bytes(array.view(np.uint8))
    return all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize("compressor", [None, TopK(1.0)])
def test_one_rank_is_plain_sgd_to_the_bit(compressor):
    with Communicator(MPI.COMM_SELF) as alone:
        params = run(ParameterServer(alone, SGD(0.1, 0.9), 1, compressor), alone)
    assert np.array_equal(params, plain_sgd())


@pytest.mark.parametrize("compressor", [None, TopK(1.0)])
def test_one_worker_and_any_number_of_servers_is_plain_sgd_to_the_bit(comm, compressor):
    servers = max(1, comm.size - 1)
    strategy = ParameterServer(comm, SGD(0.1, 0.9), 1, compressor, servers=servers)
    params = run(strategy, comm)
    assert np.array_equal(params, plain_sgd())
    assert equal_everywhere(comm, params)
    assert strategy.sequencer.histogram.tolist() == [STEPS, 0]


@pytest.mark.parametrize("look_ahead", [True, False])
def test_a_pull_is_where_momentum_will_have_taken_the_parameters(comm, look_ahead):
    strategy = ParameterServer(comm, SGD(0.1, 0.9), comm.size, look_ahead=look_ahead)
    params, gradient = start_params(), np.arange(N, dtype=np.float64)
    strategy.start(params)
    if comm.rank == 0:
        strategy.step(params, gradient)
        late = strategy.workers - 1 if look_ahead else 0
        assert np.allclose(params, start_params() - 0.1 * (1 + late) * gradient)
    strategy.finish(params)
    assert np.allclose(params, start_params() - 0.1 * gradient)


@pytest.mark.parametrize("policy", ["drop", "wait", "sync"])
@pytest.mark.parametrize(("servers", "group"), [(1, 1), (2, 1), (1, 2)])
def test_no_gradient_is_applied_beyond_the_bound(comm, policy, servers, group):
    if servers >= comm.size:
        servers = 1
    strategy = ParameterServer(
        comm, SGD(0.05), 1, TopK(0.5), servers=servers, policy=policy, group=group
    )
    params = run(strategy, comm, pause=0.001)  # a higher rank is a slower one
    said = strategy.metrics(params)
    assert equal_everywhere(comm, params)
    assert max(int(at) for at in said["staleness"]) <= 1
    assert sum(said["staleness"].values()) + said["dropped"] == STEPS * strategy.workers
    assert said["version"] == -(-sum(said["staleness"].values()) // group)


def test_a_group_is_the_mean_over_samples(comm):
    """All gradients of one step make one update, whoever comes first."""
    workers = max(1, comm.size - 1)
    strategy = ParameterServer(comm, SGD(0.1), 1, policy="wait", group=workers)
    params = run(strategy, comm, steps=1)
    start = start_params()
    weights = np.arange(1, workers + 1)
    gradients = [gradient_of(rank, start, 0) for rank in range(workers)]
    assert np.allclose(params, start - 0.1 * np.average(gradients, axis=0, weights=weights))


def config_of(comm, *, resume_from=None, **settings):
    sections = {
        "train": {"epochs": 3, "batch": 120, "lr": 0.05},
        "model": {"hidden": [8]},
        "strategy": {"name": "parameter-server", **settings.pop("strategy", {})},
    }
    if resume_from is not None:
        sections["run"] = {"dir": str(resume_from), "resume": True}
    return Config.model_validate(sections | settings)


class Recorder(Trainer):
    """Remembers the samples of every gradient."""

    def __init__(self, config, comm):
        super().__init__(config, comm)
        self.seen = []

    def _gradient(self, shard, batch=None):
        self.seen += shard.indices.tolist()
        return super()._gradient(shard, batch)


@pytest.mark.parametrize("policy", ["wait", "sync"])
def test_every_sample_of_an_epoch_is_seen_once_though_one_rank_is_slow(comm, policy):
    strategy = {"staleness_policy": policy, "staleness_bound": 2}
    config = config_of(comm, strategy=strategy, debug={"slow_rank": 0, "slow_factor": 3.0})
    trainer = Recorder(config, comm)
    summary = trainer.run()
    seen = sorted(itertools.chain(*MPI.COMM_WORLD.allgather(trainer.seen)))
    assert seen == sorted(3 * list(range(trainer.sampler.n)))
    assert summary.steps == 36
    assert equal_everywhere(comm, trainer.params)
    assert trainer.strategy.sequencer.histogram.size == 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strategy": {"group": 3, "staleness_policy": "sync"}},
        {"compress": {"method": "topk", "density": 0.1}},
    ],
)
def test_every_way_learns(comm, settings, tmp_path):
    # Asynchrony adds a momentum of its own.
    settings["train"] = {"epochs": 8, "batch": 60, "lr": 0.1, "momentum": 0.5}
    settings["model"] = {"hidden": [32]}
    if comm.rank == 0:
        settings["run"] = {"dir": str(tmp_path / "run")}
    summary = Trainer(config_of(comm, **settings), comm).run()
    assert summary.test_accuracy > 0.85
    if comm.rank == 0:
        assert '"staleness": {"0":' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_server_with_no_worker(comm):
    for servers in (comm.size, comm.size + 3):
        if servers == 1:
            continue
        with pytest.raises(ConfigError, match="a parameter server needs a worker: of"):
            ParameterServer(comm, SGD(0.1), 1, servers=servers)


def test_a_bound_of_zero(comm):
    with pytest.raises(ConfigError, match="must be at least 1, got 0: with 0 a gradient"):
        Trainer(config_of(comm, strategy={"staleness_bound": 0}), comm)


def test_a_server_takes_no_steps(comm):
    strategy = ParameterServer(comm, SGD(0.1), 1)
    params = start_params()
    strategy.start(params)
    if not strategy.works:
        with pytest.raises(ConfigError, match="is a server and takes no steps"):
            strategy.step(params, params)
    strategy.finish(params)


def test_divergence_is_raised_everywhere(comm):
    train = {"epochs": 3, "batch": 120, "lr": 1e30}
    with pytest.raises(DivergenceError, match=r"the loss is nan on rank \d in epoch 1"):
        Trainer(config_of(comm, train=train), comm).run()
    comm.barrier()


def test_a_worker_that_never_comes_is_noticed(world):
    if world.Get_size() == 1:
        return
    comm = Communicator(world, check=False)
    strategy = ParameterServer(comm, SGD(0.1), 1)
    params = start_params()
    strategy.start(params)
    strategy._mail.timeout = 0.5  # not before all are there
    if comm.rank == strategy.servers.start:
        with pytest.raises(CollectiveTimeout, match=r"rank 0 \(worker\) did not push within 0.5 s"):
            strategy.finish(params)
    world.Barrier()


@pytest.mark.parametrize("servers", [1, 2])
def test_another_number_of_ranks_takes_over_slices_and_residuals(comm, servers):
    """As if two workers and two servers had saved, each slice and residual told apart."""
    if servers >= comm.size:
        servers = 1
    strategy = ParameterServer(comm, SGD(0.1, 0.9), 1, TopK(0.1), servers=servers)
    strategy.start(start_params())
    counters = {"version": 5, "filled": 0, "dropped": 1, "blocked": 0, "synchronisations": 0}
    sequencer = counters | {"histogram": np.array([3, 2])}
    whole = np.arange(N, dtype=np.float64)
    compressor = TopK(0.1)
    compressor.start(N, np.dtype(np.float64))
    states = [
        {"compressor": compressor.state_dict() | {"residual": factor * whole}}
        for factor in (1.0, 10.0)
    ]
    cuts = (slice(0, 11), slice(11, N))
    states += [{"optimizer": {"steps": 5, "velocity": whole[cut] + 0.5}} for cut in cuts]
    saved = [
        {"params": start_params(), "strategy": state | {"sequencer": sequencer}} for state in states
    ]
    mine = strategy.reshard(saved, comm.rank, comm.size)
    strategy.load_state_dict(mine["strategy"])
    own = strategy.state_dict()
    residual = own["compressor"]["residual"] if strategy.works else np.zeros(N)
    comm.allreduce(residual, "sum")
    assert np.allclose(residual, 11 * whole)
    velocity = np.zeros(N)
    if "optimizer" in own:
        part = strategy._slices[comm.rank - strategy.servers.start]
        velocity[part] = own["optimizer"]["velocity"]
    comm.allreduce(velocity, "sum")
    assert np.array_equal(velocity, whole + 0.5)
    assert strategy.sequencer.version == 5
    strategy.finish(start_params())


@pytest.mark.mpi(min_size=3)
def test_a_dropped_gradient_leaves_the_residual_as_it_was(comm, world):
    strategy = ParameterServer(comm, SGD(0.1), 1, TopK(0.1))
    params, gradient = start_params(), gradient_of(0, start_params(), 0)
    strategy.start(params)
    if comm.rank == 0:
        for _ in range(3):
            strategy.step(params, gradient)
        world.send(None, 1)
    elif comm.rank == 1:
        world.recv(source=0)
        strategy.step(params, gradient)  # three versions late
        assert not strategy.compressors[0].residual.any()
        assert not np.array_equal(params, start_params())  # it has pulled all the same
        strategy.step(params, gradient)
        assert strategy.compressors[0].residual.any()
    strategy.finish(params)
    said = strategy.metrics(params)
    assert said["dropped"] == 1
    assert said["staleness"] == {"0": 4}
