"""A call under torch.compile: whether the numbers are the same, and whether one graph holds all of it.

For a run that is compiled, inductor generates machine code for the call as in the run. Otherwise Dynamo and
AOTAutograd trace it, and PyTorch's own operators run the graph (`aot_eager`): that shows whether the graph
breaks, without the seconds that machine code takes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import FunctionType

import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported as GraphBreak

from model import attention
from model.attention import Backend, Case, for_compile
from model.attention.verify import data
from model.attention.verify.call import Subject, call, leaves
from model.attention.verify.cases import Variant
from model.attention.verify.certificate import Check

# The reason that was given to `torch.compiler.disable`, or else PyTorch's explanation.
_REASONS = (r"\(reason: (?!None\))(.+)\)$", r"Explanation: (.+)$", r"(.+)$")
_SHAPES = 64  # compiled in one process by one trial; beyond Dynamo's own limit of 8, calls run uncompiled


def check(backend: Backend, case: Case) -> tuple[list[Check], str | None]:
    """The checks, and why torch.compile ends its graph at a call; empty if one graph holds all of it."""
    subject = Subject(for_compile(backend), case, "under torch.compile")
    solved = data.solved_call(Variant(case))
    other = data.other(case)
    why: str | None = None
    by = "inductor" if case.compile else "aot_eager"
    # Dynamo's own code triggers warnings in PyTorch; and it is to compile each shape.
    limit = torch._dynamo.config.patch(recompile_limit=_SHAPES)
    with subject.running("under torch.compile"), limit, warnings.catch_warnings(action="ignore"):
        subject.seam = _compiled(by, whole=True)
        try:
            subject.forward(*leaves(solved.inputs))
            why = ""
        except GraphBreak as error:  # the backend's own words, or else PyTorch's
            matches = (re.search(pattern, str(error), re.MULTILINE) for pattern in _REASONS)
            why = next((match[1] for match in matches if match), type(error).__name__)
            subject.seam = _compiled(by, whole=False)
        for numbers in (solved, other):
            subject.numbers(
                "right when compiled", call(subject, numbers.inputs), numbers.exact, numbers.plain
            )
    return subject.checks, why


def _compiled(by: str, whole: bool) -> Callable[..., Tensor]:
    """The seam, compiled from scratch for one shape, as the first compilation of a run is.

    A copy of its code has no compiled versions yet. `dynamic=False`, because Dynamo remembers by file and
    line which sizes have changed, and would make those variable, which some code does not support.
    """
    code, defaults = attention.attend.__code__, attention.attend.__defaults__
    fresh = FunctionType(code.replace(), attention.attend.__globals__, argdefs=defaults)
    seam: Callable[..., Tensor] = torch.compile(fresh, fullgraph=whole, backend=by, dynamic=False)
    return seam
