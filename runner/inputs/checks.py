"""Checks the cells of a study together: rules, baseline, labels, twins, tasks; and doubts what it says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from analysis.wording import listed
from model import attention
from model.record import backends
from model.record.config import TASKS
from model.record.errors import did_you_mean
from model.record.outcome import Outcome
from runner.inputs.cells import (
    Cell,
    common_settings,
    impossible_values,
    list_candidates,
    matches,
    no_match,
    possible_settings,
)
from runner.inputs.document import InvalidFile, KeyPath, Problem
from runner.inputs.options import usable_advice
from runner.inputs.settings import Scalar, Setting, flatten
from runner.inputs.study import MAX_LABEL, PLACE, Rule, Study, Where

LABEL = "label"  # where a cell's marks have the key that gave it
REPORTED = "reported {}"  # where they have each entry of what others report of it
_MANY = 3  # factors from which on names leave out what is as in the baseline
_SHOWN = 3  # seeds that a message names
_GroupName = frozenset[tuple[str, str]]  # what the name of a group says: a value by factor


def idle_rules(
    study: Study, rules: Sequence[tuple[Rule, KeyPath]], cells: Sequence[Mapping[str, Setting]]
) -> Iterator[Problem]:
    """Rules that match no cell, have a value that none can have, or set a factor.

    Args:
        cells: the factors of all cells, base included.
    """
    # Listed once, not for each rule: a study can have many rules and long axes.
    settings = cache(lambda scales: [*possible_settings(study, *scales)])
    for rule, path in rules:
        scales = (str(path[1]),) if path[0] == "scales" else study.scale_names
        yield from (wrong := impossible_values(study, rule.where, (*path, "where"), settings(scales)))
        if not wrong and not any(matches(cell, rule.where) for cell in cells):
            yield no_match(study, rule.where, (*path, "where"), cells)
        for dotted, _, place in flatten(rule.set, (*path, "set")):
            if dotted in study.axes:
                text = f"'{dotted}' is a factor of this study, so rules cannot change it"
                yield Problem(study.document.mark(place), text)


def idle_reported(study: Study, scale: str, cells: Sequence[Mapping[str, Setting]]) -> Iterator[Problem]:
    """Numbers of others that are about no cell of any scale, or have a value that none can have.

    Args:
        cells: the factors of all cells at this scale, base included.
    """
    settings = [*possible_settings(study, *study.scale_names)] if study.file.reported else []
    for i, entry in enumerate(study.file.reported):
        where, path = entry.where, ("reported", i, "where")
        if "seed" in where:
            text = "seeds are not groups, and reported numbers are of a whole group: leave out `seed`"
            yield Problem(study.document.mark((*path, "seed")), text)
            continue
        yield from (wrong := impossible_values(study, where, path, settings))
        if wrong or any(matches(cell, where) for cell in cells):
            continue
        all_cells = [*cells]
        for name in study.scale_names:
            if name != scale:
                with suppress(InvalidFile):  # that scale has problems of its own
                    all_cells += _factors(study, name)
        if not any(matches(cell, where) for cell in all_cells):
            yield no_match(study, where, path, all_cells)


def reported_elsewhere(study: Study, scale: str) -> list[int]:
    """The numbers, from 1, of the entries of `reported` that are about no cell at a scale."""
    cells = [*_factors(study, scale)] if study.file.reported else []
    return [
        number
        for number, entry in enumerate(study.file.reported, 1)
        if not any(matches(cell, entry.where) for cell in cells)
    ]


def _factors(study: Study, scale: str) -> Iterator[Mapping[str, Setting]]:
    """The factors of all cells at a scale, base included. Raises InvalidFile: it has problems of its own."""
    overlay, place = study.scale(scale)
    common = common_settings(study, overlay, place)
    shared = {axis: common[axis] for axis in study.axes if axis in common}
    yield from (shared | cell for cell, _ in list_candidates(study, overlay, place, 1))


def wrong_baseline(study: Study, scale: str, cells: Sequence[Mapping[str, Setting]]) -> Iterator[Problem]:
    """A baseline that picks no cell, or leaves none to compare with.

    Args:
        cells: the factors of all cells, base included.
    """
    if (baseline := study.design(scale).baseline) is None:
        return
    if "seed" in baseline:
        text = "seeds are not groups: runs are paired with the baseline seed by seed; leave out `seed`"
        yield Problem(study.key_at(scale, "baseline", "seed"), text)
        return
    where: Where = {**baseline}
    if not any(matches(cell, where) for cell in cells):
        overlay, place = study.scale(scale)
        path: KeyPath = (*place, "baseline") if overlay.baseline is not None else ("baseline",)
        yield no_match(study, where, path, cells)
    elif all(matches(cell, where) for cell in cells):
        text = "every cell is the baseline, so there is nothing to compare it with"
        yield Problem(study.key_at(scale, "baseline"), f"{text}: name a factor that varies")


def baseline_that_never_completes(
    study: Study, scale: str, endings: Iterable[tuple[Mapping[str, Scalar], tuple[Outcome, ...]]]
) -> Iterator[Problem]:
    """A baseline whose runs are all expected to end otherwise: nothing can be compared with it.

    Args:
        endings: the factors of each cell, and its expected outcomes.
    """
    baseline = study.design(scale).baseline or {}
    outcomes = {
        outcome
        for factors, expected in endings
        for outcome in expected
        if baseline and all(factors[axis] == value for axis, value in baseline.items())
    }
    if outcomes and Outcome.COMPLETED not in outcomes:
        text = f"the baseline's runs are expected to end as {', '.join(sorted(outcomes))}"
        advice = "name a baseline that completes" + (f" at scale {scale}" if study.file.scales else "")
        yield Problem(study.key_at(scale, "baseline"), f"{text}: {advice}")


def unmeasured_quantities(study: Study, scale: str, task: str) -> Iterator[Problem]:
    """The keys that judge quantities which no run of the task measures."""
    design = study.design(scale)
    if not TASKS[task].has_rate:
        why = "its runs have no rate to compare; leave it out"
        if TASKS[task].compares_backends:
            why = (
                "each run compares its backends itself, call by call; leave it out, and give `repeats` to "
                "measure in several processes"
            )
        for key in ("baseline", "margins", "until"):
            if getattr(design, key) and (key != "margins" or design.margins.stated):
                yield Problem(study.key_at(scale, key), f"'{key}' has no effect on task {task}: {why}")
    elif not TASKS[task].trains and design.margins.loss is not None:
        text = f"runs of task {task} have no loss; only those of task training do: leave out `loss`"
        yield Problem(study.key_at(scale, "margins", "loss"), text)


def unmeasured_reported(study: Study, task: str) -> Iterator[Problem]:
    """Numbers of others of quantities that no run of the task measures, or of a backend that none names."""
    measured = TASKS[task].measures
    for i, entry in enumerate(study.file.reported):
        mark = study.document.mark(("reported", i, "backend"))
        if not TASKS[task].compares_backends:
            if entry.backend is not None:
                yield Problem(mark, "`backend` is of task attention: name it in `where: {attention: ...}`")
        elif entry.backend is None:
            text = f"a run of task {task} calls several backends: name one with `backend: NAME`"
            yield Problem(study.document.mark(("reported", i)), text)
        elif entry.backend not in backends.names():
            choices = did_you_mean(entry.backend, backends.names())
            yield Problem(mark, f"unknown attention backend '{entry.backend}' {choices}")
        for name in entry.given:
            if name not in measured:
                what = f"valid: {', '.join(measured)}" if measured else "and none of those that others report"
                text = f"runs of task {task} do not measure '{name}' ({what}): leave it out"
                yield Problem(study.document.mark(("reported", i, name)), text)


def twins(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Cells that are equal to an earlier one, at the key in which their places differ."""
    firsts: dict[str, Cell] = {}
    for cell in cells:
        first = firsts.setdefault(cell.run_id, cell)
        if first is cell:
            continue
        factors = ", ".join(f"{axis} {value}" for axis, value in cell.factors.items()) or "no factors"
        text = f"the same run as an earlier cell: {factors}; remove one of the two"
        axis = next((axis for axis in cell.factors if cell.marks.get(axis) != first.marks.get(axis)), None)
        if axis is None:
            yield Problem(cell.origin, text)
        else:
            other = first.marks.get(axis, first.origin)
            yield Problem(cell.marks.get(axis, cell.origin), f"{text} (the first is at {other})")


