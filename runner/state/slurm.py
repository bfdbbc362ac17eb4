"""Calls Slurm's commands, and maps the state of a job to the outcome of its run."""

from __future__ import annotations

import shutil
import subprocess

from model.disk.record import Outcome
from model.errors import AssayError
from runner.state.endings import Ending

TIMEOUT_SECONDS = 60
SACCT_FIELDS = "JobID,State,ExitCode,NodeList"

# Every final state of Slurm (JOB STATE CODES in the manual pages of squeue and sacct).
_OUTCOMES = {
    "BOOT_FAIL": Outcome.NODE_FAILED,
    "CANCELLED": Outcome.CANCELLED,
    "COMPLETED": Outcome.LOST,  # it left no result, so exit code 0 proves nothing
    "DEADLINE": Outcome.TIMEOUT,
    "FAILED": Outcome.FAILED,
    "LAUNCH_FAILED": Outcome.NODE_FAILED,
    "NODE_FAIL": Outcome.NODE_FAILED,
    "OUT_OF_MEMORY": Outcome.OOM_HOST,
    "PREEMPTED": Outcome.PREEMPTED,
    "REVOKED": Outcome.CANCELLED,
    "TIMEOUT": Outcome.TIMEOUT,
}
ALIVE = frozenset({
    "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED",
    "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED",
})  # fmt: skip
# Slurm may requeue such a job on its own. A job that Slurm preempts records `cancelled` itself.
MAY_COME_BACK = frozenset({Outcome.PREEMPTED, Outcome.NODE_FAILED, Outcome.TIMEOUT, Outcome.CANCELLED})


class SchedulerError(AssayError):
    """The scheduler refused a job or cannot be reached; the message quotes it."""

    exit_code = 3


def require(command: str) -> None:
    """Raise SchedulerError unless this Slurm command is on PATH."""
    if not shutil.which(command):
        where = "run this on the cluster's login node, or use --profile local"
        raise SchedulerError(f"{command} is not on PATH: {where}")


def run(*command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command; a nonzero exit code is not an error.

    Args:
        given: text for its standard input.

    Raises:
        SchedulerError: it is not installed or does not answer.
    """
    require(command[0])
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{command[0]} did not answer within {TIMEOUT_SECONDS} s") from error


def ask(*command: str) -> str:
    """Run a Slurm command and return its standard output.

    Raises:
        SchedulerError: it is not installed, fails, or does not answer; the message quotes its standard error.
    """
    done = run(*command)
    if done.returncode:
        raise SchedulerError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def ending_of(state: str, exit_code: str, node: str = "") -> Ending | None:
    """Map a job's final state to an ending; None if the job has not ended. Unknown states are never success.

    Args:
        state: as sacct prints it, such as `CANCELLED by 1000`.
        exit_code: `CODE:SIGNAL`.
        node: the node or nodes it ran on.
    """
    word = state.partition(" ")[0].rstrip("+")
    if word in ALIVE:
        return None
    where = f" on {node}" if node and node != "None assigned" else ""
    said = f"Slurm: {state}, exit code {exit_code}{where}"
    if word not in _OUTCOMES:
        return Ending(Outcome.LOST, f"{said} (an unknown state)")
    return Ending(_OUTCOMES[word], f"{said}, but the attempt left no result" if word == "COMPLETED" else said)
