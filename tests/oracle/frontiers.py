"""What is true of frontiers: kinds of the overview, and values that headlines cite, from the raw probes alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tests.oracle import kinds
from tests.oracle.kinds import CELLS, NONE, PANELS, listed, said, span
from tests.oracle.truth import GIB, Run, Study, Value

UNIT = "tokens per sample"  # which the study seeks
UNKNOWN = ("timeout", "failed")


class Sought:
    """A run's frontier."""

    def __init__(self, run: Run) -> None:
        record = json.loads((run.folder / "attempt-1" / "frontier.json").read_text())
        self.run, self.record, self.probes = run, record, record["probes"]
        fits = [probe for probe in self.probes if probe["outcome"] == "fits"]
        self.best: dict[str, Any] | None = max(fits, key=lambda probe: probe["value"], default=None)
        self.largest = self.best["value"] if self.best else None
        above = [probe for probe in self.probes if probe["value"] > (self.largest or 0)]
        self.bound: dict[str, Any] | None = min(above, key=lambda probe: probe["value"], default=None)
        self.sure = bool(self.bound) and self.bound["outcome"] not in UNKNOWN

    @property
    def wide(self) -> bool:
        """Whether the gap to the next value, less a multiple, is as wide as was asked of the whole."""
        if not (self.sure and self.bound and self.largest):
            return False
        gap, share = self.bound["value"] - self.largest, self.run.config["frontier"].get("resolution", 0.03)
        return gap > self.record["multiple"] and gap - self.record["multiple"] >= share * self.largest

    @property
    def text(self) -> str:
        """The largest, as far as it is known."""
        if self.sure and self.bound and self.largest:
            gap = self.bound["value"] - self.record["multiple"] - self.largest
            return f"{self.largest} to {self.largest + gap}" if gap else f"{self.largest}"
        if self.largest:
            return f"{'' if self.sure else 'at least '}{self.largest}"
        if not (self.bound and self.sure):
            return "not known"
        return "none" if self.bound["value"] == self.record["multiple"] else f"below {self.bound['value']}"

    @property
    def error(self) -> float | None:
        """Of the forecast, in percent of the largest that fits."""
        return (
            100 * (self.record["foreseen"] / self.largest - 1)
            if self.largest and self.sure and not self.wide
            else None
        )

    @property
    def card(self) -> str:
        """Its memory."""
        share, device = self.record["memory_fraction"], self.run.device
        emulated = f"emulated by {100 * share} % of " if share < 1 else ""
        return f"{self.record['card_bytes'] / GIB} GiB, {emulated}the memory of {device}"


def frontiers(study: Study) -> dict[str, Sought]:
    """By group, each of one run."""
    if study.task != "frontier":
        return {}
    return {label: Sought(runs[0]) for label, runs in study.groups.items()}


def cards(study: Study) -> str:
    """The memories, each once."""
    return "; ".join(dict.fromkeys(frontier.card for frontier in frontiers(study).values()))


def off(study: Study) -> str:
    """The forecast's errors, from the least to the largest."""
    errors = [frontier.error for frontier in frontiers(study).values() if frontier.error is not None]
    return " to ".join(dict.fromkeys((f"{min(errors):+}", f"{max(errors):+}")))


def by_size(study: Study) -> list[tuple[str, list[str]]]:
    """The texts of the frontiers, the largest first, each with the labels of all that have it."""
    frontiers_by_label = {label: frontier for label, frontier in frontiers(study).items() if frontier.largest}
    ordered = sorted(frontiers_by_label, key=lambda label: -int(frontiers_by_label[label].largest or 0))
    texts = dict.fromkeys(frontiers_by_label[label].text for label in ordered)
    return [(text, [label for label in ordered if frontiers_by_label[label].text == text]) for text in texts]


def outermost(study: Study) -> list[tuple[str, list[str]]]:
    """Those of the largest and of the smallest."""
    texts = by_size(study)
    return texts if len(texts) == 1 else [texts[0], texts[-1]]


def memory_errors(study: Study) -> list[float]:
    """Of the forecast of each probe that did its steps, in percent of its peak."""
    return [
        100 * (probe["forecast_bytes"] / probe["peak_bytes"] - 1)
        for frontier in frontiers(study).values()
        for probe in frontier.probes
        if probe["outcome"] in ("fits", "edge")
    ]


@said("ran")
def sought(study: Study) -> Iterator[str]:
    if searches := frontiers(study):
        probes = sum(len(search.probes) for search in searches.values())
        yield (
            f"The most {UNIT} was sought in {len(study.runs)} runs ({cards(study)}), of which {len(study.done)} "
            f"completed, by {probes} probes of three training steps of a llama."
        )


