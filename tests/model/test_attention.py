"""The contract of every attention backend, and the numbers of those that run on a CPU."""

import math
import subprocess
import sys
import types
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from model import attention
from model.attention import Case, Supports, _flex, _reasons, _sdpa, _tiled

CPU = Case("cpu", "float32", batch=1, sequence_length=64, heads=4, kv_heads=2, head_dim=16)
CUDA = Case("cuda", "bfloat16", batch=1, sequence_length=256, heads=8, kv_heads=2, head_dim=128)
ODD = [
    replace(CPU, dtype="float16"),
    replace(CPU, heads=4, kv_heads=3),
    replace(CUDA, dtype="float32"),
    replace(CUDA, head_dim=320),
    replace(CUDA, head_dim=20),
    replace(CUDA, sequence_length=1),
    replace(CUDA, batch=70_000),
    replace(CUDA, causal=False),
]
RUN_HERE = [name for name in attention.names() if not attention.load(name).unsupported_reasons(CPU)]
GPU_ONLY = {"custom", "cudnn", "efficient", "flash2", "flash3", "flash4", "flex"}


# ----------------------------------------------------------------------------------------- the contract


@pytest.mark.parametrize("name", attention.names())
@pytest.mark.parametrize("case", [CPU, CUDA, *ODD], ids=str)
def test_reasons_are_sentences_that_say_what_to_do(name: str, case: Case) -> None:
    backend = attention.load(name)
    assert backend.summary and "\n" not in backend.summary
    reasons = backend.unsupported_reasons(case)
    assert isinstance(reasons, list)
    assert len(set(reasons)) == len(reasons)
    for reason in reasons:
        # what is wrong: what to do about it
        wrong, _, remedy = reason.partition(": ")
        assert len(wrong.split()) >= 3, reason
        assert len(remedy.split()) >= 2, reason


@pytest.mark.parametrize("name", attention.names())
def test_a_backend_file_imports_no_torch_until_it_is_called(name: str) -> None:
    code = f"import sys; from model import attention; attention.load({name!r}); print('torch' in sys.modules)"
    assert _python(code) == "False"


def test_listing_names_imports_neither_torch_nor_the_backends() -> None:
    code = (
        "import sys; from model import attention; assert 'tiled' in attention.names();"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'triton') or '.tiled' in m])"
    )
    assert _python(code) == "[]"


def test_exactly_these_backends_ship() -> None:
    shipped = set(attention.names()) - set(attention._foreign())
    assert shipped == GPU_ONLY | {"auto", "math", "flash", "tiled"}


@pytest.mark.parametrize("name", attention.names())
def test_a_backend_says_what_it_takes_and_which_kernels_it_launches(name: str) -> None:
    backend = attention.load(name)
    assert backend.supports and backend.launches
    for device in ("cuda", "cpu"):
        declared = bool(backend.launches.on(device)) or backend.launches.free
        assert declared is (device in backend.supports.devices)


