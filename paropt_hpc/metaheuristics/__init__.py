"""Search without gradients: ask/tell algorithms on real, discrete, permutation and mixed spaces."""

from paropt_hpc.metaheuristics.algorithm import (
    ALGORITHMS,
    Algorithm,
    PopulationAlgorithm,
    make,
    register,
)
from paropt_hpc.metaheuristics.asynchronous import MigrationLog
from paropt_hpc.metaheuristics.compiled import Compiled
from paropt_hpc.metaheuristics.constraints import (
    AdaptivePenalty,
    Constraints,
    FeasibilityRules,
    total_violation,
)
from paropt_hpc.metaheuristics.differential_evolution import DifferentialEvolution
from paropt_hpc.metaheuristics.evaluation import Objective, Results, Scalar, Status, Vectorised
from paropt_hpc.metaheuristics.evaluators import Evaluator, RowSplit, Serial
from paropt_hpc.metaheuristics.island import Budget
from paropt_hpc.metaheuristics.isolated import Isolated
from paropt_hpc.metaheuristics.manager import Finished, ManagerWorker
from paropt_hpc.metaheuristics.migration import Migration, make_islands
from paropt_hpc.metaheuristics.program import Program
from paropt_hpc.metaheuristics.progress import Moment, Outcome
from paropt_hpc.metaheuristics.search import Search
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
    "Budget",
    "Categorical",
    "Compiled",
    "Constraints",
    "DifferentialEvolution",
    "Evaluator",
    "FeasibilityRules",
    "Finished",
    "Integer",
    "Isolated",
    "ManagerWorker",
    "Migration",
    "MigrationLog",
    "Moment",
    "Objective",
    "Outcome",
    "Permutation",
    "PopulationAlgorithm",
    "Program",
    "Real",
    "Results",
    "RowSplit",
    "Scalar",
    "Search",
    "Serial",
    "Space",
    "Status",
    "Vectorised",
    "make",
    "make_islands",
    "register",
    "total_violation",
]
