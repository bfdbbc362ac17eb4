"""`status` finds runs by what they are, and its table shows how they differ."""

import io
import json

import pytest
from typer.testing import CliRunner

from model.record.config import DataConfig, RunConfig, TrainConfig
from model.record.errors import UserError
from runner.cli.app import app
from runner.commands import _console
from runner.commands import status as commands_status
from runner.commands._runs import by_setting, labels, resolve_setting
from runner.commands.status import summarize
from runner.inputs.options import matching_values
from runner.job.phase import FILE, Stage
from runner.state.runs import states
from tests.analysis.fabricate import Folder, completed, plan


def varied(root, run_id, length, rate=1e-3, seed=0, study="lengths", steps=10):
    train = TrainConfig(steps=steps, sequence_length=length, learning_rate=rate, batch_size=1)
    config = RunConfig(attention="auto", seed=seed, data=DataConfig(path="x.parquet"), train=train)
    factors = {
        "attention": "auto",
        "train.sequence_length": length,
        "train.learning_rate": rate,
        "seed": seed,
    }
    return completed(root, run_id, study=study, config=config, factors=factors, group=f"g{length}-{rate}")


@pytest.fixture
def lengths(tmp_path):
    varied(tmp_path, "a", 256)
    varied(tmp_path, "b", 4096)
    varied(tmp_path, "c", 4096, rate=3e-3)
    folder = Folder(tmp_path, plan("d", study="other"))
    folder.start()
    folder.end("failed", reason="broken")
    return tmp_path


def status(root, *arguments):
    answer = CliRunner().invoke(app, ["--root", str(root), "status", *arguments])
    if isinstance(answer.exception, UserError):
        raise answer.exception
    assert answer.exit_code == 0
    return answer.stdout


def ids(root, *arguments):
    return "".join(row["run_id"] for row in json.loads(status(root, "--json", *arguments)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--only", "train.sequence_length=4096"], "bcd"),
        (["--only", "sequence_length=256,4096"], "abcd"),
        (["--only", "seq=256", "--only", "seq=4096"], "abcd"),
        (["--only", "lr=0.003"], "c"),
        (["--only", "lr=3e-3"], "c"),
        (["--only", "seq=4096", "--only", "rate=0.001"], "b"),
        (["--only", "batch_size=1"], "abcd"),
        (["--only", "train.steps=100"], "d"),
        (["--only", "compile=false"], "abcd"),
        (["--outcome", "failed"], "d"),
        (["--outcome", "failed", "--outcome", "completed"], "abcd"),
        (["--outcome", "running"], ""),
        (["lengths", "--outcome", "failed"], ""),
    ],
)
def test_runs_are_found_by_outcome_and_by_setting(lengths, arguments, expected):
    assert ids(lengths, *arguments) == expected


@pytest.mark.refused
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "seq"], "expected SETTING=VALUE"),
        (["--only", "train.stpes=3"], "no such setting .*did you mean 'train.steps'"),
        (["--only", "=3"], "no such setting"),
        (["--only", "seq=99"], "train.sequence_length=99: no run has this value .*valid: 256, 4096"),
        (["--only", "d=3"], "could mean"),
        (["--outcome", "bad"], "no such outcome .*valid: completed"),
    ],
)
def test_a_filter_that_means_nothing_is_refused(lengths, arguments, message):
    with pytest.raises(UserError, match=message):
        status(lengths, *arguments)


def test_a_short_name_means_what_varies_before_what_is_shared(lengths):
    runs = states(lengths, "lengths")
    assert resolve_setting("l", runs) == "train.learning_rate", "not layers, which no study varies"
    assert resolve_setting("attention", runs) == "attention"


def test_a_filter_in_an_empty_root_finds_nothing(tmp_path):
    assert by_setting(states(tmp_path), ["train.sequence_length=4096"]) == []


