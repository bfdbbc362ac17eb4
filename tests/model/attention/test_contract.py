"""The contract of every attention backend: what it declares, and what it refuses with which reasons."""

import re
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Case, Supports, _reasons, _sdpa
from model.record import backends
from model.record.errors import Unsupported
from model.record.tasks.training import NO_FLOAT16
from tests.model.attention.calls import CPU, CUDA, RUN_HERE

ODD = [
    replace(CPU, dtype="float16"),
    replace(CPU, heads=4, kv_heads=3),
    replace(CUDA, dtype="float32"),
    replace(CUDA, head_dim=320),
    replace(CUDA, head_dim=20),
    replace(CUDA, sequence_length=1),
    replace(CUDA, batch=70_000),
    replace(CUDA, causal=False),
    replace(CUDA, tile=(100, 64)),
]
GPU_ONLY = {"custom", "cudnn", "efficient", "flash1", "flash2", "flash3", "flash4", "flex", "portable"}


@pytest.mark.parametrize("name", backends.names())
@pytest.mark.parametrize("case", [CPU, CUDA, *ODD], ids=str)
def test_reasons_are_sentences_that_say_what_to_do(name: str, case: Case) -> None:
    backend = attention.load(name)
    assert backend.summary and "\n" not in backend.summary
    reasons = backend.unsupported_reasons(case)
    assert isinstance(reasons, list)
    assert len(set(reasons)) == len(reasons)
    for reason in reasons:
        # what is wrong: what to do about it
        problem, _, remedy = reason.partition(": ")
        assert len(problem.split()) >= 3, reason
        assert len(remedy.split()) >= 2, reason


def test_loading_backends_imports_neither_the_compiler_nor_other_peoples_packages() -> None:
    code = (
        "import sys; from model import attention; from model.record.backends import names; list(map(attention.load, names()));"
        "foreign = {'triton', 'flash_attn', 'flash_attn_interface', 'cutlass'};"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in foreign or m == 'torch._dynamo'))"
    )
    assert _python(code) == "[]"


def test_listing_names_imports_neither_torch_nor_the_backends() -> None:
    code = (
        "import sys; from model.record.backends import names; assert 'tiled' in names();"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'triton') or '.tiled' in m])"
    )
    assert _python(code) == "[]"


def test_these_backends_ship() -> None:
    shipped = set(backends.names()) - set(backends.foreign())
    assert shipped >= GPU_ONLY | {"auto", "math", "flash", "tiled"}


@pytest.mark.parametrize("name", backends.names())
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
        (Supports(causal=(False,)), CPU, "has no causal mask"),
        (Supports(causal=(True,)), replace(CPU, causal=False), "is causal only"),
        (Supports(length_multiple=128), CPU, "multiples of 128, not 64"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_a_declaration_leaves_out_is_refused_by_name(supports, case, reason) -> None:
    (refusal,) = _reasons.declared(case, replace(supports, devices=("cpu",)))
    assert reason in refusal


def test_bfloat16_on_a_gpu_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_reasons, "_gpu_is_there", lambda case: [])
    monkeypatch.setattr(_reasons, "gpu_capability", lambda case: (7, 5))
    for name in ("auto", "math", "tiled"):
        assert "has no bfloat16" in attention.load(name).unsupported_reasons(CUDA)[0]
        assert not attention.load(name).unsupported_reasons(replace(CUDA, dtype="float16"))


CAPABILITIES = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
ADVICE = re.compile(r"--set (train\.dtype|attention|device)=(\w+)")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[tuple[int, int]], None]:
    """As on a machine with a GPU of this capability and every package."""

    def set_capability(capability: tuple[int, int]) -> None:
        monkeypatch.setattr(_reasons, "_gpu_is_there", lambda case: [])
        monkeypatch.setattr(_reasons, "gpu_capability", lambda case: capability)
        monkeypatch.setattr(_reasons, "package", lambda *arguments: [])
        monkeypatch.setattr(_sdpa, "refusals", lambda *arguments, **options: [])

    return set_capability


