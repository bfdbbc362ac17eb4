"""How runs end. All that the project knows of an outcome stands here, in one entry of `Outcome`."""

from __future__ import annotations

from enum import Flag, StrEnum, auto
from typing import Literal, Self

NONE_YET = "no outcome yet"  # what tables and charts say of a run that has not ended
Cause = Literal["code", "machine", "person"]


class _Is(Flag):
    """What is asked of outcomes, besides their cause; the properties of `Outcome` explain it."""

    STOPPED = auto()
    OF_ONE_PROCESS = auto()
    EARLY = auto()
    MEMORY = auto()


_NONE = _Is(0)


class Outcome(StrEnum):
    """How an attempt, and so a run, ended."""

    COMPLETED = "completed", "everything that was planned is done"
    OOM_GPU = "oom_gpu", "out of GPU memory", "code", _Is.MEMORY | _Is.EARLY | _Is.OF_ONE_PROCESS
    OOM_HOST = (
        "oom_host",
        "out of host memory",
        "code",
        _Is.MEMORY | _Is.EARLY | _Is.OF_ONE_PROCESS,
        "OUT_OF_MEMORY",
    )
    UNSUPPORTED = "unsupported", "the backend reports that it cannot run there", "code", _Is.EARLY
    DIVERGED = "diverged", "a loss that is not finite", "code"
    TIMEOUT = "timeout", "the time limit", "code", _Is.STOPPED, "TIMEOUT DEADLINE"
    PREEMPTED = "preempted", "stopped by the scheduler", "machine", _Is.STOPPED, "PREEMPTED"
    NODE_FAILED = (
        "node_failed",
        "the machine failed",
        "machine",
        _Is.STOPPED,
        "NODE_FAIL BOOT_FAIL LAUNCH_FAILED",
    )
    CANCELLED = "cancelled", "stopped by a person", "person", _Is.STOPPED, "CANCELLED REVOKED"
    FAILED = "failed", "an error", "code", _Is.OF_ONE_PROCESS, "FAILED"
    # Slurm's COMPLETED: where an attempt left no result, exit code 0 proves nothing.
    LOST = "lost", "no trace of how it ended", "machine", _NONE, "COMPLETED"

    meaning: str  # in the words of a report: `oom_gpu (out of GPU memory)`
    cause: Cause | None  # what ended it: the run's code and settings, the machine, a person; None: nothing
    slurm_states: tuple[str, ...]  # the final states of a job that mean it, where the attempt left no result
    _is: _Is

    def __new__(
        cls,
        word: str,
        meaning: str = "",
        cause: Cause | None = None,
        what: _Is = _NONE,
        slurm_states: str = "",
    ) -> Self:
        """Make a member, which is its word."""
        outcome = str.__new__(cls, word)
        outcome._value_ = word
        outcome.meaning, outcome.cause, outcome._is = meaning, cause, what
        outcome.slurm_states = tuple(slurm_states.split())
        return outcome

    @property
    def short(self) -> str:
        """The word for it beside a chart's marks: `OOM`, `node failed`."""
        return "OOM" if self.out_of_memory else self.replace("_", " ")

    @property
    def of_machine(self) -> bool:
        """Whether the run had no part in it: `launch --wait` retries it, as often as the profile's `retries`.

        It also retries a run whose time was up, as long as that gets farther, which no outcome tells.
        """
        return self.cause == "machine"

    @property
    def may_come_back(self) -> bool:
        """Whether the attempt was stopped from outside, so that Slurm may start its job again on its own.

        A job that Slurm preempts records `cancelled` itself.
        """
        return _Is.STOPPED in self._is

    @property
    def is_taken(self) -> bool:
        """Whether the run lost its place on a machine, and had no part in that."""
        return self.may_come_back and self.of_machine

    @property
    def of_one_process(self) -> bool:
        """Whether it is the ending of one process of a run; the others concern all of them."""
        return _Is.OF_ONE_PROCESS in self._is

    @property
    def is_early(self) -> bool:
        """Whether a run that ends so does not complete its first step, however many were planned."""
        return _Is.EARLY in self._is

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out, of the GPU or of the host."""
        return _Is.MEMORY in self._is


OUT_OF_MEMORY = tuple(outcome for outcome in Outcome if outcome.out_of_memory)
