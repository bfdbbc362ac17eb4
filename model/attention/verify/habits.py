"""Whether a call depends on its inputs alone, in all the ways in which a training loop calls it.

Each habit looks for state that a call leaves behind or takes from another call, or for numbers of a size that
it cannot hold. All are tried at a small shape, and most at the run's own: some faults show only there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from model.attention import Backend, Case
from model.attention.verify import data
from model.attention.verify.call import Subject, bits, call, gradients, leaves, pull
from model.attention.verify.cases import Variant
from model.attention.verify.certificate import Check
from model.attention.verify.data import SolvedCall
from model.attention.verify.reference import Inputs, exact, same_precision
from model.attention.verify.surroundings import note_changes, poisoned, with_state


@dataclass(frozen=True)
class Habit:
    """One way to call a backend.

    Attributes:
        name: the variant of its checks in a certificate.
        recompiles: a backend that compiles would have to do so again, for seconds, and is spared it.
        references: it needs results in float64 of its own, and is tried at a small shape alone.
    """

    name: str
    run: Callable[[Subject], None]
    recompiles: bool = False
    references: bool = False


def check(backend: Backend, case: Case) -> list[Check]:
    """Every habit once, at a small shape."""
    return [check for habit in _habits(case) for check in _tried(habit, backend, case)]


def check_at_the_runs_shape(backend: Backend, case: Case) -> Iterator[list[Check]]:
    """Try, one after another, the habits that need no result in float64 but the known one.

    A backend that compiles is not tried without gradients, which would compile a large shape twice more.
    """
    spared = (_unwatched,) if backend.compiles else ()
    habits = [habit for habit in _habits(case) if not habit.references and habit.run not in spared]
    return (_tried(habit, backend, case) for habit in habits)


def _habits(case: Case) -> tuple[Habit, ...]:
    return HABITS_FORWARD if case.fp8 else HABITS


def check_decoding(backend: Backend, case: Case) -> list[Check]:
    """Token after token in one cache that fills up: what is kept from the token before shows."""
    last, checks = case.sequence_length + min(3, case.new_tokens), list[Check]()
    room = data.laid_out(Variant(case.decoding(last), layout="cached"))
    for seed, keys in enumerate(range(case.sequence_length + 1, last + 1)):
        subject = Subject(backend, case.decoding(keys), "decoding, token after token", checks=checks)
        q = data.drawn(Variant(case.decoding(last), seed=seed)).q
        inputs = Inputs(q, room.k[:, :keys], room.v[:, :keys], do=q)
        subject.numbers("right", call(subject, inputs), exact(inputs, False), same_precision(inputs, False))
    return checks


def _tried(habit: Habit, backend: Backend, case: Case) -> list[Check]:
    if habit.recompiles and backend.compiles:
        return []
    subject = Subject(backend, case, habit.name)
    with subject.running(habit.name):
        habit.run(subject)
    return subject.checks


def _solved(subject: Subject, renewed: str = "") -> SolvedCall:
    return data.solved_call(subject.of_case(renewed=renewed))


def _both(subject: Subject) -> tuple[SolvedCall, SolvedCall]:
    """The case's numbers, and others that differ everywhere."""
    solved = _solved(subject)
    return solved, data.other(subject.case, solved.inputs.fp8)


def _again(subject: Subject) -> None:
    """The same inputs again, after others of the same shape: a result kept by shape shows."""
    first, other = _both(subject)
    for solved in (first, other, first):
        subject.numbers("same again", call(subject, solved.inputs), solved.exact, solved.plain)


def _overwritten(subject: Subject) -> None:
    """Other numbers in the same memory, forward and backward."""
    first, other = _both(subject)
    tensors = leaves(first.inputs)
    pull(subject.forward(*tensors), first.inputs.do)
    with torch.no_grad():
        for x, new in zip(tensors, (other.inputs.q, other.inputs.k, other.inputs.v), strict=True):
            x.copy_(new)
            x.grad = None
    o = subject.forward(*tensors)
    pull(o, other.inputs.do)
    subject.numbers("new data", {"o": o.detach()} | gradients(tensors), other.exact, other.plain)


def _rewritten(subject: Subject) -> None:
    """Other numbers in the same memory, forward alone."""
    first, other = _both(subject)
    tensors = first.inputs
    call(subject, tensors)
    for x, new in zip(_given(tensors), _given(other.inputs), strict=True):
        bits(x).copy_(bits(new))
    subject.numbers("new data", call(subject, tensors), other.exact, other.plain)


def _given(x: Inputs) -> list[Tensor]:
    return [x.q, x.k, x.v, *([] if x.scales_3BK is None else [x.scales_3BK])]


def _in_place(subject: Subject) -> None:
    """Call it as a training loop that reuses its memory does. This reveals results kept by address."""
    first = _solved(subject).inputs
    tensors = {name: getattr(first, name).clone().requires_grad_() for name in "qkv"}
    subject.forward(*tensors.values())
    for renewed in ("v", "vk", "vkq"):
        solved, newest = _solved(subject, renewed=renewed), renewed[-1]
        with torch.no_grad():
            tensors[newest].copy_(getattr(solved.inputs, newest))
        o = subject.forward(*tensors.values()).detach()
        subject.numbers("new data", {"o": o}, solved.exact, solved.plain)


