"""Two users of one group share a project folder as centres make them, on a real cluster.

One of them may replace what the other has there, at any time. No code of theirs runs as the other.
"""

import contextlib
import json
import os
import pickle
import pwd
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import psutil
import pydantic
import pytest

from runner.start import digest
from tests.conftest import PATIENCE_SECONDS, REPOSITORY, TINY, environment, started_cluster, until
from tests.slurm.test_cluster import SANDBOX

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.fault,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("setpriv"), reason="becoming two users needs root and setpriv"
    ),
]
OWNER, NEIGHBOUR = "games", "man"  # Slurm knows only users that the system has
GROUP = 54300


def python():
    """A Python of this version that every user can start, and so that Slurm can start for them."""
    own = Path(sys.executable)
    places = (own, *own.parents, own.resolve(), *own.resolve().parents)
    if all(place.stat().st_mode & 0o001 for place in places):
        return str(own)
    if (other := shutil.which(f"python{sysconfig.get_python_version()}", path="/usr/bin:/bin")) is None:
        pytest.skip(f"other users cannot start {own}")
    return other


@pytest.fixture(scope="module")
def open_cluster():
    """A cluster that all users reach."""
    with tempfile.TemporaryDirectory(prefix="assay-slurm-") as name:
        Path(name).chmod(0o755)
        with started_cluster(Path(name)) as reach:
            yield reach


class User:
    """A user of the project, with a home of their own and the umask that the centre sets."""

    def __init__(self, name, folder, corpus, reach):
        self.name, self.reach = name, reach
        self.home, self.project = folder / name, folder / "project"
        self.home.mkdir()
        shutil.copy(corpus, self.home / "text.parquet")
        places = [REPOSITORY / "tests" / "faults" / "site", Path(pydantic.__file__).parents[1]]
        packages = os.pathsep.join(map(str, places))
        profile = SANDBOX.read_text().replace("env: {", f'env: {{PYTHONPATH: "{packages}", ')
        (self.home / "p.yaml").write_text(f"{profile}python: {python()}\n")
        (self.home / ".profile").write_text("umask 007\n")
        for path in (self.home, *self.home.iterdir()):
            os.chown(path, pwd.getpwnam(name).pw_uid, GROUP)
        self.home.chmod(0o700)

    def does(self, *command, rc=0, reads=()):
        env = {"HOME": str(self.home), "RUNNER_STATE": f"{self.home}/state"}
        env |= {"RUNNER_CERTIFICATES": f"{self.home}/certificates", "PACE_SECONDS": "0.1", **self.reach}
        process = subprocess.run(
            ["setpriv", "--reuid", self.name, "--regid", str(GROUP), "--clear-groups", *reads,
             "sh", "-c", 'umask 007; exec "$@"', "sh", *map(str, command)],
            cwd=self.home, env=environment(**env), capture_output=True, text=True, timeout=PATIENCE_SECONDS,
            check=False,
        )  # fmt: skip
        logs = "\n".join(path.read_text() for path in self.project.rglob("*_log.*"))
        assert rc is None or process.returncode == rc, f"{process.stdout}\n{process.stderr}\n{logs}"
        return process

    def runner(self, root, *arguments, rc=0):
        """The command line. Its Python may be root's, and so it may read everything."""
        reads = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        return self.does(sys.executable, "-P", "-m", "runner", "--root", root, *arguments, rc=rc, reads=reads)

    def launch(self, root, study="tiny", *options, matrix="matrix: {seed: [0]}\n", rc=0):
        path = self.home / f"{study}.yaml"
        path.write_text(TINY + matrix)
        return self.runner(root, "launch", path, "--profile", self.home / "p.yaml", *options, rc=rc)


