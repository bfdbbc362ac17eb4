"""The report: complete, traceable, inert, and without the network."""

from __future__ import annotations

import csv
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urldefrag, urlparse

import pytest

from analysis.query.ask import ask
from analysis.report import comparison, facts, render
from analysis.report.build import build_report
from analysis.report.carried import MANIFEST, ReportManifest, files
from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from model.record.errors import UserError
from model.record.files import read, write
from model.record.records import DesignRecord
from runner.inputs.document import read_document
from tests.analysis.demo import write_demo
from tests.analysis.fabricate import Folder, completed, plan

EVIL = '</script><script>alert(1)</script><img src=x onerror=alert(2)> \u2028 {{ 7 * 7 }} & "quoted"'


class Page(HTMLParser):
    """What a test asks of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def all(self, name: str) -> list[str]:
        """Every value of an attribute."""
        return [
            value for _, attributes in self.tags for key, value in attributes.items() if key == name and value
        ]


@pytest.fixture
def report(demo_report: Path) -> Path:
    return demo_report


def words(path: Path) -> str:
    """A page's text, tags apart, spaces folded."""
    return " ".join(re.sub(r"<[^>]*>", " ", path.read_text(encoding="utf-8")).split())


def test_it_has_its_pages(report: Path) -> None:
    assert {
        "index",
        "comparison",
        "loss",
        "tokens",
        "mfu",
        "time",
        "memory",
        "certificates",
        "runs",
        "methods",
        "print",
    } == {path.stem for path in report.glob("*.html") if not path.stem.startswith("run-")}


def test_verdicts_on_rates_say_what_they_rest_on(report: Path) -> None:
    """The demo states a margin of the loss alone: no verdict on a rate is held against one."""
    text = words(report / "comparison.html")
    assert "Tokens per second against cudnn, in the study's order. n: runs, or pairs of runs." in text
    assert "by a test of the difference, corrected for 10 pairs" in text
    assert "not a finding: in one run each" in text


def test_a_description_is_the_studys_and_what_a_launch_changed_is_beside_it(
    root: Path, tmp_path: Path
) -> None:
    command = ["runner", "launch", "study.yaml", "--set", "train.steps=30"]
    provenance = plan("r1").provenance.model_copy(update={"command": command})
    descriptions = {
        "description": "Which is fast? All read one text.",
        "scale_description": "For 60 steps, unlike `full`.",
    }
    completed(root, "r1", steps=30, provenance=provenance, **descriptions)
    collect(root)
    build_report(root, "backends", tmp_path / "report")
    for name in ("index", "print"):
        text = words(tmp_path / "report" / f"{name}.html")
        assert (
            "All read one text. The study says of scale full: For 60 steps, unlike full . "
            "What was launched differs from that: --set train.steps=30 ." in text
        )
        assert "Attention backends compared Which is fast? A llama of" in text, "the question comes first"


def test_every_link_leads_somewhere_in_the_folder(report: Path) -> None:
    pages = {path.name: Page(path) for path in report.glob("*.html")}
    anchors = {name: set(page.all("id")) for name, page in pages.items()}
    for name, page in pages.items():
        assert len(page.all("id")) == len(anchors[name]), f"an id twice in {name}"
        for link in (*page.all("href"), *page.all("src")):
            if link.startswith("data:"):
                continue
            assert not urlparse(link).scheme
            target, anchor = urldefrag(link)
            assert (report / (target or name)).exists(), link
            assert not anchor or anchor in anchors[target or name], link


def test_nothing_points_to_the_network(report: Path) -> None:
    for path in (*report.glob("*.html"), *report.glob("assets/*.css")):
        text = path.read_text(encoding="utf-8")
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text))
        assert addresses <= {"https://vega.github.io"}, path  # the name of the schema, which nothing fetches


