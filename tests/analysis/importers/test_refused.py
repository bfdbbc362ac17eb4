"""Bad logs: each is refused, or what is left out of it is said, with FILE:LINE."""

from __future__ import annotations

import gzip
import json
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import importers
from analysis.importers import ImportDesign, Mapping, Refused, write_runs
from model.record.errors import UserError
from tests.analysis.importers import made
from tests.analysis.importers.made import Record, findings
from tests.analysis.importers.test_formats import write as write_table

COLUMNS = {"columns": {"step": "step", "loss": "loss", "time": "t", "interval_seconds": "dt"}}
LOSSES = {"columns": {"step": "step", "loss": "loss"}}
GOOD = [
    {"step": step, "loss": 9.0 - step, "t": f"2026-01-01 00:00:0{step}", "dt": 1.0} for step in range(1, 8)
]


def _csv(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


REFUSED = {
    "empty": ("", r"a\.csv:1: the file is empty"),
    "header alone": ("step,loss\n", r"a\.csv:1: no records"),
    "no step": ("x,loss\n1,2\n", r"a\.csv:2: no column 'step'\. .* --mapping, such as `columns: \{step: x, .*` \(columns: x, loss\)"),
    "nothing measured": ("step,x\n1,2\n", r"a\.csv:2: none of the columns loss, dt"),
    "two columns of a name": ("step,loss,loss\n1,2,3\n", r"a\.csv:1: two columns are called 'loss'"),
    "two runs": ("step,loss\n1,9\n2,8\n3,7\n1,9\n2,8\n", r"a\.csv:5: step 1 follows step 3: two runs in one file"),
    "no order": (
        "step,loss\n1,9\n" + "".join(f"{step},8\n{step - 1},8\n" for step in range(3, 30, 3)),
        r"a\.csv:4: step 2 follows step 3, one of 9 steps that go back: the records are not in order",
    ),
    "backwards": ("step,loss\n3,7\n2,8\n1,9\n", r"a\.csv:3: step 2 follows step 3: two runs in one file"),
    "no numbers": ("step,loss\n1,high\n2,low\n", r"a\.csv:2: 'loss' is 'high', not a number"),
}  # fmt: skip


@pytest.mark.refused
@pytest.mark.parametrize("text, message", REFUSED.values(), ids=REFUSED)
def test_a_csv_that_is_no_run_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=message):
        made.read(_csv(tmp_path / "a.csv", text), "csv", COLUMNS)


@pytest.mark.refused
@pytest.mark.parametrize(
    "content, message",
    [
        (b"", r"a:1: the file is empty"),
        (b"\x1f\x8b\x08\x00\xff", r"a:1: byte 0x8b is not UTF-8: not a text file"),
        (b"step 1 loss 9\nstep 2 loss 8\n", r"a:1: not JSON .*; 2 bad lines, 0 good: not a JSONL log"),
        (b"[1, 2]\n[3, 4]\n", r"a:1: not a JSON object"),
        (b'{"epoch": 1}\n', r"a:1: no column 'step'\. Name it .* \(columns: epoch\)"),
        (b'{"step": 1, "loss": true}\n', r"a:1: 'loss' is 'True', not a number"),
        (b'{"step": 1.5, "loss": 1}\n', r"a:1: step 1.5 is not a whole number"),
        (b'{"step": null, "loss": 1}\n', r"a:1: no step in column 'step'"),
        (b'{"step": 1e30, "loss": 1}\n', r"a:1: 'step' is 1e\+30, which is too large"),
    ],
)
def test_a_file_that_is_no_jsonl_log_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Refused, match=message):
        made.read(tmp_path / "a", "lsai")


@pytest.mark.refused
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_two_columns_of_one_name_are_refused_where_they_are_needed_alone(tmp_path: Path, form: str) -> None:
    for repeated, message in (("loss", "two columns are called 'loss'; rename one of them"), ("note", "")):
        names, path = ["step", "loss", "note", repeated], tmp_path / f"{repeated}.{form}"
        if form == "csv":
            path.write_text(f"{','.join(names)}\n1,3,a,3\n2,2,b,2\n")
        else:
            columns = [pa.array(values) for values in ([1, 2], [3.0, 2.0], ["a", "b"], [3.0, 2.0])]
            pq.write_table(pa.table(columns, names=names), path)
        with pytest.raises(Refused, match=message) if message else nullcontext():
            made.read(path, form, LOSSES)


