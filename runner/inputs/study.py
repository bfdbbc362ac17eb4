"""A study: one YAML file that defines what varies. Parsed and validated once, into frozen types."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from model.record.config import TASKS, Frozen
from model.record.errors import did_you_mean
from model.record.outcome import Outcome
from model.record.records import NAME
from model.record.reported import QUANTITIES, Reported, ReportedNumbers, ReportedOrigin, as_printed
from model.record.tasks import FIRST
from runner.inputs.design import Design, DesignKeys
from runner.inputs.document import Document, InvalidFile, KeyPath, Mark, Problem, read_document
from runner.inputs.profile import Budget, Cluster, Profile, Resources
from runner.inputs.settings import Scalar, flatten, leaves, unknown
from runner.inputs.validation import validated

MAX_CELLS = 100_000
MAX_NAME = 100
MAX_LABEL = 60
PLACE = re.compile(r"\{([^{}]*)\}")  # of a factor's value in a label


def valid_name(name: str) -> str:
    """Check a study's name. Raises ValueError."""
    if not NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ValueError(
            f"a name has at most {MAX_NAME} letters, digits, '.', '_' and '-', "
            "and starts with a letter or digit"
        )
    return name


def _one_line(text: str) -> str:
    if not text.strip() or "\n" in text or "\t" in text:
        raise ValueError("a title is one line of text")
    return text


def _label(text: str) -> str:
    if not text.isprintable() or text != text.strip() or not text or len(PLACE.sub("", text)) > MAX_LABEL:
        raise ValueError(f"a label is one line of at most {MAX_LABEL} characters, without spaces around it")
    return unicodedata.normalize("NFC", text)  # two that look alike are one


Axis = Annotated[list[Scalar], Field(min_length=1)]
Assignment = dict[str, Any]
Where = dict[str, Scalar | list[Scalar]]
# By which of the two it is, so that a wrong word has one error.
Expected = Annotated[
    Annotated[Outcome, Tag("one")] | Annotated[list[Outcome], Field(min_length=1), Tag("several")],
    Discriminator(lambda given: "several" if isinstance(given, list) else "one"),
]


class Rule(Frozen):
    """Settings for the cells whose factors match `where`."""

    where: Where = Field(min_length=1, description="Value or list of values by factor; all must match.")
    set: Assignment = Field(default={}, description="Configuration of these cells.")
    resources: Resources = Field(
        default=Resources(), description="Resources of these runs; override the profile's."
    )
    expect: Expected | None = Field(
        None, description="Expected outcome of these runs; a list: any of these, the likeliest first."
    )
    because: str | None = Field(None, description="Why that outcome is expected; shown in the report.")
    label: Annotated[str, AfterValidator(_label)] | None = Field(
        None,
        description="What charts and tables call this group, in place of its factors; `{train.batch_size}` "
        "stands for that factor's value.",
    )

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not (self.set or self.expect or self.label or self.resources != Resources()):
            raise ValueError("this rule has no effect: give it `set`, `resources`, `expect` or `label`")
        if self.because and self.expect is None:
            raise ValueError("`because` says why an outcome is expected: add `expect`")
        return self


class ReportedEntry(ReportedOrigin, ReportedNumbers):
    """What others report of the groups whose factors match `where`."""

    where: Where = Field(
        default={}, description="Value or list of values by factor; all must match. None: every group."
    )


class Scale(DesignKeys):
    """A named set of overrides, so that one study can run on a laptop or at full size."""

    description: str = ""
    set: Assignment = Field(default={}, description="Configuration at this scale; overrides `base`.")
    matrix: dict[str, Axis] = Field(default={}, description="Axes that this scale replaces.")
    zip: list[Annotated[dict[str, Axis], Field(min_length=1)]] = Field(
        default=[], description="Groups that replace the study's groups of the same axes."
    )
    include: list[Assignment] = Field(default=[], description="Cells added to the matrix at this scale.")
    rules: list[Rule] = Field(default=[], description="Rules of this scale, applied after the study's.")


