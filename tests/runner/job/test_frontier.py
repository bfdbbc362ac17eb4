"""The frontier: which values are tried, how a probe's process can end, and what a whole search leaves."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from model.measure.memory import IMPORTED, OUTSIDE, peak_memory
from model.record.config import FrontierConfig, ModelConfig, RunConfig
from model.record.errors import Interrupted, Unsupported, UserError
from model.record.folder import RunFolder
from runner.job.manifest import first_manifest
from runner.job.stop import Stop
from runner.job.tasks import Progress, TaskContext
from runner.job.tasks import frontier as task
from tests.analysis.fabricate import plan

TINY = ModelConfig(dim=64, layers=2, heads=4, kv_heads=2, ffn_dim=128, vocab_size=512)
SOUGHT = FrontierConfig(find="batch_size", batch_size=4096, multiple=4, sequence_length=128, dtype="float32")


def search(fits, first, most=10_000, resolution=0.03, limit=50):
    """The values tried where `fits` decides, and their purposes."""
    outcomes, trials = {}, []

    def remaining():
        return limit - sum(trial.purpose == "search" for trial in trials)

    while trial := task.next_try(outcomes, first, most, resolution, remaining()):
        assert trial.factor not in outcomes and 1 <= trial.factor <= most
        trials.append(trial)
        outcomes[trial.factor] = fits(trial.factor)
    return trials


def largest(fits, trials):
    return max((trial.factor for trial in trials if fits(trial.factor)), default=0)


def test_a_frontier_within_a_tenth_of_the_forecast_takes_four_probes():
    for first in (50, 317, 1000, 4444):
        for truth in range(int(0.9 * first) + 1, int(1.1 * first)):
            trials = search(lambda count, truth=truth: count <= truth, first)
            searched = [trial for trial in trials if trial.purpose == "search"]
            assert len(searched) <= 4, (first, truth, trials)
            frontier = largest(lambda count, truth=truth: count <= truth, trials)
            assert truth - max(1, 0.03 * truth) - 1 < frontier <= truth, (first, truth, trials)


@pytest.mark.parametrize("truth", [0, 1, 2, 7, 300, 9_999, 10_000])
@pytest.mark.parametrize("first", [0, 1, 250, 10_000])
def test_any_frontier_is_found_however_wrong_the_forecast(truth, first):
    trials = search(lambda count: count <= truth, first)
    frontier = largest(lambda count: count <= truth, trials)
    assert truth - max(1, 0.03 * truth) < frontier + 1 and frontier <= truth
    assert len(trials) < 30


def test_values_above_one_that_does_not_fit_are_tried_and_one_that_fits_counts():
    def fits(count):
        return count <= 100 or 104 <= count <= 108

    trials = search(fits, 100, resolution=0.01)
    assert largest(fits, trials) > 103, trials
    monotone = search(lambda count: count <= 100, 100, resolution=0.01)
    assert sum(trial.factor > 100 for trial in monotone) >= 3


def test_values_above_are_tried_although_the_search_has_no_probes_left():
    trials = search(lambda count: count <= 945, 1000, limit=2)
    assert [(trial.factor, trial.purpose) for trial in trials] == [
        (1000, "search"), (900, "search"), (1100, "above"), (1200, "above"),
    ]  # fmt: skip
    nothing = search(lambda count: count <= 500, 1000, limit=2)
    assert [trial.purpose for trial in nothing] == ["search"] * 2


def test_the_search_ends_at_the_largest_value_that_may_be_tried():
    assert [trial.factor for trial in search(lambda _count: True, 20, most=20)] == [20]
    assert largest(lambda _count: True, search(lambda _count: True, 5, most=20)) == 20


@pytest.fixture
def given(tmp_path, monkeypatch):
    # What other tests have left in this process's memory must not lessen what is left for a probe.
    monkeypatch.setattr(task.hostmemory, "in_use", lambda: 2**27)

    def make(memory=600 * 2**20, **changes):
        section = SOUGHT.model_copy(update=changes)
        config = RunConfig(task="frontier", attention="math", device="cpu", model=TINY, frontier=section)
        run = plan("r1", study="frontier").model_copy(update={"config": config, "memory_bytes": memory})
        (tmp_path / "root" / "frontier" / "r1" / "attempt-1").mkdir(parents=True)
        folder = RunFolder(tmp_path / "root" / "frontier" / "r1")
        return TaskContext(run, folder, Progress(first_manifest("r1", 1)), Stop(None), (), None)

    return make


@pytest.fixture
def admitted(monkeypatch):
    """Admission without a trial: those are tried elsewhere."""

    class Given:
        key = "k1"

    monkeypatch.setattr(task.admission, "admit", lambda *_: Given())


def planted(monkeypatch, answer):
    """Probes that answer by their value."""

    def run_process(_command, request, _limit, _context):
        return {"seconds": 1.0} | answer(json.loads(request)["value"])

    monkeypatch.setattr(task, "run_process", run_process)


FITS = {"outcome": "fits", "reason": None, "peak_bytes": 2**28}
OOM = {"outcome": "oom_gpu", "reason": "out of memory", "peak_bytes": 2**29}


def test_each_probe_is_recorded_with_its_forecast_and_the_largest_is_the_runs_memory(
    given, admitted, monkeypatch
):
    planted(monkeypatch, lambda value: FITS if value <= 120 else OOM)
    context = given()
    task.run(context)
    record = context.folder.attempt(1).frontier
    assert 116 <= record.largest.value <= 120
    first = record.probes[0]
    assert first.value == record.foreseen
    config = context.run.config
    for probe in record.probes:
        training = config.frontier.training(config, probe.value)
        assert (training.train.batch_size, training.train.steps) == (probe.value, 3)
        assert probe.forecast_bytes == IMPORTED + peak_memory(training)
    above = config.frontier.training(config, record.foreseen + 4)
    assert first.forecast_bytes <= record.card_bytes < IMPORTED + peak_memory(above)
    assert context.progress.memory_bytes == 2**28
    assert context.progress.steps == len(record.probes)
    assert not (context.attempt / "phase.json").exists()


def test_an_edge_is_no_fit(given, admitted, monkeypatch):
    edge = {"outcome": "edge", "reason": "the allocator had to free its cache 2 times", "retries": 2}
    planted(
        monkeypatch,
        lambda value: FITS if value <= 80 else edge | {"peak_bytes": 2**28} if value <= 120 else OOM,
    )
    context = given()
    task.run(context)
    record = context.folder.attempt(1).frontier
    assert 76 <= record.largest.value <= 80
    assert {probe.outcome for probe in record.probes if 80 < probe.value <= 120} == {"edge"}


def test_a_probe_that_hangs_or_dies_is_stated_and_is_no_number(given, admitted, monkeypatch):
    def answer(value):
        if value <= 60:
            return FITS
        return {"outcome": "timeout", "reason": "had not done its steps after 300 s"}

    planted(monkeypatch, answer)
    context = given()
    task.run(context)
    record = context.folder.attempt(1).frontier
    assert record.largest.value <= 60
    assert {probe.peak_bytes for probe in record.probes if probe.outcome == "timeout"} == {None}


def test_a_run_of_which_no_probe_says_anything_fails_and_keeps_the_probes(given, admitted, monkeypatch):
    planted(monkeypatch, lambda _value: {"outcome": "failed", "reason": "killed by SIGSEGV"})
    context = given(steps=3)
    with pytest.raises(task.Unknown, match="SIGSEGV"):
        task.run(context)
    assert len(context.folder.attempt(1).frontier.probes) == 3


def test_a_backend_that_refuses_every_value_is_unsupported(given, admitted, monkeypatch):
    reason = "heads do not fit: change train.sequence_length"
    planted(monkeypatch, lambda _value: {"outcome": "unsupported", "reason": reason})
    with pytest.raises(Unsupported, match="change frontier.sequence_length"):
        task.run(given(steps=3))


def test_a_frontier_on_a_cpu_needs_a_limit(given, admitted):
    with pytest.raises(UserError, match="set `memory` in the profile"):
        task.run(given(memory=None))


def test_on_a_gpu_the_backend_is_asked_in_a_process_of_its_own(given, admitted, monkeypatch):
    """A context of CUDA in the run's own process took 522 MiB from every probe of three backends of five."""

    def here(_config):
        raise AssertionError("asked in the run's own process")

    context = given()
    config = context.run.config.model_copy(update={"device": "cuda", "attention": "flash2"})
    asking = replace(context, run=context.run.model_copy(update={"config": config}))
    assert task._refuses_shared(context) is False
    monkeypatch.setattr(task, "_refuses_shared_here", here)
    with pytest.raises(Unsupported, match="the package with `flash_attn` is not installed"):
        task._refuses_shared(asking)
    command = [*task._command(context)]
    request = json.dumps({"config": context.run.config.model_dump(mode="json"), "value": None})
    assert task.run_process(command, request, 100, context)["refuses_shared"] is False


