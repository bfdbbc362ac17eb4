"""Every backend that runs on this GPU, against float64: run by hand on a GPU node with `pytest -m gpu`."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU; PyTorch finds none here"),
    # Shown, not fatal: compilers and other people's packages warn about matters of their own.
    pytest.mark.filterwarnings("default"),
]

CASES = [
    Case("cuda", "bfloat16", batch, length, heads=8, kv_heads=2, head_dim=128)
    for batch, length in [(1, 256), (1, 1024), (2, 256), (2, 1024)]
]
FLOOR = 1e-2  # relative error that bfloat16 (8 bits of mantissa, 4e-3 a rounding) always gives
STEPS = ("o", "dq", "dk", "dv")


def _tensors(case: Case, seed: int = 0, scale: float = 1.0):
    """q, k, v and the gradient of o, already rounded to the case's precision."""
    rng = torch.Generator(case.device).manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    shape = (case.batch, case.sequence_length)
    return [
        (scale * torch.randn(*shape, heads, case.head_dim, generator=rng, device=case.device)).to(dtype)
        for heads in (case.heads, case.kv_heads, case.kv_heads, case.heads)
    ]


def _naive(q_BTHD, k_BTKD, v_BTKD):
    q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BTKD, v_BTKD))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)


def _run(attend, tensors, dtype=None):
    q, k, v, do = (x.detach().to(dtype or x.dtype) for x in tensors)
    for x in (q, k, v):
        x.requires_grad_()
    o = attend(q, k, v)
    o.backward(do)
    return [o.detach(), q.grad, k.grad, v.grad]


def _errors(results, exact):
    return {
        what: ((x.double() - y).norm() / y.norm()).item()
        for what, x, y in zip(STEPS, results, exact, strict=True)
    }


def _attend(name: str, case: Case):
    backend = attention.load(name)
    if reasons := backend.unsupported_reasons(case):
        pytest.skip("; ".join(reasons))
    return lambda q, k, v: attention.attend(backend, case, q, k, v)


@pytest.mark.parametrize("name", attention.names())
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"B{c.batch}-T{c.sequence_length}")
def test_a_gpu_backend_is_as_exact_as_math(name: str, case: Case) -> None:
    """Against float64, forward and gradients are within 2 times the error of `math`, or of 1e-2."""
    tensors = _tensors(case)
    exact = _run(_naive, tensors, torch.float64)
    math = _errors(_run(_attend("math", case), tensors), exact)
    mine = _errors(_run(_attend(name, case), tensors), exact)
    print(name, case.batch, case.sequence_length, {what: f"{e:.2e}" for what, e in mine.items()})  # noqa: T201
    for what in STEPS:
        assert mine[what] <= max(2 * math[what], FLOOR), (what, mine[what], math[what])


@pytest.mark.parametrize("name", attention.names())
def test_a_gpu_backend_takes_strided_inputs(name: str) -> None:
    """As a fused QKV projection gives them: heads side by side in one tensor, cut apart."""
    case = CASES[2]
    attend = _attend(name, case)
    whole = torch.cat(_tensors(case)[:3], dim=2)
    q, k, v = whole.split((case.heads, case.kv_heads, case.kv_heads), dim=2)
    strided, dense = attend(q, k, v), attend(q.contiguous(), k.contiguous(), v.contiguous())
    assert ((strided - dense).double().norm() / dense.double().norm()).item() < FLOOR


@pytest.mark.parametrize("name", attention.names())
def test_a_gpu_backend_runs_compiled(name: str) -> None:
    """Under torch.compile each gives what it gives without, up to bfloat16's rounding."""
    case = CASES[0]
    attend = _attend(name, case)
    tensors = _tensors(case)
    compiled = torch.compile(lambda q, k, v: attend(q * 1.0, k, v) * 1.0)
    for x, y in zip(_run(compiled, tensors), _run(attend, tensors), strict=True):
        assert ((x.double() - y.double()).norm() / y.double().norm()).item() < FLOOR


@pytest.mark.parametrize("length", [128, 384, 1024, 4096])
def test_custom_gives_the_same_again(length: int) -> None:
    """Five runs on the same inputs: O, dK and dV to the last bit, dQ up to the order of its additions.

    A race between the kernel's warps shows as a run that differs. 1e-3 is a quarter of one rounding of
    bfloat16: dQ is summed in float32 in any order, then rounded once.
    """
    case = replace(CASES[0], batch=2, sequence_length=length)
    attend = _attend("custom", case)
    tensors = _tensors(case)
    first = _run(attend, tensors)
    for _ in range(4):
        o, dq, dk, dv = _run(attend, tensors)
        for again, before in ((o, first[0]), (dk, first[2]), (dv, first[3])):
            assert torch.equal(again, before)
        assert ((dq.double() - first[1].double()).norm() / first[1].double().norm()).item() < 1e-3


@pytest.mark.parametrize("kv_heads", [8, 4, 1])
def test_custom_shares_key_heads_in_groups_of_any_size(kv_heads: int) -> None:
    case = replace(CASES[3], kv_heads=kv_heads)
    attend = _attend("custom", case)
    tensors = _tensors(case, seed=1)
    exact = _run(_naive, tensors, torch.float64)
    for what, error in _errors(_run(attend, tensors), exact).items():
        assert error < FLOOR, what


def test_custom_takes_peaked_attention() -> None:
    """Scores ten times as large: the softmax is nearly one-hot, and its maximum moves from tile to tile."""
    case = CASES[1]
    attend = _attend("custom", case)
    q, k, v, do = _tensors(case, seed=2)
    tensors = [(q.float() * 10).to(q.dtype), k, v, do]
    exact = _run(_naive, tensors, torch.float64)
    math = _errors(_run(_attend("math", case), tensors), exact)
    for what, error in _errors(_run(attend, tensors), exact).items():
        assert error <= max(3 * math[what], FLOOR), (what, error, math[what])
