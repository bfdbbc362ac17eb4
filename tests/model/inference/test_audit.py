"""Audits find a decoder that is wrong at a length that no certificate looks at, or only while it is timed."""

from dataclasses import replace

import pytest

from model import attention
from model.attention.verify.accuracy import judge
from model.inference import audit
from model.inference.audit import audits_of
from model.inference.infer import infer
from model.record.errors import AssayError
from model.record.text import Source
from model.training.certify import certify_case
from tests.model.attention.verify.test_decoding import of as decoder
from tests.model.attention.verify.test_decoding import right as by_softmax
from tests.model.inference.test_infer import NEW, PROMPT, decoders, run_config

MIDDLE = PROMPT + 10


class Found(AssayError):
    """An audit failed: what the judge of these tests raises."""


def audited(config, corpus, monkeypatch=None, attend=None):
    """The audits of a run, up to the first that failed."""
    verdicts = []

    def keep(taken):
        verdicts.append(judge(taken))
        if not verdicts[-1].passed:
            raise Found(f"{verdicts[-1].where}: {verdicts[-1].reason}")

    if attend:
        backend = replace(attention.load("math"), attend=attend)
        monkeypatch.setattr(attention, "require", lambda name, case: backend)
    infer(config, Source(corpus), lambda _: None, lambda _: None, judge=keep)
    return verdicts


def right(q, k, v, causal):
    return attention.load("math").attend(q, k, v, causal)


def wrong_with(keys):
    return lambda q, k, v, causal: right(q, k, v, causal) * (1.05 if k.shape[1] == keys else 1)


@pytest.mark.parametrize("backend", decoders())
def test_honest_backends_pass_at_every_length(backend, corpus):
    verdicts = audited(run_config(backend, dtype="float32"), corpus)
    assert len(verdicts) == NEW + 1 and all(verdict.passed for verdict in verdicts)
    assert {verdict.keys for verdict in verdicts} == {*range(PROMPT + 1, PROMPT + NEW + 1)}
    assert all(verdict.rows == 1 and [*verdict.tensors] == ["o"] for verdict in verdicts)


@pytest.mark.fault
def test_a_decoder_that_is_wrong_at_one_middle_length_alone_is_certified_and_found(
    plant, corpus, monkeypatch
):
    config = run_config()
    plant("planted", decoder(lambda q, k, v: by_softmax(q, k, v) * (1.05 if k.shape[1] == MIDDLE else 1)))
    assert certify_case("planted", config.attention_case).verdict == "right"
    with pytest.raises(Found, match=f"^decoding with {MIDDLE} keys, layer .*: o is off by") as error:
        audited(config, corpus, monkeypatch, wrong_with(MIDDLE))
    assert "gradient" not in str(error.value)


@pytest.mark.fault
def test_a_decoder_that_goes_wrong_once_it_is_timed_is_found(corpus, monkeypatch):
    layers, calls = run_config().model.layers, []

    def tired(q, k, v, causal):
        calls.extend([1] * (q.shape[1] == 1))
        return right(q, k, v, causal) * (1.05 if len(calls) > NEW * layers else 1)

    with pytest.raises(Found, match="^decoding with .* o is off by"):
        audited(run_config(), corpus, monkeypatch, tired)
    assert len(calls) == 2 * NEW * layers, "what is taken from a timed pass is judged after it"


def test_the_seed_alone_decides_what_is_audited_and_long_runs_have_no_more_than_a_bound():
    config = run_config()
    assert audits_of(config) == audits_of(run_config("tiled"))
    reseeded_config = config.model_copy(update={"seed": 1})
    assert audits_of(config) != audits_of(reseeded_config)
    audits = audits_of(run_config(new_tokens=4000))
    assert len(audits) == audit.MOST and min(audits) > PROMPT and max(audits) <= PROMPT + 4000
    assert {place.layer for place in audits.values()} == {0, 1, 2} and {
        place.sample for place in audits.values()
    } == {0, 1}


def test_without_a_judge_nothing_is_taken(corpus, monkeypatch):
    monkeypatch.setattr(audit.Taken, "copy", lambda *_: pytest.fail("nothing is to be taken"))
    infer(run_config(), Source(corpus), lambda _: None, lambda _: None)
