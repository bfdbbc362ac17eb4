"""Every verb answers, starts fast, and refuses bad input with its place, its choices and exit code 2."""

import json
import subprocess
import sys

import pytest

from runner.cli.app import verbs
from tests.conftest import REPOSITORY, environment

VERBS = list(verbs())


def test_help_lists_every_verb(runner):
    listed = runner("--help", rc=0).stdout
    assert [verb for verb in VERBS if f"\n  {verb} " not in listed] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_and_is_documented(runner, verb):
    assert "Usage:" in runner(verb, "--help", rc=0).stdout
    assert f"`runner {verb}" in (REPOSITORY / "docs" / "command-line.md").read_text()


def shell(line, folder, **env):
    return subprocess.run(
        ["bash", "-c", line.replace("runner", f"{sys.executable} -P -m runner")],
        cwd=folder, env=environment(**env), capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-"])
def test_a_closed_stderr_changes_no_exit_code(tmp_path, closed):
    assert shell(f"runner status nope {closed}", tmp_path).returncode == 2


def test_a_pipe_that_is_closed_before_the_first_run_starts_none(study, runner, tmp_path, root):
    """Whoever reads has gone, and the launch stops before it claims a run."""
    shell(f"runner --root {root} launch {study()} 2>&1 >/dev/null | head -1", tmp_path)
    assert not list(root.glob("tiny/*/attempt-*"))
    runner("launch", study(), rc=0)


def test_messages_go_wherever_stderr_is_by_then(capsys):
    """Rich puts another stderr in place while it draws."""
    import logging

    from runner.cli.main import _Said

    _Said().emit(logging.makeLogRecord({"msg": "%d left", "args": (3,)}))
    assert capsys.readouterr().err == "3 left\n"


def test_completing_a_verb_imports_no_verb(tmp_path):
    code = (
        "import os, sys\n"
        "os.environ |= {'_RUNNER_COMPLETE': 'complete_bash', 'COMP_WORDS': 'runner l', 'COMP_CWORD': '1'}\n"
        "from runner.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'runner.commands.launch', 'runner.commands.logs'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["launch", "logs"]


def test_a_mistyped_verb_is_answered_with_the_nearest(runner):
    assert "Did you mean 'launch'?" in runner("lanch", rc=2).stderr


@pytest.mark.parametrize(
    "arguments", [["--help"], ["expand", "tiny.yaml"], ["validate", "tiny.yaml"], ["status"]]
)
def test_light_commands_import_no_heavy_module(study, arguments):
    path = study()
    code = (
        "import sys; from runner.cli.app import app\n"
        "try: app(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'duckdb', 'altair', 'submitit', 'pandas', 'vl_convert'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=path.parent,
        check=True,
        env=environment(),
        capture_output=True,
    )


def test_the_backends_are_listed_without_torch():
    code = "import sys; from model.attention import names; assert 'math' in names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", ["runner", "model", "analysis"])
def test_packages_come_from_the_project_whatever_lies_in_the_working_directory(tmp_path, package):
    for name in ("runner", "model", "analysis"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    command = [sys.executable, "-P", "-c", f"import {package}; print({package}.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(REPOSITORY / package / "__init__.py")


@pytest.mark.trains
def test_a_stray_module_in_the_working_directory_does_not_reach_a_run(runner, study, tmp_path):
    (tmp_path / "model.py").write_text("raise SystemExit('the wrong model')")
    runner("launch", study(), rc=0)


BAD_STUDIES = {
    "unknown key": ("titel: x\n", "1:1", "did you mean 'title'"),
    "duplicate key": ("title: x\ntitle: y\n", "2:1", "already set"),
    "tab": ("title: x\nbase:\n\tdevice: cpu\n", "3:1", "spaces"),
    "empty": ("", "1:1", "empty"),
    "not a mapping": ("- a\n", "1:1", "expected keys"),
    "object tag": ("title: !!python/object:os.system x\n", "1:8", "tag"),
    "no such backend": (
        "title: x\nbase: {data: {path: text.parquet}}\nmatrix: {attention: [flash9]}\n",
        "3:22",
        "valid: auto",
    ),
    "empty axis": ("title: x\nmatrix: {seed: []}\n", "2:10", "at least 1"),
    "no data path": ("title: x\nbase: {device: cpu}\n", "2:1", "missing key"),
    "missing data": ("title: x\nbase: {device: cpu, data: {path: none.parquet}}\n", "2:28", "runner data"),
    "corrupt data": ("title: x\nbase: {data: {path: bad.parquet}}\n", "2:15", "not a Parquet file"),
    "truncated data": ("title: x\nbase: {data: {path: cut.parquet}}\n", "2:15", "not a Parquet file"),
    "no such column": (
        "title: x\nbase:\n  data:\n    path: text.parquet\n    text_column: txt\n",
        "5:5",
        "did you mean 'text'",
    ),
    "column of numbers": (
        "title: x\nbase:\n  data:\n    path: numbers.parquet\n    text_column: n\n",
        "5:5",
        "not text",
    ),
    "no rows": ("title: x\nbase: {data: {path: empty.parquet}}\n", "2:15", "no rows"),
    "missing tokenizer": (
        "title: x\nbase: {data: {path: text.parquet, tokenizer: ./no/such}}\n",
        "2:35",
        "tokenizer",
    ),
    "small vocabulary": (
        "title: x\nbase: {data: {path: text.parquet}, model.vocab_size: 99}\n",
        "",
        "set model.vocab_size",
    ),
    "control character": (
        'title: "a\\u0007b"\nbase: {data: {path: text.parquet}}\n',
        "1:1",
        "control character",
    ),
}


@pytest.fixture
def data_files(study, tmp_path, corpus):
    import pyarrow as pa
    import pyarrow.parquet as pq

    study()
    (tmp_path / "bad.parquet").write_bytes(b"no parquet " * 100)
    (tmp_path / "cut.parquet").write_bytes(corpus.read_bytes()[:-100])
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "numbers.parquet")
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "empty.parquet")


@pytest.mark.parametrize("case", BAD_STUDIES)
def test_a_bad_study_is_refused_with_its_place_and_nothing_is_started(
    runner, root, tmp_path, data_files, case
):
    text, place, says = BAD_STUDIES[case]
    (tmp_path / "bad.yaml").write_text(text)
    refused = runner("launch", "bad.yaml", rc=2)
    assert f"bad.yaml:{place}" in refused.stderr
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stdout == ""
    assert not root.exists(), "nothing was planned, claimed or started"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["launch", "none.yaml"], "none.yaml: No such file"),
        (["launch", "tiny.yaml", "--profile", "nope"], "valid: alps"),
        (["launch", "tiny.yaml", "--scale", "huge"], "valid: full"),
        (["launch", "tiny.yaml", "--set", "train.stpes=3"], "did you mean 'train.steps'"),
        (["launch", "tiny.yaml", "--only", "seed=9"], "no cell has seed"),
        (["status", "nope"], "no runs of study 'nope'"),
        (["logs", "123"], "no run '123'"),
        (["cancel", "123"], "no run '123'"),
        (["explain", "123"], "no run '123'"),
        (["retry", "nope"], "no runs of study 'nope'"),
        (["report", "nope"], "no runs of study 'nope'"),
        (["sql", "select 1"], "runner collect"),
        (["schema", "table"], "study"),
        (["data", "nowhere", "--out", "x.parquet"], "nowhere: no such folder"),
        (["nonsense"], "nonsense"),
    ],
)  # fmt: skip
def test_a_wrong_command_is_refused_with_what_would_be_right(runner, study, arguments, says):
    study()
    refused = runner(*arguments, rc=2)
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr


