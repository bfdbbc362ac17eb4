"""What the tables of runs share: short labels and the newest figures of each run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from runner.state.ledger import RunState
from runner.state.runs import last_step
from runner.state.tasks import label

Factors = Mapping[str, object]


def labels(states: Sequence[RunState], without: Sequence[str] = ()) -> list[str]:
    """A label for each run: the factors, `repeat` among them, in which the runs of its study differ.

    Args:
        without: factors to leave out.
    """
    studies = defaultdict(list)
    for state in states:
        studies[state.brief.study].append(state.brief.varied)
    shown = {study: _differing(found) for study, found in studies.items()}
    return [
        label(state.brief, [axis for axis in shown[state.brief.study] if axis not in without])
        for state in states
    ]


def _differing(found: Sequence[Factors]) -> list[str]:
    """The factors that differ between these runs, in the study's order; all of the study's if none does."""
    axes = list(dict.fromkeys(axis for factors in found for axis in factors if axis != "repeat"))
    differing = [axis for axis in [*axes, "repeat"] if len({str(factors.get(axis)) for factors in found}) > 1]
    return differing or axes


def filled(
    columns: Sequence[str], rows: Sequence[Sequence[str]], states: Sequence[RunState]
) -> tuple[list[str], list[list[str]]]:
    """The table of these runs without columns that stay empty for all of their tasks."""
    tasks = {state.brief.task for state in states}
    places = [
        place
        for place, column in enumerate(columns)
        if not tasks or tasks & _HAVING.get(column.rpartition(" ")[2], tasks)
    ]
    return [columns[place] for place in places], [[row[place] for place in places] for row in rows]


_HAVING = {"loss": {"training"}, "tokens/s": {"training", "inference"}}


def newest(state: RunState) -> tuple[float | None, float | None]:
    """Loss and tokens per second of a run's newest step record; None if there is none."""
    last = last_step(state)
    return (last.loss, last.tokens_per_second) if last else (None, None)


def written(loss: float | None, tokens_per_second: float | None) -> list[str]:
    """Loss and rate as a table shows them; empty if unknown."""
    return [
        "" if loss is None else f"{loss:.3f}",
        "" if tokens_per_second is None else f"{tokens_per_second:,.0f}",
    ]
