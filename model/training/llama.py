"""The llama: pre-norm blocks of grouped attention with rotary positions and SwiGLU, and an untied head.

Shapes: B batch, T sequence, C width (dim), H query heads, K key/value heads, D head dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from model.record.config import ModelConfig, RunConfig

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # (q_BTHD, k_BTKD, v_BTKD) -> o_BTHD


def rotary_table(config: ModelConfig, sequence_length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, each (T, D / 2) in float32 (Su et al. 2021, RoFormer)."""
    pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
    frequencies = config.rope_theta ** -(pairs / config.head_dim)
    angles_TD = torch.outer(torch.arange(sequence_length, dtype=torch.float32), frequencies)
    return angles_TD.cos(), angles_TD.sin()


def rotate(x_BTHD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Turn the pairs (i, i + D/2) of each head by their position's angle, in float32."""
    first, second = x_BTHD.float().chunk(2, dim=-1)
    cos, sin = cos_TD[:, None, :], sin_TD[:, None, :]
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).type_as(x_BTHD)


class Past(NamedTuple):
    """Keys and values of the tokens that one layer has seen, with room for more: (B, room, K, D) each.

    Attributes:
        length: how many tokens those are.
    """

    keys_BTKD: Tensor
    values_BTKD: Tensor
    length: int

    def extended(self, k_BTKD: Tensor, v_BTKD: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of new tokens; return those of all tokens so far."""
        end = self.length + k_BTKD.shape[1]
        self.keys_BTKD[:, self.length : end] = k_BTKD
        self.values_BTKD[:, self.length : end] = v_BTKD
        if not self.length:
            return k_BTKD, v_BTKD
        return self.keys_BTKD[:, :end], self.values_BTKD[:, :end]


@dataclass
class Cache:
    """The past of all layers.

    Attributes:
        layers: (keys, values) of each layer, (B, room, K, D).
        length: tokens that it holds.
    """

    layers: list[tuple[Tensor, Tensor]]
    length: int = 0

    @classmethod
    def empty(cls, config: ModelConfig, batch: int, room: int, like: Tensor) -> Cache:
        """A cache for `room` tokens of each sample, in the precision and on the device of `like`."""
        shape = (batch, room, config.kv_heads, config.head_dim)
        return cls([(like.new_empty(shape), like.new_empty(shape)) for _ in range(config.layers)])

    @property
    def room(self) -> int:
        """Tokens that it can hold."""
        return self.layers[0][0].shape[1]


class Attention(nn.Module):
    """Grouped-query attention; the backend computes softmax(Q K^T / sqrt(D)) V."""

    def __init__(self, config: ModelConfig, attend: Attend) -> None:
        super().__init__()
        self.config, self.attend = config, attend
        self.query = nn.Linear(config.dim, config.heads * config.head_dim, bias=False)
        self.key = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.value = nn.Linear(config.dim, config.kv_heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.heads * config.head_dim, config.dim, bias=False)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C); with a past, for the tokens after it, whose angles are given."""
        split = (-1, self.config.head_dim)
        q_BTHD = rotate(self.query(x_BTC).unflatten(-1, split), cos_TD, sin_TD)
        k_BTKD = rotate(self.key(x_BTC).unflatten(-1, split), cos_TD, sin_TD)
        v_BTKD = self.value(x_BTC).unflatten(-1, split)
        if past is not None:
            k_BTKD, v_BTKD = past.extended(k_BTKD, v_BTKD)
        o_BTHD = self.attend(q_BTHD, k_BTKD, v_BTKD)
        out: Tensor = self.out(o_BTHD.flatten(-2))
        return out


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, C)."""
        out: Tensor = self.down(F.silu(self.gate(x_BTC)) * self.up(x_BTC))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and around a residual."""

    def __init__(self, config: ModelConfig, attend: Attend) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config, attend)
        self.feed_forward_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, past: Past | None = None) -> Tensor:
        """(B, T, C) -> (B, T, C), as `Attention.forward`."""
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), cos_TD, sin_TD, past)
        out: Tensor = x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))
        return out


