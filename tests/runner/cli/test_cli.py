"""Every verb answers, explains itself and starts fast."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from functools import wraps
from importlib import import_module
from pathlib import Path

import pytest

from runner.cli.app import verbs
from runner.inputs.profile import shipped
from tests.conftest import REPOSITORY, environment

VERBS = list(verbs())


def test_help_lists_every_verb(cli):
    overview = cli("--help").out
    assert [verb for verb in VERBS if f"\n  {verb} " not in overview] == []


def test_help_shows_the_verbs_of_every_day_first_and_each_verb_once(cli):
    every_day, others = cli("--help").out.partition("Every day:\n")[2].split("Others:\n")
    first, more = (re.findall(r"^  (\w+) ", group, re.MULTILINE) for group in (every_day, others))
    assert first == ["init", "data", "launch", "status", "collect", "sql", "report", "compare"]
    assert more == [verb for verb in VERBS if verb not in first]


def test_a_root_can_have_the_name_of_a_verb(cli, tmp_path):
    code, _, err = cli("status", root="data")
    assert code == 0 and f"{tmp_path / 'data'} does not exist yet" in err


def test_help_can_be_asked_for_in_short(cli):
    assert cli("-h").out == cli("--help").out
    assert cli("launch", "tiny.yaml", "-h").out == cli("launch", "--help").out


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_and_is_documented(cli, verb):
    code, out, _ = cli(verb, "--help")
    assert (code, out[:6]) == (0, "Usage:")
    assert "[[" not in out.partition("\n")[0], "what may be left out stands in one pair of brackets"
    assert f"`runner {verb}" in (REPOSITORY / "docs" / "command-line.md").read_text()


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_the_root_before_and_after_it(cli, verb, tmp_path, monkeypatch):
    """It is in force by the time that the verb begins, whatever the verb does with it."""
    from importlib import import_module

    from runner.cli.run import run
    from runner.commands._options import Settings

    assert "--root" in cli(verb, "--help").out
    module = import_module(f"runner.commands.{verbs()[verb].stem}")
    roots = []
    monkeypatch.setattr(module, "command", lambda: roots.append(Settings.root))
    monkeypatch.setenv("RUNNER_ROOT", "other")
    for arguments in (["--root", "here", verb], [verb, "--root", "here"], [verb, "--root=here"]):
        assert run(arguments) == 0
    assert roots == [tmp_path / "here"] * 3
    assert run(["--root", "here", verb, "--root", "there"]) == 2
    assert run([verb, "--root", ""]) == 2


@pytest.mark.parametrize(
    ("verb", "default"),
    [("launch", "local"), ("retry", "that of the launch"), ("reproduce", "that of the launch")],
)
def test_help_says_which_profile_a_verb_takes_by_default(cli, verb, default):
    assert f"default: {default}]" in " ".join(cli(verb, "--help").out.split())


def test_the_version_is_that_of_the_distribution(cli):
    from importlib.metadata import version

    assert cli("--version")[:2] == (0, f"runner {version('assay-studies')}\n")


def examples(verb):
    """The command lines that a verb's help shows."""
    docstring = ast.get_docstring(ast.parse(verbs()[verb].read_bytes()))
    return docstring.partition("\nExamples:\n")[2].splitlines()


@pytest.mark.parametrize("verb", ["init", "data", "validate", "expand", "launch", "status", "sql", "report"])
def test_a_main_verb_shows_examples_that_can_be_typed(cli, verb):
    """Each is parsed as the verb would, and the help keeps its line."""
    import typer

    from runner.cli.app import app

    group = typer.main.get_command(app)
    assert examples(verb)
    for line in examples(verb):
        program, word, *arguments = shlex.split(line.partition(" > ")[0])
        assert (program, word) == ("runner", verb)
        command = group.get_command(group.make_context("runner", [verb]), verb)
        command.make_context(verb, arguments)
        assert f"\n  {line}\n" in cli(verb, "--help").out