@pytest.fixture
def users(corpus, open_cluster):
    """Two users, and a project folder of theirs as CSC, NCI and SURF make them: nobody's own, and all may write."""
    with tempfile.TemporaryDirectory(prefix="assay-project-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "project").mkdir()
        os.chown(folder / "project", 0, GROUP)
        (folder / "project").chmod(0o2770)
        yield [User(name, folder, corpus, open_cluster) for name in (OWNER, NEIGHBOUR)]


@pytest.mark.parametrize("sticky", [False, True], ids=["as created", "sticky"])
def test_two_users_work_in_a_project_folder_and_in_one_root_and_read_the_results_of_both(users, sticky):
    owner, neighbour = users
    owner.does("mkdir", root := owner.project / "runs")
    assert root.stat().st_mode & 0o7777 == 0o2770, "as the centre's umask has it"
    if sticky:
        owner.does("chmod", "+t", root)
    place = owner.project if sticky else root
    for user, study in ((owner, "first"), (neighbour, "second")):
        process = user.launch(root, study, "--wait")
        assert process.stderr.count(f"group {GROUP} can write to {place} and replace {root}/{study}: ") == 1
        assert (root / study).stat().st_mode & 0o022 == 0
        # Under the sticky bit nobody can replace the database of who was first.
        user.runner(root, "collect", rc=2 if sticky and user is neighbour else 0)
    owner.runner(root, "collect")
    for user, others in ((owner, "second"), (neighbour, "first")):
        rows = json.loads(user.runner(root, "sql", "from runs", "--format", "json").stdout)
        assert {row["study"]: row["outcome"] for row in rows} == {"first": "completed", "second": "completed"}
        user.runner(root, "report", others, "--out", user.home / others)
    refused = neighbour.launch(root, "first", matrix="matrix: {seed: [1]}\n", rc=2)
    assert "give this one another `name:`, or use another --root" in refused.stderr


MODULES = ("sitecustomize", "usercustomize", "torch", "pydantic")  # which Python may import from anywhere


class Attack:
    """What the neighbour does with the owner's folder: all of it is replaced, and what is planted leaves a mark.

    Attributes:
        mark: a file that only the owner can create.
        study: the owner's study; while it is replaced, the one that takes its place.
    """

    def __init__(self, owner, neighbour):
        self.owner, self.neighbour = owner, neighbour
        self.mark = owner.home / "mark"
        self.code = f"import pathlib; pathlib.Path({str(self.mark)!r}).touch()\n"
        self.folder = owner.project / owner.name
        self.away = owner.project / "away"
        self.study = self.folder / "runs" / "tiny"

    @property
    def home(self):
        """The snapshot that the job's script names."""
        return self.study / ".code" / self.hash

    @contextlib.contextmanager
    def as_neighbour(self):
        """This process has the neighbour's rights."""
        os.setgroups([])
        os.setegid(GROUP)
        os.seteuid(pwd.getpwnam(self.neighbour.name).pw_uid)
        mask = os.umask(0)  # the owner's jobs may write to what is planted
        try:
            yield
        finally:
            os.umask(mask)
            os.seteuid(0)
            os.setegid(0)

    def replace(self, plant):
        """Put a copy of what can be read in the folder's place, with more that is planted in it."""
        copy, study = self.owner.project / "copy", self.study
        (self.hash,) = (path.name for path in study.glob(".code/[!.]*"))
        with self.as_neighbour():
            for parent, _, names in os.walk(self.folder):
                (target := copy / Path(parent).relative_to(self.folder)).mkdir()
                for name in names:
                    with contextlib.suppress(PermissionError):
                        (target / name).write_bytes((Path(parent) / name).read_bytes())
            self.study = copy / "runs" / "tiny"
            (self.study / ".submitit").mkdir()  # which is closed, so that it was not copied
            for place in (self.study, *self.study.glob("*/attempt-*"), self.home):
                for name in MODULES:
                    (place / f"{name}.py").write_text(self.code)
            plant(self)
            self.folder.rename(self.away)
            copy.rename(self.folder)
            self.study = study

    def failed(self):
        """Check that nothing has left its mark, although it would: the owner runs it by hand."""
        assert not self.mark.exists()
        with self.as_neighbour():
            other_code(self)
        self.owner.does(python(), self.home / "runner" / "start.py")
        assert self.mark.exists(), "the trap works"


def other_code(attack):
    """Other code in the snapshot that the job's script names."""
    for file in attack.home.rglob("*.py"):
        file.write_text(attack.code)


def whole_snapshot(attack):
    """The snapshot is as it was, but a module that others of its names would import is not."""
    for name in MODULES:
        (attack.home / f"{name}.py").unlink()


def other_record(attack):
    """Records that name other code, for which there is a snapshot."""
    whole_snapshot(attack)
    files = {
        name: attack.code.encode() for name in ("runner/start.py", "runner/__init__.py", "model/__init__.py")
    }
    planted = attack.study / ".code" / digest(files)
    for name, content in files.items():
        (planted / name).parent.mkdir(parents=True, exist_ok=True)
        (planted / name).write_bytes(content)
    for path in attack.study.glob("*/run.json"):
        record = json.loads(path.read_text())
        record["provenance"]["code"] = planted.name
        path.write_text(json.dumps(record))


def other_checkpoint(attack):
    """A checkpoint that leaves a mark if it is unpickled."""
    whole_snapshot(attack)

    class Mark:
        def __reduce__(self):
            return (exec, (attack.code,))

    for attempt in attack.study.glob("*/attempt-*"):
        (attempt / "checkpoint").mkdir(exist_ok=True)
        for name in ("state.safetensors", "rank-0.safetensors", "meta.json", "state.pt"):
            (attempt / "checkpoint" / name).write_bytes(pickle.dumps(Mark()))


def links_to_the_record(attack):
    """The owner's own run, in a study of the neighbour's."""
    whole_snapshot(attack)
    for run in attack.study.glob("[0-9a-f]*"):
        shutil.rmtree(run)
        run.symlink_to(attack.away / "runs" / "tiny" / run.name)


def links_to_a_start_file(attack):
    """All logs lead to a file that the owner's shell reads at its start, and a program has a message's first word."""
    whole_snapshot(attack)
    job = attack.job
    logs = [attack.study / ".submitit" / f"{job}_0_log.{end}" for end in ("out", "err")]
    logs += [
        log for path in attack.study.glob("*/attempt-*") for log in (path / "stdout.log", path / "stderr.log")
    ]
    for log in logs:
        log.unlink(missing_ok=True)
        log.symlink_to(attack.owner.home / ".profile")


def queued(owner, *states):
    """The ids of the owner's jobs that have not ended."""
    command = ["squeue", "-h", "-u", owner.name, "-o", "%A", *states]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def slurm(*command):
    subprocess.run(["scontrol", *command], check=True, capture_output=True)


@pytest.fixture
def nodes(open_cluster):
    """Has all nodes take no more jobs (DRAIN), or take them again (RESUME)."""

    def become(state):
        slurm("update", "NodeName=n[1-4]", f"State={state}", "Reason=test")

    yield become
    with contextlib.suppress(subprocess.CalledProcessError):  # they are there already
        become("RESUME")


def answer(attack):
    """What the jobs printed where Slurm has put it."""
    return "\n".join(path.read_text() for path in attack.study.glob(".submitit/*_log.*"))


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        (other_code, "was edited after it was taken"),
        (other_record, f"refused: .* belongs to {NEIGHBOUR}"),
        (other_checkpoint, f"refused: .* belongs to {NEIGHBOUR}"),
        (links_to_the_record, f"refused: .* belongs to {NEIGHBOUR}"),
        (links_to_a_start_file, ""),
    ],
)
def test_a_job_that_waits_runs_nothing_that_was_planted_in_its_folders_place(users, nodes, plant, message):
    attack = Attack(*users)
    owner = attack.owner
    nodes("DRAIN")
    owner.launch(attack.folder / "runs")
    (attack.job,) = queued(owner)
    attack.replace(plant)
    nodes("RESUME")
    until(lambda: not queued(owner))
    owner.does("sh", "-c", ". ~/.profile", rc=None)
    attack.failed()
    assert re.search(message, answer(attack)), answer(attack)
    assert not list(attack.folder.glob("runs/tiny/*/attempt-*/result.json"))


