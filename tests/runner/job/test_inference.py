"""A job of task inference leaves prefills and decoded positions, and none of what only training has."""

import math
from dataclasses import replace
from itertools import count

import pytest

from model import attention
from model.measure.floor import floor
from model.measure.flops import prefill_flop_per_token
from model.record.files import read, read_lines, write
from model.record.folder import RunFolder
from model.record.records import StepRecord
from model.record.speed import NodeRecord
from model.record.text import Source
from runner.job import attempt
from runner.job.stop import Stop
from tests.analysis.fabricate import plan
from tests.model.inference.test_infer import NEW, PROMPT, run_config


@pytest.fixture
def attempted(tmp_path, corpus, monkeypatch, ceilings_here):
    """Runs an attempt in this process without a trial, and returns it."""
    monkeypatch.setattr(Stop, "listen", lambda _: None)
    monkeypatch.setattr(attempt, "require_certificate", lambda *_: "key")
    recorded = {"data_file": str(corpus), "tokenizer": "bytes"}

    def run(record=(), **config):
        fingerprint = Source(corpus).checked("text").fingerprint()
        planned = plan("x").model_copy(
            update=recorded
            | {"config": run_config(**config), "data_fingerprint": fingerprint, **dict(record)}
        )
        folder = RunFolder(tmp_path / "backends" / "x")
        folder.path.mkdir(parents=True)
        write(folder.path / "run.json", planned)
        folder.attempt(1).path.mkdir()
        attempt.run_attempt(folder, 1)
        return folder.attempt(1)

    return run


def test_it_leaves_a_record_of_each_prefill_and_of_each_decoded_position(attempted):
    done = attempted()
    assert done.settled == ("completed", None)
    steps = read_lines(done.path / "steps.jsonl", StepRecord)
    assert [step.step for step in steps] == [1, 2, 3]
    assert [row.position for row in done.decoded] == list(range(PROMPT, PROMPT + NEW))
    assert (done.result.steps, done.result.final_loss) == (3, None)
    assert {path.name for path in done.path.iterdir()} == {
        "manifest.json", "steps.jsonl", "audits.jsonl", "decode.jsonl", "result.json", "profile.json",
    }  # fmt: skip
    assert {audit.keys for audit in done.audits} == {*range(PROMPT + 1, PROMPT + NEW + 1)}


@pytest.mark.fault
def test_a_decoder_that_is_wrong_at_one_length_ends_the_run_with_the_place(attempted, monkeypatch):
    math = attention.load("math")

    def wrong(q, k, v, causal):
        return math.attend(q, k, v, causal) * (1.05 if k.shape[1] == PROMPT + 2 else 1)

    monkeypatch.setattr(attention, "require", lambda name, case: replace(math, attend=wrong))
    done = attempted()
    outcome, reason = done.settled
    assert outcome == "failed" and f"attention is wrong in decoding with {PROMPT + 2} keys, layer " in reason
    assert not done.audits[-1].passed and done.decoded == []


def test_its_flop_per_token_are_those_of_a_prefill(attempted):
    manifest = attempted(new_tokens=0).manifest
    assert manifest.flop_per_token == prefill_flop_per_token(run_config().model, PROMPT)
    assert manifest.certificate == "key"


@pytest.mark.parametrize(("new_tokens", "phases"), [(NEW, ["step", "decode"]), (0, ["step"])])
def test_its_prefill_and_its_decoded_token_have_a_floor_and_a_profile(
    attempted, new_tokens, phases, monkeypatch
):
    monkeypatch.setattr("model.record.speed.MOST_SPREAD", math.inf)  # whatever else the machine does
    done = attempted(new_tokens=new_tokens)
    manifest, profile = done.manifest, done.profile
    (node,) = (done.path.parent.parent / ".nodes").iterdir()
    record = read(node, NodeRecord)
    assert (manifest.ceilings, manifest.no_ceilings, record.dtype) == (node.stem, None, "float32")
    assert {product.step for product in record.measured.products} == {"forward"}
    assert manifest.floor == floor(run_config(new_tokens=new_tokens), record.measured)
    assert profile.reason is None and profile.steps == 1
    for parts in (manifest.floor, profile.parts):
        assert list(dict.fromkeys(part.phase for part in parts)) == phases


@pytest.mark.fault
def test_one_that_is_stopped_says_that_it_starts_over(attempted, monkeypatch):
    calls = count()
    monkeypatch.setattr(Stop, "requested", lambda stop: next(calls) >= 1)
    done = attempted()
    assert done.settled[0] == "cancelled"
    assert done.settled[1].endswith("its 2 steps are lost, so it starts over")
    assert not done.decoded


@pytest.mark.fault
def test_one_that_nears_its_time_limit_is_not_requeued_to_start_over_for_ever(attempted, monkeypatch):
    def near(stop):
        stop.cause = "deadline"
        return True

    monkeypatch.setattr(Stop, "requested", near)
    monkeypatch.setattr(
        attempt.slurm, "claim_next_job", lambda *_: pytest.fail("it has nothing to go on from")
    )
    done = attempted(record={"chain": True})
    outcome, reason = done.settled
    assert outcome == "timeout" and "so it starts over" in reason and done.result.steps == 1


def test_a_reason_names_the_settings_of_inference(attempted):
    done = attempted(backend="flash", dtype="bfloat16")
    outcome, reason = done.settled
    assert outcome == "unsupported"
    assert "--set inference.dtype=float32" in reason and "train." not in reason


def test_a_backend_that_cannot_decode_ends_unsupported_for_that_reason(attempted, monkeypatch):
    math = attention.load("math")
    alone = attention.Backend("alone", math.unsupported_reasons, math.attend, math.launches)
    monkeypatch.setattr(attention, "load", lambda _: alone)
    done = attempted()
    assert done.settled == ("unsupported", attention.NOT_CACHED)
