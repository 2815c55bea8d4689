"""Islands on any number of ranks: the same result to the bit, also after a resume."""

import hashlib
import json
import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.topology import from_edges
from paropt_hpc.errors import ConfigError, DataError, EvaluationError, StoppedError
from paropt_hpc.metaheuristics import (
    ALGORITHMS,
    Binary,
    Budget,
    ManagerWorker,
    Migration,
    MigrationLog,
    Permutation,
    RowSplit,
    Scalar,
    Search,
    Serial,
    Space,
    Vectorised,
    function,
    make,
    make_islands,
)
from paropt_hpc.runs import Checkpoints
from paropt_hpc.runs.checkpoint import flatten

SPACE = Space.box(-5.12 * np.ones(4), 5.12 * np.ones(4))


def rastrigin(row):
    return float(10 * row.size + (row * row - 10 * np.cos(2 * np.pi * row)).sum())


def patchy(row):
    """One in five NaN, one in twenty raises."""
    kind = hashlib.blake2b(row.tobytes()).digest()[0]
    if kind < 13:
        raise ValueError("no luck")
    return math.nan if kind < 64 else rastrigin(row)


def run(comm, islands, *, objective=rastrigin, budget=None, **options):
    """Return what a search comes to; its seconds are not part of it."""
    settings = {name: options.pop(name) for name in ("migration", "evaluator") if name in options}
    search = Search(comm, islands, objective, **settings)
    outcome = search.run(budget or Budget(generations=23), **options)
    search.free()
    return fingerprint(outcome)


def fingerprint(outcome):
    parts = [outcome.best_x.tobytes().hex(), outcome.best_f, outcome.evaluations]
    return json.dumps([*parts, outcome.failures, outcome.reason, outcome.history])


def archipelago(count=5, names=("de", "pso", "jde", "ga"), seed=3, population=12):
    return make_islands(names, SPACE, count, seed=seed, population=population)


MIGRATIONS = [
    Migration("ring", interval=4),
    Migration("complete", interval=5, size=3, selection="random", replacement="nearest"),
    Migration("star", interval=1, selection="tournament", replacement="random"),
    Migration("one-peer-exponential", interval=3, size=100, replacement="worst"),
    Migration(from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)], directed=True), interval=7),
    None,
]


@pytest.mark.parametrize("migration", MIGRATIONS)
def test_the_ranks_do_not_change_the_result(comm, world, everywhere, migration):
    """Five islands on all ranks equal five islands on each rank alone."""
    ours = run(comm, archipelago(), migration=migration)
    with Communicator(world.Split(comm.rank)) as alone:
        expected = run(alone, archipelago(), migration=migration)
    everywhere([] if ours == expected else [f"{ours} is not {expected}"])


@pytest.mark.mpi(min_size=3)
def test_emigrants_go_to_neighbours_only(comm, everywhere):
    """In a directed ring each rank sends its emigrants to one other, however many there are."""
    n = comm.size
    around = from_edges(n, [(i, (i + 1) % n) for i in range(n)], directed=True)
    run(comm, archipelago(n), migration=Migration(around, interval=4, size=2),
        budget=Budget(generations=10))  # fmt: skip
    told = comm.traffic.operations["neighbor_exchange_bytes"]
    two = 2 * 8 * (6 + 2 * (4 + 1))  # migrations of two members of four columns and a value
    good = (told.bytes_sent, told.bytes_received) == (two, two)
    everywhere([] if good else [f"{told}"])


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("evaluator", [None, ManagerWorker])
def test_islands_of_several_ranks(comm, world, everywhere, count, evaluator):
    """Also with failures, whoever evaluates."""
    how = {"evaluator": evaluator} if evaluator else {}
    options = {"migration": Migration(interval=3), "objective": patchy}
    ours = run(comm, archipelago(count), **options, **how)
    with Communicator(world.Split(comm.rank)) as alone:
        expected = run(alone, archipelago(count), **options)
    everywhere([] if ours == expected else [f"{ours} is not {expected}"])
    assert '"raised": ' in ours
    assert '"NaN": ' in ours


