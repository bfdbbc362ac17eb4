"""`runner import`: files to run folders, once each, and what every other verb then makes of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.audit.restore import restore
from analysis.importers import file_names
from analysis.importers._study import imported_runs
from analysis.query.ask import ask
from analysis.query.formats import write_table
from analysis.report.build import build_report
from analysis.store.collect import collect
from model.record import files
from runner.commands._options import Settings
from runner.state.filesystem import study_lock
from tests.analysis.fabricate import completed
from tests.analysis.importers import made
from tests.runner.cli.conftest import Answer

Cli = Callable[..., Answer]


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Two short logs."""
    return [
        made.write(tmp_path / "logs" / f"{name}_20250525_101529.jsonl", made.records(name, last=200))
        for name in ("baseline", "cudnn")
    ]


@pytest.fixture
def theirs(cli: Cli, logs: list[Path]) -> Cli:
    """The command line, after both logs were imported."""
    answer = cli("import", *logs, "--format", "lsai", "--study", "theirs", "--margin", "loss=0.05")
    assert answer.code == 0, answer.err
    return cli


def _files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("log-*/**/*")) if path.is_file()}


def test_an_import_says_what_it_found_and_a_second_one_changes_nothing(
    cli: Cli, root: Path, logs: list[Path]
) -> None:
    first = cli("import", *logs, "--format", "lsai", "--study", "theirs", "--margin", "loss=0.05")
    assert first.out.count(" imported\n") == 2
    assert "note: baseline: the first record" in first.out
    assert "2 imported runs in the study, 0 errors found in their logs; none has a certificate" in first.err
    contents = _files(root)
    assert {path.rpartition("/")[2] for path in contents} == {
        "run.json",
        "manifest.json",
        "steps.jsonl",
        "result.json",
    }
    repeat = cli("import", *reversed(logs), "--format", "lsai", "--study", "theirs")
    assert repeat.out.count(" unchanged\n") == 2
    assert _files(root) == contents


def test_a_copy_under_another_name_is_the_same_run_and_another_log_a_new_one(
    cli: Cli, logs: list[Path], tmp_path: Path
) -> None:
    copy = tmp_path / "logs" / "copy_20250525_101529.jsonl"
    copy.write_bytes(logs[0].read_bytes())
    log = made.write(tmp_path / "more" / logs[0].name, made.records("baseline", seed=1, last=200))
    answer = cli("import", logs[0], copy, log, "--format", "lsai", "--study", "theirs", "--json")
    runs = json.loads(answer.out)["runs"]
    assert [run["imported"]["file"] for run in runs] == [str(logs[0]), str(log)]
    assert f"{copy}: the same content as {logs[0]}; imported once" in answer.err


def test_another_mapping_of_the_same_log_updates_the_run(
    theirs: Cli, logs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "more.yaml").write_text(
        "constants: {seed: 7, gpu: NVIDIA GH200 120GB}\nconfig: {train: {steps: 200}}\n"
    )
    answer = theirs(
        "import", logs[0], "--format", "lsai", "--study", "theirs", "--mapping", "more.yaml", "--json"
    )
    runs = {run["imported"]["file"]: run for run in json.loads(answer.out)["runs"]}
    assert runs[str(logs[0])]["done"] == "updated"
    assert runs[str(logs[0])]["factors"] == {"attention": "baseline", "seed": 7}
    assert runs[str(logs[0])]["reason"] is None
    (row,) = _sql(theirs, "select seed, gpu, planned_steps from runs where seed = 7")
    assert row == {"seed": 7, "gpu": "NVIDIA GH200 120GB", "planned_steps": 200}


def _sql(cli: Cli, query: str) -> list[dict[str, Any]]:
    assert cli("collect").code == 0
    return ask(Settings.root, query).records()


def test_imported_runs_are_rows_like_others_marked_and_with_the_rates_of_their_logs(theirs: Cli) -> None:
    runs = _sql(theirs, "from runs order by label")
    assert [run["label"] for run in runs] == ["baseline", "cudnn"]
    for run, seconds in zip(runs, (0.50, 0.47), strict=True):
        assert run["step_seconds"] == pytest.approx(seconds, rel=0.01)
        assert run["tokens_per_second"] == pytest.approx(4096 / seconds, rel=0.01)
        assert run["mfu"] == pytest.approx(100 * 4096 / seconds * made.FLOP / made.PEAK, rel=0.01)
        assert run["peak_source"] == "the log: tflops / mfu"
        unknown = (
            "seed",
            "certificate",
            "verdict",
            "git_sha",
            "planned_steps",
            "gpu",
            "node",
            "peak_memory_bytes",
        )
        assert {name: run[name] for name in unknown} == dict.fromkeys(unknown)
        imported = run["imported"] if isinstance(run["imported"], dict) else json.loads(run["imported"])
        assert imported["format"] == "lsai"
        assert len(imported["sha256"]) == 64


