"""What was run, setting by setting: one table for the overview, the methods and a write-up. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from analysis.report import tasks
from analysis.report.answer.ran import varying
from analysis.report.topics import Setting, TextOf, capped, groups, options, value
from analysis.stats import grouped
from analysis.verdicts import values
from analysis.verdicts.groups import declared, factors, looks
from analysis.wording import group_name, listed
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts
    from analysis.report.rows import Run

_CHANGE = ("--only", "--repeats", "--set")  # options of a launch that change what the study says
_CLOCKS = {
    "power_limit_watts": "power limit {:,.0f} W",
    "sm_mhz": "GPU clock {:,.0f} MHz",
    "memory_mhz": "memory clock {:,.0f} MHz",
}
_LETTERS = 8  # of a GPU's UUID, which tell it from others
_HELD = {"power_capped_seconds": "by the power limit", "slowed_seconds": "by heat or the power supply"}


def setup(facts: Facts, comparison: StudyComparison) -> list[Setting]:
    """Every topic, in the order of the table: those of the task first."""
    task = tasks.of_study(facts.runs)
    return [
        *task.settings(facts.runs),
        *_design(facts, comparison),
        *_conditions(facts.runs, comparison, task),
    ]


def launched(runs: Sequence[Run]) -> list[str]:
    """What each launch gave that the study does not say: `--only seed=0 --set train.steps=30`."""
    commands = dict.fromkeys(tuple(run["command"] or ()) for run in runs)
    given = (
        " ".join(f"{option} {text}" for option in _CHANGE for text in options(command, option))
        for command in commands
    )
    return list(dict.fromkeys(filter(None, given)))


def _design(facts: Facts, comparison: StudyComparison) -> Iterator[Setting]:
    """What varies, how often, in which order, against what, and what the launch changed of it."""

    def margins(run: Run) -> str:
        stated = (run["design"] or {}).get("margins") or {}
        loss, rate = stated.get("loss"), stated.get("tokens_per_second")
        texts = [] if loss is None else [f"loss {loss:g} nats per token"]
        texts += [] if rate is None else [f"tokens per second {100 * rate:.3g} %"]
        if run["imported"]:
            return ", ".join([*texts, "stated at the import"]) if texts else "none was stated at the import"
        return ", ".join(texts) or "none was stated before the runs"

    runs, axes, baseline = facts.runs, varying(facts.runs), declared(facts.runs)
    imported = any(run["imported"] for run in runs)
    by_label = dict[str, Mapping[str, Any]]()  # the factors that the study's own labels stand for
    for run in runs:
        if run["given_label"]:
            by_label.setdefault(run["label"], factors(run))
    labels = [
        f"{group_name(label)}: {_factors({axis: given[axis] for axis in axes if axis in given})}"
        for label, given in by_label.items()
    ]
    varied = "nothing: all runs share one configuration, apart from seed and repeat"
    if axes:
        varied = f"{listed([f'`{axis}`' for axis in axes])}: {counted(len(facts.groups), 'group')}"
    seeds = {run["seed"] for run in runs}
    numbers = [*map(str, sorted(seed for seed in seeds if seed is not None)), *["unknown"] * (None in seeds)]
    none = "none named at the import" if imported else "none declared"
    for topic, text, change in (
        ("Varied", varied, _given(runs, "--only")),
        ("Labels", "; ".join(capped(labels, "labels")), ""),
        ("Scale", value(runs, lambda run: run["scale"], "the runs were imported"), ""),
        ("Seeds", listed(numbers), ""),
        ("Repeats", _repeats(runs), _given(runs, "--repeats")),
        ("Order of the runs", comparison.order, ""),
        ("Blocks", "; ".join(capped(_blocks(runs), "blocks")), ""),
        ("Baseline", _factors(baseline) if baseline else none, ""),
        ("Margins", value(runs, margins), ""),
        ("Stopping rule", "unknown: the runs were imported" if imported else _stopping(facts), ""),
    ):
        if text:
            yield Setting(topic, text, "Design", change)


def _blocks(runs: Sequence[Run]) -> list[str]:
    """On which machines and days each block ran, and what it lacks: `2: on vm, GPU 1a2b3c4d, 2026-03-01`.

    Blocks next to each other of which the same is true are one entry.
    """
    by_block = grouped([run for run in runs if run["block"] is not None], lambda run: run["block"] or 0)
    texts = {number: _place_and_day(by_block[number]) for number in sorted(by_block)}
    entries = []
    for text, alike in itertools.groupby(texts, key=texts.__getitem__):
        numbers = list(alike)
        of = listed([f"{number}" for number in numbers])
        entries.append(f"{of if len(numbers) < 3 else f'{numbers[0]} to {numbers[-1]}'}: {text}")
    return entries


def _place_and_day(block: Sequence[Run]) -> str:
    started = [run for run in block if run["started_at"]]
    if not started:
        return "not started"
    nodes = sorted({f"`{run['node']}`" for run in started if run["node"]})
    gpus = sorted({run["gpu_uuid"].removeprefix("GPU-")[:_LETTERS] for run in started if run["gpu_uuid"]})
    days = sorted({f"{run['started_at']:%Y-%m-%d}" for run in started})
    parts = [f"on {listed(nodes)}"] if nodes else []
    if gpus:
        # The records of a run of several name one at most.
        more = any(run["gpus"] and (run["gpus"] > 1 or not run["gpu_uuid"]) for run in started)
        parts.append(f"GPU{'s' * (len(gpus) > 1 or more)} {listed([*gpus, *['others'] * more])}")
    parts.append(" to ".join(dict.fromkeys((days[0], days[-1]))))
    if waiting := list(dict.fromkeys(run["label"] for run in block if run["outcome"] is None)):
        parts.append(f"without {groups(waiting)}")
    return ", ".join(parts)


def _factors(given: Mapping[str, Any]) -> str:
    """Each as a study writes it."""
    written = (str(value).lower() if isinstance(value, bool) else value for value in given.values())
    return ", ".join(f"`{axis}` {value}" for axis, value in zip(given, written, strict=True))


def _given(runs: Sequence[Run], option: str) -> str:
    """What the launches gave an option."""
    texts = dict.fromkeys(text for run in runs for text in options(run["command"], option))
    return "; ".join(f"`{option} {text}`" for text in texts)


def _repeats(runs: Sequence[Run]) -> str:
    """How many runs of each configuration, seed included, there are."""
    cells = Counter((run["label"], run["seed"]) for run in runs)
    by_count = grouped(cells, cells.__getitem__)
    if len(by_count) == 1:
        cell = "group and seed" if any(run["seed"] is not None for run in runs) else "group"
        return f"{counted(next(iter(by_count)), 'run')} of each {cell}"
    spread = [
        f"{count} ({groups(list(dict.fromkeys(label for label, _ in having)))})"
        for count, having in sorted(by_count.items())
    ]
    return f"runs of each group and seed: {'; '.join(capped(spread, 'numbers'))}"


def _stopping(facts: Facts) -> str:
    runs = facts.runs
    if until := looks(runs):
        return (
            f"repeats until the interval of each ratio to the baseline is within {100 * until[0]:.3g} % on "
            f"either side, at most {until[1]}"
        )
    first = min((run["ended_at"] for run in runs if run["ended_at"]), default=None)
    added = sum(first is not None and run["created_at"] > first for run in runs)
    if not added and not facts.removed:
        return f"none: the number of runs was fixed in advance{_so_far(runs)}"
    changes = [f"{counted(added, 'run')} added after the first result"] * (added > 0)
    changes += [f"{counted(len(facts.removed), 'run')} removed from the study"] * bool(facts.removed)
    what = "none, and the number of runs was not fixed in advance"
    return f"{what}: {' and '.join(changes)}{_so_far(runs)}"


def _so_far(runs: Sequence[Run]) -> str:
    """How many blocks have run, while some runs of a study in blocks wait for another launch or their end."""
    blocks = {run["block"] for run in runs}
    waiting = {run["block"] for run in runs if run["outcome"] is None}
    if None in blocks or not waiting:
        return ""
    return f"; blocks that have ended so far: {len(blocks - waiting)} of {len(blocks)}"


def _conditions(
    every: Sequence[Run], comparison: StudyComparison, task: tasks.ReportTask
) -> Iterator[Setting]:
    """The machine, the software and the code."""

    def clocks(run: Run) -> str | None:
        columns = dict[str, Any](run)
        texts = [text.format(columns[name]) for name, text in _CLOCKS.items() if columns[name] is not None]
        return ", ".join(texts) or None

    def peak(run: Run) -> str | None:
        rate = values.peak(run)
        return rate and f"{rate} per GPU ({run['peak_source'] or 'its source was not recorded'})"

    runs = [run for run in every if run["device"] or run["imported"]]
    on_gpu = [run for run in runs if run["gpus"]]
    used = values.devices(runs)
    several = len(used) > 1  # then each is followed by its groups
    yield Setting("Device", value(runs, values.device) if several or not used else used[0], "Machine")
    yield Setting("Host", value(runs, lambda run: run["node"] and f"`{run['node']}`"), "Machine")
    if on_gpu:
        shares = {by: values.held_back(on_gpu, column) for column, by in _HELD.items()}
        throttled = ", ".join(
            f"{by} for {100 * share:.0f} % of the wall time, start-up included"
            if share >= 0.005
            else f"{by} at no time"
            for by, share in shares.items()
            if share is not None
        )
        amd = all((run["device"] or "").startswith("AMD ") for run in on_gpu)
        why = "not measured on AMD GPUs" if amd else "not recorded"
        yield Setting("Clocks and power", value(on_gpu, clocks, why), "Machine")
        yield Setting("Clock throttling", throttled or f"unknown: {why}", "Machine")
        if task.has_mfu:
            of_mfu = value(on_gpu, peak, "it is in no data sheet known here")
            yield Setting("Peak for MFU", of_mfu, "Machine")
    yield Setting("Runs side by side", _side_by_side(runs), "Machine")
    yield Setting("Load", comparison.load, "Machine")
    unknown = any(run["gpus"] is None and run["imported"] for run in runs)
    driver = value(runs, values.DRIVER.text_of) if on_gpu or unknown else "none: no run used a GPU"
    yield Setting("Driver", driver, "Software")
    packages = [f"{package} {' / '.join(versions)}" for package, versions in values.packages(runs).items()]
    yield Setting("Packages", ", ".join(packages) or "unknown: not recorded", "Software")
    own = [run for run in every if not run["imported"]]
    of_code: tuple[tuple[str, TextOf], ...] = (
        ("Commit", values.commit),
        (
            "Code that the jobs ran",
            lambda run: run["code"] and f"`{run['code'][:12]}` (SHA-256 of the snapshot)",
        ),
        ("Study file", lambda run: run["study_file"] and f"`{run['study_file']}`"),
    )
    for topic, text_of in of_code:
        text = value(own, text_of) if own else "unknown: the runs were imported"
        yield Setting(topic, text, "Code")


def _side_by_side(runs: Sequence[Run]) -> str:
    """The largest number of attempts on one machine at one time: between its attempts a run only waits."""
    changes: dict[str, list[tuple[datetime, int]]] = {}
    for attempt in (attempt for run in runs for attempt in run["history"]):
        if attempt["node"] and attempt["started_at"] and attempt["ended_at"]:
            start_and_end = [(attempt["started_at"], 1), (attempt["ended_at"], -1)]
            changes.setdefault(attempt["node"], []).extend(start_and_end)
    if not changes:
        return "unknown: not recorded"
    most = max(
        max(itertools.accumulate(change for _, change in sorted(on_node))) for on_node in changes.values()
    )
    return "no: one run at a time on each machine" if most == 1 else f"up to {most} at a time on one machine"
