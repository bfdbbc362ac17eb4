"""The portable kernels against float64, in Triton's interpreter on a CPU and compiled on a GPU; planted faults show."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from model import attention
from model.attention import Case, Kernels, Launches, tiled
from model.attention.verify import accuracy, cases, dropout, habits
from model.attention.verify.cases import Variant
from model.record import versions
from model.training.certify import certify_case
from tests.model.attention.kernels import interpreted
from tests.model.attention.kernels.interpreted import LENGTHS, drawn, enormous, exact, off

pytestmark = [
    pytest.mark.skipif(bool(versions.lacking("attention=portable")), reason="this triton is too old for it"),
    # Of NumPy, where exp2() of a hidden score overflows.
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
    """float32 in the interpreter, where an error of 1e-6 shows; on a GPU the usual precision."""
    return CPU if device == "cpu" else replace(CPU, device="cuda", sequence_length=70, dtype="bfloat16")


def wrong(backend: attention.Backend, variant: Variant) -> list[str]:
    return [check.reason for check in accuracy.check(backend, variant) if not check.passed]


@pytest.mark.parametrize(
    ("data", "layout", "changes"),
    [
        ("plain", "contiguous", {}),
        ("plain", "contiguous", {"causal": False, "head_dim": 32}),
        ("plain", "contiguous", {"sequence_length": 32, "kv_heads": 4}),
        ("plain", "contiguous", {"sequence_length": 1, "heads": 3, "kv_heads": 1}),
        ("plain", "contiguous", {"sequence_length": 33, "heads": 6, "kv_heads": 2}),
        ("plain", "contiguous", {"sequence_length": 40, "heads": 2, "kv_heads": 1, "head_dim": 256}),
        ("needle", "fused qkv", {"causal": False}),
        ("large logits", "heads first", {"batch": 2}),
        ("huge logits", "head dim strided", {}),
        ("repeated", "expanded", {"batch": 2}),
        ("offset", "sliced", {"sequence_length": 66, "heads": 1, "kv_heads": 1}),
        ("masked gradient", "contiguous", {}),
    ],
    ids=str,
)
def test_every_result_is_right(case, data, layout, changes) -> None:
    assert not wrong(attention.load("portable"), Variant(replace(case, **changes), data, layout))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_precisions_are_right(case, dtype) -> None:
    assert not wrong(attention.load("portable"), Variant(replace(case, dtype=dtype)))


def test_a_whole_trial_in_the_interpreter_finds_it_right(device, monkeypatch) -> None:
    if device == "cuda":
        pytest.skip("tests/model/attention/verify/test_on_gpu.py tries every backend")
    load, kernels = (
        attention.load,
        Kernels(r"^assay::portable_attention$", r"^assay::portable_attention_backward$"),
    )
    backend = replace(load("portable"), unsupported_reasons=lambda case: [], launches=Launches(cpu=kernels))
    monkeypatch.setattr(attention, "load", lambda name: backend if name == "portable" else load(name))
    certificate = certify_case("portable", replace(CPU, sequence_length=18, heads=2, kv_heads=1))
    assert certificate.verdict == "right", certificate.reasons
    assert certificate.deterministic


# ---------------------------------------------------------------------------------- other lengths and offsets


def test_it_decodes_token_after_token_from_a_cache_that_fills_up(case) -> None:
    run, backend = replace(case, sequence_length=47, new_tokens=4), attention.load("portable")
    assert not [check.reason for check in habits.check_decoding(backend, run) if not check.passed]
    for variant in cases.decoding(run):
        assert not wrong(backend, variant)


def run(q, k, v, do, causal, offset):
    """The same of the kernels."""
    from model.attention.kernels.portable import op

    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o, lse_2BKR = op.portable_attention(*leaves, causal, offset)
    grads = torch.autograd.grad(o, leaves, do)
    lse_BKR = lse_2BKR.double().sum(0)
    B, T, H, _ = q.shape
    lse_BHT = lse_BKR.view(B, k.shape[2], T, -1).transpose(2, 3).reshape(B, H, T)
    return [o.detach(), *grads, lse_BHT]


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_queries_stand_anywhere_among_the_keys(device, lengths) -> None:
    T, U, offset, H, K, causal = lengths
    inputs = drawn(device, T, U, H, K)
    *results, lse = run(*inputs, causal, offset)
    *references, exact_lse = exact(*inputs, causal, offset)
    for step, result, reference in zip(("o", "dq", "dk", "dv"), results, references, strict=True):
        assert off(result, reference) < (1e-6 if device == "cpu" else 1e-2), step
    torch.testing.assert_close(lse, exact_lse, rtol=1e-5, atol=1e-5)


def test_the_keys_of_few_rows_are_shared_out_and_none_is_left_out() -> None:
    pytest.importorskip("triton")
    from model.attention.kernels.portable.forward import _parts

    assert _parts(4096, 64, 33) == (16, 256)  # four tiles of keys each
    assert _parts(4097, 64, 8) == (8, 576)
    assert _parts(100, 64, 33) == (1, 128)
    for keys in range(1, 3000, 7):
        parts, span = _parts(keys, 16, 9)
        assert 1 <= parts <= 9 and (parts - 1) * span < keys <= parts * span


def test_the_last_query_stands_at_the_last_key_unless_told_otherwise(device) -> None:
    from model.attention.kernels.portable import op

    q, k, v, _ = drawn(device, 5, 40, 2, 1)
    assert torch.equal(op.attend(q, k, v, True), op.attend(q, k, v, True, 35))


def test_parts_of_the_keys_add_up_by_their_lse(device) -> None:
    """As context parallelism and split decoding do: exp2 of the LSE is each part's weight, 0 if it sees no key."""
    from model.attention.kernels.portable import op

    q, k, v, do = drawn(device, 60, 60, 2, 1)
    total, weights = 0.0, 0.0
    for start, end in ((0, 25), (25, 60)):
        o, (largest, log_sum) = op.portable_attention(q, k[:, start:end], v[:, start:end], True, -start)
        weight_BTH1 = torch.exp2(largest.double() + log_sum).view(2, 60, 2, 1)
        total, weights = total + weight_BTH1 * o.double(), weights + weight_BTH1
    reference = exact(q, k, v, do, True, 0)[0]
    assert off(total / weights, reference) < (1e-6 if device == "cpu" else 1e-2)


