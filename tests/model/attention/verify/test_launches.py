"""Which kernels ran, and whose they are."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from model import attention
from model.attention import Backend, Kernels, Launches
from model.attention.verify import launches
from model.record import backends
from tests.model.attention.verify import planted_shapes  # noqa: F401  it plants
from tests.model.attention.verify.planted import (
    BY_SOFTMAX,
    CASE,
    OWN,
    PLANTED,
    backward,
    own,
    right,
    right_backend,
    sdpa_under_another_name,
)


def test_names_that_code_gives_itself_prove_nothing() -> None:
    seen_names = launches.SeenNames()

    def work():
        with torch.profiler.record_function("flash::flash_fwd_kernel"):
            torch.ones(2).exp()

    launches._watch("cpu", seen_names, work)
    assert "aten::exp" in seen_names.operators and "flash::flash_fwd_kernel" not in seen_names.operators


def test_the_profiler_is_silent(capfd) -> None:
    launches._watch("cpu", launches.SeenNames(), lambda: torch.ones(2).exp())
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
    owners = {
        name
        for name in backends.names()
        if (declared := attention.load(name).launches.on("cuda"))
        and not declared.operators
        and declared.claims(kernel)
    }
    assert owners == ({owner} if owner else set())


@pytest.mark.parametrize(
    ("looks", "passes"),
    [("once", True), ("always", False), ("other kernels once", False)],
)
def test_a_difference_in_one_look_alone_is_no_other_kernel(looks: str, passes: bool) -> None:
    """Interrupted, a kernel's atomic additions can come in an unusual order once; another kernel is still found."""
    watch_count = 0

    def attend(q, k, v, causal):
        nonlocal watch_count
        watch_count += torch.autograd.profiler._is_profiler_enabled
        altered = torch.autograd.profiler._is_profiler_enabled and (looks == "always" or watch_count == 1)
        if looks == "other kernels once":
            return (right if altered else sdpa_under_another_name)(q, k, v, causal)
        return right(q, k, v, causal) * (1 + 2**-22 if altered else 1.0)

    checks, _ = launches.check("planted", Backend("planted", lambda case: [], attend, BY_SOFTMAX), CASE)
    watch_checks = [check for check in checks if check.name == "same when watched"]
    assert watch_checks and all(check.passed for check in watch_checks) == passes


# ----------------------------------------------------------------------------------------- a busy machine


@pytest.fixture(params=[0.0, 0.3, 1.0], ids=["quiet", "busy", "crowded"])
def interrupted(request, monkeypatch):
    """A share of all events takes up to 30 ms longer, as if other processes had the core meanwhile."""
    chance, watched = Random(1), launches.watched

    def busy(*arguments, **options):
        result, events = watched(*arguments, **options)
        for event in events:
            if chance.random() < request.param:
                pause = chance.uniform(1e3, 3e4)
                enclosing = event
                while enclosing is not None:
                    enclosing.time_range.end += pause
                    enclosing = enclosing.cpu_parent
        return result, events

    monkeypatch.setattr(launches, "watched", busy)
    return request.param


def does_the_work(backend: Backend, case=CASE, name="planted") -> tuple[dict[str, bool], list[str]]:
    unsettled: list[str] = []
    checks, _ = launches.check(name, backend, case, unsettled)
    return {check.what: check.passed for check in checks if check.name == "kernels do the work"}, unsettled


BOTH = {"forward": True, "backward": True}


@pytest.mark.parametrize("tokens", [1, 32, 160])
@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("name", ["flash", "tiled", "math"])
def test_a_busy_machine_accuses_no_backend_of_this_project(name, context, tokens, interrupted) -> None:
    if context > tokens:
        pytest.skip("there are fewer tokens than parts")
    case = replace(CASE, sequence_length=tokens, context=context)
    passes, unsettled = does_the_work(attention.load(name), case, name)
    assert passes == ({"forward": True} if name == "math" else BOTH) and not unsettled


def test_a_busy_machine_accuses_no_backend_that_declares_its_matrix_products(interrupted) -> None:
    assert does_the_work(right_backend) == (BOTH, [])


