"""`runner audit`: whatever is changed in a report by hand is found and named, and nothing else is."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from analysis import charts
from analysis.audit.audit import AuditResult, audit, rebuild
from analysis.audit.finding import ComparedReport, split
from analysis.audit.folders import compare_output
from analysis.audit.pages import read_page
from analysis.audit.records import contradictions
from analysis.drawings import draw
from analysis.report import carried, output
from analysis.report.build import build_report, certificates_page, write_report
from analysis.report.carried import MANIFEST, ReportManifest
from analysis.store.collect import collect
from analysis.store.database import in_memory
from analysis.store.records import open_records
from model.record.errors import UserError
from model.record.files import read, sha256, write
from tests.analysis.fabricate import certificate, completed


@pytest.fixture(scope="module", autouse=True)
def _in_less_time() -> Iterator[None]:
    """Make some figures only, and draw equal ones once: a drawing depends on its specification alone."""
    drawings: dict[tuple[str, float], str] = {}
    lay_out = draw.laid_out

    def memoized(spec: dict[str, Any], inches: float, version: str | None = None) -> str:
        key = (json.dumps(spec), inches)
        if key not in drawings:
            drawings[key] = lay_out(spec, inches, version)
        return drawings[key]

    names = ("certificates", "loss", "memory", "mfu", "time", "tokens_per_second")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw, "laid_out", memoized)
        patch.setattr(charts, "names", lambda: names)  # the command line's test audits all figures
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two backends, two seeds each."""
    root = tmp_path_factory.mktemp("root")
    for attention, seconds in (("auto", 0.4), ("flash", 0.38)):
        key = certificate(root, attention, case=None).key
        for seed in (0, 1):
            folder = completed(
                root, f"{attention}{seed}", seconds + seed / 100, attention=attention, seed=seed
            )
            folder.audit(50)
            manifest = folder.path / "attempt-1" / "manifest.json"
            manifest.write_text(
                manifest.read_text().replace('"certificate": null', f'"certificate": "{key}"')
            )
    collect(root)
    return root


