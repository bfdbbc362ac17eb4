"""Jobs run the code of their launch, whatever is installed, edited, replaced, linked or on PYTHONPATH."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.record.errors import UserError
from runner import start
from runner.state.code import snapshot
from tests.conftest import environment

PROBE = """\
import json, subprocess, sys
import analysis, model, runner
from model import attention
from model.record import backends
from model.attention import auto
child = subprocess.run([sys.executable, "-c", "import sys; print(sys.path)"], capture_output=True, text=True)
print(json.dumps({
    "files": [analysis.__file__, model.__file__, runner.__file__, auto.__file__],
    "paths": [sys.path, eval(child.stdout)],
    "foreign": attention.load("mine").summary if "mine" in backends.names() else None,
    "argv": sys.argv[1:],
    "main": __name__,
}))
"""
# Redirects our packages before every other finder, as an editable install might.
HIJACK = """\
import importlib.util, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("analysis", "model", "runner"):
            return importlib.util.spec_from_file_location(name, __file__.replace("sitecustomize", "evil"))
sys.meta_path.insert(0, Finder)
"""


@pytest.fixture
def taken(tmp_path):
    return snapshot.place(snapshot.sources(), tmp_path / "study")


@pytest.fixture
def elsewhere(tmp_path):
    """A folder on PYTHONPATH, with a module that says where ours come from."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "probe.py").write_text(PROBE)
    return folder


