"""Builds a report: a folder of HTML pages whose every number can be traced to its runs and its SQL."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import charts, drawings
from analysis.compare import guard
from analysis.drawings import Format
from analysis.query import metrics
from analysis.query.ask import Answer, answer, recording
from analysis.query.sweeps import SWEEP_RUNS
from analysis.report import backends, comparison, facts, live, render, setup, summary
from analysis.report.answer import Answer as Answered
from analysis.report.answer import answer as answer_of
from analysis.report.backends import Backends
from analysis.report.carried import PROBE, Parts, carry, named, seal
from analysis.report.comparison import Comparison
from analysis.report.facts import Facts
from analysis.report.figures.drawn import Drawn, Page, csv_bytes, every, in_pages
from analysis.report.listing import MOST_NAMED, parts
from analysis.report.place import complete
from analysis.report.runs import pages as run_pages
from analysis.report.runs.pages import RunPages
from analysis.report.settings.backends import lines as table_of_backends
from analysis.store.database import open_for_reading, studies_of
from model.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WARMUP_RULE = (
    "a step record counts only if its interval (step - steps, step] starts at or after W steps, "
    "W = max(1, min(10, planned steps // 10)), is not the first of a resumed attempt, and comes from the "
    "device that the measured attempt ran on"
)
_ALL_IN_ONE = Page("print", "All on one page", [])


@dataclass(frozen=True)
class Contents:
    """What a report is made of, for those who write it in another form.

    Attributes:
        metrics: answers to the queries of analysis.query.metrics, by name.
    """

    facts: Facts
    backends: Backends
    comparison: Comparison
    figures: list[Drawn]
    answer: Answered
    setup: list[setup.Setting]
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

    Returns:
        Path of its index.html.

    Raises:
        UserError: no database, or no run of that study in it; the text names the studies that exist.
    """
    with open_for_reading(root) as connection:
        _check(connection, study)
        with complete(out) as folder:
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
) -> None:
    """Write a study's report from an open database to an empty folder; the same rows give the same bytes.

    Args:
        root: the workspace whose runs' output to quote; None for what is attached to the connection, if any.
        figures, extra: as `build_report` takes them.
    """
    (out / "figures").mkdir(parents=True)
    at_once = drawings.processes(_number_of_runs(connection, study))
    with drawings.drawer(out / "figures", at_once) as drawer:
        script, probed = drawer.script(), drawer.digest(PROBE)
        with recording() as asked:
            facts.snapshot(connection, study)
            known = facts.gather(connection, study)
            details = run_pages.gather(connection, study, known.runs, root)
            drawn = every(connection, known, figures, drawer)
            trust = backends.of_study(connection, study, known.runs)
            found = comparison.of_study(connection, study, known.runs)
            queries = {"runs": facts.literal(facts.RUNS_SQL, study), "verdicts": trust.queries[0][1]}
            summaries = {} if known.calls else metrics.of(known.infers)
            queries |= {name: facts.literal(sql, study) for name, sql in summaries.items()}
            if len(known.quarantine) > MOST_NAMED:
                queries["quarantine"] = facts.literal(facts.QUERIES["quarantine"], study)
            answers = {name: answer(connection, sql) for name, sql in queries.items()}
            tables = {name: csv_bytes(each) for name, each in answers.items()}
        drawer.check()
        _write_data(out, drawn, tables | comparison.tables(found))
        _write_pages(out, known, trust, found, details, [*in_pages(drawn), _ALL_IN_ONE])
        queries |= details.queries
        queries |= {figure.name: figure.sql for figure in drawn} | _by_file_name(trust)
        others = facts.QUERIES | comparison.QUERIES | {"sweep_runs": SWEEP_RUNS}
        queries |= {name: facts.literal(sql, study) for name, sql in others.items()}
        queries |= _of_no_figure(study, {*asked} - {*queries.values()})
        drawer.check()
        carry(connection, study, out, named(queries, asked), records)
        _write_script(out, script.result())
    if extra:
        extra(out, _contents(known, trust, found, drawn, {name: answers[name] for name in summaries}))
    seal(out, study, Parts(records, figures, extra is not None), probed=probed.result())


def _of_no_figure(study: str, asked: Set[str]) -> dict[str, str]:
    """Queries of charts that had nothing to show, by their names."""
    every = {name: facts.literal(charts.load(name).sql, study) for name in charts.names()}
    return {name: sql for name, sql in every.items() if sql in asked}


def _contents(
    known: Facts, trust: Backends, found: Comparison, drawn: list[Drawn], tables: dict[str, Answer]
) -> Contents:
    said = answer_of(known, found, trust, guard.among(known.runs))
    return Contents(known, trust, found, drawn, said, setup.setup(known, found), tables)


