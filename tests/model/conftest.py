"""Small configurations, and backends that are known by name for one test."""

import pytest

from model import attention
from model.config import RunConfig


@pytest.fixture
def plant(monkeypatch):
    """Makes a planted backend known by name, as a foreign one."""

    def known(name: str, backend: attention.Backend) -> None:
        names, load = attention.names(), attention.load
        monkeypatch.setattr(attention, "names", lambda: (*names, name))
        monkeypatch.setattr(attention, "load", lambda asked: backend if asked == name else load(asked))
        monkeypatch.setattr(attention, "_foreign", lambda: (name,))

    yield known


def run_config(
    attention: str = "auto", seed: int = 0, mode: str = "pack", tokenizer: str = "bytes", **train: object
) -> RunConfig:
    """A run that trains in a second on a CPU."""
    return RunConfig.model_validate({
        "attention": attention,
        "seed": seed,
        "device": "cpu",
        "model": {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 64, "vocab_size": 300},
        "data": {"path": "unused", "mode": mode, "tokenizer": tokenizer},
        "train": {
            "steps": 30, "sequence_length": 32, "batch_size": 4, "learning_rate": 1e-2, "warmup_steps": 4,
            "log_every": 5, "dtype": "float32", **train,
        },
    })  # fmt: skip