def test_a_root_that_does_not_exist_is_named(tmp_path):
    answer = CliRunner().invoke(app, ["--root", str(tmp_path / "rnus"), "status"])
    assert answer.exit_code == 0
    assert "rnus does not exist yet" in answer.stderr


def test_labels_show_what_differs_and_leave_out_what_does_not(lengths):
    assert labels(states(lengths)) == [
        "sequence_length=256 learning_rate=0.001",
        "sequence_length=4096 learning_rate=0.001",
        "sequence_length=4096 learning_rate=0.003",
        "auto seed=0",
    ]


def test_repeats_are_labelled_where_they_vary_and_can_be_picked(tmp_path):
    for repeat in (1, 2):
        Folder(tmp_path, plan(f"r{repeat}", repeat=repeat))
    assert labels(runs := states(tmp_path)) == ["repeat=1", "repeat=2"]
    assert labels(runs[:1]) == ["auto seed=0"]
    assert [state.brief.run_id for state in by_setting(runs, ["repeat=2"])] == ["r2"]


def test_a_narrow_terminal_hides_neither_a_name_nor_a_factor(lengths, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    name, factors = "lengths/" + "a" * 12, "sequence_length=4096 " + "x" * 50
    _console.table(["run", "factors"], [[name, factors]])
    table = terminal.getvalue()
    assert name in table
    assert table.count("x") == 50
    assert "sequence_length=4096" in table


def test_many_runs_are_summarized_by_group_and_all_shows_each(tmp_path, capsys):
    for number in range(42):
        varied(tmp_path, f"r{number:02}", 256 if number % 2 else 4096, seed=number // 2)
    Folder(tmp_path, plan("z", study="other"))
    summarize(states(tmp_path))
    output = capsys.readouterr()
    rows = [line.split() for line in output.out.splitlines()]
    assert rows[1] == ["lengths", "sequence_length=4096", "21", "21", "completed", "9.900", "10,240"]
    assert [row[1] for row in rows[1:]] == ["sequence_length=4096", "sequence_length=256", "auto"]
    assert output.err.startswith("43 runs: 42 completed, 1 planned; in 3 groups")
    assert len(status(tmp_path, "--all").splitlines()) == 1 + 43
    assert len(status(tmp_path, "lengths", "--only", "seq=256").splitlines()) == 1 + 21


def test_a_group_without_a_factor_but_the_seed_has_no_label(tmp_path, capsys):
    for number in range(41):
        completed(tmp_path, f"r{number:02}", steps=5, seed=number, factors={"seed": number})
    summarize(states(tmp_path))
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[:4] == ["backends", "41", "41", "completed"]


def test_runs_that_are_all_of_a_kind_of_their_own_are_not_summarized(tmp_path, capsys):
    for number in range(41):
        varied(tmp_path, f"r{number:02}", 256, rate=number + 1.0)
    summarize(states(tmp_path))
    assert len(capsys.readouterr().out.splitlines()) == 1 + 41


def test_watching_goes_on_while_a_launch_waits_for_its_turn(tmp_path, monkeypatch):
    completed(tmp_path, "r1")
    waits, tables = iter([("first",), ("first",), ()]), []
    monkeypatch.setattr(commands_status, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(commands_status, "show", lambda states, _: tables.append(states))
    monkeypatch.setattr(commands_status.queue, "describe_waiting", lambda *_: ())
    monkeypatch.setattr(commands_status.queue, "waiting", lambda *_: next(waits))
    status(tmp_path, "--watch")
    assert len(tables) == 3


@pytest.mark.refused
def test_one_json_document_cannot_be_watched(lengths):
    with pytest.raises(UserError, match="leave out --watch"):
        status(lengths, "--json", "--watch")


def test_a_message_does_not_steer_the_terminal(capsys):
    from runner.commands._console import say

    say("made by assay \x1b]0;title\x07\x1b[2J\u202e\nsecond line")
    assert capsys.readouterr().err == "made by assay ?]0;title??[2J?\nsecond line\n"


def test_a_short_name_means_a_setting_that_the_runs_have(root):
    config = RunConfig(task="attention")
    Folder(root, plan("a", study="alone", config=config, factors={"seed": 0}))
    runs = states(root)
    assert resolve_setting("steps", runs) == "call.steps"
    assert resolve_setting("backends", runs) == "call.backends"
    with pytest.raises(UserError, match="no such setting"):
        resolve_setting("learning_rate", runs)


@pytest.mark.parametrize(
    ("tasks", "columns"),
    [
        (["attention"], []),
        (["inference"], ["tokens/s"]),
        (["training"], ["loss", "tokens/s"]),
        (["attention", "inference"], ["tokens/s"]),
        (["attention", "training"], ["loss", "tokens/s"]),
    ],
    ids=" and ".join,
)
def test_a_table_has_no_column_that_its_tasks_have_nothing_for(tmp_path, tasks, columns):
    for task in tasks:
        config = RunConfig(task=task, attention="auto", data=DataConfig(path="x.parquet"))
        folder = Folder(tmp_path, plan(task, study="several", config=config))
        folder.start()
        folder.end("failed", reason="broken")
    head, *lines = status(tmp_path, "--all").splitlines()
    assert head.replace("last tokens/s", "tokens/s").split() == [
        "run",
        "factors",
        "status",
        "step",
        *columns,
        "reason",
    ]
    assert len(lines) == len(tasks) and all(line.endswith("broken") for line in lines)


def test_what_a_run_without_steps_does_is_shown(tmp_path):
    folder = Folder(tmp_path, plan("r1", study="several"))
    folder.start()
    stage = Stage(backend="math", begun=2, total=7, what="round 2, called from Python", doing="timing")
    (folder.path / "attempt-1" / FILE).write_text(stage.model_dump_json())
    assert status(tmp_path).splitlines()[1].endswith("timing math (2 of 7): round 2, called from Python")


def test_json_says_which_process_was_slowest_of_late(tmp_path):
    for run_id, fields in (
        ("one", {}),
        ("two", {"slowest_rank": 1, "slowest_rank_seconds": 0.4, "other_ranks_seconds": 0.3}),
    ):
        folder = Folder(tmp_path, plan(run_id, study="lengths"))
        folder.start()
        folder.step(5, **fields)
    assert {row["run_id"]: row["slowest_rank"] for row in json.loads(status(tmp_path, "--json"))} == {
        "one": None,
        "two": 1,
    }


@pytest.mark.parametrize(
    ("text", "present", "meaning"),
    [
        ("a,b.parquet", ["a,b.parquet", "c.parquet"], [["a,b.parquet"]]),
        ("c.parquet,a,b.parquet", ["a,b.parquet", "c.parquet"], [["c.parquet"], ["a,b.parquet"]]),
        ("lr=1,bs=4,lr=2,bs=4", ["lr=1,bs=4", "lr=2,bs=4"], [["lr=1,bs=4"], ["lr=2,bs=4"]]),
        ("a,b", ["a", "b", "a,b"], [["a,b"]]),
        ('"a,b",a', ["a", "b", "a,b"], [["a,b"], ["a"]]),
        ("a,", ["a", ",", ""], [["a"], [""]]),
        ("1e-3,0.003", [0.001, 0.003], [[0.001], [0.003]]),
        ("TRUE,1", [True, 1], [[True], [1]]),
        ("[x],y", ["[x]", "y"], [["[x]"], ["y"]]),
        ("A.parquet", ["a.parquet", "A.parquet"], [["A.parquet"]]),
        ("x,y", ["a,b", "y"], [[], ["y"]]),
    ],
)
def test_a_value_with_commas_is_selected_where_it_is_one_as_a_whole(text, present, meaning):
    assert [values for _, values in matching_values(text, present)] == meaning