@pytest.mark.refused
def test_a_truncated_parquet_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    content = write_table(tmp_path / "a.parquet", GOOD).read_bytes()
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    with pytest.raises(Refused, match=r"a\.parquet:1: not a Parquet file, or a truncated one"):
        made.read(tmp_path / "a.parquet", "parquet", COLUMNS)
    with pytest.raises(Refused, match="a folder; give a log file"):
        made.read(tmp_path, "csv", COLUMNS)


def _left_out(path: Path, form: str = "lsai") -> tuple[list[int], list[str]]:
    (log,) = made.read(path, form, LOSSES if form != "lsai" else None)
    left_out = [line.removeprefix(str(path)) for line in log.run.imported.not_imported]
    return [step.step for step in log.steps], left_out


@pytest.mark.refused
def test_a_torn_line_is_left_out_and_said_and_the_rest_is_there(tmp_path: Path) -> None:
    lines = made.write(tmp_path / "a.jsonl", made.records(last=30)).read_text().splitlines()
    torn = [*lines[:2], lines[2][:40], *lines[3:-1], lines[-1][:-9]]
    (tmp_path / "a.jsonl").write_text("\n".join(torn))
    steps, left_out = _left_out(tmp_path / "a.jsonl")
    assert steps == [1, 5, 15, 20, 25]
    assert [line.partition(" (")[0] for line in left_out] == [":3: not JSON", ":7: not JSON"]


@pytest.mark.refused
def test_a_row_of_another_width_and_a_value_that_is_no_number_are_left_out_and_said(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "step,loss\n1,9\n2\n3,x\n4,6\n")
    assert _left_out(path, "csv") == (
        [1, 4],
        [":3: 1 value, the header has 2", ":4: 'loss' is 'x', not a number"],
    )


