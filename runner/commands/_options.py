"""Options and arguments shared by several verbs, and the workspace of this invocation."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from model.record.errors import UserError, did_you_mean, local_path, no_runs
from runner.commands._console import say
from runner.inputs.batch import check_path
from runner.state.filesystem import existing
from runner.state.ledger import RunState
from runner.state.runs import find, folders_like, study_names

if TYPE_CHECKING:
    from runner.inputs.cells import Cell
    from runner.inputs.study import Study

StudyPaths = Annotated[
    list[Path], typer.Argument(metavar="STUDY", help="A study's YAML file, several, or a folder of them.")
]


def study_files(given: Sequence[Path]) -> list[Path]:
    """The files of studies that are given, those of a folder in the order of their names.

    Raises:
        UserError: a folder has none, or a file is given twice.
    """
    files = list[Path]()
    for path in given:
        own = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
        if not own:
            raise UserError(f"{path}: no study in this folder; name one that has .yaml files")
        files += own
    for place, path in enumerate(files):
        if path.resolve() in {other.resolve() for other in files[:place]}:
            raise UserError(f"{path} is given twice: leave one out")
    return files


def refuse_empty_name(study: str | None) -> str | None:
    """Refuse an empty name, such as that of an unset shell variable: it would mean all studies."""
    if study is not None and not study.strip():
        raise typer.BadParameter("the name is empty; leave it out for all studies")
    return study


StudyOrRun = Annotated[
    str, typer.Argument(metavar="STUDY|RUN", help="A study's name or file, or a run: ID or STUDY/ID.")
]
ProfileName = Annotated[
    str | None,
    typer.Option("--profile", "-p", help="A profile's name or file [env: RUNNER_PROFILE; default: local]."),
]
OtherProfile = Annotated[
    str | None,
    typer.Option("--profile", "-p", help="Another profile's name or file [default: that of the launch]."),
]
Timeout = Annotated[
    int, typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after this long; 0 means never.")
]
ScaleName = Annotated[
    str | None, typer.Option("--scale", "-s", help="A scale of the study [default: the profile's].")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override a setting in every run; repeatable."),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only", metavar="FACTOR=VALUE", help="Only these cells; VALUE,VALUE for several; repeatable."
    ),
]
Wait = Annotated[
    bool | None,
    typer.Option("--wait/--detach", help="Wait for all runs to end, or return at once [local: wait]."),
]
Removed = Annotated[
    bool, typer.Option("--removed", help="Include runs that the study no longer has since it was changed.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace what was made there from another root.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run: its id, STUDY/ID, or a unique prefix of either.")
]


# How names of files end that verbs write into folders, or that somebody may take the folder for.
_FILES = (
    *(".csv", ".db", ".duckdb", ".gz", ".htm", ".html", ".json", ".md", ".parquet", ".pdf", ".png", ".sh"),
    *(".svg", ".tar", ".tex", ".tgz", ".yaml", ".yml", ".zip"),
)


def refuse_file_name(folder: Path | None) -> Path | None:
    """Refuse the name of a file where a folder will be written."""
    if folder is not None and folder.suffix.lower() in _FILES and not folder.exists():
        raise typer.BadParameter(f"{folder}: this writes a folder; name it without {folder.suffix}")
    return folder


class Settings:
    """Global options of this invocation, set once by the command line."""

    root = Path("runs")


def workspace(given: str, by: str) -> Path:
    """The absolute path of the workspace.

    Args:
        by: the option or variable that gives it.

    Raises:
        UserError: it cannot be a folder, or not one that a batch script can name.
    """
    if not given.strip():
        raise UserError(f"{by} {given!r}: write the folder's path in full")
    try:
        root = local_path(given).absolute()
    except UserError as error:
        raise UserError(f"{by}: {error}") from error
    except FileNotFoundError as error:
        raise UserError("the working directory no longer exists; change to another one") from error
    check_path(root)
    if not (there := existing(root)).is_dir():
        raise UserError(f"{by} {given}: {there} is not a folder")
    return root


def command_prefix() -> str:
    """How a user types this program for the same root."""
    if Settings.root == Path.cwd() / os.environ.get("RUNNER_ROOT", "runs"):
        return "runner"
    return f"runner --root {shlex.quote(str(Settings.root))}"


def study_name(given: str, also: Sequence[str] = ()) -> str:
    """Resolve a study's name or file to the name of a study in this workspace.

    Args:
        also: studies that count too, although they may have no run folders.

    Raises:
        UserError: the study has no runs here.
    """
    from runner.execute import queue

    if not given.strip():
        raise UserError(f"'{given}' names no study; list them with `runner status`")
    name, root = given, Settings.root
    names = sorted({*study_names(root), *also})
    if names_file(given) or (given not in names and Path(given).is_dir()):
        from runner.inputs.study import read_study

        name = read_study(local_path(given)).name  # of a folder, its error says which studies are in it
    if name not in names:
        if waits := queue.describe_waiting(root, name):
            raise UserError(f"no runs of study '{name}' yet: {waits[0]}")
        if (runs := folders_like(root, given)) and not names_file(given):
            raise UserError(f"'{given}' is a run; name its study, {runs[0].path.parent.name}")
        raise no_runs(root, name, sorted({*names, *queue.waiting_studies(root)}))
    return name


def several_studies(given: Sequence[str], also: Sequence[str]) -> list[str]:
    """Resolve names, files and folders of files to the names of studies in this workspace, each once.

    Of a folder, studies that have no runs here are named on standard error, if others have.

    Args:
        also: as `study_name`.

    Raises:
        UserError: as `study_name`, or a folder has no study, or none with runs here.
    """
    from runner.inputs.study import read_study

    known, names = {*study_names(Settings.root), *also}, dict[str, None]()
    for text in given:
        if not text or text in known or not Path(text).is_dir():
            names[study_name(text, also)] = None
            continue
        files = {read_study(path).name: path for path in study_files([Path(text)])}
        here = [name for name in files if name in known] or [study_name(str(path)) for path in files.values()]
        names |= dict.fromkeys(here)
        if missing := [str(path) for name, path in files.items() if name not in here]:
            typer.echo(f"without {', '.join(missing)}, of which there are no runs yet", err=True)
    return [*names]


def study_or_run(given: str, also: Sequence[str] = ()) -> tuple[str, RunState | None]:
    """Resolve a study's name or file, or a run, to the study, and to the run if it is one.

    Args:
        also: as `study_name`.

    Raises:
        UserError: there is no such study or run here.
    """
    from runner.execute import queue

    root = Settings.root
    names = {*study_names(root), *also}
    is_path = names_file(given) or Path(given).is_dir()
    if is_path or given in names or not names or queue.describe_waiting(root, given):
        return study_name(given, also), None
    state = find(root, given, studies=sorted(names))
    return state.brief.study, state


def studies_or_run(given: Sequence[str], also: Sequence[str]) -> tuple[list[str], RunState | None]:
    """Resolve as `several_studies`, but a single name as `study_or_run`, which may be a run's."""
    for text in given:
        refuse_empty_name(text)
    if len(given) != 1 or Path(given[0]).is_dir():
        return several_studies(given, also), None
    name, run = study_or_run(given[0], also)
    return [name], run


