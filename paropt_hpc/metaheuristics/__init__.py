"""Search without gradients: ask/tell algorithms on real, discrete, permutation and mixed spaces."""

from paropt_hpc.metaheuristics.algorithm import (
    ALGORITHMS,
    Algorithm,
    PopulationAlgorithm,
    make,
    register,
)
from paropt_hpc.metaheuristics.annealing import (
    COOLINGS,
    ParallelTempering,
    SimulatedAnnealing,
    exchange,
)
from paropt_hpc.metaheuristics.ant_colony import (
    AntColony,
)
from paropt_hpc.metaheuristics.asynchronous import (
    MigrationLog,
)
from paropt_hpc.metaheuristics.cma_es import (
    CMAES,
    RESTARTS,
    BipopCMAES,
    IpopCMAES,
    SeparableCMAES,
)
from paropt_hpc.metaheuristics.compiled import (
    Compiled,
)
from paropt_hpc.metaheuristics.constraints import (
    AdaptivePenalty,
    Constraints,
    FeasibilityRules,
    total_violation,
)
from paropt_hpc.metaheuristics.differential_evolution import (
    MUTATIONS,
    DifferentialEvolution,
    SelfAdaptiveDE,
)
from paropt_hpc.metaheuristics.evaluation import (
    Objective,
    Results,
    Scalar,
    Status,
    Vectorised,
)
from paropt_hpc.metaheuristics.evaluators import (
    Evaluator,
    RowSplit,
    Serial,
)
from paropt_hpc.metaheuristics.functions import (
    FUNCTIONS,
    Function,
    function,
)
from paropt_hpc.metaheuristics.genetic import (
    CROSSOVERS,
    MUTATION_STEPS,
    SELECTIONS,
    SURVIVALS,
    Genetic,
)
from paropt_hpc.metaheuristics.island import (
    Budget,
)
from paropt_hpc.metaheuristics.isolated import (
    Isolated,
)
from paropt_hpc.metaheuristics.manager import (
    Finished,
    ManagerWorker,
)
from paropt_hpc.metaheuristics.migration import (
    Migration,
    make_islands,
)
from paropt_hpc.metaheuristics.nsga2 import (
    NSGA2,
    crowding_distance,
    non_dominated_ranks,
)
from paropt_hpc.metaheuristics.particle_swarm import (
    BOUNDS,
    NEIGHBOURHOODS,
    BinarySwarm,
    ParticleSwarm,
    constriction,
)
from paropt_hpc.metaheuristics.permutations import (
    ORDER_CROSSOVERS,
    ORDER_MUTATIONS,
    edge_recombination,
    insertion,
    inversion,
    order_crossover,
    partially_mapped_crossover,
    swap,
)
from paropt_hpc.metaheuristics.program import (
    Program,
)
from paropt_hpc.metaheuristics.progress import (
    Moment,
    Outcome,
)
from paropt_hpc.metaheuristics.search import (
    Search,
)
from paropt_hpc.metaheuristics.space import (
    Binary,
    Categorical,
    Integer,
    Permutation,
    Real,
    Space,
    Variable,
)
from paropt_hpc.metaheuristics.success_history import (
    LSHADE,
)

__all__ = [
    "ALGORITHMS",
    "BOUNDS",
    "CMAES",
    "COOLINGS",
    "CROSSOVERS",
    "FUNCTIONS",
    "LSHADE",
    "MUTATIONS",
    "MUTATION_STEPS",
    "NEIGHBOURHOODS",
    "NSGA2",
    "ORDER_CROSSOVERS",
    "ORDER_MUTATIONS",
    "RESTARTS",
    "SELECTIONS",
    "SURVIVALS",
    "AdaptivePenalty",
    "Algorithm",
    "AntColony",
    "Binary",
    "BinarySwarm",
    "BipopCMAES",
    "Budget",
    "Categorical",
    "Compiled",
    "Constraints",
    "DifferentialEvolution",
    "Evaluator",
    "FeasibilityRules",
    "Finished",
    "Function",
    "Genetic",
    "Integer",
    "IpopCMAES",
    "Isolated",
    "ManagerWorker",
    "Migration",
    "MigrationLog",
    "Moment",
    "Objective",
    "Outcome",
    "ParallelTempering",
    "ParticleSwarm",
    "Permutation",
    "PopulationAlgorithm",
    "Program",
    "Real",
    "Results",
    "RowSplit",
    "Scalar",
    "Search",
    "SelfAdaptiveDE",
    "SeparableCMAES",
    "Serial",
    "SimulatedAnnealing",
    "Space",
    "Status",
    "Variable",
    "Vectorised",
    "constriction",
    "crowding_distance",
    "edge_recombination",
    "exchange",
    "function",
    "insertion",
    "inversion",
    "make",
    "make_islands",
    "non_dominated_ranks",
    "order_crossover",
    "partially_mapped_crossover",
    "register",
    "swap",
    "total_violation",
]