def _interleaved(subject: Subject) -> None:
    """Call it as two layers, or two micro-batches, do. This reveals a workspace that calls share."""
    both = _both(subject)
    tensors = [leaves(solved.inputs) for solved in both]
    outputs = [subject.forward(*qkv) for qkv in tensors]
    for solved, qkv, o in zip(both, tensors, outputs, strict=True):
        pull(o, solved.inputs.do)
        results = {"o": o.detach()} | gradients(qkv)
        subject.numbers("gradients apart", results, solved.exact, solved.plain)


def _accumulated(subject: Subject) -> None:
    """Gradients must add up."""
    solved = _solved(subject)
    tensors = leaves(solved.inputs)
    for _ in range(2):
        pull(subject.forward(*tensors), solved.inputs.do)
    subject.numbers("gradients add up", gradients(tensors), solved.exact, solved.plain, times=2)


def _unwatched(subject: Subject) -> None:
    """Evaluation must give what training gives."""
    solved = _solved(subject)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            o = subject.forward(solved.inputs.q, solved.inputs.k, solved.inputs.v).clone()
        subject.numbers("without gradients", {"o": o}, solved.exact, solved.plain)


def _settings(subject: Subject) -> None:
    """Random numbers, modes and settings must be as before."""
    solved = _solved(subject)
    before = with_state(subject.case.device)
    results = call(subject, solved.inputs)
    subject.numbers("same again", results, solved.exact, solved.plain)
    note_changes(subject, before, with_state(subject.case.device))


def _poisoned(subject: Subject) -> None:
    """Memory that is not written, or that is multiplied by zero, shows."""
    solved = _solved(subject)
    with poisoned(solved.inputs.q, solved.inputs.k):
        results = call(subject, solved.inputs)
    subject.numbers("all written", results, solved.exact, solved.plain)


def _partly(subject: Subject) -> None:
    """Frozen projections need no gradient."""
    solved = _solved(subject)
    for name in "qkv":
        results = call(subject, solved.inputs, grads=name)
        subject.numbers("one gradient", results, solved.exact, solved.plain)


def _scaled(subject: Subject) -> None:
    """Numbers far from 1, as scores, values and gradients in training can be: see `data.scaled`.

    What is kept in float16, cut off, clipped or taken for zero shows.
    """
    solved = _solved(subject)
    for factors in SCALES[subject.case.dtype]:
        there = data.scaled(solved, **factors)
        results = call(subject, there.inputs)
        subject.numbers("right at any scale", results, there.exact, there.plain)


def _not_a_number(subject: Subject) -> None:
    """A NaN must reach what depends on it: a backend that hides it hides that a run has diverged.

    Q's is in the last row, and V's and K's are in the first, which every row attends to. PyTorch's CPU kernel
    hides it in sequences that are shorter than its vectors; no run trains on those.
    """
    if min(part.sequence_length for part in subject.case.parts or [subject.case]) < NAN_FROM:
        return
    case, inputs = subject.case, _solved(subject).inputs
    group, last = case.heads // case.kv_heads, case.sequence_length - 1
    heads = slice(0, group)
    for name, place in (("q", (0, last, 0)), ("k", (0, ALL, heads)), ("v", (0, ALL, heads, 0))):
        spoiled = {x: getattr(inputs, x).clone() for x in "qkv"}
        spoiled[name][0, last if name == "q" else 0, 0, 0] = torch.nan
        o = subject.forward(*leaves(replace(inputs, **spoiled))).detach()
        hidden = f"a NaN in {name} does not reach the output"
        subject.note("NaN comes out", name, bool(o[place].isnan().all()), hidden)
    tensors, do = leaves(inputs), inputs.do.clone()
    do[0, last, 0, 0] = torch.nan
    pull(subject.forward(*tensors), do)
    for step, x in gradients(tensors).items():
        hidden = f"a NaN in the gradient of the output does not reach {step}"
        subject.note("NaN comes out", step, bool(x.isnan().any()), hidden)


NAN_FROM = 32  # keys of a call
ALL = slice(None)
# Powers of two within the range of the precision. In float16 neither dS nor a result may become subnormal.
_WIDE = ({"do": 2.0**-24}, {"v": 2.0**15, "do": 2.0**15}, {"q": 2.0**15}, {"q": 2.0**-15})
SCALES = {
    "float32": _WIDE,
    "bfloat16": _WIDE,
    "float16": ({"do": 8.0}, {"v": 32.0, "do": 32.0}, {"q": 2.0}, {"q": 0.5}),
}

HABITS = (
    Habit("Same again", _again),
    Habit("New data in the same tensors", _overwritten),
    Habit("One tensor after another gets new data", _in_place, references=True),
    Habit("Numbers that are small or large", _scaled),
    Habit("NaN", _not_a_number),
    Habit("Two forwards, then two backwards", _interleaved),
    Habit("Two backwards into the same gradients", _accumulated),
    Habit("Without gradients", _unwatched),
    Habit("Nothing else changes", _settings),
    Habit("Memory full of NaN", _poisoned),
    Habit("Gradients for one input alone", _partly, recompiles=True),
)
HABITS_FORWARD = (  # of numbers of 8 bits, which have no backward
    Habit("Same again", _again),
    Habit("New data in the same tensors", _rewritten),
    Habit("Nothing else changes", _settings),
    Habit("Memory full of NaN", _poisoned),
)
