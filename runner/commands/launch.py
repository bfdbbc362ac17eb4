"""Run the remaining runs of a study, or of several, on this machine or on a cluster.

Of several studies, all are checked before any starts.

Examples:
  runner launch experiments/first.yaml --dry-run
  runner launch experiments/seeds/001 --scale laptop
  runner launch experiments/first.yaml --only seed=0 --set train.steps=20
  runner launch experiments/first.yaml --profile alps --scale full --yes
  runner launch experiments/first.yaml --blocks 1
"""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from analysis.store.tables import OF_REPORTS
from model.record.errors import UserError
from model.record.units import counted
from runner.commands._console import say, table
from runner.commands._options import (
    Only,
    ProfileName,
    ScaleName,
    Sets,
    Settings,
    StudyPaths,
    Wait,
    cells_of,
    command_prefix,
    refuse_file_name,
    study_files,
)  # fmt: skip
from runner.inputs.design import Design
from runner.inputs.document import InvalidFile, Mark, Problem
from runner.inputs.profile import Cluster, read_cluster
from runner.inputs.study import read_study
from runner.plan import budget, cost, edits, fit
from runner.plan.fit import refuse_versions
from runner.plan.plan import Plan, plan, rehearsal
from runner.plan.precision import repeats_forecast
from runner.state.attempts import JobShape, jobs_folder, label
from runner.state.slurm import NoAnswer, SchedulerError

_WITHOUT_FILES = f"""\
SELECT DISTINCT run_id FROM files SEMI JOIN (FROM attempts WHERE outcome = 'completed') USING (study, run_id)
WHERE study = $1 AND (missing_since IS NOT NULL OR {OF_REPORTS})"""


@dataclass(frozen=True)
class StudyLaunch:
    """What a launch does with a study.

    Attributes:
        planned: the runs that it begins with.
        whole: these, and all repeats that `until` may add.
        design: of the study; None in a rehearsal.
        adds_repeats: whether `until` may add any.
    """

    planned: Plan
    whole: Plan
    design: Design | None
    adds_repeats: bool

    @property
    def name(self) -> str:
        """The study's name in this launch, which a rehearsal changes."""
        return self.planned.study.name


def command(
    studies: StudyPaths,
    profile: ProfileName = None,
    scale: ScaleName = None,
    sets: Sets = None,
    only: Only = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show runs, cost and batch scripts; start nothing.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Run each cell for two steps only, as a separate study.")
    ] = False,
    wait: Wait = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Submit to a cluster without asking.")] = False,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Concurrent runs; overrides the profile's max_parallel."),
    ] = None,
    fail_fast: Annotated[
        bool,
        typer.Option(
            "--fail-fast",
            help="Start no more runs after one ends unexpectedly; on a cluster, only with --wait.",
        ),
    ] = False,
    blocks: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Start only what is left of the next N unfinished blocks."),
    ] = None,
    scripts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --dry-run: also write the batch scripts to this folder.",
            callback=refuse_file_name,
        ),
    ] = None,
) -> None:
    from runner.commands._start import start_detached

    if scripts and not dry_run:
        raise UserError("--scripts needs --dry-run: a launch keeps its own scripts")
    if rehearse and wait is False:
        raise UserError("--rehearse waits for its runs: leave out --detach")
    paths = study_files(studies)
    cluster = read_cluster(profile, paths[0])
    if parallel is not None:
        changed = cluster.profile.model_copy(update={"max_parallel": parallel})
        if parallel > 1 and changed.executor == "local" and not changed.gpus:
            say(f"{parallel} runs at once share this machine: do not compare their timings")
        # Messages about the number say that it is an option.
        marks = {**cluster.document.marks, ("max_parallel",): Mark(f"--parallel {parallel}")}
        cluster = replace(cluster, profile=changed, document=replace(cluster.document, marks=marks))
    on_slurm = cluster.profile.executor == "slurm"
    if fail_fast and on_slurm and not (wait or rehearse):
        raise UserError("--fail-fast on a cluster needs --wait, which sees how the runs end")

    prepare = partial(
        _prepare, cluster=cluster, scale=scale, sets=sets, only=only, blocks=blocks, rehearse=rehearse
    )
    launches = _prepare_all(paths, prepare)
    if dry_run:
        _show_dry_run(launches, scripts)
        return
    if len(launches) > 1 and (reasons := [*_refusals(launches)]):
        raise UserError("\n".join([*reasons, "nothing was started"]))
    if not rehearse:
        for launch in launches:
            _say_needs(launch, len(launches) > 1)
        if on_slurm and not yes and sys.stdin.isatty():
            left = sum(len(launch.planned.left) for launch in launches)
            typer.confirm(f"Submit {counted(left, 'run')} to {cluster.name}?", abort=True)
    if len(launches) > 1 and start_detached(launches[0].planned, wait):
        return
    worst = _start_all(launches, True if rehearse else wait, fail_fast)
    if len(launches) > 1 and not rehearse:
        given = " ".join(shlex.quote(str(path)) for path in studies)
        report = f"`{command_prefix()} report {given}`"
        say(f"next: {report} makes one report of all; `status` and `export` take them too")
    raise typer.Exit(worst)


