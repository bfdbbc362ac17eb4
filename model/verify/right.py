"""Whether output and gradients are right, and whether they are the same each time."""

from __future__ import annotations

from dataclasses import replace

import torch

from model.attention import Backend
from model.verify import data
from model.verify.call import Subject, call
from model.verify.cases import Variant
from model.verify.certificate import Check


def check(backend: Backend, variant: Variant) -> list[Check]:
    """Hold output, dQ, dK and dV of one variant to float64.

    The call comes before the reference: a backend that runs out of memory does so within seconds.
    """
    subject = Subject(backend, variant.case, str(variant))
    results = call(subject, data.laid_out(variant))
    found = data.known(replace(variant, layout="contiguous"))
    subject.numbers("right", results, found.exact, found.plain)
    return subject.checks


def deterministic(subject: Subject) -> bool:
    """Whether a call gives the same bits again, forward and backward. Sums by atomic additions may not.

    Called ten times on a GPU, where a difference may be rare, and three times on a CPU. What differs is held
    to the tolerance.
    """
    found = data.of(Variant(subject.case))
    first = call(subject, found.inputs)
    same = bool(first)
    subject.numbers("right each time", first, found.exact, found.plain)
    for _ in range(9 if subject.case.device == "cuda" else 2):
        again = call(subject, found.inputs)
        others = {step: x for step, x in again.items() if not torch.equal(x, first.get(step, x[:0]))}
        subject.numbers("right each time", others, found.exact, found.plain)
        same &= not others and again.keys() == first.keys()
    return same