@pytest.mark.refused
def test_a_csv_that_is_cut_within_a_quoted_value_keeps_what_is_before(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", 'step,loss\n1,9\n2,"8')
    steps, left_out = _left_out(path, "csv")
    assert steps == [1]
    assert "nothing after it was read" in left_out[0]


@pytest.mark.refused
def test_losses_that_are_not_finite_are_an_error_and_at_the_end_the_outcome(tmp_path: Path) -> None:
    records = made.records(last=30)
    records[2]["loss"] = records[-1]["loss"] = float("nan")
    records[3]["loss"] = float("inf")
    (log,) = made.read(made.write(tmp_path / "a.jsonl", records))
    assert findings(log, "values") == ["a: the loss of 3 records is NaN or infinite, first at step 10."]
    assert [step.loss is None for step in log.steps] == [False, False, True, True, False, False, True]
    assert (log.result.outcome, log.result.reason) == (
        "diverged",
        "the loss at step 30, the last one, is nan",
    )


@pytest.mark.refused
def test_a_clock_that_goes_back_is_an_error_with_its_line_and_start_and_end_are_unknown(
    tmp_path: Path,
) -> None:
    rows: list[Record] = [dict(row) for row in GOOD]
    rows[4]["t"] = "2025-12-31 23:00:00"
    (log,) = made.read(write_table(tmp_path / "a.csv", rows), "csv", COLUMNS)
    (sentence,) = findings(log, "clock", "error")
    assert sentence == f"a: time goes back once: {tmp_path}/a.csv:6: the clock goes back by 3,604 s."
    assert (log.result.started_at, log.result.wall_seconds) == (None, None)


@pytest.mark.refused
@pytest.mark.parametrize("seconds", [0.0, -3.0])
def test_durations_that_cannot_be_are_left_out_and_said(seconds: float, tmp_path: Path) -> None:
    rows: list[Record] = [dict(row) for row in GOOD]
    rows[3]["dt"] = seconds
    (log,) = made.read(write_table(tmp_path / "a.csv", rows), "csv", COLUMNS)
    assert [step.step_seconds for step in log.steps] == [1, 1, 1, None, 1, 1, 1]
    assert f"a.csv:5: step 4 took {seconds:g} s" in findings(log, "values", "error")[0]


@pytest.mark.refused
def test_steps_that_a_resumed_run_logged_again_count_once_and_are_said(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "step,loss\n1,9\n2,8\n3,7\n4,6\n3,7.5\n4,6.5\n5,6\n5,5.5\n")
    (log,) = made.read(path, "csv", LOSSES)
    assert [(step.step, step.loss) for step in log.steps] == [(1, 9), (2, 8), (3, 7.5), (4, 6.5), (5, 5.5)]
    notes = [line.removeprefix(f"{path}:") for line in log.run.imported.not_imported]
    assert notes == [
        "5: step 4 was logged again by a run that resumed on line 6",
        "4: step 3 was logged again by a run that resumed on line 6",
        "8: step 5 is logged again on line 9",
    ]


def test_a_log_that_begins_in_the_middle_counts_no_steps_before_it(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "step,loss\n500,9\n510,8\n520,7\n")
    (log,) = made.read(path, "csv", COLUMNS)
    assert [step.steps for step in log.steps] == [10, 10, 10]
    assert "begins at step 500" in log.run.imported.sources["steps"]


@pytest.mark.refused
def test_a_log_that_has_grown_since_is_refused_and_an_older_state_of_it_too(tmp_path: Path) -> None:
    long, short = (
        made.write(tmp_path / f"{name}.jsonl", made.records(last=last))
        for name, last in (("l", 60), ("s", 40))
    )
    for first, second, word in ((short, long, "continues"), (long, short, "is an older state of")):
        root = tmp_path / f"root-{word[:2]}"
        write_runs(root, "theirs", made.read(first), ImportDesign({}))
        with pytest.raises(
            Refused, match=f"{second}: it {word} theirs/log-.* remove its folder to replace it"
        ):
            write_runs(root, "theirs", made.read(second), ImportDesign({}))


@pytest.mark.refused
def test_a_count_that_no_database_holds_is_unknown(tmp_path: Path) -> None:
    rows = [{"step": 1, "loss": 1.0, "rate": 9e15, "dt": 9e15}]
    columns = {"step": "step", "loss": "loss", "tokens_per_second": "rate", "interval_seconds": "dt"}
    (log,) = made.read(write_table(tmp_path / "a.csv", rows), "csv", {"columns": columns})
    assert [step.tokens for step in log.steps] == [None]


@pytest.mark.refused
def test_a_moment_that_does_not_count_from_1970_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"_step": 1, "_timestamp": 12.5, "loss": 9}) + "\n")
    with pytest.raises(Refused, match=r"a\.jsonl:1: not a time in unit s: '12\.5' does not count from 1970"):
        made.read(path, "wandb", {"columns": {"loss": "loss"}})


@pytest.mark.refused
def test_a_column_and_a_file_name_that_a_mapping_mistypes_are_said(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "step,loss,throughput\n1,9,100\n2,8,100\n")
    columns = {"step": "step", "loss": "loss", "tokens_per_second": "troughput"}
    (log,) = made.read(path, "csv", {"columns": columns, "file_name": "lr(?P<lr>.+)"})
    notes = [line.removeprefix(f"{path}:") for line in log.run.imported.not_imported]
    assert notes[0].startswith(
        "1: tokens_per_second is unknown: no column 'troughput' (did you mean 'throughput'?"
    )
    assert notes[1:] == ["1: no factors from its name: 'a' does not match lr(?P<lr>.+)"]


@pytest.mark.refused
def test_two_runs_whose_records_take_turns_are_refused(tmp_path: Path) -> None:
    """Half of the records would be dropped, and the rest may be of either run."""
    path = _csv(tmp_path / "a.csv", "step,loss\n" + "".join(f"{step},9\n{step},8\n" for step in range(1, 9)))
    with pytest.raises(Refused, match=r"a\.csv:2: step 1 is logged again on line 3, and 7 more"):
        made.read(path, "csv", COLUMNS)


def test_a_rate_without_tokens_is_said_and_the_seconds_of_a_step_are_enough(tmp_path: Path) -> None:
    rows = [{"step": step, "rate": 1000.0, "dt": 0.5} for step in (2, 4, 6)]
    columns = {"step": "step", "tokens_per_second": "rate"}
    path = write_table(tmp_path / "a.csv", rows)
    (without_tokens,) = made.read(path, "csv", {"columns": columns})
    assert "add `constants: {tokens_per_step: N}`" in findings(without_tokens, "metrics", "note")[0]
    (log,) = made.read(path, "csv", {"columns": columns | {"step_seconds": "dt"}})
    assert [(step.tokens, step.step_seconds) for step in log.steps] == [(1000, 0.5)] * 3
    assert findings(log, "metrics") == []