def run(folder, *arguments, path=(), flags=("-P",), **variables):
    return subprocess.run(
        [sys.executable, *flags, str(folder / "runner" / "start.py"), *arguments],
        cwd=folder.parent, env=environment(PYTHONPATH=os.pathsep.join(map(str, path)), **variables),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def probe(folder, *path, flags=("-P",)):
    process = run(folder, "-m", "probe", "a", "-b", path=path, flags=flags)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize("flags", [("-P",), ()], ids=["P", "no P"])
def test_our_packages_come_from_the_snapshot_and_the_module_runs_as_main(taken, elsewhere, flags):
    answer = probe(taken, elsewhere, flags=flags)
    assert [Path(file).is_relative_to(taken) for file in answer["files"]] == [True] * 4, answer
    for path in answer["paths"]:
        folders = [Path(entry).resolve() for entry in path]
        assert not [folder for folder in folders if folder.is_relative_to(taken.parent)], (
            "modules of any name that others put there later are not found, nor by children that start there"
        )
    assert (answer["argv"], answer["main"]) == (["a", "-b"], "__main__")
    assert not list((taken / "runner").rglob("*.pyc")), "byte code is neither trusted nor collected"


@pytest.mark.fault
def test_neither_pythonpath_nor_another_finder_comes_before_the_snapshot(taken, elsewhere):
    for name in ("analysis", "model", "runner", "evil"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('hijacked')")
    (elsewhere / "sitecustomize.py").write_text(HIJACK)
    plain = subprocess.run(
        [sys.executable, "-P", "-c", "import model"],
        env=environment(PYTHONPATH=str(elsewhere)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "hijacked" in plain.stderr, "the trap works"
    process = run(taken, "-m", "runner.job", path=[elsewhere])
    assert "hijacked" not in process.stderr
    assert "not enough values to unpack" in process.stderr or process.returncode, "runner.job was started"
    assert str(taken / "runner" / "job" / "__main__.py") in process.stderr


def test_a_backend_of_an_entry_point_is_found_and_is_a_backend(taken, elsewhere):
    (elsewhere / "mine.py").write_text(
        "from model.attention import Backend, Launches\n"
        "backend = Backend('a foreign one', lambda case: [], None, Launches())\n"
    )
    info = elsewhere / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[assay.attention]\nmine = mine:backend\n")
    assert probe(taken, elsewhere)["foreign"] == "a foreign one"


# Stands in for run_in_job of a snapshot of any version.
JOB = """\
def run_in_job(run_folders, attempts):
    print(__file__, run_folders, attempts)
"""


@pytest.fixture
def queued(tmp_path):
    """A study with a snapshot, and what a Slurm job of it prints: a function of the snapshot's hash and more."""
    code = Path(start.__file__).read_bytes()
    files = {f"{name}/__init__.py": b"" for name in start.PACKAGES}
    home = snapshot.place(
        files | {"runner/start.py": code, "runner/slurm.py": JOB.encode()}, tmp_path / "study"
    )

    def enter():
        study, text = str(tmp_path / "study"), snapshot.source_text("runner/slurm.py")
        command = [
            sys.executable,
            "-P",
            "-u",
            "-c",
            text,
            study,
            str(home),
            snapshot.source_text("runner/start.py"),
        ]
        return subprocess.run([*command, "a1/2", "b2/3"], capture_output=True, text=True, check=False)

    return home, enter


def test_a_slurm_job_runs_the_attempts_on_its_command_line_with_the_code_of_its_snapshot(queued):
    home, enter = queued
    study = home.parent.parent
    line = f"{home}/runner/slurm.py {[f'{study}/a1', f'{study}/b2']} [2, 3]\n"
    assert enter().stdout == line


def edit(home):
    """As a neighbour would who can write: with a start.py that no longer checks anything."""
    (home / "runner" / "start.py").write_text("def read(home): pass\ndigest = install = read\n")


@pytest.mark.fault
@pytest.mark.parametrize(
    ("attack", "message"),
    [
        (edit, "was edited"),
        (lambda home: (home / "runner" / "slurm.py").write_text("print('planted')"), "was edited"),
        (lambda home: (home / "model" / "planted.py").write_text(""), "was edited"),
        (lambda home: home.rename(home.with_name("away")), "is missing"),
    ],
)
def test_a_slurm_job_runs_nothing_of_a_snapshot_that_others_changed(queued, attack, message):
    home, enter = queued
    attack(home)
    process = enter()
    assert process.returncode == 1
    assert message in process.stderr
    assert "Traceback" not in process.stderr
    assert process.stdout == "", "nothing ran"


# Replaces the snapshot of this process once it runs, and then does what a job does late in its life.
LATE = """\
import inspect, json, subprocess, sys
from pathlib import Path
import runner
from runner.state.code import snapshot
home = Path(runner.__file__).parents[1]
home.rename(home.with_name("away"))
for name in ("analysis", "model", "runner"):
    for file in (home.with_name("away") / name).rglob("*.py"):
        planted = home / file.relative_to(home.with_name("away"))
        planted.parent.mkdir(parents=True, exist_ok=True)
        planted.write_text("raise SystemExit('planted')")
for name in ("sitecustomize", "torch"):
    (home / f"{name}.py").write_text("raise SystemExit('planted')")
from runner.state import process
import model.record.units
child = [sys.executable, *snapshot.own_options(), "-m", "runner.job"]
print(json.dumps({
    "source": inspect.getsource(model.record.units.counted),
    "child": subprocess.run(child, capture_output=True, text=True, cwd=home).stderr,
    "other": subprocess.run([sys.executable, "-m", "torch"], capture_output=True, text=True, cwd=home).stderr,
}))
"""


@pytest.mark.fault
def test_a_process_runs_only_what_it_has_checked_when_its_snapshot_is_replaced_later(taken, elsewhere):
    (elsewhere / "late.py").write_text(LATE)
    command = [sys.executable, *snapshot.options(taken.parent.parent, taken.name), "-m", "late"]
    process = subprocess.run(
        command, env=environment(PYTHONPATH=str(elsewhere)), capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    report = json.loads(process.stdout)
    assert "def counted" in report["source"], "what Triton would compile"
    assert f"the code snapshot {taken} was edited" in report["child"]
    assert "planted" not in report["other"]
    direct = subprocess.run(
        [sys.executable, str(taken / "runner" / "start.py")], capture_output=True, text=True, check=False
    )
    assert direct.stderr == "planted\n", "the trap works"


@pytest.mark.refused
@pytest.mark.parametrize("code", ["../../../tmp/evil", "/tmp/evil", "", "0" * 63, "0" * 64 + "\n"])
def test_a_record_cannot_lead_to_code_elsewhere(tmp_path, code):
    with pytest.raises(UserError, match="not the hash of a snapshot"):
        snapshot.options(tmp_path, code)


def test_a_job_starts_by_names_that_snapshots_of_other_versions_know():
    from inspect import signature

    from runner.slurm import run_in_job

    assert list(signature(run_in_job).parameters) == ["run_folders", "attempts"]
    assert (Path(start.__file__).parent / "job" / "__main__.py").is_file(), "python -m runner.job"
    assert all(callable(getattr(start, name)) for name in ("read", "digest", "install"))


@pytest.mark.fault
def test_an_edited_snapshot_is_refused_by_the_launcher_and_by_the_job(taken, elsewhere):
    (taken / "numpy.py").touch()
    process = run(taken, "-m", "probe", path=[elsewhere])
    assert process.returncode == 1
    assert "was edited after it was taken" in process.stderr
    for check in (
        lambda: snapshot.verify(taken),
        lambda: snapshot.place(snapshot.sources(), taken.parent.parent),
    ):
        with pytest.raises(UserError, match="was edited after it was taken: remove that folder"):
            check()


@pytest.mark.fault
def test_a_module_that_the_snapshot_lacks_is_not_taken_from_elsewhere(tmp_path):
    code = (Path(start.__file__)).read_bytes()
    files = {f"{name}/__init__.py": b"" for name in start.PACKAGES}
    files |= {
        "model/training/__init__.py": b"",
        "runner/start.py": code,
        "runner/x.py": b"import importlib\nimportlib.import_module('model.training.llama')\n",
    }
    taken = snapshot.place(files, tmp_path / "study")
    assert (
        "No module named 'model.training.llama' in the code snapshot" in run(taken, "-m", "runner.x").stderr
    )


def test_the_snapshot_holds_what_the_packages_need_and_no_caches(taken):
    names = set(snapshot.sources())
    assert {
        "analysis/store/schema.sql",
        "model/attention/math.py",
        "model/attention/kernels/hopper/__init__.py",
        "runner/job/__main__.py",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert start.digest(start.read(taken)) == taken.name == snapshot.current()


@pytest.mark.fault
def test_a_snapshot_is_taken_once_also_by_many_at_once(tmp_path):
    study = tmp_path / "study"
    code = f"from pathlib import Path; from runner.state.code import snapshot; snapshot.place(snapshot.sources(), Path({str(study)!r}))"
    processes = [subprocess.Popen([sys.executable, "-P", "-c", code]) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    assert [path.name for path in (study / ".code").iterdir()] == [snapshot.current()]
    stat = (study / ".code" / snapshot.current() / "runner" / "start.py").stat()
    snapshot.place(snapshot.sources(), study)
    assert (study / ".code" / snapshot.current() / "runner" / "start.py").stat() == stat


@pytest.mark.fault
def test_a_killed_launch_leaves_no_half_snapshot(tmp_path, monkeypatch):
    calls = []

    def killed(descriptor):
        calls.append(descriptor)
        if len(calls) == 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            snapshot.place(snapshot.sources(), tmp_path / "study")
    assert not [path for path in (tmp_path / "study" / ".code").iterdir() if not path.name.startswith(".")]
    snapshot.verify(snapshot.place(snapshot.sources(), tmp_path / "study"))


@pytest.mark.fault
def test_a_snapshot_that_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match="is missing"):
        snapshot.verify(tmp_path / "0")
