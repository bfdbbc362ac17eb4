"""Whether a backend trains the same model as `math`, tried on a small llama.

The judge is the same llama in float64 under `math`. A backend's logits and gradients may be off by FACTOR
times the error of `math` in the same precision: with two layers and a loss between attention and these
numbers, much of the error is not attention's.

`allclose` compares with `math` itself, as torch's does. It allows the same in every precision, so that it is
judged only where rounding leaves room for that.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from sys import float_info
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from model import attention
from model.attention import Backend, Case
from model.attention.verify.call import Subject
from model.attention.verify.certificate import ALLCLOSE, Check
from model.record.config import RunConfig
from model.record.errors import AssayError
from model.record.text import START
from model.training import checkpoint, optim, trainer
from model.training.loss import cross_entropy

FACTOR = 3.0
LOSS = 0.005  # the seeds' study: losses within 0.5 % on the same batch and seed
_VOCABULARY = 97


def check(name: str, backend: Backend, case: Case) -> list[Check]:
    """Compare logits, loss and gradients with `math`, and carry checkpoints from each to the other."""
    subject = Subject(backend, case, "a llama of two layers")
    # Building the models sets a seed, which must not affect what draws next.
    gpus = [torch.cuda.current_device()] if case.device == "cuda" else []
    with subject.running("a small llama"), torch.random.fork_rng(gpus):
        config = RunConfig.model_validate({
            "attention": name,
            "device": case.device,
            "model": {
                "dim": case.heads * case.head_dim, "layers": 2, "ffn_dim": 2 * case.head_dim,
                "heads": case.heads, "kv_heads": case.kv_heads, "vocab_size": _VOCABULARY,
            },
            "data": {"path": "unused"},
            "train": {
                "sequence_length": case.sequence_length, "batch_size": case.batch, "dtype": case.dtype,
            },
        })  # fmt: skip
        tried = backend
        if case.parts:  # several processes share the tokens: attention of all is computed in parts
            tried = replace(backend, attend=lambda q, k, v, _causal: attention.attend(backend, case, q, k, v))
        models = {
            "own": trainer.build_model(config, tried),
            "math": trainer.build_model(config, attention.load("math")),
        }
        models["exact"] = deepcopy(models["math"]).to(torch.float64)
        rng = torch.Generator(case.device).manual_seed(1)
        shape = (case.batch, case.sequence_length)
        tokens_BT = torch.randint(_VOCABULARY, shape, generator=rng, device=case.device)
        results = {who: _results(model, tokens_BT) for who, model in models.items()}
        _compare(subject, results)
        _checkpoints(subject, config, models["own"], models["math"], tokens_BT)
    return subject.checks


def _results(model: nn.Module, tokens_BT: Tensor) -> dict[str, Tensor]:
    """Logits, loss and each parameter's gradient, in float64.

    The gradient is of the sum over the tokens: that of the mean would vanish in float16.
    """
    logits = model(tokens_BT)
    loss = cross_entropy(logits, tokens_BT.roll(-1, 1))
    (loss * tokens_BT.numel()).backward()
    results = {"logits": logits.detach(), "loss": loss.detach()}
    results |= {x: p.grad for x, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {what: x.double() for what, x in results.items()}


def _off(x: Tensor, exact: Tensor) -> float:
    return float((x - exact).norm() / exact.norm().clamp_min(1e-300))


def _compare(subject: Subject, results: dict[str, dict[str, Tensor]]) -> None:
    """Compare logits, loss and every parameter's gradient.

    If `math` is better than usual at a gradient, its usual error counts.
    """
    own, math, exact = (results[who] for who in ("own", "math", "exact"))
    measured, usual = (_off(x["logits"], exact["logits"]) for x in (own, math))
    tolerance = FACTOR * usual
    reason = f"logits are off by {measured:.2e}, where {tolerance:.2e} is allowed"
    _hold(subject, "same logits", "logits", measured, tolerance, reason)

    apart = abs(float(own["loss"] / math["loss"]) - 1)
    reason = f"the loss is {float(own['loss']):.4f}, where math gives {float(math['loss']):.4f}"
    _hold(subject, "same loss", "loss", apart, LOSS, reason)

    names = [name for name in exact if name not in ("logits", "loss")]
    plain = {name: _off(math[name], exact[name]) for name in names}
    usual = sorted(plain.values())[len(plain) // 2]
    for name in names:
        if name not in own:
            subject.note("same gradients", name, False, f"no gradient reaches {name}")
            continue
        measured, tolerance = _off(own[name], exact[name]), FACTOR * max(plain[name], usual)
        reason = f"the gradient of {name} is off by {measured:.2e}, where {tolerance:.2e} is allowed"
        _hold(subject, "same gradients", name, measured, tolerance, reason)
    _allclose(subject, "logits", ["logits"], results)
    _allclose(subject, "gradients", names, results)


def _allclose(subject: Subject, what: str, names: list[str], results: dict[str, dict[str, Tensor]]) -> None:
    """Check that |x - math| <= atol + rtol |math| in every element, by the largest ratio of the two sides.

    A backend may be FACTOR roundings from `math`. Where these alone may exceed rtol, as in bfloat16 and
    float16, there is no tolerance: the ratio is recorded, and only NaN and infinity fail.
    """
    missing = torch.tensor(torch.nan)  # a gradient that does not arrive: the largest of any and NaN is NaN

    def largest(tried: dict[str, Tensor], against: dict[str, Tensor]) -> float:
        pairs = [(tried.get(name, missing), against[name]) for name in names]
        ratios = [((x - y).abs() / (ALLCLOSE * (1 + y.abs()))).max() for x, y in pairs]
        return float(torch.stack(ratios).max())

    own, math, exact = (results[who] for who in ("own", "math", "exact"))
    numbers = {"measured": largest(own, math), "plain": largest(math, exact)}
    if FACTOR * torch.finfo(getattr(torch, subject.case.dtype)).eps <= ALLCLOSE:
        numbers["tolerance"] = 1.0
    passed = numbers["measured"] <= numbers.get("tolerance", float_info.max)
    reason = f"the {what} are {numbers['measured']:.3g} times as far from those of math as allclose allows"
    subject.note("allclose", what, passed, reason, **numbers)


def _checkpoints(
    subject: Subject, config: RunConfig, own: nn.Module, math: nn.Module, tokens_BT: Tensor
) -> None:
    """Save under one and load under the other, both ways: all weights must be equal, and logits close."""
    with TemporaryDirectory() as folder:
        for way, source, target in (("from it to math", own, math), ("from math to it", math, own)):
            # Move the weights, so that it shows if a checkpoint is not loaded.
            cross_entropy(source(tokens_BT), tokens_BT.roll(-1, 1)).backward()
            with torch.no_grad():  # an optimizer of torch.optim would import Dynamo, which takes seconds
                for weight in source.parameters():
                    if weight.grad is not None:
                        weight.sub_(0.1 * weight.grad)
            source.zero_grad(set_to_none=True)

            kept = Path(folder) / "checkpoint"
            try:
                checkpoint.save(kept, _state(config, source), 1, START)
                checkpoint.load(kept, _state(config, target))
            except (AssayError, OSError) as error:
                subject.note("checkpoint", way, False, f"a checkpoint cannot be carried {way}: {error}")
                continue

            pairs = zip(source.state_dict().values(), target.state_dict().values(), strict=True)
            same = all(torch.equal(x, y) for x, y in pairs)
            subject.note("checkpoint", way, same, f"weights changed on the way {way}")
            with torch.no_grad():
                a, b = source(tokens_BT).double(), target(tokens_BT).double()
            measured, tolerance = _off(a, b), 2 * FACTOR * torch.finfo(getattr(torch, config.train.dtype)).eps
            reason = f"the same weights give logits that are {measured:.2e} apart {way}"
            _hold(subject, "checkpoint outputs", way, measured, tolerance, reason)


def _state(config: RunConfig, model: nn.Module) -> checkpoint.TrainingState:
    optimizer = optim.AdamW(model.named_parameters(), config.train.weight_decay)
    return checkpoint.TrainingState(config, "none", model, optimizer)


def _hold(subject: Subject, name: str, what: str, measured: float, tolerance: float, reason: str) -> None:
    """Add a check that what was measured is within its tolerance."""
    subject.note(name, what, measured <= tolerance, reason, measured=measured, tolerance=tolerance)
