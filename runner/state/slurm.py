"""Calls Slurm's commands, and maps the state of a job to the outcome of its run."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from datetime import datetime

from model.record.errors import AssayError
from model.record.outcome import Outcome
from runner.state.endings import Ending

TIMEOUT_SECONDS = 60
# Separates the fields of an answer. Job names can have line breaks: a user who knew the separator could forge
# lines about our jobs.
BAR = f"|{uuid.uuid4().hex}|"
JOB = "JobID,State,ExitCode,NodeList,Submit,JobName"
# Variables from which Slurm's commands take options: they override a batch script's options and change what a
# query prints. A job that inherits the variables of the job that submits it would get that job's resources.
_OPTIONS = re.compile(r"(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SACCT|SCANCEL|SCONTROL|SINFO)_")
_PREFIX = re.compile(r"^(sbatch|srun|scancel|scontrol|sinfo|squeue|sacct|sacctmgr): (error: |fatal: )?")
_ONE_NODE = re.compile(r"[^][,]+")  # several are `n1,n3` or `n[1-2]`
_REACH = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})  # where the cluster is, and who asks

# Every final state of Slurm (JOB STATE CODES in the manual pages of squeue and sacct).
_OUTCOMES = {state: outcome for outcome in Outcome for state in outcome.slurm_states}
ALIVE = frozenset({
    "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
    "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
})  # fmt: skip


class SchedulerError(AssayError):
    """The scheduler refused a job or cannot be reached; the message quotes it."""

    exit_code = 3


class NoAnswer(SchedulerError):
    """Slurm gave no answer: what it knows is unknown, and asking again later can help."""


def require(command: str) -> None:
    """Raise NoAnswer unless this Slurm command is on PATH."""
    if not shutil.which(command):
        where = "run this on the cluster's login node, or use --profile local"
        raise NoAnswer(f"{command} is not on PATH: {where}")


@contextlib.contextmanager
def clean_environment() -> Iterator[None]:
    """Remove the variables from this process's environment that would change what Slurm's commands do."""
    removed = {name: value for name, value in os.environ.items() if not _harmless(name)}
    for name in removed:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(removed)


def _harmless(name: str) -> bool:
    return name in _REACH or not _OPTIONS.match(name)


def run(*command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command in a clean environment; a nonzero exit code is not an error.

    Args:
        given: text for its standard input.

    Raises:
        NoAnswer: it is not installed, or takes too long.
    """
    if not shutil.which(command[0]):
        raise NoAnswer(f"{command[0]} is not on PATH")
    clean = {name: value for name, value in os.environ.items() if _harmless(name)}
    clean["SLURM_BITSTR_LEN"] = "0"  # by default, long lists of array elements end in "..."
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
            env=clean, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{command[0]} did not answer within {TIMEOUT_SECONDS} s") from error


def ask(*command: str) -> str:
    """Run a Slurm command and return its standard output.

    Raises:
        NoAnswer: it is not installed, fails, or takes too long; the message quotes its standard error.
    """
    done = run(*command)
    if done.returncode:
        raise NoAnswer(f"{command[0]}: {error_text(done)}")
    return done.stdout


def sacct(fields: str, *options: str) -> list[list[str]]:
    """Ask accounting; a row for each line of its answer. Raises NoAnswer as `ask` does."""
    return rows(ask("sacct", "-n", "-P", f"--delimiter={BAR}", "-o", fields, *options), fields.count(",") + 1)


def failed_nodes(nodes: str, since: datetime) -> list[str]:
    """The nodes among these that have gone down since a moment, or else those that are down now.

    Accounting records each time that a node goes down, also of one that is up again. Where there is no
    accounting, the controller knows which are down now. Where neither answers, none is known.

    Args:
        nodes: in Slurm's form, such as `n[1-2]`.
    """
    start = since.astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    fields = "format=NodeName,State,TimeStart"
    asked = (
        ("sacctmgr", "-n", "-P", "show", "event", f"nodes={nodes}", f"start={start}", fields),
        ("sinfo", "-h", "-N", "-n", nodes, "-o", f"%N|%T|{start}"),
    )
    for command in asked:
        with contextlib.suppress(NoAnswer):
            shown = [line.split("|") for line in ask(*command).splitlines()]
            new = [(name, state.upper()) for name, state, begun in shown if begun >= start]
            # The star in such a state as `DOWN*` says that a node does not respond.
            states = ("DOWN", "FAIL", "ERROR")
            if down := {name for name, state in new if state.endswith("*") or state.startswith(states)}:
                return sorted(down)
    return []


def rows(answer: str, fields: int) -> list[list[str]]:
    """The fields of each line, without lines that only a line break in a job's name has made."""
    fields_of_lines = (line.split(BAR, fields - 1) for line in answer.splitlines())
    return [row for row in fields_of_lines if len(row) == fields]


def placed(node: str) -> bool:
    """Whether a job has a node, and so has started."""
    return node not in ("", "None assigned")


def error_text(done: subprocess.CompletedProcess[str] | subprocess.CalledProcessError) -> str:
    """A command's standard error, all of it on one line: its last sentence may say least."""
    if "Could not establish a configuration source" in done.stderr:
        where = "run this on the cluster's login node, set SLURM_CONF, or use --profile local"
        return f"no Slurm cluster is configured on this machine; {where}"
    lines = dict.fromkeys(_PREFIX.sub("", line.strip()) for line in done.stderr.splitlines() if line.strip())
    return "; ".join(lines) or f"exit code {done.returncode}"


def ending_of_job(state: str, exit_code: str, node: str = "") -> Ending | None:
    """Map a job's final state to an ending; None if the job has not ended. Unknown states are never success.

    Args:
        state: as sacct prints it, such as `CANCELLED by 1000`.
        exit_code: `CODE:SIGNAL`; empty if unknown.
        node: the node or nodes it ran on.
    """
    word = state.partition(" ")[0].rstrip("+")
    if word in ALIVE:
        return None
    node = node if placed(node) else ""
    where = f" on {node}" if node else ""
    words = f"Slurm: {state}{exit_code and f', exit code {exit_code}'}{where}"
    if word not in _OUTCOMES:
        return Ending(Outcome.LOST, f"{words} (an unknown state)", nodes=node)
    words = f"{words}, but the attempt left no result" if word == "COMPLETED" else words
    outcome = _OUTCOMES[word]
    failed = (node,) if outcome is Outcome.NODE_FAILED and _ONE_NODE.fullmatch(node) else ()
    return Ending(outcome, words, failed_nodes=failed, nodes=node)
