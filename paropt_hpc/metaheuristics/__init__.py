"""Search without gradients: ask/tell algorithms on real, discrete, permutation and mixed spaces."""

from paropt_hpc.metaheuristics.algorithm import (
    ALGORITHMS,
    Algorithm,
    PopulationAlgorithm,
    make,
    register,
)
from paropt_hpc.metaheuristics.constraints import (
    AdaptivePenalty,
    Constraints,
    FeasibilityRules,
    total_violation,
)
from paropt_hpc.metaheuristics.differential_evolution import DifferentialEvolution
from paropt_hpc.metaheuristics.space import (
    Binary,
    Categorical,
    Integer,
    Permutation,
    Real,
    Space,
)

__all__ = [
    "ALGORITHMS",
    "AdaptivePenalty",
    "Algorithm",
    "Binary",
    "Categorical",
    "Constraints",
    "DifferentialEvolution",
    "FeasibilityRules",
    "Integer",
    "Permutation",
    "PopulationAlgorithm",
    "Real",
    "Space",
    "make",
    "register",
    "total_violation",
]
