"""Formats the estimated cost of a launch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from model.units import clock
from runner.plan.cost import Basis, Estimate


def price(cost: Estimate) -> Iterator[str]:
    """Yield lines for the user: total cost and its basis, runs that exceed their time limit, a note."""
    if not cost.runs:
        yield "nothing to run"
        return
    yield f"{_total(cost)}: {cost.basis}"
    limits = [limit for run in cost.runs if (limit := run.limit_passed)]
    for limit, count in sorted(Counter(limits).items()):
        yield f"{count} of them will exceed the time limit of {clock(limit)}"
    if cost.note:
        yield cost.note


def _total(cost: Estimate) -> str:
    if cost.wall_seconds is None:
        return "cost unknown"
    hours = f"{_hours(cost.gpu_hours or 0.0)} GPU-hours" if cost.gpus else ""
    nodes = "" if cost.node_hours is None else f" ({_hours(cost.node_hours)} node-hours)"
    bound = {0: "about", len(cost.runs): "at most"}.get(cost.counts[Basis.LIMIT], "at most about")
    paid = f"{hours}{nodes}, " if hours or nodes else ""
    return f"{bound} {paid}{clock(cost.wall_seconds)} with {cost.parallel} at once"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
