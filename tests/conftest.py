"""Shared fixtures: a small corpus, tiny studies, and the command line as a user runs it."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.forked import Process, Server

# pyarrow looks for dateutil with each column that it makes of a list. Where there is none, that takes longer.
if importlib.util.find_spec("dateutil") is None:
    sys.modules["dateutil"] = None  # type: ignore[assignment]

# Where there is no GPU, Triton's kernels are interpreted. Triton asks for this when it is first imported.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# No test asserts a time, and these do not either.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

# A shell that runs the tests in the background makes them and all their child processes ignore SIGINT;
# nohup makes them ignore SIGHUP.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

REPOSITORY = Path(__file__).parent.parent
# Tests wait for conditions. This is only how long before they give up, on a machine of whatever load.
PATIENCE_SECONDS = 900.0
Runner = Callable[..., subprocess.CompletedProcess[str]]

TINY = """\
title: A tiny study
base:
  device: cpu
  model: {dim: 32, layers: 1, heads: 2, kv_heads: 1, ffn_dim: 64, vocab_size: 300}
  data: {path: text.parquet}
  train: {steps: 6, sequence_length: 32, batch_size: 2, learning_rate: 1e-2, warmup_steps: 0, log_every: 2, dtype: float32}
"""


# One worker for each of these folders: their files share what is long to make, such as a browser and its report, the
# report of the demo, or the reports that are compared.
TOGETHER = (
    "tests/model/attention/", "tests/model/", "tests/browser/", "tests/analysis/report/", "tests/oracle/",
)  # fmt: skip
# Each test of these waits long, and goes alone.
LONGEST_FIRST = (
    "tests/faults/test_jobs.py", "tests/faults/test_nodes.py", "tests/slurm", "tests/faults", "tests/runner/execute",
    "tests/runner/job",
)  # fmt: skip
# What keeps a worker busy for long, then what waits longest, so that none is left alone with it at the end.
ORDER = (*TOGETHER[:4], *LONGEST_FIRST)

# A file whose tests share a Slurm cluster of their own goes to one worker, which starts it once.
OWN_CLUSTER = (
    "tests/faults/test_preemption.py", "tests/slurm/test_centres.py", "tests/slurm/test_doctor.py",
    "tests/slurm/test_refusals.py", "tests/slurm/test_two_users.py",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Let only `-m gpu` see GPUs: once torch has found one, its autograd cannot be forked, as tests on the CPU do."""
    if config.option.markexpr != "gpu" and Path("/dev/nvidiactl").exists():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what is marked `gpu`, or `gpu(2)`, where PyTorch finds fewer NVIDIA GPUs, or none that it can use."""
    if counts := [marker.args[0] if marker.args else 1 for marker in item.iter_markers("gpu")]:
        import torch

        usable = torch.cuda.device_count() if torch.version.cuda and torch.cuda.is_available() else 0
        if usable < max(counts):
            pytest.skip(f"needs NVIDIA GPUs: {max(counts)}")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """One worker collects first: the others read the bytecode of all tests that it leaves, instead of making it, too."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    with Path(os.environ["ASSAY_TEST_SHARED"], "collected").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if os.fstat(turn.fileno()).st_size:
            fcntl.flock(turn, fcntl.LOCK_UN)
        collected = yield
        turn.write("once")
    return collected


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests by how long their files take."""

    def position(item: pytest.Item) -> int:
        matches = (rank for rank, prefix in enumerate(ORDER) if item.nodeid.startswith(prefix))
        return next(matches, len(ORDER))

    items.sort(key=position)
    for item in items:
        if item.nodeid.startswith("tests/faults/"):
            item.add_marker(pytest.mark.fault)
        if item.get_closest_marker("slurm"):
            item.add_marker(pytest.mark.flaky(reruns=1))  # the machine can take a node from a real cluster


def together(nodeid: str) -> str:
    """Tests of one answer go to one worker, so that what their fixtures make, such as a browser, is made once.

    Those that wait long go alone; others by file or by folder.
    """
    if nodeid.startswith(LONGEST_FIRST) and not nodeid.startswith(OWN_CLUSTER):
        return nodeid
    return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out tests in their order, by `together`. (xdist's own groups have no effect since pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return together(nodeid)

    config.option.loadscopereorder = False
    return Together(config, log)


def until(condition: Callable[[], Any], pause_seconds: float = 0.2) -> Any:
    """Ask again and again until the answer is true, and return it.

    Where an answer takes long, it sleeps longer: Slurm's takes its daemons as long as whoever asks.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while (start := time.monotonic()) < end:
        if result := condition():
            return result
        time.sleep(max(pause_seconds, min(1.0, 5 * (time.monotonic() - start))))
    pytest.fail("it did not happen in time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what became of a failed test's runs: their ledgers and records, and the Slurm controller's log."""
    report = yield
    fixtures: dict[str, Any] = getattr(item, "funcargs", {})
    if report.when == "call" and call.excinfo and "root" in fixtures:
        ledgers = [
            f"{path.parent.name}: {line}"
            for path in sorted(fixtures["root"].glob("*/*/ledger.jsonl"))
            for line in path.read_text(errors="replace").splitlines()
        ]
        report.sections.append(("ledgers", "\n".join(ledgers[-60:])))
        records = sorted(fixtures["root"].glob("*/*/attempt-*/[mr]*t.json"))  # manifests and results
        report.sections.append(
            ("attempts", "\n".join(f"{path}: {path.read_text(errors='replace')}" for path in records[-20:]))
        )
        if "cluster" in fixtures:
            log = Path(fixtures["cluster"]["SLURM_CONF"]).parent / "log" / "slurmctld"
            report.sections.append(
                ("slurmctld", "\n".join(log.read_text(errors="replace").splitlines()[-60:]))
            )
    return report


@pytest.fixture
def rows(root: Path) -> Callable[[], list[dict[str, Any]]]:
    """What `runner status --json` says, asked in this process: to start Python each time would keep a core busy."""

    def ask() -> list[dict[str, Any]]:
        from runner.commands.status import rows as status_rows
        from runner.execute.reconcile import reconciled

        return status_rows(reconciled(root))

    return ask


@pytest.fixture
def outcomes(rows: Callable[[], list[dict[str, Any]]]) -> Callable[[], dict[str, str]]:
    """Each run's outcome, else its phase, by id."""
    return lambda: {row["run_id"]: row["outcome"] or row["phase"] for row in rows()}


@pytest.fixture(scope="session", autouse=True)
def blank() -> None:
    """New databases are copies of one, and snapshots of this code links to one."""
    from tests import blank, linked

    blank.install()
    linked.install()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Parquet file with this project's own sources."""
    from runner.commands.data import write_corpus

    path = tmp_path_factory.mktemp("corpus") / "text.parquet"
    write_corpus(REPOSITORY / "model", path, "*.py")
    return path


@pytest.fixture
def study(tmp_path: Path, corpus: Path) -> Callable[..., Path]:
    """Write a study next to its corpus; `extra` is appended to the base, by default TINY."""

    def make(extra: str = "matrix: {seed: [0]}\n", name: str = "tiny", base: str = TINY) -> Path:
        (tmp_path / "text.parquet").unlink(missing_ok=True)
        (tmp_path / "text.parquet").symlink_to(corpus)
        path = tmp_path / f"{name}.yaml"
        path.write_text(base + extra)
        return path

    return make


# A step record takes so long that a run which trains while a test waits does not keep a core busy.
PACED = {"PACE_SECONDS": "0.1"}


@pytest.fixture
def hurry(root: Path) -> Callable[[], None]:
    """Has the runs write their records without waiting from now on."""
    return Path(f"{root}.hurry").touch


@pytest.fixture(autouse=True)
def trainer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs get a stand-in for the trainer, unless the test is marked `trains`."""
    if not request.node.get_closest_marker("trains"):
        monkeypatch.setenv("STAND_IN_TRAINER", "1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Root folder for a test's runs."""
    return tmp_path / "runs"


# What all workers of a test session share: they inherit the name of its folder.
if "ASSAY_TEST_SHARED" not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="assay-tests-")
    os.environ["ASSAY_TEST_SHARED"] = _folder.name
