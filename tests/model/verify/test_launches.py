"""Which kernels ran, and whose they are."""

import pytest
import torch

from model import attention
from model.attention import Backend
from model.verify import launches
from tests.model.verify.planted import BY_SOFTMAX, CASE, right, sdpa_under_another_name


def test_names_that_code_gives_itself_prove_nothing() -> None:
    seen = launches.Seen()

    def work():
        with torch.profiler.record_function("flash::flash_fwd_kernel"):
            torch.ones(2).exp()

    launches._watch("cpu", seen, work)
    assert "aten::exp" in seen.operators and "flash::flash_fwd_kernel" not in seen.operators


def test_the_profiler_is_silent(capfd) -> None:
    launches._watch("cpu", launches.Seen(), lambda: torch.ones(2).exp())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("kernel", "owner"),
    [
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128>>", "flash"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", "flash2"),
        ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>", "flash2"),
        (
            "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::Collective>>>",
            "flash3",
        ),
        (
            "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__0",
            "flash4",
        ),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", "efficient"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_31_64x128x128", "cudnn"),
        ("triton_tem_fused_flex_attention_backward_zeros_1", "flex"),
        ("_forward_kernel", "custom"),
        ("void at::native::elementwise_kernel<128, 2>", None),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", None),
    ],
)
def test_a_gpu_kernel_belongs_to_one_backend(kernel: str, owner: str | None) -> None:
    found = {
        name
        for name in attention.names()
        if (declared := attention.load(name).launches.on("cuda"))
        and not declared.operators
        and launches._claims(declared, kernel)
    }
    assert found == ({owner} if owner else set())


@pytest.mark.parametrize(
    ("looks", "passes"),
    [("once", True), ("always", False), ("other kernels once", False)],
)
def test_a_difference_in_one_look_alone_is_no_other_kernel(looks: str, passes: bool) -> None:
    """Interrupted, a kernel's atomic additions can come in an unusual order once; another kernel is still found."""
    watched = 0

    def attend(q, k, v, causal):
        nonlocal watched
        watched += torch.autograd.profiler._is_profiler_enabled
        now = torch.autograd.profiler._is_profiler_enabled and (looks == "always" or watched == 1)
        if looks == "other kernels once":
            return (right if now else sdpa_under_another_name)(q, k, v, causal)
        return right(q, k, v, causal) * (1 + 2**-22 if now else 1.0)

    checks, _ = launches.check("planted", Backend("planted", lambda case: [], attend, BY_SOFTMAX), CASE)
    found = [each for each in checks if each.name == "same when watched"]
    assert found and all(each.passed for each in found) == passes
