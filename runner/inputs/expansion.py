"""Expands a study into its cells. Pure: the same study, scale and options always produce the same runs.

Settings come in layers, and later ones win: `base`, the scale's `set`, the cell's factors, the study's rules,
the scale's rules, `--set`. A run's id is the hash of the resulting configuration. Cells that differ in seed
and repeat alone are resolved once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter, ValidationError

from model.record import backends
from model.record.config import NO_DATA, SECTIONS, UNREAD, Mismatch, RunConfig, Seed
from model.record.errors import UserError, did_you_mean
from model.record.files import dumps
from model.record.records import Order, Outcome
from runner.inputs.cells import baseline, matrix, options
from runner.inputs.cells.cell import Cell, Factors
from runner.inputs.cells.labels import LABEL, misleading
from runner.inputs.cells.options import Setting
from runner.inputs.cells.order import places
from runner.inputs.cells.overridden import overridden
from runner.inputs.cells.unmeasured import unmeasured
from runner.inputs.cells.where import idle, is_one_of, matches, mistyped
from runner.inputs.design import order_seed
from runner.inputs.document import InvalidFile, KeyPath, Mark, Problem
from runner.inputs.profile import Resources
from runner.inputs.settings import Scalar, flatten, nest
from runner.inputs.study import Rule, Study, Where
from runner.inputs.validation import explain

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails


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
    common = matrix.common(study, overlay, scale_path)
    overrides = options.overrides(sets, study.axes, study.tasks)
    rules = matrix.extended(study.file.rules, overlay.rules, "rules", scale_path)
    design = study.design(scale)
    times = repeats or design.repeats
    candidates = list(matrix.candidates(study, overlay, scale_path, times))
    wanted, numbers = _wanted(study, only, candidates, times)
    resolver = _Resolver(study, scale, common, rules, overrides)
    mine = [each for each in candidates if matches(each[0], wanted)] if wanted else candidates
    results = [resolver.resolved(*each) for each in mine]
    if not results:
        raise UserError(f"no cell has all of {_listed(wanted)}")
    shared = {axis: common[axis] for axis in study.axes if axis in common}
    settings = [shared | factors for factors, _ in candidates]
    problems = [*_idle_rules(study, rules, settings), *baseline.wrong_factors(study, scale, settings)]
    problems += [problem for result in results if isinstance(result, list) for problem in result]
    if problems:
        raise InvalidFile(problems)
    found = [result for result in results if isinstance(result, tuple)]
    cells = [cell for _, cell in found]
    endings = {(cell.group, cell.expected): cell for cell in cells}.values()
    _refuse_twins(cells)
    _refuse_several_tasks(cells)
    named = cells
    if only and any(rule.label for rule, _ in rules):  # whether a label fits, the whole study says
        named = expand(study, scale, sets)
    if problems := [
        *misleading(named, design.baseline),
        *unmeasured(study, scale, cells[0].config.task),
        *baseline.never_completes(study, scale, [(cell.factors, cell.expected) for cell in endings]),
    ]:
        raise InvalidFile(problems)
    return _placed([ids.repeat(cell, n) for n in numbers for ids, cell in found], study.name, design.order)


def _wanted(
    study: Study, only: Sequence[str], candidates: Sequence[matrix.Candidate], times: int
) -> tuple[Where, list[int]]:
    """The factors and the repeats that `--only` asks for; `repeat` is a factor if there are several."""
    axes, cells, numbers = study.axes, [factors for factors, _ in candidates], list(range(1, times + 1))
    if times > 1:
        axes = (*axes, "repeat")
        cells += [{"repeat": (n, Mark("repeats"))} for n in numbers]
    wanted = options.wanted(only, axes, cells)
    picked = wanted.pop("repeat", numbers)
    return {**wanted}, [n for n in numbers if n in picked]


def _placed(cells: list[Cell], study: str, order: Order) -> list[Cell]:
    """The cells with their places in the order of starting."""
    found = places([(cell.group, cell.run_id) for cell in cells], order, order_seed(study, order))
    return [
        cell.but(position=position, block=block) for cell, (position, block) in zip(cells, found, strict=True)
    ]


def _listed(wanted: Where) -> str:
    return " and ".join(f"{axis} = {values}" for axis, values in wanted.items())


def _idle_rules(
    study: Study, rules: list[tuple[Rule, KeyPath]], cells: list[dict[str, Setting]]
) -> Iterator[Problem]:
    # Listed once, not for each rule: a study can have many rules and long axes.
    possible = cache(lambda scales: [*matrix.possible(study, *scales)])
    for rule, path in rules:
        scales = (str(path[1]),) if path[0] == "scales" else study.scale_names
        yield from (wrong := mistyped(study, rule.where, (*path, "where"), possible(scales)))
        known = set(rule.where) <= set(study.axes)
        if not wrong and not (known and any(matches(cell, rule.where) for cell in cells)):
            yield idle(study, rule.where, (*path, "where"), cells)
        for dotted, _, place in flatten(rule.set, (*path, "set")):
            if dotted in study.axes:
                text = f"'{dotted}' is a factor of this study, so rules cannot change it"
                yield Problem(study.document.mark(place), text)


class _Ids:
    """The ids of the runs of one configuration, which differ by seed and repeat.

    An id is the hash of a canonical text. The text is written once, and hashed up to the seed.
    """

    def __init__(self, study: str, config: RunConfig) -> None:
        self.study, self.config = study, config
        self.texts = {1: self._text(config.identity(), {})}
        self.group = self._hash("null", 1)

    def of(self, seed: int, repeat: int = 1) -> str:
        """A run's id. The first repeat has the id that it has without repeats."""
        if repeat not in self.texts:
            self.texts[repeat] = self._text(self.config.model_dump(), {"repeat": repeat})
        return self._hash(str(seed), repeat)

    def repeat(self, cell: Cell, repeat: int) -> Cell:
        """A repeat of a cell: the same configuration under another id. The first keeps the cell's own."""
        return cell if repeat == 1 else cell.but(run_id=self.of(cell.config.seed, repeat), repeat=repeat)

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


