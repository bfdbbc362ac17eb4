"""Runs trials of backends in a separate process: `python -m runner.job.trial PARENT_PID DEVICE TRIALS`.

A trial thus cannot affect the calling process (its memory, random numbers or GPU context), and a kernel that
crashes takes down nothing else. TRIALS is a JSON array of [backend, case or null]; each answer is one line of
JSON on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from model.attention import Case
from model.errors import AssayError
from model.verify.certificate import Certificate
from runner.job.stop import QuickExit, die_with


@dataclass(frozen=True)
class Trial:
    """A backend and the case of a run to test it on; None tests every case that the backend supports."""

    backend: str
    case: Case | None = None


class Crashed(AssayError):
    """A trial's process ended without an answer.

    Attributes:
        signal: the signal that killed it, if any.
    """

    def __init__(self, trial: Trial, code: int) -> None:
        self.signal = signal.Signals(-code) if code < 0 else None
        how = f"was killed by {self.signal.name}" if self.signal else f"exited with code {code}"
        super().__init__(f"attention backend '{trial.backend}' {how} during its trial")


def hold(
    trials: Sequence[Trial], device: str, options: Sequence[str] = (), side_by_side: int = 1
) -> Iterator[Certificate | Exception]:
    """Run trials one after another; yields a certificate for each, or the exception the backend raised.

    After an error, the remaining trials run in a new process.

    Args:
        options: Python options that make the process import a code snapshot.
        side_by_side: number of concurrent calls; they divide the cores among them, because oversubscribed
            threads are many times slower.
    """
    left = list(trials)
    environment = dict(os.environ)
    if side_by_side > 1:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // side_by_side)))
    while left:
        for answer in _held_in_one_process(left, device, options, environment):
            left.pop(0)
            yield answer


def _held_in_one_process(
    trials: Sequence[Trial], device: str, options: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Certificate | Exception]:
    asked = json.dumps([[each.backend, asdict(each.case) if each.case else None] for each in trials])
    command = [sys.executable, *options, "-m", "runner.job.trial", str(os.getpid()), device, asked]
    answered = 0
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        for line in process.stdout:
            answered += 1
            yield _answer(json.loads(line))
    if answered < len(trials) and (process.returncode or not answered):
        yield Crashed(trials[answered], process.returncode)


def _answer(said: dict[str, str]) -> Certificate | Exception:
    if "certificate" in said:
        return Certificate.model_validate_json(said["certificate"])
    if said["raised"] == "OutOfMemoryError":
        import torch

        return torch.OutOfMemoryError(said["text"])
    return MemoryError(said["text"]) if said["raised"] == "MemoryError" else RuntimeError(said["text"])


def main() -> None:
    """Run the trials given on the command line, and stop after the first that raises."""
    parent, device, asked = sys.argv[1:]
    die_with(int(parent))
    leaving = QuickExit()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keep output of compilers and libraries out of the answers
    from model.verify.certify import certify, certify_case

    for backend, case in json.loads(asked):
        try:
            made = certify_case(backend, Case(**case)) if case else certify(backend, device)
        except Exception as error:
            text = str(error) or type(error).__name__
            print(json.dumps({"raised": type(error).__name__, "text": text}), file=answers, flush=True)
            break
        print(json.dumps({"certificate": made.model_dump_json()}), file=answers, flush=True)
    leaving.done = True


if __name__ == "__main__":
    main()
