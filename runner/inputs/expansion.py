"""Expands a study into its cells. Pure: the same study, scale and options always produce the same runs.

Settings come in layers, and later ones win: `base`, the scale's `set`, the cell's factors, the study's rules,
the scale's rules, `--set`. A run's id is the hash of the resulting configuration. Cells that differ in seed
and repeat alone are resolved once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

from pydantic import TypeAdapter, ValidationError

from model.record import backends
from model.record.config import NO_DATA, TASKS, Mismatch, RunConfig, Seed, sections_of
from model.record.errors import UserError, did_you_mean
from model.record.files import dumps
from model.record.outcome import Outcome
from model.record.records import Override
from runner.inputs import checks, options
from runner.inputs.cells import (
    Candidate,
    Cell,
    common_settings,
    entries_at_scale,
    flat_settings,
    is_one_of,
    list_candidates,
    matches,
)
from runner.inputs.design import order_seed, places
from runner.inputs.document import InvalidFile, KeyPath, Mark, Problem
from runner.inputs.profile import Resources
from runner.inputs.settings import Setting, nest
from runner.inputs.study import Rule, Study, Where
from runner.inputs.validation import explain

BY_SET = "`--set`"  # what changed a setting, as records and pages say it


def expand(
    study: Study,
    scale: str = "full",
    sets: Sequence[str] = (),
    only: Sequence[str] = (),
    repeats: int | None = None,
) -> list[Cell]:
    """Resolve every cell of a study at a scale, in the order of the file, once for each repeat.

    Args:
        sets: `a.b=value` overrides for all cells.
        only: `factor=value[,value]` filters; those of one factor add up, and all factors must match.
        repeats: of each cell, in place of the study's.

    Raises:
        InvalidFile: invalid values, rules or options; lists the problems of all cells.
        UserError: no cell is wanted.
    """
    overlay, scale_path = study.scale(scale)
    common = common_settings(study, overlay, scale_path)
    overrides = options.overrides(sets, study.axes, study.tasks)
    rules = entries_at_scale(study.file.rules, overlay.rules, "rules", scale_path)
    design = study.design(scale)
    times = repeats or design.repeats
    candidates = list(list_candidates(study, overlay, scale_path, times))
    where, repetitions = _selection(study, only, candidates, times)
    resolver = Resolver(study, scale, common, rules, overrides)
    results = [
        resolver.resolve(factors, origin)
        for factors, origin in candidates
        if not where or matches(factors, where)
    ]
    if not results:
        wanted = " and ".join(f"{axis} = {values}" for axis, values in where.items())
        raise UserError(f"no cell has all of {wanted}")
    shared = {axis: common[axis] for axis in study.axes if axis in common}
    settings = [shared | factors for factors, _ in candidates]
    problems = [*checks.idle_rules(study, rules, settings), *checks.wrong_baseline(study, scale, settings)]
    problems += checks.unfillable_labels(study, rules)
    problems += checks.idle_reported(study, scale, settings)
    problems += [problem for result in results if isinstance(result, list) for problem in result]
    if problems:
        raise InvalidFile(problems)
    resolved = [result for result in results if isinstance(result, tuple)]
    cells = [cell for _, cell in resolved]
    if problems := [*checks.twins(cells)] or [*checks.several_tasks(cells)]:
        raise InvalidFile(problems)
    labelled = cells
    if only and any(rule.label for rule, _ in rules):  # whether a label fits, the whole study says
        labelled = expand(study, scale, sets)
    endings = {(cell.group, cell.expected): (cell.factors, cell.expected) for cell in cells}.values()
    if problems := [
        *checks.misleading_labels(labelled, design.baseline or {}),
        *checks.unmeasured_quantities(study, scale, cells[0].config.task),
        *checks.unmeasured_reported(study, cells[0].config.task),
        *checks.baseline_that_never_completes(study, scale, endings),
    ]:
        raise InvalidFile(problems)
    repeated = [ids.repeated(cell, n) for n in repetitions for ids, cell in resolved]
    seed = order_seed(study.name, design.order)
    order = places([(cell.group, cell.run_id) for cell in repeated], design.order, seed)
    return [
        cell.with_fields(position=position, block=block)
        for cell, (position, block) in zip(repeated, order, strict=True)
    ]


def _selection(
    study: Study, only: Sequence[str], candidates: Sequence[Candidate], times: int
) -> tuple[Where, list[int]]:
    """The factors and the repeats that `--only` asks for; `repeat` is a factor if there are several."""
    axes, cells, repetitions = study.axes, [factors for factors, _ in candidates], [*range(1, times + 1)]
    if times > 1:
        axes = (*axes, "repeat")
        cells += [{"repeat": (n, Mark("repeats"))} for n in repetitions]
    wanted = options.selected_values(only, axes, cells)
    picked = wanted.pop("repeat", repetitions)
    return {**wanted}, [n for n in repetitions if n in picked]


class _RunIds:
    """The ids of the runs of one configuration, which differ by seed and repeat.

    An id is the hash of a canonical text. The text is written once, and hashed up to the seed.
    """

    def __init__(self, study: str, config: RunConfig) -> None:
        self.study, self.config = study, config
        self.texts = {1: self._text(config.identity(), {})}
        self.group = self._hash("null", 1)

    def run_id(self, seed: int, repeat: int = 1) -> str:
        """A run's id. The first repeat has the id that it has without repeats."""
        if repeat not in self.texts:
            self.texts[repeat] = self._text(self.config.model_dump(), {"repeat": repeat})
        return self._hash(str(seed), repeat)

    def repeated(self, cell: Cell, repeat: int) -> Cell:
        """A repeat of a cell: the same configuration under another id. The first keeps the cell's own."""
        if repeat == 1:
            return cell
        return cell.with_fields(run_id=self.run_id(cell.config.seed, repeat), repeat=repeat)

    def _text(self, config: dict[str, Any], again: dict[str, int]) -> tuple[Any, bytes]:
        """The hash of what comes before the seed in the canonical text, and what comes after it."""
        gap = "\0"  # no document or option has one
        text = dumps({"study": self.study, "config": {**config, "seed": gap}, **again})
        before, after = text.split(dumps(gap))
        return hashlib.sha256(before.encode()), after.encode()

    def _hash(self, seed: str, repeat: int) -> str:
        before, after = self.texts[repeat]
        whole = before.copy()
        whole.update(seed.encode() + after)
        return str(whole.hexdigest()[:12])


