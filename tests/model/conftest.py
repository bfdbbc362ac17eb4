"""Small configurations and runs, and backends that are known by name for one test."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from model import attention
from model.record import backends
from model.record.config import RunConfig
from tests.model.attempts import attempt
from tests.model.attention.kernels import interpreted


@pytest.fixture
def plant(monkeypatch):
    """Makes a planted backend known by name, as a foreign one."""

    def register(name: str, backend: attention.Backend) -> None:
        names, load = backends.names(), attention.load
        monkeypatch.setattr(backends, "names", lambda: (*names, name))
        monkeypatch.setattr(
            attention, "load", lambda backend_name: backend if backend_name == name else load(backend_name)
        )
        monkeypatch.setattr(backends, "foreign", lambda: (name,))

    yield register


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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """So little text that 30 steps go through it more than twice."""
    path = tmp_path_factory.mktemp("tiny") / "text.parquet"
    texts = [None if i % 11 == 5 else f"document {i}: " + "é" * i for i in range(40)]
    pq.write_table(pa.table({"text": texts}), path, row_group_size=7)
    return path


@pytest.fixture(scope="module")
def reference(tiny, corpus, tmp_path_factory):
    """The run that did not stop, with a record of every step, by mode and corpus."""
    attempts = {}

    def run(mode, path):
        if (mode, path) not in attempts:
            config = run_config(mode=mode, log_every=1)
            attempts[mode, path] = attempt(config, path, tmp_path_factory.mktemp("reference"))
        return attempts[mode, path]

    return run


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch):
    """Where Triton's kernels run: a GPU, or its interpreter on a CPU, which tests/conftest.py chooses.

    The interpreter rounds to float32 as a GPU does, and to 16 bits as none does.
    """
    if request.param == "cpu":
        pytest.importorskip("triton", reason="needs triton: pip install 'assay-studies[dev]'")
        if os.environ.get("TRITON_INTERPRET") != "1":
            pytest.skip("the kernels are compiled: this machine has a GPU")
        interpreted.hasten(monkeypatch)
    return request.param