def with_a_path(command, path):
    """Arguments for a verb in which every path is this one, and the names of those; none if it takes no path."""
    import inspect
    import typing

    import typer

    hints, words, names = typing.get_type_hints(command, include_extras=True), [], []
    for name, param in inspect.signature(command).parameters.items():
        if typing.get_origin(hints[name]) is not typing.Annotated:
            continue
        kind, info = typing.get_args(hints[name])[:2]
        is_path = Path in (kind, *typing.get_args(kind))
        if is_path or param.default is inspect.Parameter.empty:
            named = str(info.default) if str(info.default).startswith("--") else f"--{name}"
            option = [named] * isinstance(info, typer.models.OptionInfo)
            words += [*option, path if is_path else "x"]
            names += [name] * is_path
    return words if names else None, names


@pytest.mark.parametrize("verb", VERBS)
def test_every_path_of_a_verb_can_begin_with_a_tilde_and_is_not_a_url(cli, tmp_path, monkeypatch, verb):
    monkeypatch.setenv("HOME", str(tmp_path))
    module, values = import_module(f"runner.commands.{verbs()[verb].stem}"), {}
    words, names = with_a_path(module.command, "~/x")
    if words is None:
        return
    monkeypatch.setattr(
        module, "command", wraps(module.command)(lambda **arguments: values.update(arguments))
    )
    assert cli(verb, *words) == (0, "", "")
    for name in names:
        assert values[name] in (tmp_path / "x", [tmp_path / "x"])
    code, out, err = cli(verb, *with_a_path(module.command, "https://x.org/x")[0])
    assert (code, out) == (2, "")
    assert "is a URL, not a path of this machine" in err


def test_a_root_in_the_home_folder_can_be_written_with_a_tilde(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert f"{tmp_path / 'here'} does not exist yet" in cli("status", root="~/here").err


def test_a_value_with_a_comma_is_selected_alike_by_expand_launch_and_status(
    cli, root, study, corpus, tmp_path
):
    (tmp_path / "a,b.parquet").write_bytes(corpus.read_bytes())
    path = study('matrix: {data.path: ["a,b.parquet", text.parquet]}\n')
    only = ("--only", "path=a,b.parquet")
    (cell,) = json.loads(cli("expand", path, *only, "--json").out)
    assert cell["factors"] == {"data.path": "a,b.parquet"}
    dry_run = cli("launch", path, *only, "--dry-run")
    assert (dry_run.code, dry_run.out.count("a,b.parquet")) == (0, 1)
    assert "text.parquet" not in dry_run.out


@pytest.mark.parametrize("folder", [".", "mine", "mine/experiments", "elsewhere"])
def test_the_profile_that_init_writes_is_found_by_name_from_any_folder(cli, tmp_path, monkeypatch, folder):
    assert cli("init", "mine").code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / folder)
    study = Path(os.path.relpath(tmp_path / "mine/experiments/first.yaml"))
    assert cli("expand", study, "--profile", "mycluster", "--scale", "full").code == 0
    assert "did you mean 'mycluster'" in cli("expand", study, "--profile", "myclustr").err


