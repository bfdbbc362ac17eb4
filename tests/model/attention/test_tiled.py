"""The readable reference: exact in float64, whatever the tile, and never with T x T numbers in memory."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model.attention import tiled
from model.attention.verify import reference
from tests.model.attention.calls import CPU, drawn, off, run

EXACT = replace(CPU, dtype="float64")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("length", "tile"), [(7, (16, 16)), (8, (4, 4)), (10, (4, 4)), (10, (3, 5))], ids=str
)
def test_it_has_the_gradient_of_what_it_computes(causal, length, tile) -> None:
    inputs = drawn(replace(EXACT, sequence_length=length, heads=2, kv_heads=1, head_dim=2, batch=1))
    tensors = [x.requires_grad_() for x in (inputs.q, inputs.k, inputs.v)]
    assert torch.autograd.gradcheck(lambda *qkv: tiled.attend(*qkv, causal, tile), tensors)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tile", [(1, 1), (32, 32), (64, 64), (128, 32), (32, 128), (512, 512)], ids=str)
def test_it_gives_the_same_whatever_the_tile(causal, tile) -> None:
    inputs = drawn(replace(EXACT, sequence_length=150 if tile > (1, 1) else 20))
    exact = reference.exact(inputs, causal).values
    for step, x in run(partial(tiled.attend, tile=tile), inputs, causal).items():
        assert off(x, exact[step]) < 1e-13, step


def test_it_survives_logits_that_overflow_a_plain_exponential() -> None:
    inputs = drawn(replace(EXACT, sequence_length=300))
    inputs = replace(inputs, q=inputs.q * 100, k=inputs.k * 100)
    exact = reference.exact(inputs, causal=True).values
    for step, x in run(tiled.attend, inputs, True).items():
        assert off(x, exact[step]) < 1e-9, step


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.numel = max([self.numel, *(x.numel() for x in tensors)])
        return out


def test_it_never_makes_a_tensor_of_t_by_t() -> None:
    """Twice the sequence, at most twice the largest tensor, a sixteenth of one head's scores."""
    largest = {}
    for length in (1024, 2048):
        inputs = drawn(replace(CPU, sequence_length=length, heads=2, kv_heads=1))
        with Largest() as tracker:
            run(tiled.attend, inputs, True)
        largest[length] = tracker.numel
    assert largest[2048] <= 2 * largest[1024]
    assert largest[2048] <= 2048 * 2048 / 16


def test_it_skips_the_tiles_above_the_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = []
    scores = tiled._scores
    monkeypatch.setattr(tiled, "_scores", lambda *args: spans.append(args[2:4]) or scores(*args))
    inputs = drawn(EXACT)
    tiled.attend(inputs.q, inputs.k, inputs.v, True, (16, 16))
    assert len(spans) == 4 * 5 / 2
    assert all(keys[0] < queries[1] for queries, keys in spans)