def several_tasks(cells: Sequence[Cell]) -> Iterator[Problem]:
    """The first cell of a second task. No chart or table may mix rates of different work."""
    for cell in cells:
        if cell.config.task != cells[0].config.task:
            text = f"a study has one task, but other cells have {cells[0].config.task}: make it two studies"
            yield Problem(cell.marks.get("task", cell.origin), text)
            return


def fill_label(label: str, values: Mapping[str, Any]) -> str:
    """A label with a factor's value in the place of `{factor}`; integers as in texts: 16,384."""

    def value(name: re.Match[str]) -> str:
        if name[1] not in values:  # `unfillable_labels` says so
            return name[0]
        given = values[name[1]]
        return f"{given:,}" if type(given) is int else str(given)

    return PLACE.sub(value, label)


def unfillable_labels(study: Study, rules: Sequence[tuple[Rule, KeyPath]]) -> Iterator[Problem]:
    """Labels with braces around what is no factor of the study, or is its seed."""
    factors = [axis for axis in study.axes if axis != "seed"]
    for rule, path in rules:
        for name in PLACE.findall(rule.label or ""):
            if name not in factors:
                text = (
                    f"'{{{name}}}' in a label stands for a factor's value: choose from {', '.join(factors)}"
                )
                yield Problem(study.document.mark((*path, "label")), text)


