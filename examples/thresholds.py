"""Split a photograph into grey classes: multi-level Otsu thresholds by a particle swarm.

    python examples/thresholds.py --classes 5
    mpiexec -n 4 python -m mpi4py examples/thresholds.py

N. Otsu, "A threshold selection method from gray-level histograms", IEEE Trans. SMC 9, 1979: the
best thresholds make the variance between the classes largest. Trying all of them takes 255 choose 4
steps for five classes; a swarm needs some thousand.
"""

import argparse

import numpy as np
from skimage import data, filters

from paropt_hpc.comm import world
from paropt_hpc.metaheuristics import Budget, Real, Search, Space, Vectorised, make


class Separation:
    """How badly thresholds separate the grey levels of an image: less is better."""

    def __init__(self, image: np.ndarray) -> None:
        counts = np.bincount(image.ravel(), minlength=256).astype(float)
        share = counts / counts.sum()
        self.weight = np.concatenate([[0.0], np.cumsum(share)])  # of levels below each one
        self.moment = np.concatenate([[0.0], np.cumsum(share * np.arange(256))])

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return minus the variance between the classes, for rows of thresholds."""
        cuts = np.sort(x.astype(int) + 1, axis=1)  # levels up to a threshold are below it
        ends = np.column_stack([np.zeros(len(x), int), cuts, np.full(len(x), 256)])
        weight = np.diff(self.weight[ends], axis=1)
        moment = np.diff(self.moment[ends], axis=1)
        mean = np.divide(moment, weight, out=np.zeros_like(moment), where=weight > 0)
        return self.moment[-1] ** 2 - (weight * mean**2).sum(axis=1)


def main() -> None:
    """Search on all ranks; compare with the thresholds of scikit-image, which tries all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--evaluations", type=int, default=8000)
    options = parser.parse_args()
    image = data.camera()
    separation = Separation(image)
    space = Space(Real(0, 254.999, size=options.classes - 1))
    with world() as comm:
        swarm = make("pso", space, seed=1, population=40)
        search = Search(comm, swarm, Vectorised(separation))
        outcome = search.run(Budget(evaluations=options.evaluations))
        search.free()
        if comm.rank == 0:
            found = np.sort(outcome.best_x.astype(int))
            print("thresholds", *found, f"variance between classes {-outcome.best_f:.3f}")
            if options.classes <= 4:  # more take minutes
                exact = filters.threshold_multiotsu(image, options.classes)
                value = -separation(exact[None].astype(float))[0]
                print("exhaustive", *exact, f"variance between classes {value:.3f}")


if __name__ == "__main__":
    main()