def test_the_database_can_be_rebuilt_from_imported_runs(theirs: Cli) -> None:
    query = "select * exclude (created_at) from runs order by label"
    rows = _sql(theirs, query)
    assert theirs("collect", "--rebuild", "theirs").code == 2, "it would discard all studies"
    assert theirs("collect", "--rebuild").code == 0
    assert _sql(theirs, query) == rows


def test_status_and_explain_mark_imported_runs_and_say_that_they_have_no_certificate(theirs: Cli) -> None:
    status = theirs("status")
    assert status.out.count("completed (imported)") == 2
    assert "the log ends at step 200; how many were planned is unknown" in status.out
    (first, *_) = json.loads(theirs("status", "--json").out)
    assert first["steps"] is None
    assert first["imported"].endswith(".jsonl")
    explanation = theirs("explain", f"theirs/{first['run_id']}")
    assert "none: its attention backend was not verified here" in explanation.out
    assert "includes the warm-up" in explanation.out
    assert "step 200/200, loss" in theirs("logs", first["run_id"]).out


def test_a_report_of_imported_runs_shows_what_is_wrong_in_their_logs(
    cli: Cli, logs: list[Path], tmp_path: Path
) -> None:
    made.write(logs[1], made.records("cudnn", flop=made.COMPILED, last=200))
    assert cli("import", *logs, "--format", "lsai", "--study", "theirs").code == 0
    answer = cli("report", "theirs", "--out", "pages")
    assert answer.code == 0, answer.err
    index = (tmp_path / "pages" / "index.html").read_text()
    assert "Imported logs: theirs" in index
    assert "they have no certificate" in index
    assert index.count("cudnn: the log counts 54.76 GFLOP per token") == 2, (
        "in the answer, and among the logs"
    )
    assert (
        "Flagged by the check <code>flop_per_token</code> of imported logs: cudnn: the log counts 54.76 GFLOP per token"
        in index
    )
    pages = [page.read_text() for page in (tmp_path / "pages").glob("run-*.html")]
    assert any("includes the warm-up" in page for page in pages), "on the page of its run"


STUDY = """\
title: Ours
base:
  device: cpu
  data: {path: text.parquet}
  model: {dim: 32, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 64, vocab_size: 300}
  train: {steps: 6, sequence_length: 32, dtype: float32}
"""


@pytest.mark.refused
def test_logs_do_not_join_a_study_that_a_report_knows(theirs: Cli, logs: list[Path], tmp_path: Path) -> None:
    """One log would count as two runs, as nobody can compare it with what the report was made of."""
    collect(Settings.root)
    report = build_report(Settings.root, "theirs", tmp_path / "report").parent
    restore(report, tmp_path / "other")
    arguments = (*logs, "--format", "lsai", "--study", "theirs")
    answer = theirs("import", *arguments, root=tmp_path / "other")
    assert answer.code == 2
    assert "study 'theirs' has the runs of a report; choose another name" in answer.err