@pytest.mark.parametrize("plant", [other_code, other_record, other_checkpoint])
def test_a_job_that_is_requeued_runs_nothing_that_was_planted_since_its_start(users, nodes, plant):
    attack = Attack(*users)
    owner = attack.owner
    owner.launch(attack.folder / "runs", matrix="matrix: {train.steps: [1000000]}\n")
    until(lambda: list(attack.study.glob("*/attempt-1/steps.jsonl")))
    (job,) = queued(owner)
    nodes("DRAIN")
    slurm("requeue", job)
    until(lambda: queued(owner, "-t", "PENDING"))
    attack.replace(plant)
    nodes("RESUME")
    until(lambda: not queued(owner))
    attack.failed()
    assert "refused: " in answer(attack) or "was edited" in answer(attack), answer(attack)


def next_job(attack):
    """What a run writes to have its batch script go on in a next job, and add a line to its ledger."""
    request = attack.study / ".submitit" / f"{attack.job}_next.0"
    start_file = attack.owner.home / ".profile"
    lines = [f"{event}\t{start_file}\ttouch {attack.mark}\n" for event in ("submitted", "released")]
    request.write_text("".join(lines))


@pytest.mark.parametrize("plant", [other_code, next_job])
def test_a_job_that_runs_runs_nothing_that_is_planted_under_it(users, plant):
    attack = Attack(*users)
    owner = attack.owner
    with (owner.home / "p.yaml").open("a") as profile:
        profile.write("requeue: false\n")  # so that the job's script goes on in another
    owner.launch(attack.folder / "runs", matrix="matrix: {train.steps: [1000000]}\n")
    until(lambda: list(attack.study.glob("*/attempt-1/steps.jsonl")))
    (attack.job,) = queued(owner)
    (manifest,) = attack.study.glob("*/attempt-1/manifest.json")
    run = psutil.Process(json.loads(manifest.read_text())["pid"])
    attack.replace(plant)
    with contextlib.suppress(psutil.NoSuchProcess):  # it may have failed, as its files are gone
        run.kill()
    until(lambda: not queued(owner))
    owner.does("sh", "-c", ". ~/.profile", rc=None)
    attack.failed()
