"""Each piece of a step belongs to one part, and the parts add up to the step."""

import pytest

from model.measure.parts import PARTS, Piece, Span, split

SPANS = [
    Span("attention", 10, 20), Span("loss", 40, 60), Span("attention", 70, 80), Span("optimizer", 90, 100),
]  # fmt: skip
H200 = {
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN": "products",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_nt_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel": "products",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>": "products",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>": "products",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
    "Memcpy HtoD (Pinned -> Device)": "copies",
    "Memset (Device)": "copies",
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16> >": "elementwise",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0": "elementwise",
}
COMPILED = {
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 64, 4, false, false, cutlass::bfloat16_t> >",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0",
    "_forward_kernel",
}


def piece(name, start=0.0, microseconds=1.0, asked=0.0):
    return Piece(name, start, microseconds, asked)


def parts(pieces, spans=SPANS, attention=None, steps=1, step_seconds=0.0):
    part_times = split(pieces, spans, attention, steps, step_seconds)
    assert [part_time.part for part_time in part_times] == list(PARTS)
    return {part_time.part: part_time.seconds * 1e6 for part_time in part_times if part_time.seconds}


@pytest.mark.parametrize(("name", "part"), H200.items())
def test_kernels_between_the_marks_are_told_by_their_names(name, part):
    assert parts([piece(name, asked=30)]) == {part: pytest.approx(1)}


@pytest.mark.parametrize("name", sorted(COMPILED))
def test_attention_in_compiled_code_is_told_by_the_kernels_of_its_backend(name):
    assert list(parts([piece(name, asked=30)], [], attention=r"^_forward_kernel\b")) == ["attention"]


def test_where_marks_tell_attention_its_names_do_not():
    assert list(parts([piece("_forward_kernel", asked=30)])) == ["elementwise"]


@pytest.mark.parametrize(
    ("asked", "part"), [(10, "attention"), (50, "loss"), (75, "attention"), (95, "optimizer")]
)
def test_what_the_host_asked_for_at_a_part_is_of_that_part_whenever_it_runs(asked, part):
    late_piece = piece("void at::native::vectorized_elementwise_kernel", start=500, asked=asked)
    assert list(parts([late_piece])) == [part]
    assert list(parts([piece("aten::mul", asked=asked)])) == [part]


@pytest.mark.parametrize("name", ["aten::mm", "aten::addmm", "aten::bmm", "nvjet_hsh_128x256"])
def test_a_product_is_one_also_in_the_loss_but_not_in_attention(name):
    assert list(parts([piece(name, asked=50)])) == ["products"]
    assert list(parts([piece(name, asked=15)])) == ["attention"]


def test_a_kernel_of_which_nobody_knows_who_asked_is_told_by_its_name():
    assert parts([piece("nvjet", asked=None), piece("other", start=9, asked=None)]) == {
        "products": pytest.approx(1), "elementwise": pytest.approx(1),
    }  # fmt: skip


def test_the_rest_of_the_step_is_idle_and_the_parts_add_up_to_it():
    pieces = [piece("gemm", start, 2.0, 30) for start in (0, 10)] + [piece("add", 20, 1.0, 30)]
    microseconds = parts(pieces, steps=2, step_seconds=10e-6)
    assert microseconds == pytest.approx({"products": 2, "elementwise": 0.5, "idle": 7.5})


def test_a_device_that_was_busier_under_the_profiler_has_not_idled():
    assert parts([piece("gemm", 0, 9.0, 30)], step_seconds=5e-6) == {"products": pytest.approx(9)}


def test_a_copy_takes_only_the_time_that_no_other_work_hides():
    pieces = [piece("gemm", 0, 10, 30), piece("add", 12, 4, 30), piece("Memcpy HtoD", 8, 6, 0)]
    assert parts(pieces)["copies"] == pytest.approx(2)  # from 10 to 12


def hidden(pieces):
    part_times = split(pieces, SPANS, None, 1, 0.0)
    return {
        part_time.part: part_time.hidden_seconds * 1e6
        for part_time in part_times
        if part_time.hidden_seconds is not None
    }


def test_communication_takes_only_the_time_in_which_nothing_else_ran():
    pieces = [piece("gemm", 0, 10, 30), piece("ncclDevKernel_AllGather", 5, 20), piece("add", 15, 5, 30)]
    assert parts(pieces)["communication"] == pytest.approx(10)  # from 10 to 15, and from 20 to 25
    assert hidden(pieces) == pytest.approx({"communication": 10, "copies": 0})


def test_time_in_which_two_collectives_run_counts_once():
    pieces = [piece("ncclDevKernel_AllGather", 0, 10), piece("ncclDevKernel_ReduceScatter", 4, 10)]
    assert parts(pieces) == {"communication": pytest.approx(14)} and hidden(pieces)["communication"] == 0


def test_a_copy_hides_communication_and_the_parts_add_up():
    pieces = [piece("gloo:all_reduce", 0, 10, None), piece("Memcpy DtoD", 6, 8), piece("gemm", 12, 4, 30)]
    microseconds = parts(pieces, step_seconds=20e-6)
    assert microseconds == pytest.approx({"products": 4, "copies": 6, "communication": 6, "idle": 4})
    assert hidden(pieces) == pytest.approx({"copies": 2, "communication": 4})


def test_equal_pieces_each_count():
    assert parts([piece("gemm"), piece("gemm")])["products"] == pytest.approx(2)
