"""Pages of runs that other programs made: marked in tables and captions, without certificates, with their errors."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest

from analysis import charts
from analysis.query.ask import answer
from analysis.report.build import build_report
from analysis.report.facts import literal
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from analysis.verdicts.source import StudySource, read
from model.record import files
from model.record.imported import Finding, Imported, ImportedStep
from tests.analysis.fabricate import START
from tests.analysis.store.test_imported import write_log

WRONG = Finding(
    check="loss", level="error", sentence="fa3's loss is 0.1 nats above the others'.", evidence={}
)


def write(root: Path, label: str, offset: float = 0.0, tokens: int | None = 20480) -> None:
    """An imported run of one backend, with losses and step times and little else."""
    source = Imported(
        format="lsai", file=f"/logs/{label}.jsonl", sha256="0" * 64, imported_at=START, version="0.1.0",
        records=100, findings=[WRONG] if offset else [],
    )  # fmt: skip
    fields = {"group": f"g-{label}", "factors": {"attention": label}, "attention": label, "imported": source}
    folder = write_log(root, f"log-{label:0<10}", **fields)
    (folder / "attempt-1" / "steps.jsonl").unlink()
    for step in range(5, 501, 5):
        seconds = 0.4 * (1 + 0.01 * math.sin(step))
        line = ImportedStep(step=step, steps=5, loss=3 + offset, step_seconds=seconds, tokens=tokens)
        files.append(folder / "attempt-1" / "steps.jsonl", line)


def test_a_log_without_tokens_has_no_figure_of_tokens(tmp_path: Path) -> None:
    write(tmp_path, "sdpa", tokens=None)
    collect(tmp_path)
    chart = charts.load("tokens_over_steps")
    with open_for_reading(tmp_path) as connection:
        rows = answer(connection, literal(chart.sql, "theirs")).records()
    assert chart.build(rows, charts.styles(["sdpa"])) is None


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("runs")
    for label, offset in (("sdpa", 0.0), ("fa3", 0.1)):
        write(root, label, offset)
    collect(root)
    out = build_report(root, "theirs", root / "out").parent
    texts = {path.stem: path.read_text(encoding="utf-8") for path in out.glob("*.html")}
    return {name: " ".join(re.sub(r"<[^>]*>", " ", text).split()) for name, text in texts.items()}


def test_imported_runs_are_marked_in_tables_and_captions(pages: dict[str, str]) -> None:
    assert "fa3 (imported)" in pages["index"]
    assert "Import again with --baseline FACTOR=VALUE" in pages["index"] and "comparison" not in pages
    assert "Imported 2 of 2 runs (fa3, sdpa), by other programs: no certificate" in pages["tokens"]


def test_they_have_no_certificate_and_say_so(pages: dict[str, str]) -> None:
    assert pages["index"].count("no certificate: imported") == 2
    assert "fa3 : no certificate: imported from another program's log" in pages["certificates"]


def test_groups_in_whose_logs_an_error_was_found_are_flagged(pages: dict[str, str]) -> None:
    for page in ("index", "runs", "run-log-fa30000000"):
        assert "fa3 (imported) flagged: loss" in pages[page], page
        assert "sdpa (imported) flagged" not in pages[page]
    for page in ("tokens", "loss", "time"):
        assert "Flagged in its log fa3: see the overview" in pages[page], page


def test_errors_in_their_logs_are_named_on_the_overview(pages: dict[str, str]) -> None:
    assert "Flagged loss : fa3&#39;s loss is 0.1 nats above the others&#39;." in pages["index"]
    assert "Flagged by the check loss : fa3&#39;s loss" in pages["run-log-fa30000000"]


def test_a_run_whose_log_states_no_end_is_completed_on_no_page(pages: dict[str, str]) -> None:
    assert pages["runs"].count(" unknown ") >= 2 and "completed" not in pages["runs"]
    assert "unknown" in pages["run-log-fa30000000"] and "completed" not in pages["run-log-fa30000000"]


def test_what_nobody_knows_is_no_word_of_the_program(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        position = text.find("None")
        assert position < 0, (name, text[position - 60 : position + 20])


def sparse(root: Path, label: str, every: int, bad: tuple[int, ...] = ()) -> None:
    """An imported run whose log has a loss at some of its records alone; some may be no number."""
    evidence = {"steps": list(bad)}
    findings = [Finding(check="values", level="error", sentence="NaN.", evidence=evidence)] if bad else []
    source = Imported(
        format="csv", file=f"/logs/{label}.csv", sha256="0" * 64, imported_at=START, version="0.1.0",
        records=300, findings=findings,
    )  # fmt: skip
    fields = {"group": f"g-{label}", "factors": {"attention": label}, "attention": label, "imported": source}
    design = {"baseline": {"attention": "sdpa"}, "margins": {"loss": 0.02}}
    folder = write_log(root, f"log-{label:0<10}", **fields, **design)
    (folder / "attempt-1" / "steps.jsonl").unlink()
    for step in range(1, 301):
        loss = None if step % every or step in bad else 3 + 0.001 * math.sin(7 * step)
        line = ImportedStep(step=step, steps=1, loss=loss, step_seconds=0.4, tokens=4096)
        files.append(folder / "attempt-1" / "steps.jsonl", line)


@pytest.mark.fault
def test_a_loss_that_a_log_does_not_give_is_not_one_that_is_not_finite(tmp_path: Path) -> None:
    sparse(tmp_path, "sdpa", every=1)
    sparse(tmp_path, "often", every=2)
    sparse(tmp_path, "bad", every=2, bad=(270,))
    collect(tmp_path)
    out = build_report(tmp_path, "theirs", tmp_path / "out").parent
    table = csv.DictReader((out / "data" / "findings" / "losses.csv").read_text().splitlines())
    assert {row["label"]: row["kind"] for row in table} == {"often": "equivalent", "bad": "different"}
    study = read(*(StudySource("theirs", tmp_path, "theirs"),) * 2)[0]
    losses = {run["label"]: study.records[run["run_id"]].losses for run in study.runs}
    assert [step for step, loss in losses["bad"].items() if math.isnan(loss)] == [270]
    assert not any(map(math.isnan, losses["often"].values()))


GUESSES = (
    "completed, as the study expected", "of which 2 completed", "`order: interleaved`", "order: interleaved",
    "the number of runs was fixed in advance", "stated before the runs", "no run used a GPU", "no run has started",
    "in the study to turn", "in the study before it runs", "start-up 0", "group and seed",
)  # fmt: skip


def test_what_nobody_knows_of_imported_runs_is_said_by_no_page(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        for guess in GUESSES:
            position = text.find(guess)
            assert position < 0, (name, text[max(0, position - 80) : position + 80])
    assert "Whether 2 runs completed is unknown: their logs end at step" in pages["index"]


def test_a_learning_rate_that_only_the_records_say_is_known(tmp_path: Path) -> None:
    write(tmp_path, "sdpa")
    steps = tmp_path / "theirs" / "log-sdpa000000" / "attempt-1" / "steps.jsonl"
    files.append(steps, ImportedStep(step=501, steps=1, loss=3.0, learning_rate=5e-5))
    collect(tmp_path)
    text = (build_report(tmp_path, "theirs", tmp_path / "out").parent / "index.html").read_text()
    assert "5e-05 at the highest, by the records" in text
