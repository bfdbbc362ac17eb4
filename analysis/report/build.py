"""Builds a report: a folder of HTML pages whose every number can be traced to its runs and its SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import charts, drawings
from analysis.drawings import Drawer, Format
from analysis.query.ask import Answer, answer, recording
from analysis.query.statements import SWEEP_RUNS
from analysis.report import backends, comparison, facts, live, render, reported, runs, summary, tasks
from analysis.report.answer import StudyAnswer, answer_study
from analysis.report.backends import Backends, backend_lines
from analysis.report.carried import PROBE, SCRIPT, carry, named, seal
from analysis.report.comparison import StudyComparison
from analysis.report.facts import Facts
from analysis.report.figures import FigurePage, ReportFigure, csv_bytes, draw_all, in_pages
from analysis.report.judged import verdict_tables
from analysis.report.overview import Overview, overview
from analysis.report.place import staged
from analysis.report.setup import launched, setup
from analysis.report.tasks.attention import shapes, traffic
from analysis.report.topics import Setting
from analysis.store.database import open_for_reading, studies_of
from analysis.store.tables import leave_out, removed_runs
from analysis.verdicts import guard
from analysis.verdicts.guard import Difference
from model.record.errors import UserError, did_you_mean
from model.record.units import counted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ALL_IN_ONE = FigurePage("print", "All on one page", [])


@dataclass(frozen=True)
class Contents:
    """What a report is made of, for those who write it in another form.

    Attributes:
        task: what its runs did.
        differences: what the guard found among its completed runs.
        metrics: answers to the task's queries, by name.
    """

    facts: Facts
    backends: Backends
    comparison: StudyComparison
    task: tasks.ReportTask
    differences: list[Difference]
    figures: list[ReportFigure]
    answer: StudyAnswer
    overview: Overview
    setup: list[Setting]
    metrics: dict[str, Answer]


Extra = Callable[[Path, Contents], None]


def build_report(
    root: Path,
    study: str,
    out: Path,
    records: bool = True,
    reload_seconds: float | None = None,
    logs: bool = True,
    figures: tuple[Format, ...] = ("svg",),
    extra: Extra | None = None,
    removed: bool = False,
    replace: bool = False,
) -> Path:
    """Write a study's report from what `collect` put into the database.

    Args:
        root: the workspace.
        study: name of the study.
        out: folder to write to; made if missing; the report that was there is replaced.
        records: whether the report carries the records that its numbers are computed from.
        reload_seconds: how often its pages look whether it was built again; None for pages that never do.
        logs: whether it quotes the last lines of what runs printed.
        figures: formats of its figures; SVG is always among them, for pages where scripts are off.
        extra: writes more into the folder, such as what a text needs.
        removed: whether to show runs that the study no longer has.
        replace: whether it may take the place of a report of another root.

    Returns:
        Path of its index.html.

    Raises:
        UserError: no database, or no run of that study in it; the text names the studies that exist. Or the
            folder has something else.
    """
    with open_for_reading(root) as connection:
        names = studies_of(connection)
        if study not in names:
            raise UserError(
                f"no collected runs of study '{study}' {did_you_mean(study, names)}: run `runner collect`"
            )
        if not removed:
            gone = removed_runs(connection, study)
            if len(gone) == _number_of_runs(connection, study):
                raise UserError(
                    f"study {study} no longer has any of its {counted(len(gone), 'run')}: "
                    "launch it, or show them with --removed"
                )
            leave_out(connection, study, gone)
        with staged(out, [root], replace) as folder:
            write_report(connection, study, folder, records, root if logs else None, figures, extra)
            if reload_seconds is not None:
                live.mark(folder, reload_seconds)
    return out / "index.html"


def write_report(
    connection: DuckDBPyConnection,
    study: str,
    out: Path,
    records: bool,
    root: Path | None = None,
    figures: tuple[Format, ...] = ("svg",),
    extra: Extra | None = None,
    shared_script: bool = False,
) -> None:
    """Write a study's report from an open database to an empty folder; the same rows give the same bytes.

    Args:
        root: the workspace whose runs' output to quote; None for what is attached to the connection, if any.
        figures, extra: as `build_report` takes them.
        shared_script: whether pages use the script of the folder that `out` lies in, in place of a copy.
    """
    (out / "figures").mkdir(parents=True)
    at_once = drawings.processes(_number_of_runs(connection, study))
    with drawings.drawer(out / "figures", at_once) as drawer:
        script, probed = drawer.script(), drawer.digest(PROBE)
        with recording() as asked:
            facts.snapshot(connection, study)
            study_facts = facts.gather(connection, study)
            run_pages = runs.gather(connection, study, study_facts.runs, root)
            contents = _contents(connection, study_facts, figures, drawer)
            wanted = {"runs": facts.RUNS_SQL}  # tables that no figure shows
            if len(study_facts.quarantine) > runs.MOST_NAMED:
                wanted["quarantine"] = facts.QUERIES["quarantine"]
            if study_facts.reported:
                wanted["reported"] = facts.QUERIES["reported"]
            queries = _literal(wanted, study) | {"verdicts": contents.backends.queries[0][1]}
            answers = {name: answer(connection, sql) for name, sql in queries.items()}
        drawer.check()
        tables = {name: csv_bytes(table) for name, table in (answers | contents.metrics).items()}
        _write_data(out, contents.figures, tables | comparison.tables(contents.comparison))
        _write_pages(out, contents, run_pages, shared_script)
        queries |= run_pages.queries | _metrics(contents.task, study)
        queries |= {figure.name: figure.sql for figure in contents.figures}
        queries |= _by_file_name(contents.backends)
        queries |= _literal({**facts.QUERIES, **comparison.QUERIES, "sweep_runs": SWEEP_RUNS}, study)
        # Charts that had nothing to show.
        all_charts = _literal({name: charts.load(name).sql for name in charts.names()}, study)
        unnamed = {*asked} - {*queries.values()}
        queries |= {name: sql for name, sql in all_charts.items() if sql in unnamed}
        drawer.check()
        carry(connection, study, out, named(queries, asked), records)
        if not shared_script:
            (out / SCRIPT).write_text(script.result(), encoding="utf-8")
    if extra:
        extra(out, contents)
    seal(
        out,
        study,
        records=records,
        figures=figures,
        latex=extra is not None,
        shared_script=shared_script,
        probed=probed.result(),
    )


def _contents(
    connection: DuckDBPyConnection, study: Facts, formats: tuple[Format, ...], drawer: Drawer
) -> Contents:
    """Compute everything that the pages of a study say, and have its figures drawn."""
    task = tasks.of_study(study.runs)
    figures = draw_all(connection, study, formats, drawer)
    certified = backends.of_study(connection, study.study, study.runs)
    compared = comparison.of_study(connection, study.study, study.runs)
    differences = guard.among(study.runs)
    answered = answer_study(study, compared, certified, differences, task.answer)
    lines = task.lines(study, answered.verdicts)
    chart_rows = {figure.name: figure.rows for figure in figures}
    styles = charts.styles(list(lines), study.without_steps)
    return Contents(
        facts=study,
        backends=certified,
        comparison=compared,
        task=task,
        differences=differences,
        figures=figures,
        answer=answered,
        overview=overview(lines, task.columns, task.panels, chart_rows, styles),
        setup=setup(study, compared),
        metrics={name: answer(connection, sql) for name, sql in _metrics(task, study.study).items()},
    )


def _metrics(task: tasks.ReportTask, study: str) -> dict[str, str]:
    """The queries of the tables that a task adds, by name."""
    return _literal({name: table.sql for name, table in task.metrics.items()}, study)


def _literal(queries: Mapping[str, str], study: str) -> dict[str, str]:
    return {name: facts.literal(sql, study) for name, sql in queries.items()}


def certificates_page(root: Path, out: Path, replace: bool = False) -> Path:
    """Write what `runner verify` last found about each backend, from what `collect_certificates` collected.

    Args:
        root: the workspace.
        out: folder to write to; made if missing; the report that was there is replaced.
        replace: whether it may take the place of a report of another root.

    Returns:
        Path of its index.html.

    Raises:
        UserError: no database, or no certificate from `runner verify` in it.
    """
    with open_for_reading(root) as connection:
        if not backends.of_machine(connection).certificates:
            raise UserError(f"no backend was verified under {root}: run `runner verify` first")
        with staged(out, [root], replace) as folder:
            write_certificates(connection, folder, records=True)
    return out / "index.html"


def write_certificates(
    connection: DuckDBPyConnection,
    out: Path,
    records: bool,
    figures: tuple[Format, ...] = ("svg",),
    shared_script: bool = False,
) -> None:
    """Write the page of `certificates_page` from an open database to an empty folder."""
    with recording() as asked:
        certified = backends.of_machine(connection)
        chart, sql = charts.load("certificates"), backends.MACHINE_TENSORS
        tensors = answer(connection, sql)
        with charts.unchecked():
            figure = chart.build(tensors.records(), {})
        if figure:
            figure.spec["description"] = figure.description
        csv = csv_bytes(tensors)
        drawn = ReportFigure("certificates", chart, sql, csv, figure, [], [], figures, "certificates")
        queries = {"verdicts": certified.queries[0][1], drawn.name: drawn.sql}
        tables = {"verdicts": csv_bytes(answer(connection, queries["verdicts"]))}
    _write_data(out, [drawn], tables)
    if not shared_script:
        (out / SCRIPT).write_text(drawings.script(), encoding="utf-8")
    if drawn.figure:
        drawings.write(out / "figures", drawn.name, drawn.figure.spec, figures)
    _write(
        out / "index.html",
        "backends.html",
        {"backends": certified, "drawn": drawn, "script": _script(shared_script)},
    )
    summary.write(out, summary.of_machine(certified))
    carry(connection, None, out, named(queries | _by_file_name(certified), asked), records)
    seal(out, None, records=records, figures=figures, shared_script=shared_script)


def _by_file_name(certified: Backends) -> dict[str, str]:
    return {what.lower().replace(" ", "_"): sql for what, sql in certified.queries[1:]}


def _number_of_runs(connection: DuckDBPyConnection, study: str) -> int:
    sql = "SELECT count(*) FROM run_records WHERE study = $study"
    ((count,),) = connection.execute(sql, {"study": study}).fetchall()
    return int(count)


def _write_data(out: Path, drawn: list[ReportFigure], tables: dict[str, bytes]) -> None:
    render.write_assets(out)
    for folder in ("data", "figures"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, csv in ({figure.data: figure.csv for figure in drawn} | tables).items():
        path = out / "data" / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(csv)


def _script(shared: bool) -> str:
    """Where a page finds the script that draws its figures."""
    return f"../{SCRIPT}" if shared else SCRIPT


def _write_pages(out: Path, contents: Contents, run_pages: runs.RunPages, shared_script: bool) -> None:
    study = contents.facts
    judged = verdict_tables(contents.comparison, contents.answer.verdicts)
    has_content = {"certificates"}  # whatever was drawn
    if any(judged.values()) or contents.comparison.rates.rankings:
        has_content.add("comparison")
    drawn = [
        page for page in in_pages(contents.figures)
        if page.name in has_content or any(figure.figure for figure in page.figures)
    ]  # fmt: skip
    pages = [*drawn, _ALL_IN_ONE]
    table_pages = runs.table_pages(study.runs)
    reported_lines = reported.lines(study)
    common: dict[str, Any] = {
        **vars(contents),
        "judged": judged,
        "kinds": backend_lines(study.runs, contents.backends, study.kernels),
        "details": run_pages,
        "pages": pages,
        "script": _script(shared_script),
        "page_names": {page.name for page in pages},
        "environment": facts.environment(study.runs),
        "missing": facts.missing(study.runs),
        "removed": facts.removed(study),
        "reported": reported_lines,
        "about_reported": reported.ABOUT,
        "no_ratios": reported.no_ratios(reported_lines),
        "shapes": shapes(study.kernels_and_gone),
        "traffic": traffic(study.kernels_and_gone, study.runs),
        "launched": launched(study.runs),
        "parts": table_pages,
        "runs_sql": facts.literal(facts.RUNS_SQL, study.study),
    }
    summary.write(out, summary.of_study(study, contents.answer))
    for page in pages:
        own = f"{page.name}.html"  # a page of figures may have a template of its own, named after it
        template = own if (render.templates() / own).exists() else "figures.html"
        _write(out / own, template, common | {"page": page, "here": page.name})
    for name in ("runs", "methods", "index"):
        _write(out / f"{name}.html", f"{name}.html", common | {"here": name})
    for part in table_pages:
        _write(out / f"{part.name}.html", "all_runs.html", common | {"part": part, "here": "runs"})
    for detail in run_pages.pages:
        values = {"here": "runs", "detail": detail, "task": tasks.of_run(detail.run)}
        _write(out / f"run-{detail.run['run_id']}.html", "run.html", common | values)


def _write(path: Path, template: str, values: dict[str, Any]) -> None:
    path.write_text(render.environment().get_template(template).render(values), encoding="utf-8")