# A cell with the ids of its repeats, or what is wrong with it.
_Resolved = tuple[_RunIds, Cell] | list[Problem]


class Resolver:
    """Resolves cells. Those that differ in seed alone, and obey the same rules, share all else."""

    def __init__(
        self,
        study: Study,
        scale: str,
        common: dict[str, Setting],
        rules: list[tuple[Rule, KeyPath]],
        overrides: dict[str, Setting],
    ) -> None:
        self.study, self.scale, self.common, self.overrides = study, scale, common, overrides
        self.base = flat_settings(study, study.file.base, ("base",))
        self.rules = [
            (rule, path, flat_settings(study, rule.set, (*path, "set")), str(study.document.mark(path)))
            for rule, path in rules
        ]
        self.reported = [
            (entry.where, study.reported(i), study.document.mark(("reported", i)))
            for i, entry in enumerate(study.file.reported)
        ]
        self.seed_conditions = [rule.where["seed"] for rule, _ in rules if "seed" in rule.where]
        self.valid_seed = TypeAdapter(Seed).validator.isinstance_python
        self.shared: dict[tuple[Any, ...], _Resolved] = {}

    def resolve(self, factors: dict[str, Setting], origin: Mark) -> _Resolved:
        """A cell, and the ids of its repeats; or what is wrong with it."""
        if "seed" not in factors or not self.valid_seed(factors["seed"][0], strict=True):
            return self.resolve_alone(factors, origin)
        seed, mark = factors["seed"]
        # The settings of a matrix's axis are the same objects in all of its cells.
        rest = [id(setting) for axis, setting in factors.items() if axis != "seed"]
        tested = [is_one_of(seed, values) for values in self.seed_conditions]
        key = (id(origin), *rest, *tested)
        if (first := self.shared.get(key)) is None:
            first = self.shared[key] = self.resolve_alone(factors, origin)
        if isinstance(first, list):
            return first
        ids, cell = first
        place = [*factors].index("seed")
        return ids, cell.with_fields(
            run_id=ids.run_id(seed),
            factors={**cell.factors, "seed": seed},
            config=cell.config.model_copy(update={"seed": seed}),
            plain={**cell.plain, "config": {**cell.plain["config"], "seed": seed}},
            why=(*cell.why[:place], str(mark), *cell.why[place + 1 :]),
            marks={**cell.marks, "seed": mark},
        )

    def resolve_alone(self, factors: dict[str, Setting], origin: Mark) -> _Resolved:
        """Resolve a cell from its own settings, whatever others share them."""
        study = self.study
        given = self.common | factors
        settings, own = _merge(self.common, factors), {**self.base, **factors}
        expected: tuple[Outcome, ...] = (Outcome.COMPLETED,)
        because, label = None, None
        own_marks: dict[str, Mark] = {}
        resources = Resources()
        why = [str(mark) for _, mark in factors.values()]
        for rule, path, changes, place in self.rules:
            if matches(given, rule.where):
                settings = _merge(settings, changes)
                own |= changes if path[0] == "rules" else {}
                if rule.expect:
                    listed = rule.expect if isinstance(rule.expect, list) else [rule.expect]
                    expected, because = tuple(dict.fromkeys(listed)), rule.because
                if rule.label:
                    label, own_marks = rule.label, {checks.LABEL: study.document.mark((*path, "label"))}
                    if "{" in label:
                        label = checks.fill_label(label, {axis: value for axis, (value, _) in given.items()})
                resources = resources.model_copy(update=rule.resources.model_dump(exclude_none=True))
                why.append(place)
        reported = [(numbers, mark) for where, numbers, mark in self.reported if matches(given, where)]
        own_marks |= {checks.REPORTED.format(n): mark for n, (_, mark) in enumerate(reported)}
        settings = _merge(settings, self.overrides)
        config = _resolve_config(study, settings)
        if not isinstance(config, RunConfig):
            return config
        ids = _RunIds(study.name, config)
        return ids, Cell(
            run_id=ids.run_id(config.seed),
            group=ids.group,
            factors={axis: attrgetter(axis)(config) for axis in study.axes},
            repeat=1,
            config=config,
            expected=expected,
            because=because,
            label=label,
            reported=tuple(numbers for numbers, _ in reported),
            resources=resources,
            plain={"resources": resources.model_dump(exclude_none=True), "config": config.model_dump()},
            why=tuple(why),
            overridden={
                dotted: Override(
                    own=unchanged, by=BY_SET if dotted in self.overrides else f"scale {self.scale}"
                )
                for dotted, (value, _) in settings.items()
                if value != (unchanged := own.get(dotted, (None, None))[0])
            },
            marks={dotted: mark for dotted, (_, mark) in settings.items()} | own_marks,
            origin=origin,
        )


