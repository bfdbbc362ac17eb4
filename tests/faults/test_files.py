"""Each file that is written meets a full or read-only disk, and each that is read is damaged: nothing is lost."""

import hashlib
import json
import os
import shutil
import subprocess

import pytest

from model.record.folder import RunFolder
from runner.execute.reconcile import reconciled
from tests.conftest import PATIENCE_SECONDS, REPOSITORY, TINY, environment
from tests.slurm.test_cluster import SANDBOX

SITE = REPOSITORY / "tests" / "faults" / "site"
PAIR = "matrix: {seed: [0, 1]}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory, corpus, forks):
    """A workspace with a study of two completed runs."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "text.parquet").symlink_to(corpus)
    (folder / "before.yaml").write_text(TINY + PAIR)
    command = ["runner", "--root", str(folder / "runs"), "launch", "before.yaml"]
    process = forks.run(command, folder, environment(STAND_IN_TRAINER="1"), PATIENCE_SECONDS)
    assert process.returncode == 0, process.stderr
    return folder / "runs"


def contents(folder):
    """The hash of each file."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class Disk:
    """A root on a small filesystem of its own, with a study from before on it."""

    def __init__(self, root):
        self.root = root

    def env(self, file, kind):
        return {"PYTHONPATH": str(SITE), "FAULT_FILE": file, "FAULT_ROOT": str(self.root), "FAULT": kind}

    @property
    def struck(self):
        return self.root.with_name(f"{self.root.name}.struck").exists()

    def mend(self):
        (self.root / "ballast").unlink() if (self.root / "ballast").exists() else subprocess.run(
            ["umount", self.root], check=True
        )


@pytest.fixture
def disk(root, made):
    if os.geteuid():
        pytest.skip("mounting needs root")
    root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", root], check=True)
    shutil.copytree(made / "before", root / "before")
    yield Disk(root)
    while subprocess.run(["umount", "-l", root], check=False, capture_output=True).returncode == 0:
        pass


def completed(root):
    """How often each run has completed."""
    results = [json.loads(path.read_text()) for path in root.glob("tiny/*/attempt-*/result.json")]
    return sorted(
        sum(result["run_id"] == path.name and result["outcome"] == "completed" for result in results)
        for path in {path.parent for path in root.glob("tiny/*/run.json")}
    )


HERE = {
    "lock": r"tiny/\.lock",
    "snapshot": r"\.code/.*job/attempt\.py",
    "provenance": r"\.provenance/",
    "run.json": r"tiny/\w+/\.run\.json",
    "budget": r"tiny/budget\.jsonl",
    "claim": r"tiny/\w+/\.attempt-1[^/]+/\.claim\.json",
    "ledger": r"tiny/\w+/ledger\.jsonl",
    "log": r"attempt-1/stderr\.log",
    "manifest.json": r"attempt-1/\.manifest\.json",
    "steps.jsonl": r"attempt-1/steps\.jsonl",
    "checkpoint": r"attempt-1/checkpoint\.part/",
    "result.json": r"attempt-1/\.result\.json",
}
QUEUE = {
    "submitit's folder": r"tiny/\.submitit/",
    "script": r"tiny/\.submitit/.*\.sh",
    "intent": r"tiny/\w+/ledger\.jsonl",
}


@pytest.mark.parametrize("kind", ["full", "read-only"])
@pytest.mark.parametrize("file", HERE)
def test_whatever_file_cannot_be_written_the_launch_says_so_and_the_next_one_completes_each_run_once(
    runner, study, disk, root, rows, tmp_path, file, kind
):
    (profile := tmp_path / "here.yaml").write_text(
        'executor: local\ncheckpoint_every: "0:00:01"\ntime_limit: "0:10:00"\nbudget: {gpu_hours: 1}\n'
    )
    files = contents(root / "before")
    steps = 2000 if file == "checkpoint" else 6
    others = [5] if kind == "full" else []  # a later run meets the full disk, too
    path = study(f"order: as written\nmatrix: {{train.steps: {[steps, *others]}}}\n")
    arguments = ["launch", path, "--profile", profile, "--set", "train.log_every=100"]
    failed = runner(*arguments, **disk.env(HERE[file], kind))
    assert disk.struck
    assert failed.returncode in (1, 2), failed.stderr
    assert "No space left" in failed.stderr or "Read-only" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "Traceback" not in runner("status").stderr
    disk.mend()
    runner(*arguments, rc=0)
    assert [row["outcome"] for row in rows() if row["study"] == "tiny"] == ["completed"] * (1 + len(others))
    assert completed(root) == [1] * (1 + len(others))
    assert contents(root / "before") == files