def test_slurm_without_slurm_is_exit_code_3_and_nothing_is_planned(runner, study, root):
    refused = runner("launch", study(), "--profile", "slurm", "--yes", rc=3, PATH="/usr/bin/nowhere")
    assert "not on PATH" in refused.stderr
    assert not root.exists()


def test_a_dry_run_shows_the_runs_and_the_batch_script_and_writes_nothing(runner, study, root):
    shown = runner("launch", study("matrix: {seed: [0, 1]}\n"), "--profile", "h100", "--dry-run", rc=0).stdout
    assert shown.count("  start") == 2
    assert "#SBATCH --array=0-1%2" in shown
    assert not root.exists()


def test_init_writes_a_study_that_validates_and_never_overwrites(runner, tmp_path):
    runner("init", "new", rc=0)
    runner("validate", "new/experiments/first.yaml", rc=0)
    (tmp_path / "new/experiments/first.yaml").write_text("mine")
    assert "already exists" in runner("init", "new", rc=2).stderr
    assert (tmp_path / "new/experiments/first.yaml").read_text() == "mine"


@pytest.mark.trains
def test_init_data_launch_collect_sql_and_report_are_one_path(runner, tmp_path):
    """What a newcomer does, from an empty folder to a report."""
    runner("init", "new", rc=0)
    runner("data", REPOSITORY / "runner", "--out", "new/data/text.parquet", "--match", "*.py", rc=0)
    runner("launch", "new/experiments/first.yaml", "--set", "train.steps=4", "--only", "seed=0", rc=0)
    runner("collect", rc=0)
    rows = json.loads(runner("sql", "select outcome, final_loss from runs", "--format", "json", rc=0).stdout)
    assert [row["outcome"] for row in rows] == ["completed"] * 2
    assert all(0 < row["final_loss"] < 10 for row in rows)
    page = runner("report", "first", "--out", "pages", rc=0).stdout.strip()
    assert "My first study" in (tmp_path / page).read_text()


def test_expand_as_json_is_one_array_of_objects(runner, study):
    cells = json.loads(runner("expand", study("matrix: {seed: [3, 4]}\n"), "--json", rc=0).stdout)
    assert [cell["factors"] for cell in cells] == [{"seed": 3}, {"seed": 4}]
    assert cells[0]["config"]["train"]["steps"] == 6


def test_doctor_lists_every_backend_as_json(runner):
    from model.attention import names

    checks = json.loads(runner("doctor", "--json", rc=0).stdout)
    assert {f"attention {name}" for name in names()} <= {check["what"] for check in checks}
    assert all(check["found"] for check in checks)


@pytest.mark.parametrize("kind", ["study", "profile"])
def test_the_schema_accepts_what_is_shipped_and_refuses_a_typo(runner, kind):
    import jsonschema
    from ruamel.yaml import YAML

    validator = jsonschema.Draft202012Validator(json.loads(runner("schema", kind, rc=0).stdout))
    folder = REPOSITORY / ("experiments" if kind == "study" else "cluster_profiles")
    files = [YAML(typ="safe").load(path) for path in sorted(folder.glob("*.yaml"))]
    assert files
    for content in files:
        validator.validate(content)
        assert not validator.is_valid({**content, "tpyo": 1})
    if kind == "study":
        assert not validator.is_valid({"title": "x", "base": {"model": {"dims": 3}}})
        assert not validator.is_valid({"title": "x", "matrix": {"attention": ["flash9"]}})


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "experiments").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_study_is_valid_at_each_scale(runner, path):
    assert "runs" in runner("validate", path, rc=0).stdout
