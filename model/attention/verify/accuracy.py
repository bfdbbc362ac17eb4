"""Whether output and gradients are right, in a trial and in an audit, and the same each time."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch

from model.attention import Backend
from model.attention.verify import data
from model.attention.verify.audited import Taken
from model.attention.verify.call import Subject, call
from model.attention.verify.cases import Variant
from model.attention.verify.certificate import Check
from model.attention.verify.numbers import Deviation, compare
from model.attention.verify.reference import STEPS, Inputs, exact, same_precision
from model.record.records import AuditedTensor, AuditRecord, finite, now

# Scores in one block: less than for a certificate, as the run keeps its weights and states meanwhile.
ELEMENTS = {"cpu": 2**20, "cuda": 2**23}
QUANTISED = ("plain", "outliers")  # data that show what 8 bits cost


def check(backend: Backend, variant: Variant) -> list[Check]:
    """Hold output, dQ, dK and dV of one variant to float64.

    The call comes before the reference: a backend that runs out of memory does so within seconds.
    """
    subject = Subject(backend, variant.case, str(variant))
    results = call(subject, data.laid_out(variant))
    solved = data.solution(replace(variant, layout="contiguous"))
    subject.numbers("right", results, solved.exact, solved.plain)
    if variant.fp8 and variant.data in QUANTISED and results:
        _note_quantisation(subject, variant, results["o"])
    return subject.checks


def _note_quantisation(subject: Subject, variant: Variant, o_BTHD: torch.Tensor) -> None:
    """Note the relative error against float64 on the numbers before they had 8 bits, and that of bfloat16.

    It is nobody's fault, and has no tolerance: the kernel is judged by the numbers that it was given.
    """
    wide = data.unrounded(variant)
    exact_BTHD = exact(wide, variant.case.causal).values["o"]
    narrow = replace(wide, **{name: getattr(wide, name).to(torch.bfloat16) for name in ("q", "k", "v", "do")})
    bf16_BTHD = same_precision(narrow, variant.case.causal)["o"]
    for what, x_BTHD in (("o", o_BTHD), ("o of bfloat16", bf16_BTHD)):
        error = float((x_BTHD.double() - exact_BTHD).norm() / exact_BTHD.norm())
        subject.note("quantisation", what, True, "", measured=error)


def deterministic(subject: Subject) -> bool:
    """Whether a call gives the same bits again, forward and backward. Sums by atomic additions may not.

    Called ten times on a GPU, where a difference may be rare, and three times on a CPU. What differs is held
    to the tolerance.
    """
    solved = data.solved_call(subject.of_case())
    first = call(subject, solved.inputs)
    same = bool(first)
    subject.numbers("right each time", first, solved.exact, solved.plain)
    for _ in range(9 if subject.case.device == "cuda" else 2):
        again = call(subject, solved.inputs)
        others = {step: x for step, x in again.items() if not torch.equal(x, first.get(step, x[:0]))}
        subject.numbers("right each time", others, solved.exact, solved.plain)
        same &= not others and again.keys() == first.keys()
    return same


@torch.no_grad()
def judge(taken: Taken, causal: bool = True) -> AuditRecord | None:
    """Judge an audited call by the rule of certificates.

    A call that decodes has only an output. Returns None if the inputs are not finite, as when a run diverges:
    then nothing can be said. A gradient that never came counts as wrong.
    """
    started = perf_counter()
    audit, tensors = taken.audit, taken.tensors
    causal = causal and audit.keys is None
    given = [tensors["q"], tensors["k"], tensors["v"], tensors.get("do", torch.zeros_like(tensors["o"]))]
    q, k, v, do = given
    inputs = Inputs(q, k, v, do, taken.scales_3BK, taken.fp8)
    if not all(bool(x.float().isfinite().all()) for x in given):
        return None
    plain = same_precision(inputs, causal, ELEMENTS)
    if not all(bool(x.isfinite().all()) for x in plain.values()):
        return None  # too large for any backend in this precision
    exact_results = exact(inputs, causal, ELEMENTS)
    errors = {
        step: compare(step, tensors[step], plain[step], exact_results, audit=True)
        for step in STEPS
        if step in tensors
    }

    places = {step: _place(taken, step, error) for step, error in errors.items()}
    wrong = [
        f"{step} is {error.words} ({places[step]})" for step, error in errors.items() if not error.passed
    ]
    if audit.keys is None and not taken.fp8:
        wrong += [f"no gradient reaches {step[1:]}" for step in STEPS[1:] if step not in errors]
    return AuditRecord(
        step=audit.step,
        time=now(),
        layer=audit.layer,
        sample=audit.sample,
        first_head=audit.kv_head * taken.heads,
        heads=taken.heads,
        rows=tensors["o"].shape[1],
        first_row=_first_row(taken) if audit.keys is None else 0,
        keys=audit.keys,
        tensors={
            step: AuditedTensor(
                measured=finite(error.measured),
                tolerance=error.tolerance,
                relative_error=finite(error.relative),
                place=places[step],
            )
            for step, error in errors.items()
        },
        passed=not wrong,
        reason="; ".join(wrong) or None,
        seconds=perf_counter() - started,
    )


def _first_row(taken: Taken) -> int:
    """The position of the first query, if it is a part of a sample."""
    return taken.tensors["k"].shape[1] - taken.tensors["q"].shape[1]


def _place(taken: Taken, step: str, error: Deviation) -> str:
    """Name the worst slice by the model's own numbers: `row 300, head 6`."""
    of_queries = step in ("o", "dq")
    ours, name = (taken.heads, "head") if of_queries else (1, "key head")
    first = taken.audit.kv_head * ours
    start = _first_row(taken) if of_queries else 0
    named = []
    for piece in error.where.split(", "):
        axis, _, index = piece.rpartition(" ")
        if axis == "head":
            named.append(f"{name} {int(index) + first}")
        elif axis in ("row", "rows from"):
            named.append(f"{axis} {int(index) + start}")
        elif piece != "batch 0":
            named.append(piece)
    return ", ".join(named).replace("the tensor", "all of it")
