"""The loop that studies usually start from, as courses give it out: `training.py` measures ours against it.

Complex rotary positions, a product each for Q, K, V, gate and up, repeated key heads, float32 logits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.record.config import ModelConfig


class Attention(nn.Module):
    """Separate products for Q, K and V, complex rotary positions, key heads repeated."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_dim
        self.query = nn.Linear(config.dim, config.dim, bias=False)
        self.key = nn.Linear(config.dim, kv_width, bias=False)
        self.value = nn.Linear(config.dim, kv_width, bias=False)
        self.out = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x_BTC: Tensor, turns_TD: Tensor) -> Tensor:
        split = (-1, self.config.head_dim)
        q_BTHD, k_BTKD, v_BTKD = (
            layer(x_BTC).unflatten(-1, split) for layer in (self.query, self.key, self.value)
        )
        q_BTHD, k_BTKD = _turn(q_BTHD, turns_TD), _turn(k_BTKD, turns_TD)
        group = self.config.heads // self.config.kv_heads
        k_BTHD, v_BTHD = (each.repeat_interleave(group, dim=2) for each in (k_BTKD, v_BTKD))
        o_BHTD = F.scaled_dot_product_attention(
            *(each.transpose(1, 2) for each in (q_BTHD, k_BTHD, v_BTHD)), is_causal=True
        )
        out: Tensor = self.out(o_BHTD.transpose(1, 2).flatten(-2))
        return out


def _turn(x_BTHD: Tensor, turns_TD: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x_BTHD.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns_TD[:, None]).flatten(-2).type_as(x_BTHD)


class FeedForward(nn.Module):
    """SwiGLU in three products."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(config.dim, config.ffn_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x_BTC)) * self.up(x_BTC))
        return out


class Reference(nn.Module):
    """The same llama, as plainly as it is usually written."""

    turns_TD: Tensor

    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention_norm": nn.RMSNorm(config.dim, eps=config.norm_eps),
                    "attention": Attention(config),
                    "feed_forward_norm": nn.RMSNorm(config.dim, eps=config.norm_eps),
                    "feed_forward": FeedForward(config),
                }
            )
            for _ in range(config.layers)
        )
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        pairs = torch.arange(0, config.head_dim, 2, dtype=torch.float32)
        angles = torch.outer(torch.arange(length).float(), config.rope_theta ** -(pairs / config.head_dim))
        self.register_buffer("turns_TD", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTC = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTC = x_BTC + layer["attention"](layer["attention_norm"](x_BTC), self.turns_TD)
            x_BTC = x_BTC + layer["feed_forward"](layer["feed_forward_norm"](x_BTC))
        logits: Tensor = self.head(self.norm(x_BTC))
        return logits


def step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs_BT: Tensor, labels_BT: Tensor) -> Tensor:
    """Forward, backward, clipping and update with PyTorch's own functions; the loss."""
    logits_BTV = model(inputs_BT)
    loss = F.cross_entropy(logits_BTV.flatten(0, 1).float(), labels_BT.flatten(), reduction="sum")
    loss = loss / labels_BT.numel()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss
