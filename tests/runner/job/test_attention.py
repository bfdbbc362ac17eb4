"""Attention alone: each backend is timed under its own certificate, or has rows that say why it is not."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from functools import cache

import pytest
import torch

from model import attention
from model.attention.timing import measure as bench
from model.attention.timing import traffic
from model.attention.verify import cases
from model.record.case import Case
from model.record.config import CallConfig, RunConfig
from model.record.errors import Unsupported, UserError
from model.record.folder import RunFolder
from model.record.kernels import DIRECTIONS, Traffic
from model.training.certify import certify_case
from runner.job import admission
from runner.job.manifest import first_manifest
from runner.job.stop import Stop
from runner.job.tasks import Progress, TaskContext, prepare
from runner.job.tasks import attention as task
from runner.job.trial import Crashed, Trial
from tests.analysis.fabricate import plan

CALL = CallConfig(shape="B1 T32 H2 K1 D16", dtype="float32", backends="math tiled cudnn", steps=3)


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_CERTIFICATES", str(tmp_path / "cache"))

    def make(call=CALL):
        config = RunConfig(task="attention", device="cpu", call=call)
        run = plan("r1", study="kernels").model_copy(update={"config": config})
        (tmp_path / "root" / "kernels" / "r1" / "attempt-1").mkdir(parents=True)
        folder = RunFolder(tmp_path / "root" / "kernels" / "r1")
        return TaskContext(run, folder, Progress(first_manifest("r1", 1)), Stop(None), (), None)

    return make


@pytest.fixture
def in_process(monkeypatch):
    """Trials in this process, which knows planted backends: what they answer instead, and which were held."""
    answers = {"held": []}

    def hold(trials, device, options):
        for trial in trials:
            answers["held"].append(trial.backend)
            yield answers.get(trial.backend) or certified(
                trial.backend, attention.load(trial.backend), trial.case
            )

    monkeypatch.setattr(admission, "run_trials", hold)
    return answers


@cache
def certified(name, _backend, case):
    """The certificate of a backend, from one trial for all tests that know it as it is now."""
    return certify_case(name, case)


def plant(monkeypatch, name, attend):
    planted = replace(attention.load(name), attend=attend)
    load = attention.load
    monkeypatch.setattr(attention, "load", lambda backend: planted if backend == name else load(backend))


def outcomes(context):
    record = context.folder.attempt(1).kernels
    return {row.attention: row.outcome for row in record.times if row.direction == "backward"}


def plain(q, k, v, causal):
    return attention.load("math").attend(q, k, v, causal)


def test_a_backend_is_timed_under_its_certificate_and_one_that_cannot_run_says_why(given):
    context = given()
    task.run(context)
    record = context.folder.attempt(1).kernels
    assert outcomes(context) == {"cudnn": "unsupported", "math": "completed", "tiled": "completed"}
    assert {row.traffic for row in record.times} == {None}
    assert record.case == Case("cpu", "float32", 1, 32, 2, 1, 16) and record.rounds == 3
    for row in record.times:
        certificate = context.folder.path.parent.parent / ".certificates" / f"{row.certificate}.json"
        assert certificate.exists() == (row.outcome == "completed") == (len(row.seconds) == 3)
    refused = [row for row in record.times if row.attention == "cudnn"]
    assert all("needs an NVIDIA GPU" in row.reason for row in refused) and len(refused) == 2
    assert context.progress.steps == 3


def test_a_tile_reaches_the_backend_its_record_and_its_certificate_and_others_are_unsupported(given):
    context = given(CALL.model_copy(update={"tile": "64x32", "backends": "math tiled"}))
    task.run(context)
    record = context.folder.attempt(1).kernels
    assert record.case.tile == (64, 32)
    assert outcomes(context) == {"math": "unsupported", "tiled": "completed"}
    (reason,) = {row.reason for row in record.times if row.attention == "math"}
    assert reason == attention.no_tiles(record.case)
    (certified,) = (context.folder.path.parent.parent / ".certificates").glob("*.json")
    assert json.loads(certified.read_text())["case"]["tile"] == [64, 32]


def test_bytes_are_counted_after_the_timing_if_asked_and_of_what_was_timed_alone(
    given, in_process, monkeypatch
):
    calls = []

    def measure(names, case, python, should_stop, tell):
        calls.append((names, case, python))
        tell("math", 1, 4)
        return {(name, way): Traffic(formula_bytes=5, reason=way) for name in names for way in DIRECTIONS}

    monkeypatch.setattr(traffic, "measure", measure)
    context = given(CALL.model_copy(update={"traffic": True}))
    task.run(context)
    assert calls == [(["math", "tiled"], context.run.config.attention_case, ())]
    times = context.folder.attempt(1).kernels.times
    reasons = {(row.attention, row.direction): row.traffic and row.traffic.reason for row in times}
    assert reasons == {
        (name, way): way if name != "cudnn" else None
        for name in ("cudnn", "math", "tiled")
        for way in DIRECTIONS
    }


@pytest.mark.fault
def test_a_tile_that_a_kernel_refuses_in_its_trial_is_unsupported_and_its_sentence_stays(
    given, in_process, monkeypatch
):
    def refuse(q, k, v, causal, tile):
        raise Unsupported([f"needs more for a tile of {tile[0]} x {tile[1]}: change call.tile"])

    planted = replace(attention.load("tiled"), attend_by_tile=refuse)
    load = attention.load
    monkeypatch.setattr(attention, "load", lambda backend: planted if backend == "tiled" else load(backend))
    context = given(CALL.model_copy(update={"tile": "512x512", "backends": "tiled"}))
    with pytest.raises(Unsupported):
        task.run(context)
    assert outcomes(context) == {"tiled": "unsupported"}
    reasons = {row.reason for row in context.folder.attempt(1).kernels.times}
    assert reasons == {"needs more for a tile of 512 x 512: change call.tile"}


@pytest.mark.fault
def test_a_wrong_backend_has_a_row_that_says_so_and_no_time(given, in_process, monkeypatch):
    plant(monkeypatch, "tiled", lambda q, k, v, causal: 1.01 * plain(q, k, v, causal))
    context = given()
    task.run(context)
    assert outcomes(context) == {"cudnn": "unsupported", "math": "completed", "tiled": "wrong"}
    rows = [row for row in context.folder.attempt(1).kernels.times if row.outcome == "wrong"]
    assert all("failed verification here" in row.reason and not row.seconds for row in rows)
    root = context.folder.path.parent.parent
    assert all((root / ".certificates" / f"{row.certificate}.json").exists() for row in rows)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Crashed(Trial("tiled"), -11), "wrong"),
        (Crashed(Trial("tiled"), -9), "oom_host"),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom_host"),
        (MemoryError("no room"), "oom_host"),
        (RuntimeError("something else"), "failed"),
    ],
    ids=["crash", "killed", "gpu memory", "host memory", "error"],
)
def test_a_trial_that_ends_otherwise_is_told_apart_and_the_others_are_timed(
    given, in_process, answer, outcome
):
    in_process["tiled"] = answer
    context = given()
    task.run(context)
    assert outcomes(context) == {"cudnn": "unsupported", "math": "completed", "tiled": outcome}


@pytest.mark.fault
@pytest.mark.parametrize(
    ("reasons", "message"),
    [
        (None, "'tiled' cannot be imported"),
        (lambda case: {}["dtype"], "`unsupported_reasons` raised KeyError: 'dtype'"),
        (lambda case: "no", "`unsupported_reasons` returned 'no', not a list of sentences"),
    ],
    ids=["loaded", "asked", "text"],
)
def test_a_backend_that_cannot_be_loaded_or_asked_has_a_row_that_says_so(
    given, in_process, monkeypatch, reasons, message
):
    load = attention.load

    def broken(name):
        if name != "tiled":
            return load(name)
        if reasons is None:
            raise UserError("'tiled' cannot be imported")
        return replace(load(name), unsupported_reasons=reasons)

    monkeypatch.setattr(attention, "load", broken)
    context = given()
    task.run(context)
    assert outcomes(context) == {"cudnn": "unsupported", "math": "completed", "tiled": "failed"}
    assert {row.reason for row in context.folder.attempt(1).kernels.times if row.outcome == "failed"} == {
        message
    }


@pytest.mark.fault
def test_a_backend_that_fails_after_its_trial_has_no_time(given, in_process, monkeypatch):
    calls = []
    context = given()
    in_process["tiled"] = certify_case("tiled", context.run.config.attention_case)

    def tired(q, k, v, causal):
        if calls:
            raise ValueError("tired")
        return plain(q, k, v, causal)

    plant(monkeypatch, "tiled", tired)
    real = bench.measure
    monkeypatch.setattr(bench, "measure", lambda *values: calls.append(1) or real(*values))
    task.run(context)
    assert outcomes(context)["tiled"] == "failed" and outcomes(context)["math"] == "completed"


@pytest.mark.refused
def test_a_shape_that_no_backend_takes_is_unsupported_with_all_reasons_and_no_trial(given, in_process):
    context = given(CALL.model_copy(update={"backends": "cudnn efficient"}))
    with pytest.raises(Unsupported) as error:
        task.run(context)
    assert [reason.partition(":")[0] for reason in error.value.reasons] == ["cudnn", "efficient"]
    assert outcomes(context) == {"cudnn": "unsupported", "efficient": "unsupported"}
    assert in_process["held"] == []


@pytest.mark.fault
def test_a_run_that_timed_nothing_is_not_completed(given, in_process, monkeypatch):
    in_process["math"] = MemoryError("no room")
    context = given(CALL.model_copy(update={"backends": "math cudnn"}))
    with pytest.raises(task.Untimed, match="math: in its trial, MemoryError: no room"):
        task.run(context)
    assert outcomes(context) == {"cudnn": "unsupported", "math": "oom_host"} and context.progress.steps == 0


def test_what_is_certified_is_not_tried_again(given, in_process, monkeypatch):
    context = given()
    task.run(context)

    def none(trials, *_):
        assert trials == []
        return iter(())

    monkeypatch.setattr(admission, "run_trials", none)
    task.run(context)
    assert outcomes(context)["math"] == "completed"


STUDY = """\
title: Alone
base: {task: attention, device: cpu, call: {dtype: float32, steps: 3, backends: math flash cudnn}}
matrix: {call.shape: [B1 T16 H2 D16]}
"""


@pytest.mark.trains
def test_a_study_is_launched_collected_and_reported_and_a_second_launch_measures_what_is_missing(
    runner, root, tmp_path
):
    path = tmp_path / "alone.yaml"
    path.write_text(STUDY)
    runner("launch", path, rc=0, RUNNER_CERTIFICATES=str(tmp_path / "cache"))
    path.write_text(STUDY.replace("B1 T16 H2 D16", "B1 T16 H2 D16, B2 T16 H2 D16"))
    relaunch = runner("launch", path, rc=0, RUNNER_CERTIFICATES=str(tmp_path / "cache"))
    assert "1 to do" in relaunch.stderr
    runner("collect", rc=0)
    query = "SELECT batch, attention, outcome, calls FROM kernels WHERE direction = 'both' ORDER BY ALL"
    rows = json.loads(runner("sql", query, "--format", "json", rc=0).stdout)
    assert [tuple(row.values()) for row in rows] == [
        (batch, name, *(("unsupported", 0) if name == "cudnn" else ("completed", 3)))
        for batch in (1, 2)
        for name in ("cudnn", "flash", "math")
    ]
    runner("report", "alone", "--out", tmp_path / "report", rc=0)
    runner("audit", tmp_path / "report", rc=0)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("takes up to 256, not 512: set model.heads to model.dim / 256", "takes up to 256, not 512: change call.shape"),
        ("too many rows: lower train.batch_size or train.sequence_length", "too many rows: change call.shape"),
        (
            "no bfloat16 here: use --set train.dtype=float32, or --set attention=math",
            "no bfloat16 here: use --set call.dtype=float32, or --set call.backends=math",
        ),
        ("needs triton: install PyTorch", "needs triton: install PyTorch"),
        ("takes 64, not 192: change model.dim; needs a GPU: use another node", "takes 64, not 192: change call.shape; needs a GPU: use another node"),
    ],
)  # fmt: skip
def test_a_reason_names_settings_that_this_task_has(reason, sentence):
    assert RunConfig(task="attention", call=CALL).section.in_own_words(reason) == sentence


def test_an_error_keeps_its_words_whatever_settings_they_seem_to_name(given, monkeypatch):
    def refused(name, case):
        raise UserError("raised KeyError: model.dim")

    monkeypatch.setattr(attention, "require", refused)
    context = given(CALL.model_copy(update={"backends": "math"}))
    with pytest.raises(task.Untimed):
        task.run(context)
    rows = context.folder.attempt(1).kernels.times
    assert {(row.outcome, row.reason) for row in rows} == {("failed", "raised KeyError: model.dim")}


@pytest.mark.fault
def test_a_backend_that_is_wrong_at_the_runs_shape_alone_has_rows_that_name_its_certificate(
    given, in_process, monkeypatch
):
    def wrong_here(q, k, v, causal):
        return plain(q, k, v, causal) * (1.05 if q.shape[1] == 32 else 1)

    context = given(CALL.model_copy(update={"backends": "math tiled"}))
    in_process["tiled"] = certify_case("tiled", cases.shared(context.run.config.attention_case))
    plant(monkeypatch, "tiled", wrong_here)
    task.run(context)
    assert outcomes(context) == {"math": "completed", "tiled": "wrong"}
    rows = [row for row in context.folder.attempt(1).kernels.times if row.outcome == "wrong"]
    assert all(row.certificate == in_process["tiled"].key and "in round" in row.reason for row in rows)


def test_shapes_that_differ_in_size_alone_share_certificates(given, in_process):
    context = given(CALL.model_copy(update={"backends": "math"}))
    task.run(context)
    other = CALL.model_copy(update={"backends": "math", "shape": "B3 T48 H2 K1 D16"})
    config = context.run.config.model_copy(update={"call": other})
    task.run(replace(context, run=context.run.model_copy(update={"config": config})))
    assert in_process["held"] == ["math"] and outcomes(context) == {"math": "completed"}


def test_a_backend_that_does_not_take_the_shared_shape_has_a_certificate_of_its_own(
    given, in_process, monkeypatch
):
    math = attention.load("math")
    short = replace(math, unsupported_reasons=lambda case: ["is long"] if case.sequence_length > 32 else [])
    load = attention.load
    monkeypatch.setattr(attention, "load", lambda backend: short if backend == "math" else load(backend))
    context = given(CALL.model_copy(update={"backends": "math"}))
    task.run(context)
    assert outcomes(context) == {"math": "completed"}
    (path,) = (context.folder.path.parent.parent / ".certificates").glob("*.json")
    assert not json.loads(path.read_text())["case"].get("any_size")


@pytest.mark.fault
@pytest.mark.trains
def test_a_shape_beyond_any_memory_runs_out_of_it(runner, root, tmp_path):
    path = tmp_path / "alone.yaml"
    path.write_text(
        STUDY.replace("math flash cudnn", "math").replace("B1 T16 H2", "B999999999 T999999999 H999999998")
    )
    process = runner("launch", path, rc=1, RUNNER_CERTIFICATES=str(tmp_path / "cache"))
    assert "oom_host" in process.stdout and "larger than any memory" in process.stdout


@pytest.mark.parametrize(
    ("task", "device", "waits"),
    [("attention", "cpu", True), ("attention", "cuda", False), ("training", "cpu", True)],
)
def test_threads_of_every_run_on_a_cpu_wait_without_spinning(monkeypatch, task, device, waits):
    """Beside a busy process, calls took 20 to 50 times as long."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")  # the user's own
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    call = (
        {"call": CALL}
        if task == "attention"
        else {"data": {"path": "x.parquet"}, "train": {"dtype": "float32"}}
    )
    prepare(RunConfig.model_validate({"task": task, "device": device, **call}))
    assert os.environ.get("OMP_WAIT_POLICY") == ("passive" if waits else None)
    assert os.environ["KMP_BLOCKTIME"] == "7"


def test_slow_timing_says_where_it_is_but_not_all_the_time(monkeypatch):
    clock, stages = iter([0.0, 1.0, 6.0, 6.0, 7.0, 12.0, 12.0]), []
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    call = task.timing_shown(stages.append)
    for number in range(1, 5):
        call("math", number, 7, "eager")
    assert [str(stage) for stage in stages] == [
        f"timing math ({number} of 7): round {number}, called from Python" for number in (2, 4)
    ]
