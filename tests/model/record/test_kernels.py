"""The interval of a median, and the rate that a kernel's time comes to."""

from __future__ import annotations

import random
from math import comb
from statistics import median

import pytest

from model.measure.flops import attention_flop
from model.record import kernels
from model.record.case import Case
from model.record.kernels import KernelTime, KernelTimes, order_statistic_interval
from model.record.records import now


@pytest.mark.parametrize(("count", "ranks"), [(5, None), (6, (0, 5)), (11, (1, 9)), (31, (9, 21))])
def test_an_interval_lies_between_two_order_statistics_by_the_binomial(count, ranks):
    values = random.Random(0).sample(range(1000), count)
    ordered = sorted(values)
    assert order_statistic_interval(values) == (ranks and (ordered[ranks[0]], ordered[ranks[1]]))


def test_the_interval_holds_the_median_at_least_as_often_as_it_says():
    rng = random.Random(1)
    covering = 0
    for _ in range(2000):
        low, high = order_statistic_interval([rng.expovariate(1) for _ in range(11)])
        covering += low <= 0.6931 <= high
    assert covering / 2000 > 0.95


def test_causal_halves_the_work_and_a_backward_is_two_and_a_half_forwards():
    case = Case(
        "cuda", "bfloat16", batch=2, sequence_length=4096, heads=32, kv_heads=8, head_dim=128, causal=False
    )
    flop = 4 * 2 * 32 * 4096**2 * 128
    assert attention_flop(case, "forward") == flop
    assert attention_flop(case, "backward") == 2.5 * flop
    causal = Case(**{**vars(case), "causal": True})
    assert attention_flop(causal, "forward") == flop / 2
    assert attention_flop(causal, "backward") == 1.25 * flop


def test_the_ceiling_is_the_products_rate_at_its_median():
    case = Case("cpu", "float32", 1, 64, 4, 2, 16)
    time = KernelTime(
        attention="math", direction="forward", mode="eager", outcome="completed", seconds=[3.0, 1.0, 2.0]
    )
    record = KernelTimes(
        run_id="r1", attempt=1, case=case, rounds=3, cache_bytes=1, product_flop=100, product_seconds=[4.0, 1.0, 2.0],
        times=[time], measured_at=now(),
    )  # fmt: skip
    assert (
        record.ceiling_flops == 50
        and time.median_seconds == median([1.0, 2.0, 3.0])
        and time.interval is None
    )
    assert record.model_copy(update={"product_seconds": []}).ceiling_flops is None
    assert KernelTimes.model_validate_json(record.model_dump_json()) == record


def record(*times: KernelTime) -> str:
    kernel_times = KernelTimes.model_construct(
        schema_version=1, run_id="r1", attempt=1, case=Case("cpu", "float32", 1, 64, 4, 2, 16), rounds=1, cache_bytes=1,
        product_flop=100, product_seconds=[1.0], times=list(times), measured_at=now(),
    )  # fmt: skip
    return kernel_times.model_dump_json()


@pytest.mark.refused
@pytest.mark.parametrize("seconds", ["1e-290", "1e290", "Infinity", "NaN", "0"])
def test_times_that_no_call_takes_are_refused_before_anything_is_computed_from_them(seconds):
    time = KernelTime(
        attention="math", direction="forward", mode="eager", outcome="completed", seconds=[3.25]
    )
    with pytest.raises(ValueError, match=r"seconds\.0"):
        KernelTimes.model_validate_json(record(time).replace("3.25", seconds))


@pytest.mark.refused
def test_a_forward_that_was_timed_without_its_backward_is_refused():
    times = [
        KernelTime(attention="math", direction="forward", mode="eager", outcome="completed", seconds=[1.0]),
        KernelTime(attention="math", direction="backward", mode="eager", outcome="oom_gpu"),
    ]
    with pytest.raises(ValueError, match=r"a forward or a backward alone was timed: math \(eager\)"):
        KernelTimes.model_validate_json(record(*times))


def test_the_interval_of_many_rounds_takes_its_rank_from_memory(monkeypatch):
    ranks = []
    monkeypatch.setattr(kernels, "comb", lambda n, k: ranks.append(k) or comb(n, k))
    interval = order_statistic_interval(range(509))
    call_count = len(ranks)
    assert call_count > 0, "no other test asks for as many"
    for _ in range(20):
        assert order_statistic_interval(range(509)) == interval
    assert len(ranks) == call_count