class _Heading(Frozen):
    """The heading of a study. A separate class, so that these keys come first wherever keys are listed."""

    name: Annotated[str, AfterValidator(valid_name)] = Field(
        "", validate_default=False, description="Name of the results folder; default: the file's name."
    )
    title: Annotated[str, AfterValidator(_one_line)] = Field(description="One line; the report's heading.")
    description: str = Field("", description="The question, in a few sentences; shown in the report.")


class StudyFile(DesignKeys, _Heading):
    """The keys of a study's YAML file."""

    base: Assignment = Field(default={}, description="Configuration that all runs share.")
    matrix: dict[str, Axis] = Field(
        default={}, description="Axes; every combination of their values is a cell."
    )
    zip: list[Annotated[dict[str, Axis], Field(min_length=1)]] = Field(
        default=[], description="Groups of axes of equal length that vary together."
    )
    include: list[Assignment] = Field(default=[], description="Cells added to the matrix.")
    exclude: list[Where] = Field(default=[], description="Cells removed from the matrix.")
    rules: list[Rule] = Field(default=[], description="Settings for some cells, applied in order.")
    reported: list[ReportedEntry] = Field(
        default=[], description="Numbers of other people, shown beside those of the runs; never compared."
    )
    budget: Budget | None = Field(None, description="Spending limit for all runs of this study under a root.")
    scales: dict[str, Scale] = Field(
        default={}, description="Scales by name; `full` needs no entry: it is the study without overrides."
    )


@dataclass(frozen=True)
class Study:
    """A validated study and its source document, which has the positions for errors."""

    name: str
    path: Path
    file: StudyFile
    document: Document

    @property
    def axes(self) -> tuple[str, ...]:
        """All factors, in file order."""
        zipped = [axis for group in self.file.zip for axis in group]
        entries = [
            *self.file.include,
            *(entry for scale in self.file.scales.values() for entry in scale.include),
        ]
        included = [dotted for entry in entries for dotted, _, _ in flatten(entry, ())]
        return tuple(dict.fromkeys([*self.file.matrix, *zipped, *included]))

    @property
    def tasks(self) -> list[str]:
        """The tasks that it names for any cells or scales; empty if it names none, and so trains."""
        given = [
            value
            for assignment, place in _assignments(self)
            for dotted, values, _ in flatten(assignment, place)
            if dotted == "task"
            for value in (values if isinstance(values, list) else [values])
        ]
        return [task for task in TASKS if task in given]

    @property
    def scale_names(self) -> tuple[str, ...]:
        """All scales; `full` needs no entry."""
        return tuple(dict.fromkeys(["full", *self.file.scales]))

    def design(self, scale: str) -> Design:
        """Repeats, order, baseline, margins and `until` at a scale. Raises InvalidFile: no such scale."""
        return Design.combined(self.file, self.scale(scale)[0])

    def reported(self, place: int) -> Reported:
        """An entry of `reported`, with the digits that the file has."""
        entry, digits = self.file.reported[place], self.document.digits
        numbers = {
            name: as_printed(value, digits.get(("reported", place, name)))
            for name, value in entry.given.items()
        }
        origin = {name: getattr(entry, name) for name in ReportedOrigin.model_fields}
        return Reported(numbers=numbers, **origin)

    def key_at(self, scale: str, *path: str | int) -> Mark:
        """Position of a key that the scale may override: there, else in the study."""
        overlay, place = self.scale(scale)
        given = path and getattr(overlay, str(path[0])) is not None
        return self.document.mark((*place, *path) if given else path)

    def scale_for(self, asked: str | None, cluster: Cluster) -> str:
        """The requested scale, else the profile's; `full` if the study defines no scales.

        Raises:
            InvalidFile: the profile's scale is none of the study's.
        """
        if asked is not None:
            return asked
        if not self.file.scales:
            return "full"
        if (name := cluster.profile.scale) not in self.scale_names:
            choices = f"valid: {', '.join(self.scale_names)}"
            text = f"profile {cluster.name} asks for scale '{name}', which this study lacks ({choices})"
            raise InvalidFile.at(self.document.mark(("scales",)), f"{text}; choose one with --scale")
        return name

    def scale(self, name: str) -> tuple[Scale, KeyPath]:
        """A scale and its path in the document; `full` needs no entry.

        Raises:
            InvalidFile: no such scale.
        """
        if name in self.file.scales:
            return self.file.scales[name], ("scales", name)
        if name == "full":
            return Scale(), ("scales",)
        choices = did_you_mean(name, self.scale_names)
        text = f"no scale '{name}' in this study {choices}; choose one with --scale"
        raise InvalidFile.at(self.document.mark(("scales",)), text)


