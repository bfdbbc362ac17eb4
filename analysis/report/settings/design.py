"""The design: what varies, how often, in which order, against what, and what the launch changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.report.answer.ran import varying
from analysis.report.settings.values import UNKNOWN, Row, Setting, capped, groups, options, value
from analysis.stats import grouped
from analysis.verdicts.groups import declared, factors, looks
from analysis.wording import group_name, listed
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts

PART = "Design"
_CHANGE = ("--only", "--repeats", "--set")  # options of a launch that change what the study says


def launched(runs: Sequence[Row]) -> list[str]:
    """What each launch gave that the study does not say: `--only seed=0 --set train.steps=30`."""
    commands = {tuple(run["command"] or ()): run for run in runs}
    given = (
        " ".join(f"{option} {text}" for option in _CHANGE for text in options(run, option))
        for run in commands.values()
    )
    return list(dict.fromkeys(filter(None, given)))


def settings(facts: Facts, comparison: StudyComparison) -> Iterator[Setting]:
    """The lines of this part."""
    runs = facts.runs
    for topic, said, changed in (
        ("Varied", _varied(facts), _only(runs)),
        ("Labels", _labels(runs), ""),
        ("Scale", value(runs, lambda run: run["scale"], "the runs were imported"), ""),
        ("Seeds", _numbers({run["seed"] for run in runs}), ""),
        ("Repeats", _repeats(runs), "; ".join(f"`--repeats {each}`" for each in _given(runs, "--repeats"))),
        ("Order of the runs", comparison.order, ""),
        ("Baseline", _baseline(runs), ""),
        ("Margins", value(runs, _margins), ""),
        ("Stopping rule", _stopping(facts), ""),
    ):
        if said:
            yield Setting(topic, said, changed, PART)


def _varied(facts: Facts) -> str:
    axes = varying(facts.runs)
    if not axes:
        return "nothing: all runs share one configuration, apart from seed and repeat"
    return f"{listed([f'`{axis}`' for axis in axes])}: {counted(len(facts.groups), 'group')}"


def _labels(runs: Sequence[Row]) -> str:
    """What the labels that the study gives stand for; empty if it gives none."""
    axes, groups = varying(runs), dict[str, Row]()
    for run in runs:
        if run["given_label"]:
            groups.setdefault(run["label"], factors(run))
    said = [
        f"{group_name(label)}: {_factors({axis: given[axis] for axis in axes if axis in given})}"
        for label, given in groups.items()
    ]
    return "; ".join(capped(said, "labels"))


def _factors(given: Mapping[str, Any]) -> str:
    """Each as a study writes it."""
    written = (str(value).lower() if isinstance(value, bool) else value for value in given.values())
    return ", ".join(f"`{axis}` {value}" for axis, value in zip(given, written, strict=True))


def _only(runs: Sequence[Row]) -> str:
    return "; ".join(f"`--only {each}`" for each in _given(runs, "--only"))


def _given(runs: Sequence[Row], option: str) -> list[str]:
    return list(dict.fromkeys(text for run in runs for text in options(run, option)))


def _numbers(found: set[int | None]) -> str:
    known = sorted(value for value in found if value is not None)
    more = ["unknown"] if None in found else []
    return listed([*map(str, known), *more])


def _repeats(runs: Sequence[Row]) -> str:
    """How many runs of each configuration, seed included, there are."""
    cells = Counter((run["label"], run["seed"]) for run in runs)
    counts = grouped(cells, cells.__getitem__)
    if len(counts) == 1:
        known = "group and seed" if any(run["seed"] is not None for run in runs) else "group"
        return f"{counted(next(iter(counts)), 'run')} of each {known}"
    spread = [
        f"{count} ({groups(list(dict.fromkeys(label for label, _ in mine)))})"
        for count, mine in sorted(counts.items())
    ]
    return f"runs of each group and seed: {'; '.join(capped(spread, 'numbers'))}"


def _baseline(runs: Sequence[Row]) -> str:
    found = declared(runs)
    none = "none named at the import" if any(run["imported"] for run in runs) else "none declared"
    return _factors(found) if found else none


def _margins(run: Row) -> str:
    found = (run["design"] or {}).get("margins") or {}
    loss, rate = found.get("loss"), found.get("tokens_per_second")
    said = [
        "" if loss is None else f"loss {loss:g} nats per token",
        "" if rate is None else f"tokens per second {100 * rate:.3g} %",
    ]
    if run["imported"]:
        text = ", ".join(filter(None, said))
        return f"{text}, stated at the import" if text else "none was stated at the import"
    return ", ".join(filter(None, said)) or "none was stated before the runs"


def _stopping(facts: Facts) -> str:
    runs, until = facts.runs, looks(facts.runs)
    if any(run["imported"] for run in runs):
        return f"{UNKNOWN}: the runs were imported"
    if until:
        return (
            f"repeats until the interval of each ratio to the baseline is within {100 * until[0]:.3g} % on "
            f"either side, at most {until[1]}"
        )
    first = min((run["ended_at"] for run in runs if run["ended_at"]), default=None)
    added = sum(first is not None and run["created_at"] > first for run in runs)
    if not added and not facts.removed:
        return "none: the number of runs was fixed in advance"
    changes = [f"{counted(added, 'run')} added after the first result"] * (added > 0)
    changes += [f"{counted(len(facts.removed), 'run')} removed from the study"] * bool(facts.removed)
    return f"none, and the number of runs was not fixed in advance: {' and '.join(changes)}"