@pytest.mark.refused
def test_a_line_that_is_nested_too_deeply_is_left_out(tmp_path: Path) -> None:
    lines = made.write(tmp_path / "a.jsonl", made.records(last=10)).read_text()
    (tmp_path / "a.jsonl").write_text(lines + "[" * 100_000 + "\n")
    steps, (left_out,) = _left_out(tmp_path / "a.jsonl")
    assert steps == [1, 5, 10]
    assert left_out.startswith(":4: not JSON")


@pytest.mark.refused
@pytest.mark.parametrize("changes", [{"timestamp": "0001-01-01 00:00:00"}, {"time_delta": 9e15}])
def test_a_run_that_would_have_started_before_the_year_1_has_no_known_start(
    changes: Record, tmp_path: Path
) -> None:
    path = made.write(tmp_path / "a.jsonl", [record | changes for record in made.records(last=10)])
    (log,) = made.read(path)
    assert log.manifest.started_at is None


@pytest.mark.refused
def test_half_a_character_in_a_runs_name_is_written_out_and_one_in_a_files_name_refused(
    tmp_path: Path,
) -> None:
    records = [record | {"name": "\ud800x"} for record in made.records(last=10)]
    (log,) = made.read(made.write(tmp_path / "a.jsonl", records), mapping={"run": "name"})
    assert log.run.imported.part == "\\ud800x"
    with pytest.raises(Refused, match="its name has characters that cannot be shown; rename it"):
        made.read(made.write(tmp_path / "a\udcff.jsonl", records))


@pytest.mark.refused
@pytest.mark.parametrize(
    "form, name", [("csv", "c{}"), ("wandb", "run {} - loss")], ids=["columns", "runs of a chart"]
)
def test_a_table_of_many_columns_takes_no_longer_than_they_need(form: str, name: str, tmp_path: Path) -> None:
    """Time that grows with the square of the columns would be minutes here."""
    count = 100_000
    columns = ["Step", *(name.format(index) for index in range(count))]
    path = _csv(tmp_path / "a.csv", ",".join(columns) + "\n" + ",".join(["1"] * len(columns)) + "\n")
    assert len(importers.load(form).read(path).rows) == (1 if form == "csv" else count)


def test_a_models_true_flop_per_token_can_be_stated() -> None:
    assert Mapping.model_validate({"constants": {"flop_per_token": made.FLOP}}).constants.flop_per_token


