"""flash1's kernels against float64, in Triton's interpreter on a CPU and compiled on a GPU; planted faults show."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention import Case, Kernels, Launches
from model.attention.verify import accuracy, cases, habits
from model.attention.verify.cases import Variant
from model.record import versions
from model.training.certify import certify_case
from tests.model.attention.kernels import interpreted
from tests.model.attention.kernels.interpreted import LENGTHS, drawn, enormous, exact, off

pytestmark = [
    pytest.mark.skipif(bool(versions.lacking("attention=flash1")), reason="this triton is too old for it"),
    # Of NumPy, where exp2() of a hidden score overflows, or a row that sees no key has no sum to divide by.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

# Two of the interpreter's tiles of keys and a bit, and three of rows.
CPU = Case("cpu", "float32", batch=1, sequence_length=34, heads=4, kv_heads=2, head_dim=16)


@pytest.fixture(autouse=True)
def kernels(device, monkeypatch):
    if device == "cpu":
        interpreted.mend(monkeypatch)


@pytest.fixture
def case(device) -> Case:
    return CPU if device == "cpu" else replace(CPU, device="cuda", sequence_length=70)


def wrong(variant: Variant) -> list[str]:
    return [check.reason for check in accuracy.check(attention.load("flash1"), variant) if not check.passed]


def run(q, k, v, do, causal, offset):
    """O, the gradients, and log2 of each row's sum of exponentials."""
    from model.attention.kernels import flash1

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o, (row_sum, row_max) = flash1.flash1_attention(*leaves, causal, offset)
    return [o.detach(), *torch.autograd.grad(o, leaves, do), row_sum.double().log2() + row_max]


# ---------------------------------------------------------------------------------------------- right results


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("head_dim", "causal"), [(16, True), (64, False), (96, True), (128, True)])
def test_every_precision_and_head_dim_is_right(case, dtype, head_dim, causal) -> None:
    assert not wrong(Variant(replace(case, dtype=dtype, head_dim=head_dim, causal=causal)))


@pytest.mark.parametrize(
    ("data", "layout", "changes"),
    [
        ("plain", "contiguous", {"sequence_length": 1, "heads": 3, "kv_heads": 1}),
        ("plain", "contiguous", {"sequence_length": 32, "kv_heads": 4, "head_dim": 32}),
        ("plain", "contiguous", {"sequence_length": 33, "heads": 6, "kv_heads": 2, "head_dim": 24}),
        ("needle", "fused qkv", {"causal": False}),
        ("large logits", "heads first", {"batch": 2}),
        ("huge logits", "head dim strided", {}),
        ("repeated", "expanded", {"batch": 2}),
        ("offset", "sliced", {"sequence_length": 66, "heads": 1, "kv_heads": 1}),
        ("masked gradient", "contiguous", {}),
    ],
    ids=str,
)
def test_every_length_layout_and_range_of_values_is_right(case, data, layout, changes) -> None:
    assert not wrong(Variant(replace(case, **changes), data, layout))


def test_a_whole_trial_in_the_interpreter_finds_it_right(device, monkeypatch) -> None:
    if device == "cuda":
        pytest.skip("tests/model/attention/verify/test_on_gpu.py tries every backend")
    load = attention.load
    operators = Kernels(r"^assay::flash1_attention$", r"^assay::flash1_attention_backward$")
    backend = replace(load("flash1"), unsupported_reasons=lambda case: [], launches=Launches(cpu=operators))
    monkeypatch.setattr(attention, "load", lambda name: backend if name == "flash1" else load(name))
    certificate = certify_case("flash1", replace(CPU, sequence_length=18, heads=2, kv_heads=1))
    assert certificate.verdict == "right", certificate.reasons
    assert certificate.deterministic


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_queries_stand_anywhere_among_the_keys(device, lengths) -> None:
    T, U, offset, H, K, causal = lengths
    inputs = drawn(device, T, U, H, K)
    *results, lse = run(*inputs, causal, offset)
    *references, exact_lse = exact(*inputs, causal, offset)
    for step, result, reference in zip(("o", "dq", "dk", "dv"), results, references, strict=True):
        assert off(result, reference) < (1e-6 if device == "cpu" else 1e-2), step
    torch.testing.assert_close(lse, exact_lse, rtol=1e-5, atol=1e-5)