@pytest.mark.parametrize(
    ("supports", "case", "reason"),
    [
        (Supports(largest_head_dim=64), replace(CPU, head_dim=96), "head dims up to 64, not 96"),
        (Supports(smallest_head_dim=16), replace(CPU, head_dim=8), "head dims from 16, not 8"),
        (Supports(head_dim_multiple=64), replace(CPU, head_dim=96), "multiples of 64, not 96"),
        (Supports(dtypes=("float16",)), CPU, "takes float16, not float32"),
        (Supports(causal=(False,)), CPU, "knows no causal mask"),
        (Supports(causal=(True,)), replace(CPU, causal=False), "is causal only"),
        (Supports(length_multiple=128), CPU, "multiples of 128, not 64"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_a_declaration_leaves_out_is_refused_by_name(supports, case, reason) -> None:
    (found,) = _reasons.declared(case, replace(supports, devices=("cpu",)))
    assert reason in found


def test_bfloat16_on_a_gpu_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reasons, "_cuda_is_there", lambda case: [])
    monkeypatch.setattr(_reasons, "gpu_capability", lambda case: (7, 5))
    for name in ("auto", "math", "tiled"):
        assert "has no bfloat16" in attention.load(name).unsupported_reasons(CUDA)[0]
        assert not attention.load(name).unsupported_reasons(replace(CUDA, dtype="float16"))


@pytest.mark.parametrize("length", [1, 100, 128, 300, 512])
def test_flex_writes_down_the_mask_that_pytorch_would_find(length: int) -> None:
    mine = _flex._causal_blocks(length, torch.device("cpu"))
    theirs = create_block_mask(_flex._before, None, None, length, length, device="cpu")
    assert torch.equal(mine.to_dense(), theirs.to_dense())
    assert torch.equal(mine.kv_num_blocks, theirs.kv_num_blocks)
    assert torch.equal(mine.full_kv_num_blocks, theirs.full_kv_num_blocks)
    assert mine.seq_lengths == theirs.seq_lengths == (length, length)


def test_flex_compiles_itself_inside_a_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's graph ends before it; its own is compiled all the same, and is not run piece by piece."""
    graphs = []
    own = torch.compile(
        lambda q, k, v, block_mask, enable_gqa: q * 2,
        fullgraph=True,
        backend=lambda g, _: graphs.append(g) or g,
    )
    monkeypatch.setattr(_flex, "_compiled", lambda: own)
    attend = attention.load("flex").attend
    q = torch.randn(1, 64, 4, 16)
    model = torch.compile(lambda q: attend(q + 1, q, q, True) - 1, backend="aot_eager")
    torch.testing.assert_close(model(q), (q + 1) * 2 - 1)
    assert len(graphs) == 1


@pytest.mark.parametrize("name", sorted(GPU_ONLY))
def test_a_gpu_backend_refuses_a_cpu_by_name_of_the_flag_to_use(name: str) -> None:
    reasons = attention.load(name).unsupported_reasons(CPU)
    assert any("--set device=cuda" in reason for reason in reasons)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize("name", attention.names())
def test_without_a_gpu_every_backend_refuses_the_device_cuda(name: str) -> None:
    assert attention.load(name).unsupported_reasons(CUDA)


@pytest.mark.parametrize("name", attention.names())
def test_heads_that_cannot_be_grouped_are_refused(name: str) -> None:
    assert attention.load(name).unsupported_reasons(replace(CPU, heads=4, kv_heads=3))


def test_flash2_refuses_when_only_flash4_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention 4 alone leaves `flash_attn` as a namespace package without FlashAttention 2 in it."""
    cute = types.ModuleType("flash_attn.cute")
    cute.flash_attn_func = print  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", types.ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    flash2, flash4 = (attention.load(name).unsupported_reasons(CUDA) for name in ("flash2", "flash4"))
    assert any("has no `flash_attn_func`" in reason and "[flash2]" in reason for reason in flash2)
    assert not any("flash_attn" in reason for reason in flash4)


def test_a_package_that_cannot_be_loaded_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name, body in (("broken_abi", "raise OSError('undefined symbol')"), ("half", "import not_there")):
        (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    assert "undefined symbol" in _reasons.package("broken_abi", "f", "rebuild")[0]
    assert "lacks the module `not_there`" in _reasons.package("half", "f", "install the rest")[0]
    assert "not installed" in _reasons.package("no_such.inner", "f", "install it")[0]


def test_pytorchs_own_refusal_is_a_reason() -> None:
    """Asked about CPU tensors, PyTorch says that its GPU kernels take none."""
    for kernel in (_sdpa.CUDNN, _sdpa.EFFICIENT, _sdpa.FLASH):
        (reason,) = _sdpa.refusals(kernel, CPU)
        assert "PyTorch refuses" in reason and "Triggered" not in reason


@pytest.mark.parametrize("kernel", [_sdpa.EFFICIENT, _sdpa.CUDNN])
def test_a_pinned_kernel_raises_where_it_cannot_run(kernel) -> None:
    q = torch.randn(1, 8, 2, 16)
    with pytest.raises(RuntimeError, match=r"[Nn]o (viable backend|available kernel)"):
        _sdpa.pinned(kernel, q, q, q, True)


@pytest.mark.parametrize(
    ("name", "kernel"), [("flash", "ScaledDotProductFlash"), ("math", "UnsafeView"), ("tiled", "View")]
)
def test_the_pinned_kernel_is_the_one_that_runs(name: str, kernel: str) -> None:
    q = torch.randn(1, 8, 2, 16, requires_grad=True)
    o = attention.load(name).attend(q, q, q, True)
    node = o.grad_fn if name == "tiled" else o.grad_fn.next_functions[0][0]
    assert kernel in node.name()


@pytest.mark.parametrize("name", RUN_HERE)
def test_tensors_in_the_other_layout_are_refused(name: str) -> None:
    """The error of the study that this grew out of: (B, H, T, D) given to a (B, T, H, D) function."""
    q_BHTD, kv_BKTD = torch.randn(1, 4, 64, 16), torch.randn(1, 2, 64, 16)
    with pytest.raises(ValueError, match=r"q has shape \(1, 4, 64, 16\); the seam takes"):
        attention.attend(attention.load(name), CPU, q_BHTD, kv_BKTD, kv_BKTD)


# ------------------------------------------------------------------------------------------ the numbers


def naive(q_BTHD, k_BTKD, v_BTKD, causal):
    """Attention as it is defined, with the scores written out and K and V repeated."""
    q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BTKD, v_BTKD))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)


def inputs(case: Case, contiguous: bool = True, seed: int = 0):
    """q, k, v and the gradient of o, drawn in float64 so that every precision gets the same numbers."""
    rng = torch.Generator().manual_seed(seed)
    B, T, D = case.batch, case.sequence_length, case.head_dim
    heads = (case.heads, case.kv_heads, case.kv_heads, case.heads)
    if contiguous:
        return [torch.randn(B, T, n, D, generator=rng, dtype=torch.float64) for n in heads]
    return [torch.randn(B, n, D, T, generator=rng, dtype=torch.float64).permute(0, 3, 1, 2) for n in heads]


def output_and_gradients(attend, tensors, dtype, causal):
    q, k, v, do = (x.to(dtype).detach() for x in tensors)  # to() keeps the strides
    for x in (q, k, v):
        x.requires_grad_()
    o = attend(q, k, v, causal)
    o.backward(do)
    return dict(zip(("o", "dq", "dk", "dv"), (o.detach(), q.grad, k.grad, v.grad), strict=True))


def error(x, exact) -> float:
    return ((x.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()


SHAPES = list(product((1, 7, 64, 129, 300), ((4, 4), (4, 2), (8, 1)), (16, 64), (1, 2)))


@pytest.mark.parametrize("name", RUN_HERE)
@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
@pytest.mark.parametrize(("length", "heads", "dim", "batch"), SHAPES, ids=str)
def test_a_cpu_backend_is_as_exact_as_float32_allows(name, contiguous, length, heads, dim, batch) -> None:
    """Against float64, its error is at most 4 times that of the definition in float32, or 1e-6.

    4, because the order of the sums differs; 1e-6 is eight roundings of float32, for results such as dQ
    of a single token, which is exactly zero.
    """
    case = Case("cpu", "float32", batch, length, *heads, dim)
    tensors = inputs(case, contiguous)
    exact = output_and_gradients(naive, tensors, torch.float64, True)
    plain = output_and_gradients(naive, tensors, torch.float32, True)
    backend = attention.require(name, case)
    seam = lambda q, k, v, causal: attention.attend(backend, case, q, k, v)  # noqa: E731
    for what, x in output_and_gradients(seam, tensors, torch.float32, True).items():
        if exact[what].norm() < 1e-12:  # one token attends to itself alone: no gradient for Q and K
            assert x.norm() < 1e-5, what
        else:
            assert error(x, exact[what]) <= max(4 * error(plain[what], exact[what]), 1e-6), what


@pytest.mark.parametrize("name", RUN_HERE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_cpu_backend_in_16_bits_is_as_exact_as_the_rounding(name, dtype) -> None:
    """Relative error of at most 4 units of rounding: inputs, P, dS and the result are each rounded."""
    case = replace(CPU, dtype=str(dtype).removeprefix("torch."), sequence_length=300)
    if reasons := attention.load(name).unsupported_reasons(case):
        assert ["adds up dK and dV" in reason for reason in reasons] == [True]
        return
    tensors = [x.to(dtype).double() for x in inputs(case)]
    exact = output_and_gradients(naive, tensors, torch.float64, True)
    mine = output_and_gradients(attention.require(name, case).attend, tensors, dtype, True)
    for what, x in mine.items():
        assert x.dtype == dtype
        assert error(x, exact[what]) <= 4 * torch.finfo(dtype).eps, what


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_cpu_backend_attends_without_a_mask_too(name: str) -> None:
    case = replace(CPU, causal=False, sequence_length=129)
    tensors = inputs(case)
    exact = output_and_gradients(naive, tensors, torch.float64, False)
    mine = output_and_gradients(attention.load(name).attend, tensors, torch.float32, False)
    for what, x in mine.items():
        assert error(x, exact[what]) < 2e-6, what


@pytest.mark.parametrize("name", RUN_HERE)
def test_a_token_never_sees_its_future(name: str) -> None:
    q, k, v, _ = (x.float() for x in inputs(replace(CPU, sequence_length=64)))
    attend = attention.load(name).attend
    before = attend(q, k, v, True)
    k[:, 40:], v[:, 40:] = 1e4, -1e4
    assert torch.equal(attend(q, k, v, True)[:, :40], before[:, :40])


# Dynamo instantiates every autograd.Function that it traces, which PyTorch itself deprecates.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(RUN_HERE) - {"math"}))
def test_a_cpu_backend_goes_through_torch_compile_in_one_graph(name: str) -> None:
    q, k, v, _ = (x.float().requires_grad_() for x in inputs(CPU))
    attend = attention.load(name).attend
    compiled = torch.compile(lambda q, k, v: attend(q, k, v, True), fullgraph=True, backend="aot_eager")
    o = compiled(q, k, v)
    o.sum().backward()
    torch.testing.assert_close(o, attend(q, k, v, True))
    assert all(x.grad is not None for x in (q, k, v))


def test_math_stays_out_of_compiled_graphs_where_inductor_would_replace_it() -> None:
    """Inductor turns a graph's plain attention into FlashAttention: the pin on MATH would not hold."""
    graphs = []

    def collect(graph, _example_inputs):
        graphs.append(graph)
        return graph

    q, k, v, _ = (x.float() for x in inputs(replace(CPU, kv_heads=CPU.heads)))
    attend = attention.load("math").attend
    compiled = torch.compile(lambda q, k, v: attend(q * 2, k, v, True) + 1, backend=collect)
    torch.testing.assert_close(compiled(q, k, v), attend(q * 2, k, v, True) + 1)
    calls = " ".join(str(node.target) for graph in graphs for node in graph.graph.nodes)
    assert graphs
    assert "attention" not in calls and "softmax" not in calls


# --------------------------------------------------------------------------------------- the tiled one


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("length", "tile"), [(7, 16), (8, 4), (10, 4)], ids=str)
def test_tiled_has_the_gradient_of_what_it_computes(causal, length, tile) -> None:
    case = replace(CPU, sequence_length=length, head_dim=4, batch=2)
    q, k, v = (x.requires_grad_() for x in inputs(case)[:3])
    assert torch.autograd.gradcheck(lambda *qkv: _tiled.attend(*qkv, causal, tile), (q, k, v))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tile", [1, 32, 64, 128, 512])
def test_tiled_gives_the_same_whatever_the_tile(causal, tile) -> None:
    tensors = inputs(replace(CPU, sequence_length=150))
    exact = output_and_gradients(naive, tensors, torch.float64, causal)
    tiled = output_and_gradients(
        lambda q, k, v, c: _tiled.attend(q, k, v, c, tile), tensors, torch.float64, causal
    )
    for what, x in tiled.items():
        assert error(x, exact[what]) < 1e-13, what


def test_tiled_survives_logits_that_overflow_a_plain_exponential() -> None:
    q, k, v, do = inputs(replace(CPU, sequence_length=300))
    tensors = [q * 100, k * 100, v, do]
    exact = output_and_gradients(naive, tensors, torch.float64, True)
    tiled = output_and_gradients(_tiled.attend, tensors, torch.float64, True)
    for what, x in tiled.items():
        assert error(x, exact[what]) < 1e-9, what


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.numel = max([self.numel, *(x.numel() for x in tensors)])
        return out


def test_tiled_never_makes_a_tensor_of_t_by_t() -> None:
    """Twice the sequence, at most twice the largest tensor, a sixteenth of one head's scores."""
    largest = {}
    for length in (1024, 2048):
        tensors = inputs(replace(CPU, sequence_length=length, heads=2, kv_heads=1))
        with Largest() as seen:
            output_and_gradients(_tiled.attend, tensors, torch.float32, True)
        largest[length] = seen.numel
    assert largest[2048] <= 2 * largest[1024]
    assert largest[2048] <= 2048 * 2048 / 16


def test_tiled_skips_the_tiles_above_the_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    scores = _tiled._scores
    monkeypatch.setattr(_tiled, "_scores", lambda *args: seen.append(args[2:4]) or scores(*args))
    q, k, v, _ = inputs(replace(CPU, sequence_length=64))
    _tiled.attend(q, k, v, True, 16)
    assert len(seen) == 4 * 5 / 2
    assert all(keys[0] < queries[1] for queries, keys in seen)


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
