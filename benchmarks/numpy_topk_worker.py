"""NumPy's ways to the k largest magnitudes, under the CPU features that the environment leaves."""

import sys

import numpy as np
from worker import serve


def main() -> None:
    """Serve the recipes for the vector in a file."""
    x, k = np.load(sys.argv[1]), int(sys.argv[2])
    n = x.size

    def argpartition() -> object:
        return np.argpartition(np.abs(x), n - k)[n - k :]

    def partition() -> object:
        magnitude = np.abs(x)
        return np.flatnonzero(magnitude >= np.partition(magnitude, n - k)[n - k])

    recipes = {"argpartition": argpartition, "partition": partition}
    serve(recipes, dict.fromkeys(recipes))


main()
