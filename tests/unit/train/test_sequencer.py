"""The order of a parameter server's events, under interleavings that hypothesis makes up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.errors import ConfigError
from paropt_hpc.train.sequencer import POLICIES, Kind, Sequencer


class Replay:
    """Workers and a server that only count; carries out the actions of a sequencer."""

    def __init__(self, sequencer):
        self.sequencer = sequencer
        self.version = 0  # as the servers count their updates
        self.pulled = {}  # worker: version and task it computes on
        self.waiting = {}  # worker: version and task of the gradient it has pushed
        self.applied = []  # staleness of every gradient that was applied
        self.done = []  # tasks, in the order in which their gradients were applied
        self.ended = set()

    def push(self, worker):
        self.waiting[worker] = self.pulled.pop(worker)
        self.carry_out(self.sequencer.arrive(worker, self.waiting[worker][0], 1))

    def carry_out(self, actions):
        for kind, worker, number in actions:
            if kind == Kind.ACCEPT:
                version, task = self.waiting.pop(worker)
                self.applied.append(self.version - version)
                self.done.append(task)
            elif kind == Kind.DROP:
                version, _ = self.waiting.pop(worker)
                assert self.version - version > self.sequencer.bound
            elif kind == Kind.UPDATE:
                self.version += 1
            elif kind == Kind.REPLY:
                assert worker not in self.waiting
                self.pulled[worker] = self.version, number
            else:
                self.ended.add(worker)
        assert self.version == self.sequencer.version
        assert sorted(self.pulled) == self.sequencer.computing


cases = st.tuples(
    st.integers(1, 6),  # workers
    st.integers(1, 5),  # bound
    st.sampled_from(POLICIES),
    st.integers(1, 4),  # group
    st.integers(0, 40),  # tasks
)


def run(case, choose, stop_after=None):
    """Run a phase of tasks; `choose` picks who pushes next among those that compute."""
    workers, bound, policy, group, tasks = case
    replay = Replay(Sequencer(workers, bound, policy, group))
    replay.sequencer.open(range(7, 7 + tasks))
    for worker in range(workers):
        replay.carry_out(replay.sequencer.arrive(worker))
    pushes = 0
    while not replay.sequencer.closed:
        assert replay.pulled, "everybody waits"
        replay.push(choose(sorted(replay.pulled)))
        pushes += 1
        if pushes == stop_after:
            replay.sequencer.stop(workers)
    return replay


@given(case=cases, data=st.data())
def test_whatever_the_order_the_bound_holds_and_every_task_is_done_once(case, data):
    workers, bound, policy, group, tasks = case
    replay = run(case, lambda among: data.draw(st.sampled_from(among)))
    assert max(replay.applied, default=0) <= bound
    assert sorted(replay.done) == list(range(7, 7 + tasks))
    assert replay.ended == set(range(workers))
    assert replay.version == -(-tasks // group)
    if policy != "drop":
        assert replay.sequencer.dropped == 0
    counted = np.bincount(replay.applied, minlength=bound + 1)
    assert np.array_equal(counted, replay.sequencer.histogram)


@given(case=cases, data=st.data(), stop_after=st.integers(1, 30))
def test_a_stop_leaves_nothing_undone(case, data, stop_after):
    workers, bound, _, group, tasks = case
    replay = run(case, lambda among: data.draw(st.sampled_from(among)), stop_after)
    reached = replay.sequencer.reached
    assert sorted(replay.done) == list(range(7, reached))
    # A group that is not full waits for what comes after the stop, as it would have without it.
    full, rest = divmod(len(replay.done), group)
    assert replay.version == full + (rest > 0 and reached == 7 + tasks)
    assert reached == 7 + tasks or reached % workers == 0
    assert max(replay.applied, default=0) <= bound


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("workers", "group"), [(2, 1), (4, 1), (4, 3), (6, 6)])
def test_one_worker_that_is_always_the_last(policy, workers, group):
    """The adversary: worker 0 pushes only when nobody else can."""
    replay = run((workers, 2, policy, group, 60), max)
    assert max(replay.applied) <= 2
    assert sorted(replay.done) == list(range(7, 67))
    if group > 1:
        return
    assert (replay.sequencer.dropped > 0) == (policy == "drop")
    assert (replay.sequencer.blocked > 0) == (policy != "drop")
    assert (replay.sequencer.synchronisations > 0) == (policy == "sync")


def test_the_fast_one_waits_for_the_slow_one_and_then_goes_on():
    sequencer = Sequencer(workers=2, bound=2, policy="wait")
    sequencer.open(range(100))
    sequencer.arrive(0)
    sequencer.arrive(1)
    kinds = [[action.kind for action in sequencer.arrive(1, version, 1)] for version in range(3)]
    once = [Kind.ACCEPT, Kind.UPDATE, Kind.REPLY]
    # Versions 1 and 2 leave worker 0 a staleness of 2; a third update would make it 3.
    assert kinds == [once, once, []]
    assert sequencer.arrive(0, 0, 1) == [
        (Kind.ACCEPT, 0, 1),
        (Kind.UPDATE, -1, -1),
        (Kind.ACCEPT, 1, 1),
        (Kind.UPDATE, -1, -1),
        (Kind.REPLY, 1, 4),
        (Kind.REPLY, 0, 5),
    ]
    assert sequencer.histogram.tolist() == [2, 1, 1]


def test_all_meet_at_one_version():
    replay = Replay(Sequencer(workers=3, bound=2, policy="sync"))
    replay.sequencer.open(range(100))
    for worker in range(3):
        replay.carry_out(replay.sequencer.arrive(worker))
    while replay.sequencer.synchronisations == 0:
        replay.push(2)
    while len(replay.pulled) < 3:
        replay.push(min(replay.pulled))
    assert {version for version, _ in replay.pulled.values()} == {replay.version}


def test_what_was_dropped_is_done_anew():
    replay = Replay(Sequencer(workers=2, bound=1, policy="drop"))
    replay.sequencer.open(range(4))
    for worker in range(2):
        replay.carry_out(replay.sequencer.arrive(worker))
    for _ in range(3):
        replay.push(1)
    assert replay.done == [1, 2, 3]
    replay.push(0)  # three versions late
    assert replay.sequencer.dropped == 1
    assert {task for _, task in replay.pulled.values()} == {0}
    replay.push(min(replay.pulled))
    assert sorted(replay.done) == [0, 1, 2, 3]
    assert replay.sequencer.closed


@given(case=cases, data=st.data())
def test_workers_that_know_themselves_what_to_do(case, data):
    """Without tasks, as in somebody's own loop: every worker pushes as often as it likes."""
    workers, bound, policy, group, _ = case
    replay = Replay(Sequencer(workers, bound, policy, group))
    replay.pulled = dict.fromkeys(range(workers), (0, -1))
    left = dict.fromkeys(range(workers), 5)
    while not replay.sequencer.closed:
        assert replay.pulled, "everybody waits"
        worker = data.draw(st.sampled_from(sorted(replay.pulled)))
        if left[worker]:
            left[worker] -= 1
            replay.push(worker)
        else:
            del replay.pulled[worker]
            replay.carry_out(replay.sequencer.arrive(worker, more=False))
    assert max(replay.applied, default=0) <= bound
    assert len(replay.applied) + replay.sequencer.dropped == 5 * workers
    assert replay.ended == set(range(workers))


