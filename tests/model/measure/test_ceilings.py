"""Ceilings are measured at the shapes of a run's own products."""

import pytest
import torch

from model.measure import ceilings
from model.measure.floor import floor, shapes
from model.record.config import DataConfig, RunConfig
from model.record.speed import PASSES
from tests.model.conftest import run_config


def never():
    pytest.fail("a CPU has no clocks to ask for")


def test_a_cpu_is_measured_at_every_shape_and_pass_of_the_model():
    config = run_config()
    found = ceilings.measure(config, never)
    measured = {(each.inputs, each.outputs, each.step) for each in found.products}
    assert measured == {(*shape, step) for shape in shapes(config.model) for step in PASSES}
    assert all(each.tokens == 128 and each.columns == each.outputs for each in found.products)
    timings = [found.traffic, found.launch, *(each.timing for each in found.products)]
    assert all(0 < each.seconds_25 <= each.seconds <= each.seconds_75 for each in timings)
    assert all(each.repeats >= 5 for each in timings)
    assert found.clocks is None
    assert all(part.seconds > 0 for part in floor(config, found))


def test_a_product_that_a_cpu_would_be_long_at_is_measured_in_part(monkeypatch):
    asked = []

    def work(config, step, count, inputs, columns):
        asked.append(2 * count * inputs * columns)
        return lambda: torch.zeros(1)

    monkeypatch.setattr(ceilings, "_work", work)
    config = RunConfig(device="cpu", data=DataConfig(path="x"))  # 8B
    found = ceilings.measure(config, never)
    assert max(asked) <= 1.1e8
    head = next(each for each in found.products if each.outputs == config.model.vocab_size)
    assert (head.columns, head.tokens) == (256, 40)


@pytest.mark.parametrize("step", PASSES)
def test_the_products_are_those_that_autograd_computes(step):
    """By shape: (N, I) x (O, I)^T forward, its gradient by x is (N, I), by the weight (O, I)."""
    shape = {"forward": (5, 3), "input": (5, 2), "weight": (3, 2)}[step]
    assert ceilings._work(run_config(), step, 5, 2, 3)().shape == shape


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_gpu_is_measured_below_its_peak_and_its_clocks_while_it_is_busy():
    from model.measure import machine
    from model.measure.flops import peak
    from runner.job.clocks import clocks_now

    config = RunConfig(data=DataConfig(path="x"))
    name, uuid, _ = machine.device("cuda")
    found = ceilings.measure(config, lambda: clocks_now(uuid))
    known = peak(name, "bfloat16")
    assert known is None or max(each.flops for each in found.products) < known.flops
    assert found.clocks and found.clocks.graphics_mhz
    assert {each.tokens for each in found.products} == {4096}
