"""The optimizer is PyTorch's, to the bit, without what its class drags in."""

import subprocess
import sys

import pytest
import torch

from model import optim
from tests.conftest import PATIENCE_SECONDS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_moves_parameters_as_pytorchs_class_does(dtype):
    def parameters():
        rng = torch.Generator().manual_seed(0)
        return [torch.nn.Parameter(torch.randn(shape, generator=rng).to(dtype)) for shape in ((7, 5), (3,))]

    ours, theirs = parameters(), parameters()
    mine = optim.AdamW(ours, weight_decay=0.1)
    reference = torch.optim.AdamW(theirs, weight_decay=0.1, fused=True)
    rng = torch.Generator().manual_seed(1)
    for step in range(1, 6):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn(a.shape, generator=rng).to(dtype)
            b.grad = a.grad.clone()
        reference.param_groups[0]["lr"] = 0.01 * step
        mine.step(0.01 * step)
        reference.step()
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert torch.equal(a, b)
        for name, value in reference.state[b].items():
            assert torch.equal(mine.state()[f"{index}.{name}"], value), name
    mine.zero_grad()
    assert all(each.grad is None for each in ours)


@pytest.mark.parametrize("backend", ["auto", "math", "tiled"])
def test_a_run_that_is_not_compiled_does_not_import_the_compiler(backend, corpus):
    """It takes longer to import than all of a job's own way to its first step."""
    code = """
import sys
from pathlib import Path
from model.config import RunConfig
from model.data import Source
from model.trainer import train
config = RunConfig.model_validate({
    "attention": sys.argv[1], "device": "cpu", "data": {"path": sys.argv[2]},
    "model": {"dim": 32, "layers": 1, "heads": 2, "kv_heads": 1, "ffn_dim": 64, "vocab_size": 300},
    "train": {"steps": 2, "sequence_length": 32, "batch_size": 2, "dtype": "float32"},
})
losses = []
train(config, Source(Path(sys.argv[2])), lambda record: losses.append(record.loss))
assert len(losses) == 2
print(sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, backend, corpus],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