def test_a_declared_kernel_for_show_is_refused_by_its_operations_however_busy_the_machine_is(
    interrupted,
) -> None:
    candidate = PLANTED["declared-kernel-for-one-number"]
    passes, unsettled = does_the_work(candidate.backend, candidate.case)
    assert passes == {"forward": False, "backward": False} and not unsettled


def for_an_eighth(q, k, v, causal):
    """The declared function has one of eight heads."""
    own_output = own(q[:, :, :1], k[:, :, :1], v[:, :, :1], causal)
    return torch.cat((own_output, right(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], causal)), 2)


def by_pairs(q, k, v, causal):
    """No matrix product: each pair of a query and a key is multiplied on its own."""
    s = (q.transpose(1, 2)[:, :, :, None] * k.transpose(1, 2)[:, :, None] * q.shape[-1] ** -0.5).sum(-1)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    o = (s.softmax(-1)[..., None] * v.transpose(1, 2)[:, :, None]).sum(-2).transpose(1, 2)
    return o + 0 * own(q[:1, :1, :1], k[:1, :1, :1], v[:1, :1, :1], causal)


def in_a_region_of_its_own_name(q, k, v, causal):
    own_output = own(q[:1, :1, :1], k[:1, :1, :1], v[:1, :1, :1], causal)
    with torch.profiler.record_function("_Own"):
        return right(q, k, v, causal) + 0 * own_output


@pytest.mark.parametrize("attend", [for_an_eighth, by_pairs, in_a_region_of_its_own_name])
def test_work_that_others_do_is_counted_whatever_it_is_made_of(attend, interrupted) -> None:
    case = replace(CASE, heads=8, kv_heads=8)
    backend = Backend("planted", lambda case: [], attend, Launches(cpu=OWN))
    passes, unsettled = does_the_work(backend, case)
    assert passes["forward"] is False and not unsettled


class _Hidden(torch.autograd.Function):
    """Attention whose work the profiler cannot count."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        with torch.enable_grad():
            ctx.inputs = [x.detach().requires_grad_() for x in (q, k, v)]
            ctx.o = scaled_dot_product_attention(
                *(x.transpose(1, 2) for x in ctx.inputs), is_causal=causal
            ).transpose(1, 2)
        x = np.random.default_rng(0).standard_normal((700, 700))  # work enough to be seen
        for _ in range(4):
            x = x @ x / np.abs(x).max()
        return ctx.o.detach().clone()

    @staticmethod
    def backward(ctx, do):
        return *torch.autograd.grad(ctx.o, ctx.inputs, do), None


ADDED = Kernels(r"^aten::add$", r"^AddBackward0$", operators=True)


def test_work_that_cannot_be_counted_is_timed_and_something_declared_for_show_is_refused(
    monkeypatch,
) -> None:
    backend = Backend("planted", lambda case: [], lambda *x: _Hidden.apply(*x) + 0.0, Launches(cpu=ADDED))
    passes, unsettled = does_the_work(backend, replace(CASE, kv_heads=4))
    assert passes.get("forward") is False or any("forward" in message for message in unsettled)


def test_what_helps_and_cannot_be_counted_is_no_accusation(interrupted) -> None:
    """Its own function around K is not declared; if times never settle, that is said."""

    def attend(q, k, v, causal):
        return right(q, backward(k, lambda d: d), v, causal)

    passes, unsettled = does_the_work(Backend("planted", lambda case: [], attend, BY_SOFTMAX))
    assert all(passes.values()) and len(passes) + len(unsettled) == 2


def test_times_that_never_settle_are_no_verdict_and_the_certificate_says_so(monkeypatch) -> None:
    duration = 1e9

    def falling_times(events, *_):
        nonlocal duration
        duration *= 0.9
        return [(("theirs::attend", 1, False), duration)]

    monkeypatch.setattr(launches, "_times", falling_times)

    def attend(q, k, v, causal):
        return right(q, backward(k, lambda d: d), v, causal)

    passes, unsettled = does_the_work(Backend("planted", lambda case: [], attend, BY_SOFTMAX))
    assert not passes and all("so busy that their times did not settle" in message for message in unsettled)