def test_plain_make_sets_up_the_environment_and_no_more():
    process = subprocess.run(
        ["make", "--dry-run", "--always-make"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert "pip install" in process.stdout
    assert "runner launch" not in process.stdout
    assert "pytest" not in process.stdout


def test_a_query_can_begin_and_end_with_a_comment(runner, root):
    root.mkdir()
    runner("collect", rc=0)
    for query in ("-- a comment\nselect 1 as one", "--one\nselect 1 as one -- said"):
        assert runner("sql", query, "--format", "csv").stdout.split() == ["one", "1"]


@pytest.mark.refused
def test_a_terminal_is_sent_no_parquet(cli, root, monkeypatch):
    root.mkdir()
    assert cli("collect").code == 0
    monkeypatch.setattr("runner.commands.sql.on_a_terminal", lambda: True)
    code, out, err = cli("sql", "select 1", "--format", "parquet")
    assert (code, out, err) == (2, "", "Parquet is not for a terminal: add > FILE.parquet\n")


# Each verb by what its argument can name.
STUDIES = ["status", "cancel", "retry", "report", "export", "collect", "gc"]
RUNS = ["status", "cancel", "retry", "logs", "explain", "reproduce"]


@pytest.fixture
def two_studies(root, tmp_path):
    from tests.analysis.fabricate import Folder, plan

    for run_id, name in (("abc1", "t1"), ("abd2", "t1"), ("abe3", "t2")):
        folder = Folder(root, plan(run_id, name))
        folder.start()
        folder.end()
    (tmp_path / "t1.yaml").write_text("title: x\n")


@pytest.mark.parametrize("verb", sorted({*STUDIES, *RUNS}))
def test_every_verb_takes_studies_and_runs_in_the_same_forms(cli, root, two_studies, verb):
    """A form that a verb does not take is refused for what it is."""

    def message(target):
        return cli(verb, target).err

    runs, missing = ("abc", "t1/abc", "abc1", "t1/abc1"), ("no study or run", "no run", "no runs of study")
    for run in runs:
        if verb in RUNS:
            assert not any(words in message(run) for words in (*missing, "is a run"))
        else:
            assert f"'{run}' is a run; name its study, t1" in message(run)
    for study in ("t1", "t1.yaml"):
        if verb in STUDIES:
            assert not any(words in message(study) for words in (*missing, "is a study"))
    if verb not in STUDIES:
        assert "'t1' is a study; name one of its runs" in message("t1")
    if verb in RUNS:
        assert "'ab' is the start of 3 runs" in message("ab")
    assert any(words in message("nothing") for words in missing)
    assert any(words in message("t1/nothing") for words in missing)


def test_status_and_retry_of_a_run_are_about_that_run(cli, root, two_studies):
    (row,) = json.loads(cli("status", "t1/abd", "--json").out)
    assert row["run_id"] == "abd2"
    assert cli("retry", "t1/abd", "--outcome", "failed").err == "nothing to restart\n"


def test_a_repeated_only_of_one_factor_is_a_union(cli, study):
    path = study("matrix: {seed: [0, 1, 2]}\n")
    stdout = cli("expand", path, "--only", "seed=2", "--only", "seed=0", "--json").out
    assert [cell["factors"]["seed"] for cell in json.loads(stdout)] == [0, 2]


def test_a_backend_that_is_named_twice_is_verified_once(cli, monkeypatch):
    from analysis.store import collect
    from runner.commands import verify

    requests = []
    monkeypatch.setattr(verify, "verify", lambda names, *_: requests.append(names) or [])
    monkeypatch.setattr(collect, "collect_certificates", lambda root: None)
    answer = cli("verify", "--backend", "math", "-b", "math", "-b", "tiled", "--device", "cpu")
    assert answer.code == 1  # the stand-in gives neither of the two a verdict
    assert requests == [["math", "tiled"]]


def test_messages_go_wherever_stderr_is_by_then(capsys):
    """Rich puts another stderr in place while it draws."""
    import logging

    from runner.cli.run import _Said

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
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert process.stdout.split() == ["launch", "logs"]


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
    code = "import sys; from model.record.backends import names; assert 'math' in names(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("package", ["runner", "model", "analysis"])
def test_packages_come_from_the_project_whatever_lies_in_the_working_directory(tmp_path, package):
    for name in ("runner", "model", "analysis"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    command = [sys.executable, "-P", "-c", f"import {package}; print({package}.__file__)"]
    process = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert process.stdout.strip() == str(REPOSITORY / package / "__init__.py")


def test_a_stray_module_in_the_working_directory_does_not_reach_a_run(runner, study, tmp_path):
    (tmp_path / "model.py").write_text("raise SystemExit('the wrong model')")
    runner("launch", study(), rc=0, PYTHONNOUSERSITE="1")  # a setting of Python's: so it is no fork


def test_slurm_without_slurm_is_exit_code_3_and_nothing_is_planned(runner, study, root):
    refused = runner("launch", study(), "--profile", "slurm", "--yes", rc=3, PATH="/usr/bin/nowhere")
    assert "not on PATH" in refused.stderr
    assert not root.exists()


def test_a_dry_run_shows_the_runs_and_the_batch_script_and_writes_nothing(runner, study, root):
    stdout = runner(
        "launch", study("matrix: {seed: [0, 1]}\n"), "--profile", "h100", "--dry-run", rc=0
    ).stdout
    assert stdout.count("completed  start\n") == 2
    assert "#SBATCH --array=0-1%2" in stdout
    assert not root.exists()


def test_init_writes_a_study_that_validates_and_never_overwrites(cli, tmp_path):
    assert cli("init", "new").code == 0
    assert cli("validate", "new/experiments/first.yaml")[::2] == (0, "")
    (tmp_path / "new/experiments/first.yaml").write_text("mine")
    assert "already exists" in cli("init", "new").err
    assert (tmp_path / "new/experiments/first.yaml").read_text() == "mine"


@pytest.mark.parametrize("name", sorted(shipped()))
def test_init_copies_a_shipped_profile_and_says_what_to_fill_in(cli, tmp_path, name):
    answer = cli("init", "new", "--profile", name)
    path = tmp_path / "new/cluster_profiles" / f"{name}.yaml"
    assert answer.code == 0
    assert path.read_text() == shipped()[name].read_text()
    assert not (tmp_path / "new/cluster_profiles/mycluster.yaml").exists()
    lines = [
        number
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "your-project" in line.partition("#")[0]
    ]
    numbers = re.findall(rf"new/cluster_profiles/{name}.yaml:(\d+):\d+: .*: put your own project", answer.err)
    assert [int(number) for number in numbers] == lines
    assert cli("expand", "new/experiments/first.yaml", "--profile", name, "--scale", "full").code == 0


def test_init_adds_a_profile_to_a_starter_and_changes_no_file(cli, tmp_path):
    cli("init", "new")
    study = tmp_path / "new/experiments/first.yaml"
    study.write_text("mine")
    answer = cli("init", "new", "--profile", "lumi")
    assert (answer.code, answer.out) == (0, "new/cluster_profiles/lumi.yaml\n")
    assert study.read_text() == "mine"
    refusal = cli("init", "new", "--profile", "lumi")
    assert refusal.code == 2
    assert "new/cluster_profiles/lumi.yaml already exists" in refusal.err


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


def test_expand_as_json_is_one_array_of_objects(cli, study):
    cells = json.loads(cli("expand", study("matrix: {seed: [3, 4]}\n"), "--json").out)
    assert [cell["factors"] for cell in cells] == [{"seed": 3}, {"seed": 4}]
    assert cells[0]["config"]["train"]["steps"] == 6


def test_doctor_lists_every_backend_as_json(runner):
    from model.record.backends import names

    checks = json.loads(runner("doctor", "--json", rc=0).stdout)
    assert {f"attention {name}" for name in names()} <= {check["what"] for check in checks}
    assert all(check["found"] for check in checks)


@pytest.mark.parametrize("kind", ["study", "profile"])
def test_the_schema_accepts_what_is_shipped_and_refuses_a_typo(cli, kind):
    import jsonschema
    from ruamel.yaml import YAML

    validator = jsonschema.Draft202012Validator(json.loads(cli("schema", kind).out))
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
    "path", sorted((REPOSITORY / "experiments").rglob("*.yaml")), ids=lambda path: path.stem
)
def test_every_shipped_study_is_valid_at_each_scale(cli, path):
    assert cli("validate", path).out.count("runs\n") >= 1
