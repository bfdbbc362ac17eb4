"""Command lines and profiles that must be refused: each with its exit code and the words that help."""

import os

import pytest
from typer.testing import CliRunner

from runner.cli.app import app
from tests.analysis.fabricate import Folder, completed, plan

pytestmark = pytest.mark.refused

LOCAL = "executor: local\n"
# What is typed, in a folder with the study tiny.yaml, whose only factor is the seed 0, and what the answer says.
COMMANDS = [
    ("launch none.yaml", "none.yaml: No such file"),
    ("launch tiny.yaml --profile nope", "no profile 'nope' (valid: alps"),
    ("launch tiny.yaml --profile Local", "did you mean 'local'"),
    ("launch tiny.yaml --profile ./local", "or give the path of a .yaml file"),
    ("launch tiny.yaml --profile none.yaml", "none.yaml: No such file"),
    ("launch tiny.yaml --profile tiny.yaml", "unknown key 'title'"),
    ("launch tiny.yaml --profile=", "no profile ''"),
    ("launch tiny.yaml --profile https://x.org/alps.yaml", "'https://x.org/alps.yaml' is a URL"),
    ("collect https://x.org/tiny.tar.gz", "is a URL"),
    ("status https://x.org/tiny.yaml", "is a URL"),
    ("compare https://x.org/tiny tiny", "is a URL"),
    ("launch tiny.yaml --scale huge", "valid: full); choose one with --scale"),
    ("launch tiny.yaml --scale Full", "did you mean 'full'"),
    ("launch tiny.yaml --scale=", "no scale ''"),
    ("launch tiny.yaml --set train.stpes=3", "did you mean 'train.steps'"),
    ("launch tiny.yaml --set train.lr=1", "unknown setting 'train.lr' (did you mean 'train.learning_rate'"),
    ("launch tiny.yaml --set train=3", "'train' is a section: set one of train.steps"),
    ("launch tiny.yaml --set train.steps", "expected a value, such as --set train.steps=VALUE"),
    ("launch tiny.yaml --set train.steps=", "expected a value, such as --set train.steps=VALUE"),
    ("launch tiny.yaml --set =3", "--set =3: expected SETTING=VALUE"),
    ("launch tiny.yaml --set train.steps=true", "--set train.steps=true: 'train.steps' must be a whole number"),
    ("launch tiny.yaml --set train.steps=[1", "--set train.steps=[1: expected ',' or ']'"),
    ("launch tiny.yaml --set train.attention_dropout=1/16", "must be a number: write 0.0625, got '1/16'"),
    ("launch tiny.yaml --set train.steps=[1,2]", "must be a whole number, got [1, 2]"),
    ("launch tiny.yaml --set train.steps=2 --set train.steps=3", "--set train.steps=2 sets it too; keep one"),
    ("launch tiny.yaml --set seed=1", "select cells with --only seed=VALUE"),
    ("launch tiny.yaml --set data.path=none.parquet", "--set data.path=none.parquet: "),
    ("launch tiny.yaml --set model.vocab_size=99", "--set model.vocab_size=99: tokenizer 'bytes' has 258 ids"),
    ("launch tiny.yaml --only seed=9", "no cell has seed = '9' (valid: 0)"),
    ("launch tiny.yaml --only sed=0", "'sed' is not a factor of this study (did you mean 'seed'"),
    ("launch tiny.yaml --only seed", "expected a value, such as --only seed=VALUE"),
    ("launch tiny.yaml --only seed={0", "--only seed={0: expected ',' or '}'"),
    ("launch tiny.yaml --only seed=[0,1]", "without brackets: --only seed=VALUE,VALUE"),
    ("launch tiny.yaml --only seed=0,", "no cell has seed = ''"),
    ("launch tiny.yaml --only seed!=0", "'seed!' is not a factor of this study (did you mean 'seed'"),
    ("launch tiny.yaml --set base.train.steps=3", "did you mean 'train.steps'"),
    ("launch tiny.yaml --set train.steps:3", "did you mean 'train.steps'"),
    ("launch tiny.yaml --set data.path='#x'", "put it in quotes"),
    ("launch tiny.yaml --set data.path=3", "must be text, such as \"3\" in quotes"),
    ("launch tiny.yaml --set '\x1b[31m=3'", "--set ?[31m=3: unknown setting '?[31m'"),
    ("launch tiny.yaml --profile local --profile local", "'--profile' / '-p': given more than once; keep one"),
    ("launch tiny.yaml --scale full -s full", "given more than once; keep one"),
    ("launch tiny.yaml --wait --detach", "'--wait' / '--detach': given more than once; keep one"),
    ("launch tiny.yaml -profile local", "-profile: no such option; type --profile"),
    ("launch tiny.yaml -set=seed=1", "-set: no such option; type --set"),
    ("-root elsewhere status", "-root: no such option; type --root"),
    ("launch tiny.yaml --dryrun", "Possible options: --dry-run"),
    ("launch tiny.yaml --set", "'--set' requires an argument"),
    ("launch tiny.yaml other.yaml", "other.yaml: No such file (did you mean 'tiny.yaml'?"),
    ("launch tiny.yaml --parallel 0", "'--parallel': must be greater than or equal to 1"),
    ("launch tiny.yaml --parallel x", "'--parallel': must be a whole number\n"),
    ("verify --device tpu", "'--device': 'tpu' is not one of 'cuda', 'cpu'"),
    ("verify --backend math --device cpu --report tiny.yaml", "tiny.yaml: Not a directory; choose another place with --report"),
    ("verify --backend ''", "unknown attention backend '' (valid: auto"),
    ("report --index . --latex --out x", "--index takes no other option: leave out --out, --latex"),
    ("report tiny --every 5", "--every sets how often --watch looks: add --watch"),
    ("report tiny --figures 'pdf png'", "separate formats with commas: --figures svg,pdf,png"),
    ("status ''", "the name is empty; leave it out for all studies"),
    ("gc ' '", "the name is empty; leave it out for all studies"),
    ("doctor --profile=", "no profile ''"),
    # As an unset shell variable gives it: as a path, it would be the working directory.
    ("launch tiny.yaml ''", "'STUDY': the path is empty; write it in full"),
    ("report tiny --out=", "'--out' / '-o': the path is empty; write it in full"),
    ("report ''", "'' names no study; list them with `runner status`"),
    ("cancel ''", "'' names no study; list them with `runner status`"),
    ("launch", "Missing argument 'STUDY'"),
    ("--root elsewhere status", "'--root' (env var: 'RUNNER_ROOT'): given more than once"),
    ("status --root elsewhere", "--root is given before status and after it; keep one"),
    ("expand .", ".: a folder of studies, and one is wanted here: name one of my study.yaml, pipe.yaml, tiny.yaml"),
    ("expand tiny.yaml/x.yaml", "tiny.yaml/x.yaml: Not a directory"),
    ("expand pipe.yaml", "pipe.yaml: not a regular file; save the text in one"),
    ("expand tiny.yaml --profile pipe.yaml", "pipe.yaml: not a regular file"),
    ("expand /dev/zero", "/dev/zero: not a regular file"),
    ("expand 'my study.yaml'", "or add `name:`"),
    ("status nope", "no runs of study 'nope'"),
    ("logs 123", "no run '123'"),
    ("cancel 123", "no runs of study '123'"),
    ("explain 123", "no run '123'"),
    ("retry nope", "no runs of study 'nope'"),
    ("status tiny", "(nor of any other: start some with `runner launch STUDY`, or name another folder with --root)"),
    ("launch tiny", "tiny: No such file (did you mean 'tiny.yaml'?"),
    ("launch studies/tiny.yaml", "no study nearby: change to the folder that has yours, or write one with `runner init`"),
    ("report nope", "no runs of study 'nope'"),
    ("sql 'select 1'", "runner collect"),
    ("collect none.tar.gz", "none.tar.gz: no such file"),
    ("schema table", "'study'"),
    ("data nowhere --out x.parquet", "nowhere: no such folder"),
    ("data taken --out tt.csv", "--out tt.csv: this writes Parquet; name it tt.parquet"),
    ("data taken --out text", "--out text: this writes Parquet; name it text.parquet"),
    ("report tiny --out page.html", "page.html: this writes a folder; name it without .html"),
    ("export tiny --out tiny.tar.gz", "tiny.tar.gz: this writes a folder; name it without .gz"),
    ("verify --report right.HTML", "this writes a folder"),
    ("compare a b --html change.html", "this writes a folder"),
    ("launch tiny.yaml --dry-run --scripts job.sh", "this writes a folder"),
    ("init first.yaml", "this writes a folder"),
    ("sql --lsit", "No such option"),
    ("sql '--lsit=a b'", "No such option"),
    ("nonsense", "no command 'nonsense' (valid: audit, cancel, "),
    ("lanch", "no command 'lanch' (did you mean 'launch'? valid: "),
    ("Launch", "did you mean 'launch'?"),
    ("resume tiny", "no command 'resume' (valid: audit, cancel, "),
    ("init taken", "already exists"),
    ("init new --profile leonardp", "no shipped profile 'leonardp' (did you mean 'leonardo'? valid: alps"),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "message"), COMMANDS, ids=[typed for typed, _ in COMMANDS])
