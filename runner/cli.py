"""The command line. Each command is thin: it reads options, calls one module, and prints.

Exit codes: 0 all as expected; 1 some run ended otherwise; 2 usage or configuration; 3 the scheduler refused
or cannot be reached; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from model.errors import AssayError
from runner.options import (
    AsJson,
    DryRun,
    Only,
    ProfileName,
    Rehearse,
    Root,
    ScaleName,
    Sets,
    Settings,
    StudyName,
    StudyPath,
    Wait,
    Yes,
    app,
    print_json,
)  # fmt: skip


@app.callback()
def _globals(root: Root = Path("runs")) -> None:
    from runner.batch import check_path

    Settings.root = root.absolute()
    check_path(Settings.root)


@app.command()
def init(folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where to write.")] = Path()) -> None:
    """Write a study and a profile to start from, with schemas for editors."""
    from runner.starter import write_starter

    for path in write_starter(folder):
        print(path)


@app.command()
def data(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of text files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The Parquet file to write.")],
    match: Annotated[str, typer.Option(help="File names to take, as a shell pattern.")] = "*",
    exclude: Annotated[list[str] | None, typer.Option(help="Folder names to leave out; repeatable.")] = None,
) -> None:
    """Make a Parquet file with a text column from any folder of text."""
    from runner.console import say
    from runner.corpus import write_corpus

    tally = write_corpus(folder, out, match, exclude or [])
    say(f"{tally.documents:,} documents, {tally.characters:,} characters")
    say(f"left out: {tally.not_text:,} files that are not UTF-8")
    print(out)


@app.command()
def schema(kind: Annotated[Literal["study", "profile"], typer.Argument(help="Which file.")]) -> None:
    """Print the JSON Schema of a study or profile."""
    from runner.schema import json_schema

    print_json(json_schema(kind))


@app.command()
def validate(study: StudyPath) -> None:
    """Check a study at each of its scales: FILE:LINE:COL, what is wrong, and what would be right."""
    from runner.errors import InvalidFile
    from runner.matrix import expand as cells
    from runner.study import read_study

    parsed = read_study(study)
    problems = []
    for name in dict.fromkeys(["full", *parsed.file.scales]):
        try:
            print(f"{study}: scale {name}: {len(cells(parsed, name))} runs")
        except InvalidFile as error:
            problems += error.problems
    if problems:
        raise InvalidFile(problems)


@app.command()
def expand(
    study: StudyPath,
    profile: ProfileName = None,
    scale: ScaleName = None,
    sets: Sets = None,
    only: Only = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs, their factors, and why each exists."""
    from runner.cluster import read_cluster
    from runner.console import table
    from runner.matrix import expand as cells
    from runner.study import read_study

    parsed = read_study(study)
    at = parsed.scale_for(scale, read_cluster(profile).profile.scale)
    found = cells(parsed, at, sets or (), only or ())
    if as_json:
        print_json([cell.as_json() for cell in found])
        return
    axes = list(found[0].factors) if found else []
    rows = [
        [cell.run_id, *(str(cell.factors[axis]) for axis in axes), cell.expected, " ".join(cell.why)]
        for cell in found
    ]
    table(["run", *axes, "expected", "why"], rows)


@app.command()
def launch(
    study: StudyPath,
    profile: ProfileName = None,
    scale: ScaleName = None,
    sets: Sets = None,
    only: Only = None,
    dry_run: DryRun = False,
    rehearse: Rehearse = False,
    wait: Wait = None,
    yes: Yes = False,
) -> None:
    """Run what is not completed, on this machine or on a cluster."""
    from runner import launching
    from runner.cluster import read_cluster
    from runner.launch import plan
    from runner.matrix import expand as cells
    from runner.study import read_study

    cluster, parsed = read_cluster(profile), read_study(study)
    at = parsed.scale_for(scale, cluster.profile.scale)
    planned = plan(parsed, cells(parsed, at, sets or (), only or ()), at, cluster, Settings.root)
    if dry_run:
        launching.show_plan(planned)
        return
    if rehearse:
        raise typer.Exit(launching.rehearse(planned))
    launching.say_cost(planned)
    if cluster.profile.executor == "slurm" and not yes and sys.stdin.isatty():
        typer.confirm(f"Submit {len(planned.left)} runs to {cluster.name}?", abort=True)
    raise typer.Exit(launching.start(planned, wait))


