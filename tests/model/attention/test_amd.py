"""What each backend says of AMD GPUs, on a stand-in for PyTorch's ROCm build: nothing here was run on one."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Launches, Supports, _reasons, _sdpa
from model.record import backends
from tests.amd import stand_in
from tests.model.attention.calls import CUDA
from tests.model.attention.test_contract import ADVICE, advised

NVIDIA_ONLY = {"cudnn", "custom", "flash1", "flash2", "flash3", "flash4"}
BY_TRITON = {"flex", "portable"}  # compiled for the architectures that they name
PART = replace(CUDA, queries=CUDA.sequence_length // 2)


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch):
    """As on a machine with AMD GPUs and every package, where PyTorch's own kernels take everything."""

    def set_architecture(architecture: str) -> None:
        stand_in(monkeypatch, architecture)
        monkeypatch.setattr(_reasons, "package", lambda *arguments: [])
        monkeypatch.setattr(_sdpa, "refusals", lambda *arguments, **options: [])

    return set_architecture


@pytest.mark.parametrize("architecture", ["gfx90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("name", backends.names())
def test_a_backend_takes_an_amd_gpu_or_says_whose_gpus_it_takes(amd, name: str, architecture: str) -> None:
    """An MI250X has Hopper's compute capability: (9, 0)."""
    amd(architecture)
    reasons = attention.load(name).unsupported_reasons(CUDA)
    if name in NVIDIA_ONLY:
        assert f"takes NVIDIA GPUs, not AMD's {architecture}: use --set attention=auto" in reasons[0]
    elif name in BY_TRITON and architecture == "gfx1100":
        assert reasons[0].startswith("takes AMD's gfx90a and gfx942, not AMD's gfx1100: ")
    else:
        assert not reasons


@pytest.mark.parametrize("name", sorted(NVIDIA_ONLY))
def test_nobody_is_told_to_install_what_is_of_no_use_there(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stand_in(monkeypatch)
    (reason,) = attention.load(name).unsupported_reasons(CUDA)
    assert "install" not in reason


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", backends.names())
def test_what_advice_names_is_supported_there(amd, name: str, dtype: str) -> None:
    amd("gfx90a")
    case = replace(CUDA, dtype=dtype)
    reasons = attention.load(name).unsupported_reasons(case)
    for reason in filter(ADVICE.search, reasons):
        advised_name, advised_case = advised([reason], name, case)
        assert {*attention.load(advised_name).unsupported_reasons(advised_case)} < {*reasons}


def test_a_backend_of_another_package_that_says_nothing_of_amd_is_tried(amd) -> None:
    amd("gfx1100")
    assert _reasons.declared(CUDA, Supports()) == []


def test_rocm_without_a_gpu_says_where_to_look(amd, monkeypatch: pytest.MonkeyPatch) -> None:
    amd("gfx90a")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in backends.names():
        assert "no usable AMD GPU here: run on a GPU node, and check rocminfo there" in str(
            attention.load(name).unsupported_reasons(CUDA)
        )


# ------------------------------------------------------------------ fewer queries than keys under a causal mask


def test_flash_takes_no_part_of_a_sequence_there(amd) -> None:
    """AOTriton puts the first query at the first key, which is another mask."""
    amd("gfx942")
    (reason,) = attention.load("flash").unsupported_reasons(PART)
    assert "its mask begins at the first key: use --set attention=auto" in reason
    assert not attention.load("auto").unsupported_reasons(PART)


@pytest.mark.parametrize("kernel", [_sdpa.EFFICIENT, None])
def test_other_kernels_get_a_mask_in_memory_there(amd, kernel: str | None) -> None:
    """Not the bias that PyTorch hands to flash, or to a mask of the efficient kernel that old ROCm builds lack."""

    class OnGpu:
        is_cuda, device, shape = True, "cpu", (1, 1, 2, 16)

    q, k = OnGpu(), torch.zeros(1, 1, 3, 16)
    assert type(_sdpa._lower_right(q, k, kernel)) is not torch.Tensor
    amd("gfx90a")
    assert _sdpa._lower_right(q, k, kernel).tolist() == [[True, True, False], [True, True, True]]


# --------------------------------------------------------------------------------------- which kernels are right


@pytest.mark.parametrize("name", ["flash", "efficient"])
def test_flash_and_efficient_are_told_apart_by_pytorchs_operators(amd, name: str) -> None:
    """Both launch AOTriton's kernels."""
    assert not attention.load(name).launches.on("cuda").operators
    amd("gfx90a")
    launches = attention.load(name).launches.on("cuda")
    assert launches.operators
    for pattern in (launches.forward, launches.backward):
        operator = pattern.removeprefix("^aten::").removesuffix("$")
        assert hasattr(torch.ops.aten, operator)


def test_a_backend_with_the_same_kernels_on_both_declares_them_once(amd) -> None:
    amd("gfx90a")
    portable = attention.load("portable").launches
    assert portable.on("cuda") is portable.cuda
    assert Launches().on("cuda") is None
