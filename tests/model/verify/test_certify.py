"""Honest backends get a certificate, and each planted wrong one is refused by the check that is there for it."""

import itertools
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model import attention
from model.attention import Case
from model.verify import cases, certificate, data, launches, memory, numbers, reference
from model.verify.certify import certify, certify_case
from model.verify.identity import key_of
from model.verify.reference import STEPS, Inputs
from tests.model.verify import planted, planted_habits, planted_numbers  # noqa: F401  they plant
from tests.model.verify.planted import CASE, PLANTED

HONEST = ("auto", "flash", "math", "tiled")
EXAMPLE = Path(__file__).parents[3] / "examples" / "backend"


@pytest.fixture(autouse=True, scope="module")
def numbers_are_kept():
    """A gate gives its memory back; forty of them in a row need the same numbers."""
    data.known.cache_clear, clear = (lambda: None), data.known.cache_clear
    yield
    del data.known.cache_clear
    clear()


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Registers entry points as an installed package would."""

    def register(points: dict[str, str], path: Path = tmp_path) -> None:
        info = tmp_path / "planted-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        lines = [f"{name} = {where}" for name, where in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[assay.attention]", *lines]))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.syspath_prepend(path)
        _forget()

    yield register
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    for cached in (attention.names, attention.load, attention._foreign):
        cached.cache_clear()


@pytest.fixture
def plant(monkeypatch):
    """Makes a planted backend known by name, as a foreign one."""

    def known(name: str, backend: attention.Backend) -> None:
        names, load = attention.names(), attention.load
        monkeypatch.setattr(attention, "names", lambda: (*names, name))
        monkeypatch.setattr(attention, "load", lambda asked: backend if asked == name else load(asked))
        monkeypatch.setattr(attention, "_foreign", lambda: (name,))

    yield known


# ------------------------------------------------------------------------------------------ the honest


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_backend_is_right(name: str) -> None:
    found = certify(name, "cpu")
    assert found.verdict == "right", found.reasons
    assert found.refused_by == []
    assert {"right", "finite", "own kernels", "same loss", "same gradients", "checkpoint"} <= {
        check.name for check in found.checks
    }
    assert found.kernels["forward"] and found.kernels["backward"]
    assert found.deterministic is True
    assert found.graph_break == (
        "in a graph, inductor would put a FlashAttention kernel in the place of MATH"
        if name == "math"
        else ""
    )
    assert found == type(found).model_validate_json(found.model_dump_json())


def test_flash_and_auto_leave_16_bits_on_a_cpu_out_and_say_why() -> None:
    """PyTorch's CPU kernel adds up dK and dV in 16 bits: model.verify found it, and the backends refuse it."""
    for name in ("auto", "flash"):
        found = certify_case(name, planted.HALF)
        assert found.verdict == "unsupported"
        assert "adds up dK and dV in bfloat16" in found.reasons[0]


def test_the_16_bit_kernel_that_they_refuse_would_be_found_wrong(monkeypatch) -> None:
    flash = attention.load("flash")
    backend = replace(flash, unsupported_reasons=lambda case: [])
    load = attention.load
    monkeypatch.setattr(attention, "load", lambda asked: backend if asked == "flash" else load(asked))
    case = Case("cpu", "bfloat16", 1, 520, 8, 1, 32)
    found = certify_case("flash", case)
    assert found.verdict == "wrong" and "right" in found.refused_by
    assert {check.what for check in found.checks if not check.passed} <= {"dk", "dv"}