def test_a_wrong_command_is_refused_with_what_would_be_right(cli, root, study, tmp_path, typed, message):
    import shlex

    study()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "my study.yaml").write_bytes((tmp_path / "tiny.yaml").read_bytes())
    (tmp_path / "taken" / "schemas").mkdir(parents=True)
    (tmp_path / "taken" / "schemas" / "study.json").touch()
    code, out, err = cli(*shlex.split(typed))
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert out == ""
    assert not root.exists()


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("tiny.yaml", "tiny.yaml is not a folder"),
        ("tiny.yaml/below", "tiny.yaml is not a folder"),
        ("", "write the folder's path in full"),
        ("s3://bucket/runs", "--root: 's3://bucket/runs' is a URL, not a path of this machine"),
        ("~nobody-of-this-name", "the home folder is unknown; write the path in full"),
        ("a\nb", "U+000A"),
        ("a\0b", "U+0000"),
        ("x" * 300, "File name too long"),
    ],
)
def test_a_root_that_cannot_be_a_folder_is_refused(cli, study, root, message):
    study()
    code, out, err = cli("status", root=root)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", "1:1", "the file is empty"),
        ("- a\n", "1:1", "expected keys and values"),
        ("executor: slrum\n", "1:1", "must be 'local' or 'slurm', got 'slrum'"),
        ("executor: slurm\nslurm: true\n", "2:1", "keys and values of its own (keys: partition"),
        ("executor: slurm\nslurm: {exclusive: yes}\n", "2:9", "must be true or false, got 'yes'"),
        ("executor: slurm\nslurm: {options: {hint: [a]}}\n", "2:19", "must be text"),
        (LOCAL + "cpu: 3\n", "2:1", "did you mean 'cpus'"),
        (LOCAL + "cpus: true\n", "2:1", "must be a whole number, got true"),
        (LOCAL + "cpus: '3'\n", "2:1", "must be a whole number: write 3, got '3'"),
        (LOCAL + f"cpus: {'9' * 27}\n", "2:1", "must be less than 2147483648"),
        (LOCAL + f"memory: {'9' * 20}TiB\n", "2:1", "such as 512MiB or 3GiB"),
        (LOCAL + "memory: 3\n", "2:1", "such as 512MiB or 3GiB, got '3'"),
        (LOCAL + f"time_limit: {'9' * 20}:00:00\n", "2:1", "such as 0:30:00 or 12:00:00"),
        (LOCAL + "time_limit: 30:00\n", "2:1", "such as 0:30:00 or 12:00:00, got '30:00'"),
        (LOCAL + "python: ''\n", "2:1", "must have at least 1 character"),
        (LOCAL + "python: ~/bin/python\n", "2:1", "write it out in full"),
        (LOCAL + "env: [A]\n", "2:1", "keys and values of its own"),
        (LOCAL + "env: {A: 3}\n", "2:7", 'such as "3" in quotes'),
        (LOCAL + "peak_tflops: .inf\n", "2:1", "finite number"),
        (LOCAL + "budget: {}\n", "2:1", "needs gpu_hours, node_hours or both"),
        (LOCAL + 'description: "\\e[2J"\n', "2:14", "U+001B"),
    ],
)
def test_a_bad_profile_is_refused_with_its_place_and_line(cli, study, tmp_path, text, place, message):
    (tmp_path / "p.yaml").write_text(text)
    code, out, err = cli("expand", study(), "--profile", "p.yaml")
    assert (code, out) == (2, "")
    assert f"p.yaml:{place}: " in err
    assert message in err
    assert "Traceback" not in err


