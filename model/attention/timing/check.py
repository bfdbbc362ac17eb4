"""Whether a timed call was right: some of its results are compared with float64 by the rule of certificates.

Calls of many sizes share a certificate, so this finds a backend that is wrong at only one of them.
All rows of one key head's queries are checked: the gradients of K and V need all of their scores.
Single rows of all heads are checked too, for errors elsewhere.
"""

from __future__ import annotations

import re
from random import Random

import torch
from torch import Tensor

from model.attention import Fp8
from model.attention.timing.passes import TimedInputs
from model.attention.verify import reference
from model.attention.verify.accuracy import ELEMENTS, judge
from model.attention.verify.audited import Audit, Taken
from model.attention.verify.numbers import compare
from model.attention.verify.reference import STEPS
from model.record.case import Case
from model.record.kernels import KernelCheck
from model.record.records import finite

ROWS = 8  # single rows


@torch.no_grad()
def checked(
    case: Case,
    inputs: TimedInputs,
    results: tuple[Tensor, ...],
    rng: Random,
    number: int,
    fp8: Fp8 | None = None,
) -> tuple[KernelCheck, str]:
    """Check a call; returns what was checked, and what is wrong: empty if nothing is.

    Args:
        results: o, dq, dk, dv of a call on the inputs: (B, T, heads, D). Of 8 bits o alone.
        rng: draws the sample, the heads and the rows.
        number: of the round, from 0.
        fp8: how the backend takes numbers of 8 bits.
    """
    q_BTHD, k_BTKD, v_BTKD, *more = inputs.given(fp8)
    scales_3BK = more[0] if more else None
    results_by_step = dict(zip(STEPS[: len(results)], results, strict=True))
    group = case.heads // case.kv_heads
    sample, kv_head = rng.randrange(case.batch), rng.randrange(case.kv_heads)
    rows = [(rng.randrange(case.batch), rng.randrange(case.sequence_length)) for _ in range(ROWS)]
    wrong = [
        f"{step} contains NaN or infinity"
        for step, x in results_by_step.items()
        if not bool(x.isfinite().all())
    ]
    shares: list[float] = []
    if not wrong:
        # The query heads that share a key head, in one sample, as an audit of a run takes them.
        taken = Taken(Audit(number + 1, 0, sample, kv_head), group, fp8=fp8 if case.fp8 else None)
        given = {"q": q_BTHD, "k": k_BTKD, "v": v_BTKD, "do": inputs.do_BTHD}
        for name, x in (given | results_by_step).items():
            taken.copy(name, x, sample, kv_head)
        if scales_3BK is not None:
            taken.scales_3BK = scales_3BK[:, sample : sample + 1, kv_head : kv_head + 1]
        record = judge(taken, case.causal)
        assert record  # the inputs are normal numbers
        wrong += [f"sample {sample}: {record.reason}"] if record.reason else []
        shares = [
            tensor.measured / tensor.tolerance if tensor.measured is not None else torch.inf
            for tensor in record.tensors.values()
        ]

        # O and dQ of a row depend on no other row of Q.
        for of_sample, row in rows:
            own = slice(of_sample, of_sample + 1), slice(row, row + 1)
            keys = own[0], slice(0, row + 1 if case.causal else None)
            one = reference.Inputs(
                q_BTHD[own],
                k_BTKD[keys],
                v_BTKD[keys],
                inputs.do_BTHD[own],
                None if scales_3BK is None else scales_3BK[:, own[0]],
                taken.fp8,
            )
            plain = reference.same_precision(one, False, ELEMENTS)
            exact = reference.exact(one, False, ELEMENTS)
            for step in STEPS[: min(2, len(results))]:
                error = compare(step, results_by_step[step][own], plain[step], exact, audit=True)
                shares.append(error.measured / error.tolerance)
                if not error.passed:
                    head = re.search(r"head \d+", error.where)
                    which = head[0] if head else "all heads"
                    wrong.append(f"{step} is {error.words} (sample {of_sample}, row {row}, {which})")
    looked_at = KernelCheck(
        round=number + 1,
        sample=sample,
        first_head=kv_head * group,
        heads=group,
        rows=rows,
        error=finite(max(shares, default=torch.inf)),
    )
    return looked_at, "; ".join(wrong)