def test_one_island_is_the_algorithm_alone(comm, everywhere):
    algorithm = make("de", SPACE, seed=3, population=12)
    for _ in range(23):
        x = algorithm.ask()
        algorithm.tell(x, [rastrigin(row) for row in x])
    search = Search(comm, make("de", SPACE, seed=3, population=12), rastrigin)
    outcome = search.run(Budget(generations=23))
    same = np.array_equal(outcome.best_x, algorithm.best_x) and len(outcome.history) == 23
    everywhere([] if same else [f"{outcome} is not {algorithm.best_f}"])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "budget",
    [Budget(generations=700), Budget(evaluations=9_000), Budget(target=5.0, generations=700)],
)
def test_native_generations_do_not_change_the_result(comm, everywhere, count, budget):
    rastrigin = function("rastrigin")
    told = []
    for objective in (rastrigin, lambda x: rastrigin(x)):
        islands = archipelago(count, ("de", "ga", "pso"))
        migration = Migration(interval=30)
        told.append(run(comm, islands, objective=Vectorised(objective), budget=budget,
                        migration=migration))  # fmt: skip
    everywhere([] if told[0] == told[1] else [f"{told[0]} is not {told[1]}"])


def test_the_history_stays_short_in_a_long_run(comm, everywhere):
    sphere = function("sphere")
    search = Search(comm, make("de", SPACE, population=8), Vectorised(sphere))
    history = search.run(Budget(generations=20_000)).history
    search.free()
    generations = [moment.generation for moment in history]
    good = 100 < len(history) <= 256 and generations[-1] == 20_000
    everywhere([] if good and generations == sorted(generations) else [f"{generations}"])


@pytest.fixture
def shared(comm, tmp_path):
    """A folder that all ranks have."""
    return Path(comm.gather_texts(str(tmp_path))[0])


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("at", [1, 7, 8])
def test_resume_equals_the_uninterrupted_run(comm, world, shared, everywhere, count, at):
    """Saved by one rank, gone on with on all; and the other way round."""
    options = {"migration": Migration(interval=4), "objective": patchy, "every": at}
    expected = run(comm, archipelago(count), **options)
    with Communicator(world.Split(comm.rank)) as alone:
        own = shared / f"{comm.rank}"
        run(alone, archipelago(count), checkpoints=Checkpoints(own, alone),
            **options | {"budget": Budget(generations=at)})  # fmt: skip
    comm.barrier()  # rank 0 has saved
    resumed = run(comm, archipelago(count), checkpoints=Checkpoints(shared / "0", comm),
                  resume=True, **options)  # fmt: skip
    everywhere([] if resumed == expected else [f"{resumed} is not {expected}"])
    run(comm, archipelago(count), checkpoints=Checkpoints(shared / "all", comm),
        **options | {"budget": Budget(generations=at)})  # fmt: skip
    with Communicator(world.Split(comm.rank)) as alone:
        again = run(alone, archipelago(count), checkpoints=Checkpoints(shared / "all", alone, 99),
                    resume=True, **options) if comm.rank == 0 else expected  # fmt: skip
    everywhere([] if again == expected else [f"{again} is not {expected}"])


@pytest.mark.parametrize("count", [1, 5])
def test_a_signal_to_one_rank_saves_and_stops_all(comm, shared, everywhere, count):
    calls = []

    def signalled(row):
        calls.append(0)
        if len(calls) == 60 and comm.rank == comm.size - 1 and not resumed:
            os.kill(os.getpid(), signal.SIGUSR1)
        return rastrigin(row)

    resumed = False
    options = {"migration": Migration(interval=4), "objective": signalled,
               "evaluator": lambda group, o: RowSplit(group, o, replicate="never"),
               "checkpoints": Checkpoints(shared / "c", comm)}  # fmt: skip
    with pytest.raises(StoppedError, match="stopped by SIGUSR1: checkpoint in"):
        run(comm, archipelago(count), **options)
    resumed = True
    again = run(comm, archipelago(count), resume=True, **options)
    expected = run(comm, archipelago(count), migration=Migration(interval=4))
    everywhere([] if again == expected else [f"{again} is not {expected}"])


