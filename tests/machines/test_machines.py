"""The small demo, sql, report, audit and doctor work on machines unlike the one that they were written on.

A machine is a line of shell that a command is run under: cores as programs see them, limits, missing places.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.fabricate import completed
from tests.conftest import PATIENCE_SECONDS, REPOSITORY, environment

SMALL = (
    "title: Small\nbase:\n  device: cpu\n"
    "  model: {dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn_dim: 128, vocab_size: 512}\n"
    "  data: {path: text.parquet, mode: pack}\n"
    "  train: {steps: 2, sequence_length: 64, batch_size: 1, warmup_steps: 1, dtype: float32, log_every: 1}\n"
    "matrix: {attention: [auto, math, cudnn]}\n"
    "rules:\n"
    "  - where: {attention: math}\n"
    "    set: {train.sequence_length: 16384}\n"
    "    expect: oom_host\n"
    "  - {where: {attention: cudnn}, expect: unsupported}\n"
)
PROFILE = "executor: local\nscale: full\nmemory: 2GiB\ncpus: 8\n"

SEES = 'export FAKE_CPUS={} LD_PRELOAD="$CORES"; '  # DuckDB and torch start as many threads as they want for them
NO_HOME = "unset HOME XDG_CACHE_HOME XDG_CONFIG_HOME XDG_STATE_HOME; "
NO_SHM = 'exec unshare -m sh -c \'mount -t tmpfs -o ro,size=4k none /dev/shm; exec "$@"\' sh "$@"'
RUN = 'exec "$@"'
# Things that are strange about a machine, a few at once where one hides no fault of the other.
MACHINES = {
    "1 core, no HOME": SEES.format(1) + NO_HOME + RUN,
    "32 cores, no /dev/shm, a home that cannot be written": SEES.format(32) + "export HOME=/proc; " + NO_SHM,
    "64 cores, 100 open files, 2000 processes": SEES.format(64) + "ulimit -n 100 -u 2000; " + RUN,
    "256 cores, stacks without a limit": SEES.format(256) + "ulimit -s unlimited; " + RUN,
    "2 GiB, 64 threads of 256 MiB": 'echo $$ >"$GROUP/cgroup.procs"; ulimit -s 262144; '
    "export OMP_NUM_THREADS=64 OPENBLAS_NUM_THREADS=64; " + RUN,
}


# Those that are short of something other than cores: there a run outgrows its memory, and the report is made twice.
SHORT = ("64 cores, 100 open files, 2000 processes", "2 GiB, 64 threads of 256 MiB")
# What `runner doctor` says of some of them.
DOCTOR = {
    "1 core, no HOME": "cpus: 1",
    "64 cores, 100 open files, 2000 processes": "limits: `ulimit -n` is 100; 256 are safe",
    "32 cores, no /dev/shm, a home that cannot be written": "shared memory: /dev/shm is missing or read-only",
    "2 GiB, 64 threads of 256 MiB": "can be used in this control group",
}


@pytest.fixture(scope="session")
def cores(tmp_path_factory):
    """The library that makes programs see another number of cores."""
    if not (compiler := shutil.which("gcc")):
        pytest.skip("needs gcc")
    library = tmp_path_factory.mktemp("cores") / "cores.so"
    source = Path(__file__).with_name("cores.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def group():
    """A control group of 2 GiB."""
    folder = Path(f"/sys/fs/cgroup/memory/assay-machine-{os.getpid()}")
    if not os.access(folder.parent, os.W_OK):
        pytest.skip("needs root, and memory control groups of version 1")
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(2**31))
    yield folder
    folder.rmdir()


@pytest.fixture
def small(tmp_path, corpus):
    """The small demo and its profile; returns their folder."""
    (tmp_path / "text.parquet").symlink_to(corpus)
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "here.yaml").write_text(PROFILE)
    return tmp_path


@pytest.fixture
def on(small):
    """Run the command line on a machine; returns what it prints, of a refusal the reasons."""

    def call(machine, *arguments, rc=0, **env):
        variables = {**environment(OMP_WAIT_POLICY="passive", KMP_BLOCKTIME="0"), **env}
        command = ["bash", "-c", machine, "bash", sys.executable, "-P", "-m", "runner", *map(str, arguments)]
        process = subprocess.run(
            command,
            cwd=small,
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert process.returncode == rc, (
            f"{arguments}: exit code {process.returncode}\n{process.stdout}\n{process.stderr}"
        )
        assert "Traceback" not in process.stderr, process.stderr
        return process.stderr if rc else process.stdout

    return call


@pytest.mark.trains
@pytest.mark.parametrize("name", MACHINES)
def test_the_small_demo_works_on_a_strange_machine(request, on, small, name):
    machine, env = MACHINES[name], {}
    if "$CORES" in machine:
        env["CORES"] = str(request.getfixturevalue("cores"))
    if "$GROUP" in machine:
        env["GROUP"] = str(request.getfixturevalue("group"))
    if "unshare" in machine and os.geteuid():
        pytest.skip("mounting needs root")
    launch_and_read(on, machine, env, outgrows=name in SHORT)
    on(machine, "report", "small", "--out", "pages", **env)
    if name in SHORT:
        on(machine, "audit", "pages", **env)
    checks = {check["what"]: check["found"] for check in json.loads(on(machine, "doctor", "--json", **env))}
    assert DOCTOR.get(name, "") in "\n".join(f"{what}: {finding}" for what, finding in checks.items())


@pytest.mark.trains
def test_where_little_may_be_mapped_all_works_but_figures_and_these_say_what_to_type(on):
    machine = "ulimit -v 8000000; " + RUN
    launch_and_read(on, machine, {}, outgrows=True)
    message = on(machine, "report", "small", "--out", "pages", rc=2)
    assert "but `ulimit -v` allows 7.6 GiB to be mapped: run `ulimit -v unlimited` first" in message
    on(RUN, "report", "small", "--out", "pages")
    for short, advice in (
        (machine, "run `ulimit -v unlimited` first"),
        ("ulimit -f 100; " + RUN, "raise `ulimit -f`"),
    ):
        message = on(short, "audit", "pages", rc=2)
        assert "could not be audited" in message and advice in message, "the report has no fault"
    checks = {check["what"]: check for check in json.loads(on(machine, "doctor", "--json"))}
    assert not checks["figures"]["works"] and "`ulimit -v` allows" in checks["limits"]["found"]


def launch_and_read(on, machine, env, outgrows):
    runs = "auto,cudnn,math" if outgrows else "auto,cudnn"
    on(machine, "launch", "small.yaml", "--profile", "here.yaml", "--only", f"attention={runs}", **env)
    on(machine, "collect", **env)
    query = "select label, outcome, reason from runs order by label"
    rows = json.loads(on(machine, "sql", query, "--format", "json", **env))
    assert [row["outcome"] for row in rows] == ["completed", "unsupported", "oom_host"][: 2 + outgrows]
    if outgrows:
        assert "in use (`memory` of profile here)" in rows[2]["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_root_on_a_full_disk_is_read_and_a_launch_to_it_is_refused(on, small):
    completed(small / "runs", "r1", study="other")
    (small / "full").mkdir()
    full = (
        "exec unshare -m sh -c 'mount -t tmpfs -o size=1m none full; cp -r runs/. full; "
        'cat /dev/zero >full/rest 2>/dev/null; exec "$@"\' sh "$@"'
    )
    query = ("sql", "select study, outcome from runs", "--format", "json")
    assert json.loads(on(full, *query, RUNNER_ROOT="full")) == [{"study": "other", "outcome": "completed"}]
    on(full, "report", "other", "--out", "pages", RUNNER_ROOT="full")
    message = on(full, "launch", "small.yaml", "--profile", "here.yaml", rc=2, RUNNER_ROOT="full")
    assert message.endswith("No space left on device; free some space, or choose another place with --root\n")


# Importing torch fails, as where it is not installed.
NO_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""


@pytest.mark.trains
def test_verbs_that_need_no_torch_work_where_there_is_none(on, small, corpus):
    on(RUN, "launch", "small.yaml", "--profile", "here.yaml", "--only", "attention=auto,cudnn")
    (small / "site").mkdir()
    (small / "site" / "sitecustomize.py").write_text(NO_TORCH)
    bare = {"PYTHONPATH": str(small / "site")}
    for arguments in (
        ("validate", "small.yaml"),
        ("expand", "small.yaml", "--json"),
        ("launch", "small.yaml", "--profile", "here.yaml", "--dry-run"),
        ("status", "small"),
        ("collect",),
        ("sql", "select count(*) from runs where outcome = 'completed'"),
        ("report", "small", "--out", "pages"),
        ("audit", "pages"),
        ("export", "small", "--out", "packed"),
        ("schema", "study"),
        ("data", REPOSITORY / "model" / "record", "--out", "more.parquet", "--match", "*.py"),
        ("init", "mine"),
    ):
        on(RUN, *arguments, **bare)
