"""Timing on a GPU, eagerly and in CUDA graphs: run by hand with `pytest -m gpu`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention.timing.device import Cuda
from model.attention.timing.measure import measure
from model.attention.timing.passes import Eager, Graphs, TimedInputs
from model.record import backends
from model.record.case import Case

pytestmark = [
    pytest.mark.gpu,
    # Shown, not fatal: compilers and other people's packages warn about matters of their own.
    pytest.mark.filterwarnings("default"),
]
CASE = Case("cuda", "bfloat16", batch=1, sequence_length=2048, heads=8, kv_heads=8, head_dim=128)


def by_key(measurement):
    return {
        (kernel_time.attention, kernel_time.direction, kernel_time.mode): kernel_time
        for kernel_time in measurement.times
    }


def test_every_backend_here_is_timed_in_both_modes_and_a_graph_costs_the_host_less():
    loaded = {name: attention.load(name) for name in backends.names()}
    usable = {name: backend for name, backend in loaded.items() if not backend.unsupported_reasons(CASE)}
    measurement = measure(usable, CASE, 0, 7)
    times = by_key(measurement)
    assert {key[0] for key in times} == set(usable) and len(times) == 4 * len(usable)
    assert all(
        times[name, direction, "eager"].outcome == "completed"
        for name in usable
        for direction in ("forward", "backward")
    )
    assert (
        times["flash", "forward", "graph"].median_seconds <= times["flash", "forward", "eager"].median_seconds
    )
    assert len(measurement.product_seconds) == 7


def test_the_host_returns_before_the_gpu_is_done_and_kernels_take_most_of_a_long_call():
    case = replace(CASE, batch=4, sequence_length=8192)
    times = by_key(measure({"flash": attention.load("flash")}, case, 0, 7))
    for direction in ("forward", "backward"):
        eager, graph = times["flash", direction, "eager"], times["flash", direction, "graph"]
        assert len(eager.host_seconds) == len(graph.host_seconds) == 7
        assert eager.median_host_seconds < eager.median_seconds
        assert 0.7 * eager.median_seconds < eager.kernel_seconds < 1.2 * eager.median_seconds
        assert graph.kernel_seconds is None


def test_a_replayed_graph_reads_the_numbers_of_its_round():
    inputs = TimedInputs(CASE, 0)
    inputs.renew()
    eager = Eager(attention.load("flash"), CASE, inputs)
    outputs = []
    recording_backend = replace(
        eager.backend,
        attend=lambda q, k, v, c: outputs.append(eager.backend.attend(q, k, v, c)) or outputs[-1],
    )
    graphs = Graphs(Eager(recording_backend, CASE, inputs), torch.cuda.graph_pool_handle())
    inputs.renew()
    graphs.forward()
    torch.cuda.synchronize()
    assert torch.equal(outputs[-1], eager.backend.attend(*inputs.leaves, True))


@pytest.mark.fault
def test_what_no_graph_can_hold_is_unsupported_there_and_timed_eagerly():
    flash = attention.load("flash")
    synchronizing_backend = replace(
        flash, attend=lambda q, k, v, c: flash.attend(q, k, v, c) * float(q.new_ones(()).item())
    )
    times = by_key(measure({"asking": synchronizing_backend, "flash": flash}, CASE, 0, 7))
    assert (
        times["asking", "forward", "graph"].outcome == "unsupported"
        and times["asking", "forward", "graph"].reason
    )
    assert times["asking", "forward", "eager"].outcome == "completed"
    assert times["flash", "backward", "graph"].outcome == "completed"


@pytest.mark.fault
def test_out_of_memory_leaves_the_others_their_times():
    case = replace(CASE, batch=2, heads=64, kv_heads=64, sequence_length=32768, head_dim=64)
    times = by_key(measure({name: attention.load(name) for name in ("flash", "math")}, case, 0, 2))
    assert {
        times["math", direction, mode].outcome
        for direction in ("forward", "backward")
        for mode in ("eager", "graph")
    } == {"oom_gpu"}
    assert times["flash", "backward", "graph"].outcome == "completed"


def test_memory_is_what_a_call_allocates():
    inputs = TimedInputs(CASE, 0)
    inputs.renew()
    flash = Eager(attention.load("flash"), CASE, inputs)
    output = 2 * 2048 * 8 * 128
    assert output <= Cuda().most_memory(flash.forward) < 3 * output