def test_a_wrong_root_in_the_environment_is_named_as_such(study, monkeypatch):
    monkeypatch.setenv("RUNNER_ROOT", str(study()))
    answer = CliRunner().invoke(app, ["status"])
    assert str(answer.exception).startswith(f"RUNNER_ROOT {study()}: ")


def test_a_mistyped_run_or_study_is_guessed(cli, root):
    Folder(root, plan("4f2ab77c01de", study="tiny"))
    assert "no study or run 'tyny' under " in (message := cli("cancel", "tyny").err)
    assert "(did you mean 'tiny'? valid studies: tiny)" in message
    assert "(did you mean 'tiny/4f2ab77c01de'?)" in cli("logs", "4f2ab77c0lde").err
    assert "(did you mean 'tiny/4f2ab77c01de'?)" in cli("logs", "tiny/4f2ab77c0lde").err
    assert "did you mean" not in cli("logs", "nothing").err


@pytest.mark.parametrize("target", ["nowhere", "link"], ids=["a link to nothing", "a link to itself"])
def test_nothing_is_written_where_a_link_leads_nowhere(cli, root, study, tmp_path, target):
    completed(root, "r1", study="tiny")
    (link := tmp_path / "link").symlink_to(target)
    assert cli("launch", study(), root=link).err == f"--root {link}: {link} is not a folder\n"
    assert cli("reproduce", "r1", "--out", link).err.startswith(f"{link}: Not a directory; ")
    assert cli("verify", "--report", link).err.startswith(f"{link}: Not a directory; ")
    assert not (tmp_path / "nowhere").exists()


