"""AdamW and its schedule."""

from __future__ import annotations

import torch
from torch import nn

from model.config import TrainConfig


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019), fused, with its states in the parameters' precision."""
    return torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
    )


def learning_rate(config: TrainConfig, step: int) -> float:
    """The rate of a step, counted from 1: a line up to the full rate after the warm-up, then constant."""
    return config.learning_rate * min(1.0, step / (config.warmup_steps + 1))