# All roots share certificates, as a user's roots can. Also for what is called in this process: nothing may reach
# the user's own cache.
CERTIFICATES = os.environ["RUNNER_CERTIFICATES"] = f"{os.environ['ASSAY_TEST_SHARED']}/certificates"


# Local launches of one user wait for each other: each worker has its own queue, apart from the user's.
_state = tempfile.TemporaryDirectory(prefix="assay-state-")
os.environ["RUNNER_STATE"] = _state.name


def environment(**overrides: str) -> dict[str, str]:
    """The caller's environment without RUNNER_* and SLURM_* variables, and with one thread per run."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RUNNER_", "SLURM_"))}
    return {
        **clean,
        "PYTHONPATH": str(REPOSITORY / "tests" / "faults" / "site"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
        "RUNNER_CERTIFICATES": CERTIFICATES,
        "RUNNER_STATE": _state.name,
        **overrides,
    }


@pytest.fixture(scope="session")
def forks() -> Iterator[Server]:
    """Forks processes of the command line, which need not import it."""
    with contextlib.closing(Server(environment())) as server:
        yield server


@pytest.fixture
def process(forks: Server) -> Runner:
    """Run a module in a process of its own."""

    def call(module: str, *arguments: Any, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
        words, variables = [module, *map(str, arguments)], environment(**env)
        if forks.serves(variables):
            return forks.run(words, cwd, variables, PATIENCE_SECONDS)
        return subprocess.run(
            [sys.executable, "-P", "-m", *words], capture_output=True, text=True, cwd=cwd, env=variables,
            stdin=subprocess.DEVNULL, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip

    return call


@pytest.fixture
def background(forks: Server) -> Iterator[Callable[..., Process]]:
    """Start a module in a process of its own, and go on; nothing is left behind."""
    started: list[Process] = []

    def start(module: str, *arguments: Any, cwd: Path, **env: str) -> Process:
        started.append(forks.start([module, *map(str, arguments)], cwd, environment(**env)))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate(PATIENCE_SECONDS)
        process.close()


@pytest.fixture
def runner(process: Runner, root: Path, tmp_path: Path) -> Runner:
    """Run the command line with the test's own root and working directory."""

    def call(*arguments: Any, rc: int | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        completed = process("runner", "--root", root, *arguments, cwd=tmp_path, **env)
        assert rc is None or completed.returncode == rc, (
            f"exit code {completed.returncode}\n{completed.stdout}\n{completed.stderr}"
        )
        return completed

    return call


SCRIPT = REPOSITORY / "tests" / "slurm" / "cluster.sh"
COMMANDS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch", "sacct")


def no_cluster() -> str | None:
    """Why a Slurm cluster cannot be started here; None if it can."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root"
    path = os.environ["PATH"] + ":/usr/sbin"
    absent = [command for command in COMMANDS if not shutil.which(command, path=path)]
    return f"not installed: {', '.join(absent)}; `make system` installs them" if absent else None


@contextmanager
def started_cluster(folder: Path, extra: str = "", lua: str = "") -> Iterator[dict[str, str]]:
    """Start a Slurm cluster with these lines more in its configuration; the environment has commands use it.

    Args:
        lua: what its controller does with every job that is submitted (job_submit.lua).
    """
    if reason := no_cluster():
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with (Path(tempfile.gettempdir()) / "assay-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two clusters starting at once would pick the same free ports
        env = {**os.environ, "SLURM_EXTRA": extra, "SLURM_LUA": lua}
        subprocess.run([SCRIPT, "up", folder], check=True, timeout=PATIENCE_SECONDS, env=env)
    reach = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": os.environ["PATH"] + ":/usr/sbin"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in reach.items():
            patch.setenv(name, value)  # for what is asked in this process
        yield reach
    subprocess.run([SCRIPT, "down", folder], check=True, timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="session")
def workers_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The Slurm cluster of all tests of one worker."""
    with started_cluster(tmp_path_factory.mktemp("slurm")) as reach:
        yield reach


@pytest.fixture
def cluster(workers_cluster: dict[str, str]) -> Iterator[dict[str, str]]:
    """A Slurm cluster; the next test finds it whole and empty, however this one ends."""
    from tests.faults.daemons import Daemons

    yield workers_cluster
    Daemons(workers_cluster).restore()


TALLIES = {"fault": "faults survived", "refused": "bad inputs refused"}
_tallies: dict[str, dict[str, str]] = {marker: {} for marker in TALLIES}  # a test's outcome by its id


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcomes that are counted; with several workers, in the process that prints."""
    for marker, tally in _tallies.items():
        if marker in report.keywords and (report.when == "call" or report.outcome != "passed"):
            tally[report.nodeid] = report.outcome


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the failures of tests that passed on a second try, and how many faults and bad inputs were tried."""
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.section(f"tried again: {report.nodeid}")
        terminalreporter.line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.line(f"--- {title} ---\n{text}")
    for marker, tally in _tallies.items():
        if words := list(tally.values()):
            skipped = words.count("skipped")
            terminalreporter.line(
                f"{TALLIES[marker]}: {words.count('passed')} of {len(words) - skipped}; {skipped} not tried here"
            )
