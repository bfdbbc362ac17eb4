"""Expands a study into its cells. Pure: the same study, scale and options always produce the same runs.

Settings come in layers, and later ones win: `base`, the scale's `set`, the cell's factors, the study's rules,
the scale's rules, `--set`. A run's id is the hash of the resulting configuration.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast

from pydantic import ValidationError

from model import attention
from model.config import NO_FLOAT16, RunConfig
from model.disk.files import dumps
from model.disk.record import Outcome
from model.errors import UserError, did_you_mean
from runner.spec.document import KeyPath, parse
from runner.spec.problems import InvalidFile, Mark, Problem
from runner.spec.profile import Resources
from runner.spec.settings import Scalar, flatten, leaves, nest
from runner.spec.study import MAX_CELLS, Rule, Scale, Study, Where
from runner.spec.validation import explain

Factors = dict[str, Scalar]
Setting = tuple[Any, Mark]  # a value and where it was set


@dataclass(frozen=True)
class Cell:
    """One run of a study, fully resolved."""

    run_id: str
    group: str
    factors: Factors
    config: RunConfig
    expected: Outcome
    because: str | None
    resources: Resources
    why: tuple[str, ...]
    marks: Mapping[str, Mark] = field(repr=False)  # where each value was set, for later errors

    def as_json(self) -> dict[str, Any]:
        """The cell as `expand --json` prints it."""
        plain = {name: getattr(self, name) for name in ("run_id", "group", "factors", "because", "why")}
        resources = self.resources.model_dump(exclude_none=True)
        about = {"expected_outcome": self.expected, "resources": resources}
        return {**plain, **about, "config": self.config.model_dump()}


def expand(
    study: Study, scale: str = "full", sets: Sequence[str] = (), only: Sequence[str] = ()
) -> list[Cell]:
    """Resolve every cell of a study at a scale.

    Args:
        sets: `a.b=value` overrides for all cells.
        only: `factor=value[,value]` filters; all must match.

    Raises:
        InvalidFile: invalid values, rules or options; lists the problems of all cells.
    """
    overlay, scale_path = study.scale(scale)
    common = _common(study, overlay, scale_path)
    overrides = _overrides(study, sets)
    rules = _rules(study, overlay, scale_path)
    candidates = list(_candidates(study, overlay, scale_path))
    wanted = _filters(study, only, [factors for factors, _ in candidates])
    results = [
        _resolve(study, common, factors, rules, overrides)
        for factors, _ in candidates
        if _matches(factors, wanted)
    ]
    problems = [*_idle_rules(study, common, rules, candidates)]
    problems += [problem for result in results if isinstance(result, list) for problem in result]
    if problems:
        raise InvalidFile(problems)
    cells = [result for result in results if isinstance(result, Cell)]
    _refuse_twins(study, cells)
    return cells


def _common(study: Study, overlay: Scale, scale_path: KeyPath) -> dict[str, Setting]:
    base = flatten(study.file.base, ("base",))
    scaled = flatten(overlay.set, (*scale_path, "set"))
    return {
        dotted: (value, study.document.mark(path)) for dotted, value, path in itertools.chain(base, scaled)
    }


def _candidates(
    study: Study, overlay: Scale, scale_path: KeyPath
) -> Iterator[tuple[dict[str, Setting], Mark]]:
    """Each cell's factors, with the position of the key that produced the cell."""
    axes: list[list[dict[str, Setting]]] = []
    for axis, values in study.file.matrix.items():
        replaced = axis in overlay.matrix
        path: KeyPath = (*scale_path, "matrix", axis) if replaced else ("matrix", axis)
        chosen = overlay.matrix[axis] if replaced else values
        axes.append([{axis: (value, study.document.mark((*path, i)))} for i, value in enumerate(chosen)])
    for i, group in enumerate(study.file.zip):
        rows = range(len(next(iter(group.values()))))
        axes.append(
            [
                {
                    axis: (values[row], study.document.mark(("zip", i, axis, row)))
                    for axis, values in group.items()
                }
                for row in rows
            ]
        )
    if (cells := prod(map(len, axes))) > MAX_CELLS:
        problem = f"the matrix has {cells:,} cells; the limit is {MAX_CELLS:,}"
        raise InvalidFile([Problem(study.document.mark(("matrix",)), problem)])
    excluded = [0] * len(study.file.exclude)
    for combination in itertools.product(*axes) if axes else ():
        factors = {axis: setting for part in combination for axis, setting in part.items()}
        hits = [i for i, where in enumerate(study.file.exclude) if _matches(factors, where)]
        for i in hits:
            excluded[i] += 1
        if not hits:
            yield factors, study.document.mark(("matrix",))
    _refuse_idle_excludes(study, excluded)
    for i, entry in enumerate(study.file.include):
        mark = study.document.mark(("include", i))
        yield (
            {
                dotted: (value, study.document.mark(path))
                for dotted, value, path in flatten(entry, ("include", i))
            },
            mark,
        )
    if not axes and not study.file.include:
        yield {}, study.document.mark(())