# ---------------------------------------------------------------------------------------- very large logits


def test_very_large_logits_keep_their_gradients(device) -> None:
    """But for the first column of Q and K, whose gradient cancels."""
    inputs = enormous(device)
    *results, _ = run(*inputs, True, 0)
    *references, _ = exact(*inputs, True, 0)
    for step, result, reference in zip(("o", "dq", "dk", "dv"), results, references, strict=True):
        assert off(result[..., 1:], reference[..., 1:]) < (1e-6 if device == "cpu" else 1e-2), step


def test_one_number_for_the_maximum_and_the_sum_would_lose_them(device) -> None:
    from model.attention.kernels.portable import backward, forward

    if device == "cuda":
        pytest.skip("what it loses is less than bfloat16 rounds")
    q, k, v, do = enormous(device)
    o, lse_2BKR = forward.forward(q, k, v, True, 0)
    combined_lse = torch.stack((lse_2BKR.sum(0), torch.zeros_like(lse_2BKR[0])))
    dv = backward.backward(do, q, k, v, o, combined_lse, True, 0)[2]
    assert off(dv, exact(q, k, v, do, True, 0)[3]) > 1e-4


# -------------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize(
    ("lengths", "heads", "tile", "probability"),
    [
        ((37, 37), (3, 1), None, 1 / 4),
        ((1, 140), (8, 2), None, 1 / 2),
        ((20, 45), (4, 2), (16, 32), 15 / 16),
    ],
    ids=["training", "a query whose keys are shared out", "tiles of another size"],
)
def test_one_seed_drops_the_weights_that_tiled_drops(device, lengths, heads, tile, probability) -> None:
    q, k, v, do = drawn(device, *lengths, *heads)
    results = []
    for backend, size in ((attention.load("portable"), tile), (tiled.backend, None)):
        tensors = [x.clone().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(7)
        attend = partial(backend.attend_by_tile, tile=size) if size else backend.attend
        o = attend(*tensors, True, dropout=probability)
        results.append([o.detach(), *torch.autograd.grad(o, tensors, do)])
    for step, result, reference in zip(("o", "dq", "dk", "dv"), *results, strict=True):
        assert off(result, reference.double()) < (1e-6 if device == "cpu" else 1e-2), step


DROPPING = replace(CPU, batch=2, sequence_length=33, heads=2, kv_heads=1, head_dim=64, dropout=1 / 4)


def failed(case: Case) -> set[str]:
    return {check.name for check in dropout.check(attention.load("portable"), case) if not check.passed}


def test_it_drops_what_it_should(device) -> None:
    dropping_case = replace(DROPPING, device=device, dtype="float32" if device == "cpu" else "bfloat16")
    assert failed(dropping_case) == set()


@pytest.mark.parametrize(
    ("direction", "fault", "check_name"),
    [
        ("forward", "forgets_the_head", "independent"),
        ("forward", "repeats_in_each_tile", "independent"),
        ("forward", "drops_one_more", "share"),
        ("backward", "drops_others", "same weights"),
        ("backward", "drops_one_more", "right with dropout"),
    ],
)
def test_a_fault_in_what_is_dropped_is_named(device, monkeypatch, direction, fault, check_name) -> None:
    if device == "cuda":
        pytest.skip("compiled kernels keep the helpers that they were compiled with")
    from tests.model.attention.kernels import portable_faults

    monkeypatch.setattr(f"model.attention.kernels.portable.{direction}.left", getattr(portable_faults, fault))
    assert check_name in failed(DROPPING)


def test_torch_compile_takes_dropout_in_one_graph(case) -> None:
    from tests.model.attention.calls import drawn, run

    inputs = drawn(replace(case, sequence_length=20))
    attend = partial(attention.load("portable").attend, dropout=0.5)
    results = []
    for call in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(7)
        results.append(run(call, inputs, True))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.refused
def test_a_probability_that_is_no_sixteenth_and_a_seed_that_cannot_be_read_are_refused(device) -> None:
    from model.attention.kernels.portable import op

    q, k, v, _ = drawn(device, 5, 9, 2, 1)
    with pytest.raises(ValueError, match=r"a multiple of 1/16, not 0\.1"):
        op.attend(q, k, v, True, dropout=0.1)
    seed = torch.zeros((), device=device, dtype=torch.int64)
    for drop, wrong_seed in ((4, None), (0, seed), (16, seed), (4, seed.int()), (4, seed[None])):
        with pytest.raises(ValueError, match="drops 1 to 15 of 16 weights"):
            op.portable_attention(q, k, v, True, 4, None, drop, wrong_seed)


# ------------------------------------------------------------------------------------------- planted faults


FAULTS = [
    ("forward.visible", "hides_the_diagonal", "o"),
    ("forward.visible", "sees_one_more", "o"),
    ("forward.visible", "forgets_the_group", "o"),
    ("forward.keys_seen", "drops_the_tail", "o"),
    ("backward.visible", "hides_the_diagonal", "dq"),
    ("backward.visible", "sees_one_more", "dq"),
    ("backward.keys_seen", "drops_the_tail", "dq"),
    ("backward._rows_that_see", "starts_one_tile_late", "dk dv"),
    ("backward._rows_that_see", "masks_no_tile", "dk dv"),
]


@pytest.mark.parametrize(("helper", "fault", "spoiled"), FAULTS, ids=str)
def test_a_fault_in_a_kernel_is_found_wrong(device, monkeypatch, helper, fault, spoiled) -> None:
    """The interpreter looks up a kernel's helpers by their names when it calls them."""
    if device == "cuda":
        pytest.skip("compiled kernels keep the helpers that they were compiled with")
    from tests.model.attention.kernels import portable_faults

    monkeypatch.setattr(f"model.attention.kernels.portable.{helper}", getattr(portable_faults, fault))
    checks = accuracy.check(
        attention.load("portable"), Variant(replace(CPU, causal=fault != "drops_the_tail"))
    )
    assert {*spoiled.split()} <= {
        check.what for check in checks if check.name == "right" and not check.passed
    }


def test_an_offset_that_is_off_by_one_is_found_wrong(case) -> None:
    from model.attention.kernels.portable import op

    for offset in (-1, 1):
        attend = partial(op.attend, offset=offset)
        assert wrong(replace(attention.load("portable"), attend=attend), Variant(case))


# --------------------------------------------------------------------------------------- PyTorch's operators


def test_torch_compile_takes_it_in_one_graph(case) -> None:
    from tests.model.attention.calls import drawn, run

    attend, inputs = attention.load("portable").attend, drawn(case)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled, inputs, True), run(attend, inputs, True), rtol=0, atol=0)


