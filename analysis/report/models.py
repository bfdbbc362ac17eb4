"""The sizes that follow from a run's configuration. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from model.measure.flops import flop_per_token, of_run, parameter_count
from model.record.config import ModelConfig, RunConfig

# All that counts depend on: the mapping of an imported log states these alone.
_SIZES = frozenset({"dim", "layers", "heads", "kv_heads", "ffn_dim", "vocab_size"})


def parameters(config: Mapping[str, Any]) -> int | None:
    """All trainable parameters of a run's llama; None if its configuration does not tell."""
    model = _model(config)
    return parameter_count(model) if model else None


def without_embedding(config: Mapping[str, Any]) -> int | None:
    """N of the formula for MFU: all parameters but the input embedding."""
    model = _model(config)
    return parameter_count(model) - model.vocab_size * model.dim if model else None


def flop(config: Mapping[str, Any], sequence_length: int | None) -> int | None:
    """FLOP per token of a step, by the task's own formula; of a training step if only the model is known."""
    with suppress(ValidationError):
        return of_run(RunConfig.model_validate(config))
    model = _model(config)
    return flop_per_token(model, sequence_length) if model and sequence_length else None


def _model(config: Mapping[str, Any]) -> ModelConfig | None:
    """The model of a configuration; None if an imported log, or another version, says it otherwise."""
    return _validated(json.dumps(config.get("model"), sort_keys=True))


@lru_cache(maxsize=256)
def _validated(text: str) -> ModelConfig | None:
    given = json.loads(text)
    if not isinstance(given, dict) or not _SIZES <= given.keys() <= ModelConfig.model_fields.keys():
        return None
    try:
        return ModelConfig.model_validate(given)
    except ValidationError:
        return None