@pytest.mark.slurm
@pytest.mark.parametrize("kind", ["full", "read-only"])
@pytest.mark.parametrize("file", QUEUE)
def test_whatever_file_cannot_be_written_around_sbatch_no_run_is_lost_or_submitted_twice(
    slurm, study, disk, root, rows, file, kind
):
    files = contents(root / "before")
    path = study(PAIR)
    failed = slurm("launch", path, "--profile", SANDBOX, **disk.env(QUEUE[file], kind))
    assert disk.struck
    assert failed.returncode in (2, 3), failed.stderr
    assert "Traceback" not in failed.stderr
    disk.mend()
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    assert [row["outcome"] for row in rows() if row["study"] == "tiny"] == ["completed"] * 2
    assert completed(root) == [1, 1]
    assert contents(root / "before") == files


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_database_that_cannot_be_written_leaves_the_one_before(runner, disk, root, kind):
    runner("collect", rc=0)
    files = contents(root)
    (run,) = list(root.glob("before/[0-9a-f]*"))[:1]
    shutil.copytree(run, root / "other" / run.name)
    failed = runner("collect", rc=2, **disk.env(r"results\.duckdb", kind))
    assert disk.struck
    assert "No space left" in failed.stderr or "Read-only" in failed.stderr
    assert "Traceback" not in failed.stderr
    answer = runner("sql", "select count(*) as n from runs", "--format", "json", rc=0)
    assert json.loads(answer.stdout) == [{"n": 2}], "the database from before can be asked"
    disk.mend()
    assert contents(root).items() >= files.items()
    runner("collect", rc=0)


HALF, MIDDLE, END, ZEROS, GARBAGE = "half", "middle", "end", "zeros", "garbage"
DAMAGE = {
    HALF: lambda content: content[: len(content) // 2],
    MIDDLE: lambda content: content[: len(content) // 2] + content[len(content) // 2 + 40 :],
    END: lambda content: content[:-20],
    ZEROS: lambda content: content[:-40] + b"\0" * 40 + b"\n",
    GARBAGE: lambda content: b"{]\n" + content,
}


@pytest.mark.parametrize(
    ("name", "damage", "visible", "quarantined"),
    [
        ("run.json", HALF, False, True),
        ("ledger.jsonl", END, True, False),
        ("ledger.jsonl", GARBAGE, False, True),
        ("attempt-1/steps.jsonl", END, True, False),
        ("attempt-1/steps.jsonl", MIDDLE, True, True),
        ("attempt-1/steps.jsonl", ZEROS, True, True),
        ("attempt-1/manifest.json", HALF, True, True),
        ("attempt-1/result.json", HALF, False, True),
    ],
)
def test_a_damaged_file_is_named_hides_no_other_run_and_starts_nothing_again(
    runner, study, made, root, name, damage, visible, quarantined
):
    shutil.copytree(made, root)
    path = study(PAIR, "before")
    run = next(root.glob("before/[0-9a-f]*"))
    content = (run / name).read_bytes()
    (run / name).write_bytes(DAMAGE[damage](content))
    status = runner("status", "--json", rc=0)
    assert len(json.loads(status.stdout)) == 1 + visible
    assert visible or str(run / name) in status.stderr, "what is left out is said"
    launch = runner("launch", path, rc=0 if visible else 2)
    assert visible or str(run / name) in launch.stderr
    explanation = runner("explain", run.name)
    assert explanation.returncode in (0, 2)
    runner("collect", rc=0)
    query = "select path from quarantine"
    refused = json.loads(runner("sql", query, "--format", "json", rc=0).stdout)
    assert [row["path"] for row in refused] == [f"before/{run.name}/{name}"] * quarantined
    for process in (status, launch, explanation):
        assert "Traceback" not in process.stderr
    assert len(list(root.glob("before/*/attempt-*"))) == 2
    (run / name).write_bytes(content)
    runner("launch", path, rc=0)
    assert len(list(root.glob("before/*/attempt-*"))) == 2


def test_wherever_a_ledger_is_cut_its_run_has_an_outcome_and_its_next_lines_are_read(made, root):
    """Of a run that its launcher saw fail; where the launcher's word is cut off it is lost."""
    shutil.copytree(made, root)
    run = RunFolder(next(root.glob("before/[0-9a-f]*")))
    (run.attempt(1).path / "result.json").unlink()
    reconciled(root)
    content = (run.path / "ledger.jsonl").read_bytes()
    assert [event.event for event in run.ledger] == ["claimed", "ended"]
    for length in range(0, len(content), 7):
        (run.path / "ledger.jsonl").write_bytes(content[:length])
        outcomes = {state.run.run_id: state.outcome for state in reconciled(root)}
        assert outcomes[run.path.name] == "lost"
        assert run.ledger[-1].event == "ended"