def _prepare_all(paths: Sequence[Path], prepare: Callable[[Path], StudyLaunch]) -> list[StudyLaunch]:
    """Prepare each study.

    Raises:
        InvalidFile: with what is wrong in any of them.
        UserError: as `_prepare`, or two have one name.
    """
    launches, problems = list[StudyLaunch](), list[Problem]()
    for path in paths:
        try:
            launches.append(prepare(path))
        except InvalidFile as error:
            problems += error.problems
    if problems:
        raise InvalidFile(problems)
    by_name = dict[str, Path]()
    for path, launch in zip(paths, launches, strict=True):
        if (other := by_name.setdefault(launch.name, path)) is not path:
            raise UserError(f"{other} and {path} are both study '{launch.name}': give one another `name:`")
    return launches


def _prepare(
    path: Path,
    *,
    cluster: Cluster,
    scale: str | None,
    sets: Sequence[str] | None,
    only: Sequence[str] | None,
    blocks: int | None,
    rehearse: bool,
) -> StudyLaunch:
    """Read a study, and plan its runs: all repeats that `until` may add, and those that a launch begins with.

    Raises:
        UserError: as `read_study`, `expand` and `plan`.
    """
    from runner.commands._start import first_blocks, first_round, without_idle_repeats
    from runner.execute.launch import warn_of_risks

    parsed = read_study(path)
    scale = parsed.scale_for(scale, cluster)
    design = parsed.design(scale)
    until = None if only or rehearse else design.until
    cells = cells_of(parsed, scale, sets, only, until.at_most if until else None)
    refuse_versions(cells, cluster.profile)
    whole = plan(parsed, without_idle_repeats(cells, design), scale, cluster, Settings.root, sets or ())
    planned = first_round(whole, design) if until else whole
    if design.until and (option := "--only" if only else "--blocks" if blocks else None):
        say(f"{option}: `until` adds no repeats; launch without {option} to add them")
    if blocks:
        whole = planned = first_blocks(planned, blocks)
    if rehearse:
        whole = planned = rehearsal(planned)
        say(f"rehearsal: {counted(len(planned.runs), 'run')} of two steps, as study {planned.study.name}")
    warn_of_risks(planned.study_folder, cluster)
    if rerun := [] if rehearse else _only_in_database(planned):
        what = f"{counted(len(rerun), 'run')} of these ({', '.join(rerun[:3])}{', ...' * (len(rerun) > 3)})"
        say(
            f"{what} completed earlier, and have no files here: "
            "a launch starts them anew, and these count then; choose others with --only"
        )
    adds_repeats = bool(until and not blocks)
    return StudyLaunch(planned, whole, None if rehearse else design, adds_repeats)


def _only_in_database(planned: Plan) -> list[str]:
    """Runs that are left to start, although the database holds records of theirs that completed."""
    from analysis.store.database import database, open_for_reading

    if not planned.left or not database(planned.root).exists():
        return []
    try:
        with open_for_reading(planned.root) as connection:
            rows = connection.execute(_WITHOUT_FILES, [planned.study.name]).fetchall()
    except UserError as error:  # it is of another version, or damaged
        say(f"not looked at: what completed earlier and has no files here: {error}")
        return []
    without_files = {run_id for (run_id,) in rows}
    return [run.run_id for run in planned.left if run.run_id in without_files]


def _start_all(launches: Sequence[StudyLaunch], wait: bool | None, fail_fast: bool) -> int:
    """Start the studies one after another; returns the worst exit code."""
    from runner.commands._start import run_until_precise, start
    from runner.execute.launch import submit

    if len(launches) > 1 and wait and launches[0].planned.cluster.profile.executor == "slurm":
        for launch in launches:  # before the first of them is waited for
            submit(launch.planned, wait=True)
    worst = 0
    for launch in launches:
        if launch.adds_repeats and launch.design:
            worst = max(worst, run_until_precise(launch.whole, launch.design, wait, fail_fast))
        else:
            worst = max(worst, start(launch.planned, wait, fail_fast))
        if worst and fail_fast:
            break
    return worst


def _refusals(launches: Sequence[StudyLaunch]) -> Iterator[str]:
    """Why a launch of several studies would be refused: for one of them, or for what all cost together."""
    from runner.execute.launch import refusals

    for launch in launches:
        yield from (f"{launch.name}: {reason}" for reason in refusals(launch.planned))
    estimates = [cost.estimate_plan(launch.planned) for launch in launches]
    together = replace(estimates[0], runs=tuple(run for estimate in estimates for run in estimate.runs))
    first = launches[0].planned
    for problem in budget.exceeded(first.root, budget.profile_limits(first.cluster), together):
        yield f"all together: {problem.shown()}"


