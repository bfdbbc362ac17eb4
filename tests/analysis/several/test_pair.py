"""The page of a comparison: the words of the command, errors in logs flagged, every number audited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.audit.audit import audit
from analysis.several.pair import build_pair
from analysis.store.collect import collect
from analysis.verdicts.comparison import CompareOptions, compare
from analysis.verdicts.sections import sections, summary
from analysis.verdicts.source import StudySource, read
from tests.analysis.fabricate import completed
from tests.analysis.report.test_build import EVIL, words
from tests.analysis.report.test_imported_pages import write

OPTIONS = CompareOptions(margins={"tokens_per_second": 0.02, "loss": 0.005})
THEIRS = CompareOptions(names=["fa3=flash3", "sdpa=auto"], across=["all"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study before and after it became slower, and the imported logs of somebody else."""
    root = tmp_path_factory.mktemp("runs")
    for study, seconds in (("before", 0.4), ("after", 0.5)):
        for attention in ("auto", "flash3"):
            for seed in range(3):
                time = seconds + seed / 1000
                completed(root, f"{attention}{seed}", time, study=study, attention=attention, seed=seed)
    for label, offset in (("sdpa", 0.0), ("fa3", 0.1)):
        write(root, label, offset)
    collect(root)
    return root


@pytest.fixture(scope="module")
def page(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sides = (StudySource(study, root, study) for study in ("before", "after"))
    return build_pair(*sides, OPTIONS, tmp_path_factory.mktemp("out") / "pair")


@pytest.fixture(scope="module")
def beside_logs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sides = (StudySource("theirs", root, "theirs"), StudySource("after", root, "after"))
    return build_pair(*sides, THEIRS, tmp_path_factory.mktemp("out") / "logs")


def test_the_page_says_what_the_command_prints(root: Path, page: Path) -> None:
    comparison = compare(
        *read(StudySource("before", root, "before"), StudySource("after", root, "after")), OPTIONS
    )
    text = words(page).replace("&#39;", "'").replace("&gt;", ">")
    assert comparison.regressions
    for section in sections(comparison):
        assert section.title in text
        for cell in (cell for row in section.rows for cell in row):
            assert cell.replace("`", "") in text, cell
    for line in comparison.regressions:
        assert line in text
    assert summary(comparison).startswith("regressions:")


def test_its_numbers_follow_from_the_records_that_it_carries(page: Path) -> None:
    folder = page.parent
    result = audit(folder)
    assert result.findings == []
    assert result.numbers > 50
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("0.401 -&gt; 0.501", "0.401 -&gt; 0.301"), encoding="utf-8")
    try:
        findings = "\n".join(map(str, audit(folder).findings))
    finally:
        page.write_text(text, encoding="utf-8")
    assert "it says 0.401 -> 0.301, the records give 0.401 -> 0.501" in findings


def test_a_group_whose_log_is_wrong_is_flagged_in_every_table(beside_logs: Path) -> None:
    text = words(beside_logs)
    assert "fa3 = flash3 flagged fa3&#39;s loss is 0.1 nats above the others&#39;." in text
    assert text.count("fa3 = flash3 flagged") == 2  # what the groups share is said of all
    assert "sdpa = auto flagged" not in text
    assert "Before: theirs (imported: no certificate)" in text
    files = {finding.file for finding in audit(beside_logs.parent).findings}
    assert files <= {"data/records/attempts.parquet"}  # the fabricated logs say fewer steps than they have


def test_the_command_names_the_groups_whose_logs_are_wrong(root: Path) -> None:
    sides = (StudySource(study, root, study) for study in ("theirs", "after"))
    rows = {section.name: section.rows for section in sections(compare(*read(*sides), THEIRS))}
    assert rows["wrong"] == [["fa3 = flash3", "fa3's loss is 0.1 nats above the others'."]]


def test_its_summary_is_a_sentence_also_where_nothing_became_worse(root: Path, tmp_path: Path) -> None:
    sides = (StudySource(study, root, study) for study in ("after", "before"))
    build_pair(*sides, OPTIONS, tmp_path / "out")
    answer = json.loads((tmp_path / "out" / "data" / "summary.json").read_text())["answer"]
    assert answer.startswith("No regression is established (")
    assert answer.endswith(".")


def test_a_source_that_was_named_by_its_path_is_called_by_its_root_and_name(
    root: Path, tmp_path: Path
) -> None:
    sides = (StudySource(str(root / "before"), root, "before"), StudySource("after", root, "after"))
    text = words(build_pair(*sides, OPTIONS, tmp_path / "out"))
    assert f"after compared with {root.name}/before" in text
    assert str(root) not in text


def test_what_others_wrote_is_text(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for study, seconds in (("one", 0.4), ("two", 0.5)):
        factors = {"attention": "auto", "seed": 0, "note<b>": EVIL}
        completed(root, "r1", seconds, study=study, title=EVIL, factors=factors)
    collect(root)
    sides = (StudySource(study, root, study) for study in ("one", "two"))
    html = build_pair(*sides, OPTIONS, tmp_path / "out").read_text(encoding="utf-8")
    assert "<img" not in html
    assert "<script>" not in html
    assert audit(tmp_path / "out").findings == []
