"""Choose the features of a classifier by a binary particle swarm or a genetic algorithm.

    python examples/feature_selection.py --algorithm ga
    mpiexec -n 4 python -m mpi4py examples/feature_selection.py

Each point says which of the 30 features of scikit-learn's breast cancer data a nearest-neighbour
classifier may see; its value is the cross-validated error, and a little for each feature.
"""

import argparse

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from paropt_hpc.comm import world
from paropt_hpc.metaheuristics import Binary, Budget, Scalar, Search, Space, make

PRICE = 0.001  # of a feature, in error


def main() -> None:
    """Search on all ranks; compare with all features."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algorithm", choices=["binary-pso", "ga"], default="binary-pso")
    parser.add_argument("--generations", type=int, default=30)
    options = parser.parse_args()
    cancer = load_breast_cancer()
    x, y = StandardScaler().fit_transform(cancer.data), cancer.target
    space = Space(Binary(x.shape[1]))

    def cost(row: np.ndarray) -> float:
        chosen = space.decode(row)
        if not chosen.any():
            return 1.0
        accuracy = cross_val_score(KNeighborsClassifier(5), x[:, chosen], y, cv=3).mean()
        return float(1 - accuracy + PRICE * chosen.sum())

    with world() as comm:
        algorithm = make(options.algorithm, space, seed=3, population=16)
        search = Search(comm, algorithm, Scalar(cost))
        outcome = search.run(Budget(generations=options.generations))
        search.free()
        if comm.rank == 0:
            chosen = space.decode(outcome.best_x)
            error = outcome.best_f - PRICE * chosen.sum()
            everything = cost(np.ones(x.shape[1])) - PRICE * x.shape[1]
            print(f"all {x.shape[1]} features: error {everything:.4f}")
            print(f"{chosen.sum()} features: error {error:.4f}")
            print(*cancer.feature_names[chosen], sep=", ")


if __name__ == "__main__":
    main()
