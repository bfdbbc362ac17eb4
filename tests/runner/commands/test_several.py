"""Several studies at once: one plan, nothing started if one is wrong, and one front page of their reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from analysis import charts
from analysis.audit.audit import audit
from model.record.errors import UserError
from runner.cli.app import app
from runner.commands import _start
from runner.execute import launch as execute
from tests.analysis.fabricate import completed

Study = Callable[..., Path]
SLURM = "executor: slurm\ncpus: 1\nslurm: {}\n"


def call(root: Path, *arguments: object) -> tuple[str, str]:
    answer = CliRunner().invoke(app, ["--root", str(root), *map(str, arguments)])
    if answer.exception and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    return answer.stdout, answer.stderr


@pytest.fixture
def two(study: Study) -> tuple[Path, Path]:
    return study("matrix: {seed: [0, 1]}\n", "b"), study("matrix: {seed: [0]}\n", "a")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is started or submitted, in order, in place of doing it."""
    names: list[str] = []
    monkeypatch.setattr(_start, "start", lambda plan, _wait, _fail: names.append(plan.study.name) or 0)
    monkeypatch.setattr(
        execute, "submit", lambda plan, wait: names.append(f"submit {plan.study.name} {wait}")
    )
    return names


def test_a_dry_run_has_one_table_of_the_runs_of_all_studies_as_they_were_given(
    two: tuple[Path, Path], root: Path
) -> None:
    out, err = call(root, "launch", *two, "--dry-run")
    studies = [line.split("/")[0].strip() for line in out.splitlines() if "/" in line]
    assert studies == ["b", "b", "a"]
    assert out.count("expected") == 1
    assert err.index("study b:") < err.index("study a:")


def test_the_studies_of_a_folder_start_in_the_order_of_their_names(
    two: tuple[Path, Path], root: Path, started: list[str]
) -> None:
    call(root, "launch", two[0].parent)
    assert started == ["a", "b"]


def test_nothing_starts_if_one_is_wrong_and_all_that_is_wrong_is_said(
    study: Study, two: tuple[Path, Path], root: Path, started: list[str]
) -> None:
    wrong, worse = study("matrix: {seeds: [0]}\n", "wrong"), study("matrix: {sed: [0]}\n", "worse")
    with pytest.raises(UserError) as error:
        call(root, "launch", two[0], wrong, worse)
    assert "wrong.yaml:" in str(error.value) and "worse.yaml:" in str(error.value)
    assert started == []
    assert not root.exists()


def test_what_all_cost_together_is_held_against_the_profiles_budget(
    two: tuple[Path, Path], root: Path, tmp_path: Path, started: list[str]
) -> None:
    text = f"{SLURM}gpus: 1\ntime_limit: '1:00:00'\nbudget: {{gpu_hours: 2.5}}\n"
    (profile := tmp_path / "cluster.yml").write_text(text)
    options = ("-p", profile, "--yes")
    with pytest.raises(
        UserError, match="all together: .*budget of 2.5 GPU-hours: this launch needs 3 "
    ) as error:
        call(root, "launch", *two, *options)
    assert str(error.value).endswith("nothing was started")
    assert started == []
    call(root, "launch", two[0], *options)
    assert started == ["b"], "which needs 2"


def test_on_a_cluster_all_are_submitted_before_the_first_is_waited_for(
    two: tuple[Path, Path], root: Path, tmp_path: Path, started: list[str]
) -> None:
    (profile := tmp_path / "cluster.yml").write_text(f"{SLURM}time_limit: '1:00:00'\n")
    call(root, "launch", *two, "-p", profile, "--yes", "--wait")
    assert started == ["submit b True", "submit a True", "b", "a"]


@pytest.mark.parametrize("verb", ["launch", "report"])
def test_a_folder_without_a_study_is_refused(tmp_path: Path, root: Path, verb: str) -> None:
    with pytest.raises(UserError, match="no study in this folder"):
        call(root, verb, tmp_path)


def test_a_file_given_twice_or_two_of_one_name_are_refused(
    two: tuple[Path, Path], study: Study, root: Path
) -> None:
    with pytest.raises(UserError, match=r"b.yaml is given twice: leave one out"):
        call(root, "launch", two[0], two[0].parent)
    other = study("name: a\nmatrix: {seed: [1]}\n", "other")
    with pytest.raises(
        UserError, match="a.yaml and .*other.yaml are both study 'a': give one another `name:`"
    ):
        call(root, "launch", two[1], other)


