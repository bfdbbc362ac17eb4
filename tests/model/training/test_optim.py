"""The optimizer is PyTorch's, to the bit, without what its class drags in."""

import subprocess
import sys

import pytest
import torch

from model.record.errors import UserError
from model.training import optim
from tests.conftest import PATIENCE_SECONDS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_moves_parameters_as_pytorchs_class_does(dtype):
    def parameters():
        rng = torch.Generator().manual_seed(0)
        return [torch.nn.Parameter(torch.randn(shape, generator=rng).to(dtype)) for shape in ((7, 5), (3,))]

    ours, theirs = parameters(), parameters()
    optimizer = optim.AdamW(zip("ab", ours, strict=True), weight_decay=0.1)
    reference = torch.optim.AdamW(theirs, weight_decay=0.1, fused=True)
    rng = torch.Generator().manual_seed(1)
    for step in range(1, 6):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=rng).to(dtype)
            b.grad = a.grad.clone()
        reference.param_groups[0]["lr"] = 0.01 * step
        optimizer.step(0.01 * step)
        reference.step()
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(a, b)
        for name, value in reference.state[b].items():
            assert torch.equal(optimizer.state()[f"{index}.{name}"], value), name
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in ours)


def gradients(dtype, device="cpu"):
    """Named parameters with gradients."""
    rng = torch.Generator().manual_seed(0)
    pairs = []
    for name, shape in (("a", (100, 64)), ("b", (64,)), ("c", (3, 5))):
        parameter = torch.nn.Parameter(torch.randn(shape, generator=rng).to(device, dtype))
        parameter.grad = (0.016 * torch.randn(shape, generator=rng)).to(device, dtype)
        pairs.append((name, parameter))
    return pairs


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_norm_is_exact_to_float32(dtype, device):
    parameters = gradients(dtype, device)
    exact = torch.cat([parameter.grad.double().flatten() for _, parameter in parameters]).norm().item()
    norm = torch.linalg.vector_norm(optim.AdamW(parameters, 0.0).gradient_norms())
    assert norm.dtype is torch.float32
    assert norm.item() == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_clipped_in_float32_within_the_update(dtype, device):
    """The first moments hold a tenth of the clipped gradients, rounded once."""
    parameters = gradients(dtype, device)
    originals = [parameter.grad.double() for _, parameter in parameters]
    optimizer = optim.AdamW(parameters, 0.0)
    norm = torch.linalg.vector_norm(optimizer.gradient_norms())
    optimizer.step(1e-3, optim.clip_divisor(norm, 0.5))
    for gradient, mean in zip(originals, optimizer.means, strict=True):
        exact = 0.1 * gradient * 0.5 / norm.double()
        rounding = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(mean.double(), exact, rtol=1.01 * rounding + 3e-7, atol=0)


def test_gradients_below_the_clip_norm_are_left_as_they_are():
    optimizer, reference = (optim.AdamW(gradients(torch.bfloat16), 0.1) for _ in range(2))
    optimizer.step(1e-3, optim.clip_divisor(torch.linalg.vector_norm(optimizer.gradient_norms()), 2.0))
    reference.step(1e-3)
    for name, tensor in optimizer.state().items():
        assert torch.equal(tensor, reference.state()[name])


@pytest.mark.refused
def test_a_missing_gradient_is_an_error_that_names_its_parameter():
    parameters = gradients(torch.float32)
    parameters[1][1].grad = None
    optimizer = optim.AdamW(parameters, 0.0)
    for call in (optimizer.gradient_norms, lambda: optimizer.step(1e-3)):
        with pytest.raises(UserError, match="no gradient reaches b: can autograd"):
            call()


def test_a_run_that_is_not_compiled_does_not_import_the_compiler(corpus):
    """It takes longer to import than all of a job's own way to its first step."""
    code = """
import sys
from pathlib import Path
from model.record.config import RunConfig
from model.record.text import Source
from model.training.trainer import train
for backend in ("auto", "math", "tiled"):
    config = RunConfig.model_validate({
        "attention": backend, "device": "cpu", "data": {"path": sys.argv[1]},
        "model": {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ffn_dim": 64, "vocab_size": 300},
        "train": {"steps": 2, "sequence_length": 32, "batch_size": 2, "dtype": "float32"},
    })
    losses = []
    train(config, Source(Path(sys.argv[1])), lambda record: losses.append(record.loss))
    assert len(losses) == 2
    print(backend, *sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
"""
    process = subprocess.run(
        [sys.executable, "-c", code, corpus],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout == "auto\nmath\ntiled\n"