def test_a_report_into_a_link_to_itself_is_refused(cli, root, tmp_path):
    completed(root, "r1", study="tiny")
    (link := tmp_path / "link").symlink_to("link")
    code, _, err = cli("report", "tiny", "--out", link)
    assert code == 2 and str(link) in err.splitlines()[-1]


def test_a_repeat_goes_to_no_file(cli, root, study):
    completed(root, "r1")
    message = cli("reproduce", "r1", "--out", study()).err
    assert message == f"{study()}: Not a directory; choose another place with --out\n"


def test_outcomes_can_be_given_with_commas_as_settings_can(cli, root):
    Folder(root, plan("r1", study="tiny"))
    assert "r1" in cli("status", "--outcome", "failed, planned").out
    assert "no such outcome (did you mean 'failed'?" in cli("status", "--outcome", "planned,faild").err


def test_a_retry_guesses_no_axis_for_another_setting(cli, root):
    completed(root, "r1", study="tiny")
    message = cli("retry", "tiny", "--outcome", "completed", "--set", "seed=1").err
    assert "only its processes can change (valid: parallel.replicate" in message
    assert "did you mean 'parallel.shard'" in cli("retry", "tiny", "--set", "shrd=1").err


def test_a_retry_says_why_it_needs_the_studys_file_and_the_profile(cli, root, tmp_path):
    run = {"study": "tiny", "study_file": "tiny.yaml", "launched_in": str(tmp_path)}
    completed(root, "r1", profile_file=str(tmp_path / "p.yaml"), **run)
    command = ("retry", "tiny", "--outcome", "completed")
    (tmp_path / "p.yaml").write_text("executor: lokal\n")
    lines = cli(*command).err.splitlines()
    assert lines[0].startswith(f"{tmp_path}/p.yaml:1:1: ")
    assert lines[-1] == "tiny/r1 was launched with it: choose a profile with --profile"
    lines = cli(*command, "--profile", "local").err.splitlines()
    assert lines[0].startswith(f"{tmp_path}/tiny.yaml: No such file")
    assert lines[-1] == "runs of tiny were launched from it: put it back to restart them"


def test_a_wrong_profile_in_the_environment_is_named_as_such(cli, study, monkeypatch):
    monkeypatch.setenv("RUNNER_PROFILE", "nope")
    code, _, err = cli("expand", study())
    assert code == 2
    assert "RUNNER_PROFILE: no profile 'nope'" in err


def test_values_that_no_cell_has_together_are_refused(cli, study):
    path = study("matrix: {attention: [auto, math], seed: [0, 1]}\nexclude: [{attention: math, seed: 1}]\n")
    code, out, err = cli("expand", path, "--only", "attention=math", "--only", "seed=1")
    assert (code, out) == (2, "")
    assert "no cell has all of attention = ['math'] and seed = [1]" in err


def test_a_factor_that_a_study_has_not_is_refused_without_an_empty_list(cli, study):
    code, _, err = cli("expand", study(""), "--only", "seed=0")
    assert code == 2
    assert "this study has no factors" in err
