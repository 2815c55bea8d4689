import numpy as np

from paropt_hpc.comm import world
from paropt_hpc.train import AllReduce, Replica

with world() as comm:
    weights, bias = np.ones((3, 1)), np.zeros(1)
    replica = Replica(AllReduce(comm), [weights, bias])  # rank 0's values, on all ranks
    random = np.random.default_rng(comm.rank)  # this rank's samples
    for _ in range(200):
        x = random.standard_normal((32, 3))
        error = x @ weights + bias - x[:, :1]
        gradients = [x.T @ error / 32, error.mean(axis=0)]
        replica.step(gradients)  # the mean over all ranks, in place
        weights -= 0.1 * gradients[0]
        bias -= 0.1 * gradients[1]
    if comm.rank == 0:
        print(f"{comm.size} ranks, weights {weights.ravel().round(4) + 0.0}")
