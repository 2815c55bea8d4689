"""The command ``paropt``: argument parsing and printing only."""

import os

from paropt_hpc.cli.threads import share_cores

share_cores(os.environ)

from paropt_hpc.cli.main import main  # noqa: E402  (BLAS reads the environment when it is loaded)

__all__ = ["main"]
