"""Audits: at random steps of a run, copies of the inputs and results of one attention call of the model.

A certificate vouches for a backend before the run starts; audits vouch for it while it runs. This module
chooses the steps and takes the copies. `model.attention.verify.accuracy` computes the same call in float64,
and says whether the backend still meets the rule of its certificate.

The copies are of a call that the step itself makes, forward and backward: all rows of the query heads that
share one key head, of one sample, in one layer. Copying a few MiB is part of the step. The copies are judged
at the next record, outside the timed region, when the step's memory is free.

Shapes: T sequence, G query heads that share a key head, D head dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import chain
from random import Random
from typing import TYPE_CHECKING, Any, cast

from model.attention.verify.audited import Audit, Taken
from model.measure.flops import flop_per_token
from model.record.config import RunConfig
from model.record.errors import AuditFailed
from model.record.records import AuditRecord
from model.training.parallel.world import ALONE, World

if TYPE_CHECKING:
    from torch import Tensor

    from model.training.llama import Attend, Block, Llama

SHARE = 0.002  # of a run's time that its audits may take
LEAST = 100  # steps for each audit, because even a small audit has a fixed cost
# How many times as long a FLOP of an audit takes as one of training, as docs/benchmarks.md measures it.
WEIGHT = {"cpu": 8, "cuda": 230}
PRODUCTS = 14  # matrix products of the size of the scores: 8 in float64, 6 in float32


Judge = Callable[[Taken], AuditRecord | None]
Keep = Callable[[AuditRecord], None]


def every(config: RunConfig) -> int:
    """One step is audited in each stretch of this many steps.

    An audit computes all scores of one key head's queries in one sample, of which the mask leaves half. If a
    sample is cut into parts, the last part has the most. One process computes them while the others wait.
    """
    model, train, parallel = config.model, config.train, config.parallel
    step_flop = flop_per_token(model, train.sequence_length) * train.sequence_length * train.batch_size
    rows = train.sequence_length / (2 * parallel.context if parallel.context > 1 else 1)
    scores = model.heads // model.kv_heads * rows * (train.sequence_length - rows / 2)
    audit_flop = PRODUCTS * 2 * scores * model.head_dim
    return max(
        LEAST, math.ceil(WEIGHT[config.device] * audit_flop * parallel.processes / (SHARE * step_flop))
    )


def audit_of(config: RunConfig, step: int) -> tuple[Audit, int]:
    """The audit of the stretch that contains a step, and the last step of the stretch.

    Both follow from the configuration alone, so that resuming changes nothing. A shorter last stretch has an
    audit too, so every run has one.
    """
    model, length = config.model, every(config)
    start = (step - 1) // length * length
    end = min(start + length, config.train.steps)
    rng = Random(f"audit {config.seed} {start}")  # noqa: S311  no secret
    audit = Audit(
        rng.randrange(start, end) + 1,
        rng.randrange(model.layers),
        rng.randrange(config.train.batch_size),
        rng.randrange(model.kv_heads),
        part=rng.randrange(2 * config.parallel.context),
    )
    return audit, end


class Audits:
    """Watches the steps of a run that are audited, and hands the copies to the judge.

    If the run has several processes, the one that has the sample and the heads copies and judges them.

    Args:
        judge: None: no step is audited; nor with dropout, as no judge knows which weights became 0.
        keep: called with each record, only in the first process.
    """

    def __init__(
        self,
        config: RunConfig,
        model: Llama,
        judge: Judge | None,
        keep: Keep | None = None,
        world: World = ALONE,
    ) -> None:
        self._config, self._model = config, model
        self._judge = None if config.train.attention_dropout else judge
        self._keep, self._world = keep, world
        self._audit, self._until = audit_of(config, 1)
        self._open: _Uncompiled | None = None
        self._taken: list[Taken] = []

    def watch(self, step: int) -> None:
        """Call this before each step."""
        self._close()
        if step > self._until:
            self._audit, self._until = audit_of(self._config, step)
        if self._judge is None or step != self._audit.step:
            return

        model, train, world = self._config.model, self._config.train, self._world
        parallel = world.parallel
        group, sample = divmod(self._audit.sample, train.batch_size // parallel.samples)
        heads, kv_head = divmod(self._audit.kv_head, model.kv_heads // parallel.tensor)
        # Which of the processes that share tokens looks, and at which of its calls; None: it has one.
        rank, call = 0, None
        if (context := parallel.context) > 1:
            from model.training.parallel.context import places

            rank = min(self._audit.part, 2 * context - 1 - self._audit.part)
            call = places(rank, context).index(self._audit.part)
        if (group, rank) != (world.sample_rank, world.context_rank):
            return
        block = cast("Block", self._model.blocks[self._audit.layer])
        if heads != world.tensor_rank:
            self._open = _Uncompiled(block)
            return
        taken = Taken(self._audit, model.heads // model.kv_heads)
        part, row = divmod(sample, train.part_size // parallel.samples)
        earlier = part * (1 + train.checkpoint_activations)  # each part's backward may call it again
        self._taken.append(taken)
        self._open = _Tap(block, taken, row, kv_head, earlier, call)

    def settle(self) -> None:
        """Judge everything that was taken, and drop it. Call this outside the timed region.

        Raises:
            AuditFailed: in every process, if what one of them took is wrong.
        """
        self._close()
        if not self._judge:
            return
        records = [self._judge(self._taken.pop(0)) for _ in list(self._taken)]
        for record in filter(None, chain.from_iterable(self._world.gather(records))):
            if self._keep and self._world.is_first:
                self._keep(record)
            if not record.passed:
                raise AuditFailed(f"attention is wrong in {record.where}: {record.reason}")

    def _close(self) -> None:
        if self._open:
            self._open.close()
        self._open = None


class _Uncompiled:
    """Has a block run one step without its graph, which would hide the attention call.

    This is done in all processes that share its heads. When activations are recomputed, a graph sums its
    output over the processes again, and a block without a graph does not: their collectives must match.
    """

    def __init__(self, block: Block) -> None:
        self._block = block
        self._compiled, block._compiled_call_impl = block._compiled_call_impl, None

    def close(self) -> None:
        """Restore the original."""
        self._block._compiled_call_impl = self._compiled


class _Tap(_Uncompiled):
    """Stands in a block for the attention of one step, calls it, and takes copies.

    Args:
        row: the sample, in its part of the batch.
        kv_head: the key head, among those of this process.
        earlier: number of calls in this step before the one to copy.
        call: if processes share the tokens, which of this one's calls to copy; else None.
    """

    def __init__(
        self, block: Block, taken: Taken, row: int, kv_head: int, earlier: int, call: int | None
    ) -> None:
        super().__init__(block)
        self._taken, self._row, self._earlier = taken, row, earlier
        self._kv_head = kv_head
        self._attention = block.attention
        self._attend = self._before = self._attention.attend
        shared: Any = self._before
        self._attention.attend = self if call is None else shared.tapped(call, self._around)

    def close(self) -> None:
        """Restore the original."""
        super().close()
        self._attention.attend = self._before

    def _around(self, attend: Attend) -> Attend:
        self._attend = attend
        return self

    def __call__(self, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor) -> Tensor:
        """The block's own attention. Hooks are attached to its tensors only after the backend's call.

        If activations are recomputed, the model uses the output of a part's first call.
        """
        self._earlier -= 1
        if self._earlier != -1:
            return self._attend(q_BTHD, k_BTKD, v_BTKD)
        inputs = {"q": q_BTHD, "k": k_BTKD, "v": v_BTKD}
        for name, x in inputs.items():
            self._take(name, x)
        o_BTHD: Tensor = self._attend(q_BTHD, k_BTKD, v_BTKD)
        self._take("o", o_BTHD)
        for name, x in {**inputs, "o": o_BTHD}.items():
            if x.requires_grad:
                x.register_hook(partial(self._take, f"d{name}"))  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        return o_BTHD

    def _take(self, name: str, x_BTHD: Tensor) -> None:
        self._taken.copy(name, x_BTHD, self._row, self._kv_head)
