"""Whether dropout drops what it should: found from outputs and gradients alone, of any backend.

With one-hot values the output is the weights themselves, D columns a call; with one-hot gradients of the
output, dV is the weights again, transposed. Calls from the same random state drop the same weights.

Shapes: B batch, T sequence (queries), U keys, H = K * G heads, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from model.attention import Backend, Case
from model.attention.verify.call import Subject, gradients, leaves, pull
from model.attention.verify.certificate import Check
from model.attention.verify.reference import Inputs

SIGMAS = 5.0  # 6e-7 by chance; the seed is fixed, so that a backend passes always or never
# Largest error of a weight, relative to it, and of a gradient, relative to its norm: several roundings.
# Products of float32 may be rounded to 11 bits on GPUs.
TOLERANCE = {"bfloat16": 2**-5, "float16": 2**-8, "float32": 2**-8}
SHIFTS = (1, 8, 16, 64, 128)  # rows or keys apart: neighbours, and tiles


def check(backend: Backend, case: Case) -> list[Check]:
    """Check which weights are dropped, what is left of the others, and the gradients."""
    subject = Subject(backend, case, f"dropout {case.dropout:g}")
    with subject.running("dropout"):
        inputs = _inputs(case)
        exact_BHTU = _probabilities(inputs, case)
        weights_BHTU = _from_output(subject, inputs)
        kept_BHTU, seen_TU = weights_BHTU != 0, exact_BHTU[0, 0] > 0
        _gradients(subject, inputs, exact_BHTU, kept_BHTU)
        _scale(subject, weights_BHTU, exact_BHTU)
        other = int((kept_BHTU != (_from_gradient(subject, inputs) != 0)).sum())
        subject.note("same weights", "dv", other == 0, f"the backward pass drops {other} other weights")
        _share(subject, kept_BHTU[:, :, seen_TU])
        _independent(subject, kept_BHTU, seen_TU)
        following_BHTU = _from_output(subject, inputs, calls_before=1) != 0
        _agrees_by_chance(subject, "the next call", (kept_BHTU == following_BHTU)[:, :, seen_TU])
    return subject.checks


def _inputs(case: Case) -> Inputs:
    """Random, but small: every weight can be told from 0 in 16 bits."""
    rng = torch.Generator(case.device).manual_seed(case.sequence_length)
    shapes = [
        (case.batch, case.sequence_length, heads, case.head_dim) for heads in (case.heads, case.kv_heads)
    ]
    q, k, v, do = (
        torch.randn(shapes[place], generator=rng, device=case.device).to(getattr(torch, case.dtype))
        for place in (0, 1, 1, 0)
    )
    return Inputs(q / 2, k / 2, v, do)


@contextmanager
def _from_one_state(case: Case) -> Iterator[None]:
    """Start from the same random state each time, and give back the process's own."""
    with torch.random.fork_rng([torch.cuda.current_device()] if case.device == "cuda" else []):
        torch.manual_seed(20)
        yield