def test_every_run_is_on_the_index_with_its_outcome_and_reason(report: Path) -> None:
    text = words(report / "index.html")
    for expected in (
        "oom_gpu as expected",
        "timeout expected completed",
        "unsupported expected completed",
        "the loss is NaN at step 300",
        "flash4: needs a GPU of compute capability 10.0, this is 9.0",
        "it stores every score, 32 heads x 4096 x 4096",
        "waiting",
        "backends/93torn00aa11/run.json",
        "No result: ",
        "math (out of GPU memory)",
    ):
        assert expected in text, expected


def test_a_figure_tells_how_it_was_measured(report: Path) -> None:
    text = words(report / "tokens.html")
    for expected in (
        "Figure 4.",
        "n = 3 in 4 (auto, cudnn, flash, flash3)",
        "n = 1 in 2 (custom, flash2)",
        "left out: the first 10 steps",
        "NVIDIA H200",
        "torch 2.13.0",
        "a1b2c3d4e5",
        "Left out",
    ):
        assert expected in text, expected


def test_where_it_was_measured_is_said_once_a_page(report: Path) -> None:
    for name in ("tokens", "loss", "time", "comparison"):
        text = words(report / f"{name}.html").partition("Made by Assay")[0]
        assert text.count("torch 2.13.0") == text.count("Commit a1b2c3d4e5") == 1, name
        assert text.rstrip().endswith("a1b2c3d4e5"), name


def test_a_reason_that_groups_share_is_written_once_below_their_table(report: Path) -> None:
    html = (report / "comparison.html").read_text()
    for name, kind in (("Tokens per second compared", "ratios"), ("Losses compared", "losses")):
        match = re.search(rf'aria-label="Table: {name}"(.*?)</table>(.*?)</dl>', html, re.S)
        assert match
        table, notes = match.groups()
        reasons = re.findall(r"<dd>(.*?)</dd>", notes)
        assert reasons and len(reasons) == len(set(reasons))
        note_ids = {f"{kind}-note-{letter}" for letter in re.findall(r"<sup>(\w+)</sup>", table)}
        assert note_ids == set(re.findall(r'id="([\w-]+)"', notes)) and 'class="reason"' not in table


def test_methods_are_read_in_five_minutes(report: Path) -> None:
    html = re.sub(
        r"<details.*</details>|<table.*?</table>", "", (report / "methods.html").read_text(), flags=re.S
    )
    assert len(re.sub(r"<[^>]*>", " ", html).split()) < 1200


def test_figures_with_the_same_query_share_one_table(report: Path) -> None:
    tables = [path.read_bytes() for path in report.glob("data/*.csv")]
    linked = {
        name
        for page in report.glob("*.html")
        for name in re.findall(r'href="data/(\w+).csv"', page.read_text())
    }
    assert len({*tables}) == len(tables)
    assert linked <= {path.stem for path in report.glob("data/*.csv")}
    assert "mfu" not in linked  # its rows are those of tokens_per_second
    assert linked | {"mfu"} < {path.stem for path in report.glob("data/queries/*.sql")}