def certificates_page(root: Path, out: Path) -> Path:
    """Write what `runner verify` last found about each backend, from what `collect_certificates` collected.

    Args:
        root: the workspace.
        out: folder to write to; made if missing; the report that was there is replaced.

    Returns:
        Path of its index.html.

    Raises:
        UserError: no database, or no certificate from `runner verify` in it.
    """
    with open_for_reading(root) as connection:
        if not backends.of_machine(connection).certificates:
            raise UserError(f"no backend was verified under {root}: run `runner verify` first")
        with complete(out) as folder:
            write_certificates(connection, folder, records=True)
    return out / "index.html"


def write_certificates(
    connection: DuckDBPyConnection, out: Path, records: bool, figures: tuple[Format, ...] = ("svg",)
) -> None:
    """Write the page of `certificates_page` from an open database to an empty folder."""
    with recording() as asked:
        trust = backends.of_machine(connection)
        drawn = _draw_machine(connection, figures)
        queries = {"verdicts": trust.queries[0][1], drawn.name: drawn.sql}
        tables = {"verdicts": csv_bytes(answer(connection, queries["verdicts"]))}
    _write_data(out, [drawn], tables)
    _write_script(out, drawings.script())
    if drawn.figure:
        drawings.write(out / "figures", drawn.name, drawn.figure.spec, figures)
    _write(out / "index.html", "backends.html", {"backends": trust, "drawn": drawn})
    summary.write(out, summary.of_machine(trust))
    carry(connection, None, out, named(queries | _by_file_name(trust), asked), records)
    seal(out, None, Parts(records, figures))


def _by_file_name(trust: Backends) -> dict[str, str]:
    return {what.lower().replace(" ", "_"): sql for what, sql in trust.queries[1:]}


def _draw_machine(connection: DuckDBPyConnection, formats: tuple[Format, ...]) -> Drawn:
    chart, sql = charts.load("certificates"), backends.MACHINE_TENSORS
    found = answer(connection, sql)
    with charts.unchecked():
        figure = chart.build(found.records(), {})
    if figure:
        figure.spec["description"] = figure.description
    return Drawn("certificates", chart, sql, csv_bytes(found), figure, [], [], formats, "certificates")


def _number_of_runs(connection: DuckDBPyConnection, study: str) -> int:
    found = connection.execute("SELECT count(*) FROM run_records WHERE study = $study", {"study": study})
    return int(found.fetchall()[0][0])


def _check(connection: DuckDBPyConnection, study: str) -> None:
    names = studies_of(connection)
    if study not in names:
        raise UserError(
            f"no collected runs of study '{study}' {did_you_mean(study, names)}: run `runner collect`"
        )


def _write_data(out: Path, drawn: list[Drawn], tables: dict[str, bytes]) -> None:
    _write_assets(out)
    for name, csv in ({figure.data: figure.csv for figure in drawn} | tables).items():
        path = out / "data" / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(csv)


def _write_assets(out: Path) -> None:
    render.write_assets(out)
    for folder in ("data", "figures"):
        (out / folder).mkdir(parents=True, exist_ok=True)


def _write_script(out: Path, text: str) -> None:
    (out / "assets" / "vega.js").write_text(text, encoding="utf-8")


def _write_pages(
    out: Path, known: Facts, trust: Backends, found: Comparison, details: RunPages, pages: list[Page]
) -> None:
    differences = guard.among(known.runs)
    common: dict[str, Any] = {
        "answer": answer_of(known, found, trust, differences),
        "setup": setup.setup(known, found),
        "kinds": table_of_backends(known.runs, trust),
        "facts": known,
        "backends": trust,
        "comparison": found,
        "details": details,
        "pages": pages,
        "environment": facts.environment(known.runs),
        "differences": differences,
        "missing": facts.missing(known.runs),
        "warmup_rule": WARMUP_RULE,
        "parts": parts(known.runs),
        "runs_sql": facts.literal(facts.RUNS_SQL, known.study),
    }
    summary.write(out, summary.of_study(known, common["answer"]))
    for page in pages:
        _write(out / f"{page.name}.html", _template(page.name), common | {"page": page, "here": page.name})
    for name in ("runs", "methods", "index"):
        _write(out / f"{name}.html", f"{name}.html", common | {"here": name})
    for part in common["parts"]:
        _write(out / f"{part.name}.html", "all_runs.html", common | {"part": part, "here": "runs"})
    for detail in details.pages:
        _write(out / detail.run["page"], "run.html", common | {"here": "runs", "detail": detail})


def _template(page: str) -> str:
    """A page of figures may have a template of its own, named after it."""
    own = f"{page}.html"
    return own if (render.templates() / own).exists() else "figures.html"


def _write(path: Path, template: str, values: dict[str, Any]) -> None:
    path.write_text(render.environment().get_template(template).render(values), encoding="utf-8")
