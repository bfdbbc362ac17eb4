"""What a launch would cost, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from model.record.units import clock
from runner.plan.cost import Basis, CostEstimate, RunCost


def price(cost: CostEstimate) -> Iterator[str]:
    """Yield lines for the user: total cost and its basis, runs that exceed their time limit, a note.

    Runs without past timings are not in the total: a limit says little about a cost.
    """
    if not cost.runs:
        yield "nothing to start"
        return
    parts = {basis: tuple(run for run in cost.runs if run.basis is basis) for basis in Basis}
    if known := parts[Basis.SAME] + parts[Basis.SCALED]:
        of_known = replace(cost, runs=known)
        yield f"{_total(of_known)}: {of_known.basis}"
    if limited := parts[Basis.LIMIT]:
        yield f"no estimate yet{_for(limited, cost)}; {_limit(replace(cost, runs=limited))}"
    if unknown := parts[Basis.UNKNOWN]:
        yield f"no estimate yet{_for(unknown, cost)}; the profile has no time_limit"
    limits = [limit for run in cost.runs if (limit := run.limit_passed)]
    for limit, count in sorted(Counter(limits).items()):
        yield f"{count} of them will exceed the time limit of {clock(limit)}"
    if cost.note:
        yield cost.note


def _for(part: Sequence[RunCost], cost: CostEstimate) -> str:
    return f" for {len(part)} of the {len(cost.runs)} runs" if len(part) < len(cost.runs) else ""


def _limit(cost: CostEstimate) -> str:
    """`limit 1:00:00 per run, at most 8.0 GPU-hours`: what runs without an estimate can cost."""
    least, *others = sorted({run.wall_seconds or 0.0 for run in cost.runs})
    said = f"limits {clock(least)} to {clock(others[-1])}" if others else f"limit {clock(least)}"
    said += " per run"
    return f"{said}, at most {_paid(cost)}" if _paid(cost) else said


def _total(cost: CostEstimate) -> str:
    paid = f"{_paid(cost)}, " if _paid(cost) else ""
    return f"about {paid}{clock(cost.wall_seconds or 0.0)} with {cost.parallel} at once"


def _paid(cost: CostEstimate) -> str:
    hours = f"{_hours(cost.gpu_hours or 0.0)} GPU-hours" if any(run.gpus for run in cost.runs) else ""
    nodes = "" if cost.node_hours is None else f" ({_hours(cost.node_hours)} node-hours)"
    return f"{hours}{nodes}".strip()


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
