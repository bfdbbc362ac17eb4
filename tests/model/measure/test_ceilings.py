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
    device_ceilings = ceilings.measure(config, never)
    measured = {
        (measurement.inputs, measurement.outputs, measurement.step)
        for measurement in device_ceilings.products
    }
    assert measured == {(*shape, step) for shape in shapes(config.model) for step in PASSES}
    assert all(
        measurement.tokens == 128 and measurement.columns == measurement.outputs
        for measurement in device_ceilings.products
    )
    timings = [
        device_ceilings.traffic,
        device_ceilings.launch,
        *(measurement.timing for measurement in device_ceilings.products),
    ]
    assert all(
        0 < measurement.seconds_25 <= measurement.seconds <= measurement.seconds_75 for measurement in timings
    )
    assert all(measurement.repeats >= 5 for measurement in timings)
    assert device_ceilings.clocks is None
    assert all(part.seconds > 0 for part in floor(config, device_ceilings))


def test_a_product_that_a_cpu_would_be_long_at_is_measured_in_part(monkeypatch):
    flop_counts = []

    def work(config, step, count, inputs, columns):
        flop_counts.append(2 * count * inputs * columns)
        return lambda: torch.zeros(1)

    monkeypatch.setattr(ceilings, "_work", work)
    config = RunConfig(device="cpu", data=DataConfig(path="x"))  # 8B
    device_ceilings = ceilings.measure(config, never)
    assert max(flop_counts) <= 1.1e8
    head = next(product for product in device_ceilings.products if product.outputs == config.model.vocab_size)
    assert (head.columns, head.tokens) == (256, 40)


@pytest.mark.parametrize("step", PASSES)
def test_the_products_are_those_that_autograd_computes(step):
    """By shape: (N, I) x (O, I)^T forward, its gradient by x is (N, I), by the weight (O, I)."""
    shape = {"forward": (5, 3), "input": (5, 2), "weight": (3, 2)}[step]
    assert ceilings._work(run_config(), step, 5, 2, 3)().shape == shape


@pytest.mark.gpu
def test_a_gpu_is_measured_below_its_peak_and_its_clocks_while_it_is_busy():
    from model.measure import machine
    from model.measure.flops import peak
    from runner.job.clocks import clocks_now

    config = RunConfig(data=DataConfig(path="x"))
    name, uuid, _ = machine.device("cuda")
    device_ceilings = ceilings.measure(config, lambda: clocks_now(uuid))
    device_peak = peak(name, "bfloat16")
    assert (
        device_peak is None or max(product.flops for product in device_ceilings.products) < device_peak.flops
    )
    assert device_ceilings.clocks and device_ceilings.clocks.graphics_mhz
    assert {product.tokens for product in device_ceilings.products} == {4096}
