"""The advisor's model against figures worked out by hand."""

import math
from dataclasses import replace

import pytest

from paropt_hpc.comm.tuning import CostModel, Shape
from paropt_hpc.experiments.advisor import Machine, Workload, advise, ways
from paropt_hpc.experiments.calibration import measure_workload, parse_bandwidth, parse_memory
from paropt_hpc.train import load_config

WORK = Workload(
    parameters=10_000_000,
    itemsize=4,
    states=1,
    batch=256,
    samples=1_000_000,
    step_seconds=0.001,
    sample_seconds=0.001,
    sample_bytes=1e5,
    select_seconds=0.004,
)


def machine(bandwidth, ranks=4, **changes):
    costs = CostModel(link_latency=1e-5, link_bandwidth=bandwidth)
    changes = {"tuned": True} | changes
    return Machine(Shape(ranks, ranks, 1, 1, shares_memory=True), costs, **changes)


TOLD = 2 * (1e-5 + 64 / 125e6)  # the losses of four ranks, by recursive doubling


def named(found, name):
    return next(way for way in found if way.name == name)


def test_a_dense_step_is_computing_and_the_ring():
    way = named(ways(WORK, machine(125e6)), "all-reduce")
    ring = 2 * 3 * (1e-5 + 40e6 / (4 * 125e6))
    assert way.seconds == pytest.approx(0.001 + 0.064 + ring + TOLD)
    assert way.communication == pytest.approx((ring + TOLD) / way.seconds)


def test_accumulation_shares_one_exchange():
    found = ways(WORK, machine(125e6))
    talk = [
        w.seconds * w.communication
        for w in (named(found, n) for n in ("all-reduce", "accumulate 4"))
    ]
    assert talk[1] == pytest.approx(talk[0] / 4)


def test_top_k_sends_messages_of_all_others():
    way = named(ways(WORK, machine(125e6)), "Top-k 1%")
    talk = 2 * 2 * 1e-5 + 3 * 100_000 * (4 + 8.1 / 8) / 125e6
    assert way.seconds == pytest.approx(0.065 + 0.004 + talk + TOLD)
    assert way.memory == named(ways(WORK, machine(125e6)), "all-reduce").memory + 40e6


def test_top_k_as_measured():
    """What was measured has the selection in it."""
    way = named(ways(WORK, machine(125e6, sparse_seconds=0.010)), "Top-k 1%")
    assert way.seconds == pytest.approx(0.065 + 0.010 + TOLD)
    assert way.communication == pytest.approx((0.006 + TOLD) / way.seconds)


def test_a_server_is_bound_by_its_link_or_by_what_one_worker_does():
    message = 1e-5 + 40e6 / 125e6
    assert named(ways(WORK, machine(125e6)), "bounded server").seconds == pytest.approx(3 * message)
    one_worker = named(ways(WORK, machine(125e6, ranks=2)), "bounded server")
    assert one_worker.seconds == pytest.approx(0.001 + 0.256 + 2 * message)


def test_an_untuned_choice_is_predicted_as_it_is_made_and_said():
    """The default model takes the network for fast, and doubles where the ring would win."""
    small = replace(WORK, parameters=25_000)
    default, tuned = (machine(12.5e6, tuned=tuned) for tuned in (False, True))
    assert default.allreduce(100_000) > 1.2 * tuned.allreduce(100_000)
    assert any("tune-comm" in text and "ring" in text for text in advise(small, default).answers)
    assert not any("tune-comm" in text for text in advise(small, tuned).answers)


def test_a_workload_is_measured(tmp_path):
    (tmp_path / "run.toml").write_text("[train]\nbatch = 64\n[model]\nhidden = [16]\n")
    work = measure_workload(load_config(tmp_path / "run.toml"))
    assert (work.parameters, work.itemsize, work.batch) == (64 * 16 + 16 + 16 * 10 + 10, 4, 64)
    # Either part may be lost in the noise of a busy machine, not both.
    assert 0 < work.step_seconds + work.sample_seconds * work.batch < 1
    assert work.sample_bytes > 4 * 16
    assert work.select_seconds > 0


def test_a_fast_network_wants_nothing_special():
    advice = advise(WORK, machine(12.5e9))
    assert advice.chosen.name == "all-reduce"
    assert "nothing to gain" in advice.why


def test_a_slow_network_wants_compression():
    advice = advise(WORK, machine(12.5e6))
    assert advice.chosen.name == "Top-k 1%"
    assert advice.ways[0].seconds <= advice.chosen.seconds
    assert advice.chosen.converges


def test_what_does_not_fit_is_cut_into_stages():
    # 12 vectors of a byte each would fit: two stages do not, four do.
    memory = 3 * 40e6 / 4 + 256 / 1 * 1e5 / 16 + 1e6
    advice = advise(WORK, machine(12.5e9, memory=memory))
    assert "does not fit" in advice.answers[0]
    assert advice.chosen.name == "pipeline, 4 stages x 16 microbatches"
    assert advice.chosen.remark == f"bubble {3 / 19:.0%}"
    compute = 0.001 + 0.064
    assert advice.chosen.seconds == pytest.approx(compute * 19 / 16)


def test_nothing_fits():
    advice = advise(WORK, machine(12.5e9, memory=1000.0))
    assert "nothing fits" in advice.why


def test_one_rank_has_no_communication():
    advice = advise(WORK, machine(12.5e9, ranks=1))
    assert advice.chosen.communication == 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "3,906 steps an epoch, 64 samples a rank"),
        ({"samples": 2000}, "few steps"),
        ({"batch": 16}, "so few a rank"),
    ],
)
def test_the_amount_of_data_is_judged(changes, said):
    assert said in advise(replace(WORK, **changes), machine(1e9)).answers[2]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("25Gbit", 25e9 / 8),
        ("100Mbit/s", 12.5e6),
        ("12.5GB/s", 12.5e9),
        ("1Gb/s", 125e6),
        ("800kB", 8e5),
    ],
)
def test_bandwidths_are_read(text, value):
    assert parse_bandwidth(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["fast", "25", "Gbit", "x GB/s"])
def test_what_is_no_bandwidth(text):
    with pytest.raises(ValueError, match=r"bandwidth|float"):
        parse_bandwidth(text)


def test_memory_is_read():
    assert parse_memory("80GB") == 80e9
    assert parse_memory("512MiB") == 512 * 2**20
    assert math.isinf(machine(1.0).memory)