@pytest.mark.parametrize("name", ["math", "tiled"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_run_in_16_bits_gets_its_certificate(name: str, dtype: str) -> None:
    found = certify_case(name, replace(CASE, dtype=dtype))
    assert found.verdict == "right", found.reasons
    assert found.case == replace(CASE, dtype=dtype)


def test_a_right_backend_of_somebody_else_is_right(plant) -> None:
    plant("theirs", planted.right_backend)
    assert certify_case("theirs", CASE).reasons == []


# ------------------------------------------------------------------------------------------ the planted


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_backend_is_refused(name: str, plant) -> None:
    wrong = PLANTED[name]
    plant(name, wrong.backend)
    precision = torch.get_float32_matmul_precision()
    try:
        found = certify_case(name, wrong.case)
    finally:
        torch.set_float32_matmul_precision(precision)
    assert found.verdict == "wrong"
    assert wrong.fault & set(found.refused_by), found.reasons
    assert all(found.reasons)
    print(f"{name}: {', '.join(found.refused_by)}")  # noqa: T201


def test_a_planted_backend_among_our_own_files_is_refused_too(plant, monkeypatch) -> None:
    plant("fast", PLANTED["sdpa-under-another-name"].backend)
    monkeypatch.setattr(attention, "_foreign", lambda: ())
    monkeypatch.setattr("model.verify.identity.code", lambda name: "0")
    assert "no other's kernels" in certify_case("fast", CASE).refused_by


def test_our_own_backend_that_runs_another_of_ours_is_refused(monkeypatch) -> None:
    math, load = attention.load("math"), attention.load
    swapped = replace(load("tiled"), attend=math.attend)
    monkeypatch.setattr(attention, "load", lambda asked: swapped if asked == "tiled" else load(asked))
    found = certify_case("tiled", CASE)
    assert {"own kernels", "no other's kernels"} <= set(found.refused_by)


def test_memory_that_does_not_suffice_is_no_verdict(plant) -> None:
    def attend(q, k, v, causal):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB")

    plant("big", replace(planted.right_backend, attend=attend))
    with pytest.raises(torch.OutOfMemoryError):
        certify_case("big", CASE)


def test_reasons_that_raise_are_a_fault(plant) -> None:
    def reasons(case):
        raise KeyError("driver")

    plant("rude", replace(planted.right_backend, unsupported_reasons=reasons))
    found = certify_case("rude", CASE)
    assert found.verdict != "right"
    assert "unsupported_reasons raised KeyError" in found.reasons[0]


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["cudnn", "custom", "efficient", "flash2", "flash3", "flash4", "flex"])
def test_a_backend_that_cannot_run_here_is_unsupported_with_its_reasons(name: str) -> None:
    found = certify(name, "cpu")
    assert found.verdict == "unsupported"
    assert any("--set device=cuda" in reason for reason in found.reasons)


def test_heads_that_cannot_be_grouped_are_unsupported() -> None:
    found = certify_case("math", replace(CASE, heads=3))
    assert found.verdict == "unsupported" and "cannot share" in found.reasons[0]


# ------------------------------------------------------------------------------------------ the key


def test_the_key_changes_with_whatever_the_result_depends_on() -> None:
    base = {"backend": "math", "code": "1", "case": CASE, "device_name": "CPU", "software": {"torch": "2.13"}}
    others = [
        {"backend": "tiled"}, {"code": "2"}, {"case": replace(CASE, head_dim=64)}, {"case": None},
        {"device_name": "GPU"}, {"software": {"torch": "2.14"}},
    ]  # fmt: skip
    keys = {certificate.key(**(base | other)) for other in [{}, *others]}
    assert len(keys) == len(others) + 1


def test_a_certificate_is_found_under_the_key_that_a_run_asks_for() -> None:
    assert certify_case("math", CASE).key == key_of("math", "cpu", CASE) != key_of("tiled", "cpu", CASE)


def test_the_records_need_no_torch() -> None:
    import subprocess

    code = "import sys; import model.verify.certificate, model.verify.cases; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# ---------------------------------------------------------------------------- the reference and the rule


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
def test_the_reference_is_attention_as_autograd_has_it(causal, heads, monkeypatch) -> None:
    monkeypatch.setitem(reference.ELEMENTS, "cpu", 5000)  # many blocks
    x = [torch.randn(2, 70, n, 8, dtype=torch.float64) for n in (heads[0], heads[1], heads[1], heads[0])]
    q, k, v = (y.clone().requires_grad_() for y in x[:3])
    o = planted.right(q, k, v, causal)
    o.backward(x[3])
    found = reference.exact(Inputs(*x), causal)
    for step, theirs in zip(STEPS, (o, q.grad, k.grad, v.grad), strict=True):
        torch.testing.assert_close(found.values[step], theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", data.DATA)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_plain_attention_errs_by_about_the_roundings_that_are_counted(kind: str, dtype: str) -> None:
    """The unit of the tolerance: no data, and no precision, makes an honest error many of it."""
    known = data.of(cases.Variant(Case("cpu", dtype, 2, 256, 4, 2, 64), kind))
    for step in STEPS:
        slices = numbers.slices(
            known.plain[step].double() - known.exact.values[step], known.exact.spread[step]
        )
        assert float(slices["tensor"]) < (10 if dtype == "float32" else 1), (kind, step)


def test_results_that_differ_in_the_last_bit_from_call_to_call_are_right_and_said_to_differ(plant) -> None:
    calls = itertools.count()

    def attend(q, k, v, causal):
        o = planted.right(q, k, v, causal)
        return o * (1 + 2**-23 * (next(calls) % 2))

    plant("restless", replace(PLANTED["scale-one-over-d"].backend, attend=attend))
    found = certify_case("restless", CASE)
    assert (found.verdict, found.deterministic) == ("right", False), found.reasons


def test_memory_that_nobody_has_written_is_nan_while_a_backend_is_on_trial() -> None:
    q, k = torch.zeros(2, 160, 4, 32, requires_grad=True), torch.zeros(2, 160, 2, 32)
    with memory.poisoned(q, k):
        made = (torch.empty(7), torch.empty_like(q), q.new_empty(3, 5), torch.empty_strided((2, 3), (3, 1)))
        kept = torch.zeros_like(q)
    for x in made:
        assert x.isnan().all()
    assert not kept.isnan().any()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 257])