class Head(nn.Linear):
    """The output head. Functions that need its weight run inside the call: only there FSDP2 has it whole."""

    def forward(self, x_BTC: Tensor, use: Callable[[Tensor, Tensor], Tensor] | None = None) -> Tensor:
        """(B, T, C) -> logits (B, T, V), or what `use` makes of the input and the weight (V, C)."""
        return super().forward(x_BTC) if use is None else use(x_BTC, self.weight)


class Llama(nn.Module):
    """Token ids to logits. PyTorch's layers draw the initial weights, as in the study that this repeats.

    Args:
        attend: computes attention for every layer, through the seam of model.attention.
        recompute: keep each block's input alone for the backward pass (Chen et al. 2016, arXiv:1604.06174).
        drops: attention draws random numbers, which a recomputed block must draw again.
        finish: called with each block as soon as it is drawn, to change it in place.
    """

    cos_TD: Tensor
    sin_TD: Tensor

    def __init__(
        self,
        config: ModelConfig,
        sequence_length: int,
        attend: Attend,
        recompute: bool = False,
        finish: Finish | None = None,
        drops: bool = False,
    ) -> None:
        super().__init__()
        self.recompute, self.drops = recompute, drops
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.blocks = nn.ModuleList()
        for _ in range(config.layers):
            self.blocks.append(block := Block(config, attend))
            if finish:
                finish(block)
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.head = Head(config.dim, config.vocab_size, bias=False)
        cos_TD, sin_TD = rotary_table(config, sequence_length)
        self.register_buffer("cos_TD", cos_TD, persistent=False)
        self.register_buffer("sin_TD", sin_TD, persistent=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """(B, T) -> logits (B, T, V)."""
        logits: Tensor = self.head(self.hidden(tokens_BT))
        return logits

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """(B, T) -> the head's input, (B, T, C)."""
        x_BTC = self.embedding(tokens_BT)
        for block in self.blocks:
            given = x_BTC, self.cos_TD, self.sin_TD
            if self.recompute:
                x_BTC = checkpoint(block, *given, use_reentrant=False, preserve_rng_state=self.drops)
            else:
                x_BTC = block(*given)
        hidden_BTC: Tensor = self.norm(x_BTC)
        return hidden_BTC

    def extend(self, cache: Cache, tokens_BT: Tensor) -> Tensor:
        """Read the tokens that follow those in the cache, and add them to it; logits of the last, (B, V).

        The first call reads the whole prompt. In later calls blocks run uncompiled, because each token makes
        the keys longer.

        Raises:
            ValueError: the cache, or the table of positions, has no room for them.
        """
        start, end = cache.length, cache.length + tokens_BT.shape[1]
        if end > min(cache.room, self.cos_TD.shape[0]):
            raise ValueError(
                f"there is no room for {end} tokens, but for {min(cache.room, self.cos_TD.shape[0])}"
            )
        x_BTC, angles = self.embedding(tokens_BT), (self.cos_TD[start:end], self.sin_TD[start:end])
        for block, (keys, values) in zip(self.blocks, cache.layers, strict=True):
            step = block.forward if start else block
            x_BTC = step(x_BTC, *angles, Past(keys, values, start))
        cache.length = end
        logits_BV: Tensor = self.head(self.norm(x_BTC[:, -1]))
        return logits_BV


Finish = Callable[[Block], None]


def compile_block(block: Block) -> None:
    """Pass a block through torch.compile. Blocks are alike, so that one compilation serves all."""
    block.compile()


def drawn(
    config: RunConfig,
    length: int,
    attend: Attend,
    recompute: bool = False,
    finish: Finish | None = None,
    drops: bool = False,
) -> Llama:
    """A run's llama on its device in its precision, with weights drawn from the run's seed.

    Args:
        length: tokens that it has positions for.
        finish: called with each block as soon as it is drawn, to change it in place.
    """

    def finish_by_usual_defaults(block: Block) -> None:
        if finish:
            with _defaults("cpu", torch.float32):
                finish(block)

    torch.manual_seed(config.seed)
    with _defaults(config.device, getattr(torch, config.section.dtype)):
        return Llama(config.model, length, attend, recompute, finish_by_usual_defaults, drops)


@contextmanager
def _defaults(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Set the default device and precision of new tensors."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)