def _refuse_idle_excludes(study: Study, hits: list[int]) -> None:
    idle = [i for i, count in enumerate(hits) if not count]
    if idle:
        raise InvalidFile(
            [Problem(study.document.mark(("exclude", i)), "matches no cell of the matrix") for i in idle]
        )


def _rules(study: Study, overlay: Scale, scale_path: KeyPath) -> list[tuple[Rule, KeyPath]]:
    own = [(rule, ("rules", i)) for i, rule in enumerate(study.file.rules)]
    scaled = [(rule, (*scale_path, "rules", i)) for i, rule in enumerate(overlay.rules)]
    return [*own, *scaled]


def _idle_rules(
    study: Study,
    common: dict[str, Setting],
    rules: list[tuple[Rule, KeyPath]],
    candidates: list[tuple[dict[str, Setting], Mark]],
) -> Iterator[Problem]:
    for rule, path in rules:
        if unknown := [axis for axis in rule.where if axis not in study.axes]:
            text = f"'{unknown[0]}' is not a factor of this study {did_you_mean(unknown[0], study.axes)}"
            yield Problem(study.document.mark((*path, "where", unknown[0])), text)
        elif not any(_matches(common | factors, rule.where) for factors, _ in candidates):
            yield Problem(study.document.mark((*path, "where")), "matches no cell")
        for dotted, _, place in flatten(rule.set, (*path, "set")):
            if dotted in study.axes:
                text = f"'{dotted}' is a factor of this study, so rules cannot change it"
                yield Problem(study.document.mark(place), text)


def _matches(factors: dict[str, Setting], where: Where) -> bool:
    return all(
        axis in factors and factors[axis][0] in (wanted if isinstance(wanted, list) else [wanted])
        for axis, wanted in where.items()
    )