def read_study(path: Path) -> Study:
    """Read and validate a study.

    Raises:
        InvalidFile: lists every invalid key, value and setting path with its position.
    """
    try:
        document = read_document(path)
    except InvalidFile as error:
        if path.is_dir() and (studies := sorted(map(str, path.glob("*.y*ml")))):
            text = f"a folder of studies, and one is wanted here: name one of {', '.join(studies)}"
            raise InvalidFile.at(Mark(str(path)), text) from error
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        # The studies beside it and in `experiments/`, and which one was probably meant.
        folders = (path.parent, Path("experiments"))
        files = {file.absolute(): str(file) for folder in folders for file in folder.glob("*.yaml")}
        choices = "(no study nearby: change to the folder that has yours, or write one with `runner init`)"
        if studies := sorted(files.values()):
            same_name = next((study for study in studies if Path(study).stem == path.stem), None)
            choices = did_you_mean(str(path), studies, same_name)
        raise InvalidFile.at(Mark(str(path)), f"No such file {choices}") from error
    file = validated(document, StudyFile, _misplaced, partial(_unmeasured, document))
    try:
        name = file.name or valid_name(path.stem)
    except ValueError as error:
        raise InvalidFile.at(
            document.mark(()), f"file name '{path.stem}': {error}; or add `name:`"
        ) from error
    study = Study(name, path, file, document)
    checks = (_wrong_settings, _wrong_zips, _wrong_axes, _wrong_until)
    if problems := [problem for check in checks for problem in check(study)]:
        raise InvalidFile(problems)
    return study


def _unmeasured(document: Document, place: KeyPath) -> list[str]:
    """Under `reported`, the quantities that no run of the task that `base` names measures."""
    base = document.data.get("base")
    task = base.get("task", FIRST) if isinstance(base, dict) else FIRST
    if place[0] != "reported" or task not in list(TASKS):
        return []
    return [name for name in QUANTITIES if name not in TASKS[task].measures]


def _misplaced(place: KeyPath) -> str:
    """Advice for a key that belongs elsewhere: a setting, or a key of a profile."""
    key = str(place[-1])
    setting = any(key in (leaf, *leaf.split(".")) for leaf in leaves())
    if place[0] == "rules" and len(place) == 3 and setting:
        return "; a setting that this rule changes belongs under its `set`"
    if place[0] == "rules" and len(place) == 3 and key in Resources.model_fields:
        return f"; '{key}' belongs under its `resources`"
    if place[0] == "scales" and len(place) == 3 and (setting or key == "base"):
        return "; a setting that this scale changes belongs under its `set`"
    if setting and len(place) == 1:
        return "; a setting of all runs belongs under `base`, one that varies under `matrix`"
    if key in Profile.model_fields and len(place) == 1:
        return f"; '{key}' belongs in a profile, which --profile names"
    return ""