def test_a_stop_between_probes_is_obeyed(given, admitted, monkeypatch):
    planted(monkeypatch, lambda _value: FITS)
    context = given()
    context.stop.cause = "signal"
    with pytest.raises(Interrupted):
        task.run(context)


CODE = "import sys, json; sys.stdin.read(); "


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        ("import time; time.sleep(60)", "timeout", "had not done its steps after 2 s"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "failed", "killed by SIGSEGV"),
        (
            "raise ValueError('no such kernel')",
            "failed",
            "code 1 without a result: ValueError: no such kernel",
        ),
        (
            "import os; os.write(2, b'terminate called after throwing an instance of \\'std::bad_alloc\\'\\n');"
            "os.abort()",
            "oom_host",
            "out of host memory",
        ),
        ("print('probe: ' + json.dumps({'outcome': 'fits', 'reason': None}))", "fits", None),
    ],
)
def test_how_a_process_ends_decides_what_its_probe_says(given, code, outcome, reason):
    limit = 2 if outcome == "timeout" else 60
    context = given()
    answer = task.run_process([sys.executable, "-c", CODE + code], "{}", limit, context)
    assert answer["outcome"] == outcome
    assert (answer["reason"] is None) == (reason is None) and (reason or "") in (answer["reason"] or "")
    assert answer["seconds"] < 50
    assert not context.progress.apart