class _Resolver:
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
        self.base = matrix.marked(study, study.file.base, ("base",))
        self.rules = [
            (rule, path, matrix.marked(study, rule.set, (*path, "set")), str(study.document.mark(path)))
            for rule, path in rules
        ]
        self.of_seeds = [rule.where["seed"] for rule, _ in rules if "seed" in rule.where]
        self.valid_seed = TypeAdapter(Seed).validator.isinstance_python
        self.shared: dict[tuple[Any, ...], tuple[_Ids, Cell] | list[Problem]] = {}

    def resolved(self, factors: dict[str, Setting], origin: Mark) -> tuple[_Ids, Cell] | list[Problem]:
        """A cell, and the ids of its repeats; or what is wrong with it."""
        if "seed" not in factors or not self.valid_seed(factors["seed"][0], strict=True):
            return self._alone(factors, origin)
        seed, mark = factors["seed"]
        # The settings of a matrix's axis are the same objects in all of its cells.
        rest = [id(setting) for axis, setting in factors.items() if axis != "seed"]
        tested = [is_one_of(seed, values) for values in self.of_seeds]
        key = (id(origin), *rest, *tested)
        if (first := self.shared.get(key)) is None:
            first = self.shared[key] = self._alone(factors, origin)
        if isinstance(first, list):
            return first
        ids, cell = first
        place = [*factors].index("seed")
        return ids, cell.but(
            run_id=ids.of(seed),
            factors={**cell.factors, "seed": seed},
            config=cell.config.model_copy(update={"seed": seed}),
            plain={**cell.plain, "config": {**cell.plain["config"], "seed": seed}},
            why=(*cell.why[:place], str(mark), *cell.why[place + 1 :]),
            marks={**cell.marks, "seed": mark},
        )

    def _alone(self, factors: dict[str, Setting], origin: Mark) -> tuple[_Ids, Cell] | list[Problem]:
        study = self.study
        given = self.common | factors
        settings, own = _over(self.common, factors), {**self.base, **factors}
        expected, because, label = Outcome.COMPLETED, None, None
        own_marks: dict[str, Mark] = {}
        resources = Resources()
        why = [str(mark) for _, mark in factors.values()]
        for rule, path, marked, place in self.rules:
            if matches(given, rule.where):
                settings = _over(settings, marked)
                own |= marked if path[0] == "rules" else {}
                expected, because = (rule.expect, rule.because) if rule.expect else (expected, because)
                if rule.label:
                    label, own_marks = rule.label, {LABEL: study.document.mark((*path, "label"))}
                resources = resources.model_copy(update=rule.resources.model_dump(exclude_none=True))
                why.append(place)
        settings = _over(settings, self.overrides)
        config = _config(study, settings)
        if not isinstance(config, RunConfig):
            return config
        ids = _Ids(study.name, config)
        return ids, Cell(
            run_id=ids.of(config.seed),
            group=ids.group,
            factors={axis: _at(config, axis) for axis in study.axes},
            repeat=1,
            config=config,
            expected=expected,
            because=because,
            label=label,
            resources=resources,
            plain={"resources": resources.model_dump(exclude_none=True), "config": config.model_dump()},
            why=tuple(why),
            overridden=overridden(settings, own, self.overrides, self.scale),
            marks={dotted: mark for dotted, (_, mark) in settings.items()} | own_marks,
            origin=origin,
        )