def test_the_operators_tell_the_truth_about_their_shapes(device) -> None:
    from model.attention.kernels.portable import op

    q, k, v, do = drawn(device, 5, 9, 4, 2)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    inputs = (q.requires_grad_(), k.transpose(1, 2).contiguous().transpose(1, 2), v, True, 4)
    torch.library.opcheck(op.portable_attention, inputs, test_utils=checks)
    o, lse = op.portable_attention(q.detach(), *inputs[1:])
    backward = (do, q.detach(), k, v, o, lse, True, 4)
    torch.library.opcheck(op.portable_attention_backward, backward, test_utils=checks)
    dropout = (None, 4, torch.ones((), device=device, dtype=torch.int64))
    torch.library.opcheck(op.portable_attention, (*inputs, *dropout), test_utils=checks)
    torch.library.opcheck(op.portable_attention_backward, (*backward, *dropout), test_utils=checks)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_cuda_graph_replays_both_passes_with_new_numbers_and_the_same_bits(head_dim: int) -> None:
    first_inputs, second_inputs = (drawn("cuda", 300, 300, 8, 2, head_dim, scale) for scale in (1.0, 0.5))
    eager = run(*second_inputs, True, 0)
    run(*first_inputs, True, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = run(*first_inputs, True, 0)
    for tensor, replacement in zip(first_inputs, second_inputs, strict=True):
        tensor.copy_(replacement)
    graph.replay()
    for result, reference in zip(replayed, eager, strict=True):
        assert torch.equal(result, reference)


@pytest.mark.gpu
def test_rows_that_are_more_than_2_to_the_31_numbers_apart_are_found() -> None:
    buffer = torch.randn(1, 64 * 4097, 64, 128, device="cuda", dtype=torch.bfloat16)
    far = [buffer[:, ::4097], buffer[:, ::4097, ::8], buffer[:, ::4097, 1::8], buffer[:, 1::4097]]
    near = [x.contiguous() for x in far]
    for result, reference in zip(run(*far, True, 0), run(*near, True, 0), strict=True):
        assert torch.equal(result, reference)


SHAPES = {"q": (2, 8, 4, 16), "k": (2, 9, 2, 16), "v": (2, 9, 2, 16)}


@pytest.mark.refused
@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ({"v": (2, 5, 2, 16)}, {}),
        ({"v": (2, 9, 1, 16)}, {}),
        ({"k": (1, 9, 2, 16)}, {}),
        ({"k": (2, 9, 2, 8)}, {}),
        ({"q": (2, 8, 3, 16)}, {}),
        ({"q": (2, 8, 1, 16)}, {}),
        ({"q": (2, 0, 4, 16)}, {}),
        ({"k": (2, 0, 2, 16), "v": (2, 0, 2, 16)}, {}),
        ({name: (*shape[:3], 24) for name, shape in SHAPES.items()}, {}),
        ({name: (*shape[:3], 512) for name, shape in SHAPES.items()}, {}),
        ({}, {"offset": 2**31 - 5}),
        ({}, {"dtype": torch.float64}),
        ({}, {"of_k": {"dtype": torch.bfloat16}}),
        ({}, {"of_k": {"device": "meta"}}),
    ],
)
def test_what_the_kernel_would_read_wrongly_is_refused_before_a_launch(device, changes, overrides) -> None:
    """A kernel that is given fewer keys than it counts on reads other memory, or crashes."""
    from model.attention.kernels.portable import op

    defaults = {"device": device, "dtype": overrides.get("dtype", torch.float16)}
    options = {"q": defaults, "k": defaults | overrides.get("of_k", {}), "v": defaults}
    q, k, v = (torch.zeros(shape, **options[name]) for name, shape in (SHAPES | changes).items())
    with pytest.raises(ValueError, match="the portable kernel takes"):
        op.portable_attention(q, k, v, True, overrides.get("offset", 0))


@pytest.mark.refused
def test_a_gradient_of_another_precision_is_refused(device) -> None:
    from model.attention.kernels.portable import op

    q, k, v = (torch.zeros(shape, device=device, dtype=torch.float16) for shape in SHAPES.values())
    o, lse = op.portable_attention(q, k, v, True, 1)
    with pytest.raises(ValueError, match="one of the precisions"):
        op.portable_attention_backward(o.float(), q, k, v, o, lse, True, 1)


def test_shapes_can_be_asked_for_without_numbers() -> None:
    from model.attention.kernels.portable import op

    q, k, v = (torch.zeros(shape, device="meta", dtype=torch.float16) for shape in SHAPES.values())
    o, lse = op.portable_attention(q, k, v, True, 1)
    assert (o.shape, o.device.type, lse.shape) == (q.shape, "meta", (2, 2, 2, 16))