def test_an_incomplete_group_waits_where_the_phase_does_not_end_an_epoch():
    sequencer = Sequencer(workers=1, bound=1, group=3)
    for flush, version, filled in [(False, 0, 2), (False, 1, 1), (True, 2, 0)]:
        sequencer.open(range(2), flush)
        sequencer.arrive(0)
        while not sequencer.closed:
            sequencer.arrive(0, sequencer.version, 1)
        assert (sequencer.version, sequencer.filled) == (version, filled)


def test_state_comes_back():
    replay = run((3, 2, "drop", 1, 20), max)
    copy = Sequencer(3, 2, "drop", 1)
    copy.load_state_dict(replay.sequencer.state_dict())
    assert copy.version == replay.version
    assert np.array_equal(copy.histogram, replay.sequencer.histogram)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((2, 0), "bound must be at least 1, got 0: .* use strategy.name = 'allreduce'"),
        ((2, 1, "hope"), "policy must be one of drop, wait, sync, got 'hope'"),
        ((2, 1, "drop", 0), "at least 1 gradient, got 0"),
    ],
)
def test_errors(arguments, text):
    with pytest.raises(ConfigError, match=text):
        Sequencer(*arguments)


def test_a_push_of_a_version_that_was_not_pulled_is_refused():
    sequencer = Sequencer(1, 1)
    sequencer.open(range(3))
    sequencer.arrive(0)
    with pytest.raises(ValueError, match="pulled version 0 and pushed 1"):
        sequencer.arrive(0, 1, 1)
