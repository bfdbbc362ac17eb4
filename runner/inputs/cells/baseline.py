"""Whether a study's baseline picks some of its groups, and leaves others to compare with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from model.record.records import Outcome
from runner.inputs.cells.options import Setting
from runner.inputs.cells.where import idle, matches
from runner.inputs.document import KeyPath, Problem
from runner.inputs.settings import Scalar
from runner.inputs.study import Study, Where


def wrong_factors(study: Study, scale: str, cells: Sequence[Mapping[str, Setting]]) -> Iterator[Problem]:
    """What is wrong with the baseline, by the factors of all cells, base included."""
    if (baseline := study.design(scale).baseline) is None:
        return
    if "seed" in baseline:
        text = "seeds are not groups: runs are paired with the baseline seed by seed; leave out `seed`"
        yield Problem(study.key_at(scale, "baseline", "seed"), text)
        return
    where: Where = {**baseline}
    if not (set(where) <= set(study.axes) and any(matches(cell, where) for cell in cells)):
        yield idle(study, where, _place(study, scale), cells)
    elif all(matches(cell, where) for cell in cells):
        text = "every cell is the baseline, so there is nothing to compare it with"
        yield Problem(study.key_at(scale, "baseline"), f"{text}: name a factor that varies")


def never_completes(
    study: Study, scale: str, cells: Iterable[tuple[Mapping[str, Scalar], Outcome]]
) -> Iterator[Problem]:
    """A baseline whose runs are all expected to end otherwise: it has nothing to compare with.

    Args:
        cells: the factors of each, and its expected outcome.
    """
    baseline = study.design(scale).baseline or {}
    endings = {
        expected
        for factors, expected in cells
        if baseline and all(factors[axis] == value for axis, value in baseline.items())
    }
    if endings and Outcome.COMPLETED not in endings:
        text = f"the baseline's runs are expected to end as {', '.join(sorted(endings))}"
        advice = "name a baseline that completes" + (f" at scale {scale}" if study.file.scales else "")
        yield Problem(study.key_at(scale, "baseline"), f"{text}: {advice}")


def _place(study: Study, scale: str) -> KeyPath:
    overlay, place = study.scale(scale)
    return (*place, "baseline") if overlay.baseline is not None else ("baseline",)
