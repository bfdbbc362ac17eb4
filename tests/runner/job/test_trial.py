"""A trial's process: what it says on its way, and that it ends at once when nobody wants its answer."""

import os
from threading import Thread, Timer

import pytest

from runner.job import trial
from runner.job.trial import Crashed, Stopped, TooLong, Trial, TrialOptions, run_trials
from tests.conftest import until

# Stands for `-m runner.job.trial`: says one stage, then works for a long time.
SAID = '{"begun": 2, "total": 11, "what": "needle"}'
SLOW = ("-S", "-c", f"import time; print({SAID!r}, flush=True); time.sleep(600)")


@pytest.mark.fault
def test_a_trial_that_does_not_end_is_ended_and_says_nothing_about_the_backend(monkeypatch) -> None:
    stages = []

    class Late(Timer):
        def run(self) -> None:
            until(lambda: len(stages) == 2, 0.01)  # its process may take long to start
            super().run()

    monkeypatch.setattr(trial, "Timer", Late)
    monkeypatch.setattr(trial, "LIMIT_SECONDS", 0.1)
    (answer,) = run_trials([Trial("math")], "cpu", TrialOptions(SLOW, tell=stages.append))
    assert isinstance(answer, TooLong)
    assert "'math' had not ended a stage" in str(answer) and "launch again" in str(answer)
    assert list(map(str, stages)) == [
        "certifying math: starting its process", "certifying math (2 of 11): needle"
    ]  # fmt: skip


@pytest.mark.fault
def test_a_crash_is_that_of_the_backend_on_trial() -> None:
    answer = '{"raised": "RuntimeError", "text": "no such tile"}'
    crash = f"import sys; print({answer!r}); print({SAID!r}, flush=True); sys.exit(3)"
    stages = []
    first, second = run_trials(
        [Trial("math"), Trial("tiled")], "cpu", TrialOptions(("-S", "-c", crash), tell=stages.append)
    )
    assert isinstance(first, RuntimeError) and str(first) == "no such tile"
    assert isinstance(second, Crashed) and "'tiled' exited with code 3" in str(second)
    assert [stage.backend for stage in stages] == ["math", "tiled"]


@pytest.mark.fault
def test_an_interrupt_ends_the_trial_at_once() -> None:
    processes = []

    def interrupt(_stage) -> None:
        processes.extend(options.running)
        raise KeyboardInterrupt

    options = TrialOptions(SLOW, tell=interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(run_trials([Trial("math")], "cpu", options))
    assert [process.returncode for process in processes] == [-9]
    assert not options.running


@pytest.mark.fault
def test_a_signal_just_as_the_limit_is_set_leaves_no_thread_that_the_process_waits_for(monkeypatch) -> None:
    """A cancelled run had written its result, and its process went on for half an hour."""
    timers = []

    class Late(Timer):
        def start(self) -> None:
            super().start()
            timers.append(self)
            raise KeyboardInterrupt  # as a handler of SIGTERM does, before anybody could cancel the timer

    monkeypatch.setattr(trial, "Timer", Late)
    with pytest.raises(KeyboardInterrupt):
        list(run_trials([Trial("math")], "cpu", TrialOptions(SLOW)))
    (timer,) = timers
    timer.cancel()
    assert timer.daemon


@pytest.mark.fault
def test_trials_that_are_stopped_give_no_answer_and_start_no_others() -> None:
    options = TrialOptions(SLOW)
    options.tell = lambda _stage: Thread(target=options.end).start()
    with pytest.raises(Stopped):
        list(run_trials([Trial("math"), Trial("tiled")], "cpu", options))
    with pytest.raises(Stopped):
        list(run_trials([Trial("tiled")], "cpu", options))
    assert not options.running


def test_threads_of_a_trial_wait_without_spinning(monkeypatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert trial.environment(1)["OMP_WAIT_POLICY"] == "passive"
    assert "OMP_NUM_THREADS" not in trial.environment(1)  # a device's name has its number of threads
    assert int(trial.environment(2)["OMP_NUM_THREADS"]) <= max(1, (os.cpu_count() or 2) // 2)
