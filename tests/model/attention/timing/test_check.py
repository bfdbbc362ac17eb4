"""What was timed is checked: a backend that is wrong at one size, in one head or in one gradient alone is found."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

from model import attention
from model.attention.timing import check, measure
from model.attention.timing.passes import Eager, TimedInputs
from model.record.case import Case
from tests.model.attention.verify import planted

CASE = Case("cpu", "float32", batch=2, sequence_length=96, heads=4, kv_heads=2, head_dim=16)


def backend(attend):
    return attention.Backend("planted", lambda case: [], attend, planted.BY_SOFTMAX)


def only_at(length, spoil):
    """Right, except where there are so many tokens."""

    def attend(q, k, v, causal):
        o = planted.right(q, k, v, causal)
        return spoil(o, q, k, v) if q.shape[1] == length else o

    return attend


def last_row(o, q, k, v):
    return torch.cat((o[:, :-1], 1.05 * o[:, -1:]), dim=1)


def timed(attend, case=CASE, seed=0):
    measurement = measure.measure({"planted": backend(attend)}, case, seed, 5)
    return next(kernel_time for kernel_time in measurement.times if kernel_time.direction == "backward")


def results(attend, case, seed=0):
    inputs = TimedInputs(case, seed)
    inputs.renew()
    passes = Eager(backend(attend), case, inputs)
    passes.forward()
    passes.backward()
    return inputs, passes.results


@pytest.mark.parametrize("name", ["flash", "math", "tiled"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 16), (3, 257, 4, 1, 64), (2, 96, 4, 4, 32)], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_honest_backends_pass_at_any_shape(name, shape, causal):
    case = Case("cpu", "float32", *shape, causal=causal)
    inputs, outputs = results(attention.load(name).attend, case)
    for seed in range(10):
        sample, reason = check.checked(case, inputs, outputs, Random(seed), 3)
        assert not reason and 0 <= sample.error <= 1
        assert sample.round == 4 and len(sample.rows) == check.ROWS


@pytest.mark.fault
def test_one_row_of_the_heads_that_are_looked_at_is_enough():
    kernel_time = timed(only_at(96, last_row))
    assert kernel_time.outcome == "wrong" and "row 95" in kernel_time.reason


@pytest.mark.fault
def test_single_rows_show_what_is_wrong_in_the_other_heads():
    """Every head but those whose rows are all looked at."""
    case = replace(CASE, heads=8, kv_heads=8, batch=1)

    def attend(q, k, v, causal):
        o = planted.right(q, k, v, causal)
        return torch.cat((o[:, :, :1], 1.05 * o[:, :, 1:2], o[:, :, 2:]), dim=2)

    inputs, outputs = results(attend, case)
    seeds = [
        seed for seed in range(20) if check.checked(case, inputs, outputs, Random(seed), 0)[0].first_head != 1
    ]
    reasons = [check.checked(case, inputs, outputs, Random(seed), 0)[1] for seed in seeds]
    assert len(seeds) > 10 and all("o is off by" in reason and "head 1)" in reason for reason in reasons)


@pytest.mark.fault
def test_nan_anywhere_is_found():
    inputs, outputs = results(planted.right, CASE)
    spoiled = outputs[2].clone()
    spoiled[1, 50, 1, 3] = torch.nan
    sample, reason = check.checked(CASE, inputs, (*outputs[:2], spoiled, outputs[3]), Random(0), 0)
    assert reason == "dk contains NaN or infinity" and sample.error is None


@pytest.mark.fault
def test_what_cannot_be_checked_has_no_time(monkeypatch):
    def greedy(*_):
        raise MemoryError

    monkeypatch.setattr(measure, "checked", greedy)
    kernel_time = timed(planted.right)
    assert (kernel_time.outcome, kernel_time.seconds) == ("failed", [])
    assert kernel_time.reason == "there was not enough memory to check what it gave"


def test_the_round_that_is_checked_is_drawn_for_each_backend_by_the_seed():
    samples = {seed: timed(planted.right, seed=seed).checked for seed in range(6)}
    assert timed(planted.right, seed=0).checked == samples[0]
    assert len({sample.round for sample in samples.values()}) > 1 and all(
        1 <= sample.round <= 5 for sample in samples.values()
    )