def test_a_figures_sql_gives_its_csv(demo: Path, report: Path) -> None:
    html = (report / "memory.html").read_text(encoding="utf-8")
    block = re.search(r'<details class="sql">.*?<code>(.*?)</code>', html, re.S)
    assert block
    sql = block[1].replace("&#39;", "'").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    with (report / "data" / "memory.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    answer = ask(demo, sql)
    assert [row["run_id"] for row in rows] == [row["run_id"] for row in answer.records()]
    assert [float(row["peak_memory_gib"]) for row in rows] == [
        row["peak_memory_gib"] for row in answer.records()
    ]


def test_text_from_a_study_is_inert(root: Path, tmp_path: Path) -> None:
    """A title, factors, reasons and reasons for expecting them are shown as they are and run nothing,
    and leave the text around them in its order."""
    evil = f"\u202eegap\u2066{EVIL}"
    factors = {"attention": "auto", "seed": 0, "note<b>": evil}
    changes = {"title": evil, "description": evil, "because": evil}
    completed(root, "r1", factors=factors, **changes)
    folder = completed(root, "r2", attention="flash", factors={**factors, "note<b>": "plain"}, **changes)
    folder.event("claimed", attempt=2)
    folder.start(attempt=2, device=evil, host=evil, software={evil: evil})
    folder.end("failed", attempt=2, reason=evil)
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    for path in [*out.glob("*.html"), *out.glob("figures/*.svg")]:
        content = path.read_text(encoding="utf-8")
        assert not set("\u202e\u2066") & set(content), path.name
    assert "[U+202E]egap[U+2066]" in words(out / "index.html")
    for path in out.glob("*.html"):
        page = Page(path)
        sources = [attributes.get("src") for tag, attributes in page.tags if tag == "script"]
        assert {source for source in sources if source} <= {"assets/vega.js", "assets/page.js"}
        assert all("onerror" not in attributes for _, attributes in page.tags)
        text = path.read_text(encoding="utf-8")
        assert "<script>alert" not in text
        assert "\u2028" not in "".join(re.findall(r'<script type="application/json">(.*?)</script>', text))
        assert "49" not in re.findall(r"<title>(.*?)</title>", text, re.S)[0]


def test_every_template_is_there() -> None:
    names = {path.name for path in render.templates().iterdir() if path.suffix in (".html", ".css", ".js")}
    assert {
        "base.html",
        "index.html",
        "figures.html",
        "runs.html",
        "methods.html",
        "style.css",
        "page.js",
    } <= names


def test_a_spec_survives_its_script_element() -> None:
    value = {"a": EVIL, "b": [1.5, None, "<!--"]}
    text = str(render.script_json(value))
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_a_laptop_report_says_why_there_is_no_mfu(root: Path, tmp_path: Path) -> None:
    write_demo(root, cpu=True)
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    assert "MFU is not shown: the peak FLOP/s of AMD EPYC 9454" in words(out / "mfu.html")


def test_a_study_that_has_not_started_still_has_a_report(root: Path, tmp_path: Path) -> None:
    Folder(root, plan("r1"))
    collect(root)
    index = build_report(root, "backends", tmp_path / "out")
    assert "not started" in words(index)
    assert "One run: the interval" not in words(index)
    assert "scale full · profile alps" in words(index)
    assert not index.with_name("time.html").exists()
    assert "not drawn. No run completed with step records" in words(index.with_name("methods.html"))


def test_where_no_run_completed_the_declared_baseline_and_order_are_still_told(
    root: Path, tmp_path: Path
) -> None:
    design = DesignRecord(order="interleaved", order_seed=7, baseline={"attention": "auto"})
    folder = Folder(root, plan("r1", study="big", design=design, block=1))
    folder.event("claimed", executor="local")
    folder.start()
    folder.end("oom_gpu", steps=0, final_loss=None, peak_memory_bytes=None, reason="CUDA out of memory")
    collect(root)
    with open_for_reading(root) as connection:
        study_comparison = comparison.of_study(connection, "big", facts.gather(connection, "big").runs)
    assert study_comparison.advice is None
    assert study_comparison.order.startswith("interleaved")


def test_a_study_of_one_group_is_not_told_to_declare_a_baseline(root: Path, tmp_path: Path) -> None:
    """No factor could name it."""
    completed(root, "r1")
    collect(root)
    with open_for_reading(root) as connection:
        study_comparison = comparison.of_study(
            connection, "backends", facts.gather(connection, "backends").runs
        )
    assert study_comparison.advice is None


def test_the_one_group_that_completed_is_not_told_to_declare_a_baseline(root: Path, tmp_path: Path) -> None:
    """The study has another group, but nothing of it that could be compared."""
    completed(root, "r1")
    folder = Folder(root, plan("r2", attention="math", factors={"attention": "math", "seed": 0}))
    folder.start()
    folder.end("oom_gpu", steps=0, final_loss=None, peak_memory_bytes=None, reason="CUDA out of memory")
    collect(root)
    text = words(build_report(root, "backends", tmp_path / "out"))
    assert "baseline: {" not in text and "the machine's own" not in text
    assert "What another start would give is unknown: one run ( auto ) completed." in text
    assert "To know it, write repeats: 6 in the study." in text


@pytest.mark.parametrize(
    "value",
    [
        "flash",
        "math tiled",
        "B1 T64 H2 D16",
        "64x64",
        "",
        "yes",
        "null",
        "a, b",
        "a: b #c",
        "1e-3",
        True,
        8,
        1e-5,
    ],
)
def test_the_baseline_to_write_is_yaml_that_names_the_first_group(
    root: Path, tmp_path: Path, value: object
) -> None:
    for run_id, level in (("r1", value), ("r2", "zz")):
        folder = Folder(root, plan(run_id, group=run_id, factors={"some.axis": level, "seed": 0}))
        folder.start()
        for step in range(1, 8):
            folder.step(step)
        folder.end(steps=7)
    collect(root)
    with open_for_reading(root) as connection:
        advice = comparison.of_study(connection, "backends", facts.gather(connection, "backends").runs).advice
    (tmp_path / "study.yaml").write_text(f"title: t\n{advice}\n")
    baseline = read_document(tmp_path / "study.yaml").data["baseline"]["some.axis"]
    assert (baseline, type(baseline)) == (value, type(value))


def test_runs_on_two_devices_are_flagged_before_they_are_compared(root: Path, tmp_path: Path) -> None:
    completed(root, "r1")
    folder = Folder(root, plan("r2", attention="flash"))
    folder.start(device="NVIDIA A100-SXM4-80GB", peak=312e12)
    folder.step(20)
    folder.end()
    collect(root)
    text = words(build_report(root, "backends", tmp_path / "out"))
    assert "Completed runs ran on different devices: NVIDIA A100-SXM4-80GB, NVIDIA H200." in text


def test_an_uncollected_study_names_those_there_are(root: Path, tmp_path: Path) -> None:
    completed(root, "r1")
    collect(root)
    with pytest.raises(UserError, match="did you mean 'backends'"):
        build_report(root, "backend", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_quote_in_a_study_cannot_leave_its_literal(root: Path) -> None:
    from analysis.report.facts import literal

    completed(root, "r1")
    collect(root)
    sql = literal("SELECT count(*) AS n FROM runs WHERE study = $study", "x' OR 'a' = 'a")
    assert ask(root, sql).rows == ((0,),)


def test_two_builds_are_the_same(demo: Path, report: Path, tmp_path: Path) -> None:
    first, second = report, build_report(demo, "backends", tmp_path / "two").parent
    assert files(first) == files(second)
    for path in files(first):
        if path != MANIFEST:
            assert (first / path).read_bytes() == (second / path).read_bytes(), path
    manifest, rebuilt = (read(folder / MANIFEST, ReportManifest) for folder in (first, second))
    assert manifest.roots and manifest == rebuilt.model_copy(update={"roots": manifest.roots}), (
        "they lie in other places"
    )


def test_a_report_replaces_the_one_before_and_leaves_the_files_of_others(root: Path, tmp_path: Path) -> None:
    completed(root, "r1")
    collect(root)
    out = build_report(root, "backends", tmp_path / "out").parent
    manifest = read(out / MANIFEST, ReportManifest)
    (out / "old.html").write_text("of the report before")
    (out / "notes.txt").write_text("of somebody else")
    (tmp_path / "outside").write_text("of somebody else")
    listed = {"old.html": "0" * 64, "../outside": "0" * 64}
    write(out / MANIFEST, manifest.model_copy(update={"files": manifest.files | listed}))
    build_report(root, "backends", out, records=False)
    assert not (out / "old.html").exists()
    assert (out / "notes.txt").exists()
    assert (tmp_path / "outside").exists()
    assert not list(out.glob("data/records/*"))
    assert {*read(out / MANIFEST, ReportManifest).files, MANIFEST, "notes.txt"} == set(files(out))


def test_a_report_carries_every_query_that_it_asked(report: Path) -> None:
    carried = {path.stem for path in report.glob("data/queries/*.sql")}
    assert {path.stem for path in report.glob("data/*.csv")} <= carried
    assert {"attempts", "quarantine", "columns", "views", "schema"} <= carried
    unnamed = [path.read_text() for path in report.glob("data/queries/query-*.sql")]
    assert unnamed == []
