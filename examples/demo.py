"""Train the digits network on two ranks, dense and with Top-k 1 %, and compare.

    python examples/demo.py --mpiexec mpiexec

Ends with an error when compression costs more than a point of accuracy, or saves less
than a factor of 40 of the bytes.
"""

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

from paropt_hpc.train import read_summary

EXAMPLES = Path(__file__).parent
RUNS = Path("runs")
PAROPT = Path(sysconfig.get_path("scripts")) / "paropt"


def main() -> None:
    """Run both trainings, print them side by side, and hold the result to the claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpiexec", default="mpiexec", help="launcher of the MPI in use")
    mpiexec = parser.parse_args().mpiexec
    folders = {name: RUNS / f"demo-{name}" for name in ("dense", "topk")}
    for name, folder in folders.items():
        config = EXAMPLES / f"digits_{name}.toml"
        command = [mpiexec, "-n", "2", PAROPT, "train", config]
        command += ["--set", f"run.dir={folder}", "--set", "run.overwrite=true"]
        print("$", *command, flush=True)
        subprocess.run(command, check=True)
    subprocess.run([PAROPT, "compare", *folders.values()], check=True)
    sys.exit(judge(*(read_summary(folder) for folder in folders.values())))


def judge(dense: dict, topk: dict) -> int:
    """Print what Top-k cost and saved; return the exit status."""
    lost = dense["test_accuracy"] - topk["test_accuracy"]
    fewer = dense["bytes_sent_per_rank"] / topk["bytes_sent_per_rank"]
    print(f"Top-k sent {fewer:.0f} times fewer bytes at {100 * lost:+.2f} points less accuracy.")
    good = min(dense["test_accuracy"], topk["test_accuracy"]) >= 0.96
    return 0 if good and abs(lost) <= 0.01 and fewer >= 40 else 1


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd))} ended with status {error.returncode}")
