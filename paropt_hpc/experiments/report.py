"""The figures of a run as people read them, alone or side by side."""

from collections.abc import Mapping
from typing import Any

__all__ = ["comparison", "figures"]


def figures(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return label and text of every figure of a run's summary.

    Bytes are decimal (1 kB = 1000 B), as links are.
    """
    steps = max(1, summary["steps"])
    sent, dense = (summary[f"{key}_per_rank"] / steps for key in ("bytes_sent", "dense_bytes"))
    return {
        "ranks": f"{summary['ranks']}",
        "parameters": f"{summary['parameters']:,}",
        "steps": f"{summary['steps']:,}",
        "final loss": f"{summary['final_loss']:.4f}",
        "test accuracy": f"{summary['test_accuracy']:.4f}",
        "time": f"{summary['wall_s']:.2f} s",
        "samples/s": f"{summary['samples_per_s']:,.0f}",
        "time in communication": f"{summary['comm_share']:.1%}",
        "jitter of that time": f"{summary['comm_jitter']:.0%}",
        "sent per rank and step": _bytes(sent),
        "dense would have sent": _bytes(dense),
        "fewer bytes than dense": f"{dense / sent:.1f}x" if sent else "-",
    }


def comparison(summaries: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return a table, header first: one row per figure, one column per named run."""
    columns = {name: figures(summary) for name, summary in summaries.items()}
    labels = next(iter(columns.values()))
    return [
        ["", *columns],
        *([label, *(column[label] for column in columns.values())] for label in labels),
    ]


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.1f} GB"
