"""A backend's logits and gradients on a small llama are compared with those of `math`, as torch.allclose does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from model import attention
from model.attention.verify.certificate import Check
from model.record.case import Case
from model.training import same_model
from tests.model.attention.verify import planted
from tests.model.attention.verify.planted import CASE, right_backend


def allclose(backend: attention.Backend, case: Case, name: str = "math") -> dict[str, Check]:
    checks = same_model.check(name, backend, case)
    return {check.what: check for check in checks if check.name == "allclose"}


@pytest.mark.parametrize("name", ["auto", "math", "tiled"])
def test_in_float32_an_honest_backend_is_close_and_so_is_math_to_float64(name: str) -> None:
    checks = allclose(attention.load(name), CASE, name)
    assert list(checks) == ["logits", "gradients"]
    for check in checks.values():
        assert check.passed and check.tolerance == 1 and check.measured is not None
        assert check.measured <= 0.01 and check.plain is not None and 0 < check.plain <= 0.01
        assert (check.measured == 0) == (name == "math")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_where_math_itself_is_not_close_it_is_recorded_and_not_judged(dtype: str) -> None:
    for check in allclose(attention.load("tiled"), replace(CASE, dtype=dtype), "tiled").values():
        assert check.passed and check.tolerance is None
        assert check.measured and check.plain and check.plain > 1


def test_the_ratio_is_one_where_torch_begins_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tolerances that are the ratio times as large, and a little more or less."""
    tensors: list[dict[str, dict[str, torch.Tensor]]] = []
    compare = same_model._compare
    monkeypatch.setattr(same_model, "_compare", lambda subject, x: (tensors.append(x), compare(subject, x)))
    ratio = allclose(attention.load("tiled"), CASE, "tiled")["logits"].measured
    own_logits, math_logits = (tensors[0][side]["logits"] for side in ("own", "math"))
    assert ratio is not None
    for factor, close in ((1.001, True), (0.999, False)):
        tolerance = 1e-3 * ratio * factor
        assert torch.allclose(own_logits, math_logits, rtol=tolerance, atol=tolerance) is close


def test_nan_and_a_missing_gradient_fail_also_where_no_number_is_judged() -> None:
    def nan(q, k, v, causal):
        return planted.right(q, k, v, causal) * torch.nan

    case = replace(CASE, dtype="bfloat16")
    checks = allclose(replace(right_backend, attend=nan), case)
    assert [(check.passed, check.measured) for check in checks.values()] == [(False, None)] * 2

    def detached(q, k, v, causal):
        return planted.right(q.detach(), k.detach(), v.detach(), causal)

    checks = allclose(replace(right_backend, attend=detached), CASE)
    assert checks["logits"].passed
    assert not checks["gradients"].passed and checks["gradients"].measured is None