def _resolve_config(study: Study, settings: dict[str, Setting]) -> RunConfig | list[Problem]:
    """The configuration of these settings, or what is wrong with them."""
    if unread := [*_unread(settings)]:
        return unread
    try:
        config = RunConfig.model_validate(nest({dotted: value for dotted, (value, _) in settings.items()}))
    except ValidationError as error:
        problems = list[Problem]()
        for detail in error.errors(include_url=False):
            if detail["type"] == "none_required":
                continue  # of a section that may be absent, whose other error says more
            place = [step for step in map(str, detail["loc"]) if not step[:1].isupper()]  # a union's class
            dotted = ".".join(place)
            if detail["type"] == "missing":  # of all settings, only data.path has no default
                problems.append(Problem(_last_mark(study, settings, dotted), NO_DATA))
                continue
            # At the last of the settings that it concerns.
            wrong = detail.get("ctx", {}).get("error")
            together = wrong.settings if isinstance(wrong, Mismatch) else ()
            names = [".".join((*place, name)) for name in together] or [dotted]
            problems.append(Problem(_last_mark(study, settings, *names), explain(RunConfig, detail, dotted)))
        return problems
    # Checked here and not in RunConfig, so that records of backends removed since then stay readable.
    if not config.backends:
        text = f"'call.backends' names no attention backend (valid: all, {', '.join(backends.names())})"
        return [Problem(_last_mark(study, settings, "call.backends"), text)]
    unknown = list[Problem]()
    for name, setting in config.backends.items():
        if name not in backends.names():
            text = f"unknown attention backend '{name}' {did_you_mean(name, backends.names())}"
            text += "; put spaces between names" if "," in name else ""
            unknown.append(Problem(_last_mark(study, settings, setting), text))
    if unknown:
        return unknown
    reasons = config.unsupported()
    factors = dict.fromkeys(study.axes, ())
    problems = [
        Problem(_last_mark(study, settings, name), options.usable_advice(why, factors))
        for name, why in reasons.items()
    ]
    return problems or config


def _unread(settings: dict[str, Setting]) -> Iterator[Problem]:
    """Settings that the cell's task does not read, which would have no effect."""
    task = settings["task"][0] if "task" in settings else RunConfig.model_fields["task"].default
    if task not in list(TASKS):  # refused with the choices; it can be of any type, a list too
        return
    sections = sections_of(task)
    for dotted, (_, mark) in settings.items():
        section, _, name = dotted.partition(".")
        if instead := TASKS[task].unread.get(dotted):
            yield Problem(mark, f"'{dotted}' has no effect on task {task}, which reads {instead}")
        elif name and section not in sections:
            text = f"'{dotted}' has no effect on task {task}, whose sections are {', '.join(sections)}"
            readers = " or ".join(f"`task: {other}`" for other in TASKS if section in sections_of(other))
            yield Problem(mark, f"{text}; it belongs to {readers}" if readers else text)


def _last_mark(study: Study, settings: dict[str, Setting], *wrong: str) -> Mark:
    """Where one of these settings, or of the settings in these sections, was last set; `base` if nowhere."""
    marks = [
        mark
        for dotted, (_, mark) in settings.items()
        if any(dotted == name or dotted.startswith(name + ".") for name in wrong)
    ]
    return marks[-1] if marks else study.document.mark(("base",))


def _merge(below: dict[str, Setting], above: dict[str, Setting]) -> dict[str, Setting]:
    """Merge two layers; the upper one wins, and its settings come last."""
    return {**{dotted: setting for dotted, setting in below.items() if dotted not in above}, **above}