@pytest.fixture(scope="module")
def made(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report, which is only read."""
    return build_report(root, "backends", tmp_path_factory.mktemp("made") / "report").parent


@pytest.fixture
def report(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "report"))


def edit(path: Path, old: str, new: str, count: int = 1) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, old
    path.write_text(text.replace(old, new, count), encoding="utf-8")


def sign(report: Path) -> None:
    """Write the manifest anew, as a forger would."""
    manifest = read(report / MANIFEST, ReportManifest)
    files = {path: sha256(report / path) for path in carried.files(report) if path != MANIFEST}
    write(report / MANIFEST, manifest.model_copy(update={"files": files}))


def findings_in(result: AuditResult, file: str) -> str:
    return "\n".join(str(finding) for finding in result.findings if finding.file == file)


def test_a_report_that_nobody_touched_matches_its_records(made: Path, root: Path) -> None:
    result = audit(made, root)
    assert result.findings == result.notes == []
    assert result.same_code
    assert result.skipped == 0
    count = sum(len(re.findall(r"\d+", path.read_text())) for path in made.glob("*.html"))
    assert result.numbers > count / 2  # of the pages alone


def test_a_report_that_is_rebuilt_from_its_records_is_the_same(made: Path, tmp_path: Path) -> None:
    """`make published` does so, and then needs no run folders."""
    rebuild(made, tmp_path)
    assert carried.files(tmp_path) == carried.files(made)
    changed = [
        path for path in carried.files(made) if (tmp_path / path).read_bytes() != (made / path).read_bytes()
    ]
    assert changed == [MANIFEST]
    old, new = (read(folder / MANIFEST, ReportManifest) for folder in (made, tmp_path))
    assert new == old.model_copy(update={"roots": ()}), "no folder of runs was read"


def test_every_number_on_a_page_says_which_queries_it_is_made_of(made: Path) -> None:
    """Apart from the rules on the page of methods, which are the same in every report."""
    carried_queries = {path.stem for path in made.glob("data/queries/*.sql")}
    for path in made.glob("*.html"):
        page = read_page(path.read_text())
        query_names = {name for source in page.sources.values() for name in source.split()}
        assert query_names <= carried_queries, path.name
        unsourced = [
            place for place, text in page.pieces.items() if split(text)[1] and place not in page.sources
        ]
        if path.name != "methods.html":
            assert not [
                place for place in unsourced if "/" in place and not place.endswith(("pre", "summary"))
            ], path.name


def test_the_page_of_verify_is_audited_too(root: Path, tmp_path: Path) -> None:
    page = certificates_page(root, tmp_path / "machine")
    assert audit(page.parent).findings == []
    edit(page, "2 right", "3 right")
    assert "it says 3 right., the records give 2 right." in findings_in(audit(page.parent), "index.html")


def test_each_thing_that_was_changed_by_hand_is_named(report: Path) -> None:
    """Also where the manifest was written anew to hide it."""
    speed = re.search(
        r'<th scope="row">auto</th>.*?<td class="n">(1\d,\d{3}) <span',
        (report / "index.html").read_text(),
        re.S,
    )
    assert speed
    edit(report / "index.html", f">{speed[1]} <", ">19,999 <")
    edit(report / "methods.html", "at or after W steps", "at or after 2 W steps")
    edit(report / "run-auto0.html", "from 18 step records", "from 19 step records")
    edit(report / "memory.html", '"value":[71.0', '"value":[61.0')
    edit(report / "mfu.html", "<figcaption>", "<figcaption hidden>")
    edit(report / "time.html", 'alt="', 'alt="9 ')
    row = (report / "data" / "memory.csv").read_text().splitlines()[1]
    edit(report / "data" / "memory.csv", row, row.replace("71.0", "17.0"))
    edit(report / "figures" / "memory.svg", 'aria-label="71.00"', 'aria-label="11.00"')
    transform = re.search(
        r'transform="translate\(([\d.]+),([\d.]+)\)"', (report / "figures" / "loss.svg").read_text()[3000:]
    )
    assert transform
    edit(report / "figures" / "loss.svg", transform[0], transform[0].replace(transform[1], "1"))
    edit(report / "data" / "queries" / "memory.sql", "study", "study -- ")
    edit(report / "assets" / "page.js", '"use strict"', "")
    (report / "tokens.html").unlink()
    shutil.copy(report / "time.html", report / "more.html")
    sign(report)
    result = audit(report)
    for file, *passages in (
        ("index.html", "auto, Tokens/s", "19,999", speed[1], "(queries: runs, measured_runs"),
        ("methods.html", "warmup_steps", "2 W steps"),
        ("run-auto0.html", "Measured", "19 step records", "18 step records"),
        ("memory.html", "figure memory, datasets, rows", "value 1: it says 61.0, the records give 71.0"),
        ("mfu.html", "of its source", "<figcaption hidden>"),
        ("time.html", "img alt"),
        ("data/memory.csv", "line 2 (", "peak_memory_gib", "17.0"),
        ("figures/memory.svg", "it says 11.00, the records give 71.00"),
        ("figures/loss.svg", "drawn differently"),
        ("data/queries/memory.sql", "was changed: it is not what this code writes"),
        ("assets/page.js", "was changed"),
        ("tokens.html", "missing"),
        ("more.html", "no report of this study has such a file"),
    ):  # fmt: skip
        for passage in passages:
            assert passage in findings_in(result, file), (file, passage, findings_in(result, file))
    assert {finding.file for finding in result.findings} == {
        "index.html", "methods.html", "run-auto0.html", "memory.html", "mfu.html", "time.html", "data/memory.csv", "figures/memory.svg",
        "figures/loss.svg", "data/queries/memory.sql", "assets/page.js", "tokens.html", "more.html",
    }  # fmt: skip


@pytest.mark.parametrize("change", ["digit", "word", "row"])
def test_a_changed_heading_or_row_label_is_one_finding_and_not_all_that_is_below_it(
    report: Path, change: str
) -> None:
    page = report / "index.html"
    heading = re.search(r"<h1[^>]*>([^<]+)<", page.read_text())
    assert heading
    old, new = (
        ('<th scope="row">auto</th>', '<th scope="row">auto 2</th>')
        if change == "row"
        else (
            heading[0],
            heading[0].replace(heading[1], heading[1] + (" 7" if change == "digit" else " anew")),
        )
    )
    page.write_text(page.read_text().replace(old, new, 1))
    sign(report)
    findings = audit(report).findings
    assert len(findings) == 1
    assert "it says" in str(findings[0])
    assert "nothing" not in str(findings[0])


def alter(
    report: Path, table: str, column: str, change: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> None:
    path = report / "data" / "records" / f"{table}.parquet"
    rows = pq.read_table(path)
    place = rows.schema.get_field_index(column)
    pq.write_table(rows.set_column(place, rows.schema.field(place), change(rows[column])), path)


def test_records_that_were_changed_alone_no_longer_give_the_pages(report: Path) -> None:
    alter(report, "step_records", "step_seconds", lambda seconds: pc.multiply(seconds, 0.9))
    result = audit(report)
    assert "Tokens/s" in findings_in(result, "index.html")
    assert "SHA-256" in findings_in(result, "data/records/step_records.parquet")
    assert findings_in(result, "figures/tokens_per_second.svg")
    assert findings_in(result, "data/tokens_per_second.csv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "UPDATE run_records SET processes = 4",
            "completed on 1 GPUs in 1 processes, the records give 4 by the plan",
        ),
        (
            "UPDATE attempts SET gpus = 8",
            "completed on 8 GPUs in 1 processes, the records give 1 by the plan",
        ),
        (
            """UPDATE attempts SET rank_nodes = '["a", "b"]'""",
            "in 2 processes, the records give 1 by the plan",
        ),
    ],
)
def test_runs_on_other_processes_than_planned_are_named(report: Path, change: str, message: str) -> None:
    with open_records(report / "data" / "records") as connection:
        assert not list(contradictions(connection))
        connection.execute(change)
        assert message in "\n".join(map(str, contradictions(connection)))


@pytest.mark.parametrize(("imported", "count"), [("NULL", 1), ("'{}'", 0)])
def test_a_step_that_is_missing_is_named_but_in_logs_of_other_programs(
    report: Path, imported: str, count: int
) -> None:
    path = report / "data" / "records" / "step_records.parquet"
    rows = pq.read_table(path)
    missing = pc.and_(pc.equal(rows["step"], 50), pc.equal(rows["run_id"], "auto0"))
    pq.write_table(rows.filter(pc.invert(missing)), path)
    with open_records(report / "data" / "records") as connection:
        connection.execute(f"UPDATE run_records SET imported = {imported}")
        messages = "\n".join(map(str, contradictions(connection)))
    assert messages.count("a record before it that ends with step 45") == count


def test_records_that_contradict_each_other_are_named(report: Path) -> None:
    alter(report, "attempts", "final_loss", lambda loss: pc.subtract(loss, 0.5))
    alter(report, "attempts", "flop_per_token", lambda flop: pc.multiply(flop, 2))
    alter(report, "step_records", "tokens", lambda tokens: pc.add(tokens, 1))
    for column, value in (
        ("step_seconds_min", 50.0),
        ("step_seconds_max", 60.0),
        ("data_wait_seconds", -1.0),
        ("slowest_rank_seconds", 0.25),
        ("other_ranks_seconds", 0.5),
        ("power_seconds", 0.25),
    ):
        alter(report, "step_records", column, lambda values, value=value: pa.array([value] * len(values)))
    alter(report, "step_records", "slowest_rank", lambda values: pa.array([2] * len(values), pa.int32()))
    alter(report, "step_records", "power_steps", lambda values: pa.array([5] * len(values)))
    alter(report, "certificates", "code", lambda code: pc.utf8_replace_slice(code, 0, 1, "0"))
    alter(report, "verifications", "measured", lambda measured: pc.multiply(measured, 100))
    alter(report, "run_records", "seed", lambda seed: pc.add(seed, 1))
    alter(report, "audits", "dk_ratio", lambda ratio: pc.multiply(ratio, 3))
    with open_records(report / "data" / "records") as connection:
        messages = "\n".join(map(str, contradictions(connection)))
    for message in (
        "attempts.parquet: backends/auto0 attempt 1: it says a final loss of 8.5, the records give a last record of 9.0",
        "FLOP per token",
        "by the plan",
        "seconds per step, the records give steps of 50.0 to 60.0",
        "it says -1.0 seconds of waiting, the records give at most the",
        "it says power over 5 steps in 0.25 seconds, the records give 5 steps of",
        "it says rank 2 slowest with 0.25 seconds per step, the records give one of 1 processes, and no less than the 0.5 of the others",
        "certificates.parquet: auto: it says key",
        "verifications.parquet: auto, check 1 of",
        "it says seed 1, the records give the configuration: 0",
        "audits.parquet: backends/auto0 attempt 1, step 50: it says an audit that passed, the records give a largest error "
        "of 1.5 times what is allowed",
    ):
        assert message in messages, message


def test_what_is_changed_in_records_and_pages_alike_only_the_run_folders_show(
    root: Path, report: Path, tmp_path: Path
) -> None:
    """The report alone is then consistent, which the docs say; its run folders are not what it says."""
    alter(report, "step_records", "step_seconds", lambda seconds: pc.multiply(seconds, 0.9))
    with open_records(report / "data" / "records") as connection:
        write_report(connection, "backends", tmp_path / "forged", records=True)
    assert audit(tmp_path / "forged").findings == []
    (finding, other) = audit(tmp_path / "forged", root).findings
    assert finding.file == other.file == "data/records/step_records.parquet"
    assert "84 of its rows are not in the run folders: backends auto0 1 1" in finding.what


def test_quoted_output_is_held_against_the_logs(root: Path) -> None:
    """What a report quotes is in its records alone, which whoever forges it writes anew with the page."""
    log = root / "backends" / "auto0" / "attempt-1" / "stderr.log"
    with in_memory() as connection:
        text = "loss 3.0"
        row = {
            "study": "backends",
            "run_id": "auto0",
            "attempt": 1,
            "stream": "stderr",
            "size_bytes": 9,
            "text": text,
        }
        output.attach(connection, [row])
        for content, findings, notes in (("loss 3.0\n", 0, 0), ("loss 9.0\n", 1, 0), (None, 0, 1)):
            log.unlink(missing_ok=True)
            if content:
                log.write_text(content)
            comparison = ComparedReport()
            compare_output(comparison, connection, "backends", root)
            assert (len(comparison.findings), len(comparison.notes)) == (findings, notes), content


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """This version is not the one that made the report."""
    monkeypatch.setattr(carried, "code", lambda: "0" * 64)


@pytest.mark.usefixtures("other_code")
def test_with_other_code_numbers_count_and_words_do_not(report: Path) -> None:
    edit(report / "index.html", '<h2 id="figures">All figures</h2>', '<h2 id="figures">All 9 figures</h2>')
    edit(report / "methods.html", "at or after W steps", "at or after all 3 W steps")
    edit(report / "assets" / "page.js", '"use strict"', "")
    edit(report / "data" / "queries" / "memory.sql", "SELECT", "-- another way to ask for the same\nSELECT")
    sign(report)
    result = audit(report)
    assert result.findings == []
    assert not result.same_code
    assert 0 < result.skipped < result.numbers / 20
    assert "other code made the report" in result.notes[0]
    row = (report / "data" / "memory.csv").read_text().splitlines()[1]
    edit(report / "data" / "memory.csv", row, row.replace("71.0", "17.0"))
    edit(report / "run-auto0.html", "from 18 step records", "from 19 step records")
    edit(report / "memory.html", '"value":[71.0', '"value":[61.0')
    sign(report)
    forged = {finding.file for finding in audit(report).findings}
    assert forged == {"data/memory.csv", "run-auto0.html", "memory.html"}


@pytest.mark.usefixtures("other_code")
def test_with_other_code_numbers_in_titles_summaries_and_conclusions_count(report: Path) -> None:
    """Also one whose power of ten makes it small, and one within a text of a figure's data."""
    title = re.search(r"<h2[^>]*>(Figure \d+\. [^<]*?)(\d+)([^<]*)</h2>", (report / "mfu.html").read_text())
    assert title
    edit(report / "mfu.html", f"{title[1]}{title[2]}{title[3]}</h2>", f"{title[1]}99{title[3]}</h2>")
    edit(report / "time.html", '"seed 0, auto0"', '"seed 7, auto0"')
    edit(report / "data" / "summary.json", "4 completed", "9 completed")
    ranking = (report / "data" / "findings" / "ranking.csv").read_text().splitlines()[1].split(",")
    digits = next(cell for cell in ranking if "." in cell)
    edit(report / "data" / "findings" / "ranking.csv", digits, f"7{digits}")
    edit(report / "methods.html", "<td>5e-05</td>", "<td>8e-05</td>")
    sign(report)
    forged = {finding.file: str(finding) for finding in audit(report).findings}
    assert forged.keys() == {
        "mfu.html", "time.html", "data/summary.json", "data/findings/ranking.csv", "methods.html",
    }  # fmt: skip
    assert "it says 9 completed, the records give 4 completed" in forged["data/summary.json"]


@pytest.mark.refused
@pytest.mark.usefixtures("other_code")
@pytest.mark.parametrize(
    ("file", "sql"),
    [
        ("memory.sql", "COPY (SELECT 1) TO '{out}'"),
        ("memory.sql", "SELECT * FROM read_text('/etc/passwd')"),
        ("views.sql", "COPY (SELECT 1) TO '{out}'"),
        ("schema.sql", "ATTACH '{out}'"),
    ],
)
def test_a_query_that_reaches_out_is_refused(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, sql: str
) -> None:
    monkeypatch.setattr("analysis.audit.audit.write_report", lambda *_, **__: None)  # saves seconds
    (report / "data" / "queries" / file).write_text(sql.replace("{out}", str(tmp_path / "out")))
    sign(report)
    assert "the records cannot be used" in findings_in(audit(report), "data/records")
    assert not (tmp_path / "out").exists()


def _manifest(old: str, new: str) -> Callable[[Path], None]:
    return lambda report: edit(report / MANIFEST, old, new)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (shutil.rmtree, "name the folder that `runner report` wrote"),
        (
            lambda report: (report / MANIFEST).unlink(),
            "data/manifest.json is missing; name the whole folder",
        ),
        (
            lambda report: shutil.rmtree(report / "data"),
            "data/records, data/queries and data/manifest.json are missing; name the whole folder",
        ),
        (
            _manifest('"schema_version": 1', '"schema_version": 2'),
            "a newer version of assay may have written it",
        ),
        (lambda report: os.truncate(report / MANIFEST, 100), "manifest.json"),
        (_manifest('"records": true', '"records": false'), "--no-records"),
    ],
)
def test_what_is_no_report_that_can_be_audited_is_refused(
    report: Path, harm: Callable[[Path], None], message: str
) -> None:
    harm(report)
    with pytest.raises(UserError, match=re.escape(message)):
        audit(report)


