"""A run of inference after its last token, for a profile."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.profiler import record_function

from model.record.config import RunConfig
from model.record.node import Phase
from model.training.llama import Cache, Llama
from model.training.profile import MARK


class Inferred:
    """Reads its last prompts again, and decodes a token with the median number of keys.

    Args:
        cache: holds keys and values of the run's last tokens.
        prompts_BT: (B, T).
    """

    def __init__(self, config: RunConfig, model: Llama, cache: Cache, prompts_BT: Tensor) -> None:
        self.config, self.model = config, model
        self._cache, self._prompts_BT = cache, prompts_BT

    @property
    def phases(self) -> dict[Phase, Callable[[], None]]:
        """Prefills; and decoding, where the run has done it."""
        decoding: dict[Phase, Callable[[], None]] = {"decode": self.decode}
        return {"step": self.prefill, **(decoding if self.config.inference.new_tokens else {})}

    def prefill(self) -> None:
        """One more, as `infer` does it."""
        self._extend(0, self._prompts_BT)

    def decode(self) -> None:
        """One token of each sample. Which one it is does not change the work."""
        self._extend(self.config.inference.median_keys - 1, self._prompts_BT[:, -1:])

    @torch.inference_mode()
    def _extend(self, length: int, tokens_BT: Tensor) -> None:
        self._cache.length = length
        with record_function(f"{MARK}forward"):
            self.model.extend(self._cache, tokens_BT).max(-1, keepdim=True)
