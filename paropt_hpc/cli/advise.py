"""``paropt advise``: which way of running fits, before a run is spent on finding out."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from paropt_hpc.cli import console
from paropt_hpc.comm import world
from paropt_hpc.comm.tuning import Shape
from paropt_hpc.errors import ConfigError
from paropt_hpc.experiments import advisor, calibration
from paropt_hpc.train import load_config

__all__ = ["advise_command"]

NODES = 4
LATENCY = 20.0  # microseconds, of TCP


def advise_command(
    config_file: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="Settings of a run, a TOML file.")
    ],
    memory: Annotated[
        str | None, typer.Option("--memory", help="Of one device, such as 80GB.")
    ] = None,
    network: Annotated[
        str | None, typer.Option("--network", help="Between nodes: 25Gbit, 100Mbit, 12GB/s.")
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(
            "--latency",
            help=f"With --network: of a message, in microseconds; {LATENCY:g} by default.",
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", help=f"With --network: nodes to predict for; {NODES} by default."),
    ] = None,
    ntasks_per_node: Annotated[
        int | None,
        typer.Option("--ntasks-per-node", help="With --network: ranks on each; 1 by default."),
    ] = None,
) -> None:
    """Predict what each way of running would cost for CONFIG, and recommend one.

    Answers three questions: does a replica of the model fit one device, what share of a step would
    be communication, how much data is there. The computing is measured here. So is the network,
    between the ranks started (`mpiexec -n 4 paropt advise CONFIG`), unless `--network` gives it:
    then the prediction is for `--nodes` times `--ntasks-per-node` ranks that need not exist.
    """
    with world() as comm:
        with comm.together():
            config = load_config(config_file)
            if comm.size == 1 and network is None:
                raise ConfigError(
                    "there is no network to measure on one rank; start several "
                    "(mpiexec -n 4 paropt advise ...) or give it: --network 25Gbit --nodes 4"
                )
            bytes_each = math.inf if memory is None else calibration.parse_memory(memory)
            bandwidth = math.inf if network is None else calibration.parse_bandwidth(network)
            _check_given(network, nodes, ntasks_per_node, latency)
            work = calibration.measure_workload(config)
        shape, costs = calibration.measure_link(comm, work.gradient_bytes)
        sparse = None if network is not None else calibration.measure_sparse(comm, work)
        if network is not None:
            nodes, each = nodes or NODES, ntasks_per_node or 1
            shape = Shape(nodes * each, nodes, each, 1, shares_memory=True)
            latency = LATENCY if latency is None else latency
            costs = replace(costs, link_latency=latency * 1e-6, link_bandwidth=bandwidth)
        if comm.rank == 0:
            tuned = calibration.is_tuned(shape, work.gradient_bytes)
            machine = advisor.Machine(shape, costs, bytes_each, tuned, sparse)
            _show(advisor.advise(work, machine), shape.ranks)


def _check_given(
    network: str | None, nodes: int | None, ntasks_per_node: int | None, latency: float | None
) -> None:
    """Refuse figures of a network that make no sense, or that nothing would use."""
    given = {"--nodes": nodes, "--ntasks-per-node": ntasks_per_node, "--latency": latency}
    for option, value in given.items():
        least = 0 if option == "--latency" else 1
        if value is not None and network is None:
            raise ConfigError(f"{option} goes with --network; without it the ranks started count")
        if value is not None and not least <= value < math.inf:
            raise ConfigError(f"{option} must be at least {least}, got {value}")


def _show(advice: advisor.Advice, ranks: int) -> None:
    for answer in advice.answers:
        console.line(f"- {answer}")
    rows = [
        [
            way.name,
            advisor.written_time(way.seconds),
            f"{way.communication:.0%}",
            advisor.written_size(way.memory),
        ]
        for way in advice.ways
    ]
    console.line(f"- what one batch takes on {ranks} ranks, and each of them needs:")
    console.table(["way", "time", "communication", "memory"], rows)
    for way in advice.ways:
        console.line(f"  {way.name}: {way.remark}")
    console.line(f"\n{advice.chosen.name}: {advice.why}")
    for setting in advice.chosen.settings.splitlines():
        console.line(f"  --set {setting.replace(' = ', '=')}")