def _config(study: Study, settings: dict[str, Setting]) -> RunConfig | list[Problem]:
    """The configuration of these settings, or what is wrong with them."""
    if unread := [*_unread(settings)]:
        return unread
    try:
        config = RunConfig.model_validate(nest({dotted: value for dotted, (value, _) in settings.items()}))
    except ValidationError as error:
        return [_wrong_value(study, settings, detail) for detail in error.errors(include_url=False)]
    if unknown := [*_unknown_backends(study, settings, config)]:
        return unknown
    reasons = config.unsupported()
    return [Problem(_setter(study, settings, name), why) for name, why in reasons.items()] or config


def _wrong_value(study: Study, settings: dict[str, Setting], detail: ErrorDetails) -> Problem:
    dotted = ".".join(map(str, detail["loc"]))
    if detail["type"] == "missing":  # of all settings, only data.path has no default
        return Problem(_setter(study, settings, dotted), NO_DATA)
    wrong = detail.get("ctx", {}).get("error")
    together = wrong.settings if isinstance(wrong, Mismatch) else ()
    names = [".".join(map(str, (*detail["loc"], name))) for name in together]
    return Problem(_setter(study, settings, *(names or [dotted])), explain(RunConfig, detail, dotted))


def _unknown_backends(study: Study, settings: dict[str, Setting], config: RunConfig) -> Iterator[Problem]:
    """Checked here and not in RunConfig, so that records of backends removed since then stay readable."""
    if not config.backends:
        text = f"'call.backends' names no attention backend (valid: all, {', '.join(backends.names())})"
        yield Problem(_setter(study, settings, "call.backends"), text)
    for name, setting in config.backends.items():
        if name not in backends.names():
            text = f"unknown attention backend '{name}' {did_you_mean(name, backends.names())}"
            text += "; put spaces between names" if "," in name else ""
            yield Problem(_setter(study, settings, setting), text)


def _unread(settings: dict[str, Setting]) -> Iterator[Problem]:
    """Settings that the cell's task does not read, which would have no effect."""
    task = settings["task"][0] if "task" in settings else RunConfig.model_fields["task"].default
    if task not in list(SECTIONS):  # refused with the choices; it can be of any type, a list too
        return
    mine = SECTIONS[task]
    for dotted, (_, mark) in settings.items():
        section, _, name = dotted.partition(".")
        if instead := UNREAD[task].get(dotted):
            yield Problem(mark, f"'{dotted}' has no effect on task {task}, which reads {instead}")
        elif name and section not in mine:
            text = f"'{dotted}' has no effect on task {task}, whose sections are {', '.join(mine)}"
            readers = " or ".join(f"`task: {each}`" for each in SECTIONS if section in SECTIONS[each])
            yield Problem(mark, f"{text}; it belongs to {readers}" if readers else text)


def _at(config: RunConfig, dotted: str) -> Scalar:
    value: Any = config
    for name in dotted.split("."):
        value = getattr(value, name)
    return cast(Scalar, value)


def _setter(study: Study, settings: dict[str, Setting], *wrong: str) -> Mark:
    """Where one of these settings, or of the settings in these sections, was last set; `base` if nowhere."""
    ours = [
        mark
        for name, (_, mark) in settings.items()
        if any(name == each or name.startswith(each + ".") for each in wrong)
    ]
    return ours[-1] if ours else study.document.mark(("base",))


def _over(below: dict[str, Setting], above: dict[str, Setting]) -> dict[str, Setting]:
    """Merge two layers; the upper one wins, and its settings come last."""
    return {**{dotted: setting for dotted, setting in below.items() if dotted not in above}, **above}


def _refuse_twins(cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    problems = []
    for cell in cells:
        twin = seen.setdefault(cell.run_id, cell)
        if twin is not cell:
            problems.append(_twins(cell, twin))
    if problems:
        raise InvalidFile(problems)


def _refuse_several_tasks(cells: Sequence[Cell]) -> None:
    """Their rates count different work: no chart may show them on one axis, nor a table rank them."""
    for cell in cells:
        if cell.config.task != cells[0].config.task:
            text = f"a study has one task, but other cells have {cells[0].config.task}: make it two studies"
            raise InvalidFile([Problem(cell.marks.get("task", cell.origin), text)])


def _twins(cell: Cell, twin: Cell) -> Problem:
    """Report the later of two equal cells, at the key in which their places differ."""
    axis = next((axis for axis in cell.factors if cell.marks.get(axis) != twin.marks.get(axis)), None)
    text = f"the same run as an earlier cell: {_worded(cell.factors)}; remove one of the two"
    if axis is None:
        return Problem(cell.origin, text)
    first = twin.marks.get(axis, twin.origin)
    return Problem(cell.marks.get(axis, cell.origin), f"{text} (the first is at {first})")


def _worded(factors: Factors) -> str:
    return ", ".join(f"{axis} {value}" for axis, value in factors.items()) or "no factors"
