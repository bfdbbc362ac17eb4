"""Jobs run the code of their launch, whatever is installed, edited, linked or on PYTHONPATH."""

import json
import os
import pickle
import subprocess
import sys
from inspect import getsourcefile
from pathlib import Path

import pytest

from model.errors import UserError
from runner import start
from runner.state.code import snapshot
from runner.state.tasks import Task
from tests.conftest import environment

PROBE = """\
import json, subprocess, sys
import analysis, model, runner
from model import attention
from model.attention import auto
child = subprocess.run([sys.executable, "-c", "import model; print(model.__file__)"], capture_output=True, text=True)
print(json.dumps({
    "files": [analysis.__file__, model.__file__, runner.__file__, auto.__file__, child.stdout.strip()],
    "foreign": attention.load("mine").summary if "mine" in attention.names() else None,
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
    return snapshot.take(tmp_path / "study")


@pytest.fixture
def elsewhere(tmp_path):
    """A folder on PYTHONPATH, with a module that says where ours come from."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "probe.py").write_text(PROBE)
    return folder


def run(taken, *arguments, path=(), flags=("-P",), **more):
    return subprocess.run(
        [sys.executable, *flags, str(taken / "runner" / "start.py"), *arguments],
        cwd=taken.parent, env=environment(PYTHONPATH=os.pathsep.join(map(str, path)), **more),
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def probe(taken, *path, flags=("-P",)):
    done = run(taken, "-m", "probe", "a", "-b", path=path, flags=flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("flags", [("-P",), ()], ids=["P", "no P"])
def test_our_packages_come_from_the_snapshot_and_the_module_runs_as_main(taken, elsewhere, flags):
    found = probe(taken, elsewhere, flags=flags)
    assert [Path(file).is_relative_to(taken) for file in found["files"]] == [True] * 5, found
    assert (found["argv"], found["main"]) == (["a", "-b"], "__main__")
    assert not list((taken / "runner").rglob("*.pyc")), "byte code is neither trusted nor collected"


def test_neither_pythonpath_nor_another_finder_comes_before_the_snapshot(taken, elsewhere):
    for name in ("analysis", "model", "runner", "evil"):
        (elsewhere / f"{name}.py").write_text("raise SystemExit('hijacked')")
    (elsewhere / "sitecustomize.py").write_text(HIJACK)
    plain = subprocess.run(
        [sys.executable, "-P", "-c", "import model"],
        env=environment(PYTHONPATH=str(elsewhere)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "hijacked" in plain.stderr, "the trap works"
    found = run(taken, "-m", "runner.job", path=[elsewhere])
    assert "hijacked" not in found.stderr
    assert "not enough values to unpack" in found.stderr or found.returncode, "runner.job was started"
    assert str(taken / "runner" / "job" / "__main__.py") in found.stderr


def test_a_backend_of_an_entry_point_is_found_and_is_a_backend(taken, elsewhere):
    (elsewhere / "mine.py").write_text(
        "from model.attention import Backend\nbackend = Backend('a foreign one', lambda case: [], None)\n"
    )
    info = elsewhere / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[assay.attention]\nmine = mine:backend\n")
    assert probe(taken, elsewhere)["foreign"] == "a foreign one"


def test_submitit_starts_a_pickled_function_from_the_snapshot(taken, tmp_path):
    from submitit.core.utils import DelayedSubmission

    folder = tmp_path / "submitit"
    folder.mkdir()
    # The pickle names runner.state.tasks.Task; what it finds there is told by the file that the class comes from.
    DelayedSubmission(getsourcefile, Task).dump(folder / "7_submitted.pkl")
    local = {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "7", "SUBMITIT_LOCAL_GLOBALID": "0",
             "SUBMITIT_LOCAL_LOCALID": "0", "SUBMITIT_LOCAL_NTASKS": "1", "SUBMITIT_LOCAL_NNODES": "1",
             "SUBMITIT_LOCAL_NODEID": "0"}  # fmt: skip
    done = run(taken, "-u", "-m", "submitit.core._submit", str(folder), **local)
    assert done.returncode == 0, done.stderr
    result = pickle.loads((folder / "7_0_result.pkl").read_bytes())
    assert result == ("success", str(taken / "runner" / "state" / "tasks.py"))


def test_a_job_starts_by_a_name_that_snapshots_of_other_versions_know():
    from inspect import signature

    from runner.execute.slurm.submit import run_in_job

    assert (run_in_job.__module__, run_in_job.__qualname__) == ("runner.slurm", "run_in_job")
    assert list(signature(run_in_job).parameters) == ["run_folders", "attempts"]
    assert (Path(start.__file__).parent / "job" / "__main__.py").is_file(), "python -m runner.job"


def test_an_edited_snapshot_is_refused_by_the_launcher_and_by_the_job(taken, elsewhere):
    (taken / "numpy.py").touch()
    done = run(taken, "-m", "probe", path=[elsewhere])
    assert done.returncode == 1
    assert "was edited after it was taken" in done.stderr
    for again in (lambda: snapshot.verify(taken), lambda: snapshot.take(taken.parent.parent)):
        with pytest.raises(UserError, match="was edited after it was taken: remove that folder"):
            again()


def test_a_module_that_the_snapshot_lacks_is_not_taken_from_elsewhere(tmp_path):
    code = (Path(start.__file__)).read_bytes()
    files = {f"{name}/__init__.py": b"" for name in start.PACKAGES}
    files |= {
        "runner/start.py": code,
        "runner/x.py": b"import importlib\nimportlib.import_module('model.llama')\n",
    }
    taken = snapshot.place(files, tmp_path / "study")
    assert "No module named 'model.llama' in the code snapshot" in run(taken, "-m", "runner.x").stderr


def test_the_snapshot_holds_what_the_packages_need_and_no_caches(taken):
    names = set(snapshot.sources())
    assert {
        "analysis/store/schema.sql",
        "model/attention/math.py",
        "model/kernels/hopper.py",
        "runner/job/__main__.py",
    } <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    assert start.digest(start.read(taken)) == taken.name == snapshot.current()


def test_a_snapshot_is_taken_once_also_by_many_at_once(tmp_path):
    study = tmp_path / "study"
    code = f"from pathlib import Path; from runner.state.code import snapshot; snapshot.take(Path({str(study)!r}))"
    many = [subprocess.Popen([sys.executable, "-P", "-c", code]) for _ in range(4)]
    assert [process.wait() for process in many] == [0] * 4
    assert [path.name for path in (study / ".code").iterdir()] == [snapshot.current()]
    before = (study / ".code" / snapshot.current() / "runner" / "start.py").stat()
    snapshot.take(study)
    assert (study / ".code" / snapshot.current() / "runner" / "start.py").stat() == before


def test_a_killed_launch_leaves_no_half_snapshot(tmp_path, monkeypatch):
    calls = []

    def killed(descriptor):
        calls.append(descriptor)
        if len(calls) == 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            snapshot.take(tmp_path / "study")
    assert not [path for path in (tmp_path / "study" / ".code").iterdir() if not path.name.startswith(".")]
    snapshot.verify(snapshot.take(tmp_path / "study"))


def test_a_snapshot_that_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match="is missing"):
        snapshot.verify(tmp_path / "0")