def test_it_decodes_token_after_token_from_a_cache_that_fills_up(case) -> None:
    run, backend = replace(case, sequence_length=47, new_tokens=4), attention.load("flash1")
    assert not [check.reason for check in habits.check_decoding(backend, run) if not check.passed]
    for variant in cases.decoding(run):
        assert not wrong(variant)


def test_very_large_logits_keep_their_gradients(device) -> None:
    """But for the first column of Q and K, whose gradient cancels."""
    inputs = enormous(device)
    *results, _ = run(*inputs, True, 0)
    *references, _ = exact(*inputs, True, 0)
    for step, result, reference in zip(("o", "dq", "dk", "dv"), results, references, strict=True):
        assert off(result[..., 1:], reference[..., 1:]) < (1e-6 if device == "cpu" else 1e-2), step


# -------------------------------------------------------------------------------- what makes it the first version


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_head_is_one_program_and_what_it_keeps_in_memory_begins_unread(device, monkeypatch, dtype) -> None:
    """O, its statistics and dQ are handed over full of NaN; of numbers in 16 bits, O and dQ on the way are float32."""
    from model.attention.kernels import flash1

    grids, dtypes = [], []

    class Spy:
        """Launches a kernel after it has spoiled some of its arguments."""

        def __init__(self, kernel, *spoiled):
            self.kernel, self.spoiled = kernel, spoiled

        def __getitem__(self, grid):
            def launch(*args, **options):
                by_name = dict(zip(self.kernel.arg_names, args, strict=False))
                for name in self.spoiled:
                    by_name[name].fill_(torch.nan)
                grids.append(grid)
                dtypes.append(by_name["WORK"].dtype)
                self.kernel[grid](*args, **options)

            return launch

    monkeypatch.setattr(flash1, "_flash1_forward", Spy(flash1._flash1_forward, "O", "WORK", "SUM", "MAX"))
    monkeypatch.setattr(flash1, "_flash1_backward", Spy(flash1._flash1_backward, "DQ", "WORK", "DK", "DV"))
    length = 300 if device == "cuda" else 50  # several tiles
    inputs = [x.to(dtype) for x in drawn(device, length, length, 6, 2)]
    *results, _ = run(*inputs, True, 0)
    assert grids == [(12,), (12,)]  # two samples of six heads
    assert dtypes == [torch.float32, torch.float32]
    *references, _ = exact(*inputs, True, 0)
    for step, result, reference in zip(("o", "dq", "dk", "dv"), results, references, strict=True):
        assert off(result, reference) < (1e-5 if dtype == torch.float32 else 1e-2), step


def test_one_tile_of_keys_needs_no_memory_on_the_way(device) -> None:
    from model.attention.kernels import flash1

    tile = flash1.tile_of("forward", torch.float16, 16, torch.device(device))
    o = torch.zeros(1, 5, 2, 16, device=device, dtype=torch.float16)
    assert flash1._on_the_way(o, tile.keys, tile) is o
    assert flash1._on_the_way(o, tile.keys + 1, tile).dtype == torch.float32


def test_it_gives_the_same_bits_each_time(device) -> None:
    inputs = drawn(device, *(2 * [90 if device == "cuda" else 50]), 2, 1)
    for first_run, second_run in zip(run(*inputs, True, 0), run(*inputs, True, 0), strict=True):
        assert torch.equal(first_run, second_run)


# ------------------------------------------------------------------------------------------------ planted faults