def misleading_labels(cells: Sequence[Cell], baseline: Mapping[str, Any]) -> Iterator[Problem]:
    """Labels of several groups or of a part of one, and those that name another backend, value or group.

    Args:
        baseline: factors of the study's baseline, of which names of many factors leave out what is equal.
    """
    yield from _labels_of_a_part(cells)
    labelled: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        if cell.label:
            labelled.setdefault(cell.label, {}).setdefault(cell.group, cell)
    for label, groups in labelled.items():
        first, *others = groups.values()
        if len(label) > MAX_LABEL:
            yield Problem(first.marks[LABEL], f"'{label}' is longer than a label's {MAX_LABEL} characters")
        if others:
            differing = (
                axis
                for axis, value in first.factors.items()
                if axis != "seed" and any(other.factors[axis] != value for other in others)
            )
            apart = f"tell them apart in `where`, by {' or '.join(differing)}"
            yield Problem(
                first.marks[LABEL], f"'{label}' would be the label of {len(groups)} groups: {apart}"
            )
        for cell in groups.values():
            attention = cell.config.attention
            if (
                "attention" not in cell.config.section.unread
                and label in backends.names()
                and label != attention
            ):
                text = f"'{label}' names a different backend than this group's, {attention}"
                yield Problem(cell.marks[LABEL], text)
                break
    names = dict(_names_by_factors(cells, baseline)) if labelled else {}
    for label, groups in labelled.items():
        for group, cell in groups.items():
            if other := _other_value(label, cell):
                yield Problem(cell.marks[LABEL], f"'{label}' is not true of this group, which has {other}")
            elif names.get(_parse_name(label), group) != group:
                text = (
                    f"'{label}' is what another group is called by its factors; give this one another label"
                )
                yield Problem(cell.marks[LABEL], text)


