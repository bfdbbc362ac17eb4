"""Commands about results and this machine: collect, sql, report, verify, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from runner.options import AsJson, ProfileName, Settings, StudyName, app, print_json


@app.command()
def collect(
    study: StudyName = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the database anew from the run folders.")
    ] = False,
) -> None:
    """Bring the run folders' records into the database."""
    from analysis.store.collect import collect as gather
    from runner import status as stands
    from runner.console import say

    name = stands.study_name(Settings.root, study) if study else None
    stands.reconciled(Settings.root, name)
    done = gather(Settings.root, name, rebuild)
    say(f"{done.updated} runs read, {done.unchanged} unchanged, {done.removed} gone")
    if done.quarantined:
        say(f"{done.quarantined} files could not be read: runner sql 'from quarantine'")
    print(Settings.root / "results.duckdb")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL over runs, steps, attempts, ...")],
    form: Annotated[
        Literal["table", "csv", "json", "parquet", "latex"], typer.Option("--format", help="How to print it.")
    ] = "table",
) -> None:
    """Ask the database: read-only, and without access to anything else."""
    from analysis.query.formats import query as ask

    ask(Settings.root, query, form)


@app.command()
def report(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study's name, or its file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to [default: reports/build/STUDY].")
    ] = None,
) -> None:
    """Build a study's report pages, self-contained and offline, from what is on disk now."""
    from analysis.report.build import build_report
    from analysis.store.collect import collect as gather
    from runner import status as stands

    name = stands.study_name(Settings.root, study)
    stands.reconciled(Settings.root, name)
    gather(Settings.root, name)
    print(build_report(Settings.root, name, out or Path("reports/build") / name))


@app.command()
def verify(
    backend: Annotated[
        list[str] | None, typer.Option("--backend", "-b", help="Only this backend; repeatable.")
    ] = None,
    device: Annotated[
        Literal["cuda", "cpu"] | None, typer.Option(help="Where [default: the GPU, if there is one].")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="Also write a page of what was found.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put the attention backends on trial: whether each is right, and which kernels really run."""
    from analysis.report.build import certificates_page
    from analysis.store.collect import collect_certificates
    from model import attention
    from runner import verification
    from runner.console import say

    found = verification.verify(
        backend or attention.names(), device or verification.default_device(), Settings.root
    )
    collect_certificates(Settings.root)
    if report:
        say(f"{certificates_page(Settings.root, report)}")
    if as_json:
        print_json([certificate.model_dump(mode="json") for certificate in found])
    else:
        verification.show(found)
    raise typer.Exit(1 if any(certificate.verdict == "wrong" for certificate in found) else 0)


@app.command()
def doctor(profile: ProfileName = None, as_json: AsJson = False) -> None:
    """Say what works here, and what does not and why."""
    from runner import doctor as examine
    from runner.cluster import read_cluster
    from runner.console import table

    checks = examine.checks(read_cluster(profile), Settings.root)
    if as_json:
        print_json([check.__dict__ for check in checks])
    else:
        table(["", "what", "found"], [[check.mark, check.what, check.found] for check in checks])
    raise typer.Exit(2 if any(check.needed and not check.works for check in checks) else 0)