def test_a_probe_that_finds_its_gpu_full_tells_nothing_of_its_value(monkeypatch):
    class OutOfMemoryError(RuntimeError):
        """As torch's is called."""

    def full(_device):
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB.")

    config = RunConfig(task="frontier", attention="math", model=TINY, frontier=SOUGHT)
    request = {
        "config": config.model_dump(mode="json"), "value": 4, "card_bytes": 2**30, "emulated": False, "source": "",
    }  # fmt: skip
    monkeypatch.setattr(task.sys, "argv", ["frontier", "1"])
    monkeypatch.setattr(task.sys, "stdin", io.StringIO(json.dumps(request)))
    monkeypatch.setattr(task, "die_with", lambda _parent: None)
    monkeypatch.setattr(task, "QuickExit", SimpleNamespace)
    monkeypatch.setattr(task, "answer_stream", lambda: answers)
    monkeypatch.setattr(task.machine, "wait_patiently", lambda _device: None)
    monkeypatch.setattr(task.machine, "device_users", full)
    answers = io.StringIO()
    with pytest.raises(OutOfMemoryError):
        task.main()
    answer = json.loads(answers.getvalue().removeprefix("probe: "))
    assert answer["outcome"] == "failed"
    assert answer["reason"].startswith("before it began to train: ")
    assert "Tried to allocate 2.00 MiB" in answer["reason"]


@pytest.mark.trains
def test_real_probes_on_a_cpu_fit_below_the_limit_and_run_out_of_memory_above(given, admitted):
    context = given(memory=1200 * 2**20, memory_fraction=0.4, steps=5, resolution=0.2)
    task.run(context)
    record = context.folder.attempt(1).frontier
    assert record.card_bytes == int(0.4 * 1200 * 2**20) and record.memory_fraction == 0.4
    assert {"fits", "oom_host"} == {probe.outcome for probe in record.probes}
    fitting = [probe for probe in record.probes if probe.outcome == "fits"]
    assert all(2**27 < probe.peak_bytes <= record.card_bytes for probe in fitting)
    failure = min(
        (probe for probe in record.probes if probe.outcome != "fits"), key=lambda probe: probe.value
    )
    assert failure.value > record.largest.value
    assert "40 % of `memory` of profile alps" in failure.reason


def test_the_forecast_on_a_gpu_leaves_room_for_cuda():
    config = RunConfig(
        task="frontier", model=TINY, frontier=FrontierConfig(sequence_length=2**21, multiple=256)
    )
    card = 2**31
    count = task.forecast_frontier(config, 8192, card)
    assert 0 < count < 8192
    assert task.forecast(config, count) + OUTSIDE <= card < task.forecast(config, count + 1) + OUTSIDE
    assert task.forecast(config, count) == peak_memory(config.frontier.training(config, 256 * count))


@pytest.mark.parametrize("find", ["sequence_length", "batch_size", "layers"])
def test_a_probe_differs_from_the_next_by_what_is_sought_alone(find):
    section = FrontierConfig(
        find=find, multiple=2, batch_size=8, optimizer="adamw_one_pass", checkpoint_activations=True
    )
    config = RunConfig(task="frontier", model=TINY, frontier=section)
    two, four = (section.training(config, value).model_dump() for value in (2, 4))
    place = "model" if find == "layers" else "train"
    assert (two[place].pop(find), four[place].pop(find)) == (2, 4)
    assert two == four
    assert two["train"]["optimizer"] == "adamw_one_pass" and two["train"]["checkpoint_activations"]


@pytest.mark.refused
def test_a_multiple_above_the_most_is_refused():
    with pytest.raises(ValueError, match=r"model.layers, .* below frontier.multiple 3"):
        RunConfig(task="frontier", model=TINY, frontier=FrontierConfig(find="layers", multiple=3))
    with pytest.raises(ValueError, match="multiple 3 is not a multiple of accumulate 2"):
        FrontierConfig(find="batch_size", multiple=3, accumulate=2)
