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
    found = measure.measure({"planted": backend(attend)}, case, seed, 5)
    return next(each for each in found.times if each.direction == "backward")


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
    inputs, given = results(attention.load(name).attend, case)
    for seed in range(10):
        looked_at, wrong = check.checked(case, inputs, given, Random(seed), 3)
        assert not wrong and 0 <= looked_at.error <= 1
        assert looked_at.round == 4 and len(looked_at.rows) == check.ROWS


@pytest.mark.fault
def test_one_row_of_the_heads_that_are_looked_at_is_enough():
    found = timed(only_at(96, last_row))
    assert found.outcome == "wrong" and "row 95" in found.reason


@pytest.mark.fault
def test_single_rows_show_what_is_wrong_in_the_other_heads():
    """Every head but those whose rows are all looked at."""
    case = replace(CASE, heads=8, kv_heads=8, batch=1)

    def attend(q, k, v, causal):
        o = planted.right(q, k, v, causal)
        return torch.cat((o[:, :, :1], 1.05 * o[:, :, 1:2], o[:, :, 2:]), dim=2)

    inputs, given = results(attend, case)
    seeds = [
        seed for seed in range(20) if check.checked(case, inputs, given, Random(seed), 0)[0].first_head != 1
    ]
    reasons = [check.checked(case, inputs, given, Random(seed), 0)[1] for seed in seeds]
    assert len(seeds) > 10 and all("o is off by" in each and "head 1)" in each for each in reasons)


@pytest.mark.fault
def test_nan_anywhere_is_found():
    inputs, given = results(planted.right, CASE)
    spoiled = given[2].clone()
    spoiled[1, 50, 1, 3] = torch.nan
    looked_at, wrong = check.checked(CASE, inputs, (*given[:2], spoiled, given[3]), Random(0), 0)
    assert wrong == "dk contains NaN or infinity" and looked_at.error is None


@pytest.mark.fault
def test_what_cannot_be_checked_has_no_time(monkeypatch):
    def greedy(*_):
        raise MemoryError

    monkeypatch.setattr(measure, "checked", greedy)
    found = timed(planted.right)
    assert (found.outcome, found.seconds) == ("failed", [])
    assert found.reason == "there was not enough memory to check what it gave"


def test_the_round_that_is_checked_is_drawn_for_each_backend_by_the_seed():
    seen = {seed: timed(planted.right, seed=seed).checked for seed in range(6)}
    assert timed(planted.right, seed=0).checked == seen[0]
    assert len({each.round for each in seen.values()}) > 1 and all(
        1 <= each.round <= 5 for each in seen.values()
    )
