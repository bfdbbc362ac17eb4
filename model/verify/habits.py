"""Whether a call is a function of its inputs alone, in all the ways in which a training loop calls it.

Each habit looks for state that a call leaves behind, or takes from another call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from model.attention import Backend, Case
from model.verify import data
from model.verify.call import Subject, call, gradients, leaves
from model.verify.cases import Variant
from model.verify.certificate import Check
from model.verify.data import Known
from model.verify.surroundings import note_changes, poisoned, with_state


@dataclass(frozen=True)
class Habit:
    """One way to call a backend.

    Attributes:
        name: the variant of its checks in a certificate.
        recompiles: a backend that compiles would have to do so again, for seconds, and is spared it.
    """

    name: str
    run: Callable[[Subject], None]
    recompiles: bool = False


def check(backend: Backend, case: Case) -> list[Check]:
    """Every habit once."""
    checks = []
    for habit in HABITS:
        if habit.recompiles and backend.compiles:
            continue
        subject = Subject(backend, case, habit.name)
        with subject.running(habit.name):
            habit.run(subject)
        checks += subject.checks
    return checks


def _known(subject: Subject, seed: int = 0, renewed: str = "") -> Known:
    return data.of(Variant(subject.case, seed=seed, renewed=renewed))


def _again(subject: Subject) -> None:
    """The same inputs again, after others of the same shape: a result kept by shape shows."""
    for seed in (0, 1, 0):
        found = _known(subject, seed)
        subject.numbers("same again", call(subject, found.inputs), found.exact, found.plain)


def _in_place(subject: Subject) -> None:
    """As a training loop that reuses its memory calls it: a result kept by address shows."""
    first = _known(subject).inputs
    tensors = {name: getattr(first, name).clone().requires_grad_() for name in "qkv"}
    subject.forward(*tensors.values())
    for renewed in ("v", "vk", "vkq"):
        found, newest = _known(subject, renewed=renewed), renewed[-1]
        with torch.no_grad():
            tensors[newest].copy_(getattr(found.inputs, newest))
        o = subject.forward(*tensors.values()).detach()
        subject.numbers("new data", {"o": o}, found.exact, found.plain)


def _interleaved(subject: Subject) -> None:
    """As two layers, or two micro-batches, call it: a workspace that calls share shows."""
    both = [_known(subject, seed) for seed in (0, 1)]
    tensors = [leaves(found.inputs) for found in both]
    outputs = [subject.forward(*each) for each in tensors]
    for found, each, o in zip(both, tensors, outputs, strict=True):
        o.backward(found.inputs.do)
        results = {"o": o.detach()} | gradients(each)
        subject.numbers("gradients apart", results, found.exact, found.plain)


def _accumulated(subject: Subject) -> None:
    """Gradients must add up."""
    found = _known(subject)
    tensors = leaves(found.inputs)
    for _ in range(2):
        subject.forward(*tensors).backward(found.inputs.do)
    subject.numbers("gradients add up", gradients(tensors), found.exact, found.plain, times=2)


def _unwatched(subject: Subject) -> None:
    """Evaluation must give what training gives."""
    found = _known(subject)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            o = subject.forward(found.inputs.q, found.inputs.k, found.inputs.v).clone()
        subject.numbers("without gradients", {"o": o}, found.exact, found.plain)


def _settings(subject: Subject) -> None:
    """Random numbers, modes and settings must be as before."""
    found = _known(subject)
    before = with_state(subject.case.device)
    call(subject, found.inputs)
    note_changes(subject, before, with_state(subject.case.device))


def _poisoned(subject: Subject) -> None:
    """Memory that is not written, or that is multiplied by zero, shows."""
    found = _known(subject)
    with poisoned(found.inputs.q, found.inputs.k):
        results = call(subject, found.inputs)
    subject.numbers("all written", results, found.exact, found.plain)


def _partly(subject: Subject) -> None:
    """Frozen projections need no gradient."""
    found = _known(subject)
    for name in "qkv":
        results = call(subject, found.inputs, grads=name)
        subject.numbers("one gradient", results, found.exact, found.plain)


HABITS = (
    Habit("Same again", _again),
    Habit("New data in the same tensors", _in_place),
    Habit("Two forwards, then two backwards", _interleaved),
    Habit("Two backwards into the same gradients", _accumulated),
    Habit("Without gradients", _unwatched),
    Habit("Nothing else changes", _settings),
    Habit("Memory full of NaN", _poisoned),
    Habit("Gradients for one input alone", _partly, recompiles=True),
)
