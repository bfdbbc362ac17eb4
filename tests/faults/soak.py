"""A study of many runs while faults strike at random: `python -m tests.faults.soak [--runs 200] [--seed 0]`.

Starts the test cluster, launches the study, and until every run has completed injects faults from a seeded
list, launching again whenever the launch has ended. Then checks that each run completed exactly once, and
prints what was injected and what became of it. Exit code 1 where a check fails; the folder is then kept.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from runner.commands.data import write_corpus
from tests.conftest import REPOSITORY, SCRIPT, TINY, environment, no_cluster
from tests.faults.daemons import GONE, NODES, Daemons, step_daemons, training

STEPS = 1000
STUDY = TINY.replace("steps: 6", f"steps: {STEPS}").replace("log_every: 2", "log_every: 50")
PROFILE = (REPOSITORY / "tests" / "slurm" / "sandbox.yaml").read_text() + 'checkpoint_every: "0:00:01"\n'
SEVERAL_ARRAYS = "MaxArraySize=101"
PAUSE_SECONDS = (3.0, 12.0)  # between faults
AWAY_SECONDS = (2.0, 8.0)  # until what was taken away is given back
LONGEST_SECONDS = 3600.0


class Soak:
    """The study, its launches, and the faults."""

    def __init__(self, folder, daemons, runs, seed):
        self.folder, self.daemons, self.root = folder, daemons, folder / "runs"
        self.random = random.Random(seed)
        self.faults = [self.random.choice(sorted(FAULTS)) for _ in range(max(8, runs // 3))]
        self.injected, self.launches, self.exits = Counter(), 0, Counter()
        self.launch, self.later, self.next = None, [], time.monotonic() + 5
        write_corpus(REPOSITORY / "model", folder / "text.parquet", "*.py")
        (folder / "soak.yaml").write_text(f"{STUDY}matrix: {{seed: {list(range(runs))}}}\n")
        (folder / "profile.yaml").write_text(PROFILE)

    def runner(self, *arguments):
        """The command line's arguments."""
        return [sys.executable, "-P", "-m", "runner", "--root", str(self.root), *arguments]

    def say(self, *arguments):
        """What a command of ours prints."""
        process = subprocess.run(
            self.runner(*arguments), env=environment(**self.daemons.env), cwd=self.folder,
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if process.returncode:
            raise SystemExit(
                f"runner {' '.join(arguments)}: exit code {process.returncode}\n{process.stderr}"
            )
        return process.stdout

    def until_done(self):
        """Launch and inject until a launch says that all has completed."""
        end = time.monotonic() + LONGEST_SECONDS
        self.start_launch()
        self.at(self.random.uniform(0.5, 4), self.kill_launch)
        while self.launch.poll() != 0:
            if time.monotonic() > end:
                raise SystemExit(f"not done after {LONGEST_SECONDS:.0f} s")
            if self.launch.poll() is not None:
                self.start_launch()
            self.give_back(time.monotonic())
            if self.faults and time.monotonic() > self.next:
                self.strike(self.faults.pop())
            time.sleep(0.3)
        self.exits[0] += 1
        self.give_back(float("inf"))

    def start_launch(self):
        """Launch, the study's first time or again."""
        if self.launch:
            self.exits[self.launch.returncode] += 1
            time.sleep(1)
        with (self.folder / "launch.log").open("ab") as log:
            self.launch = subprocess.Popen(
                self.runner("launch", "soak.yaml", "--profile", "profile.yaml", "--wait"),
                env=environment(**self.daemons.env), cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        self.launches += 1

    def kill_launch(self):
        """SIGKILL, wherever it is."""
        if self.launch.poll() is None:
            self.launch.kill()
            self.launch.wait()

    def at(self, seconds, action):
        """Do something so many seconds from now."""
        self.later.append((time.monotonic() + seconds, action))

    def give_back(self, now):
        """Do what is due."""
        due = [action for moment, action in self.later if moment <= now]
        self.later = [(moment, action) for moment, action in self.later if moment > now]
        for action in due:
            action()

    def away(self, give_back):
        """Give something back in a while."""
        self.at(self.random.uniform(*AWAY_SECONDS), give_back)

    def strike(self, kind):
        """Inject one fault, if there is something to hit."""
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired, *GONE):
            if FAULTS[kind](self):
                self.injected[kind] += 1
                self.next = time.monotonic() + self.random.uniform(*PAUSE_SECONDS)
                return
        self.faults.insert(0, kind)  # nothing was there to hit: later

    def victim(self):
        """The process of a run."""
        processes = [process for process, _ in training(self.root)]
        return self.random.choice(processes) if processes else None


def launcher_killed(soak):
    """The launch that watches, and its successor while it submits."""
    soak.kill_launch()
    soak.at(soak.random.uniform(1.2, 5), soak.kill_launch)
    return True


def job_killed(soak):
    """SIGKILL a run."""
    return (job := soak.victim()) and (job.kill() or True)


def job_terminated(soak):
    """SIGTERM a run: it saves its state."""
    return (job := soak.victim()) and (job.terminate() or True)


def step_daemon_killed(soak):
    """SIGKILL the daemon that holds a run."""
    daemons = step_daemons(job) if (job := soak.victim()) else []
    return daemons and (daemons[0].kill() or True)


def job_requeued(soak):
    """Put a run's job back into the queue, as an administrator can."""
    if job := soak.victim():
        variables = job.environ()
        soak.daemons.ask(
            "scontrol", "requeue", f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
        )
    return job is not None


def node_down(soak):
    """Tell Slurm that a node has failed; later it is back."""
    node = soak.random.choice(NODES)
    soak.daemons.down(node)
    soak.away(lambda: soak.daemons.up(node))
    return True


def node_crashed(soak):
    """A node's daemons and jobs are gone at once, and the node comes back."""
    node = soak.random.choice(NODES)
    soak.daemons.crash(node)
    soak.away(lambda: soak.daemons.start(f"slurmd.{node}") or soak.daemons.up(node))
    return True


def killed_for_a_while(name, number):
    """A fault that takes a daemon away."""

    def fault(soak):
        daemon = name or f"slurmd.{soak.random.choice(NODES)}"
        soak.daemons.end(daemon, number)
        soak.away(lambda: soak.daemons.start(daemon))
        return True

    return fault


FAULTS = {
    "launcher SIGKILL, twice": launcher_killed,
    "job SIGKILL": job_killed,
    "job SIGTERM": job_terminated,
    "slurmstepd SIGKILL": step_daemon_killed,
    "scontrol requeue": job_requeued,
    "node down, resumed": node_down,
    "node crashed, back": node_crashed,
    "slurmd SIGKILL, restarted": killed_for_a_while(None, signal.SIGKILL),
    "slurmctld stopped, started": killed_for_a_while("slurmctld", signal.SIGTERM),
    "slurmdbd stopped, started": killed_for_a_while("slurmdbd", signal.SIGTERM),
}

CHECKS = {
    "runs whose steps are not each recorded once": f"""
        SELECT run_id FROM steps GROUP BY run_id
        HAVING sum(steps) <> {STEPS} OR count(DISTINCT step) <> count(*) OR max(step) <> {STEPS}""",
    "runs without exactly one completed attempt": """
        SELECT run_id FROM attempts GROUP BY run_id HAVING count(*) FILTER (outcome = 'completed') <> 1""",
    "attempts that began before the one before had ended": """
        SELECT b.run_id FROM attempts a JOIN attempts b ON a.run_id = b.run_id AND a.attempt < b.attempt
        JOIN step_records s ON s.run_id = a.run_id AND s.attempt = a.attempt AND s.time > b.started_at""",
    "attempts without an outcome": "SELECT run_id FROM attempts WHERE outcome IS NULL",
    "files in quarantine": "SELECT path AS run_id FROM quarantine",
}


def problems(soak, runs):
    """What is not as it has to be, a sentence each."""
    end = time.monotonic() + 180
    while (queue := soak.daemons.ask("squeue", "-h")) and time.monotonic() < end:
        time.sleep(1)
    findings = [f"jobs are left in the queue:\n{queue}"] if queue else []
    outcomes = Counter(row["outcome"] or row["phase"] for row in json.loads(soak.say("status", "--json")))
    soak.say("collect")
    (count,) = ask(soak, "SELECT count(*) AS n FROM runs")
    if outcomes != {"completed": runs} or count["n"] != runs:
        findings.append(f"{count['n']} runs in the database, outcomes {dict(outcomes)}")
    for label, query in CHECKS.items():
        if bad := ask(soak, query):
            findings.append(f"{label}: {', '.join(sorted({row['run_id'] for row in bad}))}")
    return findings


def ask(soak, query):
    """Rows of the database."""
    return json.loads(soak.say("sql", query, "--format", "json"))


def show(soak, runs, seconds):
    """The table."""
    attempts = ask(soak, "SELECT outcome, count(*) AS n FROM attempts GROUP BY ALL ORDER BY n DESC")
    rows = [(f"fault: {kind}", count) for kind, count in sorted(soak.injected.items())]
    rows += [("faults injected", soak.injected.total()), ("runs", runs)]
    rows += [(f"attempts: {row['outcome']}", row["n"]) for row in attempts]
    rows += [("launches, the first included", soak.launches)]
    rows += [(f"launches that ended with {code}", count) for code, count in sorted(soak.exits.items())]
    for name, count in [*rows, ("minutes", round(seconds / 60, 1))]:
        print(f"{name:42} {count:>6}")


@contextlib.contextmanager
def cluster(folder):
    """A cluster of its own, on which a study needs several arrays."""
    subprocess.run([SCRIPT, "up", folder], check=True, env={**os.environ, "SLURM_EXTRA": SEVERAL_ARRAYS})
    try:
        path = os.environ["PATH"] + ":/usr/sbin"
        yield Daemons({"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path})
    finally:
        subprocess.run([SCRIPT, "down", folder], check=True)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=200)
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    if reason := no_cluster():
        raise SystemExit(reason)
    folder, started = Path(tempfile.mkdtemp(prefix="assay-soak-")), time.monotonic()
    with cluster(folder / "slurm") as daemons:
        soak = Soak(folder, daemons, arguments.runs, arguments.seed)
        try:
            soak.until_done()
        finally:
            soak.kill_launch()
        findings = problems(soak, arguments.runs)
        show(soak, arguments.runs, time.monotonic() - started)
    if findings:
        raise SystemExit("\n".join([*findings, f"see {folder}"]))
    shutil.rmtree(folder)
    print("every run completed exactly once; the queue and the quarantine are empty")


if __name__ == "__main__":
    main()