@app.command()
def retry(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study's name, or its file.")],
    outcome: Annotated[
        list[str] | None, typer.Option(help="Which outcome; repeatable [default: all not as expected].")
    ] = None,
    profile: ProfileName = None,
    wait: Wait = None,
) -> None:
    """Start runs again that have ended, as they were planned."""
    from runner import launching
    from runner import status as stands
    from runner.cluster import read_cluster
    from runner.console import say
    from runner.launch import planned_again

    name = stands.study_name(Settings.root, study)
    chosen = stands.ended(stands.reconciled(Settings.root, name), outcome)
    if not chosen:
        say("nothing to start again")
        return
    plan = planned_again(Settings.root, chosen, read_cluster(profile or chosen[0].run.profile))
    raise typer.Exit(launching.start(plan, wait))


@app.command()
def reproduce(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its start.")],
    profile: ProfileName = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Another root for the repeat.")] = None,
) -> None:
    """Run the same code, configuration and seed again, and compare."""
    from runner import launching
    from runner import reproduce as repeat

    code = repeat.reproduce(Settings.root, run, launching.start_repeat, out and out.absolute(), profile)
    raise typer.Exit(code)


@app.command()
def gc(study: StudyName = None, dry_run: DryRun = False) -> None:
    """Remove what can be rebuilt or is of no more use; results are never touched."""
    from runner import gc as collector
    from runner import status as stands
    from runner.console import say, table

    name = stands.study_name(Settings.root, study) if study else None
    stands.reconciled(Settings.root, name)
    items = collector.plan(Settings.root, name)
    table(["path", "bytes", "inodes", "why"], collector.rows(Settings.root, items))
    if dry_run:
        say(collector.summary(items, "would free"))
    else:
        say(collector.summary(collector.remove(Settings.root, items), "freed"))


@app.command()
def explain(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its start.")],
    as_json: AsJson = False,
) -> None:
    """Say why a run exists and what happened to it, attempt by attempt."""
    from runner import explanation
    from runner import status as stands

    stands.reconciled(Settings.root)
    told = explanation.explain(stands.find(Settings.root, run))
    if as_json:
        print_json(told)
    else:
        explanation.show(told)


@app.command()
def status(
    study: StudyName = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing it.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show where every run stands."""
    from runner import standing
    from runner import status as stands

    name = stands.study_name(Settings.root, study) if study else None
    if as_json:
        print_json(standing.rows(stands.reconciled(Settings.root, name)))
    elif watch:
        standing.watch(Settings.root, name)
    else:
        standing.show(stands.reconciled(Settings.root, name))


@app.command()
def logs(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or its start.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
) -> None:
    """Print what a run's newest attempt printed, and how it ended."""
    from runner import standing
    from runner import status as stands

    standing.logs(Settings.root, stands.find(Settings.root, run).run.run_id, follow)


@app.command()
def cancel(
    target: Annotated[
        str, typer.Argument(metavar="STUDY|RUN", help="A study's name or file, or a run's id.")
    ],
) -> None:
    """Stop what is in flight."""
    from runner import status as stands
    from runner.console import say

    is_study = target.endswith((".yaml", ".yml")) or target in stands.study_names(Settings.root)
    if is_study:
        found = stands.reconciled(Settings.root, stands.study_name(Settings.root, target))
    else:
        found = [stands.find(Settings.root, target)]
    stopped = stands.cancel(found)
    say(f"{len(stopped)} of {len(found)} runs were in flight and told to stop")


import_module("runner.cli_results")  # adds its commands to the application


def _stop(code: int, text: str = "") -> NoReturn:
    if text:
        print(text, file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """Run the command line; a person's error is printed without a traceback."""
    from gc import set_threshold

    set_threshold(1_000_000)  # runs are many and have no cycles: looking for some took a third of `status`
    try:
        app()
    except AssayError as error:
        _stop(error.exit_code, str(error))
    except KeyboardInterrupt:
        _stop(130, "interrupted")
    except BrokenPipeError:  # `runner sql ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _stop(141)


if __name__ == "__main__":
    main()