def _assignments(study: Study) -> Iterator[tuple[Assignment, KeyPath]]:
    """Every mapping of settings to values, with its path."""
    file = study.file
    yield file.base, ("base",)
    parts: list[tuple[StudyFile | Scale, KeyPath]] = [(file, ())]
    parts += [(scale, ("scales", name)) for name, scale in file.scales.items()]
    for part, path in parts:
        if isinstance(part, Scale):
            yield part.set, (*path, "set")
        yield dict(part.matrix), (*path, "matrix")
        yield from ((dict(group), (*path, "zip", i)) for i, group in enumerate(part.zip))
        yield from ((entry, (*path, "include", i)) for i, entry in enumerate(part.include))
        yield from ((rule.set, (*path, "rules", i, "set")) for i, rule in enumerate(part.rules))


def _wrong_settings(study: Study) -> Iterator[Problem]:
    """Unknown settings, and those set twice in one mapping: `train: {steps: 1}` and `train.steps: 2`."""
    for assignment, place in _assignments(study):
        first: dict[str, KeyPath] = {}
        for dotted, _, path in flatten(assignment, place):
            if dotted not in leaves():
                yield Problem(study.document.mark(path), unknown(dotted, study.tasks))
            if dotted in first:
                line = study.document.mark(first[dotted]).line
                text = f"'{dotted}' is already set on line {line}; keep one of the two"
                yield Problem(study.document.mark(path), text)
            first.setdefault(dotted, path)


def _wrong_zips(study: Study) -> Iterator[Problem]:
    """Groups of unequal length, and groups of scales that take no group's place."""
    own_groups = [set(group) for group in study.file.zip]
    choices = "; ".join(", ".join(group) for group in study.file.zip) or "none"
    groups: list[tuple[KeyPath, dict[str, Axis]]] = [
        (("zip", i), group) for i, group in enumerate(study.file.zip)
    ]
    for name, scale in study.file.scales.items():
        groups += [(("scales", name, "zip", i), group) for i, group in enumerate(scale.zip)]
    for path, group in groups:
        mark = study.document.mark(path)
        if len({len(values) for values in group.values()}) > 1:
            lengths = ", ".join(f"{axis} {len(values)}" for axis, values in group.items())
            yield Problem(mark, f"axes of unequal length: {lengths}")
        if set(group) not in own_groups:
            yield Problem(mark, f"no group of `zip` has exactly these axes (its groups: {choices})")


def _wrong_axes(study: Study) -> Iterator[Problem]:
    """Axes given twice, axes of scales that the study lacks, and settings of scales that an axis hides."""
    axes, zipped = set(study.file.matrix), {axis for group in study.file.zip for axis in group}
    for i, group in enumerate(study.file.zip):
        for axis in group:
            if axis in axes:
                yield Problem(study.document.mark(("zip", i, axis)), f"'{axis}' is already an axis")
        axes |= set(group)
    for name, scale in study.file.scales.items():
        for axis in scale.matrix:
            if axis not in study.file.matrix:
                text = f"'{axis}' is not an axis of `matrix` {did_you_mean(axis, list(study.file.matrix))}"
                yield Problem(study.document.mark(("scales", name, "matrix", axis)), text)
        for dotted, _, place in flatten(scale.set, ("scales", name, "set")):
            if dotted in axes:
                text = (
                    f"'{dotted}' is a factor of this study, so a scale's `set` cannot change it; "
                    f"give this scale values for it under its `{'zip' if dotted in zipped else 'matrix'}`"
                )
                yield Problem(study.document.mark(place), text)


def _wrong_until(study: Study) -> Iterator[Problem]:
    """An `until` without a baseline, or below the repeats, at any scale."""
    for name in study.scale_names:
        design = study.design(name)
        if not design.until:
            continue
        if design.baseline is None:
            text = "`until` compares each group with a baseline: add one, such as `baseline: {FACTOR: VALUE}`"
            yield Problem(study.key_at(name, "until"), text)
        if design.until.at_most < design.repeats:
            text = f"'at_most' {design.until.at_most} is less than repeats, which is {design.repeats}"
            yield Problem(study.key_at(name, "until", "at_most"), text)
