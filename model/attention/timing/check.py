"""Whether a timed call was right: some of its results are compared with float64 by the rule of certificates.

Calls of many sizes share a certificate, so this finds a backend that is wrong at only one of them.
All rows of one key head's queries are checked: the gradients of K and V need all of their scores.
Single rows of all heads are checked too, for errors elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor

from model.attention.timing.passes import TimedInputs
from model.attention.verify import reference
from model.attention.verify.accuracy import ELEMENTS, judge
from model.attention.verify.audited import Audit, Taken
from model.attention.verify.numbers import Deviation, compare
from model.attention.verify.reference import STEPS
from model.record.case import Case
from model.record.kernels import KernelCheck
from model.record.records import finite

ROWS = 8  # single rows


@torch.no_grad()
def checked(
    case: Case, inputs: TimedInputs, results: tuple[Tensor, ...], rng: Random, number: int
) -> tuple[KernelCheck, str]:
    """What was checked, and what is wrong; empty if nothing is.

    Args:
        results: o, dq, dk, dv of a call on the inputs: (B, T, heads, D).
        rng: draws the sample, the heads and the rows.
        number: of the round, from 0.
    """
    results_by_step = dict(zip(STEPS, results, strict=True))
    sample, kv_head = rng.randrange(case.batch), rng.randrange(case.kv_heads)
    rows = [(rng.randrange(case.batch), rng.randrange(case.sequence_length)) for _ in range(ROWS)]
    wrong = [
        f"{step} contains NaN or infinity"
        for step, x in results_by_step.items()
        if not bool(x.isfinite().all())
    ]
    shares: list[float] = []
    if not wrong:
        record = judge(
            _heads(case, inputs, results_by_step, Audit(number + 1, 0, sample, kv_head)), case.causal
        )
        assert record  # the inputs are normal numbers
        wrong += [f"sample {sample}: {record.reason}"] if record.reason else []
        errors = [_row(case, inputs, results_by_step, *place) for place in rows]
        wrong += [each for place, error in zip(rows, errors, strict=True) for each in _said(*place, error)]
        shares = [
            each.measured / each.tolerance if each.measured is not None else torch.inf
            for each in record.tensors.values()
        ]
        shares += [each.measured / each.tolerance for error in errors for each in error.values()]
    group = case.heads // case.kv_heads
    looked_at = KernelCheck(
        round=number + 1,
        sample=sample,
        first_head=kv_head * group,
        heads=group,
        rows=rows,
        error=finite(max(shares, default=torch.inf)),
    )
    return looked_at, "; ".join(wrong)


def _heads(case: Case, inputs: TimedInputs, results: dict[str, Tensor], audit: Audit) -> Taken:
    """The query heads that share a key head, in one sample, as an audit of a run takes them."""
    taken = Taken(audit, case.heads // case.kv_heads)
    given = {"q": inputs.q_BTHD, "k": inputs.k_BTKD, "v": inputs.v_BTKD, "do": inputs.do_BTHD, **results}
    for name, x in given.items():
        taken.copy(name, x, audit.sample, audit.kv_head)
    return taken


def _row(
    case: Case, inputs: TimedInputs, results: dict[str, Tensor], sample: int, row: int
) -> dict[str, Deviation]:
    """The errors of o and dQ in one row of a sample, which depend on no other row of Q."""
    own = slice(sample, sample + 1), slice(row, row + 1)
    keys = own[0], slice(0, row + 1 if case.causal else None)
    one = reference.Inputs(inputs.q_BTHD[own], inputs.k_BTKD[keys], inputs.v_BTKD[keys], inputs.do_BTHD[own])
    plain, exact = reference.same_precision(one, False, ELEMENTS), reference.exact(one, False, ELEMENTS)
    return {step: compare(step, results[step][own], plain[step], exact, audit=True) for step in ("o", "dq")}


def _said(sample: int, row: int, errors: dict[str, Deviation]) -> Iterator[str]:
    for step, error in errors.items():
        if not error.passed:
            head = re.search(r"head \d+", error.where)
            which = head[0] if head else "all heads"
            yield f"{step} is {error.words} (sample {sample}, row {row}, {which})"