def _probabilities(inputs: Inputs, case: Case) -> Tensor:
    """The weights without dropout, (B, H, T, U) in float64."""
    q_BHTD, k_BKUD = inputs.q.double().transpose(1, 2), inputs.k.double().transpose(1, 2)
    k_BHUD = k_BKUD.repeat_interleave(case.heads // case.kv_heads, dim=1)
    s_BHTU = q_BHTD @ k_BHUD.mT * case.head_dim**-0.5
    if case.causal:
        hidden = torch.ones_like(s_BHTU[0, 0], dtype=torch.bool).triu(s_BHTU.shape[3] - s_BHTU.shape[2] + 1)
        s_BHTU.masked_fill_(hidden, -torch.inf)
    p_BHTU: Tensor = s_BHTU.softmax(-1)
    return p_BHTU


def _from_output(subject: Subject, inputs: Inputs, calls_before: int = 0) -> Tensor:
    """The weights, (B, H, T, U), of a call that comes after others from the one state."""
    case = subject.case
    columns = []
    for start in range(0, case.sequence_length, case.head_dim):
        one_hot = torch.zeros_like(inputs.v)
        _ones(one_hot, start, slice(None))
        with _from_one_state(case), torch.no_grad():
            for _ in range(calls_before):
                subject.forward(inputs.q, inputs.k, one_hot)
            columns.append(subject.forward(inputs.q, inputs.k, one_hot).transpose(1, 2))
    return torch.cat(columns, dim=-1)[..., : case.sequence_length].double()


def _from_gradient(subject: Subject, inputs: Inputs) -> Tensor:
    """The weights, (B, H, T, U), that the backward pass of a call from the one state multiplies with."""
    case, group = subject.case, subject.case.heads // subject.case.kv_heads
    weights_BHTU = torch.zeros(
        case.batch, case.heads, case.sequence_length, case.sequence_length,
        dtype=torch.float64, device=case.device,
    )  # fmt: skip
    for start in range(0, case.sequence_length, case.head_dim):
        rows = slice(start, min(start + case.head_dim, case.sequence_length))
        for member in range(group):  # dV sums over the group
            heads = slice(member, None, group)
            do = torch.zeros_like(inputs.do)
            _ones(do, start, heads)
            with _from_one_state(case):
                tensors = leaves(inputs)
                pull(subject.forward(*tensors), do)
            dv_BKUD = gradients(tensors)["dv"].transpose(1, 2)
            weights_BHTU[:, heads, rows] = dv_BKUD.mT[:, :, : rows.stop - start].double()
    return weights_BHTU


def _ones(x_BTHD: Tensor, start: int, heads: slice) -> None:
    """Put a 1 at dim i of row start + i, of some heads."""
    dims = torch.arange(min(x_BTHD.shape[3], x_BTHD.shape[1] - start), device=x_BTHD.device)
    x_BTHD[:, start + dims, heads, dims] = 1


def _scale(subject: Subject, weights_BHTU: Tensor, exact_BHTU: Tensor) -> None:
    """Hold what is left to P / (1 - dropout), and what a query must not see to 0."""
    wanted = exact_BHTU / (1 - subject.case.dropout)
    off = torch.where(weights_BHTU != 0, (weights_BHTU - wanted).abs() / wanted, 0.0).max()
    tolerance = TOLERANCE[subject.case.dtype]
    reason = f"a weight that is left is {float(off):.2e} of itself off P / (1 - {subject.case.dropout:g})"
    passed = bool(off <= tolerance)
    subject.note("scale", "o", passed, reason, measured=float(off), tolerance=tolerance)


def _share(subject: Subject, kept: Tensor) -> None:
    """Hold the number of weights that are left to the binomial distribution."""
    dropout, count = subject.case.dropout, kept.numel()
    sigma = (dropout * (1 - dropout) / count) ** 0.5
    share = 1 - float(kept.double().mean())
    off = abs(share - dropout) / sigma
    reason = f"{share:.5f} of {count} weights are dropped, {off:.1f} standard deviations from {dropout:g}"
    subject.note("share", "o", off <= SIGMAS, reason, measured=off, tolerance=SIGMAS)


def _independent(subject: Subject, kept_BHTU: Tensor, seen_TU: Tensor) -> None:
    """Compare the zeros of heads, of samples, and of rows and keys some way apart."""
    if subject.case.heads > 1:
        _agrees_by_chance(subject, "another head", (kept_BHTU[:, 1:] == kept_BHTU[:, :-1])[:, :, seen_TU])
    if subject.case.batch > 1:
        _agrees_by_chance(subject, "another sample", (kept_BHTU[1:] == kept_BHTU[:-1])[:, :, seen_TU])
    for far in SHIFTS:
        if far < min(seen_TU.shape):
            rows, keys = kept_BHTU[:, :, far:], kept_BHTU[..., far:]
            both = seen_TU[far:] & seen_TU[:-far]
            _agrees_by_chance(subject, f"the row {far} before", (rows == kept_BHTU[:, :, :-far])[:, :, both])
            both = seen_TU[:, far:] & seen_TU[:, :-far]
            _agrees_by_chance(subject, f"the key {far} before", (keys == kept_BHTU[..., :-far])[:, :, both])


def _agrees_by_chance(subject: Subject, what: str, agrees: Tensor) -> None:
    """Hold how often two weights are both dropped or both left to what independent ones give."""
    dropout, count = subject.case.dropout, agrees.numel()
    chance = dropout**2 + (1 - dropout) ** 2
    # Each weight is in two pairs, whose results correlate unless dropout is a half.
    sigma = (chance * (1 - chance) * 2 / count) ** 0.5
    off = abs(float(agrees.double().mean()) - chance) / sigma
    reason = f"its zeros follow those of {what}: {off:.1f} standard deviations from chance"
    subject.note("independent", what, off <= SIGMAS, reason, measured=off, tolerance=SIGMAS)


def _gradients(subject: Subject, inputs: Inputs, exact_BHTU: Tensor, kept_BHTU: Tensor) -> None:
    """Hold output and gradients to float64, given which weights are left."""
    case, group = subject.case, subject.case.heads // subject.case.kv_heads
    with _from_one_state(case):
        tensors = leaves(inputs)
        o_BTHD = subject.forward(*tensors)
        pull(o_BTHD, inputs.do)
    results = {"o": o_BTHD.detach(), **gradients(tensors)}
    q_BHTD, k_BKUD, v_BKUD, do_BHTD = (
        x.double().transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v, inputs.do)
    )
    k_BHUD, v_BHUD = (x.repeat_interleave(group, dim=1) for x in (k_BKUD, v_BKUD))
    left = kept_BHTU / (1 - case.dropout)
    dp = do_BHTD @ v_BHUD.mT * left
    ds = exact_BHTU * (dp - (exact_BHTU * dp).sum(-1, keepdim=True)) * case.head_dim**-0.5
    of_group = (case.kv_heads, group)
    wanted = {
        "o": exact_BHTU * left @ v_BHUD,
        "dq": ds @ k_BHUD,
        "dk": (ds.mT @ q_BHTD).unflatten(1, of_group).sum(2),
        "dv": ((exact_BHTU * left).mT @ do_BHTD).unflatten(1, of_group).sum(2),
    }
    tolerance = TOLERANCE[case.dtype]
    for step, exact in wanted.items():
        off = float((results[step].double().transpose(1, 2) - exact).norm() / exact.norm())
        reason = f"{step} is {off:.2e} of its norm off what these weights give"
        subject.note("right with dropout", step, off <= tolerance, reason, measured=off, tolerance=tolerance)


def small(case: Case, dropout: float) -> Case:
    """A case with dropout that is enough: two samples, and few heads of each kind."""
    group = case.heads // case.kv_heads
    return replace(
        case, batch=2, sequence_length=min(case.sequence_length, 257), heads=2 * group, kv_heads=2,
        queries=None, context=1, compile=False, new_tokens=0, any_size=False, dropout=dropout,
    )  # fmt: skip