def cells_of(
    study: Study,
    scale: str,
    sets: Sequence[str] | None = None,
    only: Sequence[str] | None = None,
    repeats: int | None = None,
) -> list[Cell]:
    """Expand a study, refuse one of which no run can start, and warn about what is probably a mistake.

    Args:
        repeats: of each cell, in place of the study's.

    Raises:
        UserError: as `expand`, or as `lacking_calls`.
    """
    from runner.inputs.checks import doubts, lacking_calls
    from runner.inputs.expansion import expand

    cells = expand(study, scale, sets or (), only or (), repeats)
    for doubt in (*doubts(cells), *lacking_calls(cells)):
        say(doubt.shown())
    return cells


def names_file(given: str) -> bool:
    """Whether a study was given as a YAML file rather than by name."""
    return given.endswith((".yaml", ".yml"))


def parse_margins(texts: Sequence[str]) -> dict[str, float]:
    """Margins by quantity, each given as `--margin QUANTITY=VALUE`, with values as in a study.

    Raises:
        UserError: no such quantity, or not a value for it.
    """
    from pydantic import ValidationError

    from runner.inputs.design import Margins
    from runner.inputs.validation import in_plain_words

    values: dict[str, float] = {}
    valid = list(Margins.model_fields)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise UserError(f"--margin {text}: expected NAME=VALUE, such as loss=0.02")
        if name not in valid:
            raise UserError(f"--margin {text}: no margin '{name}' {did_you_mean(name, valid)}")
        try:
            values |= Margins.model_validate({name: value}, strict=False).stated
        except ValidationError as error:
            why = in_plain_words(error.errors()[0]["msg"])
            raise UserError(f"--margin {text}: {why}") from error
    return values
