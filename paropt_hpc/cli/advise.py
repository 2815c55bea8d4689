"""``paropt advise``: which way of running fits, before a run is spent on finding out."""

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
        float, typer.Option("--latency", help="Of a message between nodes, microseconds.")
    ] = 20.0,
    nodes: Annotated[
        int, typer.Option("--nodes", help="With --network: nodes to predict for.")
    ] = 4,
    ntasks_per_node: Annotated[
        int, typer.Option("--ntasks-per-node", help="With --network: ranks on each.")
    ] = 1,
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
            try:
                bytes_each = calibration.parse_memory(memory) if memory else float("inf")
                bandwidth = calibration.parse_bandwidth(network) if network else 0.0
            except ValueError as error:
                raise ConfigError(str(error)) from None
            work = calibration.measure_workload(config)
        shape, costs = calibration.measure_link(comm, work.gradient_bytes)
        if network is not None:
            shape = Shape(nodes * ntasks_per_node, nodes, ntasks_per_node, 1, shares_memory=True)
            costs = replace(costs, link_latency=latency * 1e-6, link_bandwidth=bandwidth)
        if comm.rank == 0:
            _show(advisor.advise(work, advisor.Machine(shape, costs, bytes_each)), shape.ranks)


def _show(advice: advisor.Advice, ranks: int) -> None:
    for answer in advice.answers:
        console.line(f"- {answer}")
    rows = [
        [
            way.name,
            advisor.written_time(way.seconds),
            f"{way.communication:.0%}",
            advisor.written_size(way.memory),
            way.remark,
        ]
        for way in advice.ways
    ]
    console.table(["way", f"a batch on {ranks} rank(s)", "communication", "memory", ""], rows)
    console.line(f"{advice.chosen.name}: {advice.why}")
    for setting in advice.chosen.settings.splitlines():
        console.line(f"  --set {setting.replace(' = ', '=')}")
