"""The test cluster's daemons and what they started: to kill, stop, and start again."""

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from runner.state.process import is_running
from tests.conftest import PATIENCE_SECONDS, until

NODES = ("n1", "n2", "n3", "n4")
GONE = (psutil.NoSuchProcess, psutil.ZombieProcess)


class Daemons:
    """Of a cluster that tests/slurm/cluster.sh started.

    Args:
        reach: the environment in which Slurm's commands reach it.
    """

    def __init__(self, reach):
        self.folder = Path(reach["SLURM_CONF"]).parent
        self.env = {**os.environ, **reach, "MYSQL_UNIX_PORT": str(self.folder / "db.sock")}

    def ask(self, *command, check=True):
        """One of Slurm's commands."""
        return subprocess.run(
            command, env=self.env, check=check, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        ).stdout

    def end(self, name, number=signal.SIGTERM):
        """Signal `slurmctld`, `slurmdbd` or `slurmd.NODE`, and wait until it is gone."""
        with contextlib.suppress(*GONE):
            process = psutil.Process(int((self.folder / "pid" / name).read_text()))
            process.send_signal(number)
            process.wait(PATIENCE_SECONDS)

    def lives(self, name):
        """Whether it runs."""
        with contextlib.suppress(*GONE):
            return name.startswith(psutil.Process(int((self.folder / "pid" / name).read_text())).name())
        return False

    def start(self, name):
        """Start it again, and wait until it answers."""
        daemon, _, node = name.partition(".")
        subprocess.run(
            [daemon, *(["-N", node] if node else [])], env=self.env, check=True, timeout=PATIENCE_SECONDS
        )
        question = {"slurmctld": ["sinfo"], "slurmdbd": ["sacctmgr", "-n", "show", "cluster"]}.get(daemon)
        while question and not self.answers(question):
            time.sleep(0.3)

    def answers(self, question):
        """Whether one of Slurm's commands succeeds."""
        process = subprocess.run(
            question, env=self.env, capture_output=True, timeout=PATIENCE_SECONDS, check=False
        )
        return process.returncode == 0

    def down(self, node):
        """Tell Slurm that a node has failed."""
        self.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def up(self, node):
        """Take a node that is down into service; one that is not stays as it is."""
        self.ask("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def restore(self):
        """Start what has ended, cancel what is in the queue, and wait until it is gone and all nodes take jobs.

        The next test may count the queue, or lose its job to a node that the controller gives up only then.
        """
        for name in ("slurmdbd", "slurmctld", *(f"slurmd.{node}" for node in NODES)):
            if not self.lives(name):
                self.start(name)
        until(lambda: self.all_work() and self.is_empty(), 1.0)

    def is_empty(self):
        """Cancel what is in the queue; whether there was nothing. A job that completes can be requeued, and go on."""
        jobs = set(self.ask("squeue", "-h", "-o", "%A").split())
        for job in jobs:
            self.ask("scancel", job, check=False)
        return not jobs

    def all_work(self):
        """Resume the nodes that are down or draining; whether the controller now gives jobs to all nodes."""
        for node in self.ask("sinfo", "-h", "-N", "-t", "down,drain", "-o", "%N").split():
            self.up(node)
        lines = self.ask("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
        states = dict(line.split() for line in lines)  # a node has a line for each of its partitions
        working = {"idle", "mixed", "allocated", "completing"}
        return len(states) == len(NODES) and set(states.values()) <= working

    def crash(self, node):
        """What a node's sudden end does: its daemon, its step daemons and their jobs are gone at once.

        All are stopped before the first is killed, so that none lives to tell how another ended.
        """
        self.end(f"slurmd.{node}", signal.SIGKILL)
        processes = self.on_node(node)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in processes:
                with contextlib.suppress(*GONE):
                    process.send_signal(number)

    def on_node(self, node):
        """The processes of a node's jobs, and the step daemons above them; no other cluster's."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(*GONE, psutil.AccessDenied):
                variables = process.environ()
                if (variables.get("SLURM_CONF"), variables.get("SLURMD_NODENAME")) == (
                    self.env["SLURM_CONF"],
                    node,
                ):
                    processes += [process, *step_daemons(process)]
        return processes


def step_daemons(process):
    """The step daemons above a job's process."""
    with contextlib.suppress(*GONE):
        return [parent for parent in process.parents() if parent.name().startswith("slurmstepd")]
    return []


def training(root):
    """The processes of attempts that have begun and not ended, with the folders of their attempts."""
    jobs = []
    for manifest in root.glob("*/*/attempt-*/manifest.json"):
        if not (manifest.parent / "result.json").exists():
            with contextlib.suppress(*GONE, ValueError):
                record = json.loads(manifest.read_text())
                if is_running(record["pid"], record["pid_started"]):
                    jobs.append((psutil.Process(record["pid"]), manifest.parent))
    return jobs