def test_a_checkpoint_of_another_search_is_refused(comm, shared):
    checkpoints = Checkpoints(shared / "c", comm)
    run(comm, archipelago(2), checkpoints=checkpoints)
    with pytest.raises(ConfigError, match="cannot resume: seeds was"):
        run(comm, archipelago(2, seed=4), checkpoints=checkpoints, resume=True)


@pytest.mark.parametrize("count", [1, 3])
def test_failures_without_end_end_the_run_on_all_ranks(comm, count):
    def hopeless(row):
        if rastrigin(row) < best[0]:
            best[0] = rastrigin(row)
            return best[0]
        raise RuntimeError("the licence server is gone")

    best = [math.inf]
    search = Search(comm, archipelago(count), hopeless, max_failures=30)
    with pytest.raises(EvaluationError, match=r"[3-9]\d evaluations in a row.*licence server"):
        search.run(Budget(generations=1000))
    search.free()


def test_budgets(comm):
    def finish(budget, count=3):
        return Search(comm, archipelago(count), rastrigin).run(budget)

    outcome = finish(Budget(evaluations=100))
    assert outcome.reason == "evaluations"
    assert 100 <= outcome.evaluations < 100 + 3 * 12
    outcome = finish(Budget(target=20.0, generations=500))
    assert outcome.reason == "target"
    assert outcome.best_f <= 20
    outcome = finish(Budget(seconds=0.2), 1)
    assert outcome.reason == "seconds"
    assert finish(Budget(generations=1)).generations == 1
    for bad in ({}, {"evaluations": 0}, {"seconds": -1.0}):
        with pytest.raises(ConfigError):
            Budget(**bad)


def test_bad_archipelagos_are_refused(comm):
    with pytest.raises(ConfigError, match="different seeds"):
        Search(comm, [make("de", SPACE), make("de", SPACE)], rastrigin)
    with pytest.raises(ConfigError, match="same space; island 1"):
        Search(comm, [make("de", SPACE), make("de", Space.box([0.0], [1.0]))], rastrigin)
    with pytest.raises(ConfigError, match="at least one algorithm"):
        Search(comm, [], rastrigin)
    if comm.size > 1:
        with pytest.raises(ConfigError, match=r"works on 1 rank\(s\), its island has"):
            Search(comm, archipelago(1), rastrigin, evaluator=lambda group, o: Serial(o))
    with pytest.raises(ConfigError, match="power of two"):
        Search(comm, archipelago(3), rastrigin, migration=Migration("hypercube"))
    with pytest.raises(ConfigError, match="joins 5 islands, but there are 3"):
        Search(comm, archipelago(3), rastrigin, migration=MIGRATIONS[4])


def wander(comm, count, replay=None, slow=True, **budget):
    """Islands of unequal speed."""

    def objective(row):
        if slow and comm.rank % 2:
            time.sleep(2e-4)
        return patchy(row)

    search = Search(comm, archipelago(count), objective,
                    migration=Migration("exponential", interval=3))  # fmt: skip
    outcome, log = search.run_asynchronous(Budget(**budget or {"generations": 20}), replay=replay)
    search.free()
    return fingerprint(outcome), log


@pytest.mark.parametrize("count", [2, 5])
def test_asynchronous_islands_can_be_repeated(comm, world, everywhere, tmp_path, count):
    ours, log = wander(comm, count)
    log.save(tmp_path / "log.jsonl")
    assert MigrationLog.load(tmp_path / "log.jsonl") == log
    again, same = wander(comm, count, replay=log, slow=False)
    everywhere([] if (again, same) == (ours, log) else [f"{again} is not {ours}"])
    with Communicator(world.Split(comm.rank)) as alone:
        again, same = wander(alone, count, replay=log)
    everywhere([] if (again, same) == (ours, log) else [f"{again} is not {ours}"])
    assert len(log.arrivals) > count


