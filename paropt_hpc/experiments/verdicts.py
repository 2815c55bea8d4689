"""What the figures of an experiment mean, in words, with what to do about it."""

import math

from paropt_hpc.experiments.analysis import Analysis, Point

__all__ = ["verdicts"]

# Shares, in the order of the checks below.
EXTRA_EPOCHS_FINE, EXTRA_EPOCHS_BAD = 0.02, 0.05
COMMUNICATION_HIGH = 0.30
JITTER_HIGH = 0.30
POOR_SPEEDUP = {4: 2.0}  # ranks, and what they should at least reach


def verdicts(analysis: Analysis) -> list[str]:
    """Return a sentence for everything that deserves one; the gravest first."""
    said = [f"{cell.name} failed: {reason}" for cell, reason in analysis.failures]
    if analysis.missing:
        said.append(f"{analysis.missing} runs have not been made; the same command goes on")
    said += _unequal_batches(analysis)
    for point in analysis.points:
        if point.runs:
            said += [
                f"{point.name}: {text}"
                for text in (
                    *_convergence(analysis, point),
                    *_scaling(analysis, point),
                    *_communication(point),
                )
            ]
    return said


def _unequal_batches(analysis: Analysis) -> list[str]:
    batches = sorted({point.batch for point in analysis.points})
    if len(batches) < 2:
        return []
    sizes = ", ".join(map(str, batches))
    return [
        f"the global batch is not the same everywhere ({sizes} samples an update): differences in "
        "epochs to the target are then differences of the batch as well"
    ]


def _convergence(analysis: Analysis, point: Point) -> list[str]:
    if point.arrived < len(point.runs):
        return [
            f"{len(point.runs) - point.arrived} of {len(point.runs)} runs did not reach "
            f"the {analysis.target.metric.replace('_', ' ')} of {analysis.target.value:g}"
        ]
    reference = analysis.reference(point)
    if point is reference or math.isnan(reference.epochs_to_target.median):
        return []
    extra = point.epochs_to_target.median / reference.epochs_to_target.median - 1
    if extra <= EXTRA_EPOCHS_FINE:
        return [f"converges like {reference.name} ({extra:+.1%} epochs to the target)"]
    if extra <= EXTRA_EPOCHS_BAD:
        return [f"{extra:+.1%} epochs to the target against {reference.name}: watch it"]
    remedy = "raise the density, or quantise instead of dropping"
    if point.batch > reference.batch:
        times = f"{point.batch / reference.batch:g}"
        remedy = f"its batch is {times} times as large: scale train.lr, or accumulate less"
    return [f"{extra:+.1%} epochs to the target against {reference.name}: {remedy}"]


def _scaling(analysis: Analysis, point: Point) -> list[str]:
    wanted = POOR_SPEEDUP.get(point.ranks, 0.0)
    baseline, got = analysis.baseline(point), analysis.speedup(point).median
    if math.isnan(got) or baseline.ranks != 1 or got >= wanted:
        return []
    return [
        f"{point.ranks} ranks reach the target only {got:.2f} times as fast as one. Check, in this "
        "order: threads times ranks within the cores (paropt info), ranks bound to cores, the "
        "share of communication, the batch per rank, other jobs on the nodes"
    ]


def _communication(point: Point) -> list[str]:
    said = []
    share, jitter = point.spread("comm_share").median, point.spread("comm_jitter").median
    if point.ranks > 1 and share > COMMUNICATION_HIGH:
        said.append(
            f"{share:.0%} of a step is communication: a larger batch, accumulation, or compression"
        )
    if point.ranks > 1 and jitter > JITTER_HIGH:
        said.append(
            f"the time in communication varies by {jitter:.0%}: look at the links first, then at "
            "other jobs on the nodes"
        )
    return said
