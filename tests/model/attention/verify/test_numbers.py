"""The judge: its reference, its unit and its tolerance, and the numbers that it gives to backends."""

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention.verify import call, cases, data, numbers, reference, surroundings
from model.attention.verify.reference import STEPS, Inputs
from model.record.case import Case
from tests.model.attention.verify import planted
from tests.model.attention.verify.planted import CASE


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
def test_the_reference_is_attention_as_autograd_has_it(causal, heads, monkeypatch) -> None:
    monkeypatch.setitem(reference.ELEMENTS, "cpu", 5000)  # many blocks
    tensors = [
        torch.randn(2, 70, n, 8, dtype=torch.float64) for n in (heads[0], heads[1], heads[1], heads[0])
    ]
    q, k, v = (tensor.clone().requires_grad_() for tensor in tensors[:3])
    o = planted.right(q, k, v, causal)
    o.backward(tensors[3])
    exact = reference.exact(Inputs(*tensors), causal)
    for step, expected in zip(STEPS, (o, q.grad, k.grad, v.grad), strict=True):
        torch.testing.assert_close(exact.values[step], expected, rtol=1e-10, atol=1e-12)


# `ones` is for numbers of 8 bits alone.
@pytest.mark.parametrize("kind", [kind for kind in data.DATA if kind != "ones"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_plain_attention_errs_by_about_the_roundings_that_are_counted(kind: str, dtype: str) -> None:
    """The unit of the tolerance: no data, and no precision, makes an honest error many of it."""
    solution = data.solved_call(cases.Variant(Case("cpu", dtype, 2, 256, 4, 2, 64), kind))
    for step in STEPS:
        slices = numbers.slices(
            solution.plain[step].double() - solution.exact.values[step], solution.exact.spread[step]
        )
        assert float(slices["tensor"]) < (10 if dtype == "float32" else 1), (kind, step)


@pytest.mark.parametrize("heads", [(4, 4), (4, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_plain_attention_in_float32_is_the_reference_however_few_scores_fit_in_a_block(heads, causal) -> None:
    lengths = zip((70, 90, 90, 70), (heads[0], heads[1], heads[1], heads[0]), strict=True)
    inputs = Inputs(*(torch.randn(2, length, n, 8) for length, n in lengths))
    exact, plain = (
        compute(inputs, causal, {"cpu": 5000}) for compute in (reference.exact, reference.same_precision)
    )
    for step in STEPS:
        values = exact.values[step].float()
        torch.testing.assert_close(plain[step], values, rtol=1e-4, atol=1e-5)


def long_even(head_dim: int) -> cases.Variant:
    """Sums of 4160 terms of one sign, in float32."""
    case = Case("cpu", "float32", batch=1, sequence_length=4160, heads=2, kv_heads=1, head_dim=head_dim)
    return cases.Variant(case, "offset")


@pytest.mark.parametrize("head_dim", [4, 6, 8, 64])
def test_math_is_right_at_every_head_dim_in_float32(head_dim: int) -> None:
    """For head dims below 16 PyTorch's product adds one term after the other, as plain attention may."""
    solution = data.solved_call(long_even(head_dim))
    subject = call.Subject(attention.load("math"), long_even(head_dim).case)
    subject.numbers("right", call.call(subject, solution.inputs), solution.exact, solution.plain)
    assert [check.what for check in subject.checks if check.name == "right"] == list(STEPS)
    assert not [check.reason for check in subject.checks if not check.passed]


@pytest.mark.parametrize("head_dim", [16, 64])
def test_sums_in_order_are_right_in_float32_where_plain_attention_adds_in_a_better_one(head_dim: int) -> None:
    """As on an H100, where `portable` errs by 1.4e-6 at 8320 even keys: eight times as much as plain attention."""
    case = Case("cpu", "float32", 1, 2048, heads=1, kv_heads=1, head_dim=head_dim, causal=False, tile=(64, 8))
    variant = cases.Variant(case, "offset")
    solution, subject = data.solved_call(variant), call.Subject(attention.load("tiled"), case)
    results = call.call(subject, solution.inputs)
    subject.numbers("right", results, solution.exact, solution.plain)
    assert not [check.reason for check in subject.checks if not check.passed]
    without_a_key = solution.inputs.v[:, :-1].mean(1, keepdim=True) - solution.inputs.v.mean(1, keepdim=True)
    for step, faulty in (("o", results["o"] + without_a_key), ("dv", results["dv"] * (1 + 2**-14))):
        assert not numbers.compare(step, faulty, solution.plain[step], solution.exact).passed, step


def test_a_sum_over_rows_in_order_errs_as_expected_in_float32_and_weights_in_bfloat16_show() -> None:
    solution = data.solved_call(long_even(8))
    q, k, do = (x[0].transpose(0, 1) for x in (solution.inputs.q, solution.inputs.k, solution.inputs.do))
    scores = (q.double() @ k.double().mT * 8**-0.5).masked_fill_(
        torch.ones(4160, 4160).triu(1).bool(), -torch.inf
    )
    p = scores.softmax(-1).float()
    in_order = torch.zeros(2, 4160, 8)
    for row in range(4160):
        in_order[:, : row + 1].addcmul_(p[:, row, : row + 1, None], do[:, row, None])
    rounded = (p.bfloat16().float().mT @ do).sum(0)
    plain, exact = solution.plain["dv"], solution.exact
    error = (in_order.sum(0).double() - exact.values["dv"][0, :, 0]).norm() / exact.spread["dv"].norm()
    assert 0.25 < float(error) < 1
    assert numbers.compare("dv", in_order.sum(0)[None, :, None], plain, exact).passed
    assert not numbers.compare("dv", rounded[None, :, None], plain, exact).passed


def test_memory_that_nobody_has_written_is_nan_while_a_backend_is_on_trial() -> None:
    q, k = torch.zeros(2, 160, 4, 32, requires_grad=True), torch.zeros(2, 160, 2, 32)
    with surroundings.poisoned(q, k):
        allocations = (
            torch.empty(7),
            torch.empty_like(q),
            q.new_empty(3, 5),
            torch.empty_strided((2, 3), (3, 1)),
        )
        zeros = torch.zeros_like(q)
    for tensor in allocations:
        assert tensor.isnan().all()
    assert not zeros.isnan().any()


def test_settings_can_be_read_and_restored_however_they_were_made() -> None:
    """PyTorch refuses to read its older setting once a newer one is set."""
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        initial = surroundings.settings()
        with reference.highest():
            assert torch.get_float32_matmul_precision() == "highest"
        assert surroundings.settings() == initial
        torch.backends.mkldnn.matmul.fp32_precision = "ieee"
        assert surroundings.settings() != initial
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("case", [CASE, replace(CASE, batch=1, heads=1, kv_heads=1), replace(CASE, batch=1)])
def test_numbers_whose_results_follow_from_known_ones_are_what_the_reference_says(case: Case) -> None:
    for solution in (
        data.other(case),
        data.scaled(data.solved_call(cases.Variant(case)), q=2.0, v=-4.0, do=0.5),
    ):
        exact = reference.exact(solution.inputs, case.causal)
        for step in STEPS:
            torch.testing.assert_close(solution.exact.values[step], exact.values[step], rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(solution.exact.spread[step], exact.spread[step], rtol=1e-6, atol=1e-12)
    base_solution = data.solved_call(cases.Variant(case))
    assert not any(
        torch.equal(data.other(case).exact.values[step], base_solution.exact.values[step]) for step in STEPS
    )


@pytest.mark.parametrize("length", [1, 63, 64, 65, 257])
def test_every_row_is_in_a_tile_and_none_of_a_long_sequence_is_short(length: int) -> None:
    first_rows = numbers._first_rows(length)
    assert {row for start in first_rows for row in range(start, start + numbers.TILE)} >= set(range(length))
    assert all(start + numbers.TILE <= max(length, numbers.TILE) for start in first_rows)


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
    inputs = data.solved_call(replace(base, layout=layout)).inputs
    for name in ("q", "k", "v", "do"):
        assert torch.equal(getattr(inputs, name), getattr(data.solved_call(base).inputs, name))
    assert layout == "contiguous" or not all(
        getattr(inputs, name).is_contiguous() for name in ("q", "k", "v")
    )