def _resolve(
    study: Study,
    common: dict[str, Setting],
    factors: dict[str, Setting],
    rules: list[tuple[Rule, KeyPath]],
    overrides: dict[str, Setting],
) -> Cell | list[Problem]:
    settings = _over(common, factors)
    expected, because = Outcome.COMPLETED, None
    resources = Resources()
    why = [str(mark) for _, mark in factors.values()]
    for rule, path in rules:
        if _matches(common | factors, rule.where):
            changes = flatten(rule.set, (*path, "set"))
            marked = {dotted: (value, study.document.mark(place)) for dotted, value, place in changes}
            settings = _over(settings, marked)
            expected, because = (rule.expect, rule.because) if rule.expect else (expected, because)
            resources = resources.model_copy(update=rule.resources.model_dump(exclude_none=True))
            why.append(str(study.document.mark(path)))
    settings = _over(settings, overrides)
    try:
        config = RunConfig.model_validate(nest({dotted: value for dotted, (value, _) in settings.items()}))
    except ValidationError as error:
        return [
            Problem(_setter(study, settings, detail["loc"]), explain(RunConfig, detail))
            for detail in error.errors(include_url=False)
        ]
    if config.attention not in attention.names():
        # Checked here and not in RunConfig, so that records of backends removed since then stay readable.
        unknown = f"unknown attention backend '{config.attention}'"
        choices = did_you_mean(config.attention, attention.names())
        return [Problem(_setter(study, settings, ["attention"]), f"{unknown} {choices}")]
    if config.train.dtype == "float16":
        return [Problem(_setter(study, settings, ["train", "dtype"]), NO_FLOAT16)]
    resolved = config.model_dump()
    return Cell(
        run_id=_hash(study.name, resolved),
        group=_hash(study.name, {**resolved, "seed": None}),
        factors={axis: _at(resolved, axis) for axis in study.axes},
        config=config,
        expected=expected,
        because=because,
        resources=resources,
        why=tuple(why),
        marks={dotted: mark for dotted, (_, mark) in settings.items()},
    )


def _at(resolved: dict[str, Any], dotted: str) -> Scalar:
    value: Any = resolved
    for name in dotted.split("."):
        value = value[name]
    return cast(Scalar, value)


def _setter(study: Study, settings: dict[str, Setting], loc: Iterable[str | int]) -> Mark:
    """Where an invalid value was set; for a section, its newest value; `base` if it was never set."""
    dotted = ".".join(map(str, loc))
    marks = [mark for name, (_, mark) in settings.items() if name == dotted or name.startswith(dotted + ".")]
    return marks[-1] if marks else study.document.mark(("base",))


def _over(below: dict[str, Setting], above: dict[str, Setting]) -> dict[str, Setting]:
    """Merge two layers; the upper one wins, and its settings come last."""
    return {**{dotted: setting for dotted, setting in below.items() if dotted not in above}, **above}


def _hash(study: str, config: dict[str, Any]) -> str:
    return hashlib.sha256(dumps({"study": study, "config": config}).encode()).hexdigest()[:12]


def _overrides(study: Study, sets: Sequence[str]) -> dict[str, Setting]:
    return {dotted: setting for text in sets for dotted, setting in [_override(study, text)]}


def _override(study: Study, text: str) -> tuple[str, Setting]:
    dotted, equals, value = text.partition("=")
    mark = Mark(f"--set {text}")
    if not equals or dotted not in leaves():
        raise InvalidFile([Problem(mark, f"expected SETTING=VALUE {did_you_mean(dotted, leaves())}")])
    if dotted in study.axes:
        raise InvalidFile(
            [Problem(mark, f"'{dotted}' is a factor of this study; select cells with --only {text}")]
        )
    return dotted, (parse(value or '""', f"--set {dotted}").data, mark)


def _filters(study: Study, only: Sequence[str], candidates: list[dict[str, Setting]]) -> Where:
    wanted: Where = {}
    for text in only:
        axis, equals, values = text.partition("=")
        if not equals or axis not in study.axes:
            raise UserError(f"--only {text}: expected FACTOR=VALUE {did_you_mean(axis, study.axes)}")
        present = {str(factors[axis][0]): factors[axis][0] for factors in candidates if axis in factors}
        picked = [str(parse(value or '""', "--only").data) for value in values.split(",")]
        if unknown := [value for value in picked if value not in present]:
            choices = did_you_mean(unknown[0], list(present))
            raise UserError(f"--only {text}: no cell has {axis} = '{unknown[0]}' {choices}")
        wanted[axis] = [present[value] for value in picked]
    return wanted


def _refuse_twins(study: Study, cells: list[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        if twin := seen.get(cell.run_id):
            text = f"two cells are the same run: {cell.factors} and {twin.factors}"
            raise InvalidFile([Problem(study.document.mark(("matrix",)), text)])
        seen[cell.run_id] = cell