@pytest.mark.parametrize(
    ("helper", "fault", "spoiled"),
    [
        ("_visible", "hides_the_diagonal", "o dq"),
        ("_visible", "sees_one_more", "o dq"),
        ("_first_row", "starts_one_tile_late", "o dq dk dv"),
        ("_is_last", "is_always_last", "o dq"),
        ("_is_last", "ends_one_tile_early", "o dq"),
    ],
)
def test_a_fault_in_a_kernel_is_found_wrong(device, monkeypatch, helper, fault, spoiled) -> None:
    """The interpreter looks up a kernel's helpers by their names when it calls them."""
    if device == "cuda":
        pytest.skip("compiled kernels keep the helpers that they were compiled with")
    from tests.model.attention.kernels import flash1_faults

    monkeypatch.setattr(f"model.attention.kernels.flash1.{helper}", getattr(flash1_faults, fault))
    empty = torch.empty_like
    # What is not written before it is read shows.
    monkeypatch.setattr(
        torch, "empty_like", lambda *arguments, **options: empty(*arguments, **options).fill_(torch.nan)
    )
    checks = accuracy.check(attention.load("flash1"), Variant(replace(CPU, dtype="float16")))
    assert {*spoiled.split()} <= {check.what for check in checks if not check.passed}


# --------------------------------------------------------------------------------------------- PyTorch's operators


def test_torch_compile_takes_it_in_one_graph(case) -> None:
    from tests.model.attention import calls

    attend, inputs = attention.load("flash1").attend, calls.drawn(case)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        calls.run(compiled, inputs, True), calls.run(attend, inputs, True), rtol=0, atol=0
    )


def test_the_operators_tell_the_truth_about_their_shapes(device) -> None:
    from model.attention.kernels import flash1

    q, k, v, do = drawn(device, 5, 9, 4, 2)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    inputs = (q.requires_grad_(), k.transpose(1, 2).contiguous().transpose(1, 2), v, True, 4)
    torch.library.opcheck(flash1.flash1_attention, inputs, test_utils=checks)
    o, stats = flash1.flash1_attention(q.detach(), *inputs[1:])
    backward = (do, q.detach(), k, v, o, stats, True, 4)
    torch.library.opcheck(flash1.flash1_attention_backward, backward, test_utils=checks)


SHAPES = {"q": (2, 8, 4, 16), "k": (2, 9, 2, 16), "v": (2, 9, 2, 16)}


@pytest.mark.refused
@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ({"v": (2, 5, 2, 16)}, {}),
        ({"v": (2, 9, 1, 16)}, {}),
        ({"k": (1, 9, 2, 16), "v": (1, 9, 2, 16)}, {}),
        ({"q": (2, 8, 3, 16)}, {}),
        ({"q": (2, 0, 4, 16)}, {}),
        ({name: (*shape[:3], 8) for name, shape in SHAPES.items()}, {}),
        ({name: (*shape[:3], 20) for name, shape in SHAPES.items()}, {}),
        ({name: (*shape[:3], 256) for name, shape in SHAPES.items()}, {}),
        ({}, {"offset": 2**31 - 5}),
        ({}, {"dtype": torch.float64}),
        ({}, {"of_k": {"dtype": torch.bfloat16}}),
        ({}, {"of_k": {"device": "meta"}}),
    ],
)
def test_what_the_kernel_would_read_wrongly_is_refused_before_a_launch(device, changes, overrides) -> None:
    from model.attention.kernels import flash1

    defaults = {"device": device, "dtype": overrides.get("dtype", torch.float16)}
    options = {"q": defaults, "k": defaults | overrides.get("of_k", {}), "v": defaults}
    q, k, v = (torch.zeros(shape, **options[name]) for name, shape in (SHAPES | changes).items())
    with pytest.raises(ValueError, match="the flash1 kernel takes"):
        flash1.flash1_attention(q, k, v, True, overrides.get("offset", 0))


@pytest.mark.refused
def test_a_gradient_of_another_precision_is_refused(device) -> None:
    from model.attention.kernels import flash1

    q, k, v = (torch.zeros(shape, device=device, dtype=torch.float16) for shape in SHAPES.values())
    o, stats = flash1.flash1_attention(q, k, v, True, 1)
    with pytest.raises(ValueError, match="one of the precisions"):
        flash1.flash1_attention_backward(o.float(), q, k, v, o, stats, True, 1)
