"""What every long run needs, whatever it does.

Checkpoints, a way to be told to stop, settings from a file, and a folder for the results.
"""

from paropt_hpc.runs.checkpoint import Checkpoint, Checkpoints, rank_part
from paropt_hpc.runs.run_folder import RunFolder, read_summary
from paropt_hpc.runs.settings import Section, load, to_toml
from paropt_hpc.runs.signals import StopRequest

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "RunFolder",
    "Section",
    "StopRequest",
    "load",
    "rank_part",
    "read_summary",
    "to_toml",
]
