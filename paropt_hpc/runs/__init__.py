"""What every long run needs, whatever it does: checkpoints, and a way to be told to stop."""

from paropt_hpc.runs.checkpoint import Checkpoint, Checkpoints, rank_part
from paropt_hpc.runs.signals import StopRequest

__all__ = ["Checkpoint", "Checkpoints", "StopRequest", "rank_part"]