def _labels_of_a_part(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Labels that not all runs of a group get: a label is the whole group's."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    reported = set()
    for members in groups.values():
        first = next((cell for cell in members if cell.label), None)
        others = [cell for cell in members if first and cell.label != first.label]
        if first and others and first.marks[LABEL] not in reported:
            reported.add(first.marks[LABEL])
            seeds = ", ".join(str(cell.config.seed) for cell in others[:_SHOWN])
            seeds += ", ..." * (len(others) > _SHOWN)
            text = (
                f"'{first.label}' would be the label of seed {first.config.seed} but not of seed "
                f"{seeds} of the same group, and a label names a group: leave `seed` out of `where`"
            )
            yield Problem(first.marks[LABEL], text)


def _parse_name(label: str) -> _GroupName:
    """The values that a name made of factors states, by factor, and the backend under its own name."""
    pairs = [part.rpartition("=") for part in label.split(", ")]
    return frozenset((axis or "attention", _normal(value)) for axis, _, value in pairs)


def _normal(value: str) -> str:
    """A value in one way of writing, whichever it was written in."""
    try:
        return repr(float(value))
    except ValueError:
        return value.lower()


def _names_by_factors(cells: Sequence[Cell], baseline: Mapping[str, Any]) -> Iterator[tuple[_GroupName, str]]:
    """The names of groups without a label, made of their factors as `labelled` in views.sql does."""
    groups = {cell.group: cell for cell in cells}.values()
    values = {axis: {cell.factors[axis] for cell in groups} for axis in cells[0].factors if axis != "seed"}
    varying = [axis for axis, different in values.items() if len(different) > 1]
    for cell in groups:
        if cell.label:
            continue
        whole = {axis: _normal(str(cell.factors[axis])) for axis in varying}
        names = [whole]
        if len(varying) >= _MANY and baseline:
            apart = {axis: value for axis, value in whole.items() if cell.factors[axis] != baseline.get(axis)}
            names.append(apart or {"attention": "baseline"})
        for name in names:
            yield frozenset(name.items()), cell.group
            yield frozenset((axis.rpartition(".")[2], value) for axis, value in name.items()), cell.group


def _other_value(label: str, cell: Cell) -> str | None:
    """`learning_rate=0.001`, where a label names another value."""
    named = {axis: value for axis, value in _parse_name(label) if "=" in label}
    for axis, value in cell.factors.items():
        for name in (axis, axis.rpartition(".")[2]):
            if name in named and name != "attention" and named[name] != _normal(str(value)):
                return f"{name}={value}"
    return None


def _doubtful_numbers(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Numbers of others that break a rule, as a wrongly copied digit makes them, or are held to none."""
    if not any(cell.reported for cell in cells):
        return
    from analysis.importers import check_reported  # here, since importers compute with NumPy
    from model.measure.flops import with_peaks

    for cell in {cell.group: cell for cell in cells}.values():
        checks = check_reported(cell.reported, cell.config, cell.overridden)
        for n, (one, check) in enumerate(zip(cell.reported, checks, strict=True)):
            mark = cell.marks[REPORTED.format(n)]
            if one.backend and one.backend not in cell.config.backends:
                text = f"these runs do not call '{one.backend}' (they call {', '.join(cell.config.backends)})"
                yield Problem(mark, f"warning: {text}: pages have no number of ours beside it")
            for rule in check.flags:
                text = f"{rule}; if its source prints it so, pages show it with this rule"
                yield Problem(mark, f"warning: {text}")
            for why in check.unchecked:
                choices = f" {with_peaks(one.hardware)}" if check.no_peak else ""
                yield Problem(mark, f"note: {why}{choices}")


def lacking_calls(cells: Sequence[Cell]) -> list[Problem]:
    """A warning for each cell whose backends all lack its kind of call, at its place, unless it expects that.

    On a CPU the backends say so themselves of any call, as they do to the run. What a backend's kernel or a
    GPU lacks beside, a run says. Torch is imported only if some cell needs such calls.

    Raises:
        InvalidFile: that is so of all cells, so that no run can start.
    """
    warnings = set[Problem]()
    present = {axis: [cell.factors[axis] for cell in cells] for axis in (cells[0].factors if cells else ())}
    some_can_start = not cells
    for cell in cells:
        lacks = {} if Outcome.UNSUPPORTED in cell.expected else _lacking(cell)
        if not lacks:
            some_can_start = True
            continue
        reasons = [
            f"{'each of ' if len(names) > 1 else ''}{listed(names)} {why}" for why, names in lacks.items()
        ]
        text = f"{usable_advice('; '.join(reasons), present)}; or state `expect: unsupported`"
        setting = next(iter(cell.config.backends.values()))
        warnings.add(Problem(cell.marks.get(setting, cell.origin), text))
    if not some_can_start:
        none = "no run of this study can start"
        raise InvalidFile([Problem(problem.mark, f"{none}: {problem.text}") for problem in warnings])
    return sorted(Problem(problem.mark, f"warning: {problem.text}") for problem in warnings)


def _lacking(cell: Cell) -> dict[str, list[str]]:
    """What the cell's backends lack, each with their names; empty if one of them may run it."""
    config, case = cell.config, cell.config.attention_case
    plain = not (case.context > 1 or case.new_tokens or case.fp8 or case.tile or case.dropout)
    if plain and (case.device != "cpu" or any(map(backends.imports_torch, config.backends))):
        return {}
    lacks: dict[str, list[str]] = {}
    for name in config.backends:
        if backends.is_foreign(name):
            return {}
        backend = attention.load(name)
        reasons = attention.lacking(backend, case)
        if not reasons and case.device == "cpu":
            reasons = attention.refusals(backend, case)
        if not reasons:
            return {}
        lacks.setdefault(config.section.in_own_words("; ".join(reasons)), []).append(f"'{name}'")
    return lacks


def doubts(cells: Sequence[Cell]) -> list[Problem]:
    """Warnings for lines that a study probably does not mean; its runs start nevertheless."""
    warnings = set[Problem]()
    for cell in cells:
        for settings, text in cell.config.section.doubts(cell.marks):
            mark = next((cell.marks[dotted] for dotted in settings if dotted in cell.marks), cell.origin)
            warnings.add(Problem(mark, f"warning: {text}"))
    warnings |= {*_doubtful_numbers(cells)}
    training = [cell for cell in cells if cell.config.section.trains]
    wide = [cell for cell in training if cell.config.train.reduce == "float32"]
    # Gradients are summed across processes that have data of their own; one run that does so is enough.
    if not any(cell.config.parallel.processes > cell.config.parallel.tensor for cell in wide):
        text = (
            "warning: train.reduce float32 changes nothing: no run sums gradients across processes; "
            "leave it out, or set parallel.shard or parallel.replicate"
        )
        warnings |= {Problem(cell.marks.get("train.reduce", cell.origin), text) for cell in wide}
    return sorted(warnings)