@pytest.fixture
def collected(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    completed(root, "r1", study="second", title="The second")
    completed(root, "r2", study="first", title="The first")
    monkeypatch.setattr(charts, "names", lambda: ("memory", "ratios"))
    monkeypatch.chdir(root.parent)
    return root


def test_reports_of_several_are_chapters_behind_one_front_page_in_the_order_given(collected: Path) -> None:
    out, _ = call(collected, "report", "second", "first", "--latex", "--figures", "svg")
    page = Path(out.strip())
    assert page == Path("reports/build/second+first/index.html")
    text = page.read_text()
    assert text.index("second/index.html") < text.index("first/index.html")
    assert "newest runs first" not in text
    for name in ("second", "first"):
        assert (page.parent / name / "index.html").exists()
        assert (page.parent / name / "latex/report.tex").exists()
        assert json.loads((page.parent / name / "data/manifest.json").read_text())["study"] == name
        assert audit(page.parent / name).findings == []
    assert audit(page.parent).findings == []


def test_chapters_that_change_places_are_found_by_an_audit(collected: Path) -> None:
    page = Path(call(collected, "report", "second", "first", "--figures", "svg")[0].strip())
    text = page.read_text()
    sections = text.split('<section class="report">')
    assert len(sections) == 3
    end = sections[2].index("</section>") + len("</section>")
    swapped = [sections[0], sections[2][:end] + "\n", sections[1].rstrip() + sections[2][end:]]
    page.write_text('<section class="report">'.join(swapped))
    assert audit(page.parent).findings


def test_a_front_page_takes_no_reports_place(collected: Path) -> None:
    call(collected, "report", "first", "--out", "pages", "--figures", "svg")
    with pytest.raises(UserError, match="pages is a report itself"):
        call(collected, "report", "second", "first", "--out", "pages")
    assert not Path("pages/second").exists()


def test_several_are_not_watched(collected: Path) -> None:
    with pytest.raises(UserError, match="--watch takes one study"):
        call(collected, "report", "second", "first", "--watch")


@pytest.fixture
def folder(collected: Path, study: Study) -> Path:
    """With the files of two studies that have runs; a third study has runs too."""
    completed(collected, "r3", study="third")
    for name in ("first", "second"):
        study("matrix: {seed: [0]}\n", name)
    return study("matrix: {seed: [0]}\n", "second").parent


def test_the_status_of_a_folder_is_that_of_its_studies(collected: Path, folder: Path) -> None:
    for targets in ([folder], ["first", "second"]):
        rows = json.loads(call(collected, "status", *targets, "--json")[0])
        assert sorted(row["study"] for row in rows) == ["first", "second"]
    assert len(json.loads(call(collected, "status", "--json")[0])) == 3


def test_each_study_of_a_folder_is_exported_to_a_folder_of_its_own(collected: Path, folder: Path) -> None:
    out, _ = call(collected, "export", folder, "--out", "shared")
    assert out.split() == ["shared/first", "shared/second"]
    for name in ("first", "second"):
        assert Path(f"shared/{name}/{name}.tar.gz").is_file()
        assert Path(f"shared/{name}/tables/runs.parquet").is_file()
    assert call(collected, "export", "third", "--out", "one")[0].split() == ["one"]


def test_the_studies_of_a_folder_are_validated_and_all_that_is_wrong_is_said(
    study: Study, two: tuple[Path, Path], root: Path
) -> None:
    out, _ = call(root, "validate", two[0].parent)
    assert [line.rpartition("/")[2] for line in out.splitlines()] == [
        "a.yaml: scale full: 1 run",
        "b.yaml: scale full: 2 runs",
    ]
    study("matrix: {seeds: [0]}\n", "wrong"), study("matrix: {sed: [0]}\n", "worse")
    with pytest.raises(UserError, match=r"(?s)worse.yaml:.*wrong.yaml:"):
        call(root, "validate", two[0].parent)


@pytest.mark.parametrize("verb", ["expand", "cancel", "retry", "collect", "gc"])
def test_what_takes_one_study_names_those_of_a_folder(collected: Path, folder: Path, verb: str) -> None:
    names = r"a folder of studies, and one is wanted here: name one of .*first.yaml, .*second.yaml"
    with pytest.raises(UserError, match=names):
        call(collected, verb, folder)


def test_a_launch_of_several_ends_with_the_report_of_them_all(
    two: tuple[Path, Path], root: Path, started: list[str]
) -> None:
    folder = two[0].parent
    assert f"report {folder}` makes one report of all" in call(root, "launch", folder)[1].splitlines()[-1]
    assert "makes one report" not in call(root, "launch", two[0])[1]


def test_of_a_folder_what_has_no_runs_yet_is_named_and_the_rest_shown(
    collected: Path, folder: Path, study: Study
) -> None:
    path = study("matrix: {seed: [0]}\n", "unlaunched")
    out, err = call(collected, "status", folder, "--json")
    assert sorted(row["study"] for row in json.loads(out)) == ["first", "second"]
    assert f"without {path}, of which there are no runs yet" in err
    for name in ("first", "second"):
        (folder / f"{name}.yaml").unlink()
    with pytest.raises(UserError, match="no runs of study 'unlaunched'"):
        call(collected, "status", folder)
