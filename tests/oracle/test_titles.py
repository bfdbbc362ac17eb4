"""Headlines of figures cite true values of the groups that they name."""

from __future__ import annotations

import re

import pytest

from tests.oracle.calls import backends
from tests.oracle.conftest import NAMES, Built
from tests.oracle.kinds import is_grid
from tests.oracle.pages import NUMBER, rounds
from tests.oracle.titles import TITLES
from tests.oracle.truth import Study

# Numbers of a headline that are no values: of steps, groups, repeats and GPUs.
_COUNTS = re.compile(
    r"step [\d,]+|\b(?:all|and) \d+ (?:groups|more)|repeat of \d+|\d+ repeats|up to \d+ records|\bon \d+ GPUs|at \d+ GPUs|last tenth|=\d+|(?:dim|sequence length|batch|keys of a tile|queries of a tile) [\d,]*\d(?=[,):])| in \d+ x \d+|[BTHD]\d+|\b8 bits|^Figure \d+\. "
)
_FASTER = re.compile(r"(?:([\d.]+) to )?([\d.]+) % (faster|slower|above|below): ([^;(]+)")
_PARTED = re.compile(r" and |, ")


def headlines(built: Built, name: str) -> dict[str, str]:
    """The headlines of a report by the name of their figure."""
    titles = {}
    for file in sorted((built.out / name).glob("*.html")):
        if file.stem != "print" and not file.stem.startswith("run-"):
            for title in built.page(name, file.stem).every("h2"):
                if title.text.startswith("Figure "):
                    titles[title.attributes["id"]] = title.text
    return titles


@pytest.mark.parametrize("name", NAMES)
def test_headlines(built: Built, name: str) -> None:
    """Each number is a true value: of the groups in the brackets behind it, or else of some group."""
    study, false = built.studies[name], []
    for figure, title in headlines(built, name).items():
        assert figure in TITLES, f"the headline of {figure} has no oracle: {title}"
        text = _COUNTS.sub(lambda count: " " * len(count[0]), title)
        for number in NUMBER.finditer(text):
            brackets = re.match(r"[^\d(;]*\(([^)]*)\)", title[number.end() :])
            listed_labels = parts(brackets[1], study) if brackets else []
            labels = [label for label in groups(study) if {label, in_words(label)} & {*listed_labels}]
            values = [value for label in labels or groups(study) for value in TITLES[figure](study, label)]
            if not any(
                rounds(number[0], f"{value}") or rounds(number[0], f"{abs(value)}") for value in values
            ):
                false.append((figure, title, number[0], labels, values))
    assert not false


def groups(study: Study) -> list[str]:
    """Groups with values, or backends."""
    if study.task == "frontier":
        return list(study.groups)
    return backends(study) if study.task == "attention" else study.measured


def parts(names: str, study: Study) -> list[str]:
    """The labels of a list, which has semicolons where labels have commas."""
    separator = "; | and " if any(", " in label for label in study.groups) else " and |, "
    return re.split(separator, names.strip())


def in_words(label: str) -> str:
    """`flash, dim 256` of `flash, dim=256`."""
    return re.sub(r"=(\d+)", lambda size: f" {int(size[1]):,d}", label).replace("_", " ")


@pytest.mark.parametrize("name", NAMES)
def test_who_is_faster(built: Built, name: str) -> None:
    """`8.5 % faster: flash` is of groups whose median ratio says so, and of several runs; `throughout` of each step."""
    study, titles = built.studies[name], headlines(built, name)
    for low, high, word, labels in _FASTER.findall(titles.get("ratios", "")) if not is_grid(study) else ():
        changes = {}
        for label in _PARTED.split(labels.strip()):
            changes[label] = change = 100 * (study.rate_ratio(label).middle - 1)
            single = len(study.completed(label)) == 1 or len(study.completed(study.against(label) or "")) == 1
            expected = (
                ("above" if change > 0 else "below") if single else ("faster" if change > 0 else "slower")
            )
            assert word == expected, (label, titles["ratios"])
        sizes = sorted(map(abs, changes.values()))
        assert rounds(low or high, f"{sizes[0]}") and rounds(high, f"{sizes[-1]}"), (
            changes,
            titles["ratios"],
        )
    throughout = {"faster throughout": (1, None), "slower throughout": (None, 1), "as fast": (1, 1)}
    for words, (lowest, highest) in throughout.items():
        pattern = r"(.+?)(?=; [a-z ]+: |$| and \d+ more)" if is_grid(study) else "([^;]+)"
        for labels in re.findall(f"{words}: {pattern}", titles.get("tokens_against_baseline", "")):
            for label in parts(labels, study):
                ratios = by_step(study, label)
                assert lowest is None or min(ratios) >= lowest - 1e-9, (label, words)
                assert highest is None or max(ratios) <= highest + 1e-9, (label, words)


def by_step(study: Study, label: str) -> list[float]:
    """The rate over the baseline's at each step that both count, over the runs of each."""
    seconds = []
    for group in (label, study.against(label) or ""):
        runs = [
            {record["step"]: record["step_seconds"] / run.tokens for record in run.counted}
            for run in study.completed(group)
        ]
        seconds.append({step: sum(run[step] for run in runs) / len(runs) for step in runs[0]})
    own, base = seconds
    return [base[step] / own[step] for step in own if step in base]


def test_every_figure_is_tried(built: Built) -> None:
    """No figure is listed that no study shows."""
    shown = {figure for name in NAMES for figure in headlines(built, name)}
    assert set(TITLES) <= shown
