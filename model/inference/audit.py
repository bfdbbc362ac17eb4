"""Audits of decoding: calls of the running model at random lengths are compared with float64, as in training.

A certificate vouches for a prompt's call, and for decoding at its first and last length and a few between.
Tokens are decoded twice. The first pass is not timed: up to `MOST` of its lengths are audited, drawn by the
run's seed, each in one layer, for the query heads that share a key head of one sample. In the second pass,
which is timed, copies are taken at one in `APART` of these lengths, and judged after its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, cast

from model.attention.verify.audited import Audit, Taken
from model.record.config import RunConfig
from model.training.audit import Judge

if TYPE_CHECKING:
    from torch import Tensor

    from model.training.llama import Block, Llama

MOST = 256
APART = 64


def audits_of(config: RunConfig) -> dict[int, Audit]:
    """The audits, by the number of keys of the call."""
    asked, model = config.inference, config.model
    rng = Random(f"decoding {config.seed}")  # noqa: S311  no secret
    lengths = range(asked.prompt_length + 1, asked.room + 1)
    return {
        keys: Audit(
            asked.steps,
            rng.randrange(model.layers),
            rng.randrange(asked.batch_size),
            rng.randrange(model.kv_heads),
            keys,
        )
        for keys in rng.sample(lengths, min(MOST, len(lengths)))
    }


class Watch:
    """Watches the calls of both passes, and hands copies to the judge.

    Args:
        judge: raises if a backend is wrong; None: nothing is audited.
    """

    def __init__(self, config: RunConfig, model: Llama, judge: Judge | None) -> None:
        self._group, self._model, self._judge = config.model.heads // config.model.kv_heads, model, judge
        self._audits = audits_of(config) if judge else {}
        self._while_timed = set([*self._audits][::APART])
        self._taken: list[Taken] = []

    @contextmanager
    def call(self, keys: int, timed: bool) -> Iterator[None]:
        """Wrap the model's call for one position, whose token sees this many keys."""
        audit = self._audits.get(keys) if not timed or keys in self._while_timed else None
        if audit is None:
            yield
            return
        attention = cast("Block", self._model.blocks[audit.layer]).attention
        attend, taken = attention.attend, Taken(audit, self._group)

        def watched(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor) -> Tensor:
            place = audit.sample, audit.kv_head
            for name, x in {"q": q_BTHD, "k": k_BTKD, "v": v_BTKD}.items():
                taken.copy(name, x, *place)
            o_BTHD = attend(q_BTHD, k_BTKD, v_BTKD)
            taken.copy("o", o_BTHD, *place)
            return o_BTHD

        attention.attend = watched
        try:
            yield
        finally:
            attention.attend = attend
        self._taken.append(taken)
        if not timed:
            self.settle()

    def settle(self) -> None:
        """Judge all copies, and drop them."""
        while self._taken:
            assert self._judge
            self._judge(self._taken.pop(0))
