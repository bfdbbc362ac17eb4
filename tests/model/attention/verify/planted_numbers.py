"""More backends with wrong numbers, shapes or gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.model.attention.verify.planted import CASE, HALF, LONG, _Own, backward, plant, right


@plant()
def window_of_100(q, k, v, causal):
    return right(q, k, v, causal, hidden=lambda i, j: j <= i - 100)


@plant()
def softcap_50(q, k, v, causal):
    return right(q, k, v, causal, change=lambda s: 50 * (s / 50).tanh())


@plant()
def softmax_with_one_more(q, k, v, causal):
    """Attention to nothing: exp(0) in the denominator."""
    o = right(q, k, v, causal)
    return o * 0.999


@plant("finite")
def maximum_not_subtracted(q, k, v, causal):
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    p = (q @ k.mT * q.shape[-1] ** -0.5).exp()
    p = p.tril() if causal else p
    return (p / p.sum(-1, keepdim=True) @ v).transpose(1, 2) + 0 * right(
        *(x.transpose(1, 2) for x in (q, k, v)), causal
    )


@plant("right", "right when watched")
def dropout(q, k, v, causal):
    return torch.nn.functional.dropout(right(q, k, v, causal), 0.01)


@plant("has gradients")
def detached_v(q, k, v, causal):
    return right(q, k, v.detach(), causal)


@plant("has gradients")
def detached_output(q, k, v, causal):
    return right(q, k, v, causal).detach()


@plant("precision", case=HALF)
def gives_float32(q, k, v, causal):
    return right(q, k, v, causal).float()


@plant("shape", "runs")
def gives_another_layout(q, k, v, causal):
    return right(q, k, v, causal).transpose(1, 2)


@plant()
def batch_reads_the_first(q, k, v, causal):
    return right(q, k[:1].expand_as(k), v, causal)


@plant()
def last_head_wrong(q, k, v, causal):
    o = right(q, k, v, causal)
    return torch.cat((o[:, :, :-1], o[:, :, -1:] * 1.001), dim=2)


@plant()
def last_column_wrong(q, k, v, causal):
    o = right(q, k, v, causal)
    return torch.cat((o[..., :-1], o[..., -1:] * 1.001), dim=3)


@plant()
def last_row_wrong(q, k, v, causal):
    o = right(q, k, v, causal)
    return torch.cat((o[:, :-1], o[:, -1:] * 1.01), dim=1)


@plant("finite", "right", case=replace(CASE, sequence_length=1))
def nan_for_one_token(q, k, v, causal):
    return right(q, k, v, causal) + (torch.nan if q.shape[1] == 1 else 0)


@plant("right", "runs")
def wrong_when_not_contiguous(q, k, v, causal):
    return right(*(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) for x in (q, k, v)), causal)


@plant("right", "runs")
def upstream_gradient_read_as_if_contiguous(q, k, v, causal):
    o = right(q, k, v, causal)
    return backward(
        o, lambda d: d if d.is_contiguous() else torch.as_strided(d, d.shape, torch.empty(d.shape).stride())
    )


@plant()
def upstream_gradient_of_ones(q, k, v, causal):
    return backward(right(q, k, v, causal), torch.ones_like)


@plant()
def group_sum_missing(q, k, v, causal):
    """dV of the first query head of each group alone."""
    group = q.shape[2] // k.shape[2]
    repeated_v = v.repeat_interleave(group, 2)
    first_of_group = (torch.arange(q.shape[2]) % group == 0)[:, None]
    return right(q, k.repeat_interleave(group, 2), backward(repeated_v, lambda d: d * first_of_group), causal)


@plant()
def no_delta_in_the_backward(q, k, v, causal):
    return _NoDelta.apply(q, k, v, causal, {})


class _NoDelta(_Own):
    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Any, ...]:
        Q, K, V, p, _ = ctx.saved_tensors
        ctx_o = torch.zeros_like(Q)
        dO, scale = do.transpose(1, 2).float(), Q.shape[-1] ** -0.5
        ds = p * (dO @ V.mT - (dO * ctx_o).sum(-1, keepdim=True))
        dq, dk, dv = ds @ K * scale, ds.mT @ Q * scale, p.mT @ dO
        dk, dv = (x.unflatten(1, (-1, ctx.group)).sum(2) for x in (dk, dv))
        return *(x.transpose(1, 2).to(ctx.dtype) for x in (dq, dk, dv)), None, None


@plant()
def no_scale_in_the_backward(q, k, v, causal):
    return right(backward(q, lambda d: d * q.shape[-1] ** 0.5), k, v, causal)


@plant()
def ignores_the_mask(q, k, v, causal):
    return right(q, k, v, False)


@plant(case=replace(CASE, causal=False))
def masks_unasked(q, k, v, causal):
    return right(q, k, v, True)


@plant()
def rotated_twice(q, k, v, causal):
    from model.record.config import ModelConfig
    from model.training.llama import rotary_table, rotate

    table = rotary_table(ModelConfig(dim=q.shape[-1], heads=1, kv_heads=1), q.shape[1])
    return right(rotate(q, *table), rotate(k, *table), v, causal)


@plant()
def as_exact_as_tf32(q, k, v, causal):
    return right(
        *(
            (x.view(torch.int32) & ~0x1FFF).view(torch.float32) + 0 * x
            for x in map(torch.Tensor.contiguous, (q, k, v))
        ),
        causal,
    )


@plant()
def computed_in_bfloat16(q, k, v, causal):
    return right(*(x.bfloat16().to(x.dtype) for x in (q, k, v)), causal)


@plant(case=LONG)
def shifted_mask_past_4096(q, k, v, causal):
    return right(q, k, v, False, hidden=lambda i, j: (j > i + (i >= 4096)) & causal)


@plant(case=LONG)
def window_of_4096(q, k, v, causal):
    return right(q, k, v, causal, hidden=lambda i, j: j <= i - 4096)
