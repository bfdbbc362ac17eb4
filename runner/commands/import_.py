"""Import other programs' logs as the runs of a study, and report errors in them.

Examples:
  runner import logs/*.jsonl --format lsai --study theirs --margin loss=0.02
  runner import history.csv --format csv --mapping history.yaml --study theirs
  runner report theirs
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from model.record.errors import UserError
from model.record.units import counted, visible
from runner.commands._console import print_json, say, show, table
from runner.commands._options import AsJson, Settings, parse_margins

if TYPE_CHECKING:
    from analysis.importers import Mapping, Origin, RunRecords, Written


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Logs.")],
    form: Annotated[
        str,
        typer.Option("--format", help="Format of the logs: lsai, csv, jsonl, parquet, tensorboard, wandb."),
    ],
    study: Annotated[str, typer.Option("--study", help="Name of the study that the logs become.")],
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping",
            help="YAML file: columns, units, constants, configuration; its keys: `runner schema mapping`.",
        ),
    ] = None,
    margin: Annotated[
        list[str] | None,
        typer.Option(
            "--margin",
            metavar="NAME=VALUE",
            help="Difference too small to matter: loss=0.02 (nats), tokens_per_second=1%; repeatable.",
        ),
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            "--baseline", metavar="FACTOR=VALUE", help="Group that others are compared with; repeatable."
        ),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="The report's heading.")] = None,
    as_json: AsJson = False,
) -> None:
    from analysis.importers import ImportDesign, Mapping, Origin, load, write_runs
    from analysis.store import scan
    from model.record.records import now
    from runner.inputs.document import read_document
    from runner.inputs.study import valid_name
    from runner.inputs.validation import validated
    from runner.state.code.provenance import own_version
    from runner.state.filesystem import locked

    load(form)
    columns = validated(read_document(mapping), Mapping) if mapping else Mapping()
    least, group = parse_margins(margin or ()), dict[str, str | float]()
    for text in baseline or ():
        name, _, value = text.partition("=")
        if not name or not value:
            raise UserError(f"--baseline {text}: expected NAME=VALUE, such as attention=cudnn")
        try:
            group[name] = float(value)
        except ValueError:
            group[name] = value
    design = ImportDesign(least, group or None)
    try:
        valid_name(study)
    except ValueError as error:
        raise UserError(f"--study {study}: {error}") from error
    origin = Origin(form, study, title or f"Imported logs: {study}", own_version(), now())
    new, refused = _read(files, columns, origin)
    if scan.stat_reports(Settings.root, study):
        raise UserError(f"study '{study}' has the runs of a report; choose another name for these logs")
    with locked(Settings.root / study):
        written = write_runs(Settings.root, study, new, design)
    if as_json:
        runs = []
        for result in written:
            run, ending = result.log.run, result.log.result
            runs.append(
                {
                    "study": run.study,
                    "run_id": run.run_id,
                    "factors": run.factors,
                    "done": result.done,
                    "outcome": ending.outcome,
                    "reason": ending.reason,
                    "imported": run.imported.model_dump(mode="json"),
                }
            )
        print_json({"runs": runs, "refused": refused})
    else:
        _show(written)
    raise typer.Exit(1 if refused else 0)


def _read(files: Sequence[Path], mapping: Mapping, origin: Origin) -> tuple[list[RunRecords], list[str]]:
    """The runs of all files, each once, and why some were refused.

    Raises:
        UserError: all were.
    """
    from analysis.importers import Refused, file_names, read

    new: dict[str, RunRecords] = {}
    refused = []
    for file, name in zip(files, file_names(files), strict=True):
        try:
            wholes = read(file, mapping, origin, name)
        except Refused as error:
            refused.append(str(error))
            continue
        for whole in wholes:
            if (same := new.get(whole.run.run_id)) is not None:
                say(f"{file}: the same content as {same.run.imported.file}; imported once")
            new.setdefault(whole.run.run_id, whole)
    if not new:
        raise UserError("\n".join([*refused, "nothing was imported"]))
    for sentence in refused:
        say(f"{sentence}; not imported")
    return list(new.values()), refused


def _show(written: Sequence[Written]) -> None:
    """A table of the runs, what was left out and taken by its name, and what was found, errors last."""
    from analysis.importers import shortened

    rows = []
    for run in written:
        record, result = run.log.run, run.log.result
        counts = [str(record.imported.records), str(result.steps), str(result.outcome)]
        rows.append([f"{record.study}/{record.run_id}", run.log.name, *counts, run.done])
    table(["run", "factors", "records", "last step", "outcome", ""], rows)
    imported = [run.log.run.imported for run in written]
    sources = [origin.sources for origin in imported]
    for columns in dict.fromkeys(source["columns"] for source in sources if "columns" in source):
        say(visible(f"columns {columns}; other choices: --mapping"))
    for unused in dict.fromkeys(source["left out"] for source in sources if "left out" in source):
        say(visible(f"left out: {unused}"))
    for origin in imported:
        for line in shortened(origin.not_imported):
            say(visible(f"not imported: {line}"))
    findings = [(run.log.name, finding) for run in written for finding in run.log.run.imported.findings]
    for level in ("note", "error"):
        # Sentences that differ only in the run's name or in numbers are told once, with how many there are.
        alike: dict[str, dict[str, str]] = {}
        for name, finding in findings:
            if finding.level == level:
                words = re.sub(r"[-+]?\d[\d,.e+-]*", "#", finding.sentence.replace(name, "#"))
                alike.setdefault(words, {})[finding.sentence] = name
        for names in alike.values():
            first, *others = names
            runs = ", ".join(dict.fromkeys([names[sentence] for sentence in others]))
            more = f" (alike: {counted(len(others), 'other')}, {runs})" if others else ""
            show(visible(f"{level}: {first}{more}"))
    if len(written) > 1 and not any(finding.evidence.get("across") for _, finding in findings):
        say(
            "these runs are not compared with each other: nothing says that they should be equal; "
            "if they should, say how much their losses may differ with --margin loss=NATS"
        )
    errors = sum(finding.level == "error" for _, finding in findings)
    say(
        f"{counted(len(written), 'imported run')} in the study, {counted(errors, 'error')} found in their "
        "logs; none has a certificate"
    )