@pytest.mark.refused
def test_a_torn_file_or_a_link_in_a_report_is_named(report: Path, tmp_path: Path) -> None:
    path = report / "data" / "records" / "attempts.parquet"
    path.write_bytes(path.read_bytes()[:-50])
    (tmp_path / "secret.html").write_text("7")
    (report / "time.html").unlink()
    (report / "time.html").symlink_to(tmp_path / "secret.html")
    (report / "figures").rename(tmp_path / "figures")
    (report / "figures").symlink_to(tmp_path / "figures")
    result = audit(report)
    assert "attempts.parquet" in findings_in(result, "data/records")
    assert "it is a link" in findings_in(result, "time.html")
    assert result.findings


@pytest.mark.refused
def test_a_file_among_the_records_that_no_table_is_read_from_is_named(report: Path) -> None:
    (report / "data" / "records" / "more.parquet").write_bytes(b"PAR1")
    sign(report)
    assert "it holds the records of no table" in findings_in(audit(report), "data/records/more.parquet")


@pytest.mark.refused
def test_a_manifest_whose_study_the_records_lack_is_a_finding(report: Path) -> None:
    manifest = json.loads((report / MANIFEST).read_text())
    (report / MANIFEST).write_text(json.dumps(manifest | {"study": "'; DROP TABLE attempts; --"}))
    assert "no report can be made from them" in findings_in(audit(report), "data/records")