@pytest.mark.refused
def test_records_that_name_no_run_are_left_out_where_others_do(tmp_path: Path) -> None:
    lines = [{"name": 0, "step": 1, "loss": 9}, {"step": 1, "loss": 7}, {"summary": 1}]
    path = _csv(tmp_path / "a.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    (log,) = made.read(path, "jsonl", LOSSES | {"run": "name"})
    notes = [line.removeprefix(str(path)) for line in log.run.imported.not_imported]
    assert (log.run.imported.part, len(notes)) == ("0", 2)
    assert notes == [":2: no run in column 'name'", ":3: no run in column 'name'"]
    with pytest.raises(Refused, match=r"b\.csv:2: no run in column 'name'"):
        made.read(_csv(tmp_path / "b.csv", "name,step,loss\n,1,9\n"), "csv", LOSSES | {"run": "name"})


@pytest.mark.refused
def test_a_baseline_that_no_imported_run_is_gets_refused_before_anything_is_written(tmp_path: Path) -> None:
    runs = made.read(made.write(tmp_path / "cudnn_20250525_101529.jsonl", made.records(last=40)))
    with pytest.raises(UserError, match=r"--baseline attention=cuddn: no run .* \(.*attention=cudnn\)"):
        write_runs(tmp_path / "root", "theirs", runs, ImportDesign({}, {"attention": "cuddn"}))
    assert not (tmp_path / "root").exists()


@pytest.mark.refused
@pytest.mark.parametrize(
    "table, message",
    [
        (
            "1,9\n1,8\n2,8\n2,7\n3,7\n3,6\n",
            "2: step 1 is logged again on line 3, and 2 more .*: several runs",
        ),
        (
            "1,9\n2,8\n4,6\n3,7\n5,5\n",
            "5: step 3 follows step 4, which is not logged again: the records are not",
        ),
    ],
    ids=["two runs of few steps that take turns", "one record out of order"],
)
def test_records_of_which_some_would_be_dropped_are_refused(table: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=rf"a\.csv:{message}"):
        made.read(_csv(tmp_path / "a.csv", f"step,loss\n{table}"), "csv", LOSSES)


@pytest.mark.refused
def test_a_run_that_resumed_and_has_not_come_as_far_as_before_counts_from_there(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "step,loss\n10,9\n20,8\n30,7\n20,8.5\n")
    assert _left_out(path, "csv") == (
        [10, 20],
        [
            ":4: step 30 is replaced by a run that resumed on line 5",
            ":3: step 20 was logged again by a run that resumed on line 5",
        ],
    )


def test_nan_that_fills_a_table_of_sparse_rows_is_no_loss(tmp_path: Path) -> None:
    """As Lightning logs, written with NaN where a row has no value; a NaN that stands alone is a loss."""
    rows = "2,nan,0.1\n2,2.5,nan\n2,nan,nan\n4,2.25,nan\n4,nan,0.2\n6,nan,0.3\n8,2,0.4\n"
    path = _csv(tmp_path / "a.csv", f"step,loss,lr\n{rows}")
    (log,) = made.read(path, "csv")
    assert [(step.step, step.loss, step.learning_rate) for step in log.steps] == [
        (2, 2.5, 0.1),
        (4, 2.25, 0.2),
        (6, None, 0.3),
        (8, 2, 0.4),
    ]
    assert findings(log, "values") == ["a: the loss of 1 record is NaN or infinite, first at step 6."]


def test_elapsed_seconds_that_a_resumed_run_counts_anew_give_no_duration(tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", "step,s,loss\n1,10,9\n2,20,8\n3,30,7\n2,15,8\n3,25,7\n4,35,6\n")
    (log,) = made.read(path, "csv", {"columns": LOSSES["columns"] | {"elapsed_seconds": "s"}})
    assert [step.step_seconds for step in log.steps] == [None, None, 10, 10]
    assert "a.csv:5: elapsed seconds go back by 15 s" in findings(log, "clock", "error")[0]


@pytest.mark.parametrize("planned, steps", [(3, [1, 2, 3]), (4, [1, 2, 3, 4]), (None, [1, 2, 3, 4])])
def test_step_0_is_the_first_step_unless_as_many_as_were_planned_follow_it(
    planned: int | None, steps: list[int], tmp_path: Path
) -> None:
    path = _csv(tmp_path / "a.csv", "step,loss\n0,9\n1,8\n2,7\n3,6\n")
    (log,) = made.read(path, "csv", {"config": {"train": {"steps": planned}}})
    assert [step.step for step in log.steps] == steps
    assert (log.steps[-1].loss, log.result.steps) == (6, steps[-1])


@pytest.mark.refused
def test_a_chart_of_two_runs_of_one_name_is_refused_and_one_that_was_cut_off_keeps_whole_rows(
    tmp_path: Path,
) -> None:
    path = _csv(tmp_path / "a.csv", '"Step","base - loss","base - loss"\n1,9,5\n2,8,4\n')
    with pytest.raises(Refused, match=r"a\.csv:1: two columns are called 'base - loss', of two runs of one"):
        made.read(path, "wandb")
    for axis, first in (("Step", "3"), ("train/global_step", "30")):
        path = _csv(tmp_path / "a.csv", f'"{axis}","a - loss","b - loss"\n{first},9.5,5.5\n40,8.5,4.5')
        logs = made.read(path, "wandb")
        assert [(run.name, [(step.step, step.loss) for step in run.steps]) for run in logs] == [
            ("a", [(int(first), 9.5)]),
            ("b", [(int(first), 5.5)]),
        ]
        assert all("no line break ends it" in str(run.run.imported.not_imported) for run in logs)


@pytest.mark.refused
@pytest.mark.parametrize("cell", ['"8,127.71"', "8127 tok/s", "42.36%", "1/10"])
def test_a_number_with_more_than_a_number_is_refused_with_how_to_write_it(cell: str, tmp_path: Path) -> None:
    message = r"a\.csv:2: 'mfu' is '.*', not a number; write it with a decimal point, and without separators"
    with pytest.raises(Refused, match=message):
        made.read(_csv(tmp_path / "a.csv", f"step,loss,mfu\n1,9,{cell}\n"), "csv")


@pytest.mark.parametrize("cell", ["", "None", "null", "NA", "N/A", "<NA>", " "])
def test_a_word_for_no_value_leaves_the_other_values_of_its_line(cell: str, tmp_path: Path) -> None:
    path = _csv(tmp_path / "a.csv", f"step, loss, grad_norm\n1, 9, {cell}\n2, 8, 0.5\n")
    (log,) = made.read(path, "csv")
    assert [(step.loss, step.grad_norm) for step in log.steps] == [(9, None), (8, 0.5)]
    assert not log.run.imported.not_imported


@pytest.mark.refused
def test_values_that_cannot_be_are_left_out_or_an_error(tmp_path: Path) -> None:
    """NanoGPT logs an MFU of -100 % before it knows one."""
    path = _csv(tmp_path / "a.csv", "iter,loss,mfu,memory_gib\n0,9,-100,-3\n1,8,140,3\n2,7,40,3\n")
    (log,) = made.read(path, "csv")
    assert log.run.imported.not_imported == [
        f"{path}:2: 'mfu' is -100, below 0; left out",
        f"{path}:2: 'memory_gib' is -3, below 0; left out",
    ]
    assert [step.memory_bytes for step in log.steps] == [None, 3 << 30, 3 << 30]
    assert log.run.imported.printed["mfu"] == 90
    (sentence,) = findings(log, "metrics", "error")
    assert sentence.startswith(f"a: mfu is above 100 % in 1 record, first at step 2 ({path}:3), 140 %")


@pytest.mark.refused
@pytest.mark.parametrize(
    "content, message",
    [
        (gzip.compress(b"step,loss\n1,9\n"), "not a text file; unpack it with gunzip first"),
        ("step,loss\n1,9\n".encode("utf-16"), "not a text file; save it as UTF-8 first"),
        (b'{"log_history": [\n {"step": 1, "loss": 9}\n]}', r"jq -c '\.log_history\[\]' a > records\.jsonl"),
        (b'[\n{"step": 1, "loss": 9}]', r"one JSON document, .* jq -c '\.\[\]' a > records\.jsonl"),
    ],
    ids=["gz", "UTF-16", "trainer_state.json", "a list"],
)
def test_a_file_that_a_command_makes_readable_is_refused_with_it(
    content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Refused, match=message):
        made.read(tmp_path / "a", "jsonl")


def test_an_index_that_pandas_keeps_in_the_files_metadata_is_a_column(tmp_path: Path) -> None:
    index = {"kind": "range", "name": "step", "start": 10, "stop": 40, "step": 10}
    table = pa.table({"loss": [9.0, 8.0, 7.0]})
    for name, steps in (("step", [10, 20, 30]), (None, None)):
        metadata = {b"pandas": json.dumps({"index_columns": [index | {"name": name}, "x"]}).encode()}
        pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
        if steps is None:
            with pytest.raises(Refused, match=r"which column is the step\?"):
                made.read(tmp_path / "a.parquet", "parquet")
            continue
        (log,) = made.read(tmp_path / "a.parquet", "parquet")
        assert [step.step for step in log.steps] == steps


@pytest.mark.refused
def test_a_seed_in_a_files_name_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """Runs of other seeds are repeats, whatever the seeds are."""
    path = _csv(tmp_path / "run_sx.csv", "step,loss\n1,9\n")
    with pytest.raises(Refused, match=r"the seed in its name is 'x', not a whole number; change `file_name`"):
        made.read(path, "csv", {"file_name": "run_s(?P<seed>.+)"})


def test_a_time_that_cannot_be_a_moment_of_a_training_is_not_taken_for_one(tmp_path: Path) -> None:
    """Microseconds since the start look like seconds since 1970 to who takes any number for them."""
    path = _csv(tmp_path / "a.csv", "step,loss,time\n1,9,200000000\n2,8,400000000\n")
    (log,) = made.read(path, "csv")
    assert log.result.wall_seconds is None