@said("answer", before=kinds.no_result)
def most_that_fits(study: Study) -> Iterator[str]:
    if frontiers(study):
        texts = by_size(study)
        shown = texts if len(texts) < 4 else outermost(study)
        answer = listed([f"{text} {UNIT} under {listed(labels)}" for text, labels in shown])
        remaining = sum(len(labels) for _, labels in texts) - sum(len(labels) for _, labels in shown)
        addition = (
            f", and between these under {remaining} more group{'s' * (remaining > 1)}" if remaining else ""
        )
        yield f"The most that fits is {answer}{addition}; the forecast was off by {off(study)} %."


@said("limit")
def three_steps(study: Study) -> Iterator[str]:
    if frontiers(study):
        yield "Fitting is of three steps on random tokens, without audits, checkpoints or a profile."
        yield "Each frontier was sought once: another search may end elsewhere."
        yield (
            "A smaller card is emulated by a limit on this one's memory: a card of that size has other kernels, "
            "another context of CUDA, or another machine around it."
        )


@said("limit")
def open_ended(study: Study) -> Iterator[str]:
    if labels := [label for label, frontier in frontiers(study).items() if not frontier.sure]:
        yield f"Whether more fits under {listed(labels)}: the next probe hung or died, or there was none."


@said("limit")
def less_exact(study: Study) -> Iterator[str]:
    if wide := [label for label, frontier in frontiers(study).items() if frontier.wide]:
        yield f"Under {listed(wide)} the search ended before the frontier was as exact as was asked."


@said("limit")
def holes(study: Study) -> Iterator[str]:
    gaps = [
        label
        for label, frontier in frontiers(study).items()
        if any(
            probe["value"] < (frontier.largest or 0) and probe["outcome"] not in ("fits", *UNKNOWN)
            for probe in frontier.probes
        )
    ]
    if gaps:
        yield f"Under {listed(gaps)} some values below the largest do not fit: fitting is not monotone."


def _cell(text: Callable[[Sought], str]) -> Callable[[Study, str], tuple[str, str]]:
    return lambda study, label: (text(frontiers(study)[label]), "")


def gib(size: float | None) -> str:
    """Bytes in GiB."""
    return NONE if size is None else f"{size / GIB}"


def signed(error: float | None) -> str:
    """With its sign."""
    return NONE if error is None else f"{error:+}"


def next_larger(frontier: Sought) -> str:
    """The smallest value above the largest of which a probe did not fit, and how it ended."""
    if frontier.bound:
        return f"{frontier.bound['value']} ({frontier.bound['outcome']})"
    return "none: the most that may be tried" if frontier.largest == frontier.record["most"] else "none tried"


def _probes(frontier: Sought) -> str:
    unknown = sum(probe["outcome"] in UNKNOWN for probe in frontier.probes)
    return f"{len(frontier.probes)}" + (f" {unknown} hung or died" if unknown else "")


CELLS["frontiers"] = {
    "Sought": _cell(lambda one: UNIT),
    "Largest that fits": _cell(lambda one: one.text),
    "Forecast": _cell(lambda one: f"{one.record['foreseen']}"),
    "Its error, %": _cell(lambda one: signed(one.error)),
    "Next that does not": _cell(next_larger),
    "Peak GiB": _cell(lambda one: gib(one.best and one.best["peak_bytes"])),
    "Its forecast, GiB": _cell(lambda one: gib(one.best and one.best["forecast_bytes"])),
    "Error, %": _cell(
        lambda one: signed(one.best and 100 * (one.best["forecast_bytes"] / one.best["peak_bytes"] - 1))
    ),
    "Probes": _cell(_probes),
    "Outcome": CELLS["groups"]["Outcome"],
}


def _bar(value: Callable[[Sought], float | None]) -> Callable[[Study, str], Value | None]:
    def bar_value(study: Study, label: str) -> Value | None:
        middle = value(frontiers(study)[label])
        return None if middle is None else Value(middle)

    return bar_value


PANELS.update({
    f"Largest that fits, {UNIT}": _bar(lambda one: one.largest),
    f"Forecast, {UNIT}": _bar(lambda one: one.record["foreseen"]),
    "Peak GiB at the largest": _bar(lambda one: one.best and one.best["peak_bytes"] / GIB),
    "Probes": _bar(lambda one: len(one.probes)),
})  # fmt: skip


def lengths(study: Study) -> str:
    """Of the samples of all runs."""
    return f"up to {span([run.config['frontier']['sequence_length'] for run in study.runs])}"
