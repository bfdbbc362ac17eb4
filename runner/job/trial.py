"""Runs trials of backends in a separate process: `python -m runner.job.trial PARENT_PID DEVICE TRIALS`.

A trial thus cannot affect the calling process (its memory, random numbers or GPU context), and a kernel that
crashes takes down nothing else. TRIALS is a JSON array of [backend, case or null]. On standard output each
line is one JSON object: how far a trial is, or its answer.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Timer
from typing import Any

from model.attention.verify.certificate import Certificate
from model.measure import machine
from model.record.case import Case
from model.record.errors import AssayError
from runner.job.child import QuickExit, answer_stream, die_with, kill_group
from runner.job.phase import Stage, Tell

# A trial makes about 50 calls at the run's own shape, and needs its result in float64 once: the cost of a few
# dozen steps. The limit ends one that hangs; each stage has as long, however slow a busy machine is.
LIMIT_SECONDS = 1800.0


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


class TooLong(AssayError):
    """A trial did not end in time, which says nothing about the backend."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(
            f"the trial of attention backend '{trial.backend}' had not ended a stage after "
            f"{LIMIT_SECONDS / 60:.0f} minutes: launch again when the machine is less busy, or choose a "
            "shorter train.sequence_length"
        )


class Stopped(AssayError):
    """The trials were stopped on request."""

    exit_code = 130


@dataclass
class TrialOptions:
    """How to run trials.

    Attributes:
        python: options that make the process import a code snapshot.
        side_by_side: number of concurrent calls; they divide the cores among them, because oversubscribed
            threads are many times slower.
        tell: receives how far a trial is.
        stop: set by `end`.
    """

    python: Sequence[str] = ()
    side_by_side: int = 1
    tell: Tell = lambda _stage: None
    stop: Event = field(default_factory=Event)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def end(self) -> None:
        """End the trials and kill their processes; answers that were given stay valid."""
        self.stop.set()
        for process in list(self.running):
            kill_group(process)


def run_trials(
    trials: Sequence[Trial], device: str, options: TrialOptions
) -> Iterator[Certificate | Exception]:
    """Run trials one after another; yields a certificate for each, or the exception the backend raised.

    After an error or a wrong backend, the remaining trials run in a new process.

    Raises:
        Stopped: `options.end` was called.
    """
    left = list(trials)
    while left:
        if options.stop.is_set():
            raise Stopped("the trials were stopped")
        for answer in _run_in_one_process(tuple(left), device, options):
            if options.stop.is_set():
                raise Stopped("the trials were stopped")
            left.pop(0)
            yield answer


def environment(side_by_side: int) -> Mapping[str, str]:
    """The variables of a trial's process, of which so many run at once."""
    variables = {**machine.PATIENT, **os.environ}
    if side_by_side > 1:
        variables.setdefault("OMP_NUM_THREADS", str(max(1, machine.cores() // side_by_side)))
    return variables


def _run_in_one_process(
    trials: Sequence[Trial], device: str, options: TrialOptions
) -> Iterator[Certificate | Exception]:
    """Yield answers, as `run_trials` does, until a trial raises, is wrong, or ends the process."""
    trials_json = json.dumps(
        [[trial.backend, asdict(trial.case) if trial.case else None] for trial in trials]
    )
    module = ["-m", "runner.job.trial", str(os.getpid()), device, trials_json]
    process = subprocess.Popen(
        [sys.executable, *options.python, *module],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment(options.side_by_side),
        start_new_session=True,  # Ctrl-C reaches the caller alone, which ends this process itself
    )
    options.running.append(process)
    answered, late = 0, Event()
    try:
        options.tell(Stage(backend=trials[0].backend, begun=0, total=0, what="starting its process"))
        for message in [] if options.stop.is_set() else _messages(process, late):
            if "begun" in message:
                options.tell(Stage(backend=trials[answered].backend, **message))
                continue
            answered += 1
            if "certificate" in message:
                yield Certificate.model_validate_json(message["certificate"])
            elif message["raised"] == "OutOfMemoryError":
                import torch

                yield torch.OutOfMemoryError(message["text"])
            else:
                raised = MemoryError if message["raised"] == "MemoryError" else RuntimeError
                yield raised(message["text"])
        process.wait()
        if late.is_set():
            yield TooLong(trials[answered])
        elif answered < len(trials) and (process.returncode or not answered):
            yield Crashed(trials[answered], process.returncode)
    finally:
        kill_group(process)
        options.running.remove(process)
        if process.stdout:
            process.stdout.close()


def _messages(process: subprocess.Popen[bytes], late: Event) -> Iterator[dict[str, Any]]:
    """The messages of a trial's process. If none comes for too long, it is killed and `late` is set."""

    def kill() -> None:
        late.set()
        kill_group(process)

    def start_timer() -> Timer:
        """A timer that the process does not wait for: a signal may come between its start and the `try`."""
        timer = Timer(LIMIT_SECONDS, kill)
        timer.daemon = True
        timer.start()
        return timer

    assert process.stdout
    timer = start_timer()
    try:
        for line in process.stdout:
            timer.cancel()
            timer = start_timer()
            yield json.loads(line)
    finally:
        timer.cancel()


def main() -> None:
    """Run the trials given on the command line; stop after the first that raises or whose backend is wrong.

    What a wrong backend did to this process must not reach the next one.
    """
    parent, device, trials_json = sys.argv[1:]
    # The same as in a run, so that a backend cannot see that it is on trial.
    sys.argv[:] = [str(Path(__file__).with_name("__main__.py"))]
    die_with(int(parent))
    leaving = QuickExit()
    say = partial(print, file=answer_stream(), flush=True)
    gc.disable()  # as in runner.job.tasks.prepare
    from model.training.certify import certify, certify_case

    gc.enable()

    def tell(begun: int, total: int, what: str) -> None:
        say(json.dumps({"begun": begun, "total": total, "what": what}))

    for backend, case in json.loads(trials_json):
        try:
            certificate = (
                certify_case(backend, Case(**case), tell) if case else certify(backend, device, tell)
            )
        except Exception as error:
            text = str(error) or type(error).__name__
            say(json.dumps({"raised": type(error).__name__, "text": text}))
            break
        say(json.dumps({"certificate": certificate.model_dump_json()}))
        if certificate.verdict == "wrong":
            break
    leaving.done = True


if __name__ == "__main__":
    main()
