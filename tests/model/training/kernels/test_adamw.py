"""The one-pass step does what PyTorch's does, and the norm is exact."""

import pytest
import torch

from model.record import versions
from model.training import optim

pytestmark = pytest.mark.skipif(
    bool(versions.lacking("train.optimizer=adamw_one_pass")), reason="this triton is too old for it"
)

SHAPES = {"a": (70, 33), "b": (5,), "c": (1, 3000)}  # smaller and larger than a program's share


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """So that few elements take several programs: the interpreter is slow."""
    pytest.importorskip("triton")
    monkeypatch.setattr("model.training.kernels.adamw.SUMMED", 64)
    monkeypatch.setattr("model.training.kernels.adamw.WIDTH", 4)


def parameters(device, dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=rng).to(device, dtype))
        for name, shape in SHAPES.items()
    }


def train(optimizer, steps, clip_norm=1.0):
    rng = torch.Generator().manual_seed(1)
    for step in range(1, steps + 1):
        for parameter in optimizer.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=rng).to(parameter.device, parameter.dtype)
        optimizer.step(
            0.01 * step, optim.clip_divisor(torch.linalg.vector_norm(optimizer.gradient_norms()), clip_norm)
        )


def pair(device, dtype=torch.float32):
    return (
        kind(parameters(device, dtype).items(), weight_decay=0.1)
        for kind in (optim.OnePassAdamW, optim.AdamW)
    )


def test_it_moves_parameters_and_states_as_pytorchs_does(device):
    ours, theirs = pair(device)
    for optimizer in (ours, theirs):
        train(optimizer, 5)
    for name, value in theirs.state().items():
        torch.testing.assert_close(ours.state()[name].to(value.device), value, rtol=1e-5, atol=2e-9)
    for parameter, expected in zip(ours.parameters, theirs.parameters, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=2e-6, atol=1e-6)


def test_without_a_divisor_gradients_are_taken_as_they_are(device):
    ours, theirs = pair(device)
    for optimizer in (ours, theirs):
        for parameter in optimizer.parameters:
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step(0.01)
    for mean, expected in zip(ours.means, theirs.means, strict=True):
        torch.testing.assert_close(mean, expected)


@pytest.mark.gpu
def test_in_16_bits_it_differs_from_pytorchs_by_a_unit_in_the_last_place():
    ours, theirs = pair("cuda", torch.bfloat16)
    for optimizer in (ours, theirs):
        train(optimizer, 1)
    for parameter, expected in zip(ours.parameters, theirs.parameters, strict=True):
        torch.testing.assert_close(parameter, expected, rtol=2**-7, atol=1e-6)
        assert (parameter != expected).float().mean() < 0.01


def test_the_norm_is_exact_to_float32(device):
    ours, _ = pair(device)
    train(ours, 1)
    exact = torch.cat([each.grad.double().flatten() for each in ours.parameters]).norm().item()
    norm = torch.linalg.vector_norm(ours.gradient_norms())
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(exact, rel=1e-6)
    each = [parameter.grad.double().norm().item() for parameter in ours.parameters]
    assert ours.gradient_norms().tolist() == pytest.approx(each, rel=1e-6)
    assert torch.equal(norm, torch.linalg.vector_norm(ours.gradient_norms()))


def test_a_gradient_that_is_not_finite_gives_a_norm_that_is_not(device):
    ours, _ = pair(device)
    train(ours, 1)
    ours.parameters[2].grad[0, -1] = torch.nan
    assert torch.linalg.vector_norm(ours.gradient_norms()).isnan()


def test_a_saved_state_resumes_with_the_steps_count(device):
    reference, _ = pair(device)
    stopped, _ = pair(device)
    train(reference, 3)
    train(stopped, 3)
    resumed = optim.OnePassAdamW(zip(SHAPES, stopped.parameters, strict=True), weight_decay=0.1)
    for name, tensor in resumed.state().items():
        tensor.copy_(stopped.state()[name])
    for optimizer in (reference, resumed):
        train(optimizer, 2)
    for parameter, expected in zip(resumed.parameters, reference.parameters, strict=True):
        assert torch.equal(parameter, expected)