def _show_dry_run(launches: Sequence[StudyLaunch], scripts: Path | None) -> None:
    """Show what a launch would do: with each run, in their order; its batch scripts, needs, and refusals.

    Args:
        scripts: folder to write the batch scripts to.

    Raises:
        UserError: the scripts cannot be written there, or there are none.
    """
    from runner.execute.launch import refusals

    rows = []
    for planned in (launch.planned for launch in launches):
        left = {run.run_id for run in planned.left}
        rows += [
            [
                f"{run.study}/{run.run_id}",
                label(run),
                str(run.position or ""),
                str(run.block or ""),
                " or ".join(run.expected),
                "start" if run.run_id in left else f"skip: {state.outcome or state.phase}" if state else "",
            ]
            for run, state in sorted(planned.runs, key=lambda pair: pair[0].position or 0)
        ]
    table(["run", "factors", "place", "block", "expected", "action"], rows)
    for launch in launches:
        planned = launch.planned
        if planned.cluster.profile.executor == "slurm":
            _show_scripts(planned, scripts)
        elif scripts:
            raise UserError(f"profile {planned.cluster.name} has no batch scripts: it runs on this machine")
        _say_needs(launch, len(launches) > 1)
        for line in repeats_forecast(planned, launch.design) if launch.design else ():
            say(line)
    for reason in _refusals(launches) if len(launches) > 1 else refusals(launches[0].planned):
        say(f"a launch would be refused: {reason}")


def _show_scripts(planned: Plan, folder: Path | None) -> None:
    """Print the batch scripts, write them to a folder if one is given, and say when Slurm would start them.

    Raises:
        UserError: they cannot be written, or a file in their place does not name the jobs' folder.
    """
    from runner.execute.slurm import refusals
    from runner.execute.slurm.script import script
    from runner.execute.slurm.site import expected_start

    cluster, name = planned.cluster, planned.study.name
    jobs = jobs_folder(planned.study_folder)
    shapes = Counter(JobShape.of(run) for run in planned.left)
    forecasts = dict[str, None]()  # what is true of all arrays is said once
    for number, (shape, count) in enumerate(shapes.items(), start=1):
        text = script(cluster.profile, jobs, name, shape, count)
        sys.stdout.write("\n" + text)
        if folder:
            path, choose = folder / f"{name}-{number}.sh", "folder with --scripts"
            try:
                if path.exists() and str(jobs) not in path.read_text(encoding="utf-8", errors="replace"):
                    raise UserError(f"{path} is no script of this study and root: name another {choose}")
                folder.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise UserError(f"{path}: {error.strerror}; choose another {choose}") from error
            say(f"{path}")
        try:
            if refusals.too_long(cluster, shape.time_limit_seconds):
                continue  # it would never start, but Slurm's estimate ignores that
            start = expected_start(text)
            expected = f"Slurm expects the first job to start at {start}"
            forecast = expected if start else "Slurm gives no start estimate"
        except NoAnswer as error:
            forecast = f"no start estimate: {error}"
        except SchedulerError as error:
            refused = refusals.is_certain(str(error))
            kind = "a launch would be refused" if refused else "no start estimate"
            forecast = f"{kind}: {refusals.explained(str(error), cluster)}"
        forecasts[forecast] = None
    for forecast in forecasts:
        say(forecast)


def _say_needs(launch: StudyLaunch, named: bool) -> None:
    """Say what a launch leaves behind of the study as it was, and what it needs: time, arrays, memory.

    Args:
        named: whether to say which study it is about.
    """
    planned, whole = launch.planned, launch.whole
    if named:
        say(f"study {launch.name}:")
    if planned.record and planned.record.removed:
        say(edits.describe_removed(planned.study.name, planned.record.removed, command_prefix()))
    if changed := [run for run in planned.left if edits.changed_by_set(run)]:
        runs = counted(len(changed), "run")
        say(f"--set makes {runs} beside those of the study's file: groups of their own")
    for line in cost.describe(cost.estimate_plan(planned)):
        say(line)

    # Runs of one array are alike, so runs of several shapes need several arrays.
    order = [JobShape.of(run) for run in sorted(planned.left, key=lambda run: run.position or 0)]
    kinds, profile = set(order), planned.cluster.profile
    if profile.executor == "slurm" and len(kinds) > 1:
        count, order_kept = len([*groupby(order)]), "they start one after another, in the order of the runs"
        if profile.max_parallel > 1:
            count = len(kinds)
            order_kept = (
                "the order of the runs is kept within each array, across arrays only with --parallel 1"
            )
        processes = {kind.processes for kind in kinds}
        resources = {replace(kind, processes=1) for kind in kinds}
        reasons = ["runs have different numbers of processes"] * (len(processes) > 1)
        reasons += ["rules give some runs different resources"] * (len(resources) > 1)
        say(f"{count} arrays, because {' and '.join(reasons)}: {order_kept}")

    for line in fit.memory_forecast(planned.cluster, planned.left):
        say(line)
    if more := len(whole.left) - len(planned.left):
        worst = cost.estimate_plan(whole)
        for line in cost.describe(worst):
            say(f"with every repeat that `until` may add ({counted(more, 'run')}): {line}")
        for problem in budget.exceeded(whole.root, budget.limits_of(whole), worst):
            say(f"`until` may end early: {problem}")
