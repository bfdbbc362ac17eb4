"""Backends timed side by side: a slow one is slow, a failing one fails, and the others are not disturbed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch

from model import attention
from model.attention.timing import measure as bench
from model.attention.timing.device import Cpu, Timed
from model.attention.timing.passes import Eager, TimedInputs
from model.record.case import Case
from model.record.errors import Interrupted, Unsupported

CASE = Case("cpu", "float32", batch=1, sequence_length=64, heads=4, kv_heads=2, head_dim=16)
ROUNDS = 7


def planted(attend):
    return replace(attention.load("math"), attend=attend)


def plain(q, k, v, causal):
    return attention.load("math").attend(q, k, v, causal)


def by_name(measurement):
    return {(kernel_time.attention, kernel_time.direction): kernel_time for kernel_time in measurement.times}


def test_every_backend_is_called_once_in_each_round_in_orders_that_differ():
    orders = {}
    measurement = bench.measure(
        {name: attention.load(name) for name in ("flash", "math", "tiled")},
        CASE,
        0,
        ROUNDS,
        tell=lambda name, number, _count, _mode: orders.setdefault(number, []).append(name),
    )
    times = by_name(measurement)
    assert len(times) == 6 and all(kernel_time.outcome == "completed" for kernel_time in times.values())
    assert (
        {len(kernel_time.seconds) for kernel_time in times.values()}
        == {ROUNDS}
        == {len(measurement.product_seconds)}
    )
    assert len(orders) == ROUNDS and all(
        Counter(order) == Counter(["flash", "math", "tiled", "the large product"])
        for order in orders.values()
    )
    assert len({tuple(order) for order in orders.values()}) > 1


def test_the_same_seed_gives_the_same_orders_and_numbers(monkeypatch):
    def calls_for(seed):
        calls = []
        backends = {
            name: planted(
                lambda q, k, v, c, name=name: calls.append((name, q.sum().item())) or plain(q, k, v, c)
            )
            for name in "ab"
        }
        bench.measure(backends, CASE, seed, 3)
        return calls

    assert calls_for(1) == calls_for(1) != calls_for(2)


def test_all_backends_of_a_round_read_the_same_numbers_and_each_round_has_new_ones():
    sums = {"a": [], "b": []}
    backends = {
        name: planted(lambda q, k, v, c, series=series: series.append(q.sum().item()) or plain(q, k, v, c))
        for name, series in sums.items()
    }
    bench.measure(backends, CASE, 0, 5)
    assert sums["a"][-5:] == sums["b"][-5:] and len(set(sums["a"][-5:])) == 5


def test_a_slow_backend_is_slow_and_a_copy_that_it_makes_counts():
    def wasteful(q, k, v, causal):
        torch.zeros(2**22).sort()
        return plain(q, k, v, causal)

    times = by_name(
        bench.measure({"math": attention.load("math"), "slow": planted(wasteful)}, CASE, 0, ROUNDS)
    )
    assert times["slow", "forward"].median_seconds > 5 * times["math", "forward"].median_seconds
    assert times["slow", "forward"].memory_bytes > times["math", "forward"].memory_bytes + 2**23


@pytest.mark.fault
def test_a_backend_that_raises_has_no_time_and_the_others_have_theirs():
    def broken(q, k, v, causal):
        raise ValueError("no such\nkernel")

    times = by_name(
        bench.measure({"math": attention.load("math"), "broken": planted(broken)}, CASE, 0, ROUNDS)
    )
    for direction in ("forward", "backward"):
        failure = times["broken", direction]
        assert (failure.outcome, failure.reason) == ("failed", "ValueError: no such kernel")
        assert (
            failure.seconds == []
            and failure.median_seconds is None
            and failure.interval is None
            and failure.memory_bytes is None
        )
        assert len(times["math", direction].seconds) == ROUNDS


@pytest.mark.fault
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_a_backend_without_memory_enough_says_so_even_in_the_midst_of_the_rounds(error):
    calls = []

    def greedy(q, k, v, causal):
        calls.append(1)
        if len(calls) > 6:
            raise error
        return plain(q, k, v, causal)

    measurement = bench.measure({"math": attention.load("math"), "greedy": planted(greedy)}, CASE, 0, ROUNDS)
    times = by_name(measurement)
    assert len(calls) == 7
    assert {times["greedy", direction].outcome for direction in ("forward", "backward")} == {"oom_host"}
    assert times["greedy", "forward"].seconds == []
    assert len(times["math", "backward"].seconds) == ROUNDS


@pytest.mark.fault
def test_a_backend_that_ends_in_the_midst_of_the_eager_rounds_is_not_replayed(monkeypatch):
    calls = []

    def broken(q, k, v, causal):
        calls.append(1)
        if len(calls) > 6:
            raise ValueError("no such kernel")
        return plain(q, k, v, causal)

    monkeypatch.setattr(bench, "MODES", {"cpu": ("eager", "graph")})
    monkeypatch.setattr(bench, "Graphs", lambda eager, _pool: eager)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    measurement = bench.measure({"math": attention.load("math"), "broken": planted(broken)}, CASE, 0, ROUNDS)
    outcomes = {
        (kernel_time.attention, kernel_time.mode): kernel_time.outcome for kernel_time in measurement.times
    }
    assert len(calls) == 7
    assert outcomes == {
        ("math", "eager"): "completed",
        ("math", "graph"): "completed",
        ("broken", "eager"): "failed",
        ("broken", "graph"): "failed",
    }


@pytest.mark.fault
def test_a_lack_of_memory_that_makes_the_end_of_a_capture_raise_is_said_to_be_one():
    """As torch.cuda.graph does: a CPU has none."""
    inputs = TimedInputs(CASE, 0)
    workbench = bench._Bench(CASE, Cpu(), inputs, 0, Random(0), lambda: False, lambda *_: None)
    with workbench.noting("greedy", "graph", otherwise="unsupported"):
        try:
            raise MemoryError("no room")
        finally:
            raise RuntimeError("the capture was invalidated")
    with workbench.noting("curious", "graph", otherwise="unsupported"):
        raise RuntimeError("no copy to the host while capturing")
    assert {name: ending for (name, _), (ending, _) in workbench.ended.items()} == {
        "greedy": "oom_host",
        "curious": "unsupported",
    }


def test_memory_is_what_a_call_needs_beyond_its_inputs():
    """The output alone is a quarter of a mebibyte here, and math keeps the weights of every head beside it."""
    case = replace(CASE, sequence_length=512, heads=8, kv_heads=8)
    times = by_name(bench.measure({name: attention.load(name) for name in ("flash", "math")}, case, 0, 1))
    output, scores = 4 * 512 * 8 * 16, 4 * 8 * 512 * 512
    flash, math = times["flash", "forward"].memory_bytes, times["math", "forward"].memory_bytes
    assert output <= flash < output + scores / 4
    assert math > scores
    assert times["flash", "backward"].memory_bytes >= 4 * output > flash  # with dQ, dK and dV


def test_what_a_first_call_sets_aside_for_all_that_follow_is_not_the_memory_of_a_call():
    workspaces = []

    def prepared(q, k, v, causal):
        if not workspaces:
            workspaces.append(torch.ones(2**22))
        return plain(q, k, v, causal)

    times = by_name(bench.measure({"prepared": planted(prepared)}, CASE, 0, 1))
    assert workspaces and all(
        times["prepared", direction].memory_bytes < 2**22 for direction in ("forward", "backward")
    )


def test_what_only_the_kernel_can_refuse_is_unsupported_in_its_own_words():
    def refuse(q, k, v, causal):
        raise Unsupported(["needs more shared memory than this GPU has: change call.tile"])

    times = by_name(bench.measure({"math": attention.load("math"), "large": planted(refuse)}, CASE, 0, 3))
    kernel_time = times["large", "forward"]
    assert kernel_time.outcome == "unsupported" and "needs more shared memory" in kernel_time.reason
    assert times["math", "forward"].outcome == "completed"


def test_on_a_cpu_the_time_of_a_call_is_the_hosts_and_stands_once():
    times = by_name(bench.measure({"math": attention.load("math")}, CASE, 0, 3))
    assert all(
        not kernel_time.host_seconds and kernel_time.kernel_seconds is None for kernel_time in times.values()
    )


def test_a_shape_that_nobody_takes_times_nothing():
    measurement = bench.measure({}, CASE, 0, ROUNDS)
    assert (measurement.times, measurement.product_seconds) == ([], [])


def test_the_cache_is_written_before_each_call():
    device, cache_sums = Cpu(), []
    device._cache.fill_(1)
    device.time(lambda: cache_sums.append(int(device._cache.sum())), timed := Timed())
    assert cache_sums == [0] and len(timed.seconds) == 1


def test_a_backward_gives_the_gradients_of_the_last_forward():
    inputs = TimedInputs(CASE, 0)
    inputs.renew()
    passes, gradients = Eager(planted(plain), CASE, inputs), []
    inputs.q_BTHD.register_hook(gradients.append)
    passes.both()
    o = plain(*inputs.leaves, True)
    (expected, *_) = torch.autograd.grad(o, inputs.leaves, inputs.do_BTHD)
    assert torch.equal(gradients[0], expected) and passes.o_BTHD is None


def test_a_run_that_is_asked_to_stop_makes_no_further_call():
    calls, questions = [], iter(range(1000))
    backend = planted(lambda q, k, v, c: calls.append(1) or plain(q, k, v, c))
    with pytest.raises(Interrupted, match="its 3 eager rounds are lost"):
        bench.measure({"a": backend}, CASE, 0, ROUNDS, lambda: next(questions) == 6)
    warmup_calls = 4  # for memory, and to warm up
    assert warmup_calls + 3 <= len(calls) <= warmup_calls + 4
