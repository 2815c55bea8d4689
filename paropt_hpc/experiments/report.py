"""The figures of a run as people read them, alone or side by side."""

from collections.abc import Mapping
from typing import Any

from paropt_hpc.errors import ConfigError

__all__ = ["comparison", "data_size", "figures"]


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
        **_split(summary),
        "time in communication": f"{summary['comm_share']:.1%}",
        "jitter of that time": f"{summary['comm_jitter']:.0%}",
        "sent per rank and step": data_size(sent),
        "dense would have sent": data_size(dense),
        "fewer bytes than dense": f"{dense / sent:.1f}x" if sent else "-",
    }


def comparison(summaries: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Return a table, header first: one row per figure, one column per named run.

    Raises
    ------
    ConfigError
        When a summary is that of something else than a training.
    """
    columns = {name: _figures_of(name, summary) for name, summary in summaries.items()}
    labels = list(dict.fromkeys(label for column in columns.values() for label in column))
    return [
        ["", *columns],
        *([label, *(column.get(label, "-") for column in columns.values())] for label in labels),
    ]


def _figures_of(name: str, summary: Mapping[str, Any]) -> dict[str, str]:
    try:
        return figures(summary)
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{name} holds no finished training, but another summary") from None


def _split(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return where the time went, and who was slow, as far as a summary says."""
    texts: dict[str, str] = {}
    seconds = summary.get("seconds", {})
    total = sum(seconds.values())
    if total > 0:
        texts["compute / compress / update"] = " / ".join(
            f"{seconds[kind] / total:.0%}" for kind in ("compute", "compress", "update")
        )
        texts["communicate / wait / other"] = " / ".join(
            f"{seconds[kind] / total:.0%}" for kind in ("communicate", "wait", "other")
        )
    if summary.get("straggler", -1) >= 0:
        texts["slowest rank"] = (
            f"{summary['straggler']} ({summary['straggler_factor']:.1f}x the others)"
        )
    return texts


def data_size(count: float) -> str:
    """Write a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.1f} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1000
    return f"{count:.1f} GB"