@pytest.mark.refused
def test_verbs_that_would_start_a_run_refuse_imported_ones_in_a_sentence(theirs: Cli, tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text(STUDY)
    launch = theirs("launch", "theirs.yaml", "--dry-run")
    assert launch.code == 2
    assert "holds 2 imported logs, which cannot be run: give the study another `name:`" in launch.err
    (run, *_) = json.loads(theirs("status", "--json").out)
    for arguments in (("reproduce", run["run_id"]), ("retry", "theirs", "--outcome", "completed")):
        refused = theirs(*arguments)
        assert refused.code == 2, refused
        assert f"theirs/{run['run_id']} was imported from" in refused.err, arguments
    assert "nothing to restart" in theirs("retry", "theirs").err
    cancel = theirs("cancel", "theirs")
    assert (cancel.code, cancel.err) == (0, "nothing of theirs is in flight\n")
    assert "would free 0" in theirs("gc", "theirs", "--dry-run").err


@pytest.mark.refused
def test_logs_are_not_mixed_with_runs_of_our_own(cli: Cli, root: Path, logs: list[Path]) -> None:
    completed(root, "0123456789ab", study="ours")
    refused = cli("import", *logs, "--format", "lsai", "--study", "ours")
    assert refused.code == 2
    assert "study 'ours' has 1 run of its own; choose another name for these logs" in refused.err
    assert not list((root / "ours").glob("log-*"))


@pytest.mark.fault
def test_an_import_that_was_killed_leaves_nothing_that_looks_like_a_run(
    cli: Cli, root: Path, logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from analysis.importers import _study

    calls = iter(range(100))

    def die(path: Path, text: str) -> None:
        if next(calls) == 6:  # in the middle of the second run
            raise KeyboardInterrupt
        files.write_text(path, text)

    with monkeypatch.context() as patch:
        patch.setattr(_study, "write_text", die)
        assert cli("import", *logs, "--format", "lsai", "--study", "theirs").code == 130
    assert len(list((root / "theirs").glob("log-*"))) == 1
    assert cli("collect").code == 0
    repeat = cli("import", *logs, "--format", "lsai", "--study", "theirs")
    assert sorted(line.split()[-1] for line in repeat.out.splitlines()[1:3]) == ["imported", "unchanged"]
    assert not list((root / "theirs").glob(".log-*"))


@pytest.mark.fault
def test_an_import_waits_for_another_command_of_the_study_and_gives_up(
    cli: Cli, root: Path, logs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.state.filesystem.WAIT_SECONDS", 0.1)
    with study_lock(root / "theirs", 0):
        refused = cli("import", *logs, "--format", "lsai", "--study", "theirs")
    assert (refused.code, "another command has held theirs" in refused.err) == (2, True)


@pytest.mark.refused
def test_of_several_files_the_good_ones_are_imported_and_the_exit_code_is_1(
    cli: Cli, logs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text("no log\n")
    answer = cli("import", logs[0], "bad.jsonl", "--format", "lsai", "--study", "theirs")
    assert answer.code == 1
    assert "bad.jsonl:1: not JSON" in answer.err
    assert answer.out.count(" imported\n") == 1
    refusal = cli("import", "bad.jsonl", "--format", "lsai", "--study", "theirs")
    assert (refusal.code, refusal.err.splitlines()[-1]) == (2, "nothing was imported")


@pytest.mark.refused
@pytest.mark.parametrize(
    "arguments, message",
    [
        (("--format", "lsay", "--study", "x"), "unknown format 'lsay' (did you mean 'lsai'?"),
        (("--format", "lsai", "--study", "a/b"), "--study a/b: a name has at most 100 letters"),
        (("--format", "lsai", "--study", "x", "--margin", "loss"), "--margin loss: expected NAME=VALUE"),
        (("--format", "lsai", "--study", "x", "--margin", "los=1"), "did you mean 'loss'?"),
        (("--format", "lsai", "--study", "x", "--margin", "loss=-1"), "--margin loss=-1"),
        (("--format", "lsai", "--study", "x", "--margin", "tokens_per_second=2"), "expected a percentage"),
        (
            ("--format", "lsai", "--study", "x", "--baseline", "cudnn"),
            "--baseline cudnn: expected NAME=VALUE",
        ),
        (("--format", "lsai", "--study", "x", "--mapping", "gone.yaml"), "gone.yaml: No such file"),
    ],
)
def test_wrong_options_are_refused_with_what_is_right(
    cli: Cli, logs: list[Path], arguments: tuple[str, ...], message: str
) -> None:
    refused = cli("import", *logs, *arguments)
    assert refused.code == 2
    assert message in refused.err
    assert "Traceback" not in refused.err


MAPPINGS: dict[str, tuple[str, str]] = {
    "unknown key": ("column: {step: it}\n", "m.yaml:1:1: unknown key 'column' (did you mean 'columns'?"),
    "unknown quantity": ("columns:\n  step: it\n  los: loss\n", "m.yaml:3:3: "),
    "unknown unit": (
        "columns:\n  mfu: {column: m, unit: parts}\n",
        "mfu has no unit 'parts' (valid: percent, fraction)",
    ),
    "a number for a name": ("columns: {step: 3}\n", "m.yaml:1:11: "),
    "half a shape": ("config:\n  model: {dim: 64}\n", "m.yaml:2:3: missing key 'layers'"),
    "heads that do not fit": (
        "config:\n  model: {dim: 64, layers: 1, heads: 3, kv_heads: 1, ffn_dim: 8, vocab_size: 9}\n",
        "m.yaml:2:3: dim 64 is not a multiple of heads 3",
    ),
    "no pattern": ("file_name: '(?P<lr'\n", "m.yaml:1:1: file_name is not a regular expression"),
    "no group": ("file_name: 'lr'\n", "m.yaml:1:1: file_name has no named group"),
    "negative": ("constants: {peak_tflops: -1}\n", "m.yaml:1:13: 'peak_tflops' must be greater than 0"),
}


@pytest.mark.refused
@pytest.mark.parametrize("text, message", MAPPINGS.values(), ids=MAPPINGS)
def test_a_wrong_mapping_is_refused_with_file_line_and_column(
    cli: Cli, logs: list[Path], tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "m.yaml").write_text(text)
    refused = cli("import", *logs, "--format", "jsonl", "--study", "x", "--mapping", "m.yaml")
    assert refused.code == 2
    assert message in refused.err, refused.err
    assert "Traceback" not in refused.err


def test_the_schema_of_a_mapping_takes_the_mappings_of_the_docs(cli: Cli) -> None:
    schema: dict[str, Any] = json.loads(cli("schema", "mapping").out)
    assert {"columns", "run", "file_name", "constants", "config"} == set(schema["properties"])
    names = schema["properties"]["columns"]["propertyNames"]["enum"]
    assert {"step", "loss", "tokens_per_second", "mfu"} <= set(names)


def test_alike_notes_are_folded_with_their_number_and_errors_come_last(cli: Cli, tmp_path: Path) -> None:
    logs = [
        made.write(
            tmp_path / "logs" / f"{name}_20250525_101529.jsonl", made.records(name, flop=flop, last=200)
        )
        for name, flop in (("cudnn", made.COMPILED), ("baseline", made.FLOP), ("efficient", made.FLOP))
    ]
    lines = cli("import", *logs, "--format", "lsai", "--study", "theirs").out.splitlines()
    levels = [line.partition(":")[0] for line in lines if line.startswith(("note:", "error:"))]
    assert levels == sorted(levels, reverse=True)
    assert levels[-1] == "error"
    (warm_up,) = [line for line in lines if "it includes the warm-up" in line]
    assert warm_up.endswith("(alike: 2 others, efficient, cudnn)") or "(alike: 2 others, " in warm_up


def test_a_line_break_in_a_runs_name_breaks_no_row_of_a_table(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('run,step,loss\n"one\nlog=two\r\x1b[1m",1,4.9\nthree,1,4.7\n')
    assert cli("import", "a.csv", "--format", "csv", "--study", "theirs").code == 0
    assert cli("collect").code == 0
    out = io.BytesIO()
    write_table(ask(Settings.root, "select label, run_id from runs"), out)
    for lines in (out.getvalue().decode().splitlines(), cli("status").out.splitlines()):
        assert sum("log-" in line for line in lines) == 2
        assert all("log-" in line for line in lines if "two" in line)


@pytest.mark.refused
def test_logs_of_one_name_are_no_repeats(cli: Cli, root: Path, tmp_path: Path) -> None:
    """Programs call every log alike, and the folders of some runs are named by numbers with a point."""
    for name, loss in (("lr0.001", 9), ("lr0.01", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text(f"step,loss\n1,{loss}\n2,{loss - 1}\n")
    one, two = "lr0.001/metrics.csv", "lr0.01/metrics.csv"
    arguments = ("--format", "csv", "--study", "theirs")
    assert cli("import", one, *arguments).code == 0
    refused = cli("import", two, *arguments)
    assert refused.code == 2
    assert f"{two}: it is called metrics, as theirs/log-" in refused.err
    assert "import both with one command" in refused.err
    assert cli("import", two, one, *arguments).code == 0
    assert {run.run.factors["log"] for run in imported_runs(root, "theirs")} == {one, two}
    assert file_names([tmp_path / "lr0.001", tmp_path / "lr0.01"]) == ["lr0.001", "lr0.01"]


@pytest.mark.refused
def test_one_log_does_not_count_as_two_runs(cli: Cli, tmp_path: Path) -> None:
    """Whether it was written anew, is there in two states, or its mapping names the column of the runs later."""
    rows = [f"{step},{9 - step},2026-01-01 00:00:0{step}" for step in (1, 2, 3)]
    for name, lines in (("long", rows), ("short", rows[:2]), ("anew", [f"{row},a" for row in rows])):
        head = "step,loss,time" + ",note" * (name == "anew")
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines, ""]))
    for names, reason in ((("long", "anew"), "has the same records as"), (("short", "long"), "continues")):
        refusal = cli("import", *(f"{name}.csv" for name in names), "--format", "csv", "--study", names[0])
        assert refusal.code == 2
        assert f"{names[1]}.csv: it {reason} {names[0]}/log-" in refusal.err
        assert refusal.err.endswith("records: leave one out\n")
    (tmp_path / "runs.csv").write_text("name,step,loss\na,1,9\na,2,8\n")
    (tmp_path / "runs.yaml").write_text("run: name\n")
    assert cli("import", "runs.csv", "--format", "csv", "--study", "runs").code == 0
    conflict = cli("import", "runs.csv", "--format", "csv", "--study", "runs", "--mapping", "runs.yaml")
    assert conflict.code == 2
    assert "by a mapping without `run:` or with it: remove its folder to replace it" in conflict.err