def test_asynchronous_islands_stop_at_a_target_and_at_time(comm, everywhere):
    ours, log = wander(comm, 3, target=25.0)
    again, _ = wander(comm, 3, replay=log, target=25.0)
    assert '"target"' in ours
    everywhere([] if again == ours else [f"{again} is not {ours}"])
    ours, log = wander(comm, 3, seconds=0.3)
    assert '"seconds"' in ours
    again, _ = wander(comm, 3, replay=log, generations=10**6)
    again, ours = (json.loads(text)[:4] for text in (again, ours))
    everywhere([] if again == ours else [f"{again} is not {ours}"])


def test_asynchronous_islands_fail_together(comm, tmp_path):
    def hopeless(row):
        raise RuntimeError("the licence server is gone")

    search = Search(comm, archipelago(3), hopeless, migration=Migration(), max_failures=30)
    with pytest.raises(EvaluationError, match="licence server"):
        search.run_asynchronous(Budget(generations=1000))
    with pytest.raises(ConfigError, match="log is of 1 islands, there are 3"):
        search.run_asynchronous(Budget(generations=1), replay=MigrationLog([], [1], [3]))
    search.free()
    (tmp_path / "log").write_text("{}")
    with pytest.raises(DataError, match="no migration log"):
        MigrationLog.load(tmp_path / "log")


def test_a_front_of_all_islands_does_not_depend_on_the_ranks(comm, world, everywhere):
    both = Scalar(lambda row: [row[0] ** 2, (row[0] - 1) ** 2 + row[1] ** 2], outputs=2)

    def front(ranks):
        islands = make_islands("nsga2", SPACE, 3, seed=5, population=12)
        search = Search(ranks, islands, both, migration=Migration(interval=3))
        outcome = search.run(Budget(generations=10))
        search.free()
        return [part.tolist() for part in outcome.front]

    ours = front(comm)
    with Communicator(world.Split(comm.rank)) as alone:
        expected = front(alone)
    everywhere([] if ours == expected else [f"{ours} is not {expected}"])
    assert len(ours[1]) > 12


def test_causes_are_known_on_all_ranks(comm, everywhere):
    search = Search(comm, archipelago(2), patchy, migration=Migration())
    causes = search.run(Budget(generations=5)).causes
    search.free()
    good = causes.keys() == {"raised", "NaN"} and causes["raised"] == "ValueError: no luck"
    everywhere([] if good else [f"{causes}"])


def problem_of(name):
    """A space, an objective and options that an algorithm can work with."""
    options = {"lshade": {"budget": 2000}}.get(name, {})
    if name == "mmas":
        cities = np.random.default_rng(0).random((9, 2))
        away = np.linalg.norm(cities[:, None] - cities, axis=2)
        tour = Vectorised(lambda x: away[x.astype(int), np.roll(x, -1, 1).astype(int)].sum(1))
        return Space(Permutation(9)), tour, options
    if name == "binary-pso":
        return Space(Binary(12)), Scalar(lambda row: abs(row.sum() - 4)), options
    if name == "nsga2":
        both = Scalar(lambda row: [row[0] ** 2, (row[0] - 1) ** 2 + row[1] ** 2], outputs=2)
        return SPACE, both, options
    return SPACE, Scalar(patchy), options


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_on_islands_resumes_to_the_bit(comm, shared, everywhere, name):
    space, objective, options = problem_of(name)

    def states(folder, generations, resume=False):
        islands = make_islands(name, space, 2, seed=5, **options)
        search = Search(comm, islands, objective, migration=Migration(interval=3))
        search.run(Budget(generations=generations), every=4, resume=resume,
                   checkpoints=Checkpoints(shared / folder, comm))  # fmt: skip
        search.free()
        found = Checkpoints(shared / folder, comm).load()
        kept = [flatten(found.state(f"island-{i:05d}")["algorithm"]) for i in range(2)]
        return [{key: np.asarray(v).tolist() for key, v in leaves.items()} for leaves in kept]

    expected = states("whole", 10)
    states("parts", 4)
    resumed = states("parts", 10, resume=True)
    everywhere([] if str(resumed) == str(expected) else [f"{resumed} is not {expected}"])
    assert expected[0]["evaluations"] > 0
