import numpy as np

from paropt_hpc.comm import world
from paropt_hpc.compress import TopK
from paropt_hpc.train import SGD, AllReduce

with world() as comm:
    x = np.random.default_rng(comm.rank).standard_normal((500, 100))  # this rank's samples
    y, params = x.sum(axis=1), np.zeros(100)  # the true parameters are 1
    strategy = AllReduce(comm, SGD(lr=0.05), TopK(density=0.1))
    strategy.start(params)
    for _ in range(500):
        strategy.step(params, x.T @ (x @ params - y) / len(y))  # a tenth of this is sent
    if comm.rank == 0:
        print(f"{comm.size} ranks, largest error {np.abs(params - 1).max():.6f}")