def advised(reasons: list[str], name: str, case: Case) -> tuple[str, Case]:
    """The backend and the case after all that the reasons say to set; of two values for one, the last."""
    changes = {
        key.removeprefix("train."): value for reason in reasons for key, value in ADVICE.findall(reason)
    }
    return changes.pop("attention", name), replace(case, **changes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("name", backends.names())
def test_what_advice_names_is_supported(gpu, name: str, capability: tuple[int, int], dtype: str) -> None:
    """A reason that says what to set is gone where that is set, and none has come."""
    gpu(capability)
    case = replace(CUDA, dtype=dtype)
    reasons = attention.load(name).unsupported_reasons(case)
    for reason in filter(ADVICE.search, reasons):
        advised_name, advised_case = advised([reason], name, case)
        assert advised_case.dtype != "float16"  # nothing is trained in it
        assert {*attention.load(advised_name).unsupported_reasons(advised_case)} < {*reasons}


@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_what_is_advised_instead_of_training_in_float16_is_supported(
    gpu, capability: tuple[int, int]
) -> None:
    gpu(capability)
    bfloat16, float32 = NO_FLOAT16.rpartition("; ")[2].split(", or ")
    advised_name, case = advised(
        [bfloat16 if capability >= (8, 0) else float32], "auto", replace(CUDA, dtype="float16")
    )
    assert attention.load(advised_name).unsupported_reasons(case) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_kernel_that_cannot_train_on_a_gpu_says_in_what_it_runs_there(gpu, dtype: str) -> None:
    """A T4 has no bfloat16, and such a kernel no float32."""
    gpu((7, 5))
    supports = Supports(dtypes=("bfloat16", "float16"), capability=((7, 5), None))
    (reason,) = _reasons.declared(replace(CUDA, dtype=dtype), supports)
    assert "(compute capability 7.5) has no bfloat16, which leaves float16 for what is not training" in reason
    assert reason.endswith(": choose another backend or a newer GPU")


@pytest.mark.parametrize("name", sorted(GPU_ONLY))
def test_a_gpu_backend_refuses_a_cpu_by_name_of_the_flag_to_use(name: str) -> None:
    reasons = attention.load(name).unsupported_reasons(CPU)
    assert any("--set device=cuda" in reason for reason in reasons)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize("name", backends.names())
def test_without_a_gpu_every_backend_refuses_the_device_cuda(name: str) -> None:
    assert attention.load(name).unsupported_reasons(CUDA)


@pytest.mark.parametrize("name", backends.names())
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


@pytest.mark.parametrize(("name", "module"), [("flash2", "flash_attn"), ("flash3", "flash_attn_interface")])
def test_what_a_build_leaves_out_is_unsupported_and_other_errors_stay(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str
) -> None:
    message = "This flash attention build does not support float16,\n head dims to 64"

    def flash_attn_func(*_, **__):
        raise RuntimeError(message)

    package = types.ModuleType(module)
    package.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module, package)
    q_BTHD = torch.zeros(1, 2, 1, 64)
    with pytest.raises(Unsupported, match=f"float16, head dims to 64: build {module} with it"):
        attention.load(name).attend(q_BTHD, q_BTHD, q_BTHD, True)
    message = "CUDA error: an illegal memory access"
    with pytest.raises(RuntimeError, match="illegal memory access"):
        attention.load(name).attend(q_BTHD, q_BTHD, q_BTHD, True)


def test_flash3_leaves_a_graph_only_where_its_build_has_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn_interface", types.ModuleType("flash_attn_interface"))
    assert "its output shapes" in attention.load("flash3").graph_break()
    monkeypatch.setattr(torch.ops.flash_attn_3, "_flash_attn_forward", print, raising=False)
    assert attention.load("flash3").graph_break() == ""


def test_a_package_that_cannot_be_loaded_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    for name, body in (("broken_abi", "raise OSError('undefined symbol')"), ("half", "import not_there")):
        (tmp_path / f"{name}.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    assert "undefined symbol" in _reasons.package("broken_abi", "f", "rebuild")[0]
    assert "lacks the module `not_there`" in _reasons.package("half", "f", "install the rest")[0]
    assert "not installed" in _reasons.package("no_such.inner", "f", "install it")[0]


def test_a_package_that_does_not_fit_into_memory_is_no_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """The backend could run with more memory, so it is not `unsupported`, and no certificate says so."""
    message = "huge.so: failed to map segment from shared object"
    (tmp_path / "huge.py").write_text(f"raise ImportError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match=message):
        _reasons.package("huge", "f", "install it")


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
    with pytest.raises(ValueError, match=r"q has shape \(1, 4, 64, 16\); expected"):
        attention.attend(attention.load(name), CPU, q_BHTD, kv_BKTD, kv_BKTD)


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_refusal_of_a_tile_names_the_backends_that_take_one() -> None:
    tile_backends = [name for name in backends.names() if attention.load(name).attend_by_tile]
    tiled = replace(CPU, tile=(64, 32))
    (refusal,) = attention.lacking(attention.load("math"), replace(tiled, device="cuda"))
    assert refusal.endswith(f": {', '.join(tile_backends[:-1])} and {tile_backends[-1]}")
    (refusal,) = attention.lacking(attention.load("math"), tiled)
    cpu_backends = [name for name in tile_backends if "cpu" in attention.load(name).supports.devices]
    assert refusal.endswith(f": {', '.join(cpu_backends)}")
    assert not attention.lacking(attention.load("tiled"), tiled)