def test_every_row_is_in_a_tile_and_none_of_a_long_sequence_is_short(length: int) -> None:
    first = numbers._first_rows(length)
    assert {row for start in first for row in range(start, start + numbers.TILE)} >= set(range(length))
    assert all(start + numbers.TILE <= max(length, numbers.TILE) for start in first)


def test_one_row_after_the_last_tile_may_err_as_a_row_and_is_found_where_it_errs_more() -> None:
    error, spread = (
        torch.zeros(1, 257, 1, 64, dtype=torch.float64),
        torch.ones(1, 257, 1, dtype=torch.float64),
    )
    error[0, 256] = 1.5 / 8  # the row's norm is 1.5 roundings, where a row may have 2 and a tile 1
    assert float(numbers.slices(error, spread)["row"].max()) == pytest.approx(1.5)
    assert float(numbers.slices(error, spread)["tile"].max()) < 1
    assert (
        numbers._where("tile", numbers.slices(error, spread)["tile"], 257) == "batch 0, head 0, rows from 193"
    )


@pytest.mark.parametrize("layout", data.LAYOUTS)
def test_a_layout_changes_where_the_numbers_lie_and_no_number(layout: str) -> None:
    base = cases.Variant(CASE, "repeated")
    laid = data.of(replace(base, layout=layout)).inputs
    for name in ("q", "k", "v", "do"):
        assert torch.equal(getattr(laid, name), getattr(data.of(base).inputs, name))
    assert layout == "contiguous" or not all(getattr(laid, name).is_contiguous() for name in ("q", "k", "v"))


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


# ------------------------------------------------------------------------------------------ the example


def test_the_example_backend_gets_its_certificate(registered) -> None:
    """examples/backend, found through the entry point that its pyproject.toml declares."""
    import tomllib

    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    registered(project["entry-points"]["assay.attention"], EXAMPLE)
    (name,) = project["entry-points"]["assay.attention"]
    assert name in attention.names()
    found = certify_case(name, CASE)
    assert found.verdict == "right", found.reasons
    assert certify_case(name, replace(CASE, dtype="float16")).verdict == "unsupported"
