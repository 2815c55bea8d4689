"""Optimisers of other packages, in an environment of their own; a missing package is left out.

Operations are named ``package algorithm objective function``: 500 generations of 100 in 30 columns.
As a script it answers `worker.Worker`; with ``--quality SEEDS FUNCTION`` it prints the best values
found in 50,000 evaluations.
"""

import json
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable

import numpy as np
from worker import serve

SIZE, D, GENERATIONS = 100, 30, 500
BOXES = {"rastrigin": (-5.12, 5.12), "rosenbrock": (-5.0, 10.0), "ackley": (-15.0, 30.0)}
Run = Callable[[str, int], float]  # of function and seed to the best value


def rastrigin(x):
    """Return the values of rows."""
    return (x * x - 10 * np.cos(2 * np.pi * x) + 10).sum(axis=1)


def rosenbrock(x):
    """Return the values of rows."""
    return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(axis=1)


def ackley(x):
    """Return the values of rows."""
    root = np.sqrt((x * x).mean(axis=1))
    return 20 - 20 * np.exp(-0.2 * root) + np.e - np.exp(np.cos(2 * np.pi * x).mean(axis=1))


BATCH = {"rastrigin": rastrigin, "rosenbrock": rosenbrock, "ackley": ackley}


def pygmo_runs() -> dict[str, Run]:
    """Return the native algorithms of pygmo on its native problems."""
    import pygmo

    problems = {name: getattr(pygmo, name) for name in BOXES}
    algorithms = {
        "pso": lambda seed: pygmo.pso(gen=GENERATIONS, seed=seed),
        "de": lambda seed: pygmo.de(gen=GENERATIONS, seed=seed),
        "sade": lambda seed: pygmo.sade(gen=GENERATIONS, seed=seed),
        "sga": lambda seed: pygmo.sga(gen=GENERATIONS, seed=seed),
        "cmaes": lambda seed: pygmo.cmaes(gen=GENERATIONS, seed=seed),
    }

    def run_of(make) -> Run:
        def run(function: str, seed: int) -> float:
            population = pygmo.population(pygmo.problem(problems[function](D)), SIZE, seed=seed)
            return float(pygmo.algorithm(make(seed)).evolve(population).champion_f[0])

        return run

    return {f"pygmo {name} native": run_of(make) for name, make in algorithms.items()}


def pyswarms_runs() -> dict[str, Run]:
    """Return pyswarms' global-best swarm."""
    import logging

    from pyswarms.single import GlobalBestPSO

    logging.disable(logging.CRITICAL)

    def run(function: str, seed: int) -> float:
        np.random.seed(seed)  # noqa: NPY002 -- it knows no other generator
        low, high = (np.full(D, bound) for bound in BOXES[function])
        options = {"c1": 1.49618, "c2": 1.49618, "w": 0.7298}
        swarm = GlobalBestPSO(SIZE, D, options, bounds=(low, high))
        return float(swarm.optimize(BATCH[function], GENERATIONS, verbose=False)[0])

    return {"pyswarms pso batch": run}


def pymoo_runs() -> dict[str, Run]:
    """Return pymoo's algorithms."""
    from pymoo.algorithms.soo.nonconvex.de import DE
    from pymoo.algorithms.soo.nonconvex.ga import GA
    from pymoo.algorithms.soo.nonconvex.pso import PSO
    from pymoo.core.problem import Problem
    from pymoo.optimize import minimize

    class Wrapped(Problem):
        def __init__(self, function):
            low, high = BOXES[function]
            super().__init__(n_var=D, n_obj=1, xl=low, xu=high)
            self.function = BATCH[function]

        def _evaluate(self, x, out, *args, **kwargs):
            out["F"] = self.function(x)[:, None]

    def run_of(make) -> Run:
        def run(function: str, seed: int) -> float:
            end = ("n_gen", GENERATIONS)
            return float(minimize(Wrapped(function), make(pop_size=SIZE), end, seed=seed).F[0])

        return run

    kinds = {"pso": PSO, "de": DE, "ga": GA}
    return {f"pymoo {name} batch": run_of(kind) for name, kind in kinds.items()}


def scipy_runs() -> dict[str, Run]:
    """Return SciPy's vectorised differential evolution, and its annealing without local search."""
    from scipy.optimize import differential_evolution, dual_annealing

    def de(function: str, seed: int) -> float:
        low, high = BOXES[function]
        start = np.random.default_rng(seed).uniform(low, high, (SIZE, D))
        found = differential_evolution(
            lambda x: BATCH[function](x.T),
            [(low, high)] * D,
            maxiter=GENERATIONS - 1,
            init=start,
            tol=0,
            polish=False,
            updating="deferred",
            vectorized=True,
            rng=seed,
        )
        return float(found.fun)

    def annealing(function: str, seed: int) -> float:
        bounds, budget = [BOXES[function]] * D, SIZE * GENERATIONS
        found = dual_annealing(
            lambda x: BATCH[function](x[None])[0],
            bounds,
            maxfun=budget,
            maxiter=budget,
            no_local_search=True,
            rng=seed,
        )
        return float(found.fun)

    return {"scipy de batch": de, "scipy annealing scalar": annealing}


def pycma_runs() -> dict[str, Run]:
    """Return pycma, with 100 samples and with its default number."""
    import cma

    def run_of(samples: int | None) -> Run:
        def run(function: str, seed: int) -> float:
            low, high = BOXES[function]
            rng = np.random.default_rng(seed)
            options = {"verbose": -9, "seed": seed + 1, "bounds": [low, high]}
            options |= {"popsize": samples} if samples else {}
            span = 0.2 * (high - low)
            es = cma.CMAEvolutionStrategy(rng.uniform(low, high, D), span, options)
            while es.countevals < SIZE * GENERATIONS and (samples or not es.stop()):
                x = es.ask()
                es.tell(x, BATCH[function](np.array(x)).tolist())
            return float(es.best.f)

        return run

    return {"pycma cmaes batch": run_of(SIZE), "pycma default batch": run_of(None)}


def available() -> dict[str, Run]:
    """Return the runs of the packages that are here."""
    runs: dict[str, Run] = {}
    for find in (pygmo_runs, pyswarms_runs, pymoo_runs, scipy_runs, pycma_runs):
        try:
            runs |= find()
        except ImportError as missing:
            print(f"left out: {missing}", file=sys.stderr)
    return runs


def quality(seeds: int, function: str) -> dict[str, float]:
    """Return the median of the best values of each run on a function."""
    return {
        name: statistics.median(run(function, seed) for seed in range(seeds))
        for name, run in available().items()
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.chdir(tempfile.mkdtemp())  # pyswarms leaves a log where it runs
    if sys.argv[1:2] == ["--quality"]:
        print(json.dumps(quality(int(sys.argv[2]), sys.argv[3])))
    else:
        operations = {
            f"{name} {function}": lambda run=run, function=function: run(function, 1)
            for name, run in available().items()
            for function in BATCH
        }
        serve(operations, dict.fromkeys(operations))
